"""A custom loss trains, resumes, repeats and runs in processes as a built-in one does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import finetune
from finetune.types import UserError
from tests import fixtures as fx
from tests.command import Outcome
from tests.small_data import read_jsonl
from tests.training.same_weights import train_in_two_processes

LOSSES = """
from torch.nn.functional import cross_entropy

def plain(logits, targets):
    losses = cross_entropy(logits, targets["label"], reduction="none") * targets["weight"]
    return losses.sum(), targets["weight"].sum()

def doubled(logits, targets):
    total, number = plain(logits, targets)
    return 2 * total, number

def broken(logits, targets):
    return targets["no such key"]

def mean(logits, targets):
    return cross_entropy(logits, targets["label"])

def complex_valued(logits, targets):
    total, number = plain(logits, targets)
    return total * (1 + 0j), number

def detached(logits, targets):
    total, number = plain(logits.detach(), targets)
    return total, number
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of losses."""
    (file := tmp_path_factory.mktemp("custom-loss") / "own.py").write_text(LOSSES)
    return str(file)


SIZES = {"steps": 6, "max_length": 32, "eval_every": 3}


def train(out: Path, loss: str | None = None, *more: str, **changes: Any) -> Outcome:
    return fx.train("classify", out, *more, **{**SIZES, "custom_loss": loss, **changes})


def same(first: Path, second: Path) -> bool:
    models = [folder / "best" / "model.safetensors" for folder in (first, second)]
    return models[0].read_bytes() == models[1].read_bytes()


def test_the_own_form_of_a_built_in_loss_trains_the_same_weights(own: str, tmp_path: Path):
    train(tmp_path / "built-in").ok()
    train(tmp_path / "own", f"{own}:plain").ok()
    assert same(tmp_path / "built-in", tmp_path / "own")
    functions: dict = {}
    exec(LOSSES, functions)
    config = fx.config("classify", **SIZES, out=str(tmp_path / "python"))
    finetune.train(config, loss=functions["plain"])
    assert same(tmp_path / "built-in", tmp_path / "python")
    again, started = replace(config, resume=True), "was started with loss=plain, now"
    with pytest.raises(UserError, match=f"{started} the loss of its settings: continue with the"):
        finetune.train(again)
    with pytest.raises(UserError, match=f"{started} loss=doubled"):
        finetune.train(again, loss=functions["doubled"])
    finetune.train(again, loss=functions["plain"])
    logs = [read_jsonl(tmp_path / name / "log.jsonl") for name in ("own", "built-in")]
    assert logs[0][0]["loss"] == logs[1][0]["loss"]
    train(tmp_path / "doubled", f"{own}:doubled").ok()
    assert not same(tmp_path / "own", tmp_path / "doubled")


def test_a_loss_of_python_is_refused_as_that_of_a_file(tmp_path: Path) -> None:
    config = fx.config("classify", **SIZES, label_smoothing=0.1, out=str(tmp_path / "run"))
    with pytest.raises(UserError, match="is part of the built-in loss, which"):
        finetune.train(config, loss=lambda logits, targets: (logits.sum(), 1), quiet=True)
    config = fx.config("classify", **SIZES, out=str(tmp_path / "other"))
    with pytest.raises(UserError, match="the loss must be a function of logits and targets, not 3"):
        finetune.train(config, loss=3, quiet=True)  # type: ignore[arg-type]


@pytest.mark.slow
def test_seeds_and_processes(own: str, tmp_path: Path):
    outcome = train(tmp_path / "seeds", f"{own}:plain", "--seeds=2", steps=2).ok()
    assert "seed 2" in outcome.out, outcome.err
    two = {**SIZES, "steps": 2, "custom_loss": f"{own}:plain"}
    train_in_two_processes(*fx.words("classify", tmp_path / "two", **two), fresh=False)


FEW = {"few_shot": True, "per_class": 4, "validation": "none", "eval_every": None}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("mean", {}, ["the loss mean must return the sum of the losses"]),
        ("detached", {}, ["a tensor [] with a gradient"]),
        ("complex_valued", {}, ["a tensor [] with a gradient"]),
        ("nothing", {}, ["there is no function 'nothing'"]),
        ("broken", {}, ['targets["no such key"]', "error: the loss broken raised KeyError"]),
        ("plain", {"class_weights": "auto"}, ["--class-weights auto is part of the built-in"]),
        ("plain", FEW, ["is not a function of the logits and targets"]),
    ],
)
def test_refusals(own: str, tmp_path: Path, name: str, changes: dict[str, Any], said: list[str]):
    refused = train(tmp_path / "run", f"{own}:{name}", **changes).refused(*said)
    assert "internal" not in refused.err
