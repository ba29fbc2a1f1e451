"""A pushed model is a model: its hub id works wherever a run folder or model folder does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import finetune
from finetune.deployment.server import ServedModel
from finetune.runtime.hub import forget_repositories
from tests import fixtures as fx
from tests.command import run
from tests.covering import few
from tests.hub.server import Hub
from tests.tiny import save_tiny_checkpoint

SETUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "classify": ("classify", {}),
    "pairs": ("nli", {"pair_encoder": "bi"}),
    "tag": ("tag", {}),
    "crf": ("tag", {"crf": True}),
    "sentence": ("sentence", {}),
    "pretrain": ("pretrain", {"boundary": True, "mask": "spans"}),
}
WORDS = ["Ana saw the river near Oslo ."]
INPUTS = {
    "pairs": [("Ana lives in Oslo", "Ana is in Oslo")],
    "sentence": [("warm", "cold")],
    "pretrain": ["the [MASK] of Oslo"],
}


def trained(setup: str) -> Path:
    task, changes = SETUPS[setup]
    return fx.trained(task, **changes)


@pytest.fixture(scope="module", autouse=True)
def pushed(running_hub: Hub) -> None:
    """The model of a run of each setup is ``lab/SETUP`` on the hub."""
    for setup in SETUPS:
        shutil.copytree(
            trained(setup) / "best", running_hub.model(f"lab/{setup}"), dirs_exist_ok=True
        )


@pytest.mark.parametrize("setup", few(SETUPS, "pairs", "crf", "pretrain"))
def test_predictions_are_those_of_the_folder(setup: str, hub: Hub) -> None:
    inputs = INPUTS.get(setup, WORDS)
    here, there = (finetune.load(name).predict(inputs) for name in (trained(setup), f"lab/{setup}"))
    assert [each.to_dict() for each in here] == [each.to_dict() for each in there]


def test_decisions_are_pushed_with_their_files(hub: Hub, tmp_path: Path) -> None:
    own = shutil.copytree(trained("classify"), tmp_path / "own")
    run("thresholds", own, "--ood", "0.5").ok()
    shutil.copytree(own / "best", hub.model("lab/decided"), dirs_exist_ok=True)
    here, there = (finetune.load(name).predict(WORDS) for name in (own, "lab/decided"))
    assert here[0].to_dict() == there[0].to_dict() and "distance" in here[0].to_dict()


@pytest.mark.parametrize("setup", few(["crf", "pretrain"], "crf"))
def test_init_from(setup: str, hub: Hub, tmp_path: Path) -> None:
    task, changes = SETUPS[setup]
    options = {} if setup == "pretrain" else changes
    start = {"model": None, "init_from": f"lab/{setup}"}
    fx.train(task, tmp_path / "x", **start, **options).ok()
    commit = hub.commit_id(hub.model(f"lab/{setup}"))
    assert json.loads((tmp_path / "x/config.json").read_text())["revision_used"] == commit
    card = (tmp_path / "x/best/README.md").read_text()
    assert f"base_model: lab/{setup}" in card and commit in card


def test_commands(hub: Hub, tmp_path: Path) -> None:
    data, own = fx.data("classify"), trained("classify")
    old = hub.commit_id(hub.model("lab/classify"))
    gold = data / "test.jsonl"
    student = ("--layers=1", "--steps=1", "--out", tmp_path / "student")
    for command in (
        ["predict", "lab/classify", "--file", gold],
        ["predict", f"lab/classify@{old}", "--text", "a warm room"],
        ["embed", "lab/sentence", "--text", "a warm room"],
        ["perplexity", "lab/pretrain", "--text", "a warm room"],
        ["export", "lab/tag", "--out", tmp_path / "exported"],
        ["thresholds", "lab/classify", "--dry-run"],
        ["compare", "lab/classify", own, "--data", gold, "--resamples=10"],
        ["distill", "lab/classify", "--data", data, *student],
    ):
        outcome = run(*command)
        expected = 2 if command[0] == "thresholds" else 0  # it needs the predictions of the run
        assert outcome.code == expected, (command, outcome.err)
        assert "/models--lab" not in outcome.out + outcome.err or expected
    assert run("predict", "lab/classify", "--file", gold).out == (
        run("predict", own, "--file", gold).out
    )
    assert ServedModel("x", "lab/classify").about["labels"]
    missing = run("predict", "lab/nothing", "--text", "x")
    assert missing.code == 2
    assert "error: model 'lab/nothing' is neither a local folder nor on the model" in missing.err
    refused = run("compare", "lab/classify", own)
    assert refused.code == 2 and "add --data FILE" in refused.err
    assert run("thresholds", "lab/classify").code == 2


def test_a_resumed_run_keeps_its_commit(hub: Hub, tmp_path: Path) -> None:
    """Also if the branch has moved; and the card keeps its base model."""
    shutil.rmtree(hub.model("lab/moving"))
    folder = hub.model("lab/moving")
    save_tiny_checkpoint(folder, "bert")
    first = hub.commit_id(folder)
    out, settings = tmp_path / "run", {"model": "lab/moving", "steps": 4, "eval_every": 2}
    assert fx.train("classify", out, **settings).code == 0
    before = json.loads((out / "config.json").read_text())
    assert before["revision_used"] == first
    (out / "README.md").unlink()
    save_tiny_checkpoint(folder, "bert", seed=1)
    forget_repositories()
    shutil.rmtree(tmp_path / "hf-home")
    fx.train("classify", out, "--resume", **settings).ok()
    assert json.loads((out / "config.json").read_text())["revision_used"] == first
    card = (out / "best/README.md").read_text()
    assert "base_model: lab/moving" in card and first in card


def test_a_wrong_model_is_reported_before_data_are_read(hub: Hub) -> None:
    outcome = run("classify", "--model", "lab/nothing", "--data", "lab/rows-of-nothing")
    assert outcome.code == 2 and "model 'lab/nothing'" in outcome.err
    assert not hub.asked("/datasets/")
