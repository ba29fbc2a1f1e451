"""Distillation: the settings of a student, its run, and how it compares with its teacher."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from finetune.config.tasks import IN_MEMORY, Resume, TrainConfig, changes_of
from finetune.data import Dataset
from finetune.evaluation.runs import RunFolder
from finetune.inference.loop import predict
from finetune.inference.predictor import Predictor
from finetune.models.fewer_layers import save_with_layers, spread_layers
from finetune.runtime.cache import file_hash
from finetune.runtime.progress import Reporter
from finetune.tasks import load_task, model_folder, saved_task, task_class
from finetune.tasks.base import Task
from finetune.tasks.definition import load_tokenizer, starting_config
from finetune.training.distillation_loss import Distillation, DistillationLoss, Teacher
from finetune.training.optimizer import default_learning_rate
from finetune.training.run_folder import RunWriter, require_free, with_run_folder
from finetune.training.trainer import FitResult, fit
from finetune.types import Example, UserError, abbreviated

LR_FACTOR = 6.0
"""The default learning rate of a student, in multiples of the usual one."""


def require_distillable(task: Task, folder: str | Path) -> None:
    """Raise UserError for the run of ``folder`` if models of its task cannot be distilled."""
    if task.soft_loss is None:
        raise UserError(
            f"{folder}: a model of `finetune {task.name}` that cannot be distilled: distill one of "
            "classify, nli, tag, ner, qa or choice, trained without --few-shot."
        )


def load_teacher(folder: str | Path) -> Teacher:
    """Load the model of a run folder; UserError if its task cannot be distilled."""
    model = model_folder(folder)
    RunFolder.open(Path(folder)).require_intact()
    task = saved_task(model)
    require_distillable(task, folder)
    head: Any = task.head(model)
    return Teacher(str(folder), model, task, head, head.encoder.num_layers, head.encoder.width)


def student_folder(teacher: str | Path, resume: Resume) -> str:
    """Return the run folder of a student that names none: a new one, or the last to resume."""
    found = str(teacher) if Path(teacher).exists() else str(teacher).partition("@")[0]
    name = f"{Path(found).resolve().name}-student"
    return str(with_run_folder(TrainConfig(resume=resume), "", name).out)


def new_student(
    teacher: Teacher, model: str | None, data: Any, settings: Mapping[str, Any]
) -> tuple[TrainConfig, Any]:
    """Return the settings of a student, with its run folder, and its data in memory if any.

    ``data`` and ``settings`` are as in ``api.distill``.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    if isinstance(data, str | Path):
        given["data"], data = str(data), None
    elif data is not None:
        given["data"] = IN_MEMORY
    elif "data" not in given and teacher.task.record.config.data == IN_MEMORY:
        raise UserError(f"{teacher.name} was trained on data in memory: give data.")
    given["out"] = given.get("out") or student_folder(teacher.name, given.get("resume", False))
    config = student_config(teacher.task.record.config, model, teacher.name, **given)
    return with_run_folder(config, teacher.task.name), data


def config_without_teacher(config: TrainConfig) -> TrainConfig:
    """Return the settings of the student without its teacher, for the folder OUT-without-teacher.

    Its steps follow from the student's. UserError if the folder is not free.
    """
    run = RunFolder.open(Path(f"{config.out}-without-teacher"))
    resume = bool(config.resume) and run.is_run
    if not resume:
        require_free(run)
    return replace(config, out=str(run.path), epochs=None, resume=resume)


def student_config(
    teacher: TrainConfig, model: str | None, folder: str, **given: Any
) -> TrainConfig:
    """Return the settings of a student: the task settings of its teacher, and default training.

    Without a ``model`` it starts from the ``folder`` of the teacher. ``given`` settings replace
    both. The default learning rate is higher than usual: few layers with many targets take larger
    steps.
    """
    kind = type(teacher)
    own: dict[str, Any] = {
        name: getattr(teacher, name) for name, mark in changes_of(kind).items() if mark.inherited
    }
    start = {"init_from": folder} if model is None else {"model": model}
    config = kind(**{**own, **start, **given})
    if config.lr is None:
        lr = round(LR_FACTOR * default_learning_rate(starting_config(config).hidden_size), 8)
        config = replace(config, lr=lr)
    return config


