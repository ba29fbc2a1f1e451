"""Parsing of arguments, and errors and exit codes."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import subprocess
import sys
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin
from unittest import mock

import pytest

import finetune
from finetune.cli import train
from finetune.cli.check import Check
from finetune.cli.compare import Compare
from finetune.cli.help import COMMANDS_BY_GROUP, options_of
from finetune.cli.main import COMMANDS, command_class, main, parse
from finetune.cli.predict import Predict
from finetune.cli.report import Report
from finetune.cli.score import ScoreCommand
from finetune.config.recipes import RecipeRun
from finetune.config.tasks import CONFIGS, TagConfig
from finetune.config.values import converted
from finetune.registry import Registry
from finetune.reporting import html
from finetune.types import UserError
from tests import fixtures as fx
from tests.command import run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """The calls of the functions that would have trained."""
    made: list[tuple] = []
    for name in ("train", "dry_run"):
        monkeypatch.setattr(train, name, lambda *a, name=name: made.append((name, *a)))
    return made


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (path := tmp_path / "r.yaml").write_text("task: tag\nsteps: 5\nlr: 1e-3\n")
    return path


def test_overview():
    assert set(CONFIGS) < set(COMMANDS)
    for arguments in ((), ("-h",), ("--help",), ("help",)):
        outcome = run(*arguments)
        lines = outcome.out.splitlines()
        assert outcome.code == 0 and len(lines) <= 50 and max(map(len, lines)) <= 100
    listed = [name for commands in COMMANDS_BY_GROUP.values() for name in commands]
    assert sorted(listed) == sorted(COMMANDS)
    assert all(f"  {name} " in outcome.out for name in listed)
    assert run("help", "tag").out == run("tag", "--help").out
    assert run("--version").out.count("\n") == 1


@pytest.mark.parametrize("task", CONFIGS)
def test_training(task: str, calls: list[tuple]):
    run(task, "--model", "m", "--columns", "text=a", "label=b", "--lr", "1e-3", "--resume")
    columns = ("text=a", "label=b")
    config = CONFIGS[task](model="m", columns=columns, lr=1e-3, resume=True)
    assert calls == [("train", task, config, None)]


def test_options_override_recipes_and_recipes_defaults(calls: list[tuple], recipe: Path):
    run("run", recipe, "--dry-run")
    run("run", recipe, "--steps", "9").ok()
    planned, (_, task, config, recipe_run) = calls
    assert planned == ("dry_run", "tag", TagConfig(steps=5, lr=1e-3))
    assert task == "tag" and config == TagConfig(steps=9, lr=1e-3)
    assert isinstance(recipe_run, RecipeRun) and recipe_run.recipe.path == recipe
    assert recipe_run.differing == ("steps",)
    assert recipe_run.recipe.config() == TagConfig(steps=5, lr=1e-3)


def test_help_of_a_recipe_has_its_values(recipe: Path):
    outcome = run("run", recipe, "--help")
    assert outcome.code == 0 and "usage: finetune run RECIPE [--option" in outcome.out
    assert "(default: 0.001)" in outcome.out
    assert "usage: finetune run" in run("run", "--help").out
    assert "usage: finetune search" in run("search", "tag", "--help").out


def test_positionals_and_options_in_any_order():
    assert parse(["check", "--task", "nli", "folder"]) == Check(source="folder", task="nli")
    predict = Predict(folder="run", text=("-1",), pair="--x")
    assert parse(["predict", "run", "--text", "-1", "--pair=--x"]) == predict
    score = ScoreCommand(predictions="p.jsonl", gold="g.conll", columns=("tags=3",))
    assert parse(["score", "p.jsonl", "g.conll", "--columns", "tags=3"]) == score
    compare = Compare(first="a", second="b,c", unit="document", format="json")
    assert parse(["compare", "a", "--unit", "document", "b,c", "--format", "json"]) == compare
    report = Report(folders=("p",), gold="g", format="csv")
    assert parse(["report", "p", "--gold", "g", "--format", "csv"]) == report
    assert parse(["report", "a", "b", "--out", "x"]) == Report(folders=("a", "b"), out="x")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("what and where"), 2, "error: what and where\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "a/b"),
            2,
            "error: a/b: No space left on device.\n",
        ),
        (PermissionError(errno.EACCES, "Permission denied"), 2, "error: Permission denied.\n"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            2,
            "error: out of memory: lower --max-tokens, then --max-length.\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_errors(error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(train, "train", fail)
    outcome = run("tag")
    assert (outcome.code, outcome.err, outcome.out) == (code, message, "")


@pytest.mark.parametrize(
    "error", [KeyError("x"), RuntimeError("x"), ImportError("x"), ValueError("x"), OSError("x")]
)
def test_bugs_name_the_file_of_their_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(train, "train", fail)
    outcome = run("tag")
    assert outcome.code == 1 and outcome.err.count("\n") == 1
    start, _, rest = outcome.err.partition("; traceback in ")
    assert start.startswith(f"internal error: {type(error).__name__}: ")
    file = Path(rest.removesuffix("; please report\n"))
    assert "in fail" in file.read_text("utf-8")
    file.unlink()


def test_a_report_that_fails_leaves_the_run_finished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail_with(error: Exception) -> str:
        monkeypatch.setattr(html, "load_runs", mock.Mock(side_effect=error))
        html.report_run(Path("a run"))
        return capsys.readouterr().err

    wrong, bug = fail_with(UserError("no gold")), fail_with(KeyError("x"))
    assert "Try again with: finetune report 'a run'\n" in wrong and wrong.endswith(
        "\nerror: no gold\n"
    )
    start, _, file = bug.removesuffix("; please report\n").partition("; traceback in ")
    assert start.endswith("\ninternal error: KeyError: 'x'")
    assert "load_runs" in Path(file).read_text("utf-8")
    Path(file).unlink()


def test_lists_switches_and_one_word_for_input():
    assert parse(["predict", "run", "--data", "a"]) == parse(["predict", "run", "--file", "a"])
    assert parse(["tag", "--file", "a"]).config.data == "a"
    parsed = parse(["classify", "--sizes", "100,200", "400", "--resume", "auto", "--no-bilstm"])
    assert (parsed.sizes, parsed.config.resume, parsed.config.bilstm) == (
        (100, 200, 400),
        "auto",
        False,
    )
    assert parse(["classify", "--sizes"]).sizes == () and parse(["classify"]).sizes is None
    assert parse(["tag", "--resume"]).config.resume is True
    assert parse(["score", "p", "--json"]).format == "json"
    search = parse(["search", "tag", "--space", "lr=1,2", "steps=3", "--space", "seed=1", "--crf"])
    assert search.space == ("lr=1,2", "steps=3", "seed=1") and search.config.crf


def test_a_closed_pipe_is_no_error(tmp_path: Path):
    (tmp_path / "recipes").mkdir()
    for number in range(400):  # more than a pipe holds
        (tmp_path / "recipes" / f"{number:0240}.yaml").write_text(
            "task: tag\ndescription: something\n"
        )
    command = f"{sys.executable} -m finetune run | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == "" and done.stdout.count("\n") == 1


def test_names_of_the_scripts_of_transformers(calls: list[tuple]):
    arguments = ("--model_name_or_path", "m", "--learning_rate=1e-3", "--output-dir", "o")
    run("tag", *arguments, "--num-train-epochs", "2").ok()
    assert calls[0][2] == TagConfig(model="m", lr=1e-3, out="o", epochs=2)


def test_settings_of_recipes_are_no_options(tmp_path: Path):
    run("classify", "--max-grad-norm", "1").refused("write clip in a recipe, in Python, or in")
    (path := tmp_path / "r.yaml").write_text(
        f"task: classify\nmodel: {fx.checkpoint()}\ndata: {fx.data('sentiment')}\nclip: 0\n"
    )
    outcome = run("run", path, "--steps=1", "--max-length=32", "--dry-run").ok()
    assert "--max-length 32, clip: 0.0" in outcome.out


def test_every_choice_of_every_command_refuses_another_value():
    """Optional choices, too; other values of an option that may be text or a choice are text."""
    checked = 0
    for command in COMMANDS:
        for option in options_of(command_class(command)):
            kinds = [each for each in (option.type, *get_args(option.type)) if each is not NoneType]
            choices = [each for each in kinds if get_origin(each) is Literal]
            if not choices or str in kinds:
                continue
            assert converted(option.name, get_args(choices[0])[0], option.type)
            with pytest.raises(UserError, match=rf"^{option.name} must be .*not 'no-choice'"):
                converted(option.name, "no-choice", option.type)
            checked += 1
    assert checked > 50


def test_options_of_one_run_are_refused_for_several(tmp_path: Path):
    (tmp_path / "two.yaml").write_text(
        "task: multitask\ntasks:\n  a: {task: tag}\n  b: {task: tag}\n"
    )
    message = f"finetune run {tmp_path / 'two.yaml'}: unknown option '--seeds=2'"
    run("run", tmp_path / "two.yaml", "--seeds=2").refused(message)


def test_names_of_transformers_in_python(tmp_path: Path) -> None:
    named = {"num_train_epochs": 3, "learning_rate": 1e-3, "output_dir": str(tmp_path)}
    named |= {"warmup_ratio": 0.2, "eval_steps": 7}
    with mock.patch("finetune.api.train_once") as trained:
        finetune.train("classify", "sst2", **named)
    config = trained.call_args[0][1]
    assert (config.epochs, config.lr, config.out) == (3, 1e-3, str(tmp_path))
    assert (config.warmup, config.eval_every) == (0.2, 7)
    with pytest.raises(UserError, match="learning_rate and lr are one setting"):
        finetune.train("classify", "sst2", lr=1e-3, learning_rate=1e-3)


def test_threads_of_the_program_wait_without_spinning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gc, "set_threshold", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["finetune", "--version"])
    for policy in ("active", "passive"):
        monkeypatch.setenv("OMP_WAIT_POLICY", "active")
        if policy == "passive":
            monkeypatch.delenv("OMP_WAIT_POLICY")
        with contextlib.suppress(SystemExit):
            main()
        assert os.environ["OMP_WAIT_POLICY"] == policy


def test_a_failed_import_is_no_missing_name(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry[object]({"part": "broken:part"})
    assert registry.get("other") is None
    monkeypatch.setattr("finetune.registry.imported", lambda path: {}[path])
    with pytest.raises(KeyError, match="broken"):
        registry.get("part")
