"""Suites: YAML files that list recipes, how they depend on each other, and their average.

docs/recipes.md describes the keys. `{model}` in the name of a recipe stands for one of `models`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.config.expected_scores import is_split, metrics_of
from finetune.config.recipes import Recipe, load_recipe, open_recipe
from finetune.config.values import typed_values
from finetune.types import UserError, abbreviated, did_you_mean

SUITE_KEYS: Mapping[str, Any] = {
    **dict.fromkeys(("title", "description", "source"), str),
    "models": tuple[str, ...],
}
"""The keys of a suite file besides ``tasks``, with their types."""
TASK_KEYS: Mapping[str, Any] = {
    **dict.fromkeys(("recipe", "from", "published", "left_out"), str),
    "scores": tuple[str, ...],
}
RESULTS_FILE = "suite.json"
"""File in the folder of a suite with the suite and its scores."""


@dataclass(frozen=True, kw_only=True)
class SuiteTask:
    """A recipe of a suite."""

    name: str
    """Its name in the suite, and its folder in the folder of the suite."""
    recipe: Recipe
    start: str | None = None
    """The task of the suite whose run with the same seed is the start of training."""
    scores: Sequence[tuple[str, str]]
    """The split and the metric of each score to report."""
    published: Recipe | None = None
    """Another recipe whose expected scores stand in the table, for comparison."""
    left_out: str = ""
    """Why the average leaves the task out; empty if it does not."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The content of a suite file, with the recipes of one model."""

    path: Path
    title: str
    description: str = ""
    source: str = ""
    models: Sequence[str] = ()
    """The models that have separate recipes."""
    tasks: Mapping[str, SuiteTask]
    """The tasks in the order of the file."""

    def order(self, only: Sequence[str] = ()) -> list[SuiteTask]:
        """Sort the tasks, or some of them, so that each follows the task that it starts from."""
        for name in only:
            if name not in self.tasks:
                names, hint = abbreviated(self.tasks, 30), did_you_mean(name, self.tasks)
                raise UserError(f"--only {name}: {self.path.stem} has {names}.{hint}")
        ordered: dict[str, SuiteTask] = {}
        for name in only or self.tasks:
            chain = [name]
            while (start := self.tasks[chain[-1]].start) is not None:
                if start not in self.tasks or start in chain:
                    problem = "which is no task of the suite, or starts from it"
                    raise UserError(f"{self.path}: {chain[-1]} starts from {start}, {problem}.")
                chain.append(start)
            ordered |= {key: self.tasks[key] for key in reversed(chain) if key not in ordered}
        return list(ordered.values())


def load_suite(path: str | Path, model: str | None = None) -> Suite:
    """Read and check a suite: a file, or the name of a packaged one, such as ``glue``.

    The last part of ``model`` replaces ``{model}`` in the names of recipes if the suite lists it
    under ``models``, else the first of ``models`` does.

    Raises:
        UserError: A key or value is illegal, a recipe is missing or wrong, or tasks start from each
            other.
    """
    path, content, where = open_recipe(path)

    def typed(what: str, hints: Mapping[str, Any], entry: Any, *above: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in (entry if isinstance(entry, dict) else {}).items():
            values |= typed_values(where(*above, key), f"key {{!r}} of {what}", hints, {key: value})
        return values

    listed = content.pop("tasks", None)
    values = typed("a suite", SUITE_KEYS, content)
    models = values.get("models", ())
    last = (model or "").rstrip("/").split("/")[-1]
    chosen = last if last in models else next(iter(models), "")
    if not isinstance(listed, dict) or not listed or "title" not in values:
        raise UserError(f"{path}: a suite needs a `title`, and `tasks`, each with a `recipe`.")
    tasks = {}
    for name, entry in listed.items():
        if not re.fullmatch(r"\w[\w.-]*", name) or name in ("suite.md", RESULTS_FILE):
            problem = "is no plain name: use letters, digits, -, . and _"
            raise UserError(f"{where('tasks', name)}: {name!r} {problem}.")
        keys = typed("a task of the suite", TASK_KEYS, entry, "tasks", name)
        tasks[name] = _suite_task(path, name, keys, chosen, where)
    suite = Suite(path=path, tasks=tasks, **values)
    suite.order()
    return suite


def _suite_task(
    path: Path, name: str, values: dict[str, Any], model: str, where: Callable[..., str]
) -> SuiteTask:
    at = where("tasks", name)
    if "recipe" not in values:
        raise UserError(f"{at}: {name} has no recipe: write `{name}: {{recipe: nli/rte-minilm}}`.")
    for key in values.keys() & {"recipe", "published"}:
        line, named = where("tasks", name, key), values[key].replace("{model}", model)
        beside = path.parent / named
        try:
            values[key] = load_recipe(beside if beside.is_file() else named)
        except UserError as error:
            raise UserError(f"{line}: {error}") from error
    recipe: Recipe = values["recipe"]
    scores = []
    for text in values.pop("scores", ()):
        split, _, metric = text.partition(" ")
        legal = metrics_of(recipe.task)
        if not is_split(split) or metric.partition(":")[0] not in legal:
            line, hint = where("tasks", name, "scores"), did_you_mean(metric, legal)
            raise UserError(f"{line}: {text!r} must be SPLIT METRIC, as `test accuracy`.{hint}")
        scores.append((split, metric))
    scores = scores or [*dict.fromkeys((e.split, e.metric) for e in recipe.expected)]
    if not scores:
        raise UserError(f"{at}: {name} has no scores: list some as `scores: [test accuracy]`.")
    return SuiteTask(name=name, start=values.pop("from", None), scores=scores, **values)


def suite_lines(path: Path) -> Iterator[str]:
    """Yield the line on a suite for a list of recipes."""
    suite = load_suite(path)
    yield f"suite: {suite.title}" + (f": {suite.description}" if suite.description else "")
