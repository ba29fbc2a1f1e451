"""Data sets: their examples in columns in memory, or mapped from a file of Arrow if they are many.

``Examples`` is the one holder of examples: nothing else asks where they are. It also computes
statistics of its examples, which checks and splits need instead of the texts: hashes and sizes.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload
from unicodedata import normalize

import numpy as np
import xxhash

from finetune.data.columns import (
    Field,
    MappedTable,
    Numbers,
    fields_of,
    json_text,
    json_texts,
    stored,
    write_batches,
)
from finetune.runtime.memory import without_garbage_collection
from finetune.runtime.progress import progress_task
from finetune.types import EXAMPLES, ChoiceQuestion, Example, Question, TextExample, TokenExample

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

MOST_IN_MEMORY = 200_000
"""Most examples of a split that are kept in memory."""
CHUNK = 8192
"""Number of examples that are read from disk, or tokenized, at a time."""
BLANK, DAMAGED = 1, 2
"""Flags of an example with an empty text, and of one with U+FFFD, the mark of a lost character."""
COLUMN_STATS = {
    "text": "uint64",
    "document": "uint64",
    "words": "uint32",
    "characters": "uint32",
    "flags": "uint8",
}
"""The type of each statistic: ``text`` has hashes of the normalized texts, ``document`` hashes of
the documents (0 for none). Two different texts among n have the same 64-bit hash with a
probability of about n^2 / 2^65: 1e-5 for 20 million examples."""

WARNING = "warning: "
"""The beginning of a note on what probably costs quality."""
WITHOUT_LEAKS = "_without_leaks"
"""Suffix of a split for the scores of its examples whose texts are not in train."""

_STATS_PREFIX = "fact "
"""The beginning of the name of a column of a statistic; fingerprints depend on it."""
_EXAMPLE_TYPES: Mapping[str, type[Any]] = {cls.__name__: cls for cls in EXAMPLES}


class Examples(Sequence[Any]):
    """Examples of one type: texts, words, or named tuples without ``id``.

    Each field is a column: an array in memory, or a column of a mapped table. Examples are made on
    access. Examples that are made of others (``take``, ``map``, ``replace``) leave these as they
    are.
    """

    example_type: Any
    """The class of the examples."""

    def __init__(self, examples: Iterable[Any] = ()) -> None:
        """Hold examples in memory."""
        rows = list(examples)
        self.example_type = type(rows[0]) if rows else TextExample
        self.is_large = False
        """Whether the examples are on disk, where each pass over them takes long."""
        self._columns: dict[str, Numbers | MappedTable] = {
            name: np.fromiter(map(attrgetter(name), rows), object)
            for name in self.example_type.__match_args__
        }
        """The values of each field, or the mapped table that has them."""
        self._rows = np.arange(len(rows), dtype=np.uint32)
        """The rows of mapped tables that the examples are."""
        self._made = 0, rows
        """The index of an example, and the examples from there on that are already made."""

    @staticmethod
    def of(rows: Sequence[Any]) -> Examples:
        """Convert a sequence of examples to ``Examples``."""
        return rows if isinstance(rows, Examples) else Examples(rows)

    @classmethod
    def _mapped(cls, example_type: Any, table: MappedTable) -> Examples:
        columns = dict.fromkeys(table.names, table)
        examples = cls()._with(columns, np.arange(len(table), dtype=np.uint32))
        examples.example_type, examples.is_large = example_type, True
        return examples

    def _with(self, columns: Mapping[str, Numbers | MappedTable], rows: Numbers) -> Examples:
        examples = copy.copy(self)
        examples._columns, examples._rows, examples._made = dict(columns), rows, (0, [])
        return examples

    @property
    def are_words(self) -> bool:
        """True for sentences of words, False for texts."""
        return self.example_type is TokenExample

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        if self.is_large:
            return self._make()
        if len(self._made[1]) < len(self._rows):
            self._made = 0, list(self._make())
        return iter(self._made[1])

    def _make(self) -> Iterator[Any]:
        return map(self.example_type, *map(self.column, self.example_type.__match_args__))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.take(range(*index.indices(len(self))))
        index = range(len(self._rows))[index]
        begin, examples = self._made
        if not begin <= index < begin + len(examples):
            begin = index // CHUNK * CHUNK if self.is_large else 0
            examples = list(self[begin : begin + CHUNK] if self.is_large else self._make())
            self._made = begin, examples
        return examples[index - begin]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"<{len(self):,} {self.example_type.__name__}>"

    def columns(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """The values of some fields of each example."""
        return zip(*map(self.column, names), strict=True)

    def column(self, name: str) -> Iterator[Any]:
        """The values of one field in order; no examples have no values of any field."""
        if not self._rows.size:
            return iter(())
        if not self.is_large:
            return iter(self._columns[name].tolist())  # type: ignore[union-attr]
        read = fields_of(self.example_type)[name].values
        return itertools.chain.from_iterable(map(read, self._chunks(name)))

    def _chunks(self, name: str) -> Iterator[Any]:
        column = self._columns[name]
        for part in (slice(start, start + CHUNK) for start in range(0, len(self), CHUNK)):
            if isinstance(column, MappedTable):
                yield column.take(name, self._rows[part])
            else:
                yield column[part]

    def codes(self, name: str) -> tuple[list[Any], Numbers]:
        """The different values of a field, in the order of their first examples, and the
        number of the value of each example [N]. 1, 1.0 and "1" differ."""
        if self.is_large:
            chunks = (getattr(chunk, "chunks", [chunk]) for chunk in self._chunks(name))
            field = fields_of(self.example_type)[name]
            parts: Iterable[Any] = map(field.distinct, itertools.chain.from_iterable(chunks))
        else:
            parts = [(list(self.column(name)), np.arange(len(self)))]
        values, numbers, codes = list[Any](), dict[Any, int](), [np.array([], int)]
        for distinct, indices in parts:
            used, firsts = np.unique(indices, return_index=True)
            renumbered = np.empty(len(distinct), int)
            for index in used[np.argsort(firsts)].tolist():
                value = distinct[index]
                key = value if type(value) is str else (repr(value),)
                if key not in numbers:
                    numbers[key] = len(values)
                    values.append(value)
                renumbered[index] = numbers[key]
            codes.append(renumbered[indices])
        return values, np.concatenate(codes)

    def golds(self) -> Iterator[list[str] | None]:
        """The labels of each example, or None without gold."""
        return itertools.starmap(self.example_type.labels_of, self.columns(*self.example_type.GOLD))

    def gold_counts(self) -> tuple[Counter[str], int]:
        """Count how often each label occurs, and the examples without gold."""
        golds: Iterator[Any] = ([None] if gold is None else gold for gold in self.golds())
        counts = Counter(itertools.chain.from_iterable(golds))
        without = counts.pop(None, 0)
        return counts, without

    def locations(self, indices: Sequence[int] | Numbers) -> list[str]:
        """The ``file:line`` of a few examples."""
        return list(map(str, self.take(indices).column("where")))

    def stats(self, name: str) -> Numbers:
        """A statistic of each example [N], by its name in ``COLUMN_STATS``."""
        key = _STATS_PREFIX + name
        if key not in self._columns:
            stats = compute_column_stats(list(self))
            self._columns |= {_STATS_PREFIX + name: stats[name] for name in stats}
        empty = np.array([], COLUMN_STATS[name])
        return np.concatenate([empty, *map(np.asarray, self._chunks(key))])

    def take(self, indices: Numbers | Sequence[int]) -> Examples:
        """Select the examples at some indices, with the ids that they have: a few in memory."""
        indices = np.asarray(indices, np.int64)
        columns = {
            name: column if isinstance(column, MappedTable) else column[indices]
            for name, column in self._columns.items()
        }
        taken = self._with(columns, self._rows[indices])
        return Examples(taken) if self.is_large and len(taken) <= MOST_IN_MEMORY else taken

    def keep(self, which: Iterable[bool]) -> Examples:
        """Select the examples whose flag in ``which`` is true; they keep their ids."""
        return self.take(indices_of(which))

    def renumbered(self) -> Examples:
        """Copy the examples with ``id`` = index."""
        return self.replace("id", np.arange(len(self)))

    def replace(self, name: str, values: Iterable[Any]) -> Examples:
        """Copy the examples with other values of a field."""
        column = values if isinstance(values, np.ndarray) else np.fromiter(values, object)
        if len(column) != len(self):
            raise ValueError(f"{len(column):,} values of {name} for {self!r}")
        return self._with({**self._columns, name: column}, self._rows)

    def recoded(self, name: str, convert: Callable[[Any, int], Any]) -> Examples:
        """Convert the values of a field; ``convert`` gets each different value once, with the index
        of its first example."""
        values, codes = self.codes(name)
        firsts = np.unique(codes, return_index=True)[1].tolist()
        changed = list(map(convert, values, firsts))
        if all(new is old for new, old in zip(changed, values, strict=True)):
            return self
        return self.replace(name, map(changed.__getitem__, codes))

    def converted(self, example_type: Any, values: Mapping[str, Iterable[Any]]) -> Examples:
        """Convert to examples of another type, with these values of fields; others stay."""
        fields, rows = fields_of(example_type), self
        if self.is_large:
            if not np.array_equal(self._rows, np.arange(len(self))):  # rows of the new table
                rows = Examples._mapped(self.example_type, stored(self._batches()))
            table = stored(_packed(fields, {name: _batches(values[name]) for name in values}))
            new: dict[str, Any] = dict.fromkeys(values, table)
        else:
            new = {name: np.fromiter(value, object) for name, value in values.items()}
        stats = {_STATS_PREFIX + name for name in COLUMN_STATS}
        kept = {n: column for n, column in rows._columns.items() if n in fields or n in stats}
        changed = rows._with(kept | new, rows._rows)
        changed.example_type = example_type
        return changed

    def map(self, change: Callable[[int, Any], Any]) -> Examples:
        """Apply ``change`` to each index and its example; it must keep the ``id``."""
        return collected(itertools.starmap(change, enumerate(self)), "converting")

    def content(self, title: str) -> Iterator[bytes]:
        """Yield the content of the examples in lines, as JSON; ``title`` is shown meanwhile."""
        fields = self.columns(*self.example_type.CONTENT)
        contents = itertools.starmap(self.example_type.content_of, fields)
        for batch in _batches(contents, title, len(self)):
            yield ("\n".join(json_texts(batch)) + "\n").encode()

    def digest(self) -> str:
        """Hash the content, ids and order of the examples; ``where`` is no part."""
        digest = xxhash.xxh3_128(self.example_type.__name__.encode())
        if not self.is_large:
            digest.update(json_text(list(self.column("id"))).encode())
            for lines in self.content("reading"):
                digest.update(lines)
            return digest.hexdigest()
        digest.update(self._rows.data)
        for name, column in sorted(self._columns.items()):
            if not isinstance(column, MappedTable):
                for values in _batches(self.column(name)):
                    digest.update(json_text([name, values]).encode())
            elif name != "where":
                digest.update(column.digest(name))
        return digest.hexdigest()

    def save(self, folder: Path, name: str) -> dict[str, Any]:
        """Write the examples to files of a folder, whose names begin with ``name``.

        Returns:
            A description for ``load``, of JSON.
        """
        if self:
            with (folder / f"{name}.arrow").open("wb") as file:
                write_batches(file, self._batches())
        cls = self.example_type.__name__ if self else None
        return {"kind": cls, "is_large": self.is_large}

    def _batches(self) -> Iterator[pa.RecordBatch]:
        self.stats("text")  # computes all
        fields = fields_of(self.example_type)
        names = [*fields, *(_STATS_PREFIX + name for name in COLUMN_STATS)]
        return _packed(fields, {name: self._chunks(name) for name in names})

    @staticmethod
    def load(folder: Path, name: str, saved: Mapping[str, Any]) -> Examples:
        """Read the examples that ``save`` has described from their files."""
        if saved["kind"] is None:
            return Examples()
        with (folder / f"{name}.arrow").open("rb") as file:
            mapped = Examples._mapped(_EXAMPLE_TYPES[saved["kind"]], MappedTable(file))
        return mapped if saved["is_large"] else Examples(mapped)


def indices_of(which: Iterable[bool]) -> Numbers:
    """The indices of the true values."""
    return np.flatnonzero(which if isinstance(which, np.ndarray) else np.fromiter(which, bool))


def collected(examples: Iterable[Any], title: str = "reading") -> Examples:
    """Collect the examples of a stream: on disk if they are many. ``title`` is shown meanwhile."""
    values = iter(examples)
    few = list(itertools.islice(values, CHUNK))
    if len(few) < CHUNK:
        return Examples(few)
    first, remaining = list[list[Any]](), _batches(itertools.chain(few, values), title)
    for batch in remaining:
        first.append(batch)
        if sum(map(len, first)) > MOST_IN_MEMORY:
            kept = (first.pop(0) for _ in range(len(first)))  # a batch is free once it is packed
            parts = (Examples(part)._batches() for part in itertools.chain(kept, remaining))
            return Examples._mapped(type(batch[0]), stored(itertools.chain.from_iterable(parts)))
    return Examples(itertools.chain.from_iterable(first))


def _packed(
    fields: Mapping[str, Field], chunks: Mapping[str, Iterable[Any]]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for of_rows in zip(*chunks.values(), strict=True):
        arrays = dict[str, pa.Array]()
        for name, chunk in zip(chunks, of_rows, strict=True):
            if isinstance(chunk, pa.ChunkedArray):
                arrays[name] = chunk.combine_chunks()
            else:
                values = chunk.tolist() if isinstance(chunk, np.ndarray) else chunk
                arrays[name] = fields[name].array(values) if name in fields else pa.array(chunk)
        yield pa.RecordBatch.from_pydict(arrays)


def _batches(values: Iterable[T], title: str = "", number: int | None = None) -> Iterator[list[T]]:
    remaining, done = iter(values), 0
    shown = progress_task(title, number) if title else nullcontext(lambda done: None)
    with shown as show:
        while batch := list(itertools.islice(remaining, CHUNK)):
            yield batch
            show(done := done + len(batch))


def compute_column_stats(examples: Sequence[Example]) -> Mapping[str, Numbers]:
    """Compute the statistics of examples by name."""
    texts = [example.texts() for example in examples]
    flat = list(itertools.chain.from_iterable(texts))
    joined = compared = normalized(flat)
    if len(flat) > len(texts):
        parts = iter(compared)
        joined = ["\x00".join(itertools.islice(parts, len(strings))) for strings in texts]
    owner = np.repeat(np.arange(len(texts)), list(map(len, texts)))

    def sums(numbers: Iterable[int]) -> Numbers:
        return np.bincount(owner, np.fromiter(numbers, np.float64, len(flat)), len(texts))

    blank = sums(map(operator.not_, compared)) > 0
    cls = type(examples[0]) if examples else TextExample
    documents: Iterable[str | None] = itertools.repeat(None, len(texts))
    if cls is ChoiceQuestion:  # which needs no context
        choices = map(attrgetter("choices"), examples)
        blank = np.array([not all(map(str.strip, strings)) for strings in choices])
        documents = (text if text.strip() else None for text in map(attrgetter("text"), examples))
    elif cls is Question:
        documents = map(attrgetter("pair"), examples)
    elif "words" in cls.__match_args__:  # also of rows whose tags are not yet converted
        documents = map(attrgetter("document"), examples)
    if "words" in cls.__match_args__:
        words = np.array(list(map(len, map(attrgetter("words"), examples))))
    else:
        words = sums(map(_num_words, flat, compared))
    damaged = sums("\ufffd" in text for text in flat) > 0
    stats = {
        "text": np.fromiter(map(_hash, joined), np.uint64, len(texts)),
        "document": np.fromiter((0 if t is None else _hash(t) or 1 for t in documents), np.uint64),
        "words": words,
        "characters": sums(map(len, flat)),
        "flags": BLANK * blank + DAMAGED * damaged,
    }
    return {name: stats[name].astype(type) for name, type in COLUMN_STATS.items()}


def normalized(texts: Iterable[str]) -> list[str]:
    """Convert texts to one form of case, width and white space."""
    return [
        " ".join((text.lower() if text.isascii() else normalize("NFKC", text).casefold()).split())
        for text in texts
    ]


def _num_words(text: str, normalized: str) -> int:
    return normalized.count(" ") + bool(normalized) if text.isascii() else len(text.split())


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


@dataclass
class Dataset:
    """A data set.

    Attributes:
        splits: Examples by split (``train``, ``validation``, ``test``, …), all TextExample or all
            TokenExample; other sequences become ``Examples``. The ``id`` of an example is its
            index.
        notes: Sentences for people: what was converted, left out or chosen while reading.
        format: Formats of the files, ``hub`` or ``save_to_disk``.
        label_order: Names of the classes in the order of their numbers, if the data number them
            (``ClassLabel`` of `datasets`).
        pinned: The ``--data`` value that reads the same commit of a hub data set again.
        fingerprint_of: Returns ``fingerprint``; by default of these splits.
    """

    name: str
    splits: Mapping[str, Examples]
    notes: list[str] = field(default_factory=list)
    format: str = ""
    label_order: tuple[str, ...] = ()
    pinned: str | None = None
    fingerprint_of: Callable[[], str] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Data sets with converted labels keep the fingerprint of the data as they were read."""
        self.splits = {
            name: rows if isinstance(rows, Examples) else Examples(rows)
            for name, rows in self.splits.items()
        }
        if self.fingerprint_of is None:
            self.fingerprint_of = functools.cache(functools.partial(fingerprint, self.splits))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fingerprint in place of the function that computes it."""
        return {**vars(self), "fingerprint_of": functools.partial(str, self.fingerprint)}

    @property
    def is_large(self) -> bool:
        """True if a split does not fit in memory."""
        return any(rows.is_large for rows in self.splits.values())

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

    def without_tests(self) -> dict[str, Examples]:
        """The splits that influence training."""
        return {name: rows for name, rows in self.splits.items() if not name.startswith("test")}

    def with_splits(self, splits: Mapping[str, Any]) -> Dataset:
        """Copy the data set with other examples, and so with another fingerprint."""
        return dataclasses.replace(self, splits=splits, fingerprint_of=None)


_fingerprints: dict[Any, str] = {}
"""Fingerprints of large data, by the hashes of their splits."""


@without_garbage_collection()
def fingerprint(splits: Mapping[str, Sequence[Any]]) -> str:
    """Compute the hexadecimal SHA-256 of all examples in order, of the splits by name."""
    examples = {name: Examples.of(splits[name]) for name in sorted(splits)}
    is_large = any(rows.is_large for rows in examples.values())
    if is_large and (earlier := _fingerprints.get(_digests(examples))):
        return earlier
    digest = hashlib.sha256()
    for split, rows in examples.items():
        digest.update(f"\x00{split}\n".encode())
        for lines in rows.content(f"fingerprint of {split}"):
            digest.update(lines)
    if is_large:
        remember_fingerprint(examples, digest.hexdigest())
    return digest.hexdigest()


def remember_fingerprint(splits: Mapping[str, Examples], value: str) -> None:
    """Keep the fingerprint of large data, which is known from an earlier run."""
    _fingerprints[_digests(splits)] = value


def _digests(splits: Mapping[str, Examples]) -> tuple[tuple[str, str], ...]:
    return tuple((name, rows.digest()) for name, rows in sorted(splits.items()))
