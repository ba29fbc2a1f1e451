"""Distillation: a small student learns from the outputs of a teacher.

The loss of a step is

    (1 - w) soft + w hard + v hidden,

each a mean over the optimizer batch: ``soft`` the divergence from the teacher's distribution at a
temperature (Hinton et al., 2015), over sequences or words; ``hard`` the loss of the task, over
sequences or words with gold; ``hidden`` the squared difference from hidden states of the teacher,
over tokens, through a learned projection if the widths differ (Mukherjee & Awadallah 2020,
"XtremeDistil"). XtremeDistil trains in stages; here one schedule trains all losses together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from finetune.config.tasks import Resume, TrainConfig, changes_of, column_map
from finetune.data import Dataset
from finetune.evaluation.runs import RunFolder
from finetune.inference.loop import CHUNK, predict
from finetune.inference.predictor import Predictor
from finetune.inference.teacher import TeacherOutputs, read_outputs, write_outputs
from finetune.models.fewer_layers import save_with_layers, spread_layers
from finetune.models.heads.pair_classifier import PairClassifier
from finetune.models.heads.pretrained import PretrainedHead
from finetune.preprocessing.encodings import Encoded, Encodings
from finetune.runtime.cache import file_hash
from finetune.runtime.progress import Reporter
from finetune.runtime.transfer import place
from finetune.tasks import load_task, model_folder, saved_task, task_definition
from finetune.tasks.base import Task
from finetune.tasks.capabilities import Distillable, GroupedSequences
from finetune.tasks.definition import load_tokenizer, starting_config
from finetune.training.data import TrainingData
from finetune.training.optimizer import (
    Schedule,
    adamw,
    default_learning_rate,
    parameter_groups,
)
from finetune.training.run_folder import OTHERS, RunWriter, with_run_folder
from finetune.training.step import Step
from finetune.training.trainer import FitResult, TrainingRun
from finetune.types import IGNORED, Batch, Example, UserError, abbreviated, quantity

LR_FACTOR = 6.0
"""The default learning rate of a student, in multiples of the usual one."""
OUTPUTS = "teacher"
"""Folder in the run folder with the outputs of the teacher, until training ends."""


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
    unlabeled_columns: tuple[str, ...] = ()
    """Columns of that file, as `role=column`."""

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


def distillable(task: Task, folder: str | Path) -> Distillable:
    """Return how models of a task are distilled; UserError for the run of ``folder`` if not."""
    if (found := task.capability(Distillable)) is None:
        raise UserError(
            f"{folder}: a model of `finetune {task.name}` that cannot be distilled: distill one of "
            "classify, nli, tag, ner or qa, trained without --few-shot."
        )
    return found


class Teacher:
    """A trained model, loaded."""

    def __init__(self, folder: str | Path) -> None:
        """Load the model of a run folder; UserError if its task cannot be distilled."""
        self.name, self.folder = str(folder), model_folder(folder)
        RunFolder.open(Path(folder)).require_intact()
        self.task = saved_task(self.folder)
        distillable(self.task, folder)
        self.head: Any = self.task.head(self.folder)
        self.num_layers, self.width = self.head.encoder.num_layers, self.head.encoder.width

    def facts(self) -> dict[str, Any]:
        """Return its folder, and the checksum of its weights."""
        return {"folder": self.name, "weights": file_hash(self.folder / "model.safetensors")}


def student_folder(teacher: str | Path, resume: Resume) -> str:
    """Return the run folder of a student that names none: a new one, or the last to resume."""
    found = str(teacher) if Path(teacher).exists() else str(teacher).partition("@")[0]
    name = f"{Path(found).resolve().name}-student"
    return str(with_run_folder(TrainConfig(resume=resume), "", name).out)


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


def plain_start(task: Task, teacher: Teacher, number: int) -> tuple[Task, Any]:
    """Return the task and model of a student without its teacher: layers of the pretrained model
    that the teacher started from, with a new head."""
    config = teacher.task.record.config
    start = {name: getattr(config, name) for name in ("model", "revision", "init_from")}
    own = replace(task.record.config, **start)
    record = task.record
    problem = record.extra_fields().get("problem")
    warm_start, _ = load_tokenizer(own, task_definition(task.name), list(record.labels), problem)
    task = replace(task, record=replace(record, config=own), _warm_start=warm_start)
    return task, starting_head(task, task.head(), number)


def read_unlabeled(task: Task, distillation: Distillation, encoding: str) -> Iterator[Example]:
    """Yield the examples of a file, without gold."""
    file, columns = str(distillation.unlabeled), column_map(distillation.unlabeled_columns)
    inputs = task.record.inputs
    examples: Iterator[Any] = inputs.read(file, columns=columns, encoding=encoding)
    if task.description.words:
        examples = (replace(each, tags=None, spans=None, unreachable=()) for each in examples)
    if (context := inputs.context) is not None:
        examples = context.add(examples)
    yield from examples


class _Data(TrainingData):
    """Training data with unlabeled text, and with the outputs of the teacher as targets."""

    outputs: TeacherOutputs

    def add_unlabeled(self, encoded: Encoded) -> None:
        """Add unlabeled sequences to train; their targets have no loss."""
        self.train = Encoded.joined([self.train, encoded])
        self.encoded["train"] = self.train
        self.lengths = self.train.lengths.tolist()

    def add_outputs(self, outputs: TeacherOutputs) -> None:
        """Add the outputs of the teacher for all sequences of train."""
        self.outputs, sequences = outputs, self.train.sequences
        targets = {**(sequences.targets or {}), "teacher_logits": outputs.logits}
        if outputs.states is not None:
            targets["teacher_states"] = outputs.states
        self.train = replace(self.train, sequences=replace(sequences, targets=targets))

    def targets(self, sequences: Encodings) -> dict[str, Tensor]:
        """Return the targets of the task, and the outputs of the teacher."""
        found = super().targets(sequences)
        for name, rows in (sequences.targets or {}).items():
            if name.startswith("teacher_"):
                found[name] = torch.from_numpy(rows.values)
        return found | {f"teacher_{name}": value for name, value in self.outputs.edges.items()}


class _Step(Step):
    """A step on the three losses."""

    distillation: Distillation
    distillable: Distillable
    hidden_weight = 0.0
    layers: Sequence[int] = ()
    projections: nn.ModuleList | None = None

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        weights = self.distillation
        with contextlib.ExitStack() as stack:
            states = stack.enter_context(self.head.encoder.recording(self.layers))
            logits = self._forward(batch)
        teacher = batch.targets["teacher_logits"]
        soft = self.distillable.soft_loss(logits, teacher, batch, weights.temperature)
        hard, _ = self.loss(logits, batch)
        hidden = torch.zeros_like(soft)
        if self.layers:
            hidden = hidden_loss(states, batch.targets["teacher_states"], self.projections)
        sums = (
            (1 - weights.hard_weight) * soft,
            weights.hard_weight * hard,
            self.hidden_weight * hidden,
        )
        return torch.stack(sums), soft.new_full((1,), self._num_soft(batch))

    def _loss_counts(self, batch: Batch) -> Tensor:
        """Return the numbers of rows (sequences, examples or words), with gold, and of tokens."""
        logits = batch.targets["teacher_logits"]
        if "teacher_transitions" in batch.targets:
            hard = (batch.targets["tag"] != IGNORED).sum()
        else:
            _, hard = self.loss(logits, batch)
        return torch.tensor([self._num_soft(batch), float(hard), len(batch.input_ids)])

    def _num_soft(self, batch: Batch) -> int:
        if self.task.capability(GroupedSequences) is not None:
            return len(set(batch.example))
        return len(batch.words) if self.task.description.words else len(batch.lengths)


def hidden_loss(
    states: Sequence[Tensor], teacher: Tensor, projections: Iterable[nn.Module] | None = None
) -> Tensor:
    """Return the squared difference from hidden states of a teacher, summed over tokens.

    It is the mean over layers and components.

    Args:
        states: Those of the student, [T, H] for each layer.
        teacher: Those of the teacher side by side, [T, layers * H'].
        projections: From H to H', for each layer; None if these are equal.
    """
    found = [state.float() if state.dtype != torch.float64 else state for state in states]
    if projections is not None:
        found = [layer(state) for layer, state in zip(projections, found, strict=True)]
    own = torch.cat(found, 1)
    difference: Tensor = functional.mse_loss(own, teacher.to(own.dtype), reduction="none")
    return difference.mean(1).sum()


class DistillationRun(TrainingRun):
    """A training run of a student."""

    _step_class = _Step

    def __init__(self, *parts: Any, teacher: Teacher, distillation: Distillation) -> None:
        """``parts`` are the arguments of ``TrainingRun``."""
        self.teacher, self.distillation = teacher, distillation
        self.read_by_teacher: Encodings | None = None
        self.projections: nn.ModuleList | None = None
        super().__init__(*parts)

    def _make_data(self) -> TrainingData:
        self.distillable = distillable(self.task, self.folder.path)
        self.same_tokenizer = self.task.tokenizer.equals(self.teacher.task.tokenizer)
        data = _Data(self.task, self.dataset, self.config, self.accelerator, self._report)
        examples = data.splits["train"]
        own, others = [], []
        if not self.same_tokenizer:
            others.append(self.teacher.task.encode(examples))
        if self.distillation.unlabeled is not None:
            for chunk in self._unlabeled(len(examples)):
                encoded = self.task.encode(chunk)
                without = self.distillable.targets_without_gold(encoded.sequences)
                sequences = replace(encoded.sequences, targets=without)
                own.append(replace(encoded, sequences=sequences))
                if not self.same_tokenizer:
                    others.append(self.teacher.task.encode(chunk))
            if not own:
                raise UserError(f"--unlabeled {self.distillation.unlabeled}: has no texts.")
            unlabeled = Encoded.joined(own)
            data.add_unlabeled(unlabeled)
            data.schedule = Schedule.from_config(self.config, len(data.train))
            self._report(
                f"train: {quantity(len(unlabeled), 'unlabeled example')} more, which the teacher "
                "labels"
            )
        if others:
            self.read_by_teacher = Encoded.joined(others).sequences
            self._require_same_windows(data.train.sequences, self.read_by_teacher)
        return data

    def _unlabeled(self, first_id: int) -> Iterator[list[Example]]:
        """Yield the unlabeled examples in chunks, with ids that continue the ids of train."""
        found = read_unlabeled(self.task, self.distillation, self.config.encoding)
        numbered = (replace(example, id=number) for number, example in enumerate(found, first_id))
        while chunk := list(islice(numbered, CHUNK)):
            yield chunk

    def _require_same_windows(self, own: Encodings, other: Encodings) -> None:
        """Raise UserError if another tokenizer divides examples in another way."""
        subwords = self.distillable.per_subword
        same = len(own) == len(other) and all(
            (getattr(own, name) == getattr(other, name)).all()
            for name in ("example", "part", "num_words")
        )
        if subwords or not same or len(own) != len(set(own.example.tolist())):
            what = "--label-subwords all and --word-score" if subwords else "long examples"
            raise UserError(
                f"teacher and student have different tokenizers, so that {what} cannot be "
                "compared: use a student with the tokenizer of the teacher, such as --layers, or "
                "leave out texts that do not fit into one sequence."
            )

    def _make_optimizer(self) -> torch.optim.Optimizer:
        """Return AdamW of the student and of the projections, if it needs any."""
        self._choose_layers()
        groups = parameter_groups(self.head, self.config)
        encoder = self.head.encoder
        if self.layers and encoder.width != self.teacher.width:
            with torch.random.fork_rng():
                torch.manual_seed(self.config.seed)
                self.projections = nn.ModuleList(
                    nn.Linear(encoder.width, self.teacher.width) for _ in self.layers
                )
            if (saved := self.folder.last / OTHERS).is_file():
                self.projections.load_state_dict(load_file(str(saved)))
            self.projections.to(self.device, next(self.head.parameters()).dtype)
            peak = max(group["peak"] for group in groups)
            for decay, number in ((self.config.weight_decay, 2), (0.0, 1)):
                weights = [w for w in self.projections.parameters() if w.ndim == number]
                groups.append(
                    {
                        "params": weights,
                        "lr": peak,
                        "peak": peak,
                        "encoder": False,
                        "weight_decay": decay,
                    }
                )
        return adamw(groups, self.config)

    def _choose_layers(self) -> None:
        """Choose the layers of the student whose states are compared, if they can be."""
        weight, head = self.distillation.hidden_weight, self.head
        reason = ""
        if not self.same_tokenizer:
            reason = "teacher and student have different tokenizers"
        for each in (head, self.teacher.head):
            inner = getattr(each, "tagger", each)
            if isinstance(inner, PretrainedHead) and not inner.known_type:
                reason = f"the hidden states of {inner.config.model_type} models are not at hand"
            elif isinstance(inner, PairClassifier):
                reason = "the texts of a pair are read apart"
        if reason and weight:
            raise UserError(f"--hidden-weight {weight:g}: {reason}: leave it out.")
        if reason and weight is None and not self.folder.last.is_dir():
            self._report(f"hidden states are not compared: {reason}")
        self.hidden_weight = 0.0 if reason else 1.0 if weight is None else weight
        number = head.encoder.num_layers if self.hidden_weight else 0
        self.layers = list(range(1, number + 1))

    def _make_step(self) -> Step:
        step = super()._make_step()
        assert isinstance(step, _Step)
        step.distillation, step.distillable = self.distillation, self.distillable
        step.hidden_weight = self.hidden_weight
        step.layers, step.projections = self.layers, self.projections
        return step

    def _other_tensors(self) -> dict[str, Mapping[str, Tensor]]:
        found = super()._other_tensors()
        if self.projections is not None:
            found[OTHERS] = self.projections.state_dict()
        return found

    def _train(self) -> None:
        folder, sequences = self.folder.path / OUTPUTS, self.data.train.sequences
        if not self.config.resume:  # those of a killed run, perhaps of another teacher
            shutil.rmtree(folder, ignore_errors=True)
        if not folder.is_dir():
            head = place(self.teacher.head, self.device)
            number = len(self.layers)
            write_outputs(
                folder,
                self.teacher.task,
                head,
                self.read_by_teacher or sequences,
                layers=spread_layers(number, self.teacher.num_layers) if number else (),
                device=self.device,
                precision=self.precision,
                reporter=self.reporter,
                check_stop=self._check_stop,
            )
        self.teacher.head = self.read_by_teacher = None
        outputs = read_outputs(folder, self.task, sequences)
        assert isinstance(self.data, _Data)
        self.data.add_outputs(outputs)
        super()._train()

    def _check_stop(self) -> None:
        if self.interrupt.should_stop():
            message = "stopped before training: the teacher will predict again"
            raise self.interrupt.interrupted(message)

    def finish(self) -> FitResult:
        """Score the best model, and delete the outputs of the teacher."""
        result = super().finish()
        shutil.rmtree(self.folder.path / OUTPUTS, ignore_errors=True)
        return result


def fit_student(
    task: Task,
    data: Dataset,
    config: TrainConfig,
    folder: RunWriter,
    reporter: Reporter,
    teacher: Teacher,
    distillation: Distillation,
    layers: int | None = None,
) -> tuple[FitResult, Schedule]:
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

    Returns:
        The result, and the schedule of the training.

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
        facts["unlabeled"] = [file_hash(file), *distillation.unlabeled_columns]
    folder.teacher = {**teacher.facts(), **facts}
    head = None
    if layers is not None:
        head = starting_head(task, task.head(teacher.folder), layers)
    with contextlib.ExitStack() as restore:
        parts = (task, data, config, folder, reporter, head, restore)
        run = DistillationRun(*parts, teacher=teacher, distillation=distillation)
        return run.run(), run.schedule


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
