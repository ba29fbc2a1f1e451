"""Distillation: a student, its loss against the outputs of its teacher, and how they compare.

The teacher predicts in the step. The loss of a step is

    (1 - w) soft + w hard + v hidden,

each a mean over the optimizer batch: ``soft`` the divergence from the teacher's distribution at a
temperature (Hinton et al., 2015), over sequences or words; ``hard`` the loss of the task, over
sequences or words with gold; ``hidden`` the squared difference from hidden states of the teacher,
over tokens (Mukherjee & Awadallah 2020, "XtremeDistil"). XtremeDistil trains in stages, and with a
projection between widths; here one schedule trains all losses together, and widths are equal.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from finetune.config.tasks import IN_MEMORY, Resume, TrainConfig, affects_of
from finetune.data import Dataset
from finetune.evaluation.runs import RunFolder
from finetune.inference.loop import chunks, full_precision, predict
from finetune.inference.predictor import Predictor
from finetune.models.fewer_layers import spread_layers, with_layers
from finetune.models.graphs import replayed_passes
from finetune.models.heads.pair_classifier import PairClassifier
from finetune.models.heads.pretrained import PretrainedHead
from finetune.models.master_weights import cast_weights, casting
from finetune.preprocessing.batching import pack
from finetune.preprocessing.context import surrounded
from finetune.preprocessing.encodings import EncodedExamples, FlatSequences
from finetune.runtime.cache import file_hash
from finetune.runtime.device import batches_to_device, model_to_device, to_device
from finetune.runtime.progress import Reporter
from finetune.tasks import load_task, model_folder, saved_task
from finetune.tasks.base import Task
from finetune.tasks.definition import starting_config
from finetune.tasks.soft_losses import is_distillable, soft_loss
from finetune.training.loss import Forward, RunLoss
from finetune.training.optimizer import Schedule, default_learning_rate
from finetune.training.run_folder import RunWriter, with_run_folder
from finetune.training.scoring import FitResult, Scorer
from finetune.training.trainer import fit
from finetune.types import Batch, Example, UserError, abbreviated, quantity

LR_FACTOR = 6.0
"""The default learning rate of a student, in multiples of the usual one."""


@dataclass
class Teacher:
    """A trained model, loaded."""

    name: str
    """The run folder, as the user wrote it."""
    folder: Path
    """The folder of the model."""
    task: Task
    model: Any
    """The model, which predicts without dropout and is not trained."""


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """The weights of the losses, and unlabeled text."""

    temperature: float = 2.0
    """Divides the logits of teacher and student in the soft loss."""
    hard_weight: float = 0.2
    """Weight of the gold labels, from 0 to 1; the teacher's predictions have the rest."""
    hidden_weight: float | None = None
    """Weight of the difference of hidden states; unset is 1 if they can be compared, else 0."""
    unlabeled: str | None = None
    """File of texts without labels."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        hidden = self.hidden_weight
        for flag, value, legal, wanted in (
            ("--temperature", self.temperature, self.temperature > 0, "above 0"),
            ("--hard-weight", self.hard_weight, 0 <= self.hard_weight <= 1, "from 0 to 1"),
            ("--hidden-weight", hidden, hidden is None or hidden >= 0, "0 or more"),
        ):
            if not legal or value in (float("inf"), float("-inf")):
                raise UserError(f"{flag} must be a finite number {wanted}, not {value}.")


Taught = tuple[Batch, Any, list[Tensor]]
"""A micro-batch; the logits of the teacher; its hidden states [T, H]."""


class DistillationLoss(RunLoss):
    """The losses of a student against its teacher."""

    def __init__(self, task: Task, teacher: Teacher, weights: Distillation) -> None:
        super().__init__(task, task.state.config.custom_loss)
        self.task, self.teacher, self.weights = task, teacher, weights
        self.precision, self.hidden_weight = "fp32", 0.0
        self.layers: Sequence[int] = ()
        self.teacher_layers: Sequence[int] = ()
        """The layers of student and teacher whose hidden states are compared."""
        self.read_by_teacher: FlatSequences | None = None
        """The training sequences of a teacher with another tokenizer."""
        self.rows: dict[int, int] = {}
        """Their numbers by example."""

    def prepare(self, scorer: Scorer, opened: ExitStack) -> None:
        """Add unlabeled text to the training data, and encode all as the teacher reads it."""
        data, task, teacher = scorer.data, self.task, self.teacher
        self.precision = scorer.precision
        teacher.model = model_to_device(teacher.model, scorer.folder.accelerator.device).eval()
        cast_weights(teacher.model, self.precision)
        examples, parts = data.splits["train"], [data.train]
        reads_otherwise = not task.tokenizer.equals(teacher.task.tokenizer)
        of_teacher = [teacher.task.encode(examples)] if reads_otherwise else []
        if self.weights.unlabeled is not None:
            for chunk in self._unlabeled(scorer.config.encoding, len(examples)):
                parts.append(task.encode(chunk, for_training=True))
                of_teacher += [teacher.task.encode(chunk)] if reads_otherwise else []
            if len(parts) == 1:
                raise UserError(f"--unlabeled {self.weights.unlabeled}: has no texts.")
            data.encoded["train"] = EncodedExamples.joined(parts)
            data.lengths = data.train.lengths
            data.schedule = Schedule.from_config(scorer.config, len(data.train))
            number = quantity(len(data.train) - len(examples), "unlabeled example")
            scorer.report(f"train: {number} more, which the teacher labels")
        if of_teacher:
            self.read_by_teacher = EncodedExamples.joined(of_teacher).sequences
            self._require_same_windows(data.train.sequences, self.read_by_teacher)
            ids = self.read_by_teacher.example.tolist()
            self.rows = {id: row for row, id in enumerate(ids)}
        else:
            rows = partial(data.row_shapes, teacher.model.texts_per_sequence)
            opened.enter_context(replayed_passes(teacher.model.encoder, rows))
        self._choose_layers(scorer)

    def _unlabeled(self, encoding: str, first_id: int) -> Iterator[list[Example]]:
        state = self.task.state
        examples: Iterator[Any] = state.read(str(self.weights.unlabeled), encoding=encoding)
        if self.task.description.words:
            examples = (replace(e, tags=None, spans=None, misaligned=()) for e in examples)
        if reach := state.context_words:
            examples = surrounded(examples, reach)
        examples = (e for e in examples if state.of_blank(e) is None)
        yield from chunks(replace(e, id=id) for id, e in enumerate(examples, first_id))

    def _require_same_windows(self, student: FlatSequences, teacher: FlatSequences) -> None:
        subwords = self.task.state.all_subwords
        same = len(student) == len(teacher) and all(
            (getattr(student, name) == getattr(teacher, name)).all()
            for name in ("example", "window", "num_words")
        )
        if subwords or not same or len(student) != len(set(student.example.tolist())):
            what = "--label-subwords all" if subwords else "long examples"
            raise UserError(
                f"teacher and student have different tokenizers, so that {what} cannot be "
                "compared: use a student with the tokenizer of the teacher, such as --layers, or "
                "leave out texts that do not fit into one sequence."
            )

    def _choose_layers(self, scorer: Scorer) -> None:
        weight, reason = self.weights.hidden_weight, ""
        if self.read_by_teacher is not None:
            reason = "teacher and student have different tokenizers"
        for model in (scorer.model, self.teacher.model):
            inner = getattr(model, "tagger", model)
            if isinstance(inner, PretrainedHead) and not inner.known_type:
                reason = f"the hidden states of {inner.config.model_type} models are not at hand"
            elif isinstance(inner, PairClassifier):
                reason = "the texts of a pair are read apart"
        if scorer.model.encoder.width != self.teacher.model.encoder.width:
            reason = "the widths of teacher and student differ"
        if reason and weight:
            raise UserError(f"--hidden-weight {weight:g}: {reason}: leave it out.")
        if reason and weight is None:
            scorer.report(f"hidden states are not compared: {reason}")
        self.hidden_weight = 0.0 if reason else 1.0 if weight is None else weight
        if self.hidden_weight:
            number = scorer.model.encoder.num_layers
            self.layers = range(1, number + 1)
            self.teacher_layers = spread_layers(number, self.teacher.model.encoder.num_layers)

    def to_device(
        self, batches: Sequence[Batch], device: torch.device
    ) -> tuple[list[Taught], Tensor]:
        """Move the batches to a device, and compute the outputs of the teacher.

        The counts are the numbers of rows (sequences, examples or words), of rows with gold, and of
        tokens.
        """
        inputs = moved = list(batches_to_device(batches, device))
        if self.read_by_teacher is not None:
            rows = ([self.rows[id] for id in batch.example] for batch in batches)
            packed = (pack(self.read_by_teacher.take(np.array(indices))) for indices in rows)
            inputs = list(batches_to_device(packed, device))
        taught, counts = [], torch.zeros(3)
        model = self.teacher.model
        for batch, read in zip(moved, inputs, strict=True):
            with torch.no_grad(), casting(model, self.precision, device):
                output, states = model.with_states(read, self.teacher_layers)
            taught.append((batch, full_precision(output), states))
            counts += torch.tensor([self._num_rows(batch), 0, len(batch.input_ids)])
        counts = to_device(counts, device)
        # only the loss knows how it counts; here the output of the teacher has the right shape
        counts[1] = sum(self.function(output, batch)[1] for batch, output, _ in taught)
        return taught, counts

    def _num_rows(self, batch: Batch) -> int:
        if self.task.description.grouped:
            return len(set(batch.example))
        return len(batch.words) if self.task.description.words else len(batch.lengths)

    def __call__(self, forward: Forward, taught: Taught) -> tuple[Tensor, Tensor]:
        """Compute the sums of the three losses of a batch [3], and the count of the first [1]."""
        (batch, goal, goal_states), weights = taught, self.weights
        output, states = forward(batch, self.layers)
        soft = soft_loss(self.task, output, goal, batch, weights.temperature)
        hard, _ = self.function(output, batch)
        hidden = torch.zeros_like(soft)
        if states:  # the mean over layers and H of squared differences, summed over tokens
            joined, goal = (torch.cat(list(parts), 1) for parts in (states, goal_states))
            joined = joined.to(torch.promote_types(joined.dtype, torch.float32))
            losses = functional.mse_loss(joined, goal.to(joined.dtype), reduction="none")
            hidden = losses.mean(1).sum()
        sums = (
            (1 - weights.hard_weight) * soft,
            weights.hard_weight * hard,
            self.hidden_weight * hidden,
        )
        return torch.stack(sums), soft.new_full((1,), self._num_rows(batch))


def load_teacher(folder: str | Path) -> Teacher:
    """Load the model of a run folder; UserError if its task cannot be distilled."""
    path = model_folder(folder)
    RunFolder.open(Path(folder)).require_intact()
    task = saved_task(path)
    if not is_distillable(task):
        raise UserError(
            f"{folder}: a model of `finetune {task.name}` that cannot be distilled: distill one of "
            "classify, nli, tag, ner, qa or choice, trained without --crf and --few-shot."
        )
    return Teacher(str(folder), path, task, task.model(path))


def student_folder(teacher: str | Path, resume: Resume) -> str:
    """Choose the run folder of a student that names none: a new one, or the last to resume."""
    path = str(teacher) if Path(teacher).exists() else str(teacher).partition("@")[0]
    name = f"{Path(path).resolve().name}-student"
    return str(with_run_folder(TrainConfig(resume=resume), "", name).out)


def new_student(
    teacher: Teacher, model: str | None, data: Any, settings: Mapping[str, Any]
) -> tuple[TrainConfig, Any]:
    """Prepare a student: its settings with its run folder, and its data in memory if any.

    ``data`` and ``settings`` are as in ``api.distill``.
    """
    changed = {key: value for key, value in settings.items() if value is not None}
    if isinstance(data, str | Path):
        changed["data"], data = str(data), None
    elif data is not None:
        changed["data"] = IN_MEMORY
    elif "data" not in changed and teacher.task.state.config.data == IN_MEMORY:
        raise UserError(f"{teacher.name} was trained on data in memory: give data.")
    changed["out"] = changed.get("out") or student_folder(
        teacher.name, changed.get("resume", False)
    )
    config = student_config(teacher.task.state.config, model, teacher.name, **changed)
    return with_run_folder(config, teacher.task.name), data


def student_config(
    teacher: TrainConfig, model: str | None, folder: str, **changed: Any
) -> TrainConfig:
    """The settings of a student: the task settings of its teacher, and default training.

    Without a ``model`` it starts from the ``folder`` of the teacher. ``changed`` settings replace
    both. The default learning rate is higher than usual: few layers with many targets take larger
    steps.
    """
    cls = type(teacher)
    if model is None and teacher.bilstm:
        raise UserError(
            "--layers does not work with a teacher with --bilstm: name a small model with --model."
        )
    inherited: dict[str, Any] = {
        name: getattr(teacher, name) for name, mark in affects_of(cls).items() if mark.inherited
    }
    start = {"init_from": folder} if model is None else {"model": model}
    config = cls(**{**inherited, **start, **changed})
    if config.lr is None:
        lr = round(LR_FACTOR * default_learning_rate(starting_config(config).hidden_size), 8)
        config = replace(config, lr=lr)
    return config


def load_student(teacher: Teacher, config: TrainConfig, data: Any = None) -> tuple[Task, Dataset]:
    """Read the data, and return the task of the teacher with the student's settings."""
    task, dataset = load_task(config, teacher.task.name, data)
    state, of_data = teacher.task.state, task.state
    if unknown := set(of_data.labels) - set(state.labels):
        raise UserError(
            f"{config.data}: label {min(unknown)!r} is not one of the teacher's "
            f"({abbreviated(state.labels)}): its student has the same labels."
        )
    if of_data.prediction_type != state.prediction_type:
        raise UserError(
            f"{config.data}: the teacher was trained on another type of data, and its student "
            "predicts the same type."
        )
    start = task.warm_start
    if start is not None:  # its head is the teacher's, also where others start anew
        note = f"layers of the encoder, and head, from {teacher.name}"
        start = replace(start, note=note)
    state = replace(state, config=config, max_length=of_data.max_length)
    return replace(task, state=state, warm_start=start), dataset


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

    There is one process. The student starts with some ``layers`` of the teacher, or with the model
    of the settings.
    """
    unlabeled = distillation.unlabeled
    if unlabeled is not None and not Path(unlabeled).is_file():
        raise UserError(f"--unlabeled {unlabeled}: no such file.")
    folder.teacher = {
        "folder": teacher.name,
        "weights": file_hash(teacher.folder / "model.safetensors"),
        **dataclasses.asdict(distillation),
        "layers": layers,
        "unlabeled": None if unlabeled is None else file_hash(Path(unlabeled)),
    }
    model = None
    if layers is not None:
        chosen = spread_layers(layers, teacher.model.encoder.num_layers)
        model = with_layers(task.model(teacher.folder), chosen, task.model)
    loss = DistillationLoss(task, teacher, distillation)
    return fit(task, data, config, folder, reporter, model, loss=loss)


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
