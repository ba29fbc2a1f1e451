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
from tests import laboratory as lab
from tests.command import run

ROOT = Path(__file__).parents[2]
RECIPES = find_recipes(ROOT / "recipes")
SMALL = {"regression": "numbers", "multi": "topics"}
"""Small data by the problem of a recipe."""
recipe_of = functools.cache(load_recipe)
every_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three relations, to start from."""
    folder = tmp_path_factory.mktemp("recipes")
    torch.manual_seed(1)
    made = SequenceClassifier.from_pretrained(str(lab.checkpoint("roberta")), labels=NLI_LABELS)
    made.save_pretrained(folder)
    lab.tokenizer("roberta").save_pretrained(folder)
    return folder


def test_there_are_recipes():
    assert {recipe_of(path).task for path in RECIPES} == set(CONFIGS)
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert f"`recipes/` holds {len(RECIPES)} files" in page


@every_recipe
def test_recipe_is_valid(path: Path):
    recipe = recipe_of(path)
    config = recipe.config()
    assert all(getattr(config, name) == value for name, value in recipe.settings.items())
    assert recipe.smoke_recipe().config() != config
    assert recipe.description and recipe.smoke, "a description, and settings for a quick check"
    text = path.read_text(encoding="utf-8")
    assert f"finetune run {path.relative_to(ROOT)}" in text, "it opens with its command"
    assert {"model", "data"} <= set(recipe.settings), "nothing that defines it is left to defaults"
    free = {name for name in recipe.settings if not affects_results(name)}
    assert free <= {"max_tokens"}, "a matter of the machine"


@every_recipe
def test_expected_scores_have_a_source(path: Path):
    said = "\nexpected: none published\n" in path.read_text(encoding="utf-8")
    assert said != bool(recipe_of(path).expected), "scores, or that there are none"
    for entry in recipe_of(path).expected:
        assert len(entry.source) > 10, entry
        assert 0 < entry.tolerance < 0.2, entry
        assert entry.split.partition("_")[0] in ("validation", "test")
        of_mnli = recipe_of(path).settings["data"] == "mnli"
        assert ("matched" in entry.split) == of_mnli, "the one with several validation splits"
        of_medians = "median" in path.read_text(encoding="utf-8").partition("\ntask:")[0]
        assert entry.statistic == ("median" if of_medians else "mean")


@every_recipe
def test_data_are_available_to_users(path: Path):
    name = str(recipe_of(path).settings["data"])
    assert name in DATASET_ALIASES or name in MANUAL_DOWNLOADS or (ROOT / name).is_dir(), name


@every_recipe
def test_a_warm_start_is_the_run_of_another_recipe(path: Path):
    recipe = recipe_of(path)
    if "init_from" in recipe.settings:
        before = {RUNS / other.name: other for other in map(recipe_of, RECIPES)}
        begun = before[Path(str(recipe.settings["init_from"]))]
        assert begun.settings["model"] == recipe.settings["model"]


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
    """Every recipe; all but the first of each task, form of data and start are slow."""
    seen, found = set(), []
    for path in RECIPES:
        recipe = recipe_of(path)
        form = recipe.task, data_of(recipe), "init_from" in recipe.settings
        marks = [pytest.mark.slow] if form in seen else []
        found.append(pytest.param(path, id=path.stem, marks=marks))
        seen.add(form)
    return found


@pytest.mark.parametrize("path", one_of_each_form())
def test_recipe_trains(path: Path, begin: Path, tmp_path: Path):
    recipe = recipe_of(path)
    source = lab.data(data_of(recipe))
    given = {**recipe.settings, **recipe.smoke}
    length = min(40, int(given.get("max_length", 40)))
    smoke = {
        **recipe.smoke,
        "model": lab.checkpoint("roberta"),
        "data": source,
        "steps": 2,
        "batch_size": 4,
        "max_length": length,
        "precision": "fp32",
        "out": tmp_path / "run",
    }
    if "overlap" in given:
        smoke["overlap"] = min(length // 2, int(given["overlap"]))
    if "init_from" in recipe.settings:
        smoke["init_from"] = begin
    options = [f"{flag(name)}={value}" for name, value in smoke.items()]
    test_sets = [item.partition("=")[0] for item in recipe.settings.get("test_sets", ())]
    options += ["--test-sets", *(f"{name}={source}" for name in test_sets)]
    outcome = run("run", path, *options, "--columns").ok()
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    for entry in recipe.expected:
        assert f"{entry.split} {entry.metric}: expected {entry.claimed}" in outcome.out
        split = entry.split.partition("_")[0]  # the small data have no second validation split
        assert entry.metric in metrics[split], "a metric that this task gives on such data"
