"""Recipes: a task's settings in a YAML file together with the scores they are known to reach.

A recipe's keys are the fields of the task's configuration, plus ``task``, ``description``,
``expected`` (a list of scores with their source) and ``smoke`` (overrides for a quick check). The
file's settings become command-line arguments that stand before the user's own, so that one typed
parser reads both and the command line wins.
"""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from finetune.config.expected_scores import Expected, read_expected
from finetune.config.tasks import CONFIGS, RESULT_FREE, TrainConfig, flag, settings
from finetune.types import UserError, perhaps, shortened

OWN_KEYS = ("task", "description", "expected", "smoke")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The content of one recipe file."""

    path: Path
    task: str
    settings: Mapping[str, Any]
    description: str = ""
    expected: tuple[Expected, ...] = ()
    smoke: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False
    """Whether this is the quick check of a recipe, with its ``smoke`` settings."""

    @property
    def name(self) -> str:
        """The name of its runs where none is given: task and file."""
        return f"{self.task}-{self.path.stem}{'-smoke' if self.quick else ''}"

    def quickly(self) -> Recipe:
        """The recipe with its settings for a quick check, and runs of another name; raises
        ValueError where it has none."""
        if not self.smoke:
            raise UserError(
                f"{self.path} has no `smoke` settings for a quick check: add some, such as "
                "`smoke: {steps: 3}`, or leave --smoke out."
            )
        settings = {**self.settings, **self.smoke}
        return dataclasses.replace(self, settings=settings, quick=True)

    @property
    def arguments(self) -> list[str]:
        """The settings as command-line arguments."""
        return to_arguments(self.settings)


@dataclass(frozen=True, slots=True)
class Followed:
    """A recipe that a run follows, and the settings in which it does not."""

    recipe: Recipe
    differing: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Which recipe it is, to be found again."""
        return {"name": self.recipe.name, "path": str(self.recipe.path.absolute())}

    def check_splits(self, splits: Collection[str]) -> None:
        """Refuse a score of a split that the recipe's data do not have."""
        if "data" in self.differing:
            return
        for entry in self.recipe.expected:
            if entry.split not in splits:
                raise UserError(
                    f"{self.recipe.path}: a score is expected on the split {entry.split!r}, but "
                    f"the data have {shortened(splits)}.{perhaps(entry.split, splits)}"
                )


def follow(
    recipe: Recipe | None, config: TrainConfig, of_recipe: TrainConfig | None
) -> Followed | None:
    """How a configuration follows the recipe that it began with, if there is one."""
    if recipe is None or of_recipe is None:
        return None
    return Followed(recipe, tuple(changed(settings(config), of_recipe, "seed")))


def load_recipe(path: str | Path) -> Recipe:
    """Read and check a recipe; raises ValueError that names the file, the line and the key."""
    path = _located(Path(path))
    if not path.is_file():
        raise UserError(f"{path}: no such recipe file. `finetune recipes` lists those there are.")
    content, lines = _read(path)
    where = _Where(path, lines)
    task = content.get("task")
    if task not in CONFIGS:
        raise UserError(
            f"{where('task')}: task is {task!r}, legal are {', '.join(CONFIGS)}."
            f"{perhaps(str(task), CONFIGS)}"
        )
    settings = {key: value for key, value in content.items() if key not in OWN_KEYS}
    smoke = content.get("smoke") or {}
    if not isinstance(smoke, dict):
        raise UserError(f"{where('smoke')}: smoke is a mapping of settings, not {smoke!r}.")
    _check_settings(where, task, settings)
    _check_settings(where, task, smoke, "smoke")
    expected = content.get("expected") or []
    if not isinstance(expected, list):
        raise UserError(f"{where('expected')}: `expected` is a list of scores, not {expected!r}.")
    scores = tuple(
        read_expected(where("expected", n), task, settings.get("problem"), entry)
        for n, entry in enumerate(expected)
    )
    description = str(content.get("description", "")).strip()
    return Recipe(path, task, settings, description, scores, smoke)


