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

from finetune.config.tasks import NerConfig
from finetune.data import Dataset, split_at_gold
from finetune.data.spans import overlapping, proposed_width
from finetune.evaluation.prediction_types import scores_of
from finetune.models.heads.span_classifier import SpanClassifier
from finetune.preprocessing.context import in_documents
from finetune.preprocessing.encodings import EncodedExamples, FlatSequences
from finetune.preprocessing.preparation import with_gold
from finetune.preprocessing.span_candidates import (
    candidate_index,
    num_candidates,
    predicted_candidates,
)
from finetune.tasks.base import Fitted, Scores, Windows, WindowTargets
from finetune.tasks.class_losses import class_losses, class_weights, label_losses, loss_targets
from finetune.tasks.span_decoding import (
    ScoredCandidates,
    SpanDecoder,
    best_spans,
    choose_span_thresholds,
)
from finetune.tasks.word_task import WordState, WordTask
from finetune.types import IGNORED, Batch, LabelSet, Span, SpanPrediction, TokenExample, quantity


@dataclass(frozen=True, kw_only=True)
class SpanState(WordState, SpanDecoder):
    """The state of a span-based NER task; ``SpanDecoder`` explains the fields of decoding."""

    config: NerConfig
    max_width: int
    decoding: str
    """The constraint on predicted spans: configured, or chosen by the training data."""
    class_weights: tuple[float, ...] | None = None
    """The weight of each span type; no span has the weight 1."""
    thresholds: Mapping[str, float] = field(default_factory=dict)

    prediction_type = "spans"

    @property
    def multi_label(self) -> bool:  # type: ignore[override]  # an attribute of what is restored
        return self.config.multi_label

    @property
    def constraint(self) -> str:  # type: ignore[override]
        configured = self.config.decoding
        return self.decoding if configured == "auto" else configured

    @property
    def threshold_labels(self) -> Sequence[str]:
        return list(self.labels)


_NO_GOLD = (
    "spans, or tags that spell spans (B-TYPE, I-TYPE, O). For tags of single words use "
    "`finetune tag`."
)


