"""The scores of a part of a run: evaluations during training, and the scores of the best model."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from finetune.config.metric_facts import facts_of
from finetune.data import WITHOUT_LEAKS, leaked
from finetune.evaluation.custom_metrics import custom_scores
from finetune.inference.loop import predict
from finetune.models.adapters import plain_layers
from finetune.runtime.device import place
from finetune.runtime.launch import on_main_process
from finetune.tasks import save_task, saved_task
from finetune.tasks.base import Task
from finetune.tasks.calibration import calibrate, compared_values
from finetune.training.callbacks import EvaluationEvent, SaveEvent, tell
from finetune.training.part import Part
from finetune.types import Example, Prediction, UserError

NEAR_TIE = 0.02
"""Difference of the scores of a model in training and saved that is not worth a note."""
SCORE_EVERY = 2.0
"""Least seconds between two lines with scores of validation."""


class Evaluation(NamedTuple):
    """The validation split, predicted and scored."""

    examples: Sequence[Example]
    predicted: Sequence[Prediction]
    metrics: dict[str, float]
    score: float
    """The score that selects the model; higher is better."""


def predict_split(
    part: Part, split: str, head: Any = None, number: int | None = None, *, shown: bool = True
) -> tuple[Sequence[Example], list[Prediction]]:
    """Return the examples of a split, or the first ``number``, and what a model predicts for them.

    ``head`` is by default the model in training.
    """
    examples, encoded = part.data.split(split)
    if number is not None:
        examples, encoded = examples[:number], encoded[:number]
    predicted = predict(
        part.task,
        part.head if head is None else head,
        examples,
        part.folder.accelerator,
        encoded=encoded,
        precision=part.precision,
        reporter=part.reporter if shown else None,
        title=split,
        keep_log_probabilities=part.task.calibrated,
    )
    return examples, predicted


def scores_of(
    part: Part, examples: Sequence[Example], predicted: Sequence[Prediction]
) -> dict[str, float]:
    """Return the metrics of the task and the custom ones."""
    metrics = part.task.score(examples, predicted)
    if not part.custom_metrics or not metrics:
        return metrics
    if not part.task.description.labels:
        raise UserError(f"`finetune {part.task.name}` takes no custom metrics: leave them out.")
    values = compared_values(part.task, examples, predicted)
    return metrics | custom_scores(part.custom_metrics, *values)


def sign_of(part: Part, metric: str) -> int:
    """Return -1 for a metric of which lower values are better, else 1."""
    own = part.custom_metrics.get(metric)
    return -1 if own is not None and own.lower_is_better else 1


def selection_score(part: Part, metrics: Mapping[str, float], name: str = "") -> float:
    """Return the score that selects the model, negative if lower is better.

    ``name`` is the metric, by default the metric of the record.
    """
    name = name or part.task.record.metric
    facts = {metric: facts_of(metric) for metric in metrics}
    legal = [name for name, of in facts.items() if not (of.lower_is_better or of.of_gold)]
    if name not in legal:
        raise UserError(f"--metric {name!r} cannot select a model; legal are {', '.join(legal)}.")
    return sign_of(part, name) * metrics[name]


def check_splits(part: Part) -> None:
    """Predict and score an example of each split, so that nothing in it ends a finished run.

    A model that begins with another is saved and loaded, which its old settings may prevent.
    """
    if part.config.init_from is not None:
        on_main_process(lambda: check_saved_model(part.task, part.head, part.folder.path))
    for split in part.dataset.scored_splits:
        part.task.score(*predict_split(part, split, number=1, shown=False))


def check_saved_model(task: Task, head: Any, parent: Path | None = None) -> None:
    """Save a model and load it again; ``parent`` is a folder on a disk that has room for it."""
    with tempfile.TemporaryDirectory(prefix=".check-", suffix=".new", dir=parent) as folder:
        with plain_layers(head, merged=True):
            save_task(task, Path(folder))
            head.save_pretrained(folder)
        saved_task(folder).head(folder)


def report_scores(part: Part, when: str, metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Report the scores of all splits ``before`` or ``after`` training with ``--replay``."""
    name = part.task.record.metric
    found = [
        f"{split} {scores[name]:.4f}"
        for split, scores in metrics.items()
        if name in scores and not split.endswith(WITHOUT_LEAKS)
    ]
    note = f"{name} {when} training: {', '.join(found)}"
    part.report(note)
    return note


def report_start(part: Part) -> None:
    """Report the scores of the model that a run with ``--replay`` begins with."""
    splits = part.dataset.scored_splits
    metrics = {split: scores_of(part, *predict_split(part, split, shown=False)) for split in splits}
    part.state.start_note = report_scores(part, "before", metrics)


def check_metric(part: Part) -> None:
    """Reject a wrong metric before training starts.

    One example shows which metrics exist. Else all do: metrics of span types, of nested spans
    and of questions without an answer need them, and a custom metric may fail on few examples.
    """
    split = part.data.validation
    if split is None or not (part.config.metric or part.custom_metrics):
        return
    name = part.config.metric or part.task.record.metric
    metrics: dict[str, float] = {}
    for number in (None,) if part.custom_metrics else (1, None):
        if name not in metrics:
            metrics = scores_of(part, *predict_split(part, split, number=number))
    selection_score(part, metrics, name)


