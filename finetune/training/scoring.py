"""The scores of a task in a run: evaluations during training, and the scores of the best model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accelerate.utils import ProjectConfiguration
from torch import Tensor

from finetune.config.metric_properties import can_select
from finetune.config.tasks import TrainConfig, settings
from finetune.data import WITHOUT_LEAKS, Dataset, leaked
from finetune.evaluation.custom_metrics import custom_metrics
from finetune.evaluation.prediction_types import TYPES
from finetune.evaluation.training_vocabulary import TrainingVocabulary
from finetune.inference.loop import predict
from finetune.inference.vectors import decision_vectors
from finetune.models.adapters import weight_numbers
from finetune.models.graphs import use_of_graphs
from finetune.models.loading import model_commit
from finetune.models.master_weights import MasterWeights, cast_weights
from finetune.runtime.device import model_to_device, resolve_precision
from finetune.runtime.launch import on_main_process, require_equal
from finetune.runtime.progress import Reporter
from finetune.runtime.signals import InterruptHandler
from finetune.tasks.base import Task
from finetune.tasks.calibration import calibrate
from finetune.training.callbacks import Callback, EvaluationEvent, SaveEvent, StepEvent, notify
from finetune.training.checkpoint import Progress
from finetune.training.data import TrainingData
from finetune.training.optimizer import Schedule, parameter_groups
from finetune.training.run_folder import RunLog, RunWriter
from finetune.types import Example, Prediction, UserError

NEAR_TIE = 0.02
"""Difference of the scores of a model in training and saved that is not worth a note."""
SCORE_EVERY = 2.0
"""Least seconds between two lines with scores of validation."""


@dataclass
class FitResult:
    """Result of a run: its task with all fitted values, its folder and its metrics."""

    task: Task
    """The task, with all fitted values."""
    folder: Path
    """The run folder."""
    metrics: dict[str, dict[str, float]]
    """Metrics by split and name."""
    best_step: int
    """The step of the best model."""
    schedule: Schedule
    """The planned steps."""
    notes: list[str] = field(default_factory=list)
    weights: tuple[int, int] = (0, 0)
    """The number of trained weights, and the number of all weights."""
    cuda_graphs: str = ""
    """Whether passes were replayed from CUDA graphs, or why not."""


class Scorer:
    """Scores the model of a task, keeps the best in its run folder, and writes the folder's log.

    ``train`` calls its methods in their order. Values of the task that an earlier run has fitted
    are left out, and calibration replaces the task. ``name`` is empty for a single task. The custom
    ``metrics`` are added to those of the settings.
    """

    data: TrainingData
    model: Any
    masters: MasterWeights
    log: RunLog
    weights = (0, 0)
    """The number of trained weights, and the number of all weights."""

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        config: TrainConfig,
        folder: RunWriter,
        reporter: Reporter,
        name: str = "",
        callbacks: Sequence[Callback] = (),
        metrics: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.task = replace(task, state=task.state.unfitted())
        self.dataset, self.config, self.folder = dataset, config, folder
        self.reporter, self.name, self.callbacks = reporter, name, callbacks
        self.custom_metrics = custom_metrics(config.custom_metrics, metrics or {})
        self.precision = resolve_precision(config, folder.accelerator.device)
        self.notes = task.notes(dataset)
        self.progress = Progress()
        self.last_score = -float("inf")  # the time at which the last score was printed

    def report(self, note: str) -> None:
        """Keep a note, and print it."""
        self.notes.append(note)
        self.reporter.log(note)

    def begin(self) -> bool:
        """Prepare the run folder and encode the data; return whether a training continues."""
        advice = "give all machines the same files"
        require_equal("fingerprint of the data", self.dataset.fingerprint, advice)
        resuming, notes = self.folder.begin(self.config, self.dataset)
        for note in notes:
            self.report(note)
        accelerator = self.folder.accelerator
        self.data = TrainingData(
            self.task, self.dataset, self.config, accelerator, self.report, self.name
        )
        return resuming

    def hold(self, model: Any) -> None:
        """Move the model, with its adapters, to the device."""
        self.weights = weight_numbers(model)
        self.model = model_to_device(model, self.folder.accelerator.device)
        if reason := model.encoder.padding_reason:
            near = "" if model.encoder.family.reads_padding else "near-"
            self.reporter.log(f"sequences are padded, in groups of {near}equal length: {reason}")

    def check(self, *, resuming: bool) -> None:
        """Predict and score an example of each split, so that nothing in it ends a finished run.

        A wrong metric is rejected.
        """
        if not resuming:
            for split in self.dataset.scored_splits:
                self.task.score(*self._predict(split, number=1))
        self._check_metric()

    def _check_metric(self) -> None:
        # one example shows which metrics exist; else all do: metrics of span types, of nested spans
        # and of questions without an answer need them, and a custom metric may fail on few examples
        split = self.data.validation
        if split is None or not (self.config.metric or self.custom_metrics):
            return
        name = self.config.metric or self.task.state.metric
        metrics: dict[str, float] = {}
        for number in (None,) if self.custom_metrics else (1, None):
            if name not in metrics:
                metrics = self._scores(*self._predict(split, number=number))
        self._selection_score(metrics, name)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The groups of AdamW, by learning rate and weight decay."""
        groups, prefix = parameter_groups(self.model, self.config), self.name and f"{self.name}/"
        return [{**group, "names": [prefix + name for name in group["names"]]} for group in groups]

    def start(self, progress: Progress) -> None:
        """Go on from a checkpoint: write the settings, begin to track the run, open the log."""
        self.progress = progress
        schedule, accelerator = self.data.schedule, self.folder.accelerator
        self.folder.write_start(
            self.task,
            self.config,
            fingerprint=self.dataset.fingerprint,
            training_fingerprint=self.dataset.training_fingerprint,
            precision_used=self.precision,
            epochs_used=round(schedule.num_steps / schedule.steps_per_epoch, 4),
            revision_used=model_commit(self.config.init_from or self.config.model),
            data_used=self.dataset.pinned,
        )
        self.folder.require_shared()
        if self.task.description.words:
            train = self.dataset.splits["train"]
            on_main_process(lambda: TrainingVocabulary.of(train).save(self.folder.path))
        if self.config.track != "none":
            plain = {
                name: value if isinstance(value, int | float | str | bool) else str(value)
                for name, value in settings(self.config).items()
            }
            # of several runs, each has its own
            accelerator.project_configuration = ProjectConfiguration(str(self.folder.path))
            accelerator.init_trackers("finetune", config=plain)
        self.log = RunLog(self.folder.path / "log.jsonl", accelerator, progress.step)

    def add(self, loss: Tensor, norm: Tensor, num_examples: int) -> None:
        """Record a step: its mean loss and gradient norm, and the examples of its batch."""
        self.log.add(loss, norm, num_examples)
        self.progress.step += 1
        num_steps = self.data.schedule.num_steps
        event = StepEvent(self.progress.step, num_steps, loss, norm)
        notify([callback.on_step for callback in self.callbacks], event)

    @property
    def is_due(self) -> bool:
        """Whether the last step is followed by an evaluation."""
        step, schedule = self.progress.step, self.data.schedule
        return step == schedule.num_steps or step % schedule.eval_every == 0

    def evaluate(self, interrupt: InterruptHandler | None = None) -> None:
        """Score the validation split, save the model if it is the best yet, report its scores.

        A head that is fitted to the encoder is fitted before, also without validation. If a signal
        of ``interrupt`` ends the predictions, the evaluation is left to the resumed run.
        """
        progress, folder, split = self.progress, self.folder, self.data.validation
        predictions = list[tuple[Sequence[Example], list[Prediction]]]()

        def fit_and_predict() -> None:
            if (fit_classifier := self.task.fit_classifier) is not None:
                train = self.data.splits["train"]
                with self.masters.float32():
                    vectors = decision_vectors(self.task, self.model, train, folder.accelerator)
                    fit_classifier(self.model, train, vectors)
            if split is not None:
                predictions.append(self._predict(split))

        if interrupt is None:
            fit_and_predict()
        progress.unevaluated = interrupt is not None and not interrupt.finishes(fit_and_predict)
        if progress.unevaluated:
            return
        if split is None:
            progress.best_step = progress.step
            self._save_best()
            self.notify_saved(folder.best)
            return
        examples, predicted = predictions[0]
        metrics = self._scores(examples, predicted)
        score = self._selection_score(metrics)
        # of equal scores the later, which has a lower learning rate
        is_best = progress.best_score is None or score >= progress.best_score
        if is_best:
            progress.best_score, progress.best_step = score, progress.step
            self._save_best()
            folder.write_predictions(split, examples, predicted)
            self.notify_saved(folder.best)
        self.log.evaluation(progress.step, split, metrics)
        self._report_score(split, metrics, is_best=is_best)
        num_steps = self.data.schedule.num_steps
        event = EvaluationEvent(
            progress.step, num_steps, split, metrics, is_best, examples, predicted
        )
        notify([callback.on_evaluation for callback in self.callbacks], event)

    def _save_best(self) -> None:
        with self.masters.float32():
            self.folder.save_best(self.task, self.model)

    def notify_saved(self, folder: Path) -> None:
        """Call the callbacks after a save, once it is on disk."""
        if self.callbacks:
            self.folder.wait()
        event = SaveEvent(self.progress.step, folder, folder == self.folder.best)
        notify([callback.on_save for callback in self.callbacks], event)

    def _report_score(self, split: str, metrics: Mapping[str, float], *, is_best: bool) -> None:
        now, name, progress = time.monotonic(), self.task.state.metric, self.progress
        is_last = progress.step == self.data.schedule.num_steps
        if now - self.last_score < SCORE_EVERY and not is_last:
            return
        self.last_score = now
        best = self._sign(name) * (progress.best_score or 0.0)
        note = "best so far" if is_best else f"best {best:.4f}"
        self.reporter.log(f"step {progress.step}: {split} {name} {metrics[name]:.4f} ({note})")

    def score_best(self) -> FitResult:
        """Load the best model from its folder, calibrate it, and score it on each split."""
        if self.data.validation is not None:
            self.reporter.log(f"kept: the model of step {self.progress.best_step}")
        self.folder.wait()
        accelerator = self.folder.accelerator
        best = model_to_device(self.task.model(self.folder.best), accelerator.device)
        cast_weights(best, self.precision)
        validation, leaks = self.data.validation, leaked(self.dataset)
        metrics: dict[str, dict[str, float]] = {}
        # validation first: it calibrates what the others are scored with
        for split in sorted(self.dataset.scored_splits, key=lambda name: name != validation):
            examples, predicted = self._predict(split, best)
            if split == validation:
                predicted = self._calibrate(examples, predicted)
            if scores := self._scores(examples, predicted):
                metrics[split] = scores
                if ids := leaks.get(split):
                    kept = [index for index, item in enumerate(examples) if item.id not in ids]
                    unseen = [examples[i] for i in kept], [predicted[i] for i in kept]
                    if scores := self._scores(*unseen):
                        metrics[f"{split}{WITHOUT_LEAKS}"] = scores
            self.folder.write_predictions(split, examples, predicted)
        self.folder.write("metrics.json", json.dumps(metrics, indent=2) + "\n")
        self.folder.wait()
        if self.config.track != "none":
            flat = {f"{s}/{name}": v for s, values in metrics.items() for name, v in values.items()}
            accelerator.log(flat, step=self.progress.step)
            accelerator.end_training()
        accelerator.wait_for_everyone()
        return FitResult(
            self.task,
            self.folder.path,
            metrics,
            self.progress.best_step,
            self.data.schedule,
            self.notes,
            self.weights,
            use_of_graphs(self.model.encoder),
        )

    def _calibrate(
        self, examples: Sequence[Example], predicted: list[Prediction]
    ) -> list[Prediction]:
        score = self._selection_score(self._scores(examples, predicted))
        before = self.progress.best_score
        if before is not None and abs(score - before) > NEAR_TIE * max(1.0, abs(before)):
            self.report(
                f"the saved model scores {score:.4f} on {self.data.validation}, and scored "
                f"{before:.4f} in training: near ties are decided in another way (half precision, "
                "merged adapters or another machine)"
            )
        if not self.task.calibrated:
            return predicted
        self.task, predicted, note = calibrate(self.task, examples, predicted)
        self.notes.append(note)
        self.folder.save_best(self.task, self.task.model(self.folder.best))
        return predicted

    def _predict(
        self, split: str, model: Any = None, number: int | None = None
    ) -> tuple[Sequence[Example], list[Prediction]]:
        examples, encoded = self.data.splits[split], self.data.encoded[split]
        if number is not None:
            examples, encoded = examples[:number], encoded[:number]
        predicted = predict(
            self.task,
            self.model if model is None else model,
            examples,
            self.folder.accelerator,
            encoded=encoded,
            precision=self.precision,
            reporter=self.reporter if number is None else None,
            title=split,
            keep_log_probabilities=self.task.calibrated,
        )
        return examples, predicted

    def _scores(
        self, examples: Sequence[Example], predicted: Sequence[Prediction]
    ) -> dict[str, float]:
        metrics = self.task.score(examples, predicted)
        if not self.custom_metrics or not metrics:
            return metrics
        if not self.task.description.labels:
            raise UserError(f"`finetune {self.task.name}` takes no custom metrics: leave them out.")
        type, pairs = TYPES[self.task.state.prediction_type], zip(examples, predicted, strict=True)
        known = [pair for pair in pairs if type.gold(pair[0]) is not None]
        tables = type.tables_of([example for example, _ in known], [p for _, p in known])
        custom = self.custom_metrics.items()
        return metrics | {name: metric(*metric.sides(tables)) for name, metric in custom}

    def _sign(self, metric: str) -> int:
        custom = self.custom_metrics.get(metric)
        return -1 if custom is not None and custom.lower_is_better else 1

    def _selection_score(self, metrics: Mapping[str, float], name: str = "") -> float:
        name = name or self.task.state.metric
        legal = list(filter(can_select, metrics))
        if name not in legal:
            raise UserError(
                f"--metric {name!r} cannot select a model; legal are {', '.join(legal)}."
            )
        return self._sign(name) * metrics[name]
