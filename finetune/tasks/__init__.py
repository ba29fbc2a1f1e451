"""Tasks: inputs, losses, and the way from logits to predictions and scores."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import finetune
from finetune.config.expected_scores import metrics_of
from finetune.config.tasks import (
    CONFIGS,
    TextConfig,
    TrainConfig,
    affects_of,
    from_settings,
    settings,
    with_current_names,
)
from finetune.data.json_files import check_types, read_object
from finetune.models.loading import is_hub_id, local_model, resolve_model
from finetune.registry import TASKS, imported
from finetune.runtime.files import write_text
from finetune.runtime.memory import without_garbage_collection
from finetune.types import LabelSet, UserError, abbreviated

if TYPE_CHECKING:
    from finetune.data import Dataset
    from finetune.models.warm_start import WarmStart
    from finetune.preprocessing.tokenizer import SubwordTokenizer
    from finetune.tasks.base import Task

_log = logging.getLogger("finetune")

TASK_FILE = "finetune.json"
"""File in the folder of a saved model with the task's state."""
_FORMAT = 1
"""Version of that file."""


def task_class(name: str) -> type[Task]:
    """Import the class of a task."""
    return imported(TASKS[name].task)  # type: ignore[no-any-return]


def load_task(config: TrainConfig, name: str, data: Any = None) -> tuple[Task, Dataset]:
    """Read the data, derive the labels and load the tokenizer.

    Args:
        config: The settings.
        name: The name of the task, such as ``"classify"``.
        data: Replaces ``config.data``: a ``Dataset`` of examples, or any data that ``read_text``
            takes.

    Returns:
        The task and the prepared data: labels mapped, a validation split held out if there was
        none, and notes on all changes.

    Raises:
        UserError: Data, settings and model do not fit.

    Examples:
        >>> config = ClassifyConfig(model="minilm", data="reviews/")  # doctest: +SKIP
        >>> task, data = load_task(config, "classify")  # doctest: +SKIP
    """
    from finetune.tasks.definition import starting_config

    starting_config(config)  # reports a wrong model before data are read or downloaded
    with without_garbage_collection():
        load = imported(TASKS[name].load)
        return load(task_class(name), config, data)  # type: ignore[no-any-return]


def saved_task(folder: str | Path) -> Task:
    """Load the task of a saved model.

    Args:
        folder: A run folder, the folder of a model, or its hub id. A model that another library has
            saved tells its task in ``config.json``.
    """
    from finetune.preprocessing.tokenizer import SubwordTokenizer
    from finetune.tasks.model_config import task_of_config

    path = model_folder(folder) / TASK_FILE
    if not path.is_file():
        return task_of_config(path.parent)
    types = {"config": dict, "labels": list[str], "max_length": int, "extra": dict}
    content = read_object(path, {"task": Literal[*TASKS], "finetune": str | None, **types})
    if (version := content.get("format", _FORMAT)) != _FORMAT:
        raise UserError(
            f"{path}: has format {version}, and this version of finetune reads format {_FORMAT}: "
            "use the version that wrote it."
        )
    name = content["task"]
    task = task_class(name)
    hints = get_type_hints(task.state_class)
    extra: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in content["extra"].items()
        if name in hints  # others are of old runs
    }
    check_types(path, extra, {name: hints[name] for name in extra})
    try:
        config = _saved_config(path, CONFIGS[name], content["config"])
        has_metric = (config.metric or "").partition(":")[0] in metrics_of(name)
        metric = config.metric if has_metric or not config.custom_metrics else None
        # no file with code of the training is executed again
        config = replace(config, custom_metrics=(), custom_loss=None, metric=metric)
        labels, max_length = LabelSet(content["labels"]), content["max_length"]
        state = task.state_class(config=config, labels=labels, max_length=max_length, **extra)
    except (UserError, TypeError) as error:  # TypeError for unknown and missing fields
        raise UserError(
            f"{path}: damaged, or of another version of finetune ({error}): restore it from its "
            "source, or use the version that wrote it."
        ) from error
    model = path.with_name("config.json")
    class_names: dict[str, Any] = {"id2label": dict | None}
    names = (read_object(model, class_names).get("id2label") if model.is_file() else None) or {}
    in_model = [str(names.get(str(index))) for index in range(len(names))]
    if state.labels and names and in_model != list(state.labels):
        raise UserError(
            f"{path}: its labels ({abbreviated(state.labels)}) differ from {model.name} "
            f"({abbreviated(in_model)}), so one of the files was changed: restore it."
        )
    tokenizer = SubwordTokenizer.saved(path.parent, words=config.description.words)
    return task_of(task, state, tokenizer)


