"""Vectors: cosines, standardization by the textbook, and the files of `finetune embed`."""

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
from finetune.inference.embed import Embedder
from finetune.runtime import progress
from tests import laboratory as lab
from tests.command import run
from tests.inference.test_embed import TEXTS
from tests.small_data import read_jsonl
from tests.tiny import WIDTH

RANDOM = np.random.default_rng(0)
VECTORS = (RANDOM.normal(size=(200, 5)) * [1, 1e-3, 50, 1, 2] + [0, 1e3, -7, 0, 1]).astype("f4")


def test_equal_to_scikit_learn_in_any_grouping() -> None:
    expected = StandardScaler().fit(VECTORS.astype("f8"))
    for sizes in ([200], [1] * 200, [3, 0, 150, 47]):
        groups = np.split(VECTORS, np.cumsum(sizes)[:-1])
        found = Standardizer.fit(groups)
        np.testing.assert_allclose(found.mean, expected.mean_, rtol=1e-12)
        np.testing.assert_allclose(found.deviation, expected.scale_, rtol=1e-9)
        assert found.count == 200
    np.testing.assert_allclose(found(VECTORS), expected.transform(VECTORS.astype("f8")), atol=1e-6)


def test_several_layers_and_single_vectors() -> None:
    layers = VECTORS.reshape(20, 10, 5)
    found = Standardizer.fit([layers])
    z = found(layers)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(z.std(axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(found(layers[3]), z[3])
    with pytest.raises(UserError, match=r"fitted to vectors \[10, 5\], not \[200, 5\]"):
        found(VECTORS)


def test_constant_dimensions_become_zero() -> None:
    vectors = np.column_stack([VECTORS[:, 0], np.full(200, 0.1, "f4"), np.zeros(200, "f4")])
    found = Standardizer.fit([vectors[:90], vectors[90:]])
    assert found.num_constant == 2
    assert np.isfinite(found(vectors)).all() and not found([[1.0, 9.0, 9.0]])[0, 1:].any()


def test_settings_and_too_little_text() -> None:
    found = Standardizer.fit([VECTORS], {"layers": [3], "unit": "word"})
    found.check({"layers": [3], "unit": "word"})
    with pytest.raises(UserError, match=r"fitted with layers \[3\], and this run has \[0\]"):
        found.check({"layers": [0]})
    for empty in ([], [VECTORS[:1]], [VECTORS[:0]]):
        with pytest.raises(UserError, match="two or more vectors"):
            Standardizer.fit(empty)


@pytest.mark.parametrize("shape", [{}, {"layers": [0, -1], "combine": "none"}])
@pytest.mark.parametrize("unit", ["text", "word"])
def test_files_have_the_same_vectors(unit: str, shape: dict[str, Any], tmp_path: Path):
    embedder = Embedder(lab.checkpoint(), unit=unit, **shape)
    expected = list(embedder.encode(TEXTS))
    rows = np.concatenate([each.vectors for each in expected])
    for suffix in (".npy", ".parquet"):
        path = tmp_path / f"vectors{suffix}"
        count, files = write_vectors(path, iter(expected), embedder.shape)
        assert count == len(rows) and all(file.exists() for file in files)
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), rows)
    table = pyarrow.parquet.read_table(tmp_path / "vectors.parquet").to_pydict()
    np.testing.assert_array_equal(np.array(table["vector"], dtype=np.float32), rows)
    lines = read_jsonl(tmp_path / "vectors.rows.jsonl")
    assert (
        [line["unit"] for line in lines] == table["unit"] == [u for e in expected for u in e.units]
    )
    assert [line.get("start") for line in lines] == table["start"]
    with pytest.raises(UserError, match=r"one of \.npy, \.parquet"):
        write_vectors(tmp_path / "vectors.csv", expected, embedder.shape)


def test_command_embed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    file = tmp_path / "texts.jsonl"
    file.write_text(
        "".join(json.dumps({"id": f"n{i}", "text": t}) + "\n" for i, t in enumerate(TEXTS))
    )
    model, out = str(lab.checkpoint()), tmp_path / "out.npy"
    outcome = run("embed", model, "--file", str(file), "--out", str(out), "--max-length", "30").ok()
    assert f"wrote {out} and {tmp_path / 'out.rows.jsonl'}: 6 x {WIDTH}" in outcome.err
    assert "1 input of more than 30 tokens read in several windows" in outcome.err
    assert re.search(r"embedding: sequence \d+ .*sequences/s", outcome.err)
    ids = [json.loads(line)["id"] for line in (tmp_path / "out.rows.jsonl").open()]
    assert ids == [f"n{i}" for i in range(6)] and np.load(out).shape == (6, WIDTH)
    printed = run(
        "embed", model, "--text", "a man", "--text", "", "--unit", "word", "--layers=-1,0"
    ).ok()
    lines = printed.rows
    assert [line["units"] for line in lines] == [["a", "man"], []]
    assert lines[0]["offsets"] == [[0, 1], [2, 5]]
