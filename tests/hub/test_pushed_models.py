"""A pushed model is a model: its hub id works wherever a run folder or model folder does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import finetune
from finetune.deployment.batcher import Limits
from finetune.deployment.served_model import load_served
from finetune.runtime.hub import forget_repositories
from tests import small_data as data
from tests.command import Outcome, run
from tests.hub.server import Hub
from tests.tiny import save_tiny_checkpoint

KINDS: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "classify": ("classify", data.sentiment, ()),
    "pairs": ("nli", data.pairs, ("--pair-encoder=bi",)),
    "tag": ("tag", data.entities, ()),
    "crf": ("tag", data.entities, ("--crf",)),
    "bilstm": ("tag", data.entities, ("--bilstm",)),
    "ner": ("ner", data.entities, ()),
    "relations": ("relations", data.relations, ()),
    "qa": ("qa", data.questions, ()),
    "choice": ("choice", data.choices, ()),
    "few-shot": ("classify", data.sentiment, ("--few-shot",)),
    "sentence": ("sentence", data.numbers, ()),
    "pretrain": ("pretrain", data.running_text, ("--boundary", "--mask=spans")),
}
SMALL = ("--max-length=40", "--batch-size=8", "--precision=fp32", "--steps=1")
WORDS = ["Ana saw the river near Oslo ."]
INPUTS = {
    "pairs": [("Ana lives in Oslo", "Ana is in Oslo")],
    "sentence": [("warm", "cold")],
    "qa": [("who saw the river", "Ana saw the river near Oslo .")],
    "choice": [{"context": "the room was warm", "choices": ["it was warm", "it was dull"]}],
    "pretrain": ["the [MASK] of Oslo"],
}


def train(place: Path, kind: str, *more: str | Path) -> Outcome:
    task, _, options = KINDS[kind]
    return run(task, "--data", place / f"{kind}-data", *SMALL, *options, *more)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, running_hub: Hub) -> Path:
    """A run of each kind; its model is ``lab/KIND`` on the hub."""
    folder = tmp_path_factory.mktemp("pushed")
    save_tiny_checkpoint(folder / "bert", "bert")
    for kind, (_, write, _) in KINDS.items():
        write(folder / f"{kind}-data")
        outcome = train(folder, kind, "--model", folder / "bert", "--out", folder / kind)
        assert outcome.code == 0, outcome.err
        target = running_hub.model(f"lab/{kind}")
        shutil.copytree(folder / kind / "best", target, dirs_exist_ok=True)
    return folder


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "relations"])
def test_predictions_are_those_of_the_folder(kind: str, hub: Hub, place: Path) -> None:
    inputs = INPUTS.get(kind, WORDS)
    here, there = (finetune.load(name).predict(inputs) for name in (place / kind, f"lab/{kind}"))
    assert [each.record() for each in here] == [each.record() for each in there]


@pytest.mark.parametrize("kind", ["pairs", "crf", "ner", "bilstm", "pretrain", "classify"])
def test_init_from(kind: str, hub: Hub, place: Path, tmp_path: Path) -> None:
    task = "ner" if kind == "ner" else KINDS[kind][0]
    options = [] if kind == "pretrain" else KINDS[kind][2]
    outcome = run(
        task,
        "--init-from",
        f"lab/{kind}",
        "--data",
        place / f"{kind}-data",
        "--out",
        tmp_path / "x",
        *SMALL,
        *options,
    )
    assert outcome.code == 0, outcome.err
    commit = hub.commit_id(hub.model(f"lab/{kind}"))
    assert json.loads((tmp_path / "x/config.json").read_text())["revision_used"] == commit
    card = (tmp_path / "x/best/README.md").read_text()
    assert f"base_model: lab/{kind}" in card and commit in card


def test_commands(hub: Hub, place: Path, tmp_path: Path) -> None:
    old = hub.commit_id(hub.model("lab/classify"))
    gold = place / "classify-data" / "test.jsonl"
    out = tmp_path / "student"
    for command in (
        ["predict", "lab/classify", "--file", gold],
        ["predict", f"lab/classify@{old}", "--text", "a warm room"],
        ["embed", "lab/sentence", "--text", "a warm room"],
        ["perplexity", "lab/pretrain", "--text", "a warm room"],
        ["export", "lab/tag", "--out", tmp_path / "exported"],
        ["suggest", "lab/classify", "--file", gold, "--number=2"],
        ["thresholds", "lab/classify", "--dry-run"],
        ["compare", "lab/classify", place / "classify", "--gold", gold, "--resamples=10"],
        [
            "distill",
            "lab/classify",
            "--layers=1",
            "--steps=1",
            "--out",
            out,
            "--data",
            place / "classify-data",
        ],
        ["classify", "--model", "lab/classify", "--data", place / "classify-data", "--dry-run"],
    ):
        outcome = run(*command)
        expected = 2 if command[0] == "thresholds" else 0  # it needs the predictions of the run
        assert outcome.code == expected, (command, outcome.err)
        assert "/models--lab" not in outcome.out + outcome.err or expected
    assert run("predict", "lab/classify", "--file", gold).out == (
        run("predict", place / "classify", "--file", gold).out
    )
    limits = Limits()
    with load_served("x", "lab/classify", limits) as served:
        assert served.sha256
    missing = run("predict", "lab/nothing", "--text", "x")
    assert missing.code == 2
    assert "lab/nothing: no such folder, and on the hub: model 'lab/nothing'" in missing.err
    refused = run("compare", "lab/classify", place / "classify")
    assert refused.code == 2 and "add --gold FILE" in refused.err
    assert run("thresholds", "lab/classify").code == 2


def test_a_resumed_run_keeps_its_commit(hub: Hub, place: Path, tmp_path: Path) -> None:
    """Also if the branch has moved; and the card keeps its base model."""
    shutil.rmtree(hub.model("lab/moving"))
    folder = hub.model("lab/moving")
    save_tiny_checkpoint(folder, "bert")
    first = hub.commit_id(folder)
    out = tmp_path / "run"
    arguments = (
        "classify",
        "--model",
        "lab/moving",
        "--data",
        place / "classify-data",
        "--out",
        out,
        "--max-length=40",
        "--batch-size=8",
        "--precision=fp32",
        "--steps=4",
        "--eval-every=2",
    )
    assert run(*arguments).code == 0
    before = json.loads((out / "config.json").read_text())
    assert before["revision_used"] == first
    (out / "README.md").unlink()
    save_tiny_checkpoint(folder, "bert", seed=1)
    forget_repositories()
    shutil.rmtree(tmp_path / "hf-home")
    outcome = run(*arguments, "--resume")
    assert outcome.code == 0, outcome.err
    assert json.loads((out / "config.json").read_text())["revision_used"] == first
    card = (out / "best/README.md").read_text()
    assert "base_model: lab/moving" in card and first in card


def test_a_wrong_model_is_reported_before_data_are_read(hub: Hub) -> None:
    outcome = run("classify", "--model", "lab/nothing", "--data", "lab/rows-of-nothing")
    assert outcome.code == 2 and "model 'lab/nothing'" in outcome.err
    assert not hub.asked("/datasets/")


@pytest.mark.parametrize("kind", ["SpanClassifier", "TokenClassifier", "SentenceEncoder"])
def test_heads_push_themselves(
    kind: str, hub: Hub, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_ana")
    name = f"lab/pushed-{kind}"
    folder = hub.model(name)
    (folder / "old.bin").write_text("x")
    options = {"SpanClassifier": {"max_width": 2}}.get(kind, {})
    if kind != "SentenceEncoder":
        options |= {"labels": ["O", "B-PER"]}
    head = getattr(finetune, kind).from_pretrained(str(place / "bert"), **options).eval()
    assert head.push_to_hub(name, license="mit").endswith(f"/{name}")
    assert not (folder / "old.bin").exists()
    assert "license: mit" in (folder / "README.md").read_text()
    forget_repositories()
    again = getattr(finetune, kind).from_pretrained(name)
    weights = again.state_dict()
    assert all(torch.equal(weights[n], value) for n, value in head.state_dict().items())
    if kind != "SentenceEncoder":
        assert finetune.load(name).predict(["Ana saw Oslo"])
    hub.fault("commit/main", status=500, times=9)
    with pytest.raises(finetune.UserError, match=name):
        head.push_to_hub(name)
