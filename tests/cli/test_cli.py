"""Arguments on their way to a command, and errors on their way out."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from finetune.cli import commands
from finetune.cli import train as training
from finetune.cli.arguments import CheckCommand, CompareCommand, PredictCommand, ScoreCommand
from finetune.cli.main import COMMANDS, main
from finetune.cli.parsing import joined, parse
from finetune.config.recipes import Recipe
from finetune.config.tasks import CONFIGS, TagConfig, TrainConfig
from finetune.types import UserError
from tests.command import run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What would have been run."""
    made: list[tuple] = []
    for name in ("train", "dry_run", "check", "predict_texts", "score_files", "compare_files"):
        module = training if name in ("train", "dry_run") else commands
        monkeypatch.setattr(module, name, lambda *a, name=name: made.append((name, *a)))
    return made


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (path := tmp_path / "r.yaml").write_text("task: tag\nsteps: 5\nlr: 1e-3\noverlap: 8\n")
    return path


def test_overview():
    assert set(CONFIGS) < set(COMMANDS)
    for arguments in ((), ("-h",), ("--help",), ("help",)):
        outcome = run(*arguments)
        assert outcome.code == 0 and all(name in outcome.out for name in COMMANDS)


@pytest.mark.parametrize("task", CONFIGS)
def test_training(task: str, calls: list[tuple]):
    run(task, "--model", "m", "--columns", "text=a", "label=b", "--lr", "1e-3", "--resume")
    ((name, kind, config, recipe, of_recipe),) = calls
    assert (name, kind, recipe, of_recipe) == ("train", task, None, None)
    columns = ("text=a", "label=b")
    assert config == CONFIGS[task](model="m", columns=columns, lr=1e-3, resume=True)


def test_dry_run(calls: list[tuple], recipe: Path):
    run("tag", "--dry-run", "--steps", "2")
    run("run", recipe, "--dry-run")
    assert calls == [
        ("dry_run", "tag", TagConfig(steps=2)),
        ("dry_run", "tag", TagConfig(steps=5, lr=1e-3, overlap=8)),
    ]


@pytest.mark.parametrize("form", ["run", "flag", "joined"])
def test_flags_win_over_recipes_and_recipes_over_defaults(
    form: str, calls: list[tuple], recipe: Path
):
    start = {
        "run": ["run", recipe],
        "flag": ["tag", "--recipe", recipe],
        "joined": ["tag", f"--recipe={recipe}"],
    }[form]
    assert run(*start, "--steps", "9").code == 0
    ((_, task, config, read, of_recipe),) = calls
    assert task == "tag" and isinstance(read, Recipe) and read.path == recipe
    assert config == TagConfig(steps=9, lr=1e-3, overlap=8)
    assert of_recipe == TagConfig(steps=5, lr=1e-3, overlap=8)


def test_a_quick_check_of_a_recipe(calls: list[tuple], recipe: Path):
    assert "r.yaml has no `smoke` settings" in run("run", recipe, "--smoke").err
    recipe.write_text(f"{recipe.read_text()}smoke: {{steps: 2, limit: 60}}\n")
    run("run", recipe, "--smoke", "--limit", "9")
    ((_, task, config, read, of_recipe),) = calls
    assert (task, read.name) == ("tag", "tag-r-smoke"), "its runs are not taken for the recipe's"
    assert config == TagConfig(steps=2, limit=9, lr=1e-3, overlap=8)
    assert of_recipe == TagConfig(steps=5, lr=1e-3, overlap=8)
    assert "--smoke goes with a recipe" in run("tag", "--smoke").err


def test_other_commands(calls: list[tuple], recipe: Path):
    run("check", "folder", "--task", "nli")
    run("check", recipe)
    run("predict", "run", "--text", "-1", "--pair", "--x")
    run("score", "p.jsonl", "g.conll", "--columns", "tags=3")
    run("compare", "a", "b,c", "--unit", "document", "--json")
    of_recipe = TagConfig(steps=5, lr=1e-3, overlap=8)
    assert calls == [
        ("check", CheckCommand(data="folder", task="nli"), None),
        ("check", CheckCommand(data=of_recipe.data, task="tag"), of_recipe),
        ("predict_texts", Path("run"), PredictCommand(text="-1", pair="--x")),
        ("score_files", Path("p.jsonl"), "g.conll", ScoreCommand(columns=("tags=3",))),
        ("compare_files", "a", "b,c", CompareCommand(unit="document", json=True)),
    ]


def test_recipe_without_a_file():
    assert run("tag", "--recipe").err == "error: --recipe needs a file.\n"


def test_joined():
    assert joined(["--text", "--text", "a"], "--text") == ["--text=--text", "a"]
    assert joined(["a", "--text"], "--text") == ["a", "--text"]


def test_help_is_the_documentation_of_the_fields(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        parse(TagConfig, ["--help"], "tag", more="And more.")
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "usage: finetune tag" in said and "And more." in said


@pytest.mark.parametrize(("error", "code", "said"), [
    (UserError("what and where"), 2, "error: what and where\n"),
    (OSError(errno.ENOSPC, "No space left on device", "a/b"), 2,
     "error: a/b: No space left on device.\n"),
    (PermissionError(errno.EACCES, "Permission denied"), 2, "error: Permission denied.\n"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2,
     "error: out of memory: lower --max-tokens, then --max-length.\n"),
    (KeyboardInterrupt(), 130, "interrupted\n"),
])  # fmt: skip
def test_errors(error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(training, "train", fail)
    outcome = run("tag")
    assert (outcome.code, outcome.err, outcome.out) == (code, said, "")


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("x"), ImportError("x")])
def test_bugs_are_not_hidden(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(training, "train", fail)
    with pytest.raises(type(error)):
        main(["tag"])


def test_traceback_on_demand(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FINETUNE_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no such recipe"):
        main(["run", "nothing.yaml"])


def test_a_closed_pipe_is_no_error(tmp_path: Path):
    for number in range(3000):
        (tmp_path / f"{number}.yaml").write_text("task: tag\ndescription: something\n")
    command = f"{sys.executable} -m finetune recipes --folder {tmp_path} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.count("\n") == 1


def test_every_setting_is_a_flag():
    config = parse(TrainConfig, ["--no-resume", "--precision", "bf16", "--limit", "None"], "x")
    assert config == TrainConfig(precision="bf16")
