"""Files of embeddings: JSON Lines, Parquet, NumPy and safetensors, written as a stream.

Arrays are read in blocks, so that they may be larger than memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from finetune.data.json_files import parse_json
from finetune.inference.embed import Embedding
from finetune.runtime.files import replace_file
from finetune.runtime.records import require_suffix
from finetune.types import UserError

ROWS = 4096
"""Rows of a row group of Parquet files."""
ROWS_SUFFIX = ".rows.jsonl"
"""Suffix of the file with ids and units, beside arrays."""
HEADER = 512
"""Bytes of the header of safetensors files, with room for any number of rows."""


def write_vectors(
    path: Path, embeddings: Iterable[Embedding], shape: tuple[int, ...]
) -> tuple[int, list[Path]]:
    """Write embeddings to a file in the format of its suffix.

    A ``.jsonl`` file has a line for each input, with its units, their vectors and offsets. The
    others have a row for each unit. A ``.parquet`` file has the columns ``id``, ``unit``, ``start``
    and ``end`` (characters) and ``vector``. A ``.npy`` file has the array [rows, *shape], a
    ``.safetensors`` file the same under ``vectors``; both come with a file of the same name and the
    suffix ``.rows.jsonl`` that has the other columns.

    Args:
        path: The file.
        embeddings: The embeddings, in the order to write.
        shape: The shape of one vector.

    Returns:
        The number of vectors, and the files.

    Raises:
        UserError: The suffix names no format, or a file cannot be written.
    """
    writer = check_suffix(path)
    rows_file = path.with_suffix(ROWS_SUFFIX)
    if writer is None or writer is _write_parquet:
        with replace_file(path, follow=True, binary=writer is not None) as file:
            return (writer or _write_lines)(file, embeddings, shape), [path]
    with replace_file(path, follow=True, binary=True) as file:
        with replace_file(rows_file, follow=True) as rows:
            return writer(file, _noting_rows(embeddings, rows), shape), [path, rows_file]


def check_suffix(path: Path) -> Callable[..., int] | None:
    """Return the writer of binary files with this suffix; None for JSON Lines."""
    return _WRITERS.get(require_suffix(path, (".jsonl", *_WRITERS)))


def record(embedding: Embedding) -> dict[str, Any]:
    """Return an embedding as JSON values, with vectors rounded to 6 digits."""
    content: dict[str, Any] = {"id": embedding.id, "units": list(embedding.units)}
    if embedding.offsets is not None:
        content["offsets"] = [list(offset) for offset in embedding.offsets]
    vectors = embedding.vectors.astype(np.float64).round(6)
    return content | {"vectors": vectors.tolist()}


def _rows(embedding: Embedding) -> Iterator[dict[str, Any]]:
    """Yield id, unit and characters of each vector."""
    for number, unit in enumerate(embedding.units):
        row = {"id": embedding.id, "unit": unit}
        if embedding.offsets is not None:
            row["start"], row["end"] = embedding.offsets[number]
        yield row


def _noting_rows(embeddings: Iterable[Embedding], file: IO[str]) -> Iterator[Embedding]:
    for embedding in embeddings:
        for row in _rows(embedding):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        yield embedding


def _write_lines(file: IO[str], embeddings: Iterable[Embedding], shape: tuple[int, ...]) -> int:
    count = 0
    for embedding in embeddings:
        file.write(json.dumps(record(embedding), ensure_ascii=False) + "\n")
        count += len(embedding.units)
    return count


def _write_parquet(file: IO[bytes], embeddings: Iterable[Embedding], shape: tuple[int, ...]) -> int:
    import pyarrow
    from pyarrow import parquet

    vector = pyarrow.float32()
    for size in reversed(shape):
        vector = pyarrow.list_(vector, size)
    integer = pyarrow.int64()
    schema = pyarrow.schema(
        {
            "id": pyarrow.string(),
            "unit": pyarrow.string(),
            "start": integer,
            "end": integer,
            "vector": vector,
        }
    )
    count = 0
    rows: list[dict[str, Any]] = []
    with parquet.ParquetWriter(file, schema) as writer:

        def flush() -> None:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            rows.clear()

        for embedding in embeddings:
            for row, values in zip(_rows(embedding), embedding.vectors, strict=True):
                rows.append({**row, "id": str(row["id"]), "vector": values.tolist()})
                count += 1
                if len(rows) == ROWS:
                    flush()
        flush()
    return count


def _write_npy(file: IO[bytes], embeddings: Iterable[Embedding], shape: tuple[int, ...]) -> int:
    def header(count: int) -> None:
        file.seek(0)
        described = {"descr": "<f4", "fortran_order": False, "shape": (count, *shape)}
        np.lib.format.write_array_header_1_0(file, described)  # has room for any count

    header(0)
    count = _append(file, embeddings)
    header(count)
    return count


def _write_safetensors(
    file: IO[bytes], embeddings: Iterable[Embedding], shape: tuple[int, ...]
) -> int:
    def header(count: int) -> None:
        file.seek(0)
        num_bytes = 4 * count * int(np.prod(shape))
        entry = {"dtype": "F32", "shape": [count, *shape], "data_offsets": [0, num_bytes]}
        file.write(HEADER.to_bytes(8, "little"))
        file.write(json.dumps({"vectors": entry}).encode().ljust(HEADER))

    header(0)
    count = _append(file, embeddings)
    header(count)
    return count


def _append(file: IO[bytes], embeddings: Iterable[Embedding]) -> int:
    """Write the values of all vectors, and return the number of vectors."""
    count = 0
    for embedding in embeddings:
        file.write(embedding.vectors.astype("<f4").tobytes())
        count += len(embedding.units)
    return count


_WRITERS: Mapping[str, Callable[..., int]] = {
    ".parquet": _write_parquet,
    ".npy": _write_npy,
    ".safetensors": _write_safetensors,
}
ARRAY_SUFFIXES = (".npy", ".safetensors")
"""Suffixes of the files that ``VectorFile`` reads."""
_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
"""Types of numbers in safetensors files."""


class VectorFile:
    """Vectors [N, H] in a NumPy or safetensors file, read in blocks.

    Each block is mapped and released, so that a pass over the file holds one block in memory.

    Attributes:
        path: The file.
        shape: Number of vectors N, and their width H.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], offset: int, shape: Sequence[int]) -> None:
        self.path, self._dtype, self._offset = path, dtype, offset
        self.shape = (int(shape[0]), int(shape[1]))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a file; raise UserError if it has no vectors, or not one for each row."""
        if require_suffix(path, ARRAY_SUFFIXES, "vectors") == ".npy":
            dtype, offset, shape = _npy_header(path)
        else:
            dtype, offset, shape = _safetensors_header(path)
        if dtype.kind != "f" or len(shape) != 2 or 0 in shape:
            layers = " (--combine mean, not none)" if len(shape) == 3 else ""
            raise UserError(
                f"{path}: has an array {dtype} {list(shape)}, and vectors are floating-point "
                f"numbers [rows, width], at least one row: write them with finetune embed{layers}."
            )
        if offset + dtype.itemsize * shape[0] * shape[1] > path.stat().st_size:
            raise UserError(f"{path}: is cut: write the vectors again.")
        return cls(path, dtype, offset, shape)

    def __len__(self) -> int:
        """Return the number of vectors."""
        return self.shape[0]

    def _mapped(self) -> np.ndarray[Any, np.dtype[Any]]:
        return np.memmap(self.path, self._dtype, "r", self._offset, self.shape)

    def block(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[Any]]:
        """Return consecutive vectors, float32 [stop - start, H] or fewer at the end."""
        return np.array(self._mapped()[start:stop], dtype=np.float32)

    def take(self, rows: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
        """Return vectors by their rows, float32 [len(rows), H]."""
        return np.array(self._mapped()[rows], dtype=np.float32)


class UnitFile:
    """Ids and units of the vectors of a file, read by row; eight bytes of each are in memory.

    Attributes:
        path: The file beside the vectors; None if there is none, and a row has its number for id.
    """

    def __init__(self, vectors: VectorFile) -> None:
        """Find the lines; raise UserError if their number is not the number of vectors."""
        path = vectors.path.with_suffix(ROWS_SUFFIX)
        self.path = path if path.is_file() else None
        if self.path is None:
            return
        with self.path.open("rb") as file:
            lengths = np.fromiter(map(len, file), dtype=np.int64)
        if len(lengths) != len(vectors):
            raise UserError(
                f"{path} has {len(lengths):,} lines, and {vectors.path} {len(vectors):,} vectors: "
                "write both again with finetune embed."
            )
        self._starts = np.cumsum(lengths) - lengths

    def read(self, rows: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield ``id`` and ``unit`` of each row, and ``start`` and ``end`` if the file has them."""
        if self.path is None:
            yield from ({"id": row, "unit": None} for row in rows)
            return
        with self.path.open("rb") as file:
            for row in rows:
                file.seek(self._starts[row])
                yield parse_json(file.readline().decode("utf-8"), f"{self.path}:{row + 1}")


def _npy_header(path: Path) -> tuple[np.dtype[Any], int, Sequence[int]]:
    """Return the type of the numbers, the place of the first one, and the shape."""
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(mapped, np.memmap) or (mapped.ndim > 1 and not mapped.flags.c_contiguous):
            raise ValueError("not an array in rows")
    except (ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read as vectors ({error}).") from None
    return mapped.dtype, mapped.offset, mapped.shape


def _safetensors_header(path: Path) -> tuple[np.dtype[Any], int, Sequence[int]]:
    """Return the same of the tensor ``vectors``."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            entry = json.loads(file.read(min(size, 10**8)))["vectors"]
            dtype = np.dtype(_DTYPES.get(entry["dtype"], "V1"))
            return dtype, 8 + size + int(entry["data_offsets"][0]), entry["shape"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: has no tensor `vectors` ({error}).") from None
