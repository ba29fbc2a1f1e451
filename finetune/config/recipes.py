"""Recipes: YAML files with a task's settings and the scores that these settings reach.

The keys of a recipe are the fields of the task's configuration, plus ``task``, ``description``
and ``expected`` (a list of scores with their source). The ``config.json`` of a run is a recipe too.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from finetune.config.expected_scores import EXAMPLE, Expected, read_expected
from finetune.config.tasks import (
    CONFIGS,
    IN_MEMORY,
    TrainConfig,
    affects_of,
    affects_results,
    flag,
    require_legal,
    setting_types,
    settings,
    with_current_names,
)
from finetune.config.values import converted, typed_values
from finetune.registry import SUITE_KEY
from finetune.types import UserError, abbreviated, did_you_mean

NONE_PUBLISHED = "none published"
"""The value of ``expected`` if no source reports a score for the settings of a recipe."""
OWN_KEYS = ("task", "description", "expected")
RUN_SETTINGS = "config.json"
"""File in a run folder with the settings of the run."""
METADATA = frozenset({"task", "fingerprint", "training_fingerprint", "precision_used"}) | {
    "epochs_used",
    "revision_used",
    "data_used",
    "num_processes",
    "teacher",
    "loss_function",
}
"""Keys of that file which are no settings."""
MAY_DIFFER = (
    "seed",
    *(name for name, mark in affects_of(TrainConfig).items() if mark.acts and not mark.weights),
)
"""Settings in which a run that follows a recipe may differ from it."""
SUITES = "suites"
"""Folder of recipes with the files that list recipes."""
MULTITASK = "multitask"
"""The ``task`` of a recipe for several tasks on one encoder."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The content of one recipe file; ``settings`` have the types of the fields."""

    path: Path
    task: str
    settings: Mapping[str, Any]
    description: str = ""
    expected: tuple[Expected, ...] = ()

    @property
    def run(self) -> Path | None:
        """The run whose settings these are; None for a recipe."""
        return self.path.parent if self.path.name == RUN_SETTINGS else None

    @property
    def name(self) -> str:
        """The name of the recipe's runs: its task and the name of its file."""
        return f"{self.task}-{self.run.name if self.run else self.path.stem}"

    def config(self) -> TrainConfig:
        """Build the configuration; UserError if a value is out of range."""
        try:
            return CONFIGS[self.task](**self.settings)
        except UserError as error:
            raise UserError(f"{self.path}: {error}") from error


@dataclass(frozen=True, slots=True)
class MultitaskRecipe:
    """Several tasks to train together on one encoder."""

    path: Path
    alpha: float
    """Exponent α of the share of each task in the steps: q_i = n_i^α / Σ n_j^α."""
    tasks: Mapping[str, tuple[str, TrainConfig]]
    """By name of the task: the command, such as ``nli``, and its settings."""


@dataclass(frozen=True, slots=True)
class RecipeRun:
    """The recipe that a run follows, and the settings in which the run differs from it."""

    recipe: Recipe
    differing: tuple[str, ...]

    def to_dict(self) -> dict[str, str]:
        """The name and path of the recipe, as JSON values."""
        return {"name": self.recipe.name, "path": str(self.recipe.path.absolute())}

    def check_splits(self, splits: Collection[str]) -> None:
        """Raise UserError if a score is expected on a split that the recipe's data lack."""
        if "data" in self.differing:
            return
        for entry in self.recipe.expected:
            if entry.split not in splits:
                raise UserError(
                    f"{self.recipe.path}: a score is expected on the split {entry.split!r}, but "
                    f"the data have {abbreviated(splits)}.{did_you_mean(entry.split, splits)}"
                )


def changed(saved: Mapping[str, Any], config: TrainConfig, *free: str) -> list[str]:
    """Find the settings that differ from a saved config.json and make scores incomparable.

    A missing setting counts as its default; settings in ``free`` may differ.
    """
    before = {**settings(type(config)()), **saved}
    now = settings(config)
    compared = [name for name in now if affects_results(name) and name not in free]
    return [name for name in compared if before[name] != now[name]]


def packaged_path(name: str) -> Path:
    """Locate a file or folder of the distribution: in the package, or at the top of a checkout."""
    package = Path(str(resources.files("finetune")))
    installed = package / name
    return installed if installed.exists() else package.parent / name


