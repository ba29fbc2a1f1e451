"""Predict every training example with a model that was not trained on it (k-fold).

Examples of one document or text share a fold.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from finetune.config.tasks import TrainConfig
from finetune.data import Dataset, assign_folds, hold_out
from finetune.data.examples import Examples
from finetune.evaluation.kinds import KINDS
from finetune.inference.loop import predict
from finetune.runtime.files import recover, write_text
from finetune.runtime.launch import make_accelerator
from finetune.runtime.progress import Reporter
from finetune.tasks import load_task, task_class
from finetune.tasks.base import Task
from finetune.training.optimizer import result_settings
from finetune.training.repeated_runs import require_runs_folder
from finetune.training.run_folder import open_run
from finetune.training.trainer import fit
from finetune.types import (
    TextPrediction,
    TokenPrediction,
    UserError,
    quantity,
)


@dataclass(frozen=True)
class OutOfFold:
    """Training examples, and for each the prediction of a model that was not trained on it.

    ``predictions`` has JSON values: for a text the probability of each class, for words the
    probability of each tag for each word, for spans the predicted spans and the probability of each
    gold span.
    """

    task: Task
    examples: list[Any]
    predictions: list[Any]


def cross_validate(
    name: str, config: TrainConfig, num_folds: int, work: Path, reporter: Reporter | None = None
) -> OutOfFold:
    """Train ``num_folds`` models of a task, each on all folds but one, and predict that fold.

    ``work`` holds the finished folds and the run in progress; the same call continues there.
    """
    reporter = reporter or Reporter()
    accelerator = make_accelerator(config)
    if accelerator.num_processes > 1:
        raise UserError("--label-errors runs in one process: start it without accelerate launch.")
    config = config.with_class_probabilities()
    raw = task_class(name).read(config, config.data)
    task, data = load_task(config, name, raw)
    validation = None
    examples = list(data.splits["train"])
    if given := sorted(split for split in raw.splits if split.startswith("validation")):
        validation = data.splits[given[0]]
    else:
        examples += data.splits.get("validation", [])  # held out of train
    if not KINDS[task.record.kind].classes:
        raise UserError(
            f"--label-errors needs classes, tags or spans: labels of {config.data} are numbers."
        )
    examples = [replace(example, id=index) for index, example in enumerate(examples)]
    folds = np.array(assign_folds(examples, num_folds, config.seed))
    facts = {"task": name, "folds": num_folds, "data": data.fingerprint} | result_settings(config)
    recover(work)
    require_runs_folder(work, "fold", facts)
    write_text(work / "folds.json", json.dumps(facts, indent=2))
    predictions: dict[int, Any] = {}
    for fold in range(num_folds):
        file = work / f"fold-{fold + 1}.jsonl"
        held_out = [examples[i] for i in np.flatnonzero(folds == fold)]
        rows = _saved_fold(file, held_out, reporter)
        if rows is None:
            others = [examples[i] for i in np.flatnonzero(folds != fold)]
            reporter.say(
                f"fold {fold + 1} of {num_folds}: training on {quantity(len(others), 'example')}, "
                f"predicting {len(held_out):,}"
            )
            splits = {"train": Examples(others).renumbered()}
            if validation is not None:
                splits["validation"] = validation
            fold_data = replace(raw.with_splits(splits), notes=[])
            if config.validation != "none":
                fold_data = hold_out(fold_data, config.validation_share)
            rows = _predict_fold(
                task, fold_data, config, held_out, file.with_suffix(""), accelerator, reporter
            )
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows.items())
            write_text(file, "".join(lines))
        shutil.rmtree(file.with_suffix(""), ignore_errors=True)
        predictions |= rows
    return OutOfFold(task, examples, [predictions[example.id] for example in examples])


def _saved_fold(file: Path, examples: Sequence[Any], reporter: Reporter) -> dict[int, Any] | None:
    if not file.exists():
        return None
    try:
        with file.open(encoding="utf-8") as lines:
            rows = dict(map(json.loads, lines))
    except (ValueError, TypeError):
        rows = {}
    if list(rows) != [example.id for example in examples]:
        reporter.say(f"{file} is damaged: the fold is trained again")
        return None
    return rows


def _predict_fold(
    task: Task,
    data: Dataset,
    config: TrainConfig,
    examples: Sequence[Any],
    folder: Path,
    accelerator: Accelerator,
    reporter: Reporter,
) -> dict[int, Any]:
    config = replace(config, out=str(folder))
    with open_run(config, accelerator) as opened:
        config = replace(config, resume=opened.run.is_run)
        task = fit(task, data, config, opened, reporter).task
    head = task.head(opened.best).to(accelerator.device)
    predicted = predict(
        task,
        head,
        examples,
        accelerator,
        keep_log_probabilities=True,
        reporter=reporter,
        title=folder.name,
    )
    pairs = zip(examples, predicted, strict=True)
    return {example.id: _json_values(task, example, each) for example, each in pairs}


def _json_values(task: Task, example: Any, predicted: Any) -> Any:
    if isinstance(predicted, TextPrediction):
        return [(predicted.scores or {})[label] for label in task.record.labels]
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
