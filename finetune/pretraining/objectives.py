"""The objectives of pretraining besides the masked language model.

Each has a loss of its own, columns of values for each chosen position, and fields of a prediction
that follow from these columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from finetune.preprocessing.encodings import Array
from finetune.pretraining.model import MOST_TARGETS, PretrainingScores

Targets = Mapping[str, Tensor]


class SpanBoundary:
    """The subwords of a span from the two subwords beside it (Joshi et al., 2020, SpanBERT)."""

    name: ClassVar[str] = "boundary"
    """The target with an entry for each loss."""
    width: ClassVar[int] = 1
    """Number of columns."""

    @staticmethod
    def targets(targets: Targets, begins: Tensor) -> dict[str, Tensor]:
        """Return the targets of the head, from places in a sequence that begins at ``begins`` [M].

        ``left`` and ``right`` are the subwords beside the span of each target, -1 if there are
        none.
        """
        offset = targets["position"] - begins - targets["left"] - 1
        chosen = ((targets["left"] >= 0) & (offset < MOST_TARGETS)).nonzero()[:, 0]
        beside = {side: (targets[side] + begins)[chosen] for side in ("left", "right")}
        return {"boundary": chosen, "offset": offset[chosen], **beside}

    def losses(self, scores: PretrainingScores, targets: Targets) -> Tensor:
        """Return the loss of each target in a span."""
        return scores.boundary

    def columns(self, scores: PretrainingScores, targets: Targets) -> list[Tensor]:
        """Return the loss of each chosen position [M]; NaN outside of spans."""
        none = torch.full_like(scores.loss, torch.nan)
        return [none.index_copy(0, targets["boundary"], scores.boundary)]

    def fields(self, values: Array) -> dict[str, Any]:
        """Return the losses of a prediction."""
        losses = values[:, 0]
        return {"boundary_losses": tuple(losses[losses == losses].tolist())}


class NextSentence:
    """Whether the second text of a pair follows the first (Devlin et al., 2019)."""

    name: ClassVar[str] = "next"
    width: ClassVar[int] = 2

    def losses(self, scores: PretrainingScores, targets: Targets) -> Tensor:
        """Return the loss of each pair."""
        return cross_entropy(scores.next, targets["next"], reduction="none")

    def columns(self, scores: PretrainingScores, targets: Targets) -> list[Tensor]:
        """Return for each chosen position 1 if the second text is random, and the probability that
        it follows."""
        of_pairs = targets["next"], scores.next.softmax(-1)[:, 0]
        return [each.repeat_interleave(targets["number"]) for each in of_pairs]

    def fields(self, values: Array) -> dict[str, Any]:
        """Return whether the second text follows, and the probability."""
        if not len(values):
            return {}
        return {"follows": not values[0, 0], "follows_score": float(values[0, 1])}
