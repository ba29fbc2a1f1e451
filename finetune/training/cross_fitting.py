"""Every training example answered by a model that did not learn from it, nor from its like.

The data are dealt into folds; for each fold a model is trained on the others and answers it. What
it says of each example is kept as JSON values ("evidence"): for a text the probability of each
class, for words that of each tag, for spans the answers and the probability of each gold span.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from finetune.config.tasks import RESULT_FREE, TagConfig, TrainConfig, settings
from finetune.data import Dataset, assign_folds, hold_out
from finetune.inference.loop import predict
from finetune.runtime.launch import make_accelerator
from finetune.runtime.progress import Reporter, clock
from finetune.runtime.signals import Interrupted
from finetune.tasks import load_task, task_class
from finetune.tasks.base import Task
from finetune.training.run_folder import is_run
from finetune.training.trainer import fit
from finetune.types import (
    Example,
    Prediction,
    SpanPrediction,
    TextExample,
    TextPrediction,
    TokenExample,
    TokenPrediction,
    UserError,
)


@dataclass(frozen=True)
class CrossFit:
    """The training examples that have gold, and what was said of each by the model that had not
    seen it."""

    task: Task
    examples: list[Any]
    evidence: list[Any]


def cross_fit(
    name: str, config: TrainConfig, number: int, work: Path, reporter: Reporter | None = None
) -> CrossFit:
    """Train and ask ``number`` models in the folder ``work``, which keeps finished folds, and
    where an unfinished one goes on.

    Raises ValueError where labels are numbers, or where that folder has folds of other data or
    settings, and Interrupted after Ctrl-C.
    """
    reporter = reporter or Reporter()
    if isinstance(config, TagConfig):
        config = replace(config, crf=False, crf_lr=None)  # a CRF has no probabilities of all tags
    raw = task_class(name).read(config)
    task, data = load_task(config, name, raw)
    own_validation = any(split.startswith("validation") for split in raw.splits)
    held_out = [] if own_validation else data.splits["validation"]
    first = data.splits["train"][0]
    if isinstance(first, TextExample) and isinstance(first.label, float):
        raise UserError(
            "--label-errors finds wrong classes, tags and spans, and the labels of "
            f"{config.data} are numbers."
        )
    together = (*data.splits["train"], *held_out)
    examples = [replace(example, id=index) for index, example in enumerate(together)]
    folds = assign_folds(examples, number, config.seed)
    _claim(work, {"task": name, "folds": number, "data": data.fingerprint, **_lasting(config)})
    validation = data.splits["validation"] if own_validation else None
    evidence: dict[int, Any] = {}
    seconds: list[float] = []
    for fold in range(number):
        file = work / f"fold-{fold + 1}.jsonl"
        if not file.exists():
            left = ""
            if seconds:
                left = f"; about {clock(np.mean(seconds) * (number - fold))} left in all"
            held = folds.count(fold)
            others = f"{len(examples) - held:,} examples"
            reporter.say(f"fold {fold + 1} of {number}: {held:,} asked, {others} learned{left}")
            start = time.monotonic()
            rest = [e for e, f in zip(examples, folds, strict=True) if f != fold]
            asked = [e for e, f in zip(examples, folds, strict=True) if f == fold]
            others_data = _data(raw.name, rest, validation)
            folder = work / f"fold-{fold + 1}"
            _write(file, _answered(task, others_data, config, asked, folder, reporter))
            seconds.append(time.monotonic() - start)
        evidence |= dict(_read(file))
    return CrossFit(task, examples, [evidence[example.id] for example in examples])


def _lasting(config: TrainConfig) -> dict[str, Any]:
    """The settings that must be the same for folds to belong together, as JSON values."""
    return {name: value for name, value in settings(config).items() if name not in RESULT_FREE}


def _claim(work: Path, facts: dict[str, Any]) -> None:
    """Note what the folds are of; refuse a folder of others."""
    path = work / "folds.json"
    if path.is_file() and json.loads(path.read_text(encoding="utf-8")) != facts:
        raise UserError(
            f"{work}: has folds of other data or settings: choose another --out, or delete it."
        )
    work.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=2), encoding="utf-8")


def _data(name: str, rest: Sequence[Example], validation: Sequence[Example] | None) -> Dataset:
    train = [replace(example, id=index) for index, example in enumerate(rest)]
    if validation is None:
        return hold_out(Dataset(name, {"train": train}))
    return Dataset(name, {"train": train, "validation": list(validation)})


def _answered(
    task: Task,
    data: Dataset,
    config: TrainConfig,
    asked: Sequence[Any],
    folder: Path,
    reporter: Reporter,
) -> Iterator[tuple[int, Any]]:
    """Train a model in a folder, which is removed in the end, and ask it."""
    config = replace(config, out=str(folder), resume=is_run(folder))
    accelerator = make_accelerator(config)
    if accelerator.num_processes > 1:
        raise UserError("--label-errors works in one process: start it without accelerate launch.")
    try:
        task = fit(task, data, config, accelerator, reporter).task
    except Interrupted as stopped:
        raise Interrupted(f"{folder.name}: {stopped}") from stopped
    head = task.head(folder / "best").to(accelerator.device)
    answers = predict(
        task, head, asked, accelerator, keep_log_probabilities=True, reporter=reporter,
        title=folder.name,
    )  # fmt: skip
    for example, answer in zip(asked, answers, strict=True):
        yield example.id, _evidence(task, example, answer)
    shutil.rmtree(folder)


def _evidence(task: Any, example: Any, answer: Prediction) -> Any:
    """What an answer says of its example, as JSON values."""
    if isinstance(answer, TextPrediction):
        return [(answer.scores or {})[label] for label in task.record.labels]
    if isinstance(answer, TokenPrediction):
        # without the temperature: at an end of its range it makes all doubts alike
        logs = np.asarray(answer.log_probabilities, dtype=float)
        chances = np.exp(logs - logs.max(-1, keepdims=True))
        return (chances / chances.sum(-1, keepdims=True)).round(6).tolist()
    assert isinstance(answer, SpanPrediction) and isinstance(example, TokenExample)
    scores = dict(answer.candidates)
    return {
        "spans": [[*span, score] for span, score in zip(answer.spans, answer.scores, strict=True)],
        "gold": [scores.get(span, 0.0) for span in example.spans or ()],
    }


def _write(file: Path, rows: Iterator[tuple[int, Any]]) -> None:
    """A file that appears when it is complete."""
    fresh = file.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    fresh.replace(file)


def _read(file: Path) -> Iterator[tuple[int, Any]]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            index, evidence = json.loads(line)
            yield index, evidence
