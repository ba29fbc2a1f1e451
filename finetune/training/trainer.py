"""The training loop of every task.

Gradients of the summed loss are divided by the whole count once, and the order of the data depends
on seed and epoch alone. So ``max_tokens``, packing and the number of processes change no result,
and a resumed run gives the same weights as one that was not interrupted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from accelerate.utils import ProjectConfiguration, set_seed
from safetensors.torch import load_file

from finetune.config.tasks import TrainConfig, settings
from finetune.data import WITHOUT_LEAKS, Dataset, leaked
from finetune.evaluation.custom_metrics import custom_metrics, custom_scores
from finetune.evaluation.metrics import LOWER_IS_BETTER
from finetune.inference.loop import predict
from finetune.models.adapters import light_tuning, load_adapter_state, trained_share, weight_numbers
from finetune.models.dropout import fast_dropout
from finetune.models.encoder import checkpointed_layers
from finetune.runtime.launch import on_main_process, require_equal
from finetune.runtime.precision import resolve_precision
from finetune.runtime.progress import Reporter
from finetune.runtime.signals import InterruptHandler
from finetune.runtime.transfer import place
from finetune.tasks.base import Task
from finetune.tasks.capabilities import (
    Calibration,
    ComparedValues,
    EpochSequences,
    FittedHead,
)
from finetune.tasks.definition import starting_commit
from finetune.training.callbacks import Callback, Callbacks, EvaluationEvent, SaveEvent, StepEvent
from finetune.training.checkpoint import (
    TrainerState,
    load_random_state,
    load_training_state,
)
from finetune.training.custom_loss import LossFunction, loss_of
from finetune.training.data import TrainingData
from finetune.training.optimizer import Schedule, logged_learning_rates, make_optimizer
from finetune.training.run_folder import RunLog, RunWriter, open_run, require_no_checkpoint
from finetune.training.sparse_embedding import SparseEmbeddings
from finetune.training.step import Step
from finetune.training.weight_averaging import AVERAGE, WeightAverage, weight_average
from finetune.types import Example, Prediction, UserError

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
    num_steps: int
    """The planned number of steps."""
    notes: list[str] = field(default_factory=list)
    weights: tuple[int, int] = (0, 0)
    """The number of trained weights, and the number of all weights."""
    merged: Mapping[str, Any] | None = None
    """The method and the runs of ``finetune merge``, if it made the model."""


def fit(
    task: Task,
    data: Dataset,
    config: TrainConfig,
    folder: RunWriter | None = None,
    reporter: Reporter | None = None,
    head: Any = None,
    *,
    callbacks: Sequence[Callback] = (),
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    loss: LossFunction | None = None,
) -> FitResult:
    """Train a model, keep the one with the best validation score, and score the test split once.

    Args:
        task: The task.
        data: Its prepared data.
        config: The settings; ``out`` names the run folder.
        folder: The run folder, opened; by default ``config.out``, on the device of this launch.
        reporter: Shows the progress.
        head: The model to train; by default a new one on the configured encoder.
        callbacks: Called after steps, evaluations and saves.
        metrics: Custom metrics by name, besides ``config.custom_metrics``.
        loss: A custom loss, in place of ``config.custom_loss``: a function of logits and targets
            that returns the sum of the losses of a batch and their number.

    Returns:
        The task with its fitted values, the run folder and the metrics.

    Raises:
        UserError: The loss is not finite, the disk is full, or settings or data differ from the run
            to resume.
        Interrupted: After Ctrl-C or SIGTERM, once the checkpoint is written.
    """
    with contextlib.ExitStack() as restore:
        folder = folder or restore.enter_context(open_run(config))
        reporter = reporter or Reporter(quiet=not folder.accelerator.is_main_process)
        run = TrainingRun(task, data, config, folder, reporter, head, restore)
        run.callbacks = Callbacks(callbacks)
        run.custom_metrics |= custom_metrics((), metrics or {})
        if loss is not None:
            run.step.loss = loss_of(run.task, None, loss)
        return run.run()


class _Evaluation(NamedTuple):
    """The validation split, predicted and scored."""

    examples: Sequence[Example]
    predicted: Sequence[Prediction]
    metrics: dict[str, float]
    score: float
    """The score that selects the model; higher is better."""


class TrainingRun:
    """One training run, from data to metrics."""

    _step_class: ClassVar[type[Step]] = Step

    def __init__(
        self,
        task: Task,
        data: Dataset,
        config: TrainConfig,
        folder: RunWriter,
        reporter: Reporter,
        head: Any,
        restore: contextlib.ExitStack,
    ) -> None:
        """``restore`` collects how to undo the changes to the caller's model; ``last`` and
        ``teacher`` are as in ``RunFolder``."""
        self.task = replace(task, record=task.record.unfitted())
        self.callbacks, self.custom_metrics = (
            Callbacks(()),
            custom_metrics(config.custom_metrics, {}),
        )
        self.dataset, self.config, self.notes = data, config, list(data.notes)
        self.folder, self.accelerator, self.reporter = folder, folder.accelerator, reporter
        advice = "give all machines the same files"
        require_equal("fingerprint of the data", data.fingerprint, advice)
        resuming, notes = folder.begin(config, data)
        for note in notes:
            self._report(note)
        self.device = self.accelerator.device
        self.precision = resolve_precision(config, self.device)
        self.num_threads = torch.get_num_threads() if self.device.type == "cpu" else None
        self.state = TrainerState(num_threads=self.num_threads)

        self.average: WeightAverage | None = None
        self._last_score = -SCORE_EVERY
        self.leaks = leaked(data)
        self.data = self._make_data()
        self.schedule, self.validation = self.data.schedule, self.data.validation
        if config.resume and not resuming:
            on_main_process(self._require_no_checkpoint)
        self._prepare(head, resuming, restore)

    def _require_no_checkpoint(self) -> None:
        """Raise UserError if the run must have had a checkpoint."""
        saved = self.folder.run.config.get
        before = replace(
            self.config, eval_every=saved("eval_every"), save_every=saved("save_every")
        )
        schedule = Schedule.from_config(before, self.schedule.num_examples)
        save_every = max(schedule.save_every, self.schedule.save_every)
        require_no_checkpoint(self.folder.last, self.folder.num_logged_steps, save_every)

    def _prepare(self, head: Any, resuming: bool, restore: contextlib.ExitStack) -> None:
        """Create the model, the optimizer and the state, or load them from the last checkpoint."""
        last = self.folder.last
        of_epoch = self.task.capability(EpochSequences)
        self._load_head(head, resuming, restore)
        if not resuming:
            for split in self.dataset.scored_splits:
                self._check_split(split)
        sparse = restore.enter_context(
            SparseEmbeddings(
                self.head,
                # a skipped step has no weight decay, which the other rows would get
                "off" if self.precision == "fp16" else self.config.sparse_embeddings,
                self.data.encoded.values(),
                () if of_epoch is None else of_epoch.added_ids(),
            )
        )
        if sparse.note:
            self.reporter.say(sparse.note)
        self.optimizer = sparse.attach(self._make_optimizer())
        if self.config.tuning != "full":
            peaks = logged_learning_rates(self.optimizer)
            self._report(
                f"--tuning {self.config.tuning} trains {trained_share(self.head)}, at "
                + ", ".join(f"{name} {value:g}" for name, value in peaks.items())
            )
        self.interrupt = InterruptHandler(self.accelerator)
        self.step = self._make_step()
        self.average = weight_average(self.head, self.config)
        if resuming:
            self.state = load_training_state(last, self.optimizer)
            self.step.scaler.load_state_dict(self.state.loss_scale)
            if self.average is not None:
                self.average.load_state(load_file(str(last / AVERAGE)))
            if (before := self.state.num_threads) not in (None, self.num_threads):
                self.reporter.say(
                    f"the run was started with {before} CPU threads, and now has "
                    f"{self.num_threads}: the weights will differ by rounding from an "
                    f"uninterrupted run (OMP_NUM_THREADS={before} avoids that)"
                )
            self.state.num_threads = self.num_threads
            load_random_state(last, self.accelerator.process_index)
            self.reporter.say(
                f"continuing from step {self.state.step} of {self.schedule.num_steps}"
            )
        else:
            rank = self.accelerator.process_index
            torch.manual_seed(self.config.seed * 1_000_003 + rank)  # dropout

    def _make_data(self) -> TrainingData:
        return TrainingData(self.task, self.dataset, self.config, self.accelerator, self._report)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        return make_optimizer(self.head, self.config)

    def _make_step(self) -> Step:
        return self._step_class(
            self.task,
            self.head,
            self.optimizer,
            self.config,
            self.accelerator,
            self.precision,
            self.interrupt,
        )

    def _other_tensors(self) -> dict[str, Mapping[str, torch.Tensor]]:
        """Return tensors outside of the model, by the name of their file in the checkpoint."""
        return {} if self.average is None else {AVERAGE: self.average.state()}

    def _report(self, note: str) -> None:
        self.notes.append(note)
        self.reporter.say(note)

    def _load_head(self, head: Any, resuming: bool, restore: contextlib.ExitStack) -> None:
        """Create the model, or load it from the last checkpoint."""
        set_seed(self.config.seed)
        self.head = self.task.head(self.folder.last) if resuming else head or self.task.head()
        restore.enter_context(light_tuning(self.head, self.config))
        if resuming:
            load_adapter_state(self.head, self.folder.last)
        if self.config.gradient_checkpointing:
            restore.enter_context(checkpointed_layers(self.head.encoder))
        self.weights = weight_numbers(self.head)
        self.head = place(self.head, self.device)
        if reason := self.head.encoder.padding_reason:
            near = "" if self.head.encoder.family.reads_padding else "near-"
            self.reporter.say(f"sequences are padded, in groups of {near}equal length: {reason}")
        restore.enter_context(same_modes(self.head))
        restore.enter_context(fast_dropout(self.head))

    def run(self) -> FitResult:
        """Train to the end, then score the best model."""
        self.start()
        if not self.state.finished:
            with self.interrupt:
                self._train()
        self._report_kept()
        return self.finish()

    def start(self) -> None:
        """Write the settings, and reject a wrong metric."""
        self._write_start()
        name = self.config.metric
        if (name or self.custom_metrics) and self.validation:
            self._check_metric(name or self.task.record.metric, self.validation)

    def finish(self) -> FitResult:
        """Score the best model."""
        self.folder.wait()
        metrics = self._score_best()
        self.folder.wait()
        if self.config.track != "none":
            flat = {f"{s}/{name}": v for s, values in metrics.items() for name, v in values.items()}
            self.accelerator.log(flat, step=self.state.step)
            self.accelerator.end_training()
        self.accelerator.wait_for_everyone()
        return FitResult(
            self.task,
            self.folder.path,
            metrics,
            self.state.best_step,
            self.schedule.num_steps,
            self.notes,
            self.weights,
        )

    def _check_split(self, split: str) -> None:
        """Predict and score an example of a split, so that nothing in it ends a finished run."""
        examples, encoded = self.data.split(split)
        predicted = predict(
            self.task,
            self.head,
            examples[:1],
            self.accelerator,
            encoded=encoded[:1],
            precision=self.precision,
            keep_log_probabilities=self.task.capability(Calibration) is not None,
        )
        self.task.score(examples[:1], predicted)

    def _check_metric(self, name: str, split: str) -> None:
        """Reject a wrong metric before training starts.

        One example shows which metrics exist. Else all do: metrics of span types, of nested spans
        and of questions without an answer need them, and a custom metric may fail on few examples.
        """
        examples, encoded = self.data.split(split)
        metrics: dict[str, float] = {}
        for number in (len(examples),) if self.custom_metrics else (1, len(examples)):
            if name not in metrics:
                predicted = self._predict(self.head, examples[:number], encoded[:number], split)
                metrics = self._score(examples[:number], predicted)
        self._selection_score(metrics, name)

    def _score(
        self, examples: Sequence[Example], predicted: Sequence[Prediction]
    ) -> dict[str, float]:
        """Return the metrics of the task and the own ones."""
        metrics = self.task.score(examples, predicted)
        if not self.custom_metrics or not metrics:
            return metrics
        compared = self.task.capability(ComparedValues)
        if compared is None:
            raise UserError(f"`finetune {self.task.name}` takes no custom metrics: leave them out.")
        return metrics | custom_scores(self.custom_metrics, *compared.values(examples, predicted))

    def _selection_score(self, metrics: dict[str, float], name: str | None = None) -> float:
        """Return the score that selects the model, negative if lower is better."""
        name = name or self.task.record.metric
        return self._sign(name) * selection_score(metrics, name)

    def _sign(self, name: str) -> int:
        own = self.custom_metrics.get(name)
        return -1 if own is not None and own.lower_is_better else 1

    def _train(self) -> None:
        state, schedule = self.state, self.schedule
        log = RunLog(self.folder.path / "log.jsonl", self.accelerator, state.step)
        every = max(1, schedule.num_steps // 200)
        self.reporter.start("training", schedule.num_steps, state.step)
        with self.reporter, contextlib.closing(self.data.batches(state.step)) as batches:
            for micro_batches, weight, num_examples in batches:
                lr_factor = schedule.lr_factor(state.step)
                loss, norm = self.step(micro_batches, weight=weight, lr_factor=lr_factor)
                log.add(loss, norm, num_examples)
                state.step += 1
                if self.average is not None:
                    self.average.after_step(state.step)
                self.callbacks.on_step(StepEvent(state.step, schedule.num_steps, loss, norm))
                at_end = state.step == schedule.num_steps
                stop = self.interrupt.should_stop()
                evaluating = state.step % schedule.eval_every == 0 or at_end
                saving = state.step % schedule.save_every == 0 or at_end or stop
                if state.step % every == 0 or evaluating or saving:
                    line = log.flush(state.step, self.optimizer)
                    self.reporter.update(state.step, line)
                if evaluating:
                    self.evaluate(log)
                state.finished |= at_end
                if saving or state.finished:
                    state.loss_scale = self.step.scaler.state_dict()
                    self.folder.save_last(
                        self.task, self.head, self.optimizer, state, self._other_tensors()
                    )
                    self._saved(self.folder.last, at_once=stop or state.finished)
                if stop or (state.finished and self.interrupt.signals_received()):
                    raise self.interrupt.interrupted(
                        f"stopped at step {state.step} of {schedule.num_steps}; the "
                        f"checkpoint is in {self.folder.last}"
                    )
                if state.finished:
                    break

    def _saved(self, folder: Path, *, at_once: bool = False) -> None:
        """Call the callbacks after a save. They, or ``at_once``, need it on disk."""
        if at_once or self.callbacks.callbacks:
            self.folder.wait()
        is_best = folder == self.folder.best
        self.callbacks.on_save(SaveEvent(self.state.step, folder, is_best))

    def evaluate(self, log: RunLog) -> None:
        """Score the validation split, and save the model if it is the best yet.

        With an average, score it too, and take the better of average and plain weights. Without
        validation the average is saved.
        """
        self._fit_head()
        found, averaged, both = self._evaluation(), False, dict[str, float]()
        with contextlib.ExitStack() as stack:
            if self.average is not None and self.average.at_evaluation():
                stack.enter_context(self.average.applied())
                self._fit_head()
                other = self._evaluation()
                averaged = other is None or found is None or other.score > found.score
                if found is not None and other is not None:
                    name = self.task.record.metric
                    both = {
                        f"{name}_plain": found.metrics[name],
                        f"{name}_averaged": other.metrics[name],
                        "averaged": float(averaged),
                    }
                if averaged:
                    found = other
                else:
                    stack.close()  # the plain weights are saved
            self._keep_best(found, averaged, both, log)

    def _fit_head(self) -> None:
        """Fit the head to the encoder, for a task whose head is fitted."""
        if (fitted := self.task.capability(FittedHead)) is not None:
            train, encoded = self.data.split("train")
            vectors = predict(
                fitted.reader,
                self.head,
                train,
                self.accelerator,
                encoded=encoded,
                precision=self.precision,
            )
            fitted.fit(self.head, train, vectors)

    def _evaluation(self) -> _Evaluation | None:
        """Predict and score the validation split; None if there is none."""
        if self.validation is None:
            return None
        examples, encoded = self.data.split(self.validation)
        predicted = self._predict(self.head, examples, encoded, self.validation)
        metrics = self._score(examples, predicted)
        return _Evaluation(examples, predicted, metrics, self._selection_score(metrics))

    def _keep_best(
        self,
        found: _Evaluation | None,
        averaged: bool,
        both: Mapping[str, float],
        log: RunLog,
    ) -> None:
        """Save the model if it is the best yet, and report its scores.

        ``both`` has the scores of plain and averaged weights, if both were scored.
        """
        state = self.state
        if found is None or self.validation is None:
            state.best_step, state.best_averaged = state.step, averaged
            self.folder.save_best(self.task, self.head)
            self._saved(self.folder.best)
            return
        examples, predicted, metrics, score = found
        better = state.best_score is None or score > state.best_score
        # of equal scores the later, which has a lower learning rate
        is_best = better or score == state.best_score
        state.num_best = 1 if better else state.num_best + is_best
        state.bad_evaluations = 0 if better else state.bad_evaluations + 1
        if is_best:
            state.best_score, state.best_step, state.best_averaged = score, state.step, averaged
            self.folder.save_best(self.task, self.head)
            self.folder.write_predictions(self.validation, examples, predicted)
            self._saved(self.folder.best)
        log.evaluation(state.step, self.validation, {**metrics, **both})
        self._report_score(metrics, better, is_best, both)
        self.callbacks.on_evaluation(
            EvaluationEvent(state.step, self.validation, metrics, is_best, examples, predicted)
        )
        if self.config.patience and state.bad_evaluations >= self.config.patience:
            state.finished = True
            self.reporter.say(f"no better score in {state.bad_evaluations} evaluations: stopping")

    def _report_score(
        self, metrics: Mapping[str, float], better: bool, is_best: bool, both: Mapping[str, float]
    ) -> None:
        """Print the score of an evaluation; at most one in ``SCORE_EVERY`` seconds."""
        now, name, state = time.monotonic(), self.task.record.metric, self.state
        if now - self._last_score < SCORE_EVERY and state.step != self.schedule.num_steps:
            return
        self._last_score = now
        best = self._sign(name) * (state.best_score or 0.0)
        note = "best so far" if better else f"best {best:.4f}"
        if is_best and not better:
            note = "equal to the best so far"
        score = f"{metrics[name]:.4f}"
        if both:
            plain, averaged = both[f"{name}_plain"], both[f"{name}_averaged"]
            score = f"{plain:.4f}, of averaged weights {averaged:.4f}"
        self.reporter.say(f"step {state.step}: {self.validation} {name} {score} ({note})")

    def _report_kept(self) -> None:
        """Print the step whose model is kept."""
        state, weights = self.state, "the model"
        if self.average is not None:
            weights = "averaged weights" if state.best_averaged else "the plain weights"
        if self.validation is not None or self.average is not None:
            equal = state.num_best
            of = f" (the last of {equal} evaluations with the best score)" if equal > 1 else ""
            self.reporter.say(f"kept: {weights} of step {state.best_step}{of}")

    def _score_best(self) -> dict[str, dict[str, float]]:
        """Load the best model from its folder, calibrate it, and score it on each split."""
        best = place(self.task.head(self.folder.best), self.device)
        metrics: dict[str, dict[str, float]] = {}
        # validation first: it calibrates what the others are scored with
        for split in sorted(self.dataset.scored_splits, key=lambda name: name != self.validation):
            examples, encoded = self.data.split(split)
            predicted: Sequence[Prediction] = self._predict(best, examples, encoded, split)
            if split == self.validation:
                predicted = self._calibrate(examples, predicted)
            if scores := self._score(examples, predicted):
                if self.average is not None and split == self.validation:
                    scores |= {"averaged": float(self.state.best_averaged)}
                metrics[split] = scores
                if ids := self.leaks.get(split):
                    own = [index for index, each in enumerate(examples) if each.id not in ids]
                    rest = [examples[i] for i in own], [predicted[i] for i in own]
                    if scores := self._score(*rest):
                        metrics[f"{split}{WITHOUT_LEAKS}"] = scores
            self.folder.write_predictions(split, examples, predicted)
        self.folder.write_metrics(metrics)
        return metrics

    def _calibrate(
        self, examples: Sequence[Example], predicted: Sequence[Prediction]
    ) -> Sequence[Prediction]:
        """Check that the saved model scores as before, and calibrate it on validation."""
        score = self._selection_score(self._score(examples, predicted))
        before = self.state.best_score
        # other hardware can decide near ties differently
        if before is None or abs(score - before) > 0.02 * max(1.0, abs(before)):
            raise RuntimeError(
                f"{self.folder.best}: the saved model scores {score:.4f} on {self.validation}, but "
                f"scored {before} when it was saved"
            )
        if (calibration := self.task.capability(Calibration)) is None:
            return predicted
        calibrated = calibration.calibrate(examples, predicted)
        self.task = calibrated.task
        self.notes.append(calibrated.note)
        self.folder.save_best(self.task, self.task.head(self.folder.best))
        return calibrated.predictions

    def _predict(
        self, head: Any, examples: Sequence[Example], encoded: Any, title: str
    ) -> list[Prediction]:
        return predict(
            self.task,
            head,
            examples,
            self.accelerator,
            encoded=encoded,
            precision=self.precision,
            reporter=self.reporter,
            title=title,
            keep_log_probabilities=self.task.capability(Calibration) is not None,
        )

    def _write_start(self) -> None:
        self.folder.write_start(
            self.task,
            self.config,
            fingerprint=self.dataset.fingerprint,
            training_fingerprint=self.dataset.training_fingerprint,
            precision_used=self.precision,
            revision_used=starting_commit(self.config),
            data_used=self.dataset.pinned,
        )
        self.folder.require_shared()
        if self.task.description.words:
            self.folder.write_vocabulary(self.dataset.splits["train"], self.dataset.name)
        if self.config.track != "none":
            plain = {
                name: value if isinstance(value, int | float | str | bool) else str(value)
                for name, value in settings(self.config).items()
            }
            # of several runs, each has its own
            self.accelerator.project_configuration = ProjectConfiguration(str(self.folder.path))
            self.accelerator.init_trackers("finetune", config=plain)


@contextlib.contextmanager
def same_modes(model: torch.nn.Module) -> Iterator[None]:
    """Context that restores at its end which modules are in training mode."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def selection_score(metrics: dict[str, float], name: str) -> float:
    """Return a metric that can select a model: higher is better."""
    legal = [metric for metric in metrics if metric not in LOWER_IS_BETTER]
    if name not in legal:
        raise UserError(f"--metric {name!r} cannot select a model; legal are {', '.join(legal)}.")
    return metrics[name]
