"""Named entities as labeled spans of words, nested ones too (span-based NER).

Every span of up to a number of words is a candidate and gets one of the types or none (Jurafsky &
Martin, "Masked Language Models", span-based NER, equations 11.21 to 11.27). Decoding selects the
candidates that may be predicted together (``finetune.tasks.span_decoding``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from finetune.config.tasks import NerConfig
from finetune.data import Dataset, split_at_gold
from finetune.data.spans import overlapping, proposed_width
from finetune.evaluation.kinds import scores_of
from finetune.models.heads.span_classifier import SpanClassifier
from finetune.preprocessing.encodings import Array, Encoded, Encodings, Ragged
from finetune.preprocessing.span_candidates import candidate_index, num_candidates
from finetune.tasks.base import EXPLAINED_BY
from finetune.tasks.class_losses import (
    class_divergence,
    class_losses,
    class_weights,
    label_divergence,
    label_losses,
    loss_targets,
)
from finetune.tasks.decoding import SpanDecoder
from finetune.tasks.span_decoding import choose_thresholds
from finetune.tasks.span_targets import SpanTargets
from finetune.tasks.word_task import WordRecord, WordTask, with_gold
from finetune.types import (
    IGNORED,
    Batch,
    Decision,
    Encoding,
    LabelSet,
    Partial,
    SpanPrediction,
    TokenExample,
)


@dataclass(frozen=True, kw_only=True)
class SpanRecord(WordRecord, SpanDecoder):
    """The record of a span-based NER task; ``SpanDecoder`` explains what decides predictions."""

    config: NerConfig
    max_width: int | None
    decoding: str
    """The constraint on predicted spans: configured, or chosen by the training data."""
    class_weights: tuple[float, ...] | None = None
    """The weight of each span type; no span has the weight 1."""
    thresholds: Mapping[str, float] = field(default_factory=dict)

    kind = "spans"

    @property
    def multi_label(self) -> bool:  # type: ignore[override]  # an attribute of what is restored
        """True if a span can have several types."""
        return self.config.multi_label

    @property
    def constraint(self) -> str:  # type: ignore[override]
        """The constraint on predicted spans: the configured one, else the training data's."""
        configured = self.config.decoding
        return self.decoding if configured == "auto" else configured


NO_GOLD = (
    "spans, or tags that spell spans (B-TYPE, I-TYPE, O). For tags of single words use "
    "`finetune tag`."
)


