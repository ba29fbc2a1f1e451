"""Nearest neighbors by cosine in a file of vectors that may be larger than memory.

Exact search reads the file in blocks. Above ``LARGEST_EXACT`` rows an inverted file index of faiss
(Jégou et al. 2011) finds candidates, whose cosines are computed exactly. The index is kept beside
the vectors, with the recall that was measured when it was made.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import xxhash

from finetune.data.json_files import read_object
from finetune.embeddings.inference.vector_files import VectorFile
from finetune.runtime.files import replace_file, write_text
from finetune.runtime.progress import Reporter
from finetune.types import UserError, install_command

LARGEST_EXACT = 1_000_000
"""Rows up to which all are compared, unless asked otherwise."""
BLOCK = 8192
"""Rows of the file that are compared at a time."""
QUERIES = 2048
"""Queries that read the file together."""
CANDIDATES = 8
"""Candidates of an index for each neighbor: their cosines are computed exactly."""
RECALL = 0.95
"""Lowest recall of an index: it visits more cells until it is reached."""
SAMPLE = 200
"""Rows whose neighbors measure the recall, and their number of neighbors."""
MEASURED = 10
"""Neighbors that the recall is about."""
POINTS_OF_CELL = 40
"""Rows of the sample that a cell of an index is fitted to."""
ITERATIONS = 8
"""Iterations of k-means."""

Array = np.ndarray[Any, np.dtype[Any]]
Kind = Literal["auto", "exact", "approximate"]


class Neighbors(NamedTuple):
    """The nearest rows of each query, nearest first; equal ones in their order."""

    rows: Array
    """int64 [Q, K]; K is less than asked for if the file has fewer rows."""
    cosines: Array
    """float32 [Q, K]."""


Search = Callable[[Array, int], Neighbors]
"""Finds the neighbors of queries [Q, H]."""


class ExactSearch:
    """Compares queries with all vectors, in blocks.

    Args:
        vectors: The vectors to search.
        device: Computes the cosines.
    """

    def __init__(self, vectors: VectorFile, device: torch.device | str = "cpu") -> None:
        self.vectors, self.device = vectors, device

    def __call__(self, queries: Array, count: int) -> Neighbors:
        """Return the ``count`` nearest rows of each query [Q, H]."""
        count = min(count, len(self.vectors))
        given = torch.from_numpy(unit_length(queries)).to(self.device)
        rows = torch.zeros((len(queries), 0), dtype=torch.int64, device=self.device)
        cosines = torch.zeros((len(queries), 0), device=self.device)
        for start in range(0, len(self.vectors), BLOCK):
            block = torch.from_numpy(unit_length(self.vectors.block(start, start + BLOCK), start))
            found = given @ block.to(self.device).T
            best = found.topk(min(count, len(block)), dim=1)
            # in the order of rows, so that the stable sort keeps it among equal cosines
            places = best.indices.sort(dim=1).values
            tied = (found >= best.values[:, -1:]).sum(dim=1) > places.shape[1]
            if tied.any():  # topk takes any of equal ones
                order = found[tied].argsort(dim=1, descending=True, stable=True)
                places[tied] = order[:, : places.shape[1]].sort(dim=1).values
            cosines = torch.cat([cosines, found.gather(1, places)], dim=1)
            rows = torch.cat([rows, places + start], dim=1)
            cosines, order = cosines.sort(dim=1, descending=True, stable=True)
            cosines, rows = cosines[:, :count], rows.gather(1, order[:, :count])
        return Neighbors(rows.cpu().numpy(), cosines.cpu().numpy())


@dataclass(frozen=True)
class IndexFacts:
    """Facts about an index, kept beside it."""

    vectors: str
    """Digest of size and time of change of the vectors."""
    bytes: int
    """Size of the file of the index."""
    cells: int
    """Number of cells into which the vectors are divided."""
    visited: int
    """Number of cells that a query visits."""
    recall: float
    """Fraction of the 10 nearest rows that are found, over 200 of the vectors as queries."""


class IndexSearch:
    """Compares queries with the vectors in the nearest cells of an index.

    Args:
        vectors: The vectors to search.
        index: The index of faiss, of the vectors at length 1.
        facts: Facts about it.
    """

    def __init__(self, vectors: VectorFile, index: Any, facts: IndexFacts) -> None:
        self.vectors, self.index, self.facts = vectors, index, facts
        index.nprobe = facts.visited

    def __call__(self, queries: Array, count: int) -> Neighbors:
        """Return the ``count`` nearest rows of each query [Q, H] that the index finds."""
        count = min(count, len(self.vectors))
        given = unit_length(queries)
        most = min(CANDIDATES * count, len(self.vectors))
        rows = np.full((len(queries), count), -1, dtype=np.int64)
        cosines = np.full((len(queries), count), -np.inf, dtype=np.float32)
        found = self.index.search(given, most)[1]
        few = (found >= 0).sum(axis=1) < count
        if few.any():  # small cells: visit all
            self.index.nprobe = self.index.nlist
            found[few] = self.index.search(given[few], most)[1]
            self.index.nprobe = self.facts.visited
        for number, candidates in enumerate(found):
            candidates = np.sort(candidates[candidates >= 0])
            own = unit_length(self.vectors.take(candidates)) @ given[number]
            order = np.argsort(-own, kind="stable")[:count]
            rows[number, : len(order)] = candidates[order]
            cosines[number, : len(order)] = own[order]
        return Neighbors(rows, cosines)


def make_search(
    vectors: VectorFile,
    kind: Kind = "auto",
    device: torch.device | str = "cpu",
    reporter: Reporter | None = None,
) -> Search:
    """Make the search of a file of vectors.

    Args:
        vectors: The vectors.
        kind: Compare with all vectors, or through an index; ``auto`` is an index above
            ``LARGEST_EXACT`` rows. An index is read from the file beside the vectors, or made.
        device: Device of exact search.
        reporter: Shows the progress of a new index.

    Raises:
        UserError: faiss is not installed, or the index cannot be written.
    """
    if kind == "exact" or (kind == "auto" and len(vectors) <= LARGEST_EXACT):
        return ExactSearch(vectors, device)
    try:
        faiss: Any = importlib.import_module("faiss")
    except ImportError as error:
        raise UserError(
            f"an index of {len(vectors):,} vectors needs faiss ({error}): "
            f"{install_command('faiss-cpu')}, or write --index exact."
        ) from None
    path, facts_file = vectors.path.with_suffix(".faiss"), vectors.path.with_suffix(".faiss.json")
    digest = _digest(vectors.path)
    saved = read_object(facts_file) if facts_file.is_file() else {}
    current = saved.get("vectors") == digest and path.is_file()
    if current and path.stat().st_size == saved["bytes"]:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
        return IndexSearch(vectors, index, IndexFacts(**saved))
    facts_file.unlink(missing_ok=True)  # a kill leaves no facts about another index
    index, cells = _fitted(faiss, vectors, reporter or Reporter(quiet=True))
    with replace_file(path, follow=True, binary=True) as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
    visited, recall = _measured(vectors, index, device)
    facts = IndexFacts(digest, path.stat().st_size, cells, visited, recall)
    write_text(facts_file, json.dumps(asdict(facts), indent=2) + "\n", follow=True)
    return IndexSearch(vectors, index, facts)


def unit_length(vectors: Array, first: int = 0) -> Array:
    """Return vectors [N, H] at length 1, zeros as they are; ``first`` is the number of their first.

    Raises UserError for numbers that are not finite.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():
        row = first + int(np.flatnonzero(~np.isfinite(lengths[:, 0]))[0])
        raise UserError(f"vector {row:,} has a number that is not finite: write the vectors again.")
    found: Array = np.divide(vectors, np.maximum(lengths, np.finfo(np.float32).tiny))
    return found.astype(np.float32, copy=False)