def packaged() -> Path:
    """Return the folder of recipes: inside an installed package, or at the top of a checkout."""
    package = Path(str(resources.files("finetune")))
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def _located(path: Path) -> Path:
    """The file itself, or where there is none the packaged recipe of that path or bare name."""
    if path.is_file() or path.is_absolute():
        return path
    inside = path.relative_to("recipes") if path.parts[:1] == ("recipes",) else path
    name = inside.name if inside.suffix == ".yaml" else f"{inside.name}.yaml"
    found = sorted(packaged().rglob(glob.escape(str(inside.parent / name))))
    if len(found) > 1:
        listed = " or ".join(str(other.relative_to(packaged()).with_suffix("")) for other in found)
        raise UserError(f"{path}: there are several recipes of that name: write {listed}.")
    return found[0] if found else path


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple[Any, ...], int]]:
    """The content of a YAML file, and the line of every key and list item by its path."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines = dict(_lines(path, node))
        content = yaml.safe_load(text)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8: convert the file.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UserError(f"{path}{line}: not valid YAML: {problem}.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: a recipe is a mapping of settings, such as `task: nli`.")
    return content, lines


def _lines(path: Path, node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, int]]:
    """Paths of keys and items with their lines, from 1; ValueError for a key that stands twice."""
    kind = getattr(node, "id", None)
    seen = set()
    for number, item in enumerate(node.value if kind in ("mapping", "sequence") else ()):
        key, value = item if kind == "mapping" else (item, item)
        name = key.value if kind == "mapping" else number
        line = key.start_mark.line + 1
        if kind == "mapping" and name in seen:
            raise UserError(f"{path}:{line}: {name!r} stands twice: keep one.")
        seen.add(name if kind == "mapping" else number)
        yield (*above, name), line
        yield from _lines(path, value, (*above, name))


class _Where(NamedTuple):
    """``file:line`` of a key or item of a recipe."""

    path: Path
    lines: Mapping[tuple[Any, ...], int]

    def __call__(self, *keys: Any) -> str:
        return f"{self.path}:{self.lines[keys]}" if keys in self.lines else str(self.path)


def find_recipes(folder: str | Path) -> list[Path]:
    """All recipe files below a folder, sorted."""
    folder = Path(folder)
    if not folder.exists() and folder == Path("recipes"):
        folder = packaged()
    return sorted(folder.rglob("*.yaml"))


def to_arguments(settings: Mapping[str, Any]) -> list[str]:
    """A mapping of settings as command-line arguments."""
    arguments: list[str] = []
    for name, value in settings.items():
        if isinstance(value, bool):
            arguments.append(flag(name) if value else "--no-" + name.replace("_", "-"))
        elif isinstance(value, list | tuple):
            arguments += [flag(name), *map(str, value)]
        else:
            arguments.append(f"{flag(name)}={value}")  # a value may begin with a dash
    return arguments


def changed(saved: Mapping[str, Any], config: TrainConfig, *free: str) -> list[str]:
    """The settings that make scores incomparable and of which a saved configuration (as in a run's
    config.json) has other values; one it lacks had its default. ``free`` may differ."""
    names = [
        f.name for f in dataclasses.fields(config)
        if f.name not in RESULT_FREE and f.name not in free
    ]  # fmt: skip
    now, unset = settings(config), settings(type(config)())
    return [name for name in names if saved.get(name, unset[name]) != now[name]]


def _check_settings(where: _Where, task: str, values: Mapping[str, Any], *above: str) -> None:
    """Refuse keys that are no settings of the task, and values that no setting can have."""
    legal = [f.name for f in dataclasses.fields(CONFIGS[task])]
    for key, value in values.items():
        if key not in legal:
            raise UserError(
                f"{where(*above, key)}: unknown setting {key!r} for task {task}."
                f"{perhaps(str(key), legal)} Legal are {shortened(legal, 50)}."
            )
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, _SCALARS) for part in parts):
            raise UserError(f"{where(*above, key)}: {key} is a value or a list, not {value!r}.")


_SCALARS = (str, int, float, bool, type(None))
