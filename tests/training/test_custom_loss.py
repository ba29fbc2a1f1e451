"""A custom loss trains, resumes, repeats and runs in processes as a built-in one does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import finetune
from finetune.config.tasks import ClassifyConfig
from finetune.tasks import load_task
from finetune.types import CustomFunctionError
from tests import small_data as data
from tests.command import run
from tests.forks import in_two_forks
from tests.tiny import save_tiny_checkpoint
from tests.training.stopping import interrupt_in_step

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

def detached(logits, targets):
    total, number = plain(logits.detach(), targets)
    return total, number
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("custom-loss")
    save_tiny_checkpoint(folder / "bert", "bert", dropout=0.1)
    data.sentiment(folder / "data")
    (folder / "own.py").write_text(LOSSES)
    return folder


def command(place: Path, out: Path, *more: str, steps: int = 6) -> list[str]:
    settings = {"data": place / "data", "model": place / "bert", "out": out, "steps": steps}
    settings |= {"max-length": 32, "batch-size": 8, "eval-every": 3, "precision": "fp32"}
    return ["classify", *(f"--{name}={value}" for name, value in settings.items()), *more]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "best" / "model.safetensors")


def same(first: Path, second: Path) -> bool:
    one, other = weights(first), weights(second)
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_the_own_form_of_a_built_in_loss_trains_the_same_weights(place: Path, tmp_path: Path):
    own = f"--custom-loss={place / 'own.py'}:plain"
    assert run(*command(place, tmp_path / "built-in")).code == 0
    assert run(*command(place, tmp_path / "own", own)).code == 0
    assert same(tmp_path / "built-in", tmp_path / "own")
    functions: dict = {}
    exec(LOSSES, functions)
    settings = {"max_length": 32, "batch_size": 8, "eval_every": 3, "precision": "fp32"}
    finetune.train(
        "classify",
        data=str(place / "data"),
        model=str(place / "bert"),
        out=str(tmp_path / "python"),
        steps=6,
        loss=functions["plain"],
        **settings,
    )
    assert same(tmp_path / "built-in", tmp_path / "python")
    logged = [
        json.loads((tmp_path / name / "log.jsonl").read_text().splitlines()[0])["loss"]
        for name in ("own", "built-in")
    ]
    assert logged[0] == logged[1]


def test_it_resumes_to_the_bit(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = f"--custom-loss={place / 'own.py'}:doubled"
    assert run(*command(place, tmp_path / "whole", own)).code == 0
    interrupt_in_step(4, monkeypatch)
    assert run(*command(place, tmp_path / "parts", own)).code == 130
    monkeypatch.undo()
    assert run(*command(place, tmp_path / "parts", own, "--resume")).code == 0
    assert same(tmp_path / "whole", tmp_path / "parts")
    assert not same(tmp_path / "whole", _plain(place, tmp_path)), "the loss has an effect"
    assert run("predict", tmp_path / "whole", "--text", "good").code == 0


def _plain(place: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "plain"
    assert run(*command(place, folder, "--clip=0")).code == 0
    return folder


def test_seeds_and_processes(place: Path, tmp_path: Path):
    own = f"--custom-loss={place / 'own.py'}:plain"
    outcome = run(*command(place, tmp_path / "seeds", own, "--seeds=2", steps=2))
    assert outcome.code == 0 and "seed 2" in outcome.out, outcome.err
    words = command(place, tmp_path / "two", own, steps=2)
    processes = in_two_forks([sys.executable, "-m", "finetune", *words])
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mean", "the loss mean must return the sum of the losses"),
        ("detached", "a tensor [] with a gradient"),
        ("nothing", "there is no function 'nothing'"),
    ],
)
def test_wrong_losses_are_refused(place: Path, tmp_path: Path, name: str, message: str):
    outcome = run(*command(place, tmp_path / "run", f"--custom-loss={place / 'own.py'}:{name}"))
    assert outcome.code == 2 and message in outcome.err and "internal" not in outcome.err


def test_an_error_inside_shows_its_traceback(place: Path, tmp_path: Path):
    outcome = run(*command(place, tmp_path / "run", f"--custom-loss={place / 'own.py'}:broken"))
    assert outcome.code == 2 and 'targets["no such key"]' in outcome.err
    assert "error: the loss broken raised KeyError" in outcome.err
    with pytest.raises(CustomFunctionError):
        finetune.train(
            ClassifyConfig(
                model=str(place / "bert"),
                data=str(place / "data"),
                steps=1,
                out=str(tmp_path / "python"),
            ),
            loss=lambda logits, targets: targets["none"],
        )


def test_settings_of_the_built_in_loss_are_refused_beside_it(place: Path, tmp_path: Path):
    own = f"--custom-loss={place / 'own.py'}:plain"
    outcome = run(*command(place, tmp_path / "run", own, "--label-smoothing=0.1"))
    assert outcome.code == 2 and "--label-smoothing 0.1 is part of the built-in loss" in outcome.err
    few = ("--few-shot", "--per-class=4", "--validation=none")
    words = [word for word in command(place, tmp_path / "few", own) if "eval-every" not in word]
    outcome = run(*words, *few)
    assert outcome.code == 2 and "is not a function of the logits and targets" in outcome.err


def test_a_method_of_a_task_cannot_be_assigned(place: Path):
    config = ClassifyConfig(model=str(place / "bert"), data=str(place / "data"))
    task, _ = load_task(config, "classify")
    with pytest.raises(finetune.UserError, match="the loss of a task cannot be assigned"):
        task.loss = lambda logits, batch: (logits.sum(), 1)
