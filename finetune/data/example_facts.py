"""Facts of examples as numbers, for checks and splits that need no texts: hashes and sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_intdigest

from finetune.data.dataset import document_of, normalized_text, texts_of
from finetune.data.example_store import ExampleStore
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


def text_hash(texts: Sequence[str]) -> int:
    """Return the 64-bit hash of the texts of an example."""
    return xxh3_64_intdigest("\x00".join(texts).encode("utf-8", "surrogatepass"))


def _facts(example: Example) -> tuple[int, int, int, int, int]:
    texts = texts_of(example)
    document = document_of(example)
    hashed = 0 if document is None else text_hash((document,)) or 1
    normalized, flags, words = [], 0, 0
    for text in texts:
        normalized.append(normalized_text(text))
        if text.isascii():
            words += normalized[-1].count(" ") + bool(normalized[-1])
            continue
        words += len(text.split())
        if "\ufffd" in text:
            flags |= DAMAGED
    if isinstance(example, TokenExample):
        words = len(example.words)
    if not all(map(str.strip, _required_texts(example, texts))):
        flags |= BLANK
    return text_hash(normalized), hashed, words, sum(map(len, texts)), flags


def _required_texts(example: Example, texts: Sequence[str]) -> Sequence[str]:
    """Return the texts that should not be blank: a question of choices needs no context."""
    if isinstance(example, TextExample) and example.choices:
        return example.choices
    return texts