def local_path(spec: str | Path) -> Path:
    """Resolve a path of the user, ``examples/data/…`` also from the distribution."""
    path = Path(spec).expanduser()
    if path.parts[:2] == ("examples", "data") and not path.exists():
        path = packaged_path("examples").joinpath(*path.parts[1:])
    return path


def recipe_text(task: str, config: TrainConfig, description: str) -> str:
    """Write a recipe as YAML, with the settings that differ from the defaults of the task."""
    import yaml

    defaults, of_command = settings(CONFIGS[task]()), affects_of(CONFIGS[task])
    differing = {
        name: value
        for name, value in settings(config).items()
        if name in ("model", "data") or (value != defaults[name] and not of_command[name].acts)
    }
    content = {"task": task, "description": description, **differing}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


def find_recipes(folder: str | Path) -> list[Path]:
    """Find all recipe files below a folder, sorted; a missing `recipes` is the packaged one.

    Files in a folder ``suites`` list recipes, and are none (``find_suites``).
    """
    return [path for path in _yaml_files(folder) if path.parent.name != SUITES]


def find_suites(folder: str | Path) -> list[Path]:
    """Find all files below a folder that list recipes; ``find_recipes`` returns the others."""
    return [path for path in _yaml_files(folder) if path.parent.name == SUITES]


def _yaml_files(folder: str | Path) -> list[Path]:
    folder = Path(folder)
    if not folder.exists() and folder == Path("recipes"):
        folder = packaged_path("recipes")
    return sorted(folder.rglob("*.yaml"))


def is_suite(path: str | Path) -> bool:
    """Whether a file lists recipes."""
    _, content, _ = open_recipe(path)
    return SUITE_KEY in content and "task" not in content


def is_multitask(path: str | Path) -> bool:
    """Whether a file is a recipe for several tasks on one encoder."""
    return open_recipe(path)[1].get("task") == MULTITASK


def load_recipe(path: str | Path) -> Recipe:
    """Read and check a recipe: a file, or the name of a packaged one, such as ``cola-minilm``.

    The settings of a run (a run folder, or its ``config.json``) are a recipe too.
    """
    path, content, where = open_recipe(path)
    task = content.get("task")
    if path.name == RUN_SETTINGS:
        return _recipe_of_run(path, with_current_names(content), where)
    if task == MULTITASK:
        raise UserError(
            f"{path} trains several tasks on one encoder, and a recipe of one task is needed here: "
            f"write one for each of its tasks, or train them together: finetune run {path}"
        )
    if task is None and SUITE_KEY in content:
        raise UserError(f"{path} lists recipes, and is none: finetune run {path}")
    if task is None:
        near = next(
            (hint for key in content if (hint := did_you_mean(key, ("task", SUITE_KEY)))), ""
        )
        raise UserError(
            f"{path}: names no `task`, as a recipe does, and has no {SUITE_KEY}, as a list of "
            f"recipes has.{near}"
        )
    if not isinstance(task, str) or task not in CONFIGS:
        raise UserError(
            f"{where('task')}: task is {task!r}, legal are {', '.join(CONFIGS)}."
            f"{did_you_mean(str(task), CONFIGS)}"
        )
    values = {key: value for key, value in content.items() if key not in OWN_KEYS}
    expected = content.get("expected") or []
    if expected == NONE_PUBLISHED:
        expected = []
    if not isinstance(expected, list):
        raise UserError(
            f"{where('expected')}: `expected` must be a list of scores, such as {EXAMPLE}, or the "
            f"words {NONE_PUBLISHED!r}, not {expected!r:.60}."
        )
    scores = tuple(
        read_expected(where("expected", n), task, values.get("problem"), entry)
        for n, entry in enumerate(expected)
    )
    return Recipe(
        path,
        task,
        _with_own_data(path, _typed_settings(where, task, values)),
        str(content.get("description", "")).strip(),
        scores,
    )


