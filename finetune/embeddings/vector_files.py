"""`finetune embed`: vectors in Parquet and NumPy files, written as a stream."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.cli.output import show
from finetune.data import read_text_file, read_token_file
from finetune.data.tables import WordsNotTexts
from finetune.inference.embed import Embedder, Embedding
from finetune.runtime.files import replace_file
from finetune.runtime.progress import Reporter
from finetune.runtime.row_files import require_suffix
from finetune.types import Example, TextExample, UserError, quantity

if TYPE_CHECKING:
    from finetune.embeddings.commands import Embed

SUFFIXES = (".npy", ".parquet")
"""The suffixes of files of vectors, which name the format."""
_ROWS = 4096
"""Rows of a row group of Parquet files."""


def embed(command: Embed) -> None:
    """Write the vectors of all inputs of the command, or print them."""
    names = ("unit", "layers", "combine", "pooling", "normalize")
    options: dict[str, Any] = {name: getattr(command, name) for name in names}
    embedder = Embedder(command.model, **options, **command.encoder.keywords())
    with Reporter(quiet=command.out is None and sys.stdout.isatty()) as reporter:
        embeddings = embedder.encode(_inputs(command), reporter)
        if command.out is not None:
            count, files = write_vectors(Path(command.out), embeddings, embedder.shape)
            shape = " x ".join(map(str, (count, *embedder.shape)))
            show(f"wrote {' and '.join(map(str, files))}: {shape}", error=True)
        else:
            for embedding in embeddings:
                row: dict[str, Any] = {"id": embedding.id, "units": embedding.units}
                if embedding.offsets is not None:
                    row["offsets"] = embedding.offsets
                row["vectors"] = embedding.vectors.astype(np.float64).round(6).tolist()
                show(json.dumps(row, ensure_ascii=False))
    if number := embedder.num_cut:
        show(f"{quantity(number, 'input')} cut to {embedder.max_length} tokens", error=True)


def _inputs(command: Embed) -> Iterator[Example]:
    file = command.file or ""
    if command.text:
        yield from (TextExample(index, text) for index, text in enumerate(command.text))
    elif command.unit != "text":
        yield from read_token_file(file, **command.reading)
    else:
        try:
            yield from read_text_file(file, pair=False, labels=False, **command.reading)
        except WordsNotTexts:
            raise UserError(
                f"{file}: holds words, not texts: add --unit word or --unit subword."
            ) from None


def write_vectors(
    path: Path, embeddings: Iterable[Embedding], shape: tuple[int, ...]
) -> tuple[int, list[Path]]:
    """Write embeddings to a file in the format of its suffix, a row for each unit.

    A ``.parquet`` file has the columns ``id``, ``unit``, ``start`` and ``end`` (characters) and
    ``vector``. A ``.npy`` file has the array [rows, *shape] and comes with a file of the same name
    and the suffix ``.rows.jsonl`` that has the other columns. ``shape`` is the shape of one vector.

    Returns:
        The number of vectors, and the files.

    Raises:
        UserError: The suffix names no format, or a file cannot be written.
    """
    suffix, rows, count = require_suffix(path, SUFFIXES), _rows(embeddings), 0
    with replace_file(path, follow=True, binary=True) as file:
        if suffix == ".parquet":
            import pyarrow
            from pyarrow import parquet

            vectors = pyarrow.float32()
            for size in reversed(shape):
                vectors = pyarrow.list_(vectors, size)
            columns = {"id": pyarrow.string(), "unit": pyarrow.string()}
            columns |= {"start": pyarrow.int64(), "end": pyarrow.int64(), "vector": vectors}
            schema = pyarrow.schema(columns)
            with parquet.ParquetWriter(file, schema) as writer:
                while group := list(islice(rows, _ROWS)):
                    content = [
                        {**row, "id": str(row["id"]), "vector": vector.tolist()}
                        for row, vector in group
                    ]
                    writer.write_table(pyarrow.Table.from_pylist(content, schema))
                    count += len(group)
            return count, [path]
        header = {"descr": "<f4", "fortran_order": False, "shape": (0, *shape)}
        np.lib.format.write_array_header_1_0(file, header)  # has room for any count
        with replace_file(path.with_suffix(".rows.jsonl"), follow=True) as lines:
            for row, vector in rows:
                lines.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.write(vector.astype("<f4").tobytes())
                count += 1
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (count, *shape)})
    return count, [path, path.with_suffix(".rows.jsonl")]


def _rows(embeddings: Iterable[Embedding]) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    for embedding in embeddings:
        locations = embedding.offsets or [()] * len(embedding.units)
        units = zip(embedding.units, locations, embedding.vectors, strict=True)
        for unit, location, vector in units:
            characters = dict(zip(("start", "end"), location, strict=False))
            yield {"id": embedding.id, "unit": unit, **characters}, vector
