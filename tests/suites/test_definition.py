"""Files of suites: order, messages, the packaged suites."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.config.recipes import find_suites, packaged_path
from finetune.suites.definition import load_suite
from finetune.types import UserError
from tests.command import run

PACKAGED = find_suites(packaged_path("recipes"))


def test_a_suite(suite: Path):
    read = load_suite(suite)
    assert read.title == "Tiny"
    assert list(read.tasks) == ["follow", "mood", "pairs", "names"]
    assert read.tasks["follow"].scores == [("test", "accuracy"), ("test", "macro_f1")]
    assert read.tasks["mood"].scores == [("test", "accuracy")], "the expected score"
    assert read.tasks["names"].left_out == "tags are scored in another way"
    assert [each.name for each in read.order()] == ["pairs", "follow", "mood", "names"]
    assert [each.name for each in read.order(["names", "follow"])] == ["names", "pairs", "follow"]
    with pytest.raises(UserError, match=r"--only moot: tiny has .* Perhaps you meant 'mood'\?"):
        read.order(["moot"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: Tiny\n", "", r"tiny\.yaml: a suite needs a `title`"),
        ("source:", "sources:", r"tiny\.yaml:2: unknown key 'sources' of a suite.*'source'"),
        ("from: pairs", "form: pairs", r"tiny\.yaml:6: unknown key 'form' of a task .*'from'"),
        ("recipe: follow.yaml", "recipe: folow.yaml", r"tiny\.yaml:5: folow.yaml: no such"),
        ("recipe: follow.yaml", "left_out: x", r"tiny\.yaml:4: follow has no recipe"),
        ("from: pairs", "from: pears", r"follow starts from pears, which is no task of the suite"),
        (
            "recipe: pairs.yaml\n",
            "recipe: pairs.yaml\n    from: follow\n",
            r"pairs starts from follow, which is no task of the suite, or starts from it",
        ),
        ("test macro_f1", "test f2", r"tiny\.yaml:7: 'test f2' must be SPLIT METRIC"),
        ("  mood:", "  ../mood:", r"tiny\.yaml:8: '\.\./mood' is no plain name"),
        ("test span_f1_conll]", "]", r"tiny\.yaml:13: names has no scores"),
    ],
)
def test_wrong_suites(old: str, new: str, message: str, suite: Path):
    text = suite.read_text("utf-8")
    assert text.count(old) == 1 or old == "from: pairs"
    (wrong := suite.parent / "wrong" / "tiny.yaml").parent.mkdir(exist_ok=True)
    for recipe in suite.parent.glob("*.yaml"):
        (wrong.parent / recipe.name).write_text(recipe.read_text("utf-8"), "utf-8")
    wrong.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(UserError, match=message):
        load_suite(wrong)


def test_a_recipe_of_a_suite_runs_no_code(suite: Path):
    for name in ("own.yaml", "suite.yaml"):
        path = suite.with_name(name)
        text = suite.with_name("mood.yaml").read_text("utf-8") + "custom_loss: own.py:mine\n"
        listing = suite.read_text("utf-8").replace("mood.yaml", "own.yaml")
        path.write_text(text if name == "own.yaml" else listing, "utf-8")
    with pytest.raises(UserError, match=r"own\.yaml:\d+: a file cannot set custom_loss"):
        load_suite(path)


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.stem)
def test_packaged_suites(path: Path):
    read = load_suite(path.stem)
    for model in read.models:
        for task in load_suite(path, model).tasks.values():
            if "{model}" in path.read_text("utf-8"):
                assert task.recipe.settings["model"] == model, task.name
            if "init_from" in task.recipe.settings:
                assert task.start is not None
    text = path.read_text("utf-8")
    assert f"finetune run {path.stem}" in text and read.source
    listed = run("run").out
    assert read.title in listed


def test_a_suite_and_a_misspelled_list_of_tasks_are_no_recipes(suite: Path):
    run("check", suite).refused(f"lists recipes, and is none: finetune run {suite}")
    path = suite.with_name("misspelled.yaml")
    path.write_text(suite.read_text("utf-8").replace("tasks:\n", "taks:\n"), "utf-8")
    run("run", path).refused(f"{path}: names no `task`", "Perhaps you meant 'tasks'?")
