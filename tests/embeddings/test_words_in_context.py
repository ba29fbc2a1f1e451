"""Words in context: the best threshold, saved and reused, and the command."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from finetune.embeddings.words_in_context import best_threshold
from finetune.types import UserError
from tests import fixtures as fx
from tests.command import run
from tests.small_data import read_jsonl, write_splits


def test_threshold_is_the_best_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        size = int(rng.integers(2, 30))
        cosines = rng.integers(-4, 5, size=size) / 4  # with ties
        labels = np.where(rng.random(size) < 0.5 + cosines / 4, "same", "different")
        labels[:2] = "same", "different"
        threshold = best_threshold(cosines, list(labels))

        values = [threshold.value, *cosines, *(cosines + 0.1)]
        accuracies = [
            (np.where(cosines >= value, threshold.above, threshold.below) == labels).mean()
            for value in values
        ]
        assert accuracies[0] == max(accuracies)
    threshold = best_threshold(np.array([0.1, 0.2, 0.8]), ["F", "F", "T"])
    assert (threshold.value, threshold.above, threshold.below) == (0.5, "T", "F")
    with pytest.raises(UserError, match="separates two labels, and the training pairs have 1"):
        best_threshold(np.array([0.1]), ["T"])


@pytest.mark.parametrize("standardize", [False, True])
def test_command(standardize: bool, tmp_path: Path) -> None:
    model = str(fx.checkpoint())
    texts = ["the bank of the river", "a bank in the city", "the river bank", "the bank of england"]
    rows = [
        {
            "id": f"p{i}{j}",
            "text": texts[i],
            "text_pair": texts[j],
            "index": texts[i].split().index("bank"),
            "index_pair": texts[j].split().index("bank"),
            "label": "same" if (i + j) % 2 else "different",
        }
        for i, j in itertools.combinations(range(4), 2)
    ]
    write_splits(tmp_path / "data", train=rows, test=rows)
    out = tmp_path / "run"
    options = ["--standardize", "train"] if standardize else []
    fit = ("similarity", model, "--threshold", "--data", tmp_path / "data", "--out", out)
    outcome = run(*fit, *options).ok()
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["train"] == metrics["test"] and "or more" in outcome.out
    lines = read_jsonl(out / "predictions.test.jsonl")
    chosen = json.loads((out / "threshold.json").read_text())["threshold"]
    for line, row in zip(lines, rows, strict=True):
        assert (line["id"], line["gold"]) == (row["id"], row["label"])
        expected = chosen["above"] if line["cosine"] >= chosen["value"] else chosen["below"]
        assert line["label"] == expected
    other = shutil.copy(out / "predictions.test.jsonl", tmp_path / "other.jsonl")
    run("compare", out, other, "--resamples", "20").ok()
    again = run("predict", out, "--file", tmp_path / "data" / "test.jsonl").ok()
    assert "accuracy" in again.err, again.err
    assert [json.loads(line)["cosine"] for line in again.out.splitlines()] == pytest.approx(
        [line["cosine"] for line in lines], abs=1e-5
    )
