"""A data set, its fingerprint, and the texts and labels of its examples."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unicodedata import normalize

from finetune.data.example_store import CHUNK, GOLD_FIELDS, ExampleStore, columns
from finetune.types import Example, TextExample, TokenExample, UserError

WARNING = "warning: "
"""The beginning of a note on what probably costs quality."""
WITHOUT_LEAKS = "_without_leaks"
"""Suffix of a split for the scores of its examples whose texts are not in train."""
ANSWERABLE, UNANSWERABLE = "answer", "no answer"
"""The labels of questions with and without an answer in their context."""


class DataError(UserError):
    """An error in the user's data; the message names file, line, and the correction."""


class WordsNotTexts(DataError):
    """The data are words where texts are read."""


@dataclass
class Dataset:
    """A data set.

    Attributes:
        splits: Examples by split (``train``, ``validation``, ``test``, …), large ones on disk
            (``ExampleStore``). The ``id`` of an example is its index.
        notes: Sentences for people: what was converted, left out or chosen while reading.
        format: Formats of the files, ``hub`` or ``save_to_disk``.
        label_order: Names of the classes in the order of their numbers, if the data number them
            (``ClassLabel`` of `datasets`).
        pinned: The ``--data`` value that reads the same commit of a hub data set again.
        fingerprint_of: Returns ``fingerprint``; by default of these splits.
    """

    name: str
    splits: Mapping[str, Sequence[Any]]  # all TextExample or all TokenExample
    notes: list[str] = field(default_factory=list)
    format: str = ""
    label_order: tuple[str, ...] = ()
    pinned: str | None = None
    fingerprint_of: Callable[[], str] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the fingerprint unless it is given, or the data are so large that it takes long.

        Data sets with converted labels keep the fingerprint of the data as they were read.
        """
        if self.fingerprint_of is None:
            self.fingerprint_of = functools.cache(functools.partial(fingerprint, {**self.splits}))
            if not any(isinstance(rows, ExampleStore) for rows in self.splits.values()):
                found = self.fingerprint_of()
                self.fingerprint_of = lambda: found  # which holds no examples

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content of the examples. Machine and file format do not change it."""
        assert self.fingerprint_of is not None
        return self.fingerprint_of()

    @property
    def training_fingerprint(self) -> str:
        """The fingerprint of all splits but test splits, which do not influence training."""
        return fingerprint(self.without_tests())

    @property
    def scored_splits(self) -> list[str]:
        """The names of all splits but ``train``."""
        return [name for name in self.splits if name != "train"]

    def without_tests(self) -> dict[str, Sequence[Any]]:
        """Return the splits that influence training."""
        return {name: rows for name, rows in self.splits.items() if not name.startswith("test")}

    def with_splits(self, splits: Mapping[str, Sequence[Any]]) -> Dataset:
        """Return the data set with other examples, and so with another fingerprint."""
        return dataclasses.replace(self, splits=splits, fingerprint_of=None)


_known: dict[Any, str] = {}
"""Fingerprints of data on disk, by the hashes of their splits."""


def fingerprint(splits: Mapping[str, Sequence[Example]]) -> str:
    """Return the hexadecimal SHA-256 of the content of all examples, in order; splits by name."""
    if not any(isinstance(rows, ExampleStore) for rows in splits.values()):
        return _fingerprint(splits)
    key = _digests(splits)
    if key not in _known:
        _known[key] = _fingerprint(splits)
    return _known[key]


def remember_fingerprint(splits: Mapping[str, Sequence[Example]], value: str) -> None:
    """Keep the fingerprint of data on disk, which is known from an earlier run."""
    _known[_digests(splits)] = value


def _digests(splits: Mapping[str, Sequence[Example]]) -> tuple[str, ...]:
    digests: list[str] = []
    others: dict[str, Sequence[Example]] = {}
    for name, rows in sorted(splits.items()):
        if isinstance(rows, ExampleStore):
            digests.append(rows.digest())
        else:
            others[name] = rows
    return (*sorted(splits), *digests, _fingerprint(others))


def _fingerprint(splits: Mapping[str, Sequence[Example]]) -> str:
    digest = hashlib.sha256()
    for split in sorted(splits):
        digest.update(f"\x00{split}\n".encode())
        for lines in _rendered(splits[split], f"fingerprint of {split}"):
            digest.update(lines)
    return digest.hexdigest()


def _rendered(examples: Sequence[Example], title: str) -> Iterator[bytes]:
    """Yield the content of examples in lines; all processors render examples on disk."""

    def render(start: int) -> bytes:
        return "".join(_lines(examples[start : start + CHUNK])).encode()

    starts = range(0, len(examples), CHUNK)
    if not isinstance(examples, ExampleStore):
        yield from map(render, starts)
        return
    from finetune.runtime.progress import stage
    from finetune.runtime.workers import forked_map, num_workers

    with stage(title, len(examples)) as show:
        for start, lines in zip(starts, forked_map(render, starts, num_workers()), strict=True):
            show(start)
            yield lines