class SpanNerTask(WordTask):
    """Labeled spans of words."""

    state: SpanState
    state_class = SpanState
    gold = attrgetter("spans")
    _core_only = False

    @classmethod
    def prepare(cls, config: NerConfig, data: Dataset) -> Dataset:
        return with_gold(in_documents(config, data), "spans", "sentence", _NO_GOLD, "tags or spans")

    @classmethod
    def derive(cls, config: NerConfig, data: Dataset) -> dict[str, Any]:
        """Derive the span types, the widest candidate and the constraint on predicted spans."""
        counts, widths, nested = Counter[str](), Counter[int](), False
        for example in data.splits["train"]:
            spans = split_at_gold(example).spans or ()
            counts.update(span.label for span in spans)
            widths.update(span.end - span.start for span in spans)
            nested = nested or overlapping(spans)
        labels = sorted(counts)
        decoding = config.decoding
        if decoding == "auto":
            decoding = "nested" if nested else "flat"
        weights = class_weights(config.class_weights, labels, counts, counts.total(), "single")
        return {
            "labels": LabelSet(labels),
            "max_width": config.max_width or proposed_width(widths),
            "decoding": decoding,
            "class_weights": weights,
        }

    def complete(self, data: Dataset) -> Dataset:
        """Add a note on candidates and decoding."""
        width = quantity(self.state.max_width, "word")
        note = f"candidates: spans up to {width} wide; decoding {self.state.constraint}"
        return replace(data, notes=[*data.notes, note])

    def _window_targets(self, example: TokenExample, windows: Windows) -> WindowTargets:
        """``others`` are candidates that another window predicts; ``num_words`` leaves them out."""
        bounds = [(w.first_word, w.first_word + w.num_words) for w in windows]
        widest, spans, targets = self.state.max_width, self._known(example.spans or ()), []
        for index, (start, end) in enumerate(bounds):
            size = end - start
            gold = [
                (candidate_index(s.start - start, s.end - start, size, widest), number)
                for s, number in spans
                if start <= s.start and s.end <= end and not self._too_wide(s)
            ]
            ignored, num_words = list[int](), size
            if example.spans is None:
                ignored, num_words = list(range(num_candidates(size, widest))), 0
            elif len(bounds) > 1:
                predicted = predicted_candidates(bounds, index, widest)
                ignored = np.flatnonzero(~predicted).tolist()
                words = np.arange(size)
                num_words = int(predicted[candidate_index(words, words + 1, size, widest)].sum())
            indices, classes = zip(*gold, strict=True) if gold else ((), ())
            target = {"indices": indices, "classes": classes, "others": ignored}
            targets.append({**target, "num_words": [num_words], "width": [size]})
        return targets

    def _known(self, spans: Sequence[Span]) -> list[tuple[Span, int]]:
        labels, multi_label = self.state.labels, self.state.multi_label
        first = 0 if multi_label else 1
        known = [(s, first + labels.id(s.label)) for s in spans if s.label in labels]
        if multi_label:
            return known
        return list({(s.start, s.end): (s, number) for s, number in reversed(known)}.values())

    def _too_wide(self, span: Span) -> bool:
        return span.end - span.start > self.state.max_width

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
        note = f"{fraction} out of reach, counted as missed: {reasons}"
        return [*notes, note] if reasons else notes

    def _targets(self, sequences: FlatSequences) -> dict[str, torch.Tensor]:
        """``span`` has the classes of all candidates [S], or 0 and 1 [S, C] with several labels."""
        state, weights, rows = self.state, self.state.class_weights, sequences.targets or {}
        widths = rows["width"].values.tolist()
        ends = np.cumsum([num_candidates(number, state.max_width) for number in widths])
        begins = np.concatenate(([0], ends[:-1]))
        gold, ignored = (
            rows[name].values.astype(np.int64) + np.repeat(begins, rows[name].counts)
            for name in ("indices", "others")
        )
        classes = rows["classes"].values.astype(np.int64)
        if state.multi_label:
            target = np.zeros((ends[-1], len(state.labels)), dtype=np.int64)
            target[gold, classes] = 1
        else:
            target = np.zeros(ends[-1], dtype=np.int64)
            target[gold] = classes
            weights = weights and (1.0, *weights)
        target[ignored] = IGNORED
        num_words = torch.tensor(int(rows["num_words"].values.sum()))
        spans = {"span": torch.from_numpy(target), "num_words": num_words}
        return spans | loss_targets(weights)

    def model(self, folder: str | Path | None = None) -> SpanClassifier:
        state, config = self.state, self.state.config
        head = self._load(
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
        """Compute the summed loss of logits [S, C], and the number of words.

        It is divided by words and not by candidates, so a wider --max-width does not reduce the
        contribution of entities to the loss.
        """
        target, config = batch.targets["span"], self.state.config
        if config.multi_label:
            is_scored = target != IGNORED
            losses = label_losses(config, logits, target * is_scored, batch.targets) * is_scored
        else:
            losses, _ = class_losses(config, logits, target, batch.targets)
        return losses.sum(), batch.targets["num_words"]

    def decode(self, logits: torch.Tensor, batch: Batch) -> list[ScoredCandidates]:
        """Decode the candidates of each sequence whose score could reach a threshold."""
        return self.state.windows(logits.cpu().numpy(), batch.num_words)

    def fit(self, gold: Sequence[TokenExample], predicted: Sequence[SpanPrediction]) -> Fitted:
        state = self.state
        thresholds = choose_span_thresholds(
            [example.spans or () for example in gold],
            [prediction.candidates for prediction in predicted],
            state.constraint,
            list(state.labels),
        )
        note = f"threshold chosen on validation: {thresholds[state.labels[0]]:.3f}"
        return {"thresholds": thresholds}, note

    def _score(self, gold: Sequence[Any], predicted: Sequence[Any], **fields: Any) -> Scores:
        scores = super()._score(gold, predicted)
        if self.state.thresholds:
            before = replace(self.state, thresholds={})
            spans = [before.decide(prediction).spans for prediction in predicted]
            uncalibrated = scores_of("spans", [example.spans for example in gold], spans)
            scores["span_f1_uncalibrated"] = uncalibrated["span_f1_strict"]
        return scores