def _saved_config(path: Path, type: type[TrainConfig], saved: Mapping[str, Any]) -> TrainConfig:
    marks, saved = affects_of(type), with_current_names(saved)
    if unknown := saved.keys() - marks.keys():
        _log.warning(
            "note: %s: this version of finetune has no setting %s, which is ignored for prediction",
            path,
            abbreviated(sorted(unknown)),
        )
    values = {name: value for name, value in saved.items() if name in marks}
    try:
        return from_settings(type, values)
    except UserError as error:
        # predictions depend on no setting that a student would not inherit
        kept = {name: value for name, value in values.items() if marks[name].inherited}
        config = from_settings(type, kept)
        _log.warning(
            "note: %s: the settings of its training are ignored for prediction, since this version "
            "of finetune refuses one: %s",
            path,
            error,
        )
        return config


def task_of(
    task: type[Task], state: Any, tokenizer: SubwordTokenizer, warm_start: WarmStart | None = None
) -> Task:
    """Make the task of a state, a tokenizer, and the trained model to begin with."""
    if isinstance(state.config, TextConfig) and state.config.few_shot:
        from finetune.tasks.few_shot import FewShotTask

        task = FewShotTask
    return task(state, tokenizer, warm_start)


def save_task(task: Task, folder: Path) -> None:
    """Write the tokenizer and the task's state into the folder of a model."""
    task.tokenizer.save_pretrained(folder)
    (folder / TASK_FILE).write_text(_task_text(task), encoding="utf-8")


def replace_state(task: Task, folder: Path) -> None:
    """Replace the task's state in the folder of a saved model."""
    write_text(folder / TASK_FILE, _task_text(task))


def _task_text(task: Task) -> str:
    content = {
        "format": _FORMAT,
        "finetune": finetune.__version__,
        "task": task.name,
        "labels": list(task.state.labels),
        "max_length": task.state.max_length,
        "extra": task.state.extra_fields(),
        "config": settings(replace(task.state.config, resume=False)),
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def model_folder(folder: str | Path) -> Path:
    """Find the folder of a saved model.

    ``folder`` holds the model, is a run folder with the model in ``best``, or is a hub id
    (``OWNER/NAME``, with ``@REVISION`` if not ``main``), whose files are downloaded unless they are
    cached. The model was saved by this toolkit, or by transformers with a trained head.
    """
    if not isinstance(folder, str | Path):
        raise UserError(
            f"{folder!r:.60} is no path: give the folder of a run (run.folder) or of a model, or a "
            "hub id (OWNER/NAME)."
        )
    name = str(folder)
    is_short_name = resolve_model(name) != name
    if not Path(name).is_dir() and (is_short_name or ("/" in name and is_hub_id(name))):
        folder = local_model(name)
    folder = Path(folder)
    for candidate in (folder, folder / "best"):
        if (candidate / TASK_FILE).is_file():
            return candidate
    if not folder.is_dir():
        problem = "this is a file" if folder.exists() else "no such folder"
        raise UserError(
            f"{folder}: {problem}. Give a run folder, the model inside it, or a hub id "
            "(OWNER/NAME)."
        )
    from finetune.tasks.model_config import architecture, has_trained_head  # they need torch

    if has_trained_head(folder):
        return folder
    if model_class := architecture(folder):
        raise UserError(
            f"{name}: {model_class} is an encoder without a trained head: it predicts no labels "
            f"and fills no masks. Train a head (finetune classify --model {name} --data …), or "
            "give a masked language model, such as roberta-base."
        )
    raise UserError(
        f"{folder}: no {TASK_FILE} in it or in {folder / 'best'}, and no config.json of a model "
        "with a trained head: train one, or wait for the first evaluation of its training."
    )


def find_saved_model(name: str, revision: str | None = None) -> Path | None:
    """Find the folder of a model that finetune has saved; None for another model.

    ``name`` is a run folder, a model folder, a hub id or a short name.
    """
    if not Path(name).is_dir() and is_hub_id(resolve_model(name)):
        if not (local_model(name, revision, weights=False) / TASK_FILE).is_file():
            return None
        return local_model(name, revision)
    folders = (Path(name), Path(name) / "best")
    return next((folder for folder in folders if (folder / TASK_FILE).is_file()), None)
