"""The kind ``subwords`` of predictions: masked subwords, which a file holds with their gold."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finetune.data import DataError
from finetune.data.files import DataFile
from finetune.evaluation.kinds.examples import OfTexts, bucket, buckets, right_by_group
from finetune.evaluation.kinds.kind import Grouping, Scored, Wording
from finetune.evaluation.metrics import Metric, mean
from finetune.types import MaskedPrediction, TextExample

if TYPE_CHECKING:
    from finetune.evaluation.predictions import GoldSource
    from finetune.evaluation.training_vocabulary import TrainingVocabulary

COUNTS = (0, 1, 10, 100, 1000, 10_000)
"""The first number of occurrences of each subgroup."""


def subword_counts(scored: Scored) -> np.ndarray:
    """Return the correct and all masked subwords of each sequence [N, 2]."""
    rows = [(sum(map(str.__eq__, *both)), len(both[0])) for both in scored.sides]
    return np.array(rows, dtype=np.int64)


def subword_losses(scored: Scored) -> np.ndarray:
    """Return the summed loss and the number of the masked subwords of each sequence [N, 2]."""
    return _summed([prediction.losses for prediction in scored.predictions])


def boundary_losses(scored: Scored) -> np.ndarray:
    """Return the summed loss and the number of the boundary losses of each sequence [N, 2]."""
    return _summed([prediction.boundary_losses or () for prediction in scored.predictions])


def _summed(losses: Sequence[Sequence[float]]) -> np.ndarray:
    return np.array([(math.fsum(each), len(each)) for each in losses], dtype=float)


def next_sentence_counts(scored: Scored) -> np.ndarray:
    """Return the correct and all predictions of next sentence prediction [N, 2]."""
    known = [(p.follows, p.follows_score) for p in scored.predictions]
    rows = [(s is not None and f == (s >= 0.5), s is not None) for f, s in known]
    return np.array(rows, dtype=np.int64)


def perplexity(sums: np.ndarray) -> np.ndarray:
    """Return e to the mean loss, from summed losses and their number [..., 2] -> [...]."""
    found: np.ndarray = np.exp(mean(sums))
    return found


class Subwords(OfTexts):
    """The subwords at masked positions, and the losses there."""

    name = key = "subwords"
    wording = Wording("subwords", "text")
    metrics: ClassVar = {
        "mlm_accuracy": Metric(subword_counts, mean),
        "mlm_loss": Metric(subword_losses, mean),
        "perplexity": Metric(subword_losses, perplexity),
        "sbo_loss": Metric(
            boundary_losses, mean, lambda scored: any(p.boundary_losses for p in scored.predictions)
        ),
        "nsp_accuracy": Metric(
            next_sentence_counts,
            mean,
            lambda scored: any(p.follows_score is not None for p in scored.predictions),
        ),
    }
    default = "mlm_accuracy"

    def gold(self, example: TextExample) -> Any:
        """Return the masked subwords of a line of predictions."""
        return example.label

    def value(self, prediction: MaskedPrediction) -> Sequence[str]:
        """Return the predicted subwords."""
        return prediction.subwords

    def read_gold(self, file: str | DataFile, source: GoldSource) -> Sequence[Any]:
        """Raise DataError: no file but the predictions knows what was masked."""
        raise DataError(
            "predictions of masked subwords hold their gold, which depends on the masks: use "
            "`finetune report --format table` or `compare` without a file of gold."
        )

    def parse(self, row: Mapping[str, Any], where: str, example: TextExample) -> MaskedPrediction:
        """Return the predicted subwords with their losses."""
        gold: Any = example.label or ()
        sides = row["subwords"], row.get("losses", ()), gold
        if len({len(side) for side in sides}) > 1 or not all(isinstance(x, str) for x in gold):
            raise DataError(
                f"{where}: subwords, losses and gold must be lists of the same length: name a "
                "prediction file that finetune pretrain wrote."
            )
        further = {name: row[name] for name in ("follows", "follows_score") if name in row}
        if row.get("boundary_losses") is not None:
            further["boundary_losses"] = tuple(row["boundary_losses"])
        return MaskedPrediction(
            example.id,
            tuple(row["subwords"]),
            gold=tuple(gold),
            losses=tuple(row.get("losses", ())),
            read_as=tuple(row.get("read_as", ())),
            counts=tuple(row.get("counts", ())),
            **further,
        )

    def scored(
        self, examples: Sequence[Any], predictions: Sequence[MaskedPrediction], **facts: Any
    ) -> Scored:
        """Return predictions with the gold that they hold."""
        gold, predicted = (
            [list(p.gold or ()) for p in predictions],
            list(map(self.value, predictions)),
        )
        return self.pair(gold, predicted, examples=examples, predictions=predictions, **facts)

    def groupings(
        self, scored: Scored, vocabulary: TrainingVocabulary | None
    ) -> dict[str, Grouping]:
        """Divide subwords by what the model read there, and by occurrences in training."""
        read_as = [prediction.read_as for prediction in scored.predictions]
        groups: dict[str, tuple[Sequence[Sequence[str]], Sequence[str]]] = {}
        if all(map(len, read_as)):
            groups["read as"] = read_as, ("masked", "random", "kept")
        counts = [prediction.counts for prediction in scored.predictions]
        if all(map(len, counts)):
            names = [[bucket(number, COUNTS) for number in each] for each in counts]
            groups["in training text"] = names, buckets(COUNTS)
        return {name: right_by_group(*each, "subwords") for name, each in groups.items()}

    def repeatable(self, prediction: MaskedPrediction) -> Collection[Any] | None:
        """Return the subwords."""
        return {*prediction.subwords}


SUBWORDS = Subwords()
