"""Every recipe of the repository is valid, names its sources, and trains."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune.config.recipes import Recipe, find_recipes, load_recipe, packaged_path
from finetune.config.tasks import CONFIGS, affects_results, flag
from finetune.data.hub import DATASET_ALIASES, MANUAL_DOWNLOADS
from finetune.data.labels import NLI_LABELS
from finetune.models.heads.pretrained import SequenceClassifier
from finetune.training.run_folder import RUNS
from tests import fixtures as fx
from tests.command import run

ROOT = Path(__file__).parents[2]
RECIPES = find_recipes(ROOT / "recipes")
SMALL = {"regression": "numbers", "multi": "topics"}
"""Small data by the problem of a recipe."""
recipe_of = functools.cache(load_recipe)


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three relations, to start from."""
    folder = tmp_path_factory.mktemp("recipes")
    torch.manual_seed(1)
    made = SequenceClassifier.from_pretrained(str(fx.checkpoint("roberta")), labels=NLI_LABELS)
    made.save_pretrained(folder)
    fx.tokenizer("roberta").save_pretrained(folder)
    return folder


def test_there_are_recipes():
    assert {recipe_of(path).task for path in RECIPES} == set(CONFIGS)
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert f"`recipes/` holds {len(RECIPES)} files" in page


@pytest.mark.parametrize("task", CONFIGS)
def test_recipes_are_valid(task: str):
    """Each opens with its command and has a description, settings, sources and data."""
    begun = {RUNS / recipe_of(path).name: recipe_of(path) for path in RECIPES}
    for path in RECIPES:
        recipe, text = recipe_of(path), path.read_text(encoding="utf-8")
        if recipe.task != task:
            continue
        config, data = recipe.config(), str(recipe.settings["data"])
        assert all(getattr(config, name) == value for name, value in recipe.settings.items()), path
        assert recipe.description, path
        assert f"finetune run {path.relative_to(ROOT)}" in text, "it opens with its command"
        assert "model" in recipe.settings, "nothing that defines it is left to defaults"
        free = {name for name in recipe.settings if not affects_results(name)}
        assert free <= {"max_tokens"}, f"{path}: a matter of the machine"
        said = "\nexpected: none published\n" in text
        assert said != bool(recipe.expected), f"{path}: scores, or that there are none"
        of_medians = "median" in text.partition("\ntask:")[0]
        for entry in recipe.expected:
            assert len(entry.source) > 10, entry
            assert 0 < entry.tolerance < 0.2, entry
            assert entry.split.partition("_")[0] in ("validation", "test"), entry
            # the one with several validation splits
            assert ("matched" in entry.split) == (data == "mnli"), entry
            assert entry.statistic == ("median" if of_medians else "mean"), entry
        known = data in DATASET_ALIASES or data in MANUAL_DOWNLOADS or (ROOT / data).is_dir()
        assert known, f"{path}: users cannot get {data}"
        if "init_from" in recipe.settings:
            start = begun[Path(str(recipe.settings["init_from"]))]
            assert start.settings["model"] == recipe.settings["model"], path


def test_the_package_contains_the_recipes():
    inside = {
        path.relative_to(packaged_path("recipes"))
        for path in find_recipes(packaged_path("recipes"))
    }
    assert inside == {path.relative_to(ROOT / "recipes") for path in RECIPES}


def test_a_packaged_recipe_is_found_from_anywhere(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_recipe("recipes/nli/mnli-roberta-base.yaml").task == "nli"
    assert load_recipe("nli/mnli-roberta-base.yaml").name == "nli-mnli-roberta-base"
    assert "mnli-roberta-base" in run("run").out


def data_of(recipe: Recipe) -> str:
    """The small data that have the form of the recipe's data."""
    if (problem := str(recipe.settings.get("problem"))) in SMALL:
        return SMALL[problem]
    if recipe.settings.get("context", "none") != "none":
        return "documents"
    return "speech" if "upos" in str(recipe.settings.get("columns")) else recipe.task


def one_of_each_form() -> list[Any]:
    """Every recipe; all but the first of each task and of each start are slow."""
    seen, found = set[Any](), []
    for path in RECIPES:
        recipe = recipe_of(path)
        forms = {recipe.task, "init_from" in recipe.settings}
        marks = [pytest.mark.slow] if forms <= seen else []
        found.append(pytest.param(path, id=path.stem, marks=marks))
        seen |= forms
    return found


@pytest.mark.parametrize("path", one_of_each_form())
def test_recipe_trains(path: Path, begin: Path, tmp_path: Path):
    recipe = recipe_of(path)
    source = fx.data(data_of(recipe))
    length = min(40, int(recipe.settings.get("max_length", 40)))
    few = {
        "limit": 60,
        "model": fx.checkpoint("roberta"),
        "data": source,
        "steps": 2,
        "batch_size": 4,
        "max_length": length,
        "precision": "fp32",
        "out": tmp_path / "run",
    }
    if "overlap" in recipe.settings:
        few["overlap"] = min(length // 2, int(recipe.settings["overlap"]))
    if "init_from" in recipe.settings:
        few["init_from"] = begin
    options = [f"{flag(name)}={value}" for name, value in few.items()]
    test_sets = [item.partition("=")[0] for item in recipe.settings.get("test_sets", ())]
    if test_sets:
        options += ["--test-sets", *(f"{name}={source}" for name in test_sets)]
    outcome = run("run", path, *options, "--columns").ok()
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    for entry in recipe.expected:
        assert f"{entry.split} {entry.metric}: expected {entry.claimed}" in outcome.out
        split = entry.split.partition("_")[0]  # the small data have no second validation split
        assert entry.metric in metrics[split], "a metric that this task gives on such data"
