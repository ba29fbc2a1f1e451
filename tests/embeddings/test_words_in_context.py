"""Words in context: the best threshold, and the command."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from finetune.embeddings.words_in_context import best_threshold
from finetune.types import TextExample, UserError
from tests import fixtures as fx
from tests.command import run
from tests.small_data import read_jsonl, write_splits


def pairs(*labels: str) -> list[TextExample]:
    return [TextExample(number, "a", "b", label) for number, label in enumerate(labels)]


def test_threshold_is_the_best_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        size = int(rng.integers(2, 30))
        cosines = rng.integers(-4, 5, size=size) / 4  # with ties
        labels = np.where(rng.random(size) < 0.5 + cosines / 4, "same", "different")
        labels[:2] = "same", "different"
        threshold = best_threshold(cosines, pairs(*labels))

        values = [threshold.value, *cosines, *(cosines + 0.1)]
        accuracies = [
            (np.where(cosines >= value, threshold.above, threshold.below) == labels).mean()
            for value in values
        ]
        assert accuracies[0] == max(accuracies)
    threshold = best_threshold(np.array([0.1, 0.2, 0.8]), pairs("F", "F", "T"))
    assert (threshold.value, threshold.above, threshold.below) == (0.5, "T", "F")
    for labels, listed in (("T", r"1 label: T\."), ("", r"0 labels\.$")):
        with pytest.raises(UserError, match=f"two labels, and the training pairs have {listed}"):
            best_threshold(np.array([0.1] * len(labels)), pairs(*labels))


def test_command(tmp_path: Path) -> None:
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
    data, out = write_splits(tmp_path / "data", train=rows, test=rows), tmp_path / "labels.jsonl"
    fit = ("similarity", fx.checkpoint(), "--threshold", "--data", data)
    (table,) = json.loads(run(*fit, "--out", out, "--format", "json").ok().out)
    lines = read_jsonl(out)
    for line, row in zip(lines, rows, strict=True):
        assert (line["id"], line["gold"]) == (row["id"], row["label"])
        assert (line["label"] == table["at or above"]) == (line["cosine"] >= table["threshold"])
    right = [line["label"] == line["gold"] for line in lines]
    assert table["accuracy"] == pytest.approx(np.mean(right))
    assert str(table["accuracy"])[:6] in run("score", out).ok().out
    assert "on the pairs that it is scored on" in run(*fit[:-1], data / "train.jsonl").ok().err
