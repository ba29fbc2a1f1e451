"""Sequences in files: written a chunk at a time, and mapped into memory.

A folder has an array (``NAME.npy``) for each flat array of ``Encoded``, and ``entry.json`` with
their names and widths. What is mapped equals the chunks joined in memory, types included.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

import numpy as np

from finetune.preprocessing.encodings import Array, Encoded, Encodings, Ragged

ENTRY = "entry.json"
"""File with the description of the arrays, written last."""
_BLOCK = 2**24
"""Bytes to convert at a time."""
_HEADER = 128
"""Bytes before the values of a one-dimensional array in a file of numpy."""


class _ArrayFile:
    """An array that grows in a file. Its type is the one that ``np.concatenate`` would give."""

    def __init__(self, path: Path) -> None:
        self.path, self.length = path, 0
        self.types: list[tuple[np.dtype[Any], int]] = []
        self.file: IO[bytes] = path.open("w+b")
        self.file.write(bytes(_HEADER))

    def append(self, values: Array) -> None:
        if not self.types or self.types[-1][0] != values.dtype:
            self.types.append((values.dtype, 0))
        dtype, number = self.types[-1]
        self.types[-1] = dtype, number + len(values)
        self.length += len(values)
        self.file.write(np.ascontiguousarray(values).data)

    def finish(self) -> None:
        """Give all values one type, and write the header."""
        common = np.result_type(*(dtype for dtype, _ in self.types))
        if len(self.types) > 1:
            self._convert(common)
        self.file.seek(0)
        header = {"descr": common.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self.file, header)
        assert self.file.tell() == _HEADER
        self.file.close()

    def _convert(self, common: np.dtype[Any]) -> None:
        other = _ArrayFile(self.path.with_suffix(".converted"))
        self.file.seek(_HEADER)
        for dtype, number in self.types:
            while number:
                size = min(number, _BLOCK // dtype.itemsize)
                values = np.frombuffer(self.file.read(size * dtype.itemsize), dtype)
                other.append(values.astype(common))
                number -= size
        self.file.close()
        other.path.replace(self.path)
        self.file = other.file


class EncodedWriter:
    """Writes the sequences of many examples to the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arrays: dict[str, _ArrayFile] = {}
        self.widths: dict[str, int | None] = {}
        self.ends: dict[str, int] = {}
        self.num_examples = self.num_cut = self.num_values = 0
        self.has_targets = True

    def add(self, chunk: Encoded) -> None:
        """Write the sequences of the next examples."""
        sequences = chunk.sequences
        self._offsets("windows", chunk.offsets)
        self._append("example", sequences.example)
        self._append("part", sequences.part)
        self._rows("ids", sequences.ids)
        self._rows("words", sequences.words)
        self._segments(sequences)
        self.has_targets &= sequences.targets is not None
        for name, target in (sequences.targets or {}).items() if self.has_targets else ():
            self._rows(f"target-{name}", target)
        self.num_examples += len(chunk)
        self.num_cut += chunk.num_cut
        self.num_values += len(sequences.ids.values)

    def finish(self) -> None:
        """Finish all arrays, and describe them in ``entry.json``."""
        for name in [*self.arrays] if not self.has_targets else ():
            if name.startswith("target-"):
                array = self.arrays.pop(name)
                array.file.close()
                array.path.unlink()
        self.widths = {
            name: width for name, width in self.widths.items() if f"{name}.values" in self.arrays
        }
        for array in self.arrays.values():
            array.finish()
        content = {
            "num_cut": self.num_cut,
            "widths": self.widths,
            "arrays": [*self.arrays],
        }
        (self.folder / ENTRY).write_text(json.dumps(content), encoding="utf-8")

    def _append(self, name: str, values: Array) -> None:
        if name not in self.arrays:
            self.arrays[name] = _ArrayFile(self.folder / f"{name}.npy")
        self.arrays[name].append(values)

    def _offsets(self, name: str, offsets: Array) -> None:
        """Continue the boundaries of rows, which begin with 0."""
        if name not in self.ends:
            self._append(name, np.zeros(1, np.int64))
        end = self.ends.setdefault(name, 0)
        self._append(name, offsets[1:] + end)
        self.ends[name] = end + int(offsets[-1])

    def _rows(self, name: str, rows: Ragged) -> None:
        if len(rows.offsets) == 1:
            return  # there is no row
        same = self.widths.setdefault(name, rows.width) == rows.width
        self.widths[name] = rows.width if same else None
        self._append(f"{name}.values", rows.values)
        self._offsets(f"{name}.offsets", rows.offsets)

    def _segments(self, sequences: Encodings) -> None:
        """Write segments once there are any; all before are 0."""
        if sequences.segments is None and "segments" not in self.arrays:
            return
        if "segments" not in self.arrays:
            missing = self.num_values
            while missing:
                size = min(missing, _BLOCK)
                self._append("segments", np.zeros(size, np.uint8))
                missing -= size
        own = sequences.segments
        self._append(
            "segments", np.zeros(len(sequences.ids.values), np.uint8) if own is None else own
        )


def load_encoded(folder: Path) -> Encoded:
    """Map the sequences in a folder into memory.

    Raises:
        OSError, ValueError, KeyError: A file is missing or damaged.
    """
    described: dict[str, Any] = json.loads((folder / ENTRY).read_text(encoding="utf-8"))

    def array(name: str) -> Array:
        mapped: Array = np.load(folder / f"{name}.npy", mmap_mode="r")
        return mapped.view(np.ndarray)

    rows = {
        name: Ragged(array(f"{name}.values"), array(f"{name}.offsets"), width)
        for name, width in described["widths"].items()
    }
    targets = {n.removeprefix("target-"): r for n, r in rows.items() if n.startswith("target-")}
    segments = array("segments") if "segments" in described["arrays"] else None
    sequences = Encodings(
        rows["ids"], segments, rows["words"], array("example"), array("part"), targets or None
    )
    return Encoded(sequences, array("windows"), described["num_cut"])