def _recipe_of_run(path: Path, content: dict[str, Any], where: Callable[..., str]) -> Recipe:
    task = content.get("task")
    if not isinstance(task, str) or task not in CONFIGS or "fingerprint" not in content:
        raise UserError(f"{path}: not the settings of a run: name the config.json of a run folder.")
    marks, readme = affects_of(CONFIGS[task]), path.with_name("README.md")
    loss = f"had the loss {content.get('loss_function')} of Python"
    in_file = f"which {marks['custom_loss'].acts} and is no setting of a file"
    for key, had, repeat, out in (
        ("teacher", "learned from a teacher", "the `finetune distill` command", "--out"),
        ("loss_function", loss, "the call", "out"),
        ("custom_metrics", f"had --custom-metrics, {in_file}", "the command", "--out"),
        ("custom_loss", f"had --custom-loss, {in_file}", "the command", "--out"),
    ):
        if content.get(key):
            raise UserError(
                f"{path}: the run {had}: repeat {repeat} in {readme} with another {out}."
            )
    if content.get("data") == IN_MEMORY:
        raise UserError(
            f"{path}: the run was trained on data in memory, which it does not keep: save the data "
            f"to a file, and train with `finetune {task} --data FILE`."
        )
    of_command = {name for name, mark in marks.items() if mark.acts}
    values = {name: value for name, value in content.items() if name not in METADATA | of_command}
    typed = _typed_settings(where, task, values)
    return Recipe(path, task, typed, f"The settings of the run {path.parent}.")


def load_multitask(path: str | Path, **overrides: Any) -> MultitaskRecipe:
    """Read and check a recipe for several tasks on one encoder.

    Its key ``tasks`` has the settings of each task by a name of your choice, with the command in
    ``task``. Settings above ``tasks`` apply to all tasks; ``overrides`` replace them.
    """
    path, content, where = open_recipe(path)
    if (task := content.get("task")) != MULTITASK:
        raise UserError(f"{where('task')}: task is {task!r}, and not {MULTITASK}: finetune run it.")
    entries = content.get("tasks")
    if not isinstance(entries, dict) or len(entries) < 2:
        raise UserError(
            f"{where('tasks')}: `tasks` must have two or more names, each with the settings of a "
            "task, such as `questions: {task: classify, data: questions.csv}`."
        )
    overrides = {key: value for key, value in overrides.items() if value is not None}
    alpha = converted(f"{where('alpha')}: alpha", content.get("alpha", 0.5), float)
    alpha = overrides.pop("alpha", alpha)
    common = {k: v for k, v in content.items() if k not in (*OWN_KEYS, "alpha", "tasks")}
    tasks = {}
    for name, values in entries.items():
        task = values.get("task") if isinstance(values, dict) else None
        if not isinstance(task, str) or task not in CONFIGS or not CONFIGS[task].description.joint:
            raise UserError(
                f"{where('tasks', name)}: the task of {name} is {task!r}, legal are "
                f"classify, nli, tag, ner."
            )
        if not re.fullmatch(r"\w[\w.-]*", name) or name == "last":
            raise UserError(
                f"{where('tasks', name)}: {name!r} names a folder: use letters, digits, - and _."
            )
        shared = {key: value for key, value in values.items() if key != "task"}
        typed = {
            **_typed_settings(where, task, common, alone=False),
            **_typed_settings(where, task, shared, "tasks", name, alone=False),
        }
        try:
            config = CONFIGS[task](**_with_own_data(path, {**typed, **overrides}))
        except UserError as error:
            raise UserError(f"{where('tasks', name)}: {error}") from error
        tasks[name] = (task, config)
    return MultitaskRecipe(path, alpha, tasks)


def open_recipe(path: str | Path) -> tuple[Path, dict[str, Any], Callable[..., str]]:
    """Read a recipe: its path, its content, and the function that locates keys in it.

    ``path`` is a file, a run folder, or the name of a packaged recipe. Raises UserError for a
    missing file and for text that is not the YAML of a mapping.
    """
    path = Path(path)
    path = path / RUN_SETTINGS if (path / RUN_SETTINGS).is_file() else _locate(path)
    if not path.is_file():
        if inside := sorted(log.parent for log in path.glob("*/log.jsonl")):
            raise UserError(f"{path}: holds several runs: name one of them, such as {inside[0]}.")
        names = [file.stem for file in packaged_path("recipes").rglob("*.yaml")]
        hint, listing = did_you_mean(path.stem, names), "`finetune run` lists the recipes"
        if any(path.stem in name for name in names):
            listing = f"`finetune run --only {path.stem}` lists those with this text"
        raise UserError(f"{path}: no such recipe file.{hint} {listing}.")
    content, lines = _read(path)

    def where(*keys: Any) -> str:
        return f"{path}:{lines[keys]}" if keys in lines else str(path)

    return path, content, where


