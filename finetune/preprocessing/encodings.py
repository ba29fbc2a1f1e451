"""Encoded examples in flat arrays: the values of all sequences, and the offset of each sequence.

A token takes 2 or 4 bytes instead of the 36 of a Python list, numpy gathers a batch, and the arrays
can be memory-mapped files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, overload

import numpy as np

from finetune.types import Encoding

SEQUENCES = 4
"""Version of sequences and targets. Raise it when they change, so that cached ones are not used."""

Array = np.ndarray[Any, np.dtype[Any]]


class Ragged(NamedTuple):
    """Rows of different lengths, end to end: row n is ``values[offsets[n]:offsets[n + 1]]``."""

    values: Array
    offsets: Array
    width: int | None = None
    """The length of all rows if they are of equal length, which makes ``take`` fast."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[Any]] | Sequence[Array]) -> Ragged:
        """Concatenate rows of Python values, or arrays."""
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        if len(rows) and isinstance(rows[0], np.ndarray):
            values = np.concatenate(rows)
        else:
            values = np.array(list(chain.from_iterable(rows)))
        return cls(_compact(values), _boundaries(counts), _same(counts))

    @classmethod
    def of_counts(cls, values: Array, counts: Array) -> Ragged:
        """Divide values into rows of the given lengths."""
        return cls(values, _boundaries(counts))

    @property
    def counts(self) -> Array:
        """The length of each row."""
        return np.diff(self.offsets)

    def take(self, rows: Array) -> Ragged:
        """Return some of the rows, in the given order."""
        if self.width is not None:
            offsets = np.arange(len(rows) + 1) * self.width
            by_row = self.values.reshape(len(self.offsets) - 1, self.width)
            return Ragged(by_row[rows].ravel(), offsets, self.width)
        indices, offsets = _gather(self.offsets, rows)
        return Ragged(self.values[indices], offsets)

    def row(self, number: int) -> list[Any]:
        """Return one row as Python values."""
        return list(self.values[self.offsets[number] : self.offsets[number + 1]].tolist())

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate several arrays of rows."""
        values = np.concatenate([part.values for part in parts])
        counts = np.concatenate([part.counts for part in parts])
        return cls(values, _boundaries(counts), _same(counts))


@dataclass(frozen=True, slots=True, eq=False)
class Encodings(Sequence[Encoding]):
    """N sequences in flat arrays, indexed as a sequence of ``Encoding``."""

    ids: Ragged
    segments: Array | None  # in the layout of ``ids.values``; None if all are 0
    words: Ragged  # the word starts
    example: Array  # [N]
    part: Array  # [N]
    targets: Mapping[str, Ragged] | None  # None if a sequence has no target

    @classmethod
    def of(cls, items: Iterable[Encoding]) -> Encodings:
        """Convert sequences to flat arrays."""
        if isinstance(items, Encodings):
            return items
        items = list(items)
        segments = targets = None
        if any(item.segment_ids and any(item.segment_ids) for item in items):
            rows = (item.segment_ids or [0] * len(item.input_ids) for item in items)
            segments = np.fromiter(chain.from_iterable(rows), np.uint8)
        given = [item.target for item in items if item.target is not None]
        if given and len(given) == len(items):
            targets = {name: Ragged.of([target[name] for target in given]) for name in given[0]}
        return cls(
            Ragged.of([item.input_ids for item in items]),
            segments,
            Ragged.of([item.word_starts for item in items]),
            np.array([item.example for item in items], dtype=np.int64),
            np.array([item.part for item in items], dtype=np.int32),
            targets,
        )

    @classmethod
    def joined(cls, parts: Sequence[Encodings]) -> Encodings:
        """Concatenate several groups of sequences."""
        segments = targets = None
        if any(part.segments is not None for part in parts):
            zeros = (np.zeros(len(part.ids.values), np.uint8) for part in parts)
            given = (part.segments for part in parts)
            segments = np.concatenate(
                [zero if own is None else own for zero, own in zip(zeros, given, strict=True)]
            )
        groups = [part.targets for part in parts if part.targets is not None]
        if len(groups) == len(parts):
            targets = {name: Ragged.joined([group[name] for group in groups]) for name in groups[0]}
        return cls(
            Ragged.joined([part.ids for part in parts]),
            segments,
            Ragged.joined([part.words for part in parts]),
            np.concatenate([part.example for part in parts]),
            np.concatenate([part.part for part in parts]),
            targets,
        )

    def take(self, rows: Array) -> Encodings:
        """Return some of the sequences, in the given order."""
        ids = self.ids.take(rows)
        segments = None
        if self.segments is not None:
            segments = Ragged(self.segments, self.ids.offsets).take(rows).values
        targets = self.targets
        if targets is not None:
            targets = {name: target.take(rows) for name, target in targets.items()}
        words, example = self.words.take(rows), self.example[rows]
        return Encodings(ids, segments, words, example, self.part[rows], targets)

    @property
    def first_word(self) -> Array:
        """The position of the first core word of each sequence, for tasks of words: [N]."""
        return self.part

    @property
    def lengths(self) -> Array:
        """Number of tokens of each sequence: [N]."""
        return self.ids.counts

    @property
    def num_words(self) -> Array:
        """Number of core words of each sequence: [N]."""
        counts: Array = np.maximum(self.words.counts - 1, 0)
        return counts

    def __len__(self) -> int:
        return len(self.example)

    @overload
    def __getitem__(self, index: int) -> Encoding: ...
    @overload
    def __getitem__(self, index: slice) -> Encodings: ...
    def __getitem__(self, index: int | slice) -> Encoding | Encodings:
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        row = range(len(self))[index]
        segments, targets = self.segments, self.targets
        return Encoding(
            int(self.example[row]),
            self.ids.row(row),
            None if segments is None else Ragged(segments, self.ids.offsets).row(row),
            self.words.row(row),
            int(self.part[row]),
            None if targets is None else {name: t.row(row) for name, t in targets.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class Encoded(Sequence[Encodings]):
    """The sequences of examples: one each, or several windows.

    Example e has the rows ``offsets[e] .. offsets[e + 1] - 1`` of ``sequences``.
    """

    sequences: Encodings
    offsets: Array
    num_cut: int = 0
    """Number of texts or words that were cut to fit."""
    notes: tuple[str, ...] = ()
    """Notes for the log on parts of the examples that the model cannot read or predict."""

    @classmethod
    def of(cls, examples: Sequence[Sequence[Encoding]], num_cut: int = 0) -> Encoded:
        """Convert the sequences of each example to flat arrays."""
        counts = np.fromiter(map(len, examples), np.int64, len(examples))
        return cls(Encodings.of(chain.from_iterable(examples)), _boundaries(counts), num_cut)

    @classmethod
    def joined(cls, parts: Sequence[Encoded]) -> Encoded:
        """Concatenate several groups of examples."""
        if not parts:
            return cls.of([])
        counts = np.concatenate([np.diff(part.offsets) for part in parts])
        sequences = Encodings.joined([part.sequences for part in parts])
        return cls(sequences, _boundaries(counts), sum(part.num_cut for part in parts))

    @property
    def num_windows(self) -> Array:
        """Number of sequences of each example: [E]."""
        return np.diff(self.offsets)

    @property
    def lengths(self) -> Array:
        """Number of tokens of each example, over all its sequences: [E]."""
        return np.diff(self.sequences.ids.offsets[self.offsets])

    def rows(self, examples: Sequence[int] | Array) -> Array:
        """Return the rows of the sequences of some examples, in their order."""
        return _gather(self.offsets, np.asarray(examples, dtype=np.int64))[0]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Encodings: ...
    @overload
    def __getitem__(self, index: slice) -> Encoded: ...
    def __getitem__(self, index: int | slice) -> Encodings | Encoded:
        if isinstance(index, slice):
            chosen = np.arange(*index.indices(len(self)))
            rows, offsets = _gather(self.offsets, chosen)
            return Encoded(self.sequences.take(rows), offsets)
        row = range(len(self))[index]
        return self.sequences[int(self.offsets[row]) : int(self.offsets[row + 1])]


def _compact(values: Array) -> Array:
    """Convert whole numbers to the smallest type that holds them, others to float32."""
    if values.dtype == bool:
        return values
    if not len(values):
        return values.astype(np.uint16)
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    lowest, highest = values.min(), values.max()
    types = (np.uint16, np.int32, np.int64)
    fits = (t for t in types if np.iinfo(t).min <= lowest and highest <= np.iinfo(t).max)
    return values.astype(next(fits))


def _same(counts: Array) -> int | None:
    """Return the length of all rows if they are of equal length."""
    return int(counts[0]) if len(counts) and (counts == counts[0]).all() else None


def _gather(offsets: Array, rows: Array) -> tuple[Array, Array]:
    """Return the indices of the values of some rows, and the offsets of these rows among them."""
    begins = offsets[rows]
    counts = offsets[rows + 1] - begins
    bounds = _boundaries(counts)
    return np.arange(bounds[-1]) + np.repeat(begins - bounds[:-1], counts), bounds


def _boundaries(counts: Array) -> Array:
    """Cumulative counts with a leading 0: [len(counts) + 1]."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
