"""Named entities as labelled spans of words, nested ones too (span-based NER).

Every span of up to a number of words is a candidate and gets one of the types or none
(Jurafsky & Martin, "Masked Language Models", span-based NER, equations 11.21 to 11.27), so that
training and answer speak of the same thing, spans, and entities inside entities are nothing
special. What may stand together is decided at the end (``finetune.tasks.span_decoding``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from finetune.config.tasks import NerConfig
from finetune.data import Dataset
from finetune.data.spans import overlapping, proposed_width
from finetune.evaluation.metrics import span_scores
from finetune.models.heads.span_ner import SpanNer
from finetune.preprocessing.context import in_documents
from finetune.preprocessing.encodings import Encoded, Ragged
from finetune.preprocessing.span_candidates import answered, candidates, num_candidates
from finetune.tasks.span_decoding import LOWEST, best_spans, choose_thresholds
from finetune.tasks.span_targets import SpanTargets
from finetune.tasks.word_task import WordTask
from finetune.types import (
    IGNORED,
    Batch,
    Encoding,
    Partial,
    Span,
    SpanPrediction,
    TokenExample,
    UserError,
    shortened,
)


class Scored(NamedTuple):
    """The answer of a window: its candidates that may become spans, by place, label and score."""

    num_words: int
    places: np.ndarray
    labels: np.ndarray
    scores: np.ndarray


class SpanNerTask(WordTask):
    """Labelled spans of words."""

    name = "ner"
    config: NerConfig

    @classmethod
    def prepare(cls, config: NerConfig, data: Dataset) -> Dataset:
        """Leave out sentences without gold from train and validation; refuse tags without spans."""
        data, splits = in_documents(config, data), {}
        for split, examples in data.splits.items():
            labelled = [example for example in examples if example.spans is not None]
            if not labelled and not split.startswith("test"):
                raise UserError(
                    f"{data.name}: no sentence of {split} has spans, or tags that spell spans "
                    "(B-TYPE, I-TYPE, O). Tags of single words are a matter for `finetune tag`."
                )
            splits[split] = labelled or examples
        return replace(data, splits=splits)

    @classmethod
    def derive(cls, config: NerConfig, data: Dataset) -> tuple[list[str], dict[str, Any]]:
        """The types of spans, the widest candidate, and what may stand together."""
        train = [example.spans or () for example in data.splits["train"]]
        labels = sorted({span.label for spans in train for span in spans})
        if not labels:
            raise UserError(f"{data.name}: train has no spans: there is nothing to learn.")
        widths = [span.end - span.start for spans in train for span in spans]
        limited = config.representation != "biaffine"
        max_width = config.max_width or (proposed_width(widths) if limited else None)
        nested = any(map(overlapping, train))
        decoding = (
            ("nested" if nested else "flat") if config.decoding == "auto" else config.decoding
        )
        return labels, {"max_width": max_width, "decoding": decoding, "thresholds": {}}

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.max_width: int | None = self.extra["max_width"]
        self.targets = SpanTargets(self.labels, self.max_width, self.config.multi_label)
        if self.data is not None:
            self.notes += self._plan_notes()

    def _plan_notes(self) -> list[str]:
        limit = "of any width" if self.max_width is None else f"up to {self.max_width} words wide"
        notes = [f"candidates: spans {limit}; decoding {self.decoding}"]
        for split in self.splits[1:]:
            types = {span.label for example in self.read(split) for span in example.spans or ()}
            if unseen := sorted(types - set(self.labels)):
                notes.append(
                    f"{shortened(unseen)} in {split} never occurs in train: cannot be predicted "
                    "and counts as missed"
                )
        return notes

    @property
    def decoding(self) -> str:
        """What may stand together: as asked when predicting, else as decided in training."""
        asked = self.config.decoding
        return self.extra["decoding"] if asked == "auto" else asked

    @property
    def metric(self) -> str:
        """The metric that selects the best model."""
        return self.config.metric or "span_f1_strict"

    def sequences(self, examples: Sequence[TokenExample]) -> list[list[Encoding]]:
        """The windows of each sentence; a span is answered for by the window that holds it best
        (``spans.answered``)."""
        result = []
        for example, encodings in zip(examples, self.windows(examples, own=False), strict=True):
            if example.spans is not None:
                bounds = _bounds(encodings)
                encodings = [
                    replace(encoding, target=self.targets.gold(example.spans, bounds, index))
                    for index, encoding in enumerate(encodings)
                ]
            result.append(encodings)
        return result

    def lost(self, examples: Sequence[TokenExample], encoded: Encoded) -> list[str]:
        """Gold spans that no answer can contain; they count as missed."""
        gold = [example.spans or () for example in examples]
        begins = encoded.sequences.first_word.tolist()
        ends = (encoded.sequences.first_word + encoded.sequences.num_words).tolist()
        every = list(zip(begins, ends, strict=True))
        cuts = encoded.offsets.tolist()
        bounds = [every[start:end] for start, end in pairwise(cuts)]
        return self.targets.lost(gold, bounds, self.max_length, self.decoding)

    def targets_of(self, rows: Mapping[str, Ragged]) -> dict[str, torch.Tensor]:
        """``span``: class of each candidate [S], or with several labels 0 and 1 [S, C];
        ``IGNORED`` where another window answers. ``num_words``: of the windows' own, []."""
        num_words = torch.tensor(int(rows["num_words"].values.sum()))
        return {"span": torch.from_numpy(self.targets.collate(rows)), "num_words": num_words}

    def head(self, name: str | Path | None = None) -> SpanNer:
        """A span scorer, fresh on the configured encoder or loaded from a folder."""
        if name is not None:
            return SpanNer.from_pretrained(str(name), batching=self.config.batching)
        with self.beginning() as where:
            return SpanNer.from_encoder(
                labels=list(self.labels),
                representation=self.config.representation,
                word_vectors=self.config.word_vectors,
                max_width=self.max_width,
                multi_label=self.config.multi_label,
                decoding=self.decoding,
                batching=self.config.batching,
                **where,
            )

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Summed cross entropy of logits [S, C] over the candidates, and the number of words.

        By words and not by candidates, so that a wider --max-width does not make the entities'
        part of the loss smaller.
        """
        target = batch.targets["span"]
        if self.config.negatives < 1:
            none = (target == 0) if target.ndim == 1 else (target == 0).all(-1)
            drawn = torch.rand(len(none), device=none.device) >= self.config.negatives
            target = target.clone()
            target[none & drawn] = IGNORED
        if self.config.multi_label:
            known = target != IGNORED
            total = functional.binary_cross_entropy_with_logits(
                logits, target.to(logits.dtype) * known, weight=known.to(logits.dtype),
                reduction="sum",
            )  # fmt: skip
        else:
            total = functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum")
        return total, batch.targets["num_words"]

    def decode(self, logits: torch.Tensor, batch: Batch) -> list[Partial]:
        """The candidates of each sequence whose score could reach a threshold.

        The score is the probability of a type against none: for a softmax p / (p + p of none),
        which is above one half where the type beats none.
        """
        if self.config.multi_label:
            scores = logits.sigmoid()  # [S, C]
            rows, labels = (scores >= LOWEST).nonzero(as_tuple=True)
            best = scores[rows, labels]
        else:
            highest, kind = logits[:, 1:].max(-1)  # [S]
            score = (highest - logits[:, 0]).sigmoid()
            (rows,) = (score >= LOWEST).nonzero(as_tuple=True)
            labels, best = kind[rows], score[rows]
        parts = [array.cpu().numpy() for array in (rows, labels, best.cpu().double())]
        sizes = [num_candidates(number, self.max_width) for number in batch.num_words]
        ends = np.cumsum(sizes)
        cuts = np.searchsorted(parts[0], ends[:-1])
        by_sequence = zip(*(np.split(array, cuts) for array in parts), strict=True)
        result = []
        for index, (places, kinds, values) in enumerate(by_sequence):
            scored = Scored(
                batch.num_words[index], places - (ends[index] - sizes[index]), kinds, values
            )
            result.append(Partial(batch.example[index], batch.first_word[index], scored))
        return result

    def finish(self, example: TokenExample, partials: Sequence[Partial]) -> SpanPrediction:
        """The most probable set of spans that may stand together, from the windows in order."""
        partials = sorted(partials, key=lambda partial: partial.first_word)
        reach = max(partial.first_word + partial.values.num_words for partial in partials)
        if reach != len(example.words):
            raise RuntimeError(
                f"{example.where}: answers for {reach} of {len(example.words)} words"
            )
        prediction = SpanPrediction(
            example.id, example.words, (), (), example.offsets, example.text,
            tuple(self._candidates(partials)),
        )  # fmt: skip
        return self._decided(prediction, self.extra["thresholds"])

    def _candidates(self, partials: Sequence[Partial]) -> Iterator[tuple[Span, float]]:
        bounds = [(p.first_word, p.first_word + p.values.num_words) for p in partials]
        for index, (start, end) in enumerate(bounds):
            _, places, labels, scores = partials[index].values
            if len(bounds) > 1:
                mine = answered(bounds, index, self.max_width)[places]
                places, labels, scores = places[mine], labels[mine], scores[mine]
            extents = candidates(end - start, self.max_width)[places] + start
            for (first, last), label, score in zip(
                extents.tolist(), labels.tolist(), scores.tolist(), strict=True
            ):
                yield Span(first, last, self.labels[label]), score

    def _decided(self, prediction: SpanPrediction, thresholds: dict[str, float]) -> SpanPrediction:
        chosen = best_spans(prediction.candidates, self.decoding, thresholds)
        spans, scores = zip(*chosen, strict=True) if chosen else ((), ())
        return replace(prediction, spans=spans, scores=scores)

    def calibrate(
        self, head: Any, gold: Sequence[TokenExample], predicted: Sequence[SpanPrediction]
    ) -> list[SpanPrediction] | None:
        """Thresholds that are best on validation, kept in the task and in the model."""
        if self.config.calibrate == "none":
            return None
        self.extra["thresholds"] = choose_thresholds(
            [example.spans or () for example in gold],
            [prediction.candidates for prediction in predicted],
            self.decoding,
            list(self.labels),
            self.config.calibrate == "types",
        )
        head.config.thresholds = dict(self.extra["thresholds"])
        shown = sorted({round(value, 3) for value in self.extra["thresholds"].values()})
        self.notes.append(f"thresholds chosen on validation: {', '.join(map(str, shown))}")
        return [self._decided(prediction, self.extra["thresholds"]) for prediction in predicted]

    def has_gold(self, example: TokenExample) -> bool:
        """Whether the sentence has spans."""
        return example.spans is not None

    def score(
        self, gold: Sequence[TokenExample], predicted: Sequence[SpanPrediction]
    ) -> dict[str, float]:
        """Span scores; where thresholds were calibrated also the F1 without them."""
        spans = [example.spans or () for example in gold]
        scores = span_scores(spans, [prediction.spans for prediction in predicted])
        if self.extra["thresholds"]:
            before = [self._decided(prediction, {}).spans for prediction in predicted]
            scores["span_f1_uncalibrated"] = span_scores(spans, before)["span_f1_strict"]
        return scores


def _bounds(encodings: Sequence[Encoding]) -> list[tuple[int, int]]:
    """The words of each window: (start, end)."""
    return [(e.first_word, e.first_word + e.num_words) for e in encodings]
