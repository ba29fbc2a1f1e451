"""Encoded examples in flat arrays: the values of all sequences, and the offset of each sequence.

A token takes 2 bytes (4 in vocabularies over 65,536 subwords) instead of the 36 of a Python list,
a batch is gathered by a few numpy calls, and the arrays can be memory-mapped files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, overload

import numpy as np

from finetune.types import Encoding

SEQUENCES = 2
"""Version of sequences and targets. Raise it when they change, so that cached ones are not used."""
SMALLEST = (np.uint16, np.int32, np.int64)
"""Types for whole numbers; the first that holds all values is used."""


class Ragged(NamedTuple):
    """Rows of different lengths, end to end: row n is ``values[offsets[n]:offsets[n + 1]]``.

    ``width`` is the length of all rows where they have one, which makes them quick to take.
    """

    values: np.ndarray
    offsets: np.ndarray
    width: int | None = None

    @classmethod
    def of(cls, rows: Sequence[Sequence[Any]]) -> Ragged:
        """The same rows in one array."""
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.array(list(chain.from_iterable(rows)))
        return cls(_compact(values), _boundaries(counts), _same(counts))

    @property
    def counts(self) -> np.ndarray:
        """The length of each row."""
        return self.offsets[1:] - self.offsets[:-1]

    def counts_of(self, rows: np.ndarray) -> np.ndarray:
        """The length of some of the rows."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def take(self, rows: np.ndarray) -> Ragged:
        """Some of the rows, in the order asked for."""
        if self.width is not None:
            offsets = np.arange(len(rows) + 1) * self.width
            by_row = self.values.reshape(len(self.offsets) - 1, self.width)
            return Ragged(by_row[rows].ravel(), offsets, self.width)
        places, offsets = _places(self.offsets, rows)
        return Ragged(self.values[places], offsets)

    def row(self, number: int) -> list[Any]:
        """One row as Python values."""
        return self.values[self.offsets[number] : self.offsets[number + 1]].tolist()

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """The rows of all parts, one part after the other."""
        values = np.concatenate([part.values for part in parts])
        counts = np.concatenate([part.counts for part in parts])
        return cls(values, _boundaries(counts), _same(counts))


