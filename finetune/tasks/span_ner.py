"""Named entities as labeled spans of words, nested ones too (span-based NER).

Every span of up to a number of words is a candidate and gets one of the types or none (Jurafsky &
Martin, "Masked Language Models", span-based NER, equations 11.21 to 11.27). Decoding selects the
candidates that may be predicted together (``finetune.tasks.span_decoding``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from finetune.config.tasks import NerConfig
from finetune.data import Dataset, split_at_gold
from finetune.data.preparation import with_gold
from finetune.data.spans import overlapping, proposed_width
from finetune.evaluation.prediction_types import scores_of
from finetune.models.heads.span_classifier import SpanClassifier
from finetune.preprocessing.context import in_documents
from finetune.preprocessing.encodings import EncodedExamples, FlatSequences, Ragged
from finetune.preprocessing.span_candidates import (
    candidate_index,
    num_candidates,
    predicted_candidates,
)
from finetune.tasks.base import labeled_model
from finetune.tasks.class_losses import (
    class_losses,
    class_weights,
    label_losses,
    loss_targets,
)
from finetune.tasks.explained import ExplainedSpans
from finetune.tasks.soft_losses import SoftSpanLoss
from finetune.tasks.span_decoding import SpanDecoder, best_spans, choose_thresholds
from finetune.tasks.word_task import WordState, WordTask
from finetune.types import (
    IGNORED,
    Batch,
    LabelSet,
    Span,
    SpanPrediction,
    TokenExample,
    TokenSequence,
    WindowOutput,
    quantity,
)

Bounds = Sequence[tuple[int, int]]
"""The words (start, end) of each window of a text."""


@dataclass(frozen=True, kw_only=True)
class SpanState(WordState, SpanDecoder):
    """The state of a span-based NER task; ``SpanDecoder`` explains what decides predictions."""

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

    @property
    def threshold_labels(self) -> Sequence[str]:
        """All span types."""
        return list(self.labels)


NO_GOLD = (
    "spans, or tags that spell spans (B-TYPE, I-TYPE, O). For tags of single words use "
    "`finetune tag`."
)


class SpanNerTask(WordTask):
    """Labeled spans of words."""

    state: SpanState
    state_class = SpanState
    gold = attrgetter("spans")
    explained = ExplainedSpans
    soft_loss = SoftSpanLoss

    @classmethod
    def prepare(cls, config: NerConfig, data: Dataset) -> Dataset:
        """Drop training and validation sentences without spans."""
        return with_gold(in_documents(config, data), "spans", "sentence", NO_GOLD)

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
            "class_weights": weights,
        }

    def complete(self, data: Dataset) -> Dataset:
        """Add a note on candidates and decoding."""
        width = self.state.max_width
        limit = "of any width" if width is None else f"up to {width} words wide"
        note = f"candidates: spans {limit}; decoding {self.state.constraint}"
        return replace(data, notes=[*data.notes, note])

    @property
    def calibrated(self) -> bool:
        """True if thresholds are chosen."""
        return self.state.config.calibrate != "none"

    def _sequences(self, examples: Sequence[TokenExample]) -> tuple[list[list[TokenSequence]], int]:
        encoded, num_cut = self._windows(examples, core_only=False)
        result = []
        for example, windows in zip(examples, encoded, strict=True):
            if example.spans is not None:
                bounds = [(w.first_word, w.first_word + w.num_words) for w in windows]
                windows = [
                    replace(window, target=self._gold(example.spans, bounds, index))
                    for index, window in enumerate(windows)
                ]
            result.append(windows)
        return result, num_cut

    def _gold(
        self, spans: Sequence[Span], bounds: Bounds, index: int
    ) -> dict[str, Sequence[float]]:
        """Make the target of window ``index``: ``indices`` and ``classes`` of its gold candidates,
        indices of the ``others``, which another window predicts, ``num_words`` that it predicts as
        candidates, and ``width``, the number of its words."""
        start, end = bounds[index]
        size, widest = end - start, self.state.max_width
        found = [
            (candidate_index(s.start - start, s.end - start, size, widest), number)
            for s, number in self._known(spans)
            if start <= s.start and s.end <= end and not self._too_wide(s)
        ]
        others: list[int] = []
        num_words = size
        if len(bounds) > 1:
            predicted = predicted_candidates(bounds, index, widest)
            others = np.flatnonzero(~predicted).tolist()
            words = np.arange(size)
            single = candidate_index(words, words + 1, size, widest)
            num_words = int(predicted[single].sum())
        indices, classes = zip(*found, strict=True) if found else ((), ())
        return {
            "indices": indices,
            "classes": classes,
            "others": others,
            "num_words": [num_words],
            "width": [size],
        }

    def _known(self, spans: Sequence[Span]) -> list[tuple[Span, int]]:
        labels, multi_label = self.state.labels, self.state.multi_label
        first = 0 if multi_label else 1
        known = [(s, first + labels.id(s.label)) for s in spans if s.label in labels]
        if multi_label:
            return known
        return list({(s.start, s.end): (s, number) for s, number in reversed(known)}.values())

    def _too_wide(self, span: Span) -> bool:
        return self.state.max_width is not None and span.end - span.start > self.state.max_width

    def _encoding_notes(
        self, examples: Sequence[TokenExample], encoded: EncodedExamples
    ) -> list[str]:
        notes = super()._encoding_notes(examples, encoded)
        if not any(example.spans for example in examples):
            return notes
        state, sequences = self.state, encoded.sequences
        ends = (sequences.first_word + sequences.num_words).tolist()
        every = list(zip(sequences.first_word.tolist(), ends, strict=True))
        bounds = [every[start:end] for start, end in pairwise(encoded.offsets.tolist())]
        total, numbers = 0, Counter[str]()
        for example, windows in zip(examples, bounds, strict=True):
            unique = set(example.spans or ())
            narrow = {span for span in unique if not self._too_wide(span)}
            held = {s for s in narrow if any(a <= s.start and s.end <= b for a, b in windows)}
            single = held if state.multi_label else {(s.start, s.end): s for s in held}.values()
            kept = best_spans([(span, 0.9) for span in single], state.constraint, {})
            total += len(unique)
            for reason, before, after in (
                (f"wider than --max-width {state.max_width}", unique, narrow),
                (f"cut by a window of --max-length {state.max_length}", narrow, held),
                ("a second label of the same words (see --multi-label)", held, single),
                (f"in conflict with another under --decoding {state.constraint}", single, kept),
            ):
                numbers[reason] += len(before) - len(after)
        reasons = "; ".join(f"{number:,} {what}" for what, number in numbers.items() if number)
        fraction = f"{numbers.total():,} of {quantity(total, 'gold span')}"
        found = f"{fraction} out of reach, counted as missed: {reasons}"
        return [*notes, found] if reasons else notes

    def _targets(
        self, rows: Mapping[str, Ragged], sequences: FlatSequences
    ) -> dict[str, torch.Tensor]:
        """Return ``span``, ``num_words`` predicted, and ``loss_targets``.

        ``span`` has the classes of all candidates [S], or 0 and 1 [S, C] with several labels;
        ``IGNORED`` for candidates that another window predicts.
        """
        state = self.state
        widths = rows["width"].values.tolist()
        ends = np.cumsum([num_candidates(number, state.max_width) for number in widths])
        begins = np.concatenate(([0], ends[:-1]))
        shape = (ends[-1], len(state.labels)) if state.multi_label else (ends[-1],)
        target = np.zeros(shape, dtype=np.int64)
        gold, others = (
            rows[name].values.astype(np.int64) + np.repeat(begins, rows[name].counts)
            for name in ("indices", "others")
        )
        classes = rows["classes"].values.astype(np.int64)
        if state.multi_label:
            target[gold, classes] = 1
        else:
            target[gold] = classes
        target[others] = IGNORED
        weights = state.class_weights
        if weights is not None and not state.multi_label:
            weights = (1.0, *weights)
        num_words = torch.tensor(int(rows["num_words"].values.sum()))
        spans = {"span": torch.from_numpy(target), "num_words": num_words}
        return spans | loss_targets(state.config, weights)

    def model(self, folder: str | Path | None = None) -> SpanClassifier:
        """Make a new span scorer on the configured encoder, or load one from a folder."""
        state, config = self.state, self.state.config
        head = labeled_model(
            self,
            SpanClassifier.from_pretrained,
            folder,
            representation=config.representation,
            max_width=state.max_width,
            multi_label=config.multi_label,
            decoding=state.constraint,
        )
        head.config.thresholds = dict(state.thresholds)
        return head

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the summed loss of logits [S, C], and the number of words.

        It is divided by words and not by candidates, so a wider --max-width does not reduce the
        contribution of entities to the loss.
        """
        target, config = batch.targets["span"], self.state.config
        several = config.multi_label
        if config.loss != "ce" or self.state.class_weights is not None:
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

    def decode(self, logits: torch.Tensor, batch: Batch) -> list[WindowOutput]:
        """Return the candidates of each sequence whose score could reach a threshold."""
        rows = self.state.windows(logits.cpu().numpy(), batch.num_words)
        return batch.window_outputs(rows)

    def fit(
        self, gold: Sequence[TokenExample], predicted: Sequence[SpanPrediction]
    ) -> tuple[dict[str, Any], str]:
        """Choose thresholds of span types."""
        state = self.state
        thresholds = choose_thresholds(
            [example.spans or () for example in gold],
            [prediction.candidates for prediction in predicted],
            state.constraint,
            list(state.labels),
            state.config.calibrate == "types",
        )
        shown = sorted({round(value, 3) for value in thresholds.values()})
        note = f"thresholds chosen on validation: {', '.join(map(str, shown))}"
        return {"thresholds": thresholds}, note

    def apply_fitted(self, example: TokenExample, prediction: SpanPrediction) -> SpanPrediction:
        """Apply the fitted values to a prediction."""
        return self.state.decide(prediction, self.state.thresholds)

    def _score(
        self, gold: Sequence[TokenExample], predicted: Sequence[SpanPrediction], **facts: Any
    ) -> dict[str, float]:
        found = super()._score(gold, predicted)
        if self.state.thresholds:
            before = [self.state.decide(prediction, {}).spans for prediction in predicted]
            uncalibrated = scores_of("spans", [example.spans for example in gold], before)
            found["span_f1_uncalibrated"] = uncalibrated["span_f1_strict"]
        return found
