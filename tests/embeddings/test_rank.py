"""Ranking with each kind of pair encoder equals the predictions of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import finetune
from finetune.embeddings.rank import Ranker
from finetune.types import UserError
from tests.command import run

CANDIDATES = ["A dog runs.", "", "a man is playing a guitar " * 30, "It rains.", "A dog runs."]


@pytest.fixture(scope="module")
def place(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranking")
    for name, task, data, options in (
        ("cross", "nli", "nli", "--max-length 40"),
        ("bi", "nli", "nli", "--pair-encoder bi --max-length 40"),
        ("poly", "classify", "similarity", "--pair-encoder poly --poly-codes 3 --max-length 64"),
        ("single", "classify", "sentiment", "--max-length 40"),
    ):
        words = ("--model", models / "bert", "--data", f"examples/data/{data}", *options.split())
        few = ("--steps", "2", "--limit", "30", "--precision", "fp32", "--out", folder / name)
        outcome = run(task, *words, *few)
        assert outcome.code == 0, outcome.err
    return folder


@pytest.mark.parametrize("kind", ["cross", "bi", "poly"])
def test_scores_are_those_of_predictions(place: Path, kind: str):
    query = "the big red dog " * (12 if kind != "cross" else 1)  # over the limit with a candidate
    ranker = Ranker(place / kind, CANDIDATES)
    predicted: Any = finetune.load(place / kind).predict([(query, text) for text in CANDIDATES])
    expected = [each.scores["entailment"] if each.scores else each.label for each in predicted]
    torch.testing.assert_close(ranker.scores(query), torch.tensor(expected), rtol=0, atol=1e-5)
    best = ranker.rank(query, 3)
    assert [each.score for each in best] == pytest.approx(sorted(expected)[:1:-1], abs=1e-5)
    assert [CANDIDATES[each.index] for each in best] == [each.text for each in best]
    assert Ranker(place / kind, []).rank(query) == []


@pytest.mark.parametrize(
    ("name", "label", "message"),
    [("single", None, "needs a model of pairs"), ("bi", "entails", "Perhaps you meant")],
)
def test_errors(place: Path, name: str, label: str | None, message: str):
    with pytest.raises(UserError, match=message):
        Ranker(place / name, CANDIDATES, label=label)
