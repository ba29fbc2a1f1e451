"""Encoded examples in flat arrays: the values of all sequences, and the offset of each sequence.

A token takes 2 or 4 bytes instead of the 36 of a Python list, numpy gathers a batch, and the arrays
can be memory-mapped files: one in a folder for each array, and ``entry.json`` with their types.
Arrays that are joined in memory and arrays that are written to files are the same, types included.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from finetune.types import TokenSequence

SEQUENCES = 9
"""Version of sequences and targets. Raise it when they change, so that cached ones are not used."""

ENTRY = "entry.json"
"""File of a folder with the description of the arrays, written last."""

TARGET, COUNTS = "target-", "-counts"
"""Beginning of the names of arrays of targets, and end of those with the lengths of rows."""

Array = np.ndarray[Any, np.dtype[Any]]
DType = np.dtype[Any]
"""The type of the values of an array."""
WHOLE = np.dtype(np.int32)
"""The type of whole numbers whose limit is not known."""
_DTYPES = {"b": np.dtype(bool), "i": WHOLE, "u": WHOLE, "f": np.dtype(np.float32)}
"""The dtypes of targets, by the NumPy kind of their values."""


class Ragged(NamedTuple):
    """Rows of different lengths, end to end: row n is ``values[offsets[n]:offsets[n + 1]]``."""

    values: Array
    offsets: Array

    @classmethod
    def of(
        cls, rows: Sequence[Sequence[Any]] | Sequence[Array], dtype: DType | None = None
    ) -> Ragged:
        """Concatenate rows of Python values, or arrays.

        ``dtype`` is the type of the values; None takes one of 4 bytes, or ``bool``.
        """
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        if len(rows) and isinstance(rows[0], np.ndarray):
            values = np.concatenate(rows)
        elif dtype is None:
            values = np.array(list(chain.from_iterable(rows)))
        else:
            values = np.fromiter(chain.from_iterable(rows), dtype, int(counts.sum()))
        if dtype is None:
            dtype = _DTYPES[values.dtype.kind] if len(values) else WHOLE
        return cls(values.astype(dtype, copy=False), _boundaries(counts))

    @property
    def counts(self) -> Array:
        """The length of each row."""
        return np.diff(self.offsets)

    def take(self, rows: Array) -> Ragged:
        """Take some of the rows, in the given order."""
        indices, offsets = _gather(self.offsets, rows)
        return Ragged(self.values[indices], offsets)

    def row(self, number: int) -> list[Any]:
        """One row as Python values."""
        return list(self.values[self.offsets[number] : self.offsets[number + 1]].tolist())


@dataclass(frozen=True, slots=True, eq=False)
class FlatSequences(Sequence[TokenSequence]):
    """N sequences in flat arrays, indexed as a sequence of ``TokenSequence``."""

    ids: Ragged
    token_type_ids: Ragged | None  # None if all are 0
    words: Ragged  # the word starts
    example: Array  # [N]
    window: Array  # [N]
    targets: Mapping[str, Ragged] | None  # None if a sequence has no target

    @classmethod
    def of(cls, items: Iterable[TokenSequence], ids: DType = WHOLE) -> FlatSequences:
        """Convert sequences to flat arrays, with this type of their ids."""
        if isinstance(items, FlatSequences):
            return items
        items = list(items)
        token_type_ids = targets = None
        if any(item.token_type_ids and any(item.token_type_ids) for item in items):
            types = [item.token_type_ids or [0] * len(item.input_ids) for item in items]
            token_type_ids = Ragged.of(types, np.dtype(np.uint8))
        item_targets = [item.target for item in items if item.target is not None]
        if item_targets and len(item_targets) == len(items):
            targets = {
                name: Ragged.of([target[name] for target in item_targets])
                for name in item_targets[0]
            }
        return cls(
            Ragged.of([item.input_ids for item in items], ids),
            token_type_ids,
            Ragged.of([item.word_starts for item in items], WHOLE),
            np.array([item.example for item in items], dtype=np.int64),
            np.array([item.window for item in items], dtype=np.int32),
            targets,
        )

    def take(self, rows: Array) -> FlatSequences:
        """Take some of the sequences, in the given order."""
        targets = self.targets and {name: row.take(rows) for name, row in self.targets.items()}
        return FlatSequences(
            self.ids.take(rows),
            self.token_type_ids and self.token_type_ids.take(rows),
            self.words.take(rows),
            self.example[rows],
            self.window[rows],
            targets,
        )

    @property
    def first_word(self) -> Array:
        """The position of the first core word of each sequence, for tasks of words: [N]."""
        return self.window

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
    def __getitem__(self, index: int) -> TokenSequence: ...
    @overload
    def __getitem__(self, index: slice) -> FlatSequences: ...
    def __getitem__(self, index: int | slice) -> TokenSequence | FlatSequences:
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        row, targets = range(len(self))[index], self.targets
        return TokenSequence(
            int(self.example[row]),
            self.ids.row(row),
            self.token_type_ids and self.token_type_ids.row(row),
            self.words.row(row),
            int(self.window[row]),
            None if targets is None else {name: t.row(row) for name, t in targets.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class EncodedExamples(Sequence[FlatSequences]):
    """The sequences of examples: one each, or several windows.

    Example e has the rows ``offsets[e] .. offsets[e + 1] - 1`` of ``sequences``.
    """

    sequences: FlatSequences
    offsets: Array
    num_cut: int = 0
    """Number of texts or words that were cut to fit."""
    notes: tuple[str, ...] = ()
    """Notes for the log on parts of the examples that the model cannot read or predict."""

    @classmethod
    def of(
        cls, examples: Sequence[Sequence[TokenSequence]], num_cut: int = 0, ids: DType = WHOLE
    ) -> EncodedExamples:
        """Flatten the sequences of each example, with this type of their ids."""
        counts = np.fromiter(map(len, examples), np.int64, len(examples))
        sequences = FlatSequences.of(chain.from_iterable(examples), ids)
        return cls(sequences, _boundaries(counts), num_cut)

    @classmethod
    def joined(
        cls, chunks: Iterable[EncodedExamples], folder: Path | None = None
    ) -> EncodedExamples:
        """Concatenate chunks of examples: in memory, or in the files of a folder, mapped."""
        num_cut, has_token_types, has_targets = 0, False, True
        files: dict[str, Any] = {}
        dtypes: dict[str, str] = {}  # of the first values, as an empty array has none
        for chunk in chain(chunks, [cls.of([])]):  # one at least
            num_cut += chunk.num_cut
            has_token_types |= chunk.sequences.token_type_ids is not None
            has_targets &= chunk.sequences.targets is not None or not len(chunk.sequences)
            for name, values in _arrays_of(chunk).items():
                if name not in files:
                    files[name] = io.BytesIO() if folder is None else (folder / name).open("wb")
                if len(values):
                    dtype = dtypes.setdefault(name, values.dtype.str)
                    values = values.astype(dtype, casting="same_kind", copy=False)
                    files[name].write(np.ascontiguousarray(values).data)
        present = {TARGET: has_targets, "token_type_ids": has_token_types}
        left_out = tuple(name for name, is_present in present.items() if not is_present)
        names = [name for name in files if not name.startswith(left_out)]
        entry = {"num_cut": num_cut, "dtypes": {n: dtypes.get(n, WHOLE.str) for n in names}}
        if folder is None:
            return _assembled(entry, lambda n, dtype: np.frombuffer(files[n].getbuffer(), dtype))
        for file in files.values():
            file.close()
        (folder / ENTRY).write_text(json.dumps(entry), encoding="utf-8")
        return load_encoded(folder)

    @property
    def num_windows(self) -> Array:
        """Number of sequences of each example: [E]."""
        return np.diff(self.offsets)

    @property
    def lengths(self) -> Array:
        """Number of tokens of each example, over all its sequences: [E]."""
        return np.diff(self.sequences.ids.offsets[self.offsets])

    def rows(self, examples: Sequence[int] | Array) -> Array:
        """The rows of the sequences of some examples, in their order."""
        return _gather(self.offsets, np.asarray(examples, dtype=np.int64))[0]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> FlatSequences: ...
    @overload
    def __getitem__(self, index: slice) -> EncodedExamples: ...
    def __getitem__(self, index: int | slice) -> FlatSequences | EncodedExamples:
        if isinstance(index, slice):
            chosen = np.arange(*index.indices(len(self)))
            rows, offsets = _gather(self.offsets, chosen)
            return EncodedExamples(self.sequences.take(rows), offsets)
        row = range(len(self))[index]
        return self.sequences[int(self.offsets[row]) : int(self.offsets[row + 1])]


def load_encoded(folder: Path) -> EncodedExamples:
    """Map the sequences that were joined in a folder into memory.

    Raises:
        OSError, ValueError, KeyError: A file is missing or damaged.
    """

    def mapped(name: str, dtype: str) -> Array:
        if not (folder / name).stat().st_size:
            return np.zeros(0, dtype)
        return np.memmap(folder / name, dtype, mode="r").view(np.ndarray)

    return _assembled(json.loads((folder / ENTRY).read_text(encoding="utf-8")), mapped)


def _arrays_of(encoded: EncodedExamples) -> dict[str, Array]:
    sequences, types = encoded.sequences, encoded.sequences.token_type_ids
    arrays = {"example": sequences.example, "window": sequences.window}
    arrays["windows"] = encoded.num_windows
    zeros = np.zeros_like(sequences.ids.values, np.uint8)
    arrays["token_type_ids"] = zeros if types is None else types.values
    rows = {"ids": sequences.ids, "words": sequences.words}
    rows |= {f"{TARGET}{name}": target for name, target in (sequences.targets or {}).items()}
    for name, row in rows.items():
        arrays |= {name: row.values, f"{name}{COUNTS}": row.counts.astype(WHOLE)}
    return arrays


def _assembled(entry: Mapping[str, Any], array_of: Callable[[str, str], Array]) -> EncodedExamples:
    arrays: dict[str, Any] = {
        name: array_of(name, dtype) for name, dtype in entry["dtypes"].items()
    }
    counts = {n.removesuffix(COUNTS): arrays.pop(n) for n in [*arrays] if n.endswith(COUNTS)}
    rows = {name: Ragged(arrays.pop(name), _boundaries(n)) for name, n in counts.items()}
    ids, words, offsets = rows.pop("ids"), rows.pop("words"), _boundaries(arrays.pop("windows"))
    targets = {name.removeprefix(TARGET): target for name, target in rows.items()} or None
    types = arrays.pop("token_type_ids", None)
    types = None if types is None else Ragged(types, ids.offsets)
    sequences = FlatSequences(ids, types, words, targets=targets, **arrays)
    return EncodedExamples(sequences, offsets, entry["num_cut"])


def _gather(offsets: Array, rows: Array) -> tuple[Array, Array]:
    begins = offsets[rows]
    counts = offsets[rows + 1] - begins
    bounds = _boundaries(counts)
    return np.arange(bounds[-1]) + np.repeat(begins - bounds[:-1], counts), bounds


def _boundaries(counts: Array) -> Array:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
