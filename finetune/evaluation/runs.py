"""What the name of a system stands for: the predictions of its runs, and the gold for them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from finetune.config.tasks import CONFIGS, TrainConfig, from_settings
from finetune.data import Dataset, hold_out
from finetune.evaluation.gold import Gold
from finetune.evaluation.predictions import has_gold_column
from finetune.tasks import task_class
from finetune.types import Example, TextExample, UserError, shortened

_PREDICTIONS = "predictions.{}.jsonl"


@dataclass(frozen=True)
class System:
    """A system as it was named, and the predictions of each of its runs."""

    name: str
    files: tuple[Path, ...]


def find_system(spec: str, split: str) -> System:
    """The predictions that a name stands for; raises ValueError where there are none."""
    parts = [spec] if Path(spec).exists() else [part.strip() for part in spec.split(",")]
    files = tuple(file for part in parts if part for file in _files_of(Path(part), split))
    if len({file.resolve() for file in files}) < len(files):
        raise UserError(f"{spec}: names the same predictions twice.")
    if not files:
        raise UserError(f"{spec!r} names no predictions: give a file or the folder of a run.")
    return System(spec, files)


def _files_of(path: Path, split: str) -> list[Path]:
    if not path.is_dir():
        return [path]
    name = _PREDICTIONS.format(split)
    if (path / name).is_file():
        return [path / name]
    if inside := sorted(path.glob(f"*/{name}"), key=_natural):
        return inside
    found = {file.name.split(".")[1] for pattern in ("", "*/")
             for file in path.glob(pattern + _PREDICTIONS.format("*"))}  # fmt: skip
    hint = f"; write --split {shortened(sorted(found))}" if found else ""
    raise UserError(f"{path}: no {name} in it or in its folders{hint}.")


def _natural(path: Path) -> tuple[int, str]:
    """Order in which seed-2 comes before seed-10."""
    return len(path.parent.name), path.parent.name


def find_gold(
    gold: str | None, columns: Mapping[str, str], systems: Sequence[System], split: str
) -> Gold:
    """Gold of a file, of a column of the predictions, or of the data that a run names."""
    if gold is not None:
        return Gold(gold, columns)
    if columns:
        role, name = next(iter(columns.items()))
        raise UserError(f"--columns {role}={name} is about a file of gold: add --gold FILE.")
    files = [file for system in systems for file in system.files]
    for file in files:
        if has_gold_column(file):
            return Gold(str(file), {"tags": "-2"}, format="conll")
    runs = [
        file.parent
        for file in files
        if file.name == _PREDICTIONS.format(split) and (file.parent / "config.json").is_file()
    ]
    if runs:
        return _gold_of_runs(runs, split)
    raise UserError(
        "there is no gold to compare with: predictions alone do not tell right from wrong; write "
        "--gold FILE."
    )


def _gold_of_runs(folders: Sequence[Path], split: str) -> Gold:
    """The examples that all runs were tested on; ValueError where they were tested on others."""
    by_data: dict[tuple[str, str], Path] = {}
    for folder in folders:
        content, config = _read_run(folder)
        data = content.get("fingerprint") or config.data
        by_data.setdefault((content["task"], data), folder)
    (task, _), first = next(iter(by_data.items()))
    gold = _tested_on(first, split)
    for (other_task, _), other in [*by_data.items()][1:]:
        found = _tested_on(other, split)
        same_form = other_task == task
        if not _same_examples(gold.examples, found.examples, same_form):
            raise UserError(
                f"{other} was tested on other examples, or by another gold ({found.name}), than "
                f"{first} ({gold.name}): only answers to the same can be compared."
            )
    return Gold(gold.name, examples=gold.examples, train=gold.train)


def _same_examples(one: Sequence[Example], other: Sequence[Example], same_form: bool) -> bool:
    """Whether both ask the same and, if their gold is of the same form, demand the same."""

    def facts(example: Example) -> tuple[object, ...]:
        if isinstance(example, TextExample):
            return example.text, example.pair, example.label
        return (example.words, example.tags, example.spans) if same_form else example.words

    return list(map(facts, one)) == list(map(facts, other))


class _Tested(NamedTuple):
    """The data of a run by name, and its examples of the split asked for and of training."""

    name: str
    examples: Sequence[Example]
    train: Sequence[Example]


def _tested_on(folder: Path, split: str) -> _Tested:
    """The examples that a run was tested on, read anew from the data it names."""
    content, config = _read_run(folder)
    data = _data_of_run(content["task"], config, folder / "config.json")
    if content.get("fingerprint") not in (None, data.fingerprint):
        raise UserError(
            f"{config.data}: changed since {folder} was trained on it: name the gold with --gold "
            "FILE."
        )
    if split not in data.splits:
        raise UserError(f"{config.data}: no split {split!r}, only {shortened(data.splits)}.")
    train = data.splits.get("train", [])[: config.limit]
    return _Tested(config.data, data.splits[split], train)


def _read_run(folder: Path) -> tuple[dict[str, Any], TrainConfig]:
    """What a run wrote down about itself, and its settings; ValueError where that is damaged."""
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kind = CONFIGS[content["task"]]
        fields = {field.name for field in dataclasses.fields(kind)}
        config = from_settings(kind, {key: content[key] for key in fields & {*content}})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: damaged, or of another version of finetune ({error!r:.100}): name the gold "
            "with --gold FILE."
        ) from error
    return content, config


def _data_of_run(task: str, config: TrainConfig, path: Path) -> Dataset:
    cls = task_class(task)
    try:
        return hold_out(cls.prepare(config, cls.open(config)))
    except ValueError as error:
        raise UserError(
            f"{error} ({path} names these data as gold; --gold FILE names others.)"
        ) from error
