"""Recipes: a task's settings in a YAML file together with the scores they are known to reach.

A recipe's keys are the fields of the task's configuration, plus ``task``, ``description``,
``expected`` (a list of scores with their source) and ``smoke`` (overrides for a quick check). The
file's settings become command-line arguments that stand before the user's own, so that one typed
parser reads both and the command line wins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.config import CONFIGS, TrainConfig, flag
from finetune.types import perhaps, shortened

OWN_KEYS = ("task", "description", "expected", "smoke")


@dataclass(frozen=True, slots=True)
class Expected:
    """A score that the recipe is known to reach: ``value`` within ``tolerance``."""

    split: str
    metric: str
    value: float
    tolerance: float
    source: str
    source_checked: bool = True


@dataclass(frozen=True, slots=True)
class Recipe:
    """The content of one recipe file."""

    path: Path
    task: str
    settings: Mapping[str, Any]
    description: str = ""
    expected: tuple[Expected, ...] = ()
    smoke: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """The settings as command-line arguments."""
        return to_arguments(self.settings)


def load_recipe(path: str | Path) -> Recipe:
    """Read and check a recipe; raises ValueError that names the file, the key and the line."""
    import yaml

    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such recipe file. `finetune recipes` lists those there are.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: a recipe is a mapping of settings, such as `task: nli`.")
    task = content.get("task")
    if task not in CONFIGS:
        raise ValueError(
            f"{path}: task is {task!r}, legal are {', '.join(CONFIGS)}.{perhaps(str(task), CONFIGS)}"
        )
    settings = {key: value for key, value in content.items() if key not in OWN_KEYS}
    smoke = content.get("smoke") or {}
    _check_keys(path, task, settings)
    _check_keys(path, task, smoke)
    expected = tuple(_expected(path, entry) for entry in content.get("expected") or ())
    return Recipe(
        path, task, settings, str(content.get("description", "")).strip(), expected, smoke
    )


def find_recipes(folder: str | Path) -> list[Path]:
    """All recipe files below a folder, sorted."""
    return sorted(Path(folder).rglob("*.yaml"))


def to_arguments(settings: Mapping[str, Any]) -> list[str]:
    """A mapping of settings as command-line arguments."""
    arguments: list[str] = []
    for name, value in settings.items():
        if isinstance(value, bool):
            arguments.append(flag(name) if value else "--no-" + name.replace("_", "-"))
        elif isinstance(value, list | tuple):
            arguments += [flag(name), *map(str, value)]
        else:
            arguments += [flag(name), str(value)]
    return arguments


def verdict(expected: Expected, value: float) -> str:
    """``reproduced``, ``below`` or ``above``: a measured score against the recipe's claim."""
    if value < expected.value - expected.tolerance:
        return "below"
    return "above" if value > expected.value + expected.tolerance else "reproduced"


def _check_keys(path: Path, task: str, settings: Mapping[str, Any]) -> None:
    legal = [f.name for f in dataclasses.fields(CONFIGS[task])]
    for key in settings:
        if key not in legal:
            raise ValueError(
                f"{path}:{_line_of(path, str(key))}: unknown setting {key!r} for task {task}."
                f"{perhaps(str(key), legal)} Legal are {shortened(legal, 50)}."
            )


def _line_of(path: Path, key: str) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((n for n, line in enumerate(lines, 1) if line.strip().startswith(key)), 1)


def _expected(path: Path, entry: Any) -> Expected:
    legal = [f.name for f in dataclasses.fields(Expected)]
    needed = legal[:-1]
    if not isinstance(entry, dict) or not set(needed) <= set(entry) or not set(entry) <= set(legal):
        raise ValueError(
            f"{path}: each entry under `expected` has the keys {', '.join(needed)} "
            f"(and source_checked, if the source was not looked at), not {entry!r}."
        )
    return Expected(
        **{**entry, "value": float(entry["value"]), "tolerance": float(entry["tolerance"])}
    )


def config_class(task: str) -> type[TrainConfig]:
    """The configuration class of a task; raises ValueError for an unknown one."""
    if task not in CONFIGS:
        raise ValueError(
            f"unknown task {task!r}, legal are {', '.join(CONFIGS)}.{perhaps(task, CONFIGS)}"
        )
    return CONFIGS[task]