def _digest(path: Path) -> str:
    """Return a digest that changes with a file, without reading it."""
    status = path.stat()
    return xxhash.xxh3_64_hexdigest(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())


def _fitted(faiss: Any, vectors: VectorFile, reporter: Reporter) -> tuple[Any, int]:
    """Return an index of all vectors, one byte for each number, and its number of cells."""
    size, width = vectors.shape
    cells = max(1, min(2 ** round(math.log2(math.sqrt(size))), size // POINTS_OF_CELL))
    index = faiss.index_factory(width, f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter = ITERATIONS
    rows = np.random.default_rng(0).choice(size, min(size, POINTS_OF_CELL * cells), replace=False)
    reporter.start("fitting the index", None, unit="row")
    index.train(unit_length(vectors.take(np.sort(rows))))
    reporter.start("indexing", size, unit="row")
    for start in range(0, size, BLOCK):
        index.add(unit_length(vectors.block(start, start + BLOCK), start))
        reporter.update(index.ntotal)
    reporter.stop()
    return index, cells


def _measured(vectors: VectorFile, index: Any, device: torch.device | str) -> tuple[int, float]:
    """Return the number of cells to visit for ``RECALL``, and the recall, over rows as queries."""
    size = len(vectors)
    rows = np.sort(np.random.default_rng(1).choice(size, min(SAMPLE, size), replace=False))
    queries = vectors.take(rows)
    # each row finds itself: it does not count
    expected = _others(ExactSearch(vectors, device)(queries, MEASURED + 1).rows, rows)
    visited, recall = 1, 0.0
    while True:
        search = IndexSearch(vectors, index, IndexFacts("", 0, index.nlist, visited, 0.0))
        found = _others(search(queries, MEASURED + 1).rows, rows)
        pairs = list(zip(expected, found, strict=True))
        recall = sum(len(a & b) for a, b in pairs) / max(1, sum(len(a) for a, _ in pairs))
        if recall >= RECALL or visited >= index.nlist:
            return visited, round(recall, 4)
        visited = min(2 * visited, index.nlist)


def _others(neighbors: Array, rows: Array) -> list[set[int]]:
    """Return the first neighbors of each row without the row itself."""
    pairs = zip(neighbors.tolist(), rows.tolist(), strict=True)
    return [{*[each for each in found if each not in (row, -1)][:MEASURED]} for found, row in pairs]
