"""Tasks: what each task encodes, its loss, and how logits become predictions and scores."""

from __future__ import annotations

import dataclasses
import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from finetune.config.tasks import CONFIGS, TextConfig, TrainConfig, from_settings, settings
from finetune.data.json_files import check_types, read_object
from finetune.runtime.files import write_text
from finetune.types import LabelSet, UserError, abbreviated

if TYPE_CHECKING:
    from finetune.data import Dataset
    from finetune.tasks.base import Task

TASKS = {
    "classify": "finetune.tasks.text_classification:TextClassificationTask",
    "nli": "finetune.tasks.text_classification:NliTask",
    "tag": "finetune.tasks.token_classification:TokenClassificationTask",
    "ner": "finetune.tasks.span_ner:SpanNerTask",
    "relations": "finetune.tasks.relations:RelationTask",
    "sentence": "finetune.tasks.sentence_encoder:SentenceTask",
    "pretrain": "finetune.tasks.pretraining:PretrainingTask",
}
"""Module and class of each task, imported on first use."""
FEW_SHOT_TASKS = {
    "classify": "finetune.tasks.few_shot:FewShotTask",
    "nli": "finetune.tasks.few_shot:FewShotNliTask",
}
"""The same for tasks with ``--few-shot``."""

TASK_FILE = "finetune.json"
"""File in the folder of a saved model with the task's record."""
FORMAT = 1
"""Version of that file."""


def task_class(name: str, *, few_shot: bool = False) -> type[Task]:
    """Import the class of a task."""
    module, _, attribute = (FEW_SHOT_TASKS if few_shot else TASKS)[name].partition(":")
    found: type[Task] = getattr(importlib.import_module(module), attribute)
    return found


def load_task(config: TrainConfig, name: str, data: Any = None) -> tuple[Task, Dataset]:
    """Read the data, derive the labels and load the tokenizer.

    ``data`` replaces ``config.data``: a ``Dataset`` of examples, or what ``read_text`` takes.

    Returns the task and the prepared data: labels mapped, a validation split held out if there was
    none, and notes on all changes. Raises UserError if data, settings and model do not fit.

    >>> config = ClassifyConfig(model="minilm", data="reviews/")  # doctest: +SKIP
    >>> task, data = load_task(config, "classify")  # doctest: +SKIP
    """
    few_shot = isinstance(config, TextConfig) and config.few_shot
    return task_class(name, few_shot=few_shot).load(config, data)


def saved_task(folder: str | Path) -> Task:
    """Load the task of a saved model from a run folder or the folder of the model."""
    from finetune.preprocessing.tokenizer import SubwordTokenizer

    path = model_folder(folder) / TASK_FILE
    types = {"config": dict, "labels": list[str], "max_length": int, "extra": dict}
    content = read_object(path, {"task": Literal[*TASKS], **types})
    if (version := content.get("format", FORMAT)) != FORMAT:
        raise UserError(
            f"{path}: has format {version}, and this version of finetune reads format {FORMAT}: "
            "use the version that wrote it."
        )
    task = task_class(content["task"], few_shot=content["config"].get("few_shot") is True)
    extra: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in content["extra"].items()
    }
    hints = get_type_hints(task.record_class)
    own = dataclasses.fields(task.record_class)[3:]
    defaults = {each.name: each.default for each in own if each.default is not dataclasses.MISSING}
    defaults |= {
        each.name: each.default_factory()
        for each in own
        if each.default_factory is not dataclasses.MISSING
    }
    check_types(path, defaults | extra, {each.name: hints[each.name] for each in own})
    if unknown := extra.keys() - hints.keys():
        raise UserError(
            f"{path}: damaged, or of another version of finetune: {min(unknown)!r} is unknown: use "
            "the version that wrote it."
        )
    try:
        record = task.record_class(
            config=from_settings(CONFIGS[task.name], content["config"]),
            labels=LabelSet(content["labels"]),
            max_length=content["max_length"],
            **extra,
        )
    except UserError as error:
        raise UserError(f"{path}: damaged ({error}): restore it from its source.") from error
    model = path.with_name("config.json")
    class_names: dict[str, Any] = {"id2label": dict | None}
    names = (read_object(model, class_names).get("id2label") if model.is_file() else None) or {}
    in_model = [str(names.get(str(index))) for index in range(len(names))]
    if record.labels and names and in_model != list(record.labels):
        raise UserError(
            f"{path}: its labels ({abbreviated(record.labels)}) are not those of {model.name} "
            f"({abbreviated(in_model)}), so one of the files was changed: restore it."
        )
    return task(record, SubwordTokenizer.saved(path.parent, words=task.reads_words))


def save_task(task: Task, folder: Path) -> None:
    """Write the tokenizer and the task's record into the folder of a model."""
    task.tokenizer.save_pretrained(folder)
    (folder / TASK_FILE).write_text(_record_text(task), encoding="utf-8")


def replace_record(task: Task, folder: Path) -> None:
    """Replace the task's record in the folder of a saved model."""
    write_text(folder / TASK_FILE, _record_text(task))


def _record_text(task: Task) -> str:
    content = {
        "format": FORMAT,
        "task": task.name,
        "labels": list(task.record.labels),
        "max_length": task.record.max_length,
        "extra": task.record.own_fields(),
        "config": settings(replace(task.record.config, resume=False)),
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def model_folder(folder: str | Path) -> Path:
    """Return the folder of the model: the given one, or ``best`` in it for a run folder."""
    folder = Path(folder)
    for candidate in (folder, folder / "best"):
        if (candidate / TASK_FILE).is_file():
            return candidate
    if not folder.exists():
        raise UserError(f"{folder}: no such folder. Give a run folder or the model inside it.")
    for run in sorted(folder.glob("*/best/" + TASK_FILE)):
        inner = run.parent.parent
        raise UserError(f"{folder} is a folder of runs: give one of them, for instance {inner}.")
    raise UserError(
        f"{folder}: no {TASK_FILE} in it or in {folder / 'best'}, so it has no model saved "
        "by finetune (or training has not reached the first evaluation)."
    )
