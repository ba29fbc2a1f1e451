"""The course of a run: its data, model and optimizer, its steps, and the scores of the best model.

Gradients of the summed loss are divided by the whole count once, and the order of the data depends
on seed and epoch alone. So ``max_tokens``, packing and the number of processes change no result,
and a resumed run gives the same weights as one that was not interrupted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed

from finetune.config.tasks import TrainConfig
from finetune.data import Dataset
from finetune.models.adapters import load_adapter_state, parameter_efficient_tuning
from finetune.models.dropout import fast_dropout, same_modes
from finetune.models.encoder import checkpointed_layers
from finetune.models.graphs import replayed_passes
from finetune.models.master_weights import MasterWeights
from finetune.models.sparse_embedding import SparseEmbeddings
from finetune.runtime.launch import on_main_process
from finetune.runtime.progress import Reporter
from finetune.runtime.signals import InterruptHandler
from finetune.tasks.base import Task
from finetune.tasks.multitask import Multitask, tasks_and_models
from finetune.training.callbacks import Callback
from finetune.training.checkpoint import TrainerState, check_files, load_checkpoint, save_checkpoint
from finetune.training.data import TrainingData
from finetune.training.loss import LossFunction, RunLoss
from finetune.training.multitask import MixedData, Planned, common_settings, require_own_checkpoint
from finetune.training.optimizer import Schedule, adamw, each_weight_once, logged_learning_rates
from finetune.training.run_folder import RunWriter, open_run
from finetune.training.scoring import FitResult, Scorer
from finetune.training.step import Step
from finetune.types import UserError


def fit(
    task: Task,
    data: Dataset,
    config: TrainConfig,
    folder: RunWriter | None = None,
    reporter: Reporter | None = None,
    model: Any = None,
    *,
    callbacks: Sequence[Callback] = (),
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    loss: LossFunction | RunLoss | None = None,
) -> FitResult:
    """Train a model, keep the one with the best validation score, and score the test split once.

    Args:
        task: The task.
        data: Its prepared data.
        config: The settings; ``out`` names the run folder.
        folder: The run folder, opened; by default ``config.out``, on the device of this launch.
        reporter: Shows the progress.
        model: The model to train; by default a new one on the configured encoder.
        callbacks: Called after steps, evaluations and saves.
        metrics: Custom metrics by name, besides ``config.custom_metrics``.
        loss: A custom loss, in place of ``config.custom_loss``: a function of logits and targets
            that returns the sum of the losses of a batch and their number; or the loss of a run.

    Returns:
        The task with its fitted values, the run folder and the metrics.

    Raises:
        UserError: The loss is not finite, the disk is full, or settings or data differ from the run
            to resume.
        Interrupted: After Ctrl-C or SIGTERM, once the checkpoint is written.
    """
    if not isinstance(callbacks, Sequence) or not all(isinstance(c, Callback) for c in callbacks):
        raise UserError(
            f"callbacks must be a list of objects of finetune.Callback, not {callbacks!r:.60}."
        )
    with contextlib.ExitStack() as opened:
        folder = folder or opened.enter_context(open_run(config))
        reporter = reporter or Reporter(quiet=not folder.accelerator.is_main_process)
        scorer = Scorer(task, data, config, folder, reporter, callbacks=callbacks, metrics=metrics)
        return _train(scorer.task, {"": scorer}, config, folder, reporter, model, loss)[""]


def fit_together(
    tasks: Mapping[str, Planned], folder: RunWriter, reporter: Reporter
) -> dict[str, FitResult]:
    """Train several tasks on one encoder, and score each as ``fit`` does.

    The settings of the tasks have ``steps``, and those with the mark ``shared`` are equal. The
    checkpoint is in ``last/`` of ``folder``; each task has a run folder of its own.
    """
    config = common_settings({name: config for name, (_, _, config) in tasks.items()})
    on_main_process(lambda: require_own_checkpoint(folder.path, list(tasks), config.resume))
    with contextlib.ExitStack() as opened:
        scorers = {}
        for name, (task, data, settings) in tasks.items():
            writer = opened.enter_context(open_run(settings, folder.accelerator, folder.last))
            named = Reporter(quiet=reporter.quiet, prefix=f"{name}: ", console=reporter.console)
            scorers[name] = Scorer(task, data, settings, writer, named, name)
        together = Multitask({name: scorer.task for name, scorer in scorers.items()})
        return _train(together, scorers, config, folder, reporter)


def _train(  # noqa: C901 (the whole course is in one place)
    task: Task | Multitask,
    scorers: Mapping[str, Scorer],
    config: TrainConfig,
    folder: RunWriter,
    reporter: Reporter,
    model: Any = None,
    loss: LossFunction | RunLoss | None = None,
) -> dict[str, FitResult]:
    """``scorers`` and results are by the name of the task, which is empty if it is the only one."""
    accelerator, last = folder.accelerator, folder.last
    first, *_ = scorers.values()
    if not isinstance(loss, RunLoss):
        folder.loss = None if loss is None else getattr(loss, "__qualname__", type(loss).__name__)
        loss = RunLoss(task, config.custom_loss, loss)
    with contextlib.ExitStack() as restored:
        # with gradients, also if the caller has turned them off
        restored.enter_context(torch.inference_mode(False))
        resuming = all([scorer.begin() for scorer in scorers.values()])
        if resuming:
            on_main_process(lambda: check_files(last))

        # the model
        set_seed(config.seed)
        model = task.model(last) if resuming else model or task.model()
        for name, (_, of_task) in tasks_and_models(task, model).items():
            scorer = scorers[name]
            restored.enter_context(parameter_efficient_tuning(of_task, scorer.config))
            if resuming:
                load_adapter_state(of_task, last / name)
            if scorer.config.gradient_checkpointing:
                restored.enter_context(checkpointed_layers(of_task.encoder))
            scorer.hold(of_task)
        restored.enter_context(same_modes(model))
        restored.enter_context(fast_dropout(model))
        for scorer in scorers.values():
            scorer.check(resuming=resuming)

        # the data
        loss.prepare(first, restored)
        data: TrainingData | MixedData = first.data
        if isinstance(task, Multitask):
            data = MixedData({name: scorer.data for name, scorer in scorers.items()}, config)
        schedule = data.schedule
        log_every = max(1, schedule.num_steps // 200)  # lines: about 200
        if config.resume and not resuming:
            on_main_process(lambda: _require_no_checkpoint(scorers, schedule, last))

        # the optimizer
        read = [encoded.sequences.ids.values for encoded in data.read_in_training]
        sparse = SparseEmbeddings(model, read, task.added_ids())
        restored.enter_context(sparse)
        groups = [group for scorer in scorers.values() for group in scorer.parameter_groups()]
        masters = MasterWeights(model, each_weight_once(groups), first.precision, sparse.whole)
        restored.enter_context(masters)
        optimizer = adamw(masters.groups, config)
        if config.tuning != "full":
            rates = logged_learning_rates(optimizer).items()
            trained, total = first.weights
            first.report(
                f"--tuning {config.tuning} trains {trained:,} of {total:,} weights "
                f"({trained / total:.2%}), at " + ", ".join(f"{name} {lr:g}" for name, lr in rates)
            )
        interrupt = InterruptHandler(accelerator)
        step = Step(task, model, masters, optimizer, config, accelerator, interrupt, loss=loss)
        for scorer in scorers.values():
            scorer.masters, encoder = masters, scorer.model.encoder
            shapes = partial(scorer.data.row_shapes, scorer.model.texts_per_sequence)
            replaying = replayed_passes(encoder, shapes, schedule.num_steps, masters, reporter.log)
            restored.enter_context(replaying)

        # restore or begin
        state = TrainerState(tasks={name: scorer.progress for name, scorer in scorers.items()})
        if resuming:
            state = load_checkpoint(last, masters, optimizer)
            if state.loss_scale:  # there is none before the first step
                step.scaler.load_state_dict(state.loss_scale)
            reporter.log(f"continuing from step {state.step} of {schedule.num_steps}")
        for name, scorer in scorers.items():
            scorer.start(state.tasks[name])

        def save() -> None:
            with folder.replacing(last) as fresh:
                models = tasks_and_models(task, model)
                save_checkpoint(fresh, models, masters, optimizer, state)

        # the evaluations that a signal has ended
        for scorer in scorers.values():
            if scorer.progress.unevaluated:
                scorer.evaluate()
        model.train()

        # the steps
        if not state.finished:
            reporter.start("training", schedule.num_steps, state.step)
            with interrupt, contextlib.closing(data.batches(state.step)) as batches, reporter:
                for batch in batches:
                    scorer, lr_factor = scorers[batch.task], schedule.lr_factor(state.step)
                    mean, norm = step(batch.micro_batches, weight=batch.weight, lr_factor=lr_factor)
                    scorer.add(mean, norm, batch.num_examples)
                    state.step += 1
                    state.finished = state.step == schedule.num_steps
                    stop, line = interrupt.should_stop(), ""
                    saving = stop or state.finished or state.step % schedule.save_every == 0
                    if saving or scorer.is_due or state.step % log_every == 0:
                        wait = saving or scorer.is_due
                        line = scorer.log.flush(scorer.progress.step, optimizer, wait=wait)
                    reporter.update(state.step, line)
                    if scorer.is_due:
                        scorer.evaluate(interrupt)
                        model.train()
                        stop = stop or scorer.progress.unevaluated
                    if saving or stop:
                        for written in scorers.values():
                            written.log.flush(written.progress.step, optimizer, wait=True)
                            if written.folder is not folder:
                                written.folder.wait()  # a checkpoint names only models on disk
                        state.loss_scale = step.scaler.state_dict()
                        on_main_process(save)
                        if stop or state.finished:
                            folder.wait()
                        scorer.notify_saved(last)
                    if stop or (state.finished and interrupt.signals_received()):
                        raise interrupt.interrupted(
                            f"stopped at step {state.step} of {schedule.num_steps}; the checkpoint "
                            f"is in {last}"
                        )

        # the scores of the best models
        return {name: scorer.score_best() for name, scorer in scorers.items()}


def _require_no_checkpoint(scorers: Mapping[str, Scorer], schedule: Schedule, last: Path) -> None:
    folders = [scorer.folder for scorer in scorers.values()]
    before = folders[0].run.config.get("save_every") or schedule.eval_every
    steps = sum(folder.num_logged_steps for folder in folders)
    if steps > 2 * max(schedule.save_every, before):  # the second waits until the first is on disk
        raise UserError(
            f"{last} is missing, but the run had reached it: restore it from a copy, or train "
            "again with another --out."
        )
