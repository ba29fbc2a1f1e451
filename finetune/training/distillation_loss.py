"""The loss of a student against the outputs of its teacher, which predicts in the same step.

The loss of a step is

    (1 - w) soft + w hard + v hidden,

each a mean over the optimizer batch: ``soft`` the divergence from the teacher's distribution at a
temperature (Hinton et al., 2015), over sequences or words; ``hard`` the loss of the task, over
sequences or words with gold; ``hidden`` the squared difference from hidden states of the teacher,
over tokens, through a learned projection if the widths differ (Mukherjee & Awadallah 2020,
"XtremeDistil"). XtremeDistil trains in stages; here one schedule trains all losses together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from finetune.inference.loop import chunks, full_precision
from finetune.models.fewer_layers import spread_layers
from finetune.models.heads.crf import CrfScores
from finetune.models.heads.pair_classifier import PairClassifier
from finetune.models.heads.pretrained import PretrainedHead
from finetune.models.master_weights import cast_weights, casting
from finetune.preprocessing.batching import pack
from finetune.preprocessing.context import surrounded
from finetune.preprocessing.encodings import Encoded, Encodings, Ragged
from finetune.runtime.cache import file_hash
from finetune.runtime.device import batches_to_device, place, to_device
from finetune.tasks.base import Task
from finetune.tasks.soft_losses import SoftLoss
from finetune.training.checkpoint import OTHERS
from finetune.training.data import TrainingData
from finetune.training.optimizer import Schedule, parameter_groups
from finetune.types import IGNORED, Batch, Example, UserError, quantity

if TYPE_CHECKING:
    from finetune.training.scoring import Scorer

BatchLoss = Callable[[Any, Batch], tuple[Tensor, Tensor]]
"""The loss of a task: the sum over a batch and its number, by the output of the head."""


@dataclass
class Teacher:
    """A trained model, loaded."""

    name: str
    """The run folder, as the user wrote it."""
    folder: Path
    """The folder of the model."""
    task: Task
    head: Any
    """The model, which predicts without dropout and is not trained."""
    num_layers: int
    width: int

    def facts(self) -> dict[str, Any]:
        """Return its folder, and the checksum of its weights."""
        return {"folder": self.name, "weights": file_hash(self.folder / "model.safetensors")}


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


@dataclass
class DistillationLoss:
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
    teacher_layers: Sequence[int] = ()
    """The layers of the teacher with which they are compared."""
    precision: str = "fp32"
    """The precision of the teacher."""
    read_by_teacher: Encodings | None = None
    """The training sequences of a teacher with another tokenizer; the target ``row`` of a sequence
    of the student is the number of the teacher's."""

    @property
    def _soft_loss(self) -> SoftLoss:
        assert self.task.soft_loss is not None  # as the teacher was accepted
        return self.task.soft_loss(self.task.record)

    def extend_data(self, part: Scorer) -> None:
        """Add unlabeled text to the training data, and encode all as the teacher reads it."""
        data, task = part.data, part.task
        self.precision = part.precision
        self.teacher.head = place(self.teacher.head, part.folder.accelerator.device).eval()
        cast_weights(self.teacher.head, self.precision)
        same_tokenizer = task.tokenizer.equals(self.teacher.task.tokenizer)
        examples = data.splits["train"]
        own, others = [], []
        if not same_tokenizer:
            others.append(self.teacher.task.encode(examples))
        if self.weights.unlabeled is not None:
            for chunk in _unlabeled(task, self.weights, part.config.encoding, len(examples)):
                encoded = task.encode(chunk)
                without = self._soft_loss.targets_without_gold(encoded.sequences)
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
            self._number_rows(data)

    def _number_rows(self, data: TrainingData) -> None:
        sequences, targets_of_task = data.train.sequences, data.targets
        rows = np.arange(len(sequences))
        numbered = {**(sequences.targets or {}), "row": Ragged.of_counts(rows, np.ones_like(rows))}
        data.encoded["train"] = replace(data.train, sequences=replace(sequences, targets=numbered))

        def targets(batch: Encodings) -> dict[str, Tensor]:
            row = (batch.targets or {})["row"]
            return targets_of_task(batch) | {"row": torch.from_numpy(row.values)}

        data.targets = targets

    def _require_same_windows(self, own: Encodings, other: Encodings) -> None:
        subwords = self.task.record.all_subwords
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

    def parameter_groups(self, part: Scorer) -> list[dict[str, Any]]:
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
                "names": [
                    f"{OTHERS}.{name}"
                    for name, w in self.projections.named_parameters()
                    if w.ndim == number
                ],
                "weight_decay": decay,
                **common,
            }
            for decay, number in ((config.weight_decay, 2), (0.0, 1))
        ]

    def _choose_layers(self, part: Scorer) -> None:
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
        self.teacher_layers = spread_layers(number, self.teacher.num_layers) if number else ()

    def with_outputs(self, batches: Sequence[Batch], device: torch.device) -> list[Batch]:
        """Return the batches on a device, with the outputs of the teacher among their targets."""
        moved = list(batches_to_device(batches, device))
        if self.read_by_teacher is None:
            return [self._with_outputs(batch, batch) for batch in moved]
        read = (self.read_by_teacher.take(batch.targets["row"].numpy()) for batch in batches)
        inputs = batches_to_device(map(pack, read), device)
        return [self._with_outputs(*pair) for pair in zip(moved, inputs, strict=True)]

    def _with_outputs(self, batch: Batch, read_by_teacher: Batch) -> Batch:
        head, device = self.teacher.head, read_by_teacher.input_ids.device
        with torch.no_grad(), casting(head, self.precision, device):
            output, states = self.teacher.head.with_states(read_by_teacher, self.teacher_layers)
        output, edges = full_precision(output), {}
        if isinstance(output, CrfScores):
            edges = {f"teacher_{name}": value for name, value in output._asdict().items()}
            output = edges.pop("teacher_emissions")
        targets = {**batch.targets, **edges, "teacher_logits": output}
        if states:
            targets["teacher_states"] = torch.cat(list(states), 1)
        return replace(batch, targets=targets)

    def losses(
        self, output: Any, states: Sequence[Tensor], batch: Batch, loss_of_task: BatchLoss
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of the three losses of a batch [3], and the number of the first [1]."""
        soft = self._soft_loss(
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
        numbers = self._num_soft(batch), len(batch.input_ids)
        soft, tokens = to_device(torch.tensor(numbers, dtype=logits.dtype), logits.device)
        return torch.stack([soft, hard.to(logits.dtype), tokens])

    def _num_soft(self, batch: Batch) -> int:
        if self.task.description.grouped:
            return len(set(batch.example))
        return len(batch.words) if self.task.description.words else len(batch.lengths)


def _unlabeled(
    task: Task, weights: Distillation, encoding: str, first_id: int
) -> Iterator[list[Example]]:
    found: Iterator[Any] = task.record.read(str(weights.unlabeled), encoding=encoding)
    if task.description.words:
        found = (replace(each, tags=None, spans=None, unreachable=()) for each in found)
    if reach := task.record.context_words:
        found = surrounded(found, reach)
    yield from chunks(replace(each, id=number) for number, each in enumerate(found, first_id))


def hidden_loss(
    states: Sequence[Tensor], teacher: Tensor, projections: Iterable[nn.Module] | None = None
) -> Tensor:
    """Return the squared difference from hidden states of a teacher, summed over tokens.

    It is the mean over layers and components.

    Args:
        states: The hidden states of the student, [T, H] for each layer.
        teacher: The hidden states of the teacher side by side, [T, layers * H'].
        projections: From H to H', for each layer; None if these are equal.
    """
    found = [state.float() if state.dtype != torch.float64 else state for state in states]
    if projections is not None:
        found = [layer(state) for layer, state in zip(projections, found, strict=True)]
    own = torch.cat(found, 1)
    difference: Tensor = functional.mse_loss(own, teacher.to(own.dtype), reduction="none")
    return difference.mean(1).sum()