_encode = json.JSONEncoder(separators=(",", ":")).encode
_PLAIN: Mapping[type[Any], Mapping[str, Any]] = {
    TextExample: {"answers": None, "choices": (), "targets": None, "negative": None},
    TokenExample: {"relations": None, "targets": (), "unreachable": ()},
}
"""Fields of an example that is not more than texts with a label or a document, or words with tags
or spans."""
_WORD_FIELDS = ("words", "spans", "tags", "document", "text", "offsets")


def _lines(examples: Sequence[Example]) -> Iterator[str]:
    """Yield the content of each example, read by column if all are plain examples on disk."""
    store = examples if isinstance(examples, ExampleStore) else None
    if store is None or not store.all_have(_PLAIN[store.kind]):
        yield from (f"{_encode(_content(example))}\n" for example in examples)
    elif store.kind is TokenExample:
        yield from (f"{_encode(('token', *each))}\n" for each in columns(store, _WORD_FIELDS))
    else:
        for text, pair, label, document in columns(store, ("text", "pair", "label", "document")):
            second = "null" if pair is None else _encode(pair)
            of = "" if document is None else f",null,{_encode(document)}"
            yield f'["text",{_encode(text)},{second},{_encode(label)}{of}]\n'


def _content(example: Example) -> list[Any]:
    if isinstance(example, TextExample):
        content: list[Any] = ["text", example.text, example.pair, example.label]
        if example.answers is not None:
            return [*content, example.answers]
        if example.choices:
            return [*content, example.choices]
        if example.targets is not None:
            return [*content, example.negative, example.document, example.targets]
        if example.document is not None:
            return [*content, example.negative, example.document]
        return content if example.negative is None else [*content, example.negative]
    content = ["token", *(getattr(example, name) for name in _WORD_FIELDS)]
    if example.relations is not None:
        content.append(example.relations)
    if example.targets:
        targets = [(t.start, t.end, t.lemma, t.pos, t.senses) for t in example.targets]
        return [*content, example.unreachable, targets]
    return [*content, example.unreachable] if example.unreachable else content


def texts_of(example: Example) -> list[str]:
    """Return the text, or both texts of a pair, with choices, or the words joined by blanks."""
    if isinstance(example, TokenExample):
        return [" ".join(example.words)]
    texts = [example.text] if example.pair is None else [example.text, example.pair]
    return [*texts, *example.choices]


def normalized_texts(example: Example) -> tuple[str, ...]:
    """Return the texts of an example without differences of case, width and white space."""
    return tuple(map(normalized_text, texts_of(example)))


def normalized_text(text: str) -> str:
    """Return a text in lower case, with one blank between words and characters of usual width."""
    return " ".join((text if text.isascii() else normalize("NFKC", text)).casefold().split())


def document_of(example: Example) -> str | None:
    """Return the document of a sentence, or the context of a question."""
    if isinstance(example, TokenExample):
        return example.document
    if example.choices:
        return example.text if example.text.strip() else None
    return None if example.answers is None else example.pair


def gold_labels(example: Example) -> list[str] | None:
    """Return the labels of an example, None without gold: of its relations, spans or words.

    A question has the label ``ANSWERABLE`` or ``UNANSWERABLE``.
    """
    if isinstance(example, TokenExample):
        return _of_words(example.relations, example.spans, example.unreachable, example.tags)
    return _of_text(example.label, example.answers)


def each_gold(rows: Sequence[Example]) -> Iterator[list[str] | None]:
    """Yield the labels of each example, as ``gold_labels`` does."""
    if not isinstance(rows, ExampleStore):
        return map(gold_labels, rows)
    of_kind = _of_text if rows.kind is TextExample else _of_words
    return itertools.starmap(of_kind, columns(rows, GOLD_FIELDS[rows.kind]))


def gold_counts(rows: Sequence[Example]) -> tuple[Counter[str], int]:
    """Return how often each label occurs, and the number of examples without gold."""
    counts, without = Counter[str](), 0
    golds: Iterable[tuple[list[str] | None, int]] = ((gold, 1) for gold in each_gold(rows))
    if isinstance(rows, ExampleStore) and rows.kind is TextExample:
        if rows.all_have({"answers": None}):
            different = Counter(rows.column("label")).items()
            golds = ((_of_text(label, None), number) for label, number in different)
    for gold, number in golds:
        without += number * (gold is None)
        for name in gold or ():
            counts[name] += number
    return counts, without


def _of_text(label: Any, answers: Any) -> list[str] | None:
    if answers is not None:
        return [ANSWERABLE if answers else UNANSWERABLE]
    if label is None:
        return None
    return list(label) if isinstance(label, tuple) else [str(label)]


def _of_words(relations: Any, spans: Any, unreachable: Any, tags: Any) -> list[str] | None:
    if relations is not None:
        return [relation.label for relation in relations]
    if spans is not None:
        return [span.label for span in (*spans, *unreachable)]
    return None if tags is None else list(tags)


def numbered_order(labels: Collection[str], order: Sequence[str]) -> list[str]:
    """Return labels in the order of their numbers; empty if they are not all in ``order``."""
    return [name for name in order if name in labels] if {*labels} <= {*order} else []


def renumbered(examples: Sequence[Any]) -> Sequence[Any]:
    """Return the examples with ``id`` = index."""
    if isinstance(examples, ExampleStore):
        return examples.renumbered()
    return [dataclasses.replace(example, id=index) for index, example in enumerate(examples)]
