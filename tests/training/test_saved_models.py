"""A model can be loaded from what a run saves, whatever it began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finetune.models.heads.pretrained import PretrainedHead
from finetune.training.scoring import Scorer, check_saved_model
from finetune.types import UserError
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
def test_every_task_saves_what_it_can_load(begun_with: str) -> None:
    setup = "classify" if begun_with == "few" else begun_with
    run = fx.trained(setup, **BEGUN_WITH[begun_with])
    for task in TASKS[list(BEGUN_WITH).index(begun_with) % 6 :: 6]:
        made, _ = fx.load(fx.config(task, model=None, init_from=run))
        check_saved_model(made, made.model())


def test_a_model_that_could_not_be_loaded_ends_a_run_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"model": None, "init_from": fx.trained("nli"), "out": str(tmp_path / "run")}
    save = PretrainedHead.save_pretrained

    def damaged(head: Any, folder: Any, **options: Any) -> None:
        save(head, folder, **options)
        (Path(folder) / "config.json").unlink()

    monkeypatch.setattr(PretrainedHead, "save_pretrained", damaged)
    with pytest.raises(UserError, match=r"config\.json"):
        fx.fit(fx.config("classify", **settings))
    assert not (tmp_path / "run" / "log.jsonl").exists()


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
