"""Ranking with each kind of pair encoder equals the predictions of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import finetune
from finetune.embeddings.rank import Ranker
from finetune.types import UserError
from tests import fixtures as fx

CANDIDATES = ["A dog runs.", "", "a man is playing a guitar " * 30, "It rains.", "A dog runs."]


def trained(encoder: str) -> Path:
    if encoder == "poly":
        return fx.trained("classify", data=str(fx.data("numbers")), pair_encoder="poly")
    return fx.trained("nli", **({"pair_encoder": "bi"} if encoder == "bi" else {}))


@pytest.mark.parametrize("encoder", ["cross", "bi", "poly"])
def test_scores_are_those_of_predictions(encoder: str):
    folder = trained(encoder)
    # over the limit with a candidate
    query = "the big red dog " * (1 if encoder == "cross" else 12)
    ranker = Ranker(folder, CANDIDATES)
    predicted: Any = finetune.load(folder).predict([(query, text) for text in CANDIDATES])
    expected = [pair.scores["entailment"] if pair.scores else pair.label for pair in predicted]
    torch.testing.assert_close(ranker.scores(query), torch.tensor(expected), rtol=0, atol=1e-5)
    best = ranker.rank(query, 3)
    assert [text.score for text in best] == pytest.approx(sorted(expected)[:1:-1], abs=1e-5)
    assert all(CANDIDATES[text.index] == text.text for text in best)


@pytest.mark.parametrize("task", ["nli", "classify"])
def test_a_cross_encoder_ranks_a_blank_candidate_last_for_a_blank_query(task: str):
    folder = fx.trained(task, data=str(fx.data("pairs" if task == "nli" else "numbers")))
    ranked = Ranker(folder, ["A dog runs.", " ", "It rains."]).rank("")
    assert [text.index for text in ranked][-1] == 1
    assert [text.score == -torch.inf for text in ranked] == [False, False, True]


def test_errors():
    for folder, label, message in (
        (fx.trained("classify"), None, "needs a model of pairs"),
        (trained("bi"), "entails", "Perhaps you meant"),
    ):
        with pytest.raises(UserError, match=message):
            Ranker(folder, CANDIDATES, label=label)
