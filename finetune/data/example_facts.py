"""Facts of examples as numbers, for checks and splits that need no texts: hashes and sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finetune.data import example_store
from finetune.data.dataset import document_of, normalized_text, texts_of
from finetune.data.example_store import ExampleStore, StoreWriter
from finetune.types import Example, TextExample, TokenExample

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[Any]]

BLANK, DAMAGED = 1, 2
"""Flags of an example with an empty text, and of one with U+FFFD, the mark of a lost character."""
TYPES = {
    "text": "uint64",
    "document": "uint64",
    "words": "uint32",
    "characters": "uint32",
    "flags": "uint8",
}
"""The type of each fact."""


class Facts:
    """The facts of N examples, each an array [N] by its name in ``TYPES``.

    ``text`` has hashes of the normalized texts, ``document`` hashes of the documents (0 for none).
    Two different texts among n have the same 64-bit hash with a probability of about n^2 / 2^65:
    1e-5 for 20 million examples.
    """

    def __init__(self, examples: Sequence[Example]) -> None:
        """Compute the facts of examples in memory; a store has them on disk."""
        self.examples = examples
        self._computed = {} if isinstance(examples, ExampleStore) else computed_facts(examples)

    @property
    def are_words(self) -> bool:
        """True if the examples are words, not texts."""
        return len(self.examples) > 0 and isinstance(self.examples[0], TokenExample)

    def __getitem__(self, name: str) -> Numbers:
        if isinstance(self.examples, ExampleStore):
            return self.examples.numbers(name)
        return self._computed[name]


def computed_facts(examples: Sequence[Example]) -> Mapping[str, Numbers]:
    """Compute the facts of examples by name."""
    import numpy as np

    rows = list(map(_facts, examples))
    found = zip(*rows, strict=True) if rows else ((),) * len(TYPES)
    return {n: np.array(f, TYPES[n]) for n, f in zip(TYPES, found, strict=True)}


ComputeFacts = Callable[[Sequence[Any]], Mapping[str, Any]]


def no_facts(rows: Sequence[Any]) -> Mapping[str, Any]:
    """Return no facts, for rows that are not examples yet."""
    return {}


def text_hash(texts: Sequence[str]) -> int:
    """Return the 64-bit hash of the texts of an example."""
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest("\x00".join(texts).encode("utf-8", "surrogatepass"))


def _facts(example: Example) -> tuple[int, int, int, int, int]:
    texts = texts_of(example)
    document = document_of(example)
    hashed = 0 if document is None else text_hash((document,)) or 1
    if isinstance(example, TokenExample):
        words = len(example.words)
    else:
        words = sum(len(text.split()) for text in texts)
    flags = 0 if all(map(str.strip, _required_texts(example, texts))) else BLANK
    if any("\ufffd" in text for text in texts):
        flags |= DAMAGED
    normalized = text_hash(list(map(normalized_text, texts)))
    return normalized, hashed, words, sum(map(len, texts)), flags


def _required_texts(example: Example, texts: Sequence[str]) -> Sequence[str]:
    """Return the texts that should not be blank: a question of choices needs no context."""
    if isinstance(example, TextExample) and example.choices:
        return example.choices
    return texts


def collected(
    examples: Iterable[Any], title: str = "reading", facts: ComputeFacts = computed_facts
) -> Sequence[Any]:
    """Return examples as a list, or as a store if they are more than ``MOST_IN_MEMORY``."""
    from finetune.runtime.progress import stage

    examples = iter(examples)
    with stage(title, unit="row") as show:
        head = []
        for chunk in _chunks(examples):
            head += chunk
            show(len(head))
            if len(head) > example_store.MOST_IN_MEMORY:
                break
        else:
            return head
        writer, first = StoreWriter(facts), len(head)
        for chunk in _chunks(itertools.chain(_emptied(head), examples)):
            writer.add(chunk)
            show(max(writer.size, first))
        return writer.finish()


def _chunks(examples: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(examples, example_store.CHUNK)):
        yield chunk


def _emptied(examples: list[Any]) -> Iterator[Any]:
    """Yield examples and free their memory."""
    examples.reverse()
    while examples:
        yield examples.pop()


def transformed(
    rows: Sequence[Any], change: Callable[[Any], Any], facts: ComputeFacts = computed_facts
) -> Sequence[Any]:
    """Return the changed examples, with the ids that they have; large data stay on disk."""
    if not isinstance(rows, ExampleStore):
        return list(map(change, rows))
    writer = StoreWriter(facts)
    for chunk in _chunks(map(change, rows)):
        writer.add(chunk)
    found = writer.finish()
    return found if rows.ids is None else found.with_ids(rows.ids)
