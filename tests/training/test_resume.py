"""Runs of every kind that are interrupted, killed while they continue, and continued again.

They end with the bytes of an uninterrupted run. ``tests/fault_injection`` kills at any operation on
files, and real processes. Then the files of a run: what is saved, refused and never overwritten.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from finetune.config.tasks import NerConfig, TagConfig, TrainConfig, settings
from finetune.evaluation.runs import RunFolder
from finetune.runtime import files
from finetune.runtime.files import SaveError
from finetune.training import scoring
from finetune.training.checkpoint import TrainerState, check_files, load_checkpoint, save_checkpoint
from finetune.training.run_folder import RunLog, open_run, require_free, require_same_run
from finetune.types import UserError
from tests import fixtures as fx
from tests.command import Outcome, run
from tests.training.stopping import Killed, at_step, interrupt_in_step, interrupted
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


def save_moments(folder: Path, moments: Any) -> None:
    masters: Any = SimpleNamespace(moments=lambda optimizer: moments)
    save_checkpoint(folder, {}, masters, None, TrainerState(step=1))  # type: ignore[arg-type]


def test_damaged_files_are_found(tmp_path: Path) -> None:
    moments = {"weight": {"exp_avg": torch.randn(3, 2), "step": torch.tensor(1.0)}}
    save_moments(tmp_path, moments)
    check_files(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        saved = path.read_bytes()
        half = len(saved) // 2
        flipped = saved[:half] + bytes([saved[half] ^ 1]) + saved[half + 1 :]
        for damaged in (flipped, saved[:half], b"", None):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            with pytest.raises(UserError, match="damaged, changed or missing"):
                check_files(tmp_path)
        path.write_bytes(saved)
    check_files(tmp_path)


@pytest.mark.parametrize("name", ["weight", "0"])
def test_moments_of_other_weights_are_refused(name: str, tmp_path: Path) -> None:
    moments = {name: {"exp_avg": torch.randn(3, 2), "step": torch.tensor(1.0)}}
    save_moments(tmp_path, moments)
    weight = SimpleNamespace(shape=torch.Size([2, 2]))
    masters: Any = SimpleNamespace(weights={"weight": weight})
    with pytest.raises(UserError, match="other names or shapes"):
        load_checkpoint(tmp_path, masters, None)  # type: ignore[arg-type]


def test_a_log_with_a_line_that_was_cut_is_continued(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.5}\n{"step": 3, "lo')
    main = SimpleNamespace(is_main_process=True, log_with=[])
    RunLog(path, main, 1)
    assert path.read_text() == '{"step": 1, "loss": 2.0}\n'
    RunLog(path, main, 0)
    assert path.read_text() == ""


@pytest.mark.slow
def test_a_run_may_save_more_often_once_it_was_killed(tmp_path: Path) -> None:
    """Its log may have more steps than the new bound allows without a checkpoint."""
    config = fx.config("classify", out=tmp_path / "run", steps=None, epochs=3)
    with interrupted(6):
        fx.fit(config)
    shutil.rmtree(tmp_path / "run" / "last")
    again = replace(config, resume=True, save_every=1)
    fx.fit(again)
    shutil.rmtree(tmp_path / "run" / "last")
    with pytest.raises(UserError, match="last is missing, but the run had reached it"):
        fx.fit(again)


@pytest.mark.parametrize("line", ['{"step": 1, "step": 2}', "[{}}"])
def test_a_log_that_was_edited_is_refused(line: str, tmp_path: Path):
    (path := tmp_path / "log.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(UserError, match=r"log\.jsonl:2: .*"):
        RunLog(path, SimpleNamespace(is_main_process=True, log_with=[]), 1)


def test_nothing_is_replaced_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint must not name a best model that is not on disk."""
    sync = files._sync

    def full(folder: Path) -> None:
        if "best" in folder.name:
            raise OSError("full")
        sync(folder)

    monkeypatch.setattr(files, "_sync", full)
    config = TagConfig(out=str(tmp_path / "run"))
    with pytest.raises(SaveError, match="full"), open_run(config) as writer:
        for folder in (writer.adapter, writer.best, writer.last):
            with writer.replacing(folder) as fresh:
                (fresh / "file").touch()
    assert writer.adapter.is_dir() and not writer.last.exists()


def run_of(folder: Path, config: TrainConfig, task: str = "tag", **saved: object) -> RunFolder:
    """A run that was started with a configuration."""
    content = {"task": task, **settings(config), "fingerprint": "f", "num_processes": 2, **saved}
    (folder / "config.json").write_text(json.dumps(content))
    return RunFolder.open(folder)


def test_a_run_continues_with_the_same_settings_and_data(tmp_path: Path) -> None:
    run = run_of(tmp_path, TagConfig(data="d", columns=("words=tokens",)), epochs_used=10.0)
    config = TagConfig(data="d", columns=("words=tokens",), max_tokens=99)
    require_same_run(run, config, "f")
    require_same_run(run, replace(config, data="elsewhere"), "f")
    for arguments, problem in (
        ((replace(config, lr=0.1), "f"), r"now 0.1: .* \(those in .*config\.json\), or use"),
        ((replace(config, epochs=3), "f"), r"was started with epochs = unset \(10\), now 3"),
        ((config, "g"), "other data than d has now"),
        ((NerConfig(data="d"), "f"), "holds a run of `finetune tag`: continue it with that"),
    ):
        with pytest.raises(UserError, match=problem):
            require_same_run(run, *arguments)


def test_a_model_may_be_named_by_another_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/bert", "b/bert", "run"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    run = run_of(tmp_path / "run", TagConfig(model="a/bert"))
    require_same_run(run, TagConfig(model=str(tmp_path / "a" / "bert")))
    with pytest.raises(UserError, match="was started with model = 'a/bert', now 'b/bert'"):
        require_same_run(run, TagConfig(model="b/bert"))
    (tmp_path / "a").rename(tmp_path / "moved")
    require_same_run(run, TagConfig(model="moved/bert"))
    with pytest.raises(UserError, match="now 'moved'"):
        require_same_run(run, TagConfig(model="moved"))


def test_a_new_run_overwrites_nothing_of_others(tmp_path: Path) -> None:
    require_free(RunFolder.open(tmp_path / "absent" / "run"))
    require_free(RunFolder.open(tmp_path))
    (tmp_path / ".lock").touch()
    require_free(RunFolder.open(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "README.md").write_text("mine")
    assert not RunFolder.open(tmp_path).is_run
    with pytest.raises(UserError, match=r"holds other files \(README.md, config.json\)"):
        require_free(RunFolder.open(tmp_path))
    require_free(run := run_of(tmp_path, TagConfig()))
    (tmp_path / "last").mkdir()
    with pytest.raises(UserError, match="holds a run already: add --resume"):
        require_free(run)
