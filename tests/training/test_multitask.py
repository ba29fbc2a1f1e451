"""Several tasks on one encoder: shares of the steps, common weights, and runs that resume."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from finetune.api import train_multitask
from finetune.config.recipes import load_multitask
from finetune.config.tasks import ClassifyConfig
from finetune.inference.predictor import Predictor
from finetune.runtime.progress import Reporter
from finetune.training.multitask import with_planned_steps
from finetune.types import UserError
from tests import fixtures as fx
from tests.training.stopping import interrupted


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("multitask")
    write_recipe(workdir)
    return workdir


def write_recipe(
    workdir: Path, name: str = "both.yaml", more: str = "", own: str = "", tagged: str = "windows"
) -> Path:
    text = f"""task: multitask
model: {fx.checkpoint()}
epochs: 2
batch_size: 8
lr: 1e-3
precision: fp32
{more}
tasks:
  mood: {{task: classify, data: {fx.data("sentiment")}}}
  names: {{task: tag, data: {fx.data(tagged)}, batch_size: 6{own}}}
"""
    path = workdir / name
    path.write_text(text, "utf-8")
    return path


def train(workdir: Path, out: Path, **changes):
    recipe = load_multitask(workdir / "both.yaml", **changes)
    return train_multitask(recipe, out, command="finetune", reporter=Reporter(quiet=True))


@pytest.fixture(scope="module")
def whole(workdir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    runs = train(workdir, folder)
    assert set(runs) == {"mood", "names"}
    assert "accuracy" in runs["mood"].metrics["test"]
    assert "span_f1_conll" in runs["names"].metrics["test"]
    return folder


def test_steps_follow_the_sizes(workdir: Path) -> None:
    assert load_multitask(workdir / "both.yaml", alpha=0.0).alpha == 0.0
    task, _ = fx.load(fx.config("classify"))
    config = ClassifyConfig(epochs=1, batch_size=1)
    data: Any = [SimpleNamespace(splits={"train": range(size)}) for size in (1000, 10)]
    tasks = {name: (task, rows, config) for name, rows in zip("ab", data, strict=True)}
    for alpha, steps in ((0.3, [807, 203]), (1.0, [1000, 10]), (0.0, [505, 505])):
        planned, shares = with_planned_steps(tasks, Path("out"), alpha)
        assert [config.steps for *_, config in planned.values()] == steps
        assert shares["a"] == pytest.approx(steps[0] / 1010, abs=1e-3)


def test_both_tasks_train_the_encoder_of_the_checkpoint(whole: Path) -> None:
    one, other = (
        load_file(whole / "last" / name / "model.safetensors") for name in ("mood", "names")
    )
    common = [name for name in one if name in other and not name.startswith("classifier")]
    assert len(common) > 20
    for name in common:
        assert torch.equal(one[name], other[name]), name


def test_the_folder_of_each_task_loads_alone(whole: Path) -> None:
    assert Predictor(whole / "mood").predict(["a fine day"])[0].label in ("neg", "pos")
    assert len(Predictor(whole / "names").predict([["Anna", "lives", "here"]])[0].tags) == 3
    for name in ("mood", "names"):
        assert (whole / name / "report.html").is_file()
        assert (whole / name / "README.md").is_file()


def test_a_folder_with_a_run_is_refused(whole: Path, workdir: Path) -> None:
    with pytest.raises(UserError, match="holds a run already"):
        train(workdir, whole)


def test_a_run_that_ended_before_its_first_checkpoint_starts_again(
    workdir: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"--resume: there is no run in .*run to continue"):
        train(workdir, tmp_path / "run", resume=True)
    with interrupted(1):
        train(workdir, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "last")
    log = tmp_path / "run" / "mood" / "log.jsonl"
    log.write_text('{"step": 9, "loss": 1.0}\n')  # three epochs of this task
    with interrupted(1):
        train(workdir, tmp_path / "run", resume=True)
    shutil.rmtree(tmp_path / "run" / "last")
    log.write_text('{"step": 90, "loss": 1.0}\n')
    with pytest.raises(UserError, match="last is missing, but the run had reached it"):
        train(workdir, tmp_path / "run", resume="auto")


@pytest.mark.parametrize(
    ("more", "own", "message"),
    [
        ("", ", lr: 1e-4", "--lr belongs to the encoder that tasks share"),
        ("alpha: 2", "", "--alpha must be from 0 to 1, not 2"),
        ("alpha: much", "", r"bad.yaml:7: alpha must be a number"),
        ("epochz: 2", "", r"bad.yaml:7: unknown setting 'epochz'"),
        ("", ", crff: true", r"bad.yaml:10: unknown setting 'crff'"),
    ],
)
def test_refuses_what_does_not_fit(more: str, own: str, message: str, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, "bad.yaml", more, own)
    with pytest.raises(UserError, match=message):
        train_multitask(load_multitask(path), tmp_path / "run", command="", reporter=Reporter(True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: nli\n", "bad.yaml:1: task is 'nli', and not multitask"),
        ("task: multitask\n", "two or more names"),
        ("task: multitask\ntasks: {a: {task: nli}}\n", "bad.yaml:2: `tasks` must have two or more"),
        ("task: multitask\ntasks: {a: {task: nli}, b: {task: sentence}}\n", "legal are classify"),
        ("task: multitask\ntasks: {a: {task: nli}, b: 3}\n", "the task of b is None"),
        ("task: multitask\ntasks: {a: {task: nli}, ../b: {task: nli}}\n", "names a folder"),
    ],
)
def test_refuses_other_recipes(text: str, message: str, tmp_path: Path) -> None:
    (path := tmp_path / "bad.yaml").write_text(text, "utf-8")
    with pytest.raises(UserError, match=message):
        load_multitask(path)
