"""The course of a run: its data, models and optimizer, its steps, and the scores of the best model.

Gradients of the summed loss are divided by the whole count once, and the order of the data depends
on seed and epoch alone. So ``max_tokens``, packing and the number of processes change no result,
and a resumed run gives the same weights as one that was not interrupted.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import ProjectConfiguration, set_seed

from finetune.config.tasks import TrainConfig, settings
from finetune.data import Dataset
from finetune.evaluation.custom_metrics import custom_metrics
from finetune.models.adapters import light_tuning, load_adapter_state, trained_share, weight_numbers
from finetune.models.dropout import fast_dropout
from finetune.models.encoder import checkpointed_layers
from finetune.models.sparse_embedding import SparseEmbeddings
from finetune.runtime.device import place, resolve_precision
from finetune.runtime.launch import on_main_process, require_equal
from finetune.runtime.progress import Reporter
from finetune.runtime.signals import InterruptHandler
from finetune.tasks.base import Task
from finetune.tasks.definition import starting_commit
from finetune.training.callbacks import Callback, StepEvent, tell
from finetune.training.checkpoint import check_files, load_checkpoint, save_checkpoint
from finetune.training.data import training_data
from finetune.training.multitask import (
    Planned,
    TitledReporter,
    common_schedule,
    each_weight_once,
    require_common_settings,
    require_own_checkpoint,
    share_encoder,
    task_of_each_step,
)
from finetune.training.optimizer import (
    Schedule,
    adamw,
    logged_learning_rates,
    parameter_groups,
)
from finetune.training.part import Part
from finetune.training.run_folder import RunWriter, open_log, open_run
from finetune.training.scoring import (
    check_metric,
    check_splits,
    evaluate_and_keep,
    report_kept,
    report_scores,
    report_start,
    score_best,
    tell_saved,
)
from finetune.training.step import LossFunction, begin_step
from finetune.types import UserError

log = logging.getLogger(__name__)


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
    with contextlib.ExitStack() as opened:
        folder = folder or opened.enter_context(open_run(config))
        reporter = reporter or Reporter(quiet=not folder.accelerator.is_main_process)
        part = part_of(task, data, config, folder, reporter, head=head, loss=loss)
        part.callbacks = callbacks
        part.custom_metrics = {**part.custom_metrics, **custom_metrics((), metrics or {})}
        return train([part])[0]


def fit_together(
    tasks: Mapping[str, Planned], folder: RunWriter, reporter: Reporter
) -> dict[str, FitResult]:
    """Train several tasks on one encoder, and score each as ``fit`` does.

    Args:
        tasks: By name, each task with its data and settings, ``steps`` among them; settings with
            the mark ``shared`` are equal.
        folder: The folder of all: the checkpoint is in ``last/``, and each task has a run folder.
        reporter: Shows the progress.

    Returns:
        The result of each task by name.

    Raises:
        UserError: settings do not fit together, and for the reasons of ``fit``.
        Interrupted: after Ctrl-C or SIGTERM, once the checkpoint is written.
    """
    configs = {name: config for name, (_, _, config) in tasks.items()}
    require_common_settings(configs)
    resume = next(iter(configs.values())).resume
    on_main_process(lambda: require_own_checkpoint(folder.path, list(tasks), resume))
    with contextlib.ExitStack() as opened:
        parts = [
            part_of(
                task,
                data,
                config,
                opened.enter_context(open_run(config, folder.accelerator, folder.last)),
                TitledReporter(reporter, name),
                name=name,
            )
            for name, (task, data, config) in tasks.items()
        ]
        return dict(zip(tasks, train(parts, reporter), strict=True))


def part_of(
    task: Task,
    data: Dataset,
    config: TrainConfig,
    folder: RunWriter,
    reporter: Reporter,
    **more: Any,
) -> Part:
    """Return a task as a part of a run; ``more`` are further fields."""
    return Part(
        task=replace(task, record=task.record.unfitted()),
        dataset=data,
        config=config,
        folder=folder,
        reporter=reporter,
        custom_metrics=custom_metrics(config.custom_metrics, {}),
        precision=resolve_precision(config, folder.accelerator.device),
        notes=list(data.notes),
        **more,
    )


def train(  # noqa: C901 (the whole course is in one place)
    parts: Sequence[Part], reporter: Reporter | None = None
) -> list[FitResult]:
    """Train the models of all parts of a run, and score the best: the course of every run.

    Several parts share the encoder, the optimizer and the checkpoint, and their steps take turns.

    Args:
        parts: The parts; each has a run folder.
        reporter: Shows the progress of the whole run; by default the reporter of the only part.

    Returns:
        The result of each part.
    """
    config, folder, reporter = parts[0].config, parts[0].folder, reporter or parts[0].reporter
    accelerator, last = folder.accelerator, folder.last
    with contextlib.ExitStack() as restored:
        # the data
        resuming = all([begin(part) for part in parts])
        for part in parts:
            part.data = training_data(
                part.task, part.dataset, part.config, accelerator, part.report
            )
            if part.lesson is not None:
                part.lesson.extend_data(part)
        if resuming:
            on_main_process(lambda: check_files(last))
        elif config.resume:
            on_main_process(lambda: _require_no_checkpoint(parts))

        # the models
        for part in parts:
            _open_model(part, resuming, restored)
        share_encoder([part.head for part in parts])
        if not resuming:
            for part in parts:
                check_splits(part)
                start = part.task.warm_start
                if replays(part) and start and start.rows:  # a new head has no scores to keep
                    report_start(part)

        # the optimizer
        sparse = restored.enter_context(_sparse_embeddings(parts))
        groups = [group for part in parts for group in parameter_groups(part.head, part.config)]
        for part in parts:
            if part.lesson is not None:
                groups += part.lesson.parameter_groups(part)
        optimizer = sparse.attach(adamw(each_weight_once(groups), config))
        if config.tuning != "full":
            peaks = logged_learning_rates(optimizer)
            parts[0].report(
                f"--tuning {config.tuning} trains {trained_share(parts[0].head)}, at "
                + ", ".join(f"{name} {value:g}" for name, value in peaks.items())
            )
        interrupt, copies = InterruptHandler(accelerator), None
        for part in parts:
            part.step = begin_step(
                part.task,
                part.head,
                optimizer,
                part.config,
                accelerator,
                part.precision,
                interrupt,
                copies,
                loss=part.loss,
                lesson=part.lesson,
            )
            copies = part.step.copies

        # restore or begin
        schedule = common_schedule(parts)
        num_threads = torch.get_num_threads() if accelerator.device.type == "cpu" else None
        if resuming:
            load_checkpoint(parts, optimizer)
            _tell_threads(parts[0].state.num_threads, num_threads, reporter)
        done = sum(part.state.step for part in parts)
        if resuming:
            reporter.say(f"continuing from step {done} of {schedule.num_steps}")
        for part in parts:
            part.state.num_threads = num_threads
            write_start(part)
            check_metric(part)

        # the steps
        if not all(part.state.finished for part in parts):
            running = restored.enter_context(contextlib.ExitStack())
            running.enter_context(interrupt)
            for part in parts:
                part.log = open_log(part.folder.path / "log.jsonl", accelerator, part.state.step)
            batches = [
                running.enter_context(contextlib.closing(part.data.batches(part.state.step)))
                for part in parts
            ]
            reporter.start("training", schedule.num_steps, done)
            running.enter_context(reporter)
            # each task of several has a line for each of its evaluations
            every, line = schedule.num_steps if len(parts) > 1 else schedule.log_every, ""
            for number in task_of_each_step(parts)[done:]:
                part, state, plan = parts[number], parts[number].state, parts[number].data.schedule
                batch = next(batches[number])
                lr_factor = schedule.lr_factor(done)
                loss, norm = part.step(
                    batch.micro_batches, weight=batch.weight, lr_factor=lr_factor
                )
                part.log.add(loss, norm, batch.num_examples)
                done, state.step = done + 1, state.step + 1
                tell(part.callbacks, StepEvent(state.step, plan.num_steps, loss, norm))
                stop, at_end = interrupt.should_stop(), state.step == plan.num_steps
                evaluating = at_end or state.step % plan.eval_every == 0
                saving = stop or done % schedule.save_every == 0 or done == schedule.num_steps
                if evaluating or saving or done % every == 0:
                    for each in parts if saving else [part]:
                        wait = evaluating or saving
                        line = each.log.flush(each.state.step, optimizer, wait=wait)
                reporter.update(done, line)
                if evaluating:
                    evaluate_and_keep(part)
                state.finished |= at_end
                finished = all(each.state.finished for each in parts)
                if saving or finished:
                    save_checkpoint(parts, optimizer)
                    tell_saved(parts[0], last, at_once=stop or finished)
                if stop or (finished and interrupt.signals_received()):
                    raise interrupt.interrupted(
                        f"stopped at step {done} of {schedule.num_steps}; the checkpoint is in "
                        f"{last}"
                    )
                if finished:
                    break
            running.close()

        # the scores of the best models
        for part in parts:
            report_kept(part)
        return [finish(part) for part in parts]


def begin(part: Part) -> bool:
    """Prepare the run folder of a part; return whether its training continues."""
    advice = "give all machines the same files"
    require_equal("fingerprint of the data", part.dataset.fingerprint, advice)
    resuming, notes = part.folder.begin(part.config, part.dataset)
    for note in notes:
        part.report(note)
    return resuming


def _require_no_checkpoint(parts: Sequence[Part]) -> None:
    save_every = common_schedule(parts).save_every
    if len(parts) == 1:
        saved, schedule = parts[0].folder.run.config.get, parts[0].data.schedule
        config = replace(
            parts[0].config, eval_every=saved("eval_every"), save_every=saved("save_every")
        )
        before = Schedule.from_config(config, schedule.num_examples)
        save_every = max(save_every, before.save_every)
    steps = sum(part.folder.num_logged_steps for part in parts)
    if steps > 2 * save_every:  # the second one waits until the first is on disk
        raise UserError(
            f"{parts[0].folder.last} is missing, but the run had reached it: restore it from a "
            "copy, or train again with another --out."
        )


def _open_model(part: Part, resuming: bool, restored: contextlib.ExitStack) -> None:
    """Create the model of a part, or load it from the checkpoint; prepare it for training.

    ``restored`` collects how to undo the changes to a model of the caller.
    """
    saved = part.folder.last / part.name
    set_seed(part.config.seed)
    head = part.task.head(saved) if resuming else part.head or part.task.head()
    restored.enter_context(light_tuning(head, part.config))
    if resuming:
        load_adapter_state(head, saved)
    if part.config.gradient_checkpointing:
        restored.enter_context(checkpointed_layers(head.encoder))
    part.weights = weight_numbers(head)
    part.head = place(head, part.folder.accelerator.device)
    if reason := part.head.encoder.padding_reason:
        near = "" if part.head.encoder.family.reads_padding else "near-"
        part.reporter.say(f"sequences are padded, in groups of {near}equal length: {reason}")
    restored.enter_context(same_modes(part.head))
    restored.enter_context(fast_dropout(part.head))


def _sparse_embeddings(parts: Sequence[Part]) -> SparseEmbeddings:
    part = parts[0]
    # a step that fp16 skips has no weight decay, which the other rows would get
    whole = len(parts) > 1 or part.precision == "fp16"
    sparse = SparseEmbeddings(
        part.head,
        "off" if whole else part.config.sparse_embeddings,
        (each.sequences.ids.values for each in part.data.read_in_training),
        part.task.added_ids(),
    )
    if sparse.note:
        log.info(sparse.note)  # with --verbose
    return sparse


def _tell_threads(before: int | None, now: int | None, reporter: Reporter) -> None:
    if before not in (None, now):
        reporter.say(
            f"the run was started with {before} CPU threads, and now has {now}: the weights will "
            f"differ by rounding from an uninterrupted run (OMP_NUM_THREADS={before} avoids that)"
        )


def write_start(part: Part) -> None:
    """Write the settings of a part, and begin to track it."""
    part.folder.write_start(
        part.task,
        part.config,
        fingerprint=part.dataset.fingerprint,
        training_fingerprint=part.dataset.training_fingerprint,
        precision_used=part.precision,
        revision_used=starting_commit(part.config),
        data_used=part.dataset.pinned,
    )
    part.folder.require_shared()
    if part.task.description.words:
        part.folder.write_vocabulary(part.dataset.splits["train"])
    if part.config.track != "none":
        plain = {
            name: value if isinstance(value, int | float | str | bool) else str(value)
            for name, value in settings(part.config).items()
        }
        accelerator = part.folder.accelerator
        # of several runs, each has its own
        accelerator.project_configuration = ProjectConfiguration(str(part.folder.path))
        accelerator.init_trackers("finetune", config=plain)


def replays(part: Part) -> bool:
    """Return whether a trained model goes on with new data and some of its old ones."""
    config = part.config
    both = config.replayed is not None and config.init_from is not None
    return both and part.task.fit_classifier is None


def finish(part: Part) -> FitResult:
    """Score the best model of a part."""
    metrics, accelerator = score_best(part), part.folder.accelerator
    if replays(part):
        report_scores(part, "after", metrics)
    if part.config.track != "none":
        flat = {f"{s}/{name}": v for s, values in metrics.items() for name, v in values.items()}
        accelerator.log(flat, step=part.state.step)
        accelerator.end_training()
    accelerator.wait_for_everyone()
    return FitResult(
        part.task,
        part.folder.path,
        metrics,
        part.state.best_step,
        part.data.schedule.num_steps,
        part.notes,
        part.weights,
    )


@contextlib.contextmanager
def same_modes(model: torch.nn.Module) -> Iterator[None]:
    """Context that restores at its end which modules are in training mode."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
