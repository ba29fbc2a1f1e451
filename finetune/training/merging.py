"""Model soups: one model with the mean of the weights of several runs.

Wortsman et al. 2022, "Model soups: averaging weights of multiple fine-tuned models improves
accuracy without increasing inference time". The runs start from the same pretrained encoder and
have the same task, labels and data. They may differ in seed, schedule, optimizer, loss and tuning;
a run with ``--tuning lora`` takes part with its adapters merged, as it was saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import safe_open
from torch import Tensor

from finetune.config.tasks import IN_MEMORY, TrainConfig, changes_of, flag, settings
from finetune.data import Dataset
from finetune.evaluation.runs import RunFolder
from finetune.models.adapters import weight_numbers
from finetune.models.loading import library_errors
from finetune.runtime.device import place
from finetune.tasks import load_task, saved_task
from finetune.tasks.base import FITTED, Task
from finetune.training.data import training_data
from finetune.training.part import Part
from finetune.training.run_folder import open_log, require_free
from finetune.training.scoring import evaluate, sign_of
from finetune.training.trainer import FitResult, begin, finish, write_start
from finetune.types import UserError, abbreviated

Method = Literal["uniform", "greedy"]

OF_TRAINING = {"class_weights", "class_frequencies", *FITTED}
"""Fields of records that training derives or fits for itself."""


@dataclass(frozen=True)
class Parent:
    """A run whose weights take part."""

    run: RunFolder
    task: Task

    @property
    def name(self) -> str:
        """The folder, as the user wrote it."""
        return str(self.run.path)

    def state(self) -> dict[str, Tensor]:
        """Load the weights."""
        return dict(self.task.head(self.run.best).state_dict())


@dataclass(frozen=True)
class Soup:
    """The runs in a mean of weights, and their scores on validation."""

    used: tuple[str, ...]
    """The folders of the runs whose weights are in the mean."""
    split: str | None
    """The validation split; None if there is none."""
    metric: str
    """The metric that selects models."""
    scores: Mapping[str, float]
    """Score of each run alone; empty without validation."""
    score: float | None
    """Score of the mean."""


def open_parents(
    names: Sequence[str | Path], out: Path, method: Method
) -> tuple[list[Parent], dict[str, Any]]:
    """Open the runs, and check that the mean of their weights makes sense, and the folder ``out``.

    Returns:
        The runs, and the facts that the run of the mean records.

    Raises:
        UserError: There are fewer than two, a folder has no trained run, or two runs differ in
            task, encoder, tokenizer, labels, data, a setting of the model or the shape of a weight.
    """
    if method not in get_args(Method):
        raise UserError(f"the method must be uniform or greedy, not {method!r}.")
    merged = {"method": method, "runs": [str(Path(name)) for name in names]}
    require_free(RunFolder.open(out), merged)
    if len(names) < 2:
        raise UserError("merge needs two runs or more: name their folders.")
    runs = [RunFolder.open(Path(name)) for name in names]
    seen: dict[Path, RunFolder] = {}
    for run in runs:
        if not run.is_run or not run.best.is_dir():
            inner = sorted(path.parent for path in run.path.glob("*/best"))
            hint = f" It holds several runs: name them, such as {inner[0]}." if inner else ""
            raise UserError(
                f"{run.path}: there is no trained run (config.json and best/): name the folders of "
                f"finished runs.{hint}"
            )
        run.require_intact()
        if (other := seen.setdefault(run.path.resolve(), run)) is not run:
            raise UserError(f"{run.path} is the same run as {other.path}: name each run once.")
    first, *others = (saved_task(run.best) for run in runs)
    for run, task in zip(runs[1:], others, strict=True):
        _require_alike(runs[0], first, run, task)
    return [Parent(*pair) for pair in zip(runs, (first, *others), strict=True)], merged


def _require_alike(run: RunFolder, task: Task, other_run: RunFolder, other: Task) -> None:
    """Raise UserError with the first difference between two runs that excludes their mean."""
    one, two = run.path, other_run.path
    if task.name != other.name:
        raise UserError(
            f"{one} is a run of `finetune {task.name}`, and {two} of `finetune {other.name}`: "
            "merge runs of one task."
        )
    if (start := _start(run)) != (start_2 := _start(other_run)):
        raise UserError(
            f"{one} starts from {start}, and {two} from {start_2}: the mean of weights needs runs "
            "from the same pretrained encoder."
        )
    if not task.tokenizer.equals(other.tokenizer):
        raise UserError(
            f"{one} and {two} have different tokenizers: merge runs with the same tokenizer."
        )
    labels, labels_2 = task.record.labels, other.record.labels
    if [*labels] != [*labels_2]:
        parts = [
            f"only {folder} has {abbreviated(missing)}"
            for folder, missing in (
                (one, [name for name in labels if name not in labels_2]),
                (two, [name for name in labels_2 if name not in labels]),
            )
            if missing
        ]
        found = "; ".join(parts) or f"{one} and {two} have them in different orders"
        raise UserError(f"the labels of the runs differ: {found}: merge equal labels.")
    before, now = settings(task.record.config), settings(other.record.config)
    for name, mark in changes_of(type(task.record.config)).items():
        if mark.model and before[name] != now[name]:
            raise UserError(
                f"{one} was trained with {flag(name)} {before[name]}, and {two} with {now[name]}: "
                "merge runs whose models read and predict in the same way."
            )
    derived, derived_2 = (
        {**each.record.extra_fields(), "max_length": each.record.max_length}
        for each in (task, other)
    )
    for name in derived.keys() - OF_TRAINING:
        if derived[name] != derived_2[name]:
            raise UserError(
                f"{one} has {name} = {derived[name]!r}, by its data or settings, and {two} has "
                f"{derived_2[name]!r}: merge runs of equal models."
            )
    shapes, shapes_2 = _shapes(run.best), _shapes(other_run.best)
    for name in {**shapes, **shapes_2}:
        if (shape := shapes.get(name)) != (shape_2 := shapes_2.get(name)):
            raise UserError(
                f"{one} and {two} differ in the weight {name}: {shape or 'none'} and "
                f"{shape_2 or 'none'}: merge runs with equal architectures."
            )
    if _data(run) != _data(other_run):
        raise UserError(
            f"{one} and {two} were trained or validated on different data: merge runs of the same "
            "data, so that no run has trained on the validation data of another."
        )


def _start(run: RunFolder) -> str:
    """Return the pretrained encoder of a run, also if it began with another run."""
    for _ in range(100):  # no chain of runs is so long
        before = run.config.get("init_from")
        earlier = RunFolder.open(Path(before)) if before else None
        if earlier is None or not earlier.is_run:
            break
        run = earlier
    config = run.config
    name = str(config.get("init_from") or config.get("model") or config.get("config"))
    commit = config.get("revision_used")
    folder = Path(name)
    return str(folder.resolve()) if folder.exists() else f"{name}@{commit}" if commit else name


def _data(run: RunFolder) -> Any:
    """Return the fingerprint of the data without test splits."""
    return run.config["training_fingerprint"]


def seed_note(parents: Sequence[Parent]) -> str:
    """Return a note if the heads of the runs began with different random weights; else empty."""
    seeds = list(dict.fromkeys(parent.task.record.config.seed for parent in parents))
    if len(seeds) == 1:
        return ""
    return (
        f"the runs have different seeds ({', '.join(map(str, seeds))}), so that new heads began "
        "with different random weights, and their mean can score far below each run: merge runs of "
        "one seed with other settings, or use --method greedy"
    )


def parents_data(parents: Sequence[Parent], out: str, data: Any = None) -> tuple[Task, Dataset]:
    """Read the data of the runs again; return the task, with the record of the first run, and data.

    Raises:
        UserError: The data have changed.
    """
    first = parents[0]
    config: TrainConfig = first.task.record.config
    if data is None and config.data == IN_MEMORY:
        raise UserError(f"{first.name} was trained on data in memory: give data.")
    config = replace(config, out=out, resume=False, track="none", average="none")
    task, dataset = load_task(config, first.task.name, data)
    if _data(first.run) != dataset.training_fingerprint:
        raise UserError(
            f"{config.data}: differs from the data of {first.name}: restore the data, on which the "
            "runs are scored."
        )
    record = replace(first.task.record, config=config)
    return replace(task, record=record, tokenizer=first.task.tokenizer), dataset


def merge_runs(part: Part, parents: Sequence[Parent], method: Method) -> tuple[Soup, FitResult]:
    """Make the mean of the weights of runs, and save and score it as the model of a run.

    Args:
        part: The run of the result; its folder is opened, and its model is the first parent's.
        parents: The runs.
        method: See ``api.merge``.
    """
    begin(part)
    part.data = training_data(
        part.task, part.dataset, part.config, part.folder.accelerator, part.report
    )
    part.head = place(part.head, part.folder.accelerator.device)
    part.weights = weight_numbers(part.head)
    soup = _choose(part, parents, method)
    part.folder.merged = {**(part.folder.merged or {}), "used": list(soup.used)}
    write_start(part)
    open_log(part.folder.path / "log.jsonl", part.folder.accelerator, 0)
    part.folder.save_best(part.task, part.head)
    result = finish(part)
    result.merged = part.folder.merged
    return soup, result


def _choose(part: Part, parents: Sequence[Parent], method: Method) -> Soup:
    """Score each run alone and choose the runs of the mean; the model then has it."""
    metric, split = part.task.record.metric, part.data.validation
    if method == "greedy" and split is None:
        raise UserError("--method greedy needs validation data to choose runs by: use uniform.")
    sign = sign_of(part, metric)
    scores: dict[str, float] = {}
    for parent in parents if split is not None else ():
        scores[parent.name] = _score(part, [parent])
        part.reporter.say(f"{parent.name}: {split} {metric} {sign * scores[parent.name]:.4f}")
    used, best = list(parents), None
    if method == "greedy":
        ordered = sorted(parents, key=lambda parent: -scores[parent.name])  # stable
        used, best = ordered[:1], scores[ordered[0].name]
        for parent in ordered[1:]:
            score = _score(part, [*used, parent])
            verb = "with" if score >= best else "without"
            part.reporter.say(f"{verb} {parent.name}: {metric} {sign * score:.4f}")
            if score >= best:
                used, best = [*used, parent], score
    part.state.best_score = _score(part, used)
    return Soup(
        tuple(parent.name for parent in used),
        split,
        metric,
        {name: sign * score for name, score in scores.items()},
        None if split is None else sign * part.state.best_score,
    )


def _score(part: Part, parents: Sequence[Parent]) -> float:
    """Give the model the mean of the weights of runs, and return its score on validation."""
    part.head.load_state_dict(mean_state(parent.state() for parent in parents))
    found = evaluate(part)
    return math.nan if found is None else found.score


def mean_state(states: Iterator[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of weights, computed in float64; other tensors are the first model's.

    Args:
        states: The weights of each model, of the same names and shapes; one at a time is loaded.
    """
    first = dict(next(states))
    total = {
        name: value.to(torch.float64, copy=True)
        for name, value in first.items()
        if value.is_floating_point()
    }
    number = 1
    for state in states:
        number += 1
        for name, value in total.items():
            value += state[name]
    means = {name: (value / number).to(first[name].dtype) for name, value in total.items()}
    return {**first, **means}


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of a saved model, without reading the weights."""
    found: dict[str, tuple[int, ...]] = {}
    with library_errors(str(folder), folder):
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(str(path), framework="pt") as file:
                found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    return found