def load_student(teacher: Teacher, config: TrainConfig, data: Any = None) -> tuple[Task, Dataset]:
    """Read the data, and return the task of the teacher with the student's settings."""
    if config.init_from is not None and teacher.task.record.config.bilstm:
        raise UserError(
            "--layers does not work with a teacher with --bilstm: name a small model with --model."
        )
    task, dataset = load_task(config, teacher.task.name, data)
    record, own = teacher.task.record, task.record
    if unknown := set(own.labels) - set(record.labels):
        raise UserError(
            f"{config.data}: label {min(unknown)!r} is not one of the teacher's "
            f"({abbreviated(record.labels)}): its student has the same labels."
        )
    if own.kind != record.kind:
        raise UserError(
            f"{config.data}: the teacher was trained on another kind of data, and its student "
            "predicts the same kind."
        )
    record = replace(record, config=config, max_length=own.max_length)
    return replace(task, record=record), dataset


def starting_head(task: Task, head: Any, number: int) -> Any:
    """Return a model with ``number`` of the layers of another, which is used up."""
    layers = spread_layers(number, head.encoder.num_layers)
    with tempfile.TemporaryDirectory(prefix="finetune-", ignore_cleanup_errors=True) as folder:
        save_with_layers(head, layers, Path(folder))
        return task.head(folder)


def fit_student(
    task: Task,
    data: Dataset,
    config: TrainConfig,
    folder: RunWriter,
    reporter: Reporter,
    teacher: Teacher,
    distillation: Distillation,
    layers: int | None = None,
) -> FitResult:
    """Train a student on the outputs of its teacher, and score it as ``fit`` does.

    Args:
        task: The task of the student (``load_student``).
        data: Its data.
        config: Its settings.
        folder: The run folder; there is one process.
        reporter: Shows the progress.
        teacher: The teacher, whose model is used up.
        distillation: The losses.
        layers: The number of layers of the teacher that the student starts with; None for the
            model of the settings.

    Raises:
        UserError: Teacher, student and settings do not fit, and for the reasons of ``fit``.
        Interrupted: After Ctrl-C or SIGTERM, once the checkpoint is written.
    """
    distilling = dataclasses.asdict(distillation)
    facts = {key: distilling[key] for key in ("temperature", "hard_weight", "hidden_weight")}
    facts |= {"layers": layers, "unlabeled": None}
    if distillation.unlabeled is not None:
        file = Path(distillation.unlabeled)
        if not file.is_file():
            raise UserError(f"--unlabeled {file}: no such file.")
        facts["unlabeled"] = file_hash(file)
    folder.teacher = {**teacher.facts(), **facts}
    head = None
    if layers is not None:
        head = starting_head(task, task.head(teacher.folder), layers)
    require_distillable(task, folder.path)
    lesson = DistillationLoss(task, teacher, distillation)
    return fit(task, data, config, folder, reporter, head, loss=lesson)


def fit_without_teacher(
    task: Task,
    data: Dataset,
    config: TrainConfig,
    folder: RunWriter,
    reporter: Reporter,
    teacher: Teacher,
    layers: int | None = None,
) -> FitResult:
    """Train a student without its teacher, with the arguments of ``fit_student``.

    With ``layers`` it starts with these layers of the pretrained model that the teacher started
    from, and a new head.
    """
    head, record = None, replace(task.record, config=config)
    if layers is not None:
        start = teacher.task.record.config
        config = replace(config, model=start.model, init_from=start.init_from)
        problem = record.extra_fields().get("problem")
        warm_start, _ = load_tokenizer(config, task_class(task.name), list(record.labels), problem)
        task = replace(task, record=replace(record, config=config), warm_start=warm_start)
        head = starting_head(task, task.head(), layers)
        folder.teacher = {"layers": layers}
    else:
        task = replace(task, record=record)
    config = with_run_folder(config, task.name)
    return fit(task, data, config, folder, reporter, head)


class Measured(NamedTuple):
    """A model in numbers."""

    score: float
    parameters: int
    megabytes: float
    """Size of its folder, in 10^6 bytes."""
    examples_per_second: float
    """Predictions on this machine, from examples to results."""


def measure(folder: Path, examples: Sequence[Example], metric: str) -> Measured:
    """Score a model on examples with gold, and time it."""
    model = Predictor(folder)
    times: list[float] = []
    while len(times) < 2 or (sum(times) < 1 and len(times) < 5):  # the first warms up
        begin = time.perf_counter()
        predicted = predict(model.task, model.model, examples, model.accelerator)
        times.append(time.perf_counter() - begin)
    scores = model.task.score(examples, predicted)
    files = [path for path in model_folder(folder).rglob("*") if path.is_file()]
    return Measured(
        scores[metric],
        sum(weight.numel() for weight in model.model.parameters()),
        sum(path.stat().st_size for path in files) / 1e6,
        len(examples) / min(times),
    )
