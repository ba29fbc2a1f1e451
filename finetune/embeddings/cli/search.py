"""`finetune similarity --search`: the nearest of many vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finetune.cli.output import (
    check_output,
    inputs_of,
    print_tables,
    quiet_libraries,
    refuse_options,
    show,
)
from finetune.embeddings.cli.embed import layer_numbers
from finetune.embeddings.inference.search import (
    MEASURED,
    QUERIES,
    SAMPLE,
    IndexSearch,
    make_search,
)
from finetune.embeddings.inference.vector_files import ARRAY_SUFFIXES, UnitFile, VectorFile
from finetune.runtime.records import RECORD_SUFFIXES, record_writer
from finetune.types import UserError, quantity

if TYPE_CHECKING:
    from finetune.embeddings.cli.similarity import Similarity
    from finetune.inference.embed import Embedder

USED = (
    *("model", "data", "text", "columns", "encoding", "layers", "combine", "pooling", "encoder"),
    *("search", "neighbors", "index", "out", "format"),
)
"""The options of `similarity` that apply to texts as queries."""
USED_WITH_VECTORS = ("model", "search", "neighbors", "index", "out", "format")
"""The options that apply to vectors as queries."""
COLUMNS = ("query", "query_unit", "rank", "neighbor", "neighbor_unit", "cosine")
CHECKED = 4
"""Rows whose texts are embedded again, to see that the vectors are of the model."""
LEAST_COSINE = 0.99
"""Lowest cosine of a vector with the vector of its text, made again."""


class _Query(NamedTuple):
    id: str | int
    unit: str | None
    vector: np.ndarray[Any, np.dtype[Any]]


def search_vectors(command: Similarity) -> None:
    """Print or write the nearest vectors of each query."""
    vectors, units = _open(Path(command.search or ""))
    given = Path(command.model)
    of_vectors = given.suffix.lower() in ARRAY_SUFFIXES and given.is_file()
    used = USED_WITH_VECTORS if of_vectors else USED
    refuse_options(command, used, "--search with vectors" if of_vectors else "--search")
    if command.neighbors < 1:
        raise UserError(f"--neighbors {command.neighbors}: must be 1 or more.")
    if command.out is not None:
        inputs = [vectors.path, given, *inputs_of(command.data)]
        check_output(command.out, inputs, RECORD_SUFFIXES)
    queries = _of_vectors(given, vectors) if of_vectors else _of_texts(command, vectors, units)
    first = next(queries, None)  # errors of use before an index is made
    if first is None:
        raise UserError("--search: there are no queries.")
    from finetune.runtime.launch import make_accelerator
    from finetune.runtime.progress import Reporter

    with Reporter(quiet=command.format != "table") as reporter:
        search = make_search(vectors, command.index, make_accelerator().device, reporter)
        if isinstance(search, IndexSearch):
            found = f"finds {search.facts.recall:.1%} of the {MEASURED} nearest rows"
            measured = f"measured on {min(SAMPLE, len(vectors))} of the vectors"
            show(f"the index {found}, {measured}", error=True)
        records = _records(chain([first], queries), search, units, command.neighbors)
        if command.out is None:
            rows = [tuple(record.values()) for record in records]
            print_tables(command.format, ("", COLUMNS, rows))
            return
        reporter.start("searching", None, unit="row")
        number = 0
        with record_writer(command.out) as write:
            for number, record in enumerate(records, 1):
                write(record)
                reporter.update(number)
    show(f"wrote {command.out}: {quantity(number, 'neighbor')}", error=True)


def _open(path: Path) -> tuple[VectorFile, UnitFile]:
    if not path.is_file():
        raise UserError(f"--search {path}: there is no such file: write it with finetune embed.")
    vectors = VectorFile.open(path)
    return vectors, UnitFile(vectors)


def _of_vectors(path: Path, searched: VectorFile) -> Iterator[_Query]:
    """Yield the rows of a file of vectors."""
    vectors, units = _open(path)
    if vectors.shape[1] != searched.shape[1]:
        raise UserError(
            f"{path} has vectors of width {vectors.shape[1]}, and {searched.path} of width "
            f"{searched.shape[1]}: write both with the same model and layers."
        )
    for start in range(0, len(vectors), QUERIES):
        block = vectors.block(start, start + QUERIES)
        described = units.read(range(start, start + len(block)))
        for unit, vector in zip(described, block, strict=True):
            yield _Query(unit["id"], unit["unit"], vector)


def _of_texts(command: Similarity, vectors: VectorFile, units: UnitFile) -> Iterator[_Query]:
    """Yield the vectors of texts."""
    if (command.data is None) == (command.text is None):
        raise UserError(
            "--search needs queries: --text or --data with texts, or a file of vectors in place of "
            "the model."
        )
    if command.combine == "none":
        raise UserError("--search needs one vector of a text: write --combine mean or sum.")
    quiet_libraries()
    from finetune.data import read_text_file
    from finetune.inference.embed import Embedder

    embedder = Embedder(
        command.model,
        layers=layer_numbers(command.layers),
        combine=command.combine,
        pooling=command.pooling,
        **command.encoder.keywords(),
    )
    _require_same_vectors(embedder, vectors, units)
    if command.text is not None:
        texts: Any = [command.text]
    else:
        texts = read_text_file(command.data or "", pair=False, labels=False, **command.reading)
    for embedding in embedder.encode(texts):
        yield _Query(embedding.id, embedding.units[0], embedding.vectors[0])


def _require_same_vectors(embedder: Embedder, vectors: VectorFile, units: UnitFile) -> None:
    """Raise UserError unless the first vectors are those that the embedder makes of their texts."""
    advice = "give the model, --layers, --combine, --pooling and --max-length of finetune embed"
    if embedder.shape != vectors.shape[1:]:
        raise UserError(
            f"{vectors.path} has vectors of width {vectors.shape[1]}, and the model of "
            f"{embedder.shape[0]}: {advice}."
        )
    if units.path is None:
        show(
            f"{vectors.path}: no file {vectors.path.with_suffix('.rows.jsonl').name} beside it: "
            "neighbors are row numbers, and the model was not compared",
            error=True,
        )
        return
    from finetune.embeddings.evaluation.similarity import cosine

    texts = [each["unit"] for each in units.read(range(min(CHECKED, len(vectors))))]
    made = np.concatenate([each.vectors for each in embedder.encode(texts)])
    found = cosine(made, vectors.block(0, len(texts)))
    least = int(np.argmin(found))
    if found[least] < LEAST_COSINE and made[least].any():
        raise UserError(
            f"{vectors.path}: its vector {least} is not what the model makes of its text "
            f"(cosine {found[least]:.2f}): {advice}."
        )


def _records(
    queries: Iterator[_Query], search: Any, units: UnitFile, count: int
) -> Iterator[dict[str, Any]]:
    """Yield a record for each neighbor of each query."""
    while block := list(islice(queries, QUERIES)):
        found = search(np.stack([query.vector for query in block]), count)
        for query, rows, cosines in zip(block, found.rows, found.cosines, strict=True):
            yield from _of_query(query, rows[rows >= 0].tolist(), cosines.tolist(), units)


def _of_query(
    query: _Query, rows: Sequence[int], cosines: Sequence[float], units: UnitFile
) -> Iterator[dict[str, Any]]:
    for rank, unit in enumerate(units.read(rows), 1):
        values = (query.id, query.unit, rank, unit["id"], unit["unit"], round(cosines[rank - 1], 6))
        yield dict(zip(COLUMNS, values, strict=True))
