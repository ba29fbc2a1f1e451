"""The kinds of predictions: what messages and reports call them, and the kinds that wings add.

A kind is a key of ``metrics.METRICS``. A file of predictions says it by the key of its lines, where
sets of labels and numbers are under ``label``, and answers under ``answer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from finetune.data.files import DataFile
from finetune.registry import PREDICTION_KINDS, Registry
from finetune.types import SenseTarget

if TYPE_CHECKING:
    from finetune.evaluation.alignment import AlignedPredictions, Gold
    from finetune.evaluation.predictions import PredictionFile, Row


class Wording(NamedTuple):
    """The words of messages and reports for a kind of predictions."""

    predicted: str
    """What a file predicts."""
    example: str
    """What has a prediction, in the singular."""
    rated: str = ""
    """What has a probability, in the plural; empty if nothing has."""


class PredictionKind(Protocol):
    """A kind of predictions that a wing reads and aligns."""

    wording: Wording
    """How messages and reports speak of it."""

    def read(self, file: DataFile) -> list[Row]:
        """Read predictions in a format of their own."""

    def gold_of(self, where: str, row: Mapping[str, Any]) -> SenseTarget:
        """Return the gold that a line holds."""

    def read_gold(self, source: str | Path | DataFile, encoding: str) -> Sequence[SenseTarget]:
        """Read a file of gold."""

    def align(self, file: PredictionFile, gold: Gold) -> AlignedPredictions:
        """Align predictions with gold."""


KINDS: Registry[PredictionKind] = Registry(
    {name: paths.kind for name, paths in PREDICTION_KINDS.items()}
)
"""The kinds of wings."""

_ANSWERS = Wording("answers", "text", "answers")
_WORDINGS = {
    "label": Wording("a label", "text", "labels"),
    "labels": Wording("sets of labels", "text", "labels that may apply"),
    "number": Wording("numbers", "text"),
    "choice": Wording("a choice", "text", "choices"),
    "tags": Wording("tags", "sentence", "words"),
    "spans": Wording("spans", "sentence", "predicted spans"),
    "relations": Wording("relations", "sentence", "predicted relations"),
    "answer": _ANSWERS,
    "answers": _ANSWERS,
    "subwords": Wording("subwords", "text"),
}


def wording(kind: str) -> Wording:
    """Return how messages and reports speak of a kind of predictions."""
    return KINDS[kind].wording if kind in KINDS else _WORDINGS[kind]