@dataclass(frozen=True, slots=True, eq=False)
class Encodings(Sequence[Encoding]):
    """N sequences. As a sequence of ``Encoding`` it gives each of them with Python lists.

    ``ids``, ``words`` (word starts) have a row for each sequence; ``segments`` lies as the ids do,
    None where all are 0 or unknown; ``example`` and ``first_word`` are [N]. ``targets`` has rows by
    name, None where a sequence lacks its target.
    """

    ids: Ragged
    segments: np.ndarray | None
    words: Ragged
    example: np.ndarray
    first_word: np.ndarray
    targets: Mapping[str, Ragged] | None

    @classmethod
    def of(cls, items: Iterable[Encoding]) -> Encodings:
        """Sequences laid flat."""
        if isinstance(items, Encodings):
            return items
        items = list(items)
        return cls(
            Ragged.of([item.input_ids for item in items]),
            _segments(items),
            Ragged.of([item.word_starts for item in items]),
            np.array([item.example for item in items], dtype=np.int64),
            np.array([item.first_word for item in items], dtype=np.int32),
            _targets(items),
        )

    @classmethod
    def joined(cls, parts: Sequence[Encodings]) -> Encodings:
        """The sequences of all parts, one part after the other."""
        segments = None
        if any(part.segments is not None for part in parts):
            segments = np.concatenate([_or_zeros(part.segments, part.ids.values) for part in parts])
        targets = None
        if all(part.targets is not None for part in parts):
            names = parts[0].targets or {}
            targets = {name: Ragged.joined([p.targets[name] for p in parts]) for name in names}
        return cls(
            Ragged.joined([part.ids for part in parts]),
            segments,
            Ragged.joined([part.words for part in parts]),
            np.concatenate([part.example for part in parts]),
            np.concatenate([part.first_word for part in parts]),
            targets,
        )

    def take(self, rows: np.ndarray) -> Encodings:
        """Some of the sequences, in the order asked for."""
        ids = self.ids.take(rows)
        segments = None
        if self.segments is not None:
            segments = Ragged(self.segments, self.ids.offsets).take(rows).values
        targets = self.targets
        if targets is not None:
            targets = {name: target.take(rows) for name, target in targets.items()}
        words, example = self.words.take(rows), self.example[rows]
        return Encodings(ids, segments, words, example, self.first_word[rows], targets)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence: [N]."""
        return self.ids.counts

    @property
    def num_words(self) -> np.ndarray:
        """How many words each sequence answers for: [N]."""
        return np.maximum(self.words.counts - 1, 0)

    def __len__(self) -> int:
        return len(self.example)

    @overload
    def __getitem__(self, place: int) -> Encoding: ...
    @overload
    def __getitem__(self, place: slice) -> Encodings: ...
    def __getitem__(self, place: int | slice) -> Encoding | Encodings:
        if isinstance(place, slice):
            return self.take(np.arange(*place.indices(len(self))))
        number = range(len(self))[place]
        start, end = self.ids.offsets[number : number + 2]
        targets = self.targets
        return Encoding(
            int(self.example[number]),
            self.ids.row(number),
            None if self.segments is None else self.segments[start:end].tolist(),
            self.words.row(number),
            int(self.first_word[number]),
            None if targets is None else {name: t.row(number) for name, t in targets.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class Encoded(Sequence[Encodings]):
    """The sequences of examples: one each, or several windows.

    Attributes:
        sequences: All sequences.
        offsets: Example e has the rows ``offsets[e] .. offsets[e + 1] - 1`` of ``sequences``.
        num_cut: Number of texts or words that were cut to fit.
        notes: Notes for the log on what the model cannot read or predict of the examples.
    """

    sequences: Encodings
    offsets: np.ndarray
    num_cut: int = 0
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, examples: Sequence[Sequence[Encoding]], num_cut: int = 0) -> Encoded:
        """Sequences by example, laid flat."""
        counts = np.fromiter(map(len, examples), np.int64, len(examples))
        return cls(Encodings.of(chain.from_iterable(examples)), _boundaries(counts), num_cut)

    @classmethod
    def joined(cls, parts: Sequence[Encoded]) -> Encoded:
        """The examples of all parts, one part after the other."""
        if not parts:
            return cls.of([])
        counts = np.concatenate([np.diff(part.offsets) for part in parts])
        sequences = Encodings.joined([part.sequences for part in parts])
        return cls(sequences, _boundaries(counts), sum(part.num_cut for part in parts))

    @property
    def num_windows(self) -> np.ndarray:
        """How many sequences each example has: [E]."""
        return np.diff(self.offsets)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, over all its sequences: [E]."""
        tokens = self.sequences.ids.offsets[self.offsets]
        return np.diff(tokens)

    def rows(self, examples: Sequence[int] | np.ndarray) -> np.ndarray:
        """The numbers of the sequences of some examples, in their order."""
        return _places(self.offsets, np.asarray(examples, dtype=np.int64))[0]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, place: int) -> Encodings: ...
    @overload
    def __getitem__(self, place: slice) -> Encoded: ...
    def __getitem__(self, place: int | slice) -> Encodings | Encoded:
        if isinstance(place, slice):
            wanted = np.arange(*place.indices(len(self)))
            part = self.sequences.take(self.rows(wanted))
            return Encoded(part, _boundaries(self.num_windows[wanted]))
        number = range(len(self))[place]
        return self.sequences[int(self.offsets[number]) : int(self.offsets[number + 1])]


def _segments(items: Sequence[Encoding]) -> np.ndarray | None:
    if not any(item.segment_ids and any(item.segment_ids) for item in items):
        return None
    rows = (item.segment_ids or [0] * len(item.input_ids) for item in items)
    return np.fromiter(chain.from_iterable(rows), np.uint8)


def _targets(items: Sequence[Encoding]) -> dict[str, Ragged] | None:
    if not items or any(item.target is None for item in items):
        return None
    return {name: Ragged.of([item.target[name] for item in items]) for name in items[0].target}


def _compact(values: np.ndarray) -> np.ndarray:
    """Whole numbers in the smallest type that holds them, others in float32."""
    if values.dtype == bool:
        return values
    if not len(values):
        return values.astype(SMALLEST[0])
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    lowest, highest = values.min(), values.max()
    fits = (t for t in SMALLEST if np.iinfo(t).min <= lowest and highest <= np.iinfo(t).max)
    return values.astype(next(fits))


def _same(counts: np.ndarray) -> int | None:
    """The number that all counts are, if they are one."""
    return int(counts[0]) if len(counts) and (counts == counts[0]).all() else None


def _or_zeros(segments: np.ndarray | None, like: np.ndarray) -> np.ndarray:
    return np.zeros(len(like), np.uint8) if segments is None else segments


def _places(offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of the values of some rows, and the rows' offsets among these."""
    begins = offsets[rows]
    counts = offsets[rows + 1] - begins
    bounds = _boundaries(counts)
    return np.arange(bounds[-1]) + np.repeat(begins - bounds[:-1], counts), bounds


def _boundaries(counts: np.ndarray) -> np.ndarray:
    """Cumulative counts with a leading 0: [len(counts) + 1]."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
