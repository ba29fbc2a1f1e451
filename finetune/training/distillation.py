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

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from finetune.config.tasks import IN_MEMORY, Resume, TrainConfig, changes_of, column_map
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
from finetune.runtime.device import place
from finetune.runtime.progress import Reporter
from finetune.runtime.signals import InterruptHandler
from finetune.tasks import load_task, model_folder, saved_task, task_class
from finetune.tasks.base import Task
from finetune.tasks.definition import load_tokenizer, starting_config
from finetune.training.checkpoint import OTHERS
from finetune.training.data import TrainingData
from finetune.training.optimizer import Schedule, default_learning_rate, parameter_groups
from finetune.training.part import Part
from finetune.training.run_folder import RunWriter, require_free, with_run_folder
from finetune.training.trainer import FitResult, fit, part_of, train
from finetune.types import IGNORED, Batch, Example, UserError, abbreviated, quantity

BatchLoss = Callable[[Any, Batch], tuple[Tensor, Tensor]]
"""The loss of a task: the sum over a batch and its number, by the output of the head."""
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


def require_distillable(task: Task, folder: str | Path) -> None:
    """Raise UserError for the run of ``folder`` if models of its task cannot be distilled."""
    if task.soft_loss is None:
        raise UserError(
            f"{folder}: a model of `finetune {task.name}` that cannot be distilled: distill one of "
            "classify, nli, tag, ner or qa, trained without --few-shot."
        )


@dataclass
class Teacher:
    """A trained model, loaded."""

    name: str
    """The run folder, as the user wrote it."""
    folder: Path
    """The folder of the model."""
    task: Task
    head: Any
    """The model; None once it has predicted the training data of a student."""
    num_layers: int
    width: int

    def facts(self) -> dict[str, Any]:
        """Return its folder, and the checksum of its weights."""
        return {"folder": self.name, "weights": file_hash(self.folder / "model.safetensors")}


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


