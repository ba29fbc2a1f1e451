"""Optional members of a task: None, False or empty, unless a task overrides them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finetune.config.tasks import LabelConfig, named_strength
from finetune.preprocessing.encodings import Array, Encoded, Encodings, Ragged
from finetune.types import Batch, Decision, Encoding, Prediction, Sequences

if TYPE_CHECKING:
    import torch

    from finetune.tasks.base import Task, TaskRecord

EncodeChunk = Callable[[int], Encoded]
"""Encodes the chunk of examples that begins with an index."""
Gather = Callable[[EncodeChunk, Sequence[int]], Encoded]
"""Calls an ``EncodeChunk`` for all chunks, and joins the results."""

EXPLAINED_BY = ("leave-out", "gradients")
"""The methods that explain predictions, the more faithful one first (docs/results.md)."""
CoupledLoss = Callable[[Any, "torch.Tensor", Sequences], tuple["torch.Tensor", "torch.Tensor"]]
"""Returns the sum of the losses of an optimizer batch, and the number to divide it by, from the
head, the vectors [N, H] and their sequences."""


class Abilities:
    """The optional members of ``Task``; a task overrides the members that it has."""

    record: TaskRecord
    gold: ClassVar[attrgetter[Any]]

    @property
    def graph_refusal(self) -> str | None:
        """The reason why an exported graph cannot replace the model.

        It is empty if a graph can: the record then decodes its logits, as a class of
        ``finetune.tasks.decoding``. None if no model of the task is exported.
        """
        return None

    @property
    def calibrated(self) -> bool:
        """True if values of the record are fitted on the validation split after training."""
        return False

    def fit(self, gold: Sequence[Any], predicted: Sequence[Any]) -> tuple[dict[str, Any], str]:
        """Return fitted fields of the record for gold and predictions, and a note about them."""
        raise NotImplementedError

    def apply_fitted(self, example: Any, prediction: Any) -> Any:
        """Apply the fitted values to an example's prediction by an uncalibrated model."""
        raise NotImplementedError

    @property
    def threshold_labels(self) -> Sequence[str]:
        """The labels whose lowest probabilities, ``record.thresholds``, may be changed later."""
        return ()

    def blank(self, example: Any) -> Prediction | None:
        """Return the empty prediction of an example without text; None for other examples."""
        return None

    takes_metrics: ClassVar[bool] = True
    """True if metrics of users compare its predictions with gold, in the form of their kind."""

    @property
    def sampling(self) -> float | None:
        """The strength of ``--sampling``: 1 gives all classes the same share of an epoch."""
        config = self.record.config
        if not isinstance(config, LabelConfig) or config.sampling == "none":
            return None
        _, strength = named_strength(config.sampling)
        return 1.0 if strength is None else strength

    def classes(self, example: Any) -> Collection[str]:
        """Return the classes of an example, of which ``sampling`` draws rare ones more often."""
        raise NotImplementedError

    grouped: bool = False
    """True if the loss of a micro-batch needs all sequences of an example: training keeps them
    together. An example of more than ``--max-tokens`` tokens is a micro-batch of its own."""

    def sequences_of_epoch(
        self, sequences: Encodings, seed: int, epoch: int, rows: Array | None = None
    ) -> Encodings:
        """Return training sequences as the model reads them in an epoch: some rows, or all."""
        return sequences if rows is None else sequences.take(rows)

    def added_ids(self) -> Sequence[int]:
        """Return the ids of subwords that ``sequences_of_epoch`` adds."""
        return ()

    encode_training: Callable[[Sequence[Any], Gather], Encoded] | None = None
    """Encode training examples, without what ``sequences_of_epoch`` adds; None uses ``encode``."""

    @property
    def coupled_loss(self) -> CoupledLoss | None:
        """A loss over all sequences of an optimizer batch, in place of ``loss``; None without one.

        The head returns a named tuple with ``vectors``; weights of it that the loss uses itself are
        trained too.
        """
        return None

    @property
    def loss_counts(self) -> Callable[[Batch], torch.Tensor] | None:
        """Return the counts [K] of K losses for a batch on the CPU; None for a single loss.

        Each loss is divided by its own count: ``loss`` returns K sums and K numbers.
        """
        return None

    @property
    def vector_task(self) -> Task | None:
        """The task that predicts the input of ``fit_head``."""
        return None

    def fit_head(self, head: Any, gold: Sequence[Any], predicted: Sequence[Any]) -> None:
        """Fit weights of the head in place, to gold and predictions, before each evaluation."""
        raise NotImplementedError

    soft_loss: Callable[[Any, torch.Tensor, Batch, float], torch.Tensor] | None = None
    """Return the sum of the losses of a batch against the logits of a teacher, from the logits, the
    teacher's, the batch and the temperature; None if the task cannot be distilled. It is to be
    divided by the number of words, or of sequences of texts. For a CRF the logits are the
    emissions, with the rest of the teacher's scores in the targets of the batch."""

    def num_logits(self, sequences: Encodings) -> Array:
        """Return the number of rows of the logits of each sequence: [N]."""
        return np.ones(len(sequences), dtype=np.int64)

    @property
    def per_subword(self) -> bool:
        """True if a word has a row of logits for each of its subwords."""
        return False

    def targets_without_gold(self, sequences: Encodings) -> Mapping[str, Ragged]:
        """Return targets of sequences without gold, which add nothing to the loss."""
        raise NotImplementedError

    @property
    def explained_by(self) -> Sequence[str]:
        """The methods that explain predictions, of ``EXPLAINED_BY``; none by default."""
        return ()

    def decisions(self, prediction: Any) -> Sequence[Decision]:
        """Return the labels of a prediction to explain."""
        raise NotImplementedError

    def decision_scores(self, logits: Any) -> torch.Tensor:
        """Return the score of each class in each row of the logits, to be explained: [R, C].

        It is the log-probability of one of several classes, else the logit, uncalibrated.
        """
        raise NotImplementedError

    def decision_row(self, decision: Decision, sequence: Encoding) -> int | None:
        """Return the row of a decision among the rows of a sequence; None if it has no row."""
        return 0

    def words_of_tokens(self, example: Any, sequence: Encoding) -> Sequence[int]:
        """Return the word of each token of a sequence, -1 for tokens of no word of the example.

        ``split_words`` divides a text into its words; the words of a second text come after them.
        """
        raise NotImplementedError

    limited: Callable[[int, int | None], Task] | None = None
    """Return the task with another --max-length and --max-tokens, for vectors of whole texts."""
