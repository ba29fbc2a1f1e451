"""A model can be loaded from what a run saves, whatever it began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from finetune.tasks import save_task, saved_task
from finetune.training.scoring import Scorer
from tests import fixtures as fx
from tests.covering import few

BEGUN_WITH = {
    "classify": {},
    "several labels": {},
    "numbers": {},
    "nli": {},
    "crf": {},
    "ner": {},
    "relations": {},
    "qa": {},
    "choice": {},
    "pretrain": {},
    "cosine": {},
    "few": {"few_shot": True},
}
TASKS = ("classify", "several labels", "numbers", "nli", "tag", "crf", "ner", "relations", "qa")
TASKS += ("choice", "bi", "simcse")


@pytest.mark.parametrize(
    "begun_with", few(BEGUN_WITH, "classify", "numbers", "crf", "ner", "relations", "few")
)
def test_every_task_saves_what_it_can_load(begun_with: str, tmp_path: Path) -> None:
    setup = "classify" if begun_with == "few" else begun_with
    run = fx.trained(setup, **BEGUN_WITH[begun_with])
    for task in TASKS[list(BEGUN_WITH).index(begun_with) % 6 :: 6]:
        made, _ = fx.load(fx.config(task, model=None, init_from=run))
        save_task(made, tmp_path / task)
        head = made.model()
        head.save_pretrained(tmp_path / task)
        weights = saved_task(tmp_path / task).model(tmp_path / task).state_dict()
        assert weights.keys() == head.state_dict().keys()
        assert all(torch.equal(weights[name], w) for name, w in head.state_dict().items())


def test_another_score_of_the_saved_model_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = Scorer._selection_score
    calls: list[float] = []

    def other(*arguments: Any) -> float:
        calls.append(score(*arguments))
        return calls[-1] + 0.5 * (len(calls) == 2)

    monkeypatch.setattr(Scorer, "_selection_score", other)
    result = fx.fit(fx.config("classify", out=str(tmp_path / "run")))
    assert len(calls) == 2 and any("near ties" in note for note in result.notes)