class SpanNerTask(WordTask):
    """Labeled spans of words."""

    record: SpanRecord
    record_class = SpanRecord
    gold = attrgetter("spans")

    @classmethod
    def prepare(cls, config: NerConfig, data: Dataset) -> Dataset:
        """Drop training and validation sentences without spans."""
        return with_gold(config, data, "spans", NO_GOLD)

    @classmethod
    def derive(cls, config: NerConfig, data: Dataset) -> dict[str, Any]:
        """Return the span types, the widest candidate and the constraint on predicted spans."""
        counts, widths, nested = Counter[str](), Counter[int](), False
        for example in data.splits["train"]:
            spans = split_at_gold(example).spans or ()
            counts.update(span.label for span in spans)
            widths.update(span.end - span.start for span in spans)
            nested = nested or overlapping(spans)
        labels = sorted(counts)
        limited = config.representation != "biaffine"
        decoding = config.decoding
        if decoding == "auto":
            decoding = "nested" if nested else "flat"
        weights = class_weights(config.class_weights, labels, counts, counts.total(), "single")
        return {
            "labels": LabelSet(labels),
            "max_width": config.max_width or (proposed_width(widths) if limited else None),
            "decoding": decoding,
            "class_weights": weights and tuple(weights),
        }

    @classmethod
    def notes(cls, record: SpanRecord, data: Dataset) -> list[str]:
        """Return a note on candidates and decoding."""
        width = record.max_width
        limit = "of any width" if width is None else f"up to {width} words wide"
        return [f"candidates: spans {limit}; decoding {record.constraint}"]

    @property
    def calibrated(self) -> bool:
        """True if thresholds are chosen."""
        return self.record.config.calibrate != "none"

    @property
    def threshold_labels(self) -> Sequence[str]:
        """All span types."""
        return list(self.record.labels)

    @cached_property
    def _span_targets(self) -> SpanTargets:
        record = self.record
        return SpanTargets(record.labels, record.max_width, record.config.multi_label)

    def _sequences(self, examples: Sequence[TokenExample]) -> tuple[list[list[Encoding]], int]:
        """Return the windows of each sentence, whose targets are the spans that they predict."""
        encoded, num_cut = self._windows(examples, core_only=False)
        result = []
        for example, windows in zip(examples, encoded, strict=True):
            if example.spans is not None:
                bounds = [(w.first_word, w.first_word + w.num_words) for w in windows]
                windows = [
                    replace(window, target=self._span_targets.gold(example.spans, bounds, index))
                    for index, window in enumerate(windows)
                ]
            result.append(windows)
        return result, num_cut

    def _encoding_notes(self, examples: Sequence[TokenExample], encoded: Encoded) -> list[str]:
        notes = super()._encoding_notes(examples, encoded)
        if not any(example.spans for example in examples):
            return notes
        sequences = encoded.sequences
        ends = (sequences.first_word + sequences.num_words).tolist()
        every = list(zip(sequences.first_word.tolist(), ends, strict=True))
        bounds = [every[start:end] for start, end in pairwise(encoded.offsets.tolist())]
        gold = [example.spans or () for example in examples]
        record = self.record
        return notes + self._span_targets.unreachable_gold(
            gold, bounds, record.max_length, record.constraint
        )

    def _targets(self, rows: Mapping[str, Ragged]) -> dict[str, torch.Tensor]:
        """Return ``span`` (``SpanTargets.collate``), ``num_words`` predicted, ``loss_targets``."""
        num_words = torch.tensor(int(rows["num_words"].values.sum()))
        weights, config = self.record.class_weights, self.record.config
        if weights is not None and not config.multi_label:
            weights = (1.0, *weights)
        spans = torch.from_numpy(self._span_targets.collate(rows))
        return {"span": spans, "num_words": num_words} | loss_targets(config, weights)

    def head(self, folder: str | Path | None = None) -> SpanClassifier:
        """Make a new span scorer on the configured encoder, or load one from a folder."""
        record, config = self.record, self.record.config
        head = self._labeled_head(
            SpanClassifier.from_pretrained,
            folder,
            representation=config.representation,
            max_width=record.max_width,
            multi_label=config.multi_label,
            decoding=record.constraint,
        )
        head.config.thresholds = dict(record.thresholds)
        return head

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the summed loss of logits [S, C], and the number of words.

        It is divided by words and not by candidates, so a wider --max-width does not reduce the
        contribution of entities to the loss.
        """
        target, config = batch.targets["span"], self.record.config
        several = config.multi_label
        if config.loss != "ce" or self.record.class_weights is not None:
            if several:
                known = target != IGNORED
                losses = label_losses(config, logits, target * known, batch.targets) * known
            else:
                losses, weights = class_losses(config, logits, target, batch.targets)
                losses = losses * weights
            total = losses.sum()
        elif several:
            known = target != IGNORED
            total = functional.binary_cross_entropy_with_logits(
                logits,
                target.to(logits.dtype) * known,
                weight=known.to(logits.dtype),
                reduction="sum",
            )
        else:
            total = functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum")
        return total, batch.targets["num_words"]

    def soft_loss(
        self, logits: torch.Tensor, teacher: torch.Tensor, batch: Batch, temperature: float
    ) -> torch.Tensor:
        """Return the summed divergence from the teacher's types of all candidates [S, C]."""
        several = self.record.config.multi_label
        divergence = label_divergence if several else class_divergence
        return divergence(logits, teacher, temperature).sum()

    def num_logits(self, sequences: Encodings) -> Array:
        """Return the number of candidates of each sequence."""
        width = self.record.max_width
        return np.array([num_candidates(n, width) for n in sequences.num_words.tolist()])

    def targets_without_gold(self, sequences: Encodings) -> Mapping[str, Ragged]:
        """Return targets in which no candidate has a loss."""
        counts, number = self.num_logits(sequences), len(sequences)
        ones = np.ones(number, np.int64)
        none = Ragged.of_counts(np.zeros(0, np.int32), ones * 0)
        others = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
        return {
            "indices": none,
            "classes": none,
            "others": Ragged.of_counts(others, counts),
            "num_words": Ragged.of_counts(np.zeros(number, np.int32), ones),
            "width": Ragged.of_counts(sequences.num_words.astype(np.int32), ones),
        }

    def decode(self, logits: torch.Tensor, batch: Batch) -> list[Partial]:
        """Return the candidates of each sequence whose score could reach a threshold."""
        rows = self.record.windows(logits.cpu().numpy(), batch.num_words)
        return batch.partials(rows)

    def finish(
        self, example: TokenExample, partials: Sequence[Partial], *, log_probabilities: bool = False
    ) -> SpanPrediction:
        """Predict the most probable set of spans that the constraint allows."""
        return self.record.finish(example, partials)

    @property
    def explained_by(self) -> Sequence[str]:
        """The methods that explain predictions, of sentences that are read alone."""
        return EXPLAINED_BY if self.record.config.context == "none" else ()

    def decisions(self, prediction: SpanPrediction) -> Sequence[Decision]:
        """Return the type of each span."""
        ids = self.record.labels.id
        return [Decision(each.label, ids(each.label), each[:2]) for each in prediction.spans]

    def decision_scores(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of types against no type: [S, C]."""
        return logits if self.record.config.multi_label else logits[:, 1:] - logits[:, :1]

    def decision_row(self, decision: Decision, sequence: Encoding) -> int | None:
        """Return the row of a span; None in windows without it."""
        assert decision.words is not None
        start, end = (word - sequence.first_word for word in decision.words)
        if start < 0 or end > sequence.num_words:
            return None
        return int(candidate_index(start, end, sequence.num_words, self.record.max_width))

    def fit(
        self, gold: Sequence[TokenExample], predicted: Sequence[SpanPrediction]
    ) -> tuple[dict[str, Any], str]:
        """Choose thresholds of span types."""
        record = self.record
        thresholds = choose_thresholds(
            [example.spans or () for example in gold],
            [prediction.candidates for prediction in predicted],
            record.constraint,
            list(record.labels),
            record.config.calibrate == "types",
        )
        shown = sorted({round(value, 3) for value in thresholds.values()})
        note = f"thresholds chosen on validation: {', '.join(map(str, shown))}"
        return {"thresholds": thresholds}, note

    def apply_fitted(self, example: TokenExample, prediction: SpanPrediction) -> SpanPrediction:
        """Apply the fitted values to a prediction."""
        return self.record.decide(prediction, self.record.thresholds)

    def _score(
        self, gold: Sequence[TokenExample], predicted: Sequence[SpanPrediction]
    ) -> dict[str, float]:
        found = super()._score(gold, predicted)
        if self.record.thresholds:
            before = [self.record.decide(prediction, {}).spans for prediction in predicted]
            uncalibrated = scores_of("spans", [example.spans for example in gold], before)
            found["span_f1_uncalibrated"] = uncalibrated["span_f1_strict"]
        return found