@dataclass
class Lesson:
    """The losses of a student against its teacher, for one part of a run."""

    task: Task
    """The task of the student."""
    teacher: Teacher
    weights: Distillation
    hidden_weight: float = 0.0
    layers: Sequence[int] = ()
    """The layers of the student whose hidden states are compared."""
    projections: nn.ModuleList | None = None
    """From these states to the width of the teacher; None if the widths are equal."""
    read_by_teacher: Encodings | None = None
    """The training sequences of a teacher with another tokenizer."""

    def extend_data(self, part: Part) -> None:
        """Add unlabeled text to the training data, and encode all as the teacher reads it."""
        data, task = part.data, part.task
        same_tokenizer = task.tokenizer.equals(self.teacher.task.tokenizer)
        examples = data.splits["train"]
        own, others = [], []
        if not same_tokenizer:
            others.append(self.teacher.task.encode(examples))
        if self.weights.unlabeled is not None:
            for chunk in _unlabeled(task, self.weights, part.config.encoding, len(examples)):
                encoded = task.encode(chunk)
                without = self.task.targets_without_gold(encoded.sequences)
                sequences = replace(encoded.sequences, targets=without)
                own.append(replace(encoded, sequences=sequences))
                if not same_tokenizer:
                    others.append(self.teacher.task.encode(chunk))
            if not own:
                raise UserError(f"--unlabeled {self.weights.unlabeled}: has no texts.")
            unlabeled = Encoded.joined(own)
            data.encoded["train"] = Encoded.joined([data.train, unlabeled])
            data.lengths = data.train.lengths
            data.schedule = Schedule.from_config(part.config, len(data.train))
            part.report(
                f"train: {quantity(len(unlabeled), 'unlabeled example')} more, which the teacher "
                "labels"
            )
        if others:
            self.read_by_teacher = Encoded.joined(others).sequences
            self._require_same_windows(data.train.sequences, self.read_by_teacher)

    def _require_same_windows(self, own: Encodings, other: Encodings) -> None:
        """Raise UserError if another tokenizer divides examples in another way."""
        subwords = self.task.per_subword
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

    def parameter_groups(self, part: Part) -> list[dict[str, Any]]:
        """Choose the layers to compare; return the groups of AdamW of their projections, if any."""
        self._choose_layers(part)
        encoder, config = part.head.encoder, part.config
        if not self.layers or encoder.width == self.teacher.width:
            return []
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.projections = nn.ModuleList(
                nn.Linear(encoder.width, self.teacher.width) for _ in self.layers
            )
        if (saved := part.folder.last / OTHERS).is_file():
            self.projections.load_state_dict(load_file(str(saved)))
        weight = next(part.head.parameters())
        self.projections.to(weight.device, weight.dtype)
        peak = max(group["peak"] for group in parameter_groups(part.head, config))
        common = {"lr": peak, "peak": peak, "encoder": False}
        return [
            {
                "params": [w for w in self.projections.parameters() if w.ndim == number],
                "weight_decay": decay,
                **common,
            }
            for decay, number in ((config.weight_decay, 2), (0.0, 1))
        ]

    def _choose_layers(self, part: Part) -> None:
        """Choose the layers of the student whose states are compared, if they can be."""
        weight, reason = self.weights.hidden_weight, ""
        if self.read_by_teacher is not None:
            reason = "teacher and student have different tokenizers"
        for each in (part.head, self.teacher.head):
            inner = getattr(each, "tagger", each)
            if isinstance(inner, PretrainedHead) and not inner.known_type:
                reason = f"the hidden states of {inner.config.model_type} models are not at hand"
            elif isinstance(inner, PairClassifier):
                reason = "the texts of a pair are read apart"
        if reason and weight:
            raise UserError(f"--hidden-weight {weight:g}: {reason}: leave it out.")
        if reason and weight is None and not part.folder.last.is_dir():
            part.report(f"hidden states are not compared: {reason}")
        self.hidden_weight = 0.0 if reason else 1.0 if weight is None else weight
        number = part.head.encoder.num_layers if self.hidden_weight else 0
        self.layers = list(range(1, number + 1))

    def attach_outputs(self, part: Part, interrupt: InterruptHandler) -> None:
        """Let the teacher predict the training data, or find what it predicted; add it to them."""
        folder, sequences = part.folder.path / OUTPUTS, part.data.train.sequences
        device = part.folder.accelerator.device

        def check_stop() -> None:
            if interrupt.should_stop():
                message = "stopped before training: the teacher will predict again"
                raise interrupt.interrupted(message)

        if not part.config.resume:  # those of a killed run, perhaps of another teacher
            shutil.rmtree(folder, ignore_errors=True)
        if not folder.is_dir():
            number = len(self.layers)
            write_outputs(
                folder,
                self.teacher.task,
                place(self.teacher.head, device),
                self.read_by_teacher or sequences,
                layers=spread_layers(number, self.teacher.num_layers) if number else (),
                device=device,
                precision=part.precision,
                reporter=part.reporter,
                check_stop=check_stop,
            )
        self.teacher.head = self.read_by_teacher = None
        self.attach(part.data, read_outputs(folder, part.task, sequences))

    def attach(self, data: TrainingData, outputs: TeacherOutputs) -> None:
        """Add the outputs of the teacher for all sequences of train to the targets."""
        sequences, targets_of_task = data.train.sequences, data.targets
        rows = {**(sequences.targets or {}), "teacher_logits": outputs.logits}
        if outputs.states is not None:
            rows["teacher_states"] = outputs.states
        data.encoded["train"] = replace(data.train, sequences=replace(sequences, targets=rows))

        def targets(batch: Encodings) -> dict[str, Tensor]:
            found = targets_of_task(batch)
            for name, values in (batch.targets or {}).items():
                if name.startswith("teacher_"):
                    found[name] = torch.from_numpy(values.values)
            return found | {f"teacher_{name}": value for name, value in outputs.edges.items()}

        data.targets = targets

    def remove_outputs(self, part: Part) -> None:
        """Delete the outputs of the teacher."""
        shutil.rmtree(part.folder.path / OUTPUTS, ignore_errors=True)

    def recording(self, head: Any) -> AbstractContextManager[list[Tensor]]:
        """Return a context in which forward passes record the states of the compared layers."""
        found: AbstractContextManager[list[Tensor]] = head.encoder.recording(self.layers)
        return found

    def losses(
        self, output: Any, states: Sequence[Tensor], batch: Batch, loss_of_task: BatchLoss
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of the three losses of a batch [3], and the number of the first [1]."""
        assert self.task.soft_loss is not None  # as the teacher was accepted
        soft = self.task.soft_loss(
            output, batch.targets["teacher_logits"], batch, self.weights.temperature
        )
        hard, _ = loss_of_task(output, batch)
        hidden = torch.zeros_like(soft)
        if self.layers:
            hidden = hidden_loss(states, batch.targets["teacher_states"], self.projections)
        sums = (
            (1 - self.weights.hard_weight) * soft,
            self.weights.hard_weight * hard,
            self.hidden_weight * hidden,
        )
        return torch.stack(sums), soft.new_full((1,), self._num_soft(batch))

    def counts(self, batch: Batch, loss_of_task: BatchLoss) -> Tensor:
        """Return the numbers of rows (sequences, examples or words), with gold, and of tokens."""
        logits = batch.targets["teacher_logits"]
        if "teacher_transitions" in batch.targets:
            hard = (batch.targets["tag"] != IGNORED).sum()
        else:
            _, hard = loss_of_task(logits, batch)
        return torch.tensor([self._num_soft(batch), float(hard), len(batch.input_ids)])

    def _num_soft(self, batch: Batch) -> int:
        if self.task.grouped:
            return len(set(batch.example))
        return len(batch.words) if self.task.description.words else len(batch.lengths)


def _unlabeled(
    task: Task, weights: Distillation, encoding: str, first_id: int
) -> Iterator[list[Example]]:
    """Yield the unlabeled examples in chunks, with ids that continue the ids of train."""
    found = read_unlabeled(task, weights, encoding)
    numbered = (replace(example, id=number) for number, example in enumerate(found, first_id))
    while chunk := list(islice(numbered, CHUNK)):
        yield chunk


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
    require_distillable(task, folder.path)
    lesson = Lesson(task, teacher, distillation)
    part = part_of(task, data, config, folder, reporter, head=head, lesson=lesson)
    (result,) = train([part])
    return result, part.data.schedule


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
        task = replace(task, record=replace(record, config=config), _warm_start=warm_start)
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


def compare(
    folders: Mapping[str, Path], examples: Sequence[Example], metric: str
) -> dict[str, Measured]:
    """Score models on examples with gold, and time them, by their names."""
    return {name: _measure(folder, examples, metric) for name, folder in folders.items()}


def _measure(folder: Path, examples: Sequence[Example], metric: str) -> Measured:
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
