"""`finetune embed`: files have the vectors of the embedder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from finetune.embeddings.vector_files import write_vectors
from finetune.inference.embed import Embedder
from finetune.runtime import progress
from finetune.types import UserError
from tests import laboratory as lab
from tests.command import run
from tests.small_data import read_jsonl
from tests.tiny import WIDTH

TEXTS = [
    "the train from paris to berlin was late",
    "",
    "Anna's film is good, that film isn't bad",
    "a man is playing a guitar",
    " ".join(["two children run across the street because it rains"] * 12),
    "anna",
]


@pytest.mark.parametrize("shape", [{}, {"layers": [0, -1], "combine": "none"}])
@pytest.mark.parametrize("unit", ["text", "word"])
def test_files_have_the_same_vectors(unit: str, shape: dict[str, Any], tmp_path: Path):
    embedder = Embedder(lab.checkpoint(), unit=unit, **shape)
    expected = list(embedder.encode(TEXTS))
    rows = np.concatenate([each.vectors for each in expected])
    for suffix in (".npy", ".parquet", ".jsonl"):
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
    by_input = read_jsonl(tmp_path / "vectors.jsonl")
    joined = np.concatenate(
        [np.array(line["vectors"]).reshape(-1, *embedder.shape) for line in by_input]
    )
    np.testing.assert_allclose(joined, rows, atol=1e-6)
    with pytest.raises(UserError, match=r"one of \.jsonl, \.parquet, \.npy"):
        write_vectors(tmp_path / "vectors.csv", expected, embedder.shape)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
