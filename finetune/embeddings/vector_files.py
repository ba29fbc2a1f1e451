"""`finetune embed`: vectors in JSON Lines, Parquet and NumPy files, written as a stream."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

Write = Callable[[Embedding], object]
"""Writes an embedding."""
Writer = Callable[[Path, tuple[int, ...]], AbstractContextManager[Write]]
"""Opens a file for vectors of a shape."""
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
    writer, count = check_suffix(path), 0
    with writer(path, shape) as write:
        for embedding in embeddings:
            write(embedding)
            count += len(embedding.units)
    rows = [path.with_suffix(ROWS_SUFFIX)] if writer is _npy else []
    return count, [path, *rows]


def check_suffix(path: Path) -> Writer:
    """Return what writes files with the suffix of a path; UserError if it names no format."""
    return _WRITERS[require_suffix(path, tuple(_WRITERS))]


def record(embedding: Embedding) -> dict[str, Any]:
    """Return an embedding as JSON values, with vectors rounded to 6 digits."""
    content: dict[str, Any] = {"id": embedding.id, "units": list(embedding.units)}
    if embedding.offsets is not None:
        content["offsets"] = [list(offset) for offset in embedding.offsets]
    vectors = embedding.vectors.astype(np.float64).round(6)
    return content | {"vectors": vectors.tolist()}


def _rows(embedding: Embedding) -> Iterator[dict[str, Any]]:
    for number, unit in enumerate(embedding.units):
        row = {"id": embedding.id, "unit": unit}
        if embedding.offsets is not None:
            row["start"], row["end"] = embedding.offsets[number]
        yield row


@contextlib.contextmanager
def _lines(path: Path, shape: tuple[int, ...]) -> Iterator[Write]:
    with replace_file(path, follow=True) as file:
        yield lambda embedding: file.write(_line(record(embedding)))


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def _parquet(path: Path, shape: tuple[int, ...]) -> Iterator[Write]:
    import pyarrow
    from pyarrow import parquet

    vector = pyarrow.float32()
    for size in reversed(shape):
        vector = pyarrow.list_(vector, size)
    columns = {"id": pyarrow.string(), "unit": pyarrow.string()}
    places = dict.fromkeys(("start", "end"), pyarrow.int64())
    schema = pyarrow.schema({**columns, **places, "vector": vector})
    rows: list[dict[str, Any]] = []

    def write(embedding: Embedding) -> None:
        for row, values in zip(_rows(embedding), embedding.vectors, strict=True):
            rows.append({**row, "id": str(row["id"]), "vector": values.tolist()})
            if len(rows) == ROWS:
                flush()

    def flush() -> None:
        writer.write_table(pyarrow.Table.from_pylist(rows, schema))
        rows.clear()

    with replace_file(path, follow=True, binary=True) as file:
        with parquet.ParquetWriter(file, schema) as writer:
            yield write
            flush()


@contextlib.contextmanager
def _npy(path: Path, shape: tuple[int, ...]) -> Iterator[Write]:
    count = 0

    def header() -> None:
        file.seek(0)
        described = {"descr": "<f4", "fortran_order": False, "shape": (count, *shape)}
        np.lib.format.write_array_header_1_0(file, described)  # has room for any count

    def write(embedding: Embedding) -> None:
        nonlocal count
        rows.write("".join(map(_line, _rows(embedding))))
        file.write(embedding.vectors.astype("<f4").tobytes())
        count += len(embedding.units)

    with replace_file(path, follow=True, binary=True) as file:
        with replace_file(path.with_suffix(ROWS_SUFFIX), follow=True) as rows:
            header()
            yield write
            header()


_WRITERS: Mapping[str, Writer] = {".jsonl": _lines, ".parquet": _parquet, ".npy": _npy}