def _with_own_data(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    def absolute(file: str) -> str:
        beside = path.parent / file
        return str(beside.resolve()) if file and beside.exists() else file

    if values.get("test_sets"):
        named = (item.partition("=") for item in values["test_sets"])
        test_sets = tuple(name + mark + absolute(file) for name, mark, file in named)
        values = {**values, "test_sets": test_sets}
    data = values.get("data")
    if not data:
        return values
    if (path.parent / data).exists():
        return {**values, "data": absolute(data)}
    items = []
    for item in re.split(r",(?=\s*\w+=)", data):  # train=FILE,test=FILE+FILE
        split, mark, files = item.partition("=") if "=" in item else ("", "", item)
        items.append(split + mark + "+".join(map(absolute, files.split("+"))))
    return {**values, "data": ",".join(items)}


def _locate(path: Path) -> Path:
    if path.is_file() or path.is_absolute():
        return path
    inside = path.relative_to("recipes") if path.parts[:1] == ("recipes",) else path
    name = inside.name if inside.suffix == ".yaml" else f"{inside.name}.yaml"
    folder = packaged_path("recipes")
    files = sorted(folder.rglob(glob.escape(str(inside.parent / name))))
    if len(files) > 1:
        listed = " or ".join(str(other.relative_to(folder).with_suffix("")) for other in files)
        raise UserError(f"{path}: several recipes have that name: write {listed}.")
    return files[0] if files else path


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple[Any, ...], int]]:
    import yaml

    # 8 times faster, where it is built
    loader_class: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        loader = loader_class(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        lines = dict(_lines(path, node, nodes=set()))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8: convert the file.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UserError(f"{path}{line}: not valid YAML: {problem}.") from error
    try:
        content = node and loader.construct_document(node)
    except (yaml.YAMLError, ValueError, TypeError) as error:  # a value, such as an impossible date
        problem = " ".join(str(error).split())
        raise UserError(f"{path}: not valid YAML: {problem:.100}.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: a recipe is a mapping of settings, such as `task: nli`.")
    return content, lines


def _lines(
    path: Path, node: Any, above: tuple[Any, ...] = (), *, nodes: set[int]
) -> Iterator[tuple[Any, int]]:
    node_type = getattr(node, "id", None)
    seen = set()
    for number, item in enumerate(node.value if node_type in ("mapping", "sequence") else ()):
        key, value = item if node_type == "mapping" else (item, item)
        name = key.value if node_type == "mapping" else number
        line = key.start_mark.line + 1
        if node_type == "mapping" and key.tag.rpartition(":")[2] != "str":
            raise UserError(
                f"{path}:{line}: the key {name} is no text in YAML (as no, on and 1 are none): "
                f'write it in quotes, "{name}".'
            )
        if node_type == "mapping" and name in seen:
            raise UserError(f"{path}:{line}: the key {name!r} occurs twice: keep one.")
        if id(value) in nodes:  # a few nested aliases are billions of values
            problem = "an anchor (&), whose aliases are not read: write the value again"
            raise UserError(f"{path}:{value.start_mark.line + 1}: {problem}.")
        nodes.add(id(value))
        seen.add(name)
        yield (*above, name), line
        yield from _lines(path, value, (*above, name), nodes=nodes)


def _typed_settings(
    where: Callable[..., str], task: str, values: Mapping[str, Any], *above: str, alone: bool = True
) -> dict[str, Any]:
    config = CONFIGS[task]
    hints, affects = setting_types(config), affects_of(config)
    what = f"setting {{!r}} for task {task}"
    typed = dict[str, Any]()
    for key, value in values.items():
        location = where(*above, key)
        typed |= typed_values(location, what, hints, {key: value})
        if affects[key].acts and typed[key] != getattr(config, key):
            advice = f", and if you want it, write {written(key, typed[key])} in the command"
            if not alone and key not in ("out", "resume"):
                advice = f"; a run of several tasks has no {flag(key)}"
            raise UserError(
                f"{location}: a file cannot set {key}, which {affects[key].acts}: remove it"
                f"{advice}."
            )
    return typed


def written(name: str, value: Any) -> str:
    """Format a setting as it is written in a command."""
    words = value if isinstance(value, tuple) else () if value is True else (str(value),)
    return " ".join((flag(name), *map(shlex.quote, words)))


def typed_setting(task: str, name: str, text: str) -> Any:
    """Parse the text of a setting's value; UserError if it has another type, or is illegal."""
    value = converted(flag(name), text, setting_types(CONFIGS[task])[name], text=True)
    require_legal(CONFIGS[task], {name: value})
    return value
