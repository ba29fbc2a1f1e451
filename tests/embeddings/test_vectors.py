"""Vectors: standardization by the textbook, and the files of `finetune embed`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from sklearn.preprocessing import StandardScaler

from finetune import Standardizer, UserError
from finetune.embeddings.vector_files import write_vectors
from finetune.embeddings.vectors import unit_vectors
from finetune.inference.embed import Embedder
from finetune.runtime import progress
from tests import fixtures as fx
from tests.command import run
from tests.inference.test_embed import TEXTS
from tests.small_data import read_jsonl, write_jsonl
from tests.tiny import WIDTH

RANDOM = np.random.default_rng(0)
VECTORS = (RANDOM.normal(size=(200, 5)) * [1, 1e-3, 50, 1, 2] + [0, 1e3, -7, 0, 1]).astype("f4")


def test_equal_to_scikit_learn_in_any_grouping() -> None:
    fitted = Standardizer.fit(np.split(VECTORS, np.cumsum([3, 0, 150])))
    assert fitted.count == 200
    z = StandardScaler().fit_transform(VECTORS.astype("f8"))
    np.testing.assert_allclose(fitted(VECTORS), z, atol=1e-6)
    layers = VECTORS.reshape(20, 10, 5)
    fitted = Standardizer.fit([layers])
    np.testing.assert_allclose(fitted(layers).std(axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(fitted(layers[3]), fitted(layers)[3])
    with pytest.raises(UserError, match=r"fitted to vectors \[10, 5\], not \[200, 5\]"):
        fitted(VECTORS)


def test_zero_vectors_and_constant_dimensions() -> None:
    assert unit_vectors([[0.0, 0.0], [3.0, 4.0]]).tolist() == [[0.0, 0.0], [0.6, 0.8]]
    vectors = np.column_stack([VECTORS[:, 0], np.full(200, 0.1, "f4"), np.zeros(200, "f4")])
    fitted = Standardizer.fit([vectors[:90], vectors[90:]])
    assert np.isfinite(fitted(vectors)).all() and not fitted([[1.0, 9.0, 9.0]])[0, 1:].any()

    for empty in ([], [VECTORS[:1]], [VECTORS[:0]]):
        with pytest.raises(UserError, match="two or more vectors"):
            Standardizer.fit(empty)


@pytest.mark.parametrize("shape", [{}, {"layers": [0, -1], "combine": "none"}])
@pytest.mark.parametrize("unit", ["text", "word"])
def test_files_have_the_same_vectors(unit: str, shape: dict[str, Any], tmp_path: Path) -> None:
    embedder = Embedder(fx.checkpoint(), unit=unit, **shape)
    embeddings = list(embedder.encode(TEXTS))
    vectors = np.concatenate([e.vectors for e in embeddings])
    for suffix in (".npy", ".parquet"):
        path = tmp_path / f"vectors{suffix}"
        count, files = write_vectors(path, iter(embeddings), embedder.shape)
        assert count == len(vectors) and all(file.exists() for file in files)
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), vectors)
    table = pyarrow.parquet.read_table(tmp_path / "vectors.parquet").to_pydict()
    np.testing.assert_array_equal(np.array(table["vector"], dtype=np.float32), vectors)
    lines = read_jsonl(tmp_path / "vectors.rows.jsonl")
    assert table["unit"] == [unit for e in embeddings for unit in e.units]
    for name in ("unit", "start", "end"):
        assert [line.get(name) for line in lines] == table[name]


def test_command_embed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    rows = [{"id": f"n{number}", "text": text} for number, text in enumerate(TEXTS)]
    file, out = write_jsonl(tmp_path / "texts.jsonl", rows), tmp_path / "out.npy"
    arguments = ("--file", file, "--out", out, "--max-length", "30")
    outcome = run("embed", fx.checkpoint(), *arguments).ok()
    assert f"wrote {out} and {tmp_path / 'out.rows.jsonl'}: 6 x {WIDTH}" in outcome.err
    assert re.search(r"embedding: sequence \d+ .*sequences/s", outcome.err)
    ids = [json.loads(line)["id"] for line in (tmp_path / "out.rows.jsonl").open()]
    assert ids == [f"n{i}" for i in range(6)] and np.load(out).shape == (6, WIDTH)
    words = ("--text", "a man", "--text", "", "--unit", "word", "--layers=-1,0")
    first, second = run("embed", fx.checkpoint(), *words).ok().rows
    assert (first["units"], second["units"]) == (["a", "man"], [])
    assert first["offsets"] == [[0, 1], [2, 5]]


def test_a_named_column_of_pairs_is_embedded(tmp_path: Path) -> None:
    pairs = [{"premise": "a man", "hypothesis": "a dog"}]
    options = ("--file", write_jsonl(tmp_path / "pairs.jsonl", pairs), "--columns")
    for column, text in pairs[0].items():
        (row,) = run("embed", fx.checkpoint(), *options, f"text={column}").ok().rows
        assert row["units"] == [text]
