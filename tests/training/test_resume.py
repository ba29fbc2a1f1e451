"""Runs of every kind that are interrupted, killed while they continue, and continued again.

They end with the bytes of an uninterrupted run. ``tests/fault_injection`` kills at any operation on
files, and real processes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from finetune.training import scoring
from tests import fixtures as fx
from tests.command import Outcome, run
from tests.training.stopping import Killed, at_step, interrupt_in_step
from tests.training.test_multitask import write_recipe

OWN_LOSS = """\
import torch

def doubled(logits, targets):
    return 2 * torch.nn.functional.cross_entropy(logits, targets["label"], reduction="sum"), 1
"""
DATA = "sentiment numbers pairs documents relations questions choices windows short_text".split()
COMMON = "--max-length 48 --batch-size 8 --precision fp32 --lr 1e-2 --steps 5 --eval-every 3"
ONE_RUN = """
classify --data sentiment --sampling balanced --precision bf16
classify --data sentiment --custom-loss own.py:doubled --validation none
classify --data sentiment --few-shot --per-class 6 --validation none --save-every 2 --precision bf16
classify --data numbers --tuning lora --precision bf16
nli --data pairs --pair-encoder bi --calibrate temperature --precision bf16
tag --data documents --context doc --precision fp16
tag --data windows --crf --tuning mask --precision bf16 --limit 12
tag --data windows --tuning head --gradient-checkpointing
ner --data windows --weight-decay 0.3 --eval-every 3 --precision bf16 --limit 12
relations --data relations --tuning bitfit
qa --data questions
choice --data choices --weight-decay 0.3
pretrain --data short_text --mask spans --boundary --nsp
pretrain --data short_text --mask words
sentence --data numbers --objective mirror --max-tokens 120 --precision bf16
sentence --data short_text --objective cmlm --max-tokens 60
sentence --data pairs --objective softmax --max-tokens 60
sentence --data numbers --objective cosine
run both.yaml --limit 24
distill teacher --model narrow --unlabeled windows/test.jsonl --limit 12
distill teacher --layers 1 --hidden-weight 0 --unlabeled windows/test.jsonl
distill words --layers 1
"""
"""Commands that ``--resume`` continues."""
FAST = ("classify --data sentiment --sampling", "ner", "sentence --data numbers --objective mirror")
FAST += ("run",)
"""Beginnings of the commands that are not slow."""
SEVERAL_RUNS = [
    "classify --data sentiment --seeds 2 --per-class 8",
    "classify --data sentiment --folds 2",
    "classify --data sentiment --sizes 10,20 --seeds 1",
]
"""Commands that train several models, and are interrupted in their eighth step."""
KILLED = ("classify", "run", "ner")
"""Commands that are also killed while they continue."""


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = fx.copy_checkpoints_and_data(tmp_path_factory.mktemp("resume"), *DATA)
    (workdir / "own.py").write_text(OWN_LOSS, "utf-8")
    write_recipe(workdir, more="save_every: 3\nmax_length: 48")
    return workdir


TEACHERS = {"teacher": "tag", "words": "ner"}


def carry_out(command: str, out: str, *more: str) -> Outcome:
    words, common = command.split(), COMMON.split()
    if words[1] in TEACHERS and not Path(words[1]).exists():
        carry_out(f"{TEACHERS[words[1]]} --data windows", words[1]).ok()
    given = {word for word in words if word.startswith("--")}
    options = zip(common[::2], common[1::2], strict=True)
    if words[0] == "run":
        options = iter(())
    elif words[0] == "distill":
        words += ["--batch-size", "8", "--steps", "5", "--eval-every", "3"]
        options = iter(())
    else:
        words += ["--model", "bert"]
    words += [word for option in options if option[0] not in given for word in option]
    return run(*words, *more, "--out", out)


def content(out: str) -> dict[str, bytes]:
    """The weights, states, scores and predictions of all runs of a command."""
    names = ("*.safetensors", "metrics.json", "predictions.*", "seeds.json", "folds.json")
    return {
        str(path).removeprefix(out): path.read_bytes()
        for folder in Path().glob(f"{out}*")
        for name in names
        for path in folder.rglob(name)
    }


def kill() -> None:
    raise Killed


def check_bit_equal(command: str, at: int, resume: tuple[str, ...]) -> None:
    for folder in (*Path().glob("whole*"), *Path().glob("parts*")):
        shutil.rmtree(folder)
    carry_out(command, "whole").ok()
    with pytest.MonkeyPatch.context() as patch:
        interrupt_in_step(at, patch)
        stopped = carry_out(command, "parts")
        assert stopped.code == 130 and "stopped at step" in stopped.err, stopped.err
    if command.startswith(KILLED):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            at_step(2, kill, patch)
            carry_out(command, "parts", *resume)
    continued = carry_out(command, "parts", *resume).ok()
    assert "continuing from step" in continued.err, continued.err
    found, expected = content("parts"), content("whole")
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    for log in Path().glob("whole/**/log.jsonl"):
        steps = [
            {json.loads(line)["step"] for line in path.open()}
            for path in (log, Path("parts", *log.parts[1:]))
        ]
        assert steps[0] <= steps[1]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(line, marks=() if line.startswith(FAST) else pytest.mark.slow)
        for line in ONE_RUN.strip().splitlines()
    ],
)
def test_a_run_continues_bit_equal(
    command: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workdir)
    monkeypatch.setattr("finetune.models.sparse_embedding.MOST_OCCURRING", 1.0)
    check_bit_equal(command, 3, ("--resume",))


@pytest.mark.parametrize(
    ("command", "step"),
    [
        ("classify --data sentiment", 3),
        ("classify --data sentiment", 5),
        ("classify --data sentiment --few-shot --per-class 6", 3),
    ],
)
def test_a_signal_ends_an_evaluation(
    command: str, step: int, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resumed run has this evaluation, with the weights of then."""
    monkeypatch.chdir(workdir)
    predicted, evaluations = scoring.predict, iter((3, 5))
    names = [f"{name}-{command.count('few')}-{step}" for name in ("undisturbed", "disturbed")]

    def stopped(task: Any, model: Any, examples: Any, *more: Any, **options: Any) -> Any:
        if len(examples) > 1 and next(evaluations, None) == step:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the evaluation goes on")
        return predicted(task, model, examples, *more, **options)

    carry_out(command, names[0]).ok()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "predict", stopped)
        outcome = carry_out(command, names[1])
    assert outcome.code == 143 and f"stopped at step {step}" in outcome.err, outcome.err
    carry_out(command, names[1], "--resume").ok()
    assert content(names[1]) == content(names[0])


@pytest.mark.slow
@pytest.mark.parametrize("command", SEVERAL_RUNS)
def test_several_runs_continue_bit_equal(
    command: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workdir)
    check_bit_equal(command, 8, ())
