"""Predict the test split of each fold of `--folds` with the model that was not trained on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from finetune.config.tasks import IN_MEMORY, settings
from finetune.data import Dataset
from finetune.data.dataset import fingerprint
from finetune.data.json_files import read_object
from finetune.data.preparation import read_data
from finetune.evaluation.prediction_types import TYPES
from finetune.evaluation.runs import RunFolder
from finetune.inference.loop import predict
from finetune.inference.predictor import Predictor
from finetune.runtime.progress import Reporter
from finetune.tasks import saved_task, task_class
from finetune.tasks.base import Task
from finetune.training.repeated_runs import fold_data, train_split
from finetune.types import TextPrediction, TokenPrediction, UserError


@dataclass(frozen=True)
class OutOfFold:
    """Training examples, and for each the prediction of a model that was not trained on it.

    ``predictions`` has for a text the probability of each class, for words the probability of each
    tag for each word, for spans the predicted spans and the probability of each gold span.
    """

    task: Task
    examples: list[Any]
    predictions: list[Any]


def predict_folds(folder: Path, reporter: Reporter) -> OutOfFold:
    """Predict every training example of a folder of `--folds` with the model of its fold.

    Of several repeats it is the first one. Raises UserError if a fold has no finished model, the
    data have changed, or the task has no probabilities of classes, tags or spans.
    """
    path = folder / "folds.json"
    if not path.is_file():
        raise UserError(
            f"{folder}: no folder of folds: train them, as in finetune classify --data FILE "
            "--folds 5 --out runs/folds, and give that folder."
        )
    types = {"folds": int, "seed": int, "hold_out": bool, "data": str}
    saved = read_object(path, types)
    if any(name not in saved for name in types) or saved["hold_out"]:
        raise UserError(f"{folder}: not every example was in a test split: train with --folds 5.")
    runs = [folder / f"fold-1.{number}" for number in range(1, saved["folds"] + 1)]
    if unfinished := next((run for run in runs if not RunFolder.open(run).is_finished), None):
        raise UserError(f"{unfinished}: the fold is not finished: the training command continues.")
    first = saved_task(runs[0] / "best")
    if not first.description.label_errors:
        raise UserError(f"{folder}: --label-errors does not apply to {first.name}.")
    if not TYPES[first.state.prediction_type].classes:
        raise UserError(f"{folder}: --label-errors needs classes, tags or spans, not numbers.")
    if settings(first.state.config).get("crf"):
        raise UserError(
            f"{folder}: a CRF has no probability of each tag: train the folds without --crf."
        )
    examples, predictions = list[Any](), list[Any]()
    for run, data in zip(runs, _fold_data(first, runs[0], saved), strict=True):
        model = Predictor(run, decide=False)
        task = model.task
        if task.state.labels != first.state.labels:
            raise UserError(f"{run}: has other labels than the other folds: write fewer --folds.")
        held_out = task_class(task.name).prepare(task.state.config, data).splits["test"]
        predicted = predict(
            task,
            model.model,
            held_out,
            model.accelerator,
            keep_log_probabilities=True,
            reporter=reporter,
            title=run.name,
        )
        examples += held_out
        pairs = zip(held_out, predicted, strict=True)
        predictions += [_probabilities(task, example, prediction) for example, prediction in pairs]
    return OutOfFold(first, examples, predictions)


def _fold_data(task: Task, run: Path, saved: Mapping[str, Any]) -> Iterator[Dataset]:
    config: Any = task.state.config
    if config.data == IN_MEMORY:
        raise UserError(f"{run}: was trained on data in memory: train on a file.")
    used = RunFolder.open(run).config.get("data_used") or config.data
    config = replace(config, resume=False, data=used)
    raw = read_data(task_class(task.name), config)
    examples = train_split(raw, config, "--label-errors")
    if fingerprint({"train": examples}) != saved["data"]:
        raise UserError(
            f"{raw.name}: changed since the training of {run.parent}: restore the data, or train "
            "the folds again."
        )
    for number in range(saved["folds"]):
        yield fold_data(raw, examples, saved["folds"], saved["seed"], number)


def _probabilities(task: Task, example: Any, predicted: Any) -> Any:
    if isinstance(predicted, TextPrediction):
        return [(predicted.scores or {})[label] for label in task.state.labels]
    if isinstance(predicted, TokenPrediction):
        # without the temperature: at the end of its range it makes all probabilities equal
        logs = np.asarray(predicted.log_probabilities, dtype=float)
        probabilities = np.exp(logs - logs.max(-1, keepdims=True))
        return (probabilities / probabilities.sum(-1, keepdims=True)).round(6).tolist()
    scores = dict(predicted.candidates)
    pairs = zip(predicted.spans, predicted.scores, strict=True)
    return {
        "spans": [[*span, score] for span, score in pairs],
        "gold": [scores.get(span, 0.0) for span in example.spans or ()],
    }
