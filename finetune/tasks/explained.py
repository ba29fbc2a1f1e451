"""The labels of predictions that words explain, and their scores in the logits.

``finetune.inference.explanation`` compares the scores with and without each word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from finetune.models.heads.crf import CrfScores
from finetune.preprocessing.encodings import Array, FlatSequences
from finetune.preprocessing.span_candidates import candidate_index, num_candidates
from finetune.types import LabelSpan, SpanPrediction, TokenPrediction, TokenSequence


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

    def scores(self, logits: Any) -> torch.Tensor:
        """Compute the uncalibrated score of each class in each row of the logits: [R, C]."""
        scores: torch.Tensor = logits
        return scores.log_softmax(-1) if self.state.problem == "single" else scores

    def num_rows(self, sequences: FlatSequences) -> Array:
        """Count the rows of the logits of each sequence: [N]."""
        return np.ones(len(sequences), dtype=np.int64)

    def row(self, label: LabelSpan, sequence: TokenSequence) -> int | None:
        """Find the row of a label among the rows of a sequence; None if it has no row."""
        return 0


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

    def scores(self, logits: torch.Tensor | CrfScores) -> torch.Tensor:
        """Compute log-probabilities of tags; a CRF gives them from its emissions alone: [R, C]."""
        return (logits.emissions if isinstance(logits, CrfScores) else logits).log_softmax(-1)

    def num_rows(self, sequences: FlatSequences) -> Array:
        """Count the core words of each sequence, or their subwords: [N]."""
        if not self.state.all_subwords:
            return sequences.num_words
        starts, offsets, _ = sequences.words
        counts: Array = starts[offsets[1:] - 1].astype(np.int64) - starts[offsets[:-1]]
        return counts

    def row(self, label: LabelSpan, sequence: TokenSequence) -> int | None:
        """Find the row of a word, or of its first subword; None in the other windows."""
        assert label.words is not None
        word = label.words[0] - sequence.first_word
        if not 0 <= word < sequence.num_words:
            return None
        starts = sequence.word_starts
        return starts[word] - starts[0] if self.state.all_subwords else word


class ExplainedSpans(Explained):
    """Types of spans, of sentences that are read alone."""

    @property
    def unit(self) -> str:
        return "logit" if self.state.config.context == "none" else ""

    def labels(self, prediction: SpanPrediction) -> Sequence[LabelSpan]:
        """List the type of each span."""
        ids = self.state.labels.id
        return [LabelSpan(span.label, ids(span.label), span[:2]) for span in prediction.spans]

    def scores(self, logits: torch.Tensor) -> torch.Tensor:
        """Compute the logits of types against no type: [S, C]."""
        return logits if self.state.multi_label else logits[:, 1:] - logits[:, :1]

    def num_rows(self, sequences: FlatSequences) -> Array:
        """Count the candidates of each sequence: [N]."""
        width = self.state.max_width
        return np.array([num_candidates(n, width) for n in sequences.num_words.tolist()])

    def row(self, label: LabelSpan, sequence: TokenSequence) -> int | None:
        """Find the row of a span; None in windows without it."""
        assert label.words is not None
        start, end = (word - sequence.first_word for word in label.words)
        if start < 0 or end > sequence.num_words:
            return None
        return int(candidate_index(start, end, sequence.num_words, self.state.max_width))
