"""What tests share is made once, is never changed unseen, and leaves random numbers alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from finetune.registry import TASKS
from tests import laboratory as lab
from tests.command import run


def test_each_choice_is_made_once():
    assert lab.checkpoint() == lab.checkpoint("bert") != lab.checkpoint("bert", seed=1)
    assert lab.data("tag") == lab.data("entities") != lab.data("entities", words=3)
    before = torch.get_rng_state()
    assert lab.checkpoint("roberta").name == "roberta"
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("task", TASKS)
def test_a_run_of_every_task(task: str):
    folder = lab.trained(task)
    saved = json.loads((folder / "config.json").read_text("utf-8"))
    assert (saved["task"], saved["steps"]) == (task, 2)
    assert lab.trained(task) == folder and lab.trained(task, seed=2) != folder


def test_a_changed_folder_is_told_and_made_again(tmp_path: Path):
    folder = lab.data("sentiment", (4, 2, 2))
    own = shutil.copytree(folder, tmp_path / "own")
    (own / "train.jsonl").write_text("")
    assert lab.changed_files() == []
    (folder / "train.jsonl").write_text("")
    assert lab.changed_files() == [folder / "train.jsonl"]
    again = lab.data("sentiment", (4, 2, 2))
    assert again != folder and (again / "train.jsonl").read_text("utf-8")


def test_the_command_has_the_same_settings(tmp_path: Path):
    outcome = lab.train("classify", tmp_path / "run", "--quiet", seed=3)
    assert outcome.code == 0, outcome.err
    assert run("score", tmp_path / "run").code == 0
    sides = [tmp_path / "run", lab.trained("classify", seed=3)]
    one, other = (json.loads((side / "metrics.json").read_text("utf-8")) for side in sides)
    assert one == other
