"""`finetune embed`: vectors in JSON Lines, Parquet and NumPy files, written as a stream."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from finetune.cli.output import show
from finetune.data import read_text_file, read_token_file
from finetune.data.dataset import WordsNotTexts
from finetune.embeddings.commands import open_embedder
from finetune.inference.embed import Embedding
from finetune.runtime.files import replace_file
from finetune.runtime.progress import Reporter
from finetune.runtime.records import require_suffix
from finetune.types import Example, TextExample, UserError, quantity

if TYPE_CHECKING:
    from finetune.embeddings.commands import Embed

ROWS = 4096
"""Rows of a row group of Parquet files."""
ROWS_SUFFIX = ".rows.jsonl"
"""Suffix of the file with ids and units, beside an array."""


def embed(command: Embed) -> None:
    """Write the vectors of all inputs of the command, or print them."""
    options = {name: getattr(command, name) for name in ("unit", "combine", "normalize")}
    embedder = open_embedder(command, command.layers, **options)
    with Reporter(quiet=command.out is None and sys.stdout.isatty()) as reporter:
        embeddings = embedder.encode(_inputs(command), reporter)
        if command.out is None:
            for embedding in embeddings:
                show(json.dumps(record(embedding), ensure_ascii=False))
        else:
            count, files = write_vectors(Path(command.out), embeddings, embedder.shape)
    if command.out is not None:
        shape = " x ".join(map(str, (count, *embedder.shape)))
        show(f"wrote {' and '.join(map(str, files))}: {shape}", error=True)
    if number := embedder.num_windowed:
        limit = f"of more than {embedder.max_length} tokens"
        show(f"{quantity(number, 'input')} {limit} read in several windows", error=True)
    if number := embedder.num_cut:
        show(f"{quantity(number, 'input')} cut to {embedder.max_length} tokens", error=True)


def _inputs(command: Embed) -> Iterator[Example]:
    file = command.file or ""
    if command.text:
        yield from (TextExample(index, text) for index, text in enumerate(command.text))
    elif command.unit == "text":
        try:
            yield from read_text_file(file, pair=False, labels=False, **command.reading)
        except WordsNotTexts:
            raise UserError(
                f"{file}: holds words, not texts: add --unit word or --unit subword."
            ) from None
    else:
        yield from read_token_file(file, **command.reading)


def write_vectors(
    path: Path, embeddings: Iterable[Embedding], shape: tuple[int, ...]
) -> tuple[int, list[Path]]:
    """Write embeddings to a file in the format of its suffix.

    A ``.jsonl`` file has a line for each input, with its units, their vectors and offsets. The
    others have a row for each unit. A ``.parquet`` file has the columns ``id``, ``unit``, ``start``
    and ``end`` (characters) and ``vector``. A ``.npy`` file has the array [rows, *shape] and comes
    with a file of the same name and the suffix ``.rows.jsonl`` that has the other columns.

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
}
