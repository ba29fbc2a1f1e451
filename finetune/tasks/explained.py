"""The labels of predictions that words explain, and their scores in the logits.

``finetune.inference.explanation`` compares the scores with and without each word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from finetune.models.heads.crf import CrfScores
from finetune.preprocessing.encodings import Array
from finetune.preprocessing.span_candidates import candidate_index, num_candidates
from finetune.types import Batch, LabelSpan, SpanPrediction, TokenPrediction


class Explained:
    """The labels of texts, or their number, that words explain; other tasks derive from it.

    Args:
        state: The state of the task.
    """

    def __init__(self, state: Any) -> None:
        self.state = state

    @property
    def unit(self) -> str:
        """The unit of the scores, such as ``logit``; empty if words explain no label."""
        units = {"single": "log-probability", "multi": "logit", "regression": "number"}
        return units[self.state.problem]

    def labels(self, prediction: Any) -> Sequence[LabelSpan]:
        """List the labels of a prediction to explain, also one that it abstains from."""
        labels, label = self.state.labels, prediction.label
        label = prediction.decided.get("withheld") if label is None else label
        if label is None:
            return ()
        if self.state.problem == "regression":
            return (LabelSpan(labels[0], 0),)
        names = label if isinstance(label, tuple) else (str(label),)
        return [LabelSpan(name, labels.id(name)) for name in names]

    def scores(self, logits: Any, batch: Batch, labels: Sequence[LabelSpan]) -> Array:
        """Compute the uncalibrated scores of D labels in each of N sequences: [N, D].

        NaN if the words of a label are in another window.
        """
        scores = logits.log_softmax(-1) if self.state.problem == "single" else logits
        chosen: Array = scores[:, [label.number for label in labels]].cpu().double().numpy()
        return chosen


class ExplainedTags(Explained):
    """Tags of words, of sentences that are read alone."""

    @property
    def unit(self) -> str:
        return "log-probability" if self.state.config.context == "none" else ""

    def labels(self, prediction: TokenPrediction) -> Sequence[LabelSpan]:
        """List the tag of each word, without O and tags that it abstains from."""
        ids = self.state.labels.ids(prediction.tags, -1)
        tags = enumerate(zip(prediction.tags, ids, strict=True))
        return [LabelSpan(*tag, (n, n + 1)) for n, tag in tags if tag[0] not in ("O", None)]

    def scores(self, logits: Any, batch: Batch, labels: Sequence[LabelSpan]) -> Array:
        """Compute log-probabilities of tags; a CRF gives them from its emissions alone."""
        emissions = logits.emissions if isinstance(logits, CrfScores) else logits
        lengths = batch.word_lengths.tolist() if self.state.all_subwords else [1] * len(batch.words)
        rows = [0, *accumulate(lengths)]  # the row of each word, or of its first subword
        firsts = [0, *accumulate(batch.num_words)]
        return _scores_of_words(
            emissions.log_softmax(-1), batch, labels, lambda n, start, end: rows[firsts[n] + start]
        )


class ExplainedSpans(Explained):
    """Types of spans, of sentences that are read alone."""

    @property
    def unit(self) -> str:
        return "logit" if self.state.config.context == "none" else ""

    def labels(self, prediction: SpanPrediction) -> Sequence[LabelSpan]:
        """List the type of each span."""
        ids = self.state.labels.id
        return [LabelSpan(span.label, ids(span.label), span[:2]) for span in prediction.spans]

    def scores(self, logits: Any, batch: Batch, labels: Sequence[LabelSpan]) -> Array:
        """Compute the logits of types against no type."""
        scores = logits if self.state.multi_label else logits[:, 1:] - logits[:, :1]
        width = self.state.max_width
        firsts = [0, *accumulate(num_candidates(number, width) for number in batch.num_words)]

        def row_of(number: int, start: int, end: int) -> int:
            return firsts[number] + int(candidate_index(start, end, batch.num_words[number], width))

        return _scores_of_words(scores, batch, labels, row_of)


def _scores_of_words(
    scores: torch.Tensor,
    batch: Batch,
    labels: Sequence[LabelSpan],
    row_of: Callable[[int, int, int], int],
) -> Array:
    values = scores.cpu().double().numpy()
    chosen = np.full((len(batch.window), len(labels)), np.nan)
    for number, (first, size) in enumerate(zip(batch.window, batch.num_words, strict=True)):
        for column, label in enumerate(labels):
            assert label.words is not None
            start, end = label.words[0] - first, label.words[1] - first
            if start >= 0 and end <= size:
                chosen[number, column] = values[row_of(number, start, end), label.number]
    return chosen