def evaluate(part: Part) -> Evaluation | None:
    """Predict and score the validation split; None if there is none.

    A head that is fitted to the encoder is fitted before, also without validation.
    """
    if part.task.fit_classifier is not None:
        train, encoded = part.data.split("train")
        options: dict[str, Any] = {"encoded": encoded, "precision": part.precision}

        def predict_train(reader: Task) -> list[Prediction]:
            return predict(reader, part.head, train, part.folder.accelerator, **options)

        part.task.fit_classifier(part.head, train, predict_train)
    if part.data.validation is None:
        return None
    examples, predicted = predict_split(part, part.data.validation)
    metrics = scores_of(part, examples, predicted)
    return Evaluation(examples, predicted, metrics, selection_score(part, metrics))


def evaluate_and_keep(part: Part) -> None:
    """Score the validation split, save the model if it is the best yet, and report its scores."""
    state, folder, split = part.state, part.folder, part.data.validation
    found = evaluate(part)
    if found is None or split is None:
        state.best_step = state.step
        folder.save_best(part.task, part.head)
        tell_saved(part, folder.best)
        return
    better = state.best_score is None or found.score > state.best_score
    # of equal scores the later, which has a lower learning rate
    is_best = better or found.score == state.best_score
    state.num_best = 1 if better else state.num_best + is_best
    if is_best:
        state.best_score, state.best_step = found.score, state.step
        folder.save_best(part.task, part.head)
        folder.write_predictions(split, found.examples, found.predicted)
        tell_saved(part, folder.best)
    part.log.evaluation(state.step, split, found.metrics)
    _report_score(part, found.metrics, better, is_best)
    event = EvaluationEvent(
        state.step, split, found.metrics, is_best, found.examples, found.predicted
    )
    tell(part.callbacks, event)


def tell_saved(part: Part, folder: Path, *, at_once: bool = False) -> None:
    """Call the callbacks after a save. They, or ``at_once``, need it on disk."""
    if at_once or part.callbacks:
        part.folder.wait()
    tell(part.callbacks, SaveEvent(part.state.step, folder, folder == part.folder.best))


def _report_score(part: Part, metrics: Mapping[str, float], better: bool, is_best: bool) -> None:
    now, name, state = time.monotonic(), part.task.record.metric, part.state
    if now - part.last_score < SCORE_EVERY and state.step != part.data.schedule.num_steps:
        return
    if is_best and not better and not metrics[name]:  # a model that has not learned anything yet
        return
    part.last_score = now
    best = sign_of(part, name) * (state.best_score or 0.0)
    note = "best so far" if better else f"best {best:.4f}"
    if is_best and not better:
        note = "equal to the best so far"
    part.reporter.say(
        f"step {state.step}: {part.data.validation} {name} {metrics[name]:.4f} ({note})"
    )


def report_kept(part: Part) -> None:
    """Print the step whose model is kept."""
    if part.data.validation is not None:
        equal = part.state.num_best
        of = f" (the last of {equal} evaluations with the best score)" if equal > 1 else ""
        part.reporter.say(f"kept: the model of step {part.state.best_step}{of}")


def score_best(part: Part) -> dict[str, dict[str, float]]:
    """Load the best model from its folder, calibrate it, and score it on each split."""
    part.folder.wait()
    best = place(part.task.head(part.folder.best), part.folder.accelerator.device)
    validation, leaks = part.data.validation, leaked(part.dataset)
    metrics: dict[str, dict[str, float]] = {}
    # validation first: it calibrates what the others are scored with
    for split in sorted(part.dataset.scored_splits, key=lambda name: name != validation):
        examples, predicted = predict_split(part, split, best)
        if split == validation:
            predicted = _calibrate(part, examples, predicted)
        if scores := scores_of(part, examples, predicted):
            metrics[split] = scores
            if ids := leaks.get(split):
                own = [index for index, each in enumerate(examples) if each.id not in ids]
                rest = [examples[i] for i in own], [predicted[i] for i in own]
                if scores := scores_of(part, *rest):
                    metrics[f"{split}{WITHOUT_LEAKS}"] = scores
        part.folder.write_predictions(split, examples, predicted)
    part.folder.write_metrics(metrics)
    part.folder.wait()
    return metrics


def _calibrate(
    part: Part, examples: Sequence[Example], predicted: list[Prediction]
) -> list[Prediction]:
    score = selection_score(part, scores_of(part, examples, predicted))
    before = part.state.best_score
    if before is not None and abs(score - before) > NEAR_TIE * max(1.0, abs(before)):
        part.report(
            f"the saved model scores {score:.4f} on {part.data.validation}, and scored "
            f"{before:.4f} in training: near ties are decided in another way (half precision, "
            "merged adapters or another machine)"
        )
    if not part.task.calibrated:
        return predicted
    calibrated = calibrate(part.task, examples, predicted)
    part.task = calibrated.task
    part.notes.append(calibrated.note)
    part.folder.save_best(part.task, part.task.head(part.folder.best))
    return list(calibrated.predictions)
