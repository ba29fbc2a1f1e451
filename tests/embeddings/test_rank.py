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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pair-encoder", "bi", "--long-text", "window"), "one sequence of each text"),
        (("--pair-encoder", "bi", "--poly-codes", "4"), "applies to --pair-encoder poly"),
        (("--pair-encoder", "poly", "--poly-codes", "0"), "above 0"),
    ],
)
def test_settings_without_meaning_are_refused(models: Path, options: tuple[str, ...], message: str):
    outcome = run("nli", "--model", models / "bert", "--data", "examples/data/nli", *options)
    assert outcome.code == 2 and message in outcome.err


def test_single_texts_are_refused(models: Path):
    words = ("--data", "examples/data/sentiment", "--pair-encoder", "bi")
    outcome = run("classify", "--model", models / "bert", *words)
    assert outcome.code == 2 and "needs pairs of texts" in outcome.err


def test_other_uses_of_the_model(place: Path, tmp_path: Path):
    """No ONNX graph; its encoder starts other runs; the README names what loads it."""
    export = run("export", place / "bi", "--out", tmp_path / "onnx")
    assert export.code == 2 and "reads the texts of a pair apart" in export.err
    readme = (place / "bi" / "README.md").read_text("utf-8")
    assert "finetune.load(" in readme and "pipeline(" not in readme
    few = ("--steps", "1", "--limit", "9", "--max-length", "40", "--out", tmp_path / "warm")
    warm = run("nli", "--init-from", place / "bi", "--data", "examples/data/nli", *few)
    assert warm.code == 0 and "new head" in warm.err + warm.out
