"""From the logits of sequences to predictions, for texts, tags and spans.

Numpy alone, as exported models decode with this file too. The record of a task is a decoder, and an
export holds the attributes of the record that decoding reads. ``windows`` makes one value of each
sequence of a batch, and ``finish`` makes the prediction of an example from the values of its
sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from finetune.data.tag_schemes import continuation_tag, tags_to_spans
from finetune.evaluation.temperature import probabilities_of, scale
from finetune.preprocessing.span_candidates import candidates, num_candidates, predicted_candidates
from finetune.tasks.span_decoding import LOWEST, best_spans
from finetune.tasks.viterbi import (
    Transitions,
    log_softmax,
    log_transitions,
    marginals,
    viterbi,
    word_scores,
)
from finetune.types import (
    LabelSet,
    Partial,
    Span,
    SpanPrediction,
    TextExample,
    TextPrediction,
    TokenExample,
    TokenPrediction,
)


class Decoder:
    """Makes predictions from logits: the record of a task, or what an export holds of it."""

    labels: LabelSet

    @classmethod
    def attributes(cls) -> list[str]:
        """Return the names of the attributes that decoding reads."""
        return ["labels", *cls.__annotations__]

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> Self:
        """Make a decoder that is no record from the values of its attributes."""
        decoder = cls()
        vars(decoder).update(values, labels=LabelSet(values["labels"]))
        return decoder


class TextDecoder(Decoder):
    """Decodes one label, several labels or a number for a text."""

    problem: str
    positive: str | None
    """The positive class of two labels."""
    temperature: float | None
    """Divides the logits before the softmax (Guo et al., 2017)."""
    thresholds: Mapping[str, float]
    """Lowest probability of each label, or of the positive one of two, in place of ``threshold``
    and of the more probable one (``finetune thresholds``)."""
    threshold: float
    """Lowest probability of a predicted label (several labels)."""

    def windows(self, logits: np.ndarray) -> list[np.ndarray]:
        """Return the probabilities [C] of each sequence (regression: the number)."""
        logits = logits.astype(np.float64)
        if self.problem == "single":
            logits = np.exp(log_softmax(logits))
        elif self.problem == "multi":
            logits = _sigmoid(logits)
        return list(logits)

    def finish(self, example: TextExample, partials: Sequence[Partial]) -> TextPrediction:
        """Average the windows; take the best label, those over the threshold, or the number."""
        values = np.mean([partial.values for partial in partials], axis=0)
        if self.problem == "regression":
            return TextPrediction(example.id, float(values[0]))
        return self.decide(example.id, values)

    def of_blank(self, example: TextExample) -> TextPrediction | None:
        """Return a prediction without a label if no text of the example has a character to read."""
        texts = [example.text] if example.pair is None else [example.text, example.pair]
        if any(map(str.strip, texts)):
            return None
        scores = None if self.problem == "regression" else dict.fromkeys(self.labels, np.nan)
        return TextPrediction(example.id, None, scores=scores, positive=self.positive)

    def decide(self, id: int, probabilities: np.ndarray) -> TextPrediction:
        """Make a prediction from the probabilities [C] of the model, averaged over windows."""
        best = int(probabilities.argmax())
        multi, before = self.problem == "multi", None
        if self.temperature is not None:
            before = dict(zip(self.labels, map(float, probabilities), strict=True))
            probabilities = scale(probabilities, self.temperature, multi)
        scores = dict(zip(self.labels, map(float, probabilities), strict=True))
        if multi:
            default, own = self.threshold, self.thresholds
            chosen = tuple(name for name, p in scores.items() if p >= own.get(name, default))
            return TextPrediction(id, chosen, None, scores, uncalibrated=before)
        if self.positive is not None and self.positive in self.thresholds:
            index = self.labels.id(self.positive)
            best = index if scores[self.positive] >= self.thresholds[self.positive] else 1 - index
        best_score = float(probabilities[best])
        return TextPrediction(id, self.labels[best], best_score, scores, self.positive, before)


class Chain(NamedTuple):
    """The emissions of a sequence's core words; their tags and probabilities if it is a sentence.
    Training treats windows as separate chains, prediction joins them."""

    emissions: np.ndarray
    transitions: Transitions
    tags: np.ndarray
    probabilities: np.ndarray


class TagDecoder(Decoder):
    """Decodes one tag for each word."""

    scheme: str | None
    """The tag scheme of the predictions (BIO, BIOES, ...); None if tags are not spans."""
    constrained: bool
    """Whether illegal tag sequences are ruled out."""
    all_subwords: bool
    """Whether all subwords of a word have logits."""
    word_score: str
    """The reduction of the logits of subwords to scores of words."""
    temperature: float | None
    """Divides the log-probabilities before the softmax (Guo et al., 2017)."""

    @property
    def continuations(self) -> list[int]:
        """The class of the later subwords of a word of each class (I- for B-)."""
        return _continuations(self.labels, self.scheme)

    def windows(
        self,
        logits: np.ndarray,
        num_words: Sequence[int],
        word_lengths: np.ndarray,
        transitions: Transitions | None = None,
    ) -> list[Any]:
        """Return the log-probabilities [words, C] of the core words of each sequence, or a chain.

        Args:
            logits: Of all words [W, C], or of all their subwords.
            num_words: The number of core words of each sequence.
            word_lengths: The number of subwords of each word, [W].
            transitions: The scores of a CRF.
        """
        cuts = np.cumsum(num_words)[:-1]
        if transitions is None:
            logs = log_softmax(logits)
            if self.all_subwords:
                logs = word_scores(logs, word_lengths, self.continuations, self.word_score)
            return np.split(logs, cuts)
        emissions = logits - logits.max(-1, keepdims=True)  # for precision in float32
        parts = (emissions, *_best_tags(emissions, transitions, num_words))
        split = (np.split(part, cuts) for part in parts)
        return [Chain(own, transitions, *best) for own, *best in zip(*split, strict=True)]

    def finish(
        self, example: TokenExample, partials: Sequence[Partial], *, log_probabilities: bool = False
    ) -> TokenPrediction:
        """Predict one tag for each word; keep the log-probabilities [W, C] of all on request."""
        values = [partial.values for partial in partials]
        logs = None
        if isinstance(values[0], Chain):
            _, transitions, classes, probabilities = values[0]
            if len(values) > 1:
                emissions = np.concatenate([chain.emissions for chain in values])
                classes, probabilities = _best_tags(emissions, transitions, [len(emissions)])
        else:
            logs = np.concatenate(values)
            classes = self._best_classes(logs)
            probabilities = probabilities_of(classes.tolist(), logs, self.temperature or 1.0)
        check_complete(example, len(classes))
        return self.decide(example, classes, probabilities, logs if log_probabilities else None)

    def _best_classes(self, logs: np.ndarray) -> np.ndarray:
        """Return the class of each word [W]; only illegal sequences need a search."""
        classes: np.ndarray = logs.argmax(-1)
        legal = _legal(self.labels, self.scheme)
        start, end, pairs = legal
        if self.constrained and len(classes):
            costs = start[classes[0]] + end[classes[-1]] + pairs[classes[:-1], classes[1:]].sum()
            if costs < 0:
                return viterbi(logs, legal)
        return classes

    def decide(
        self,
        example: TokenExample | TokenPrediction,
        classes: Iterable[int],
        probabilities: Iterable[float],
        logs: np.ndarray | None,
    ) -> TokenPrediction:
        """Make a prediction from the class of each word and its probability."""
        names = self.labels.names
        tags = tuple(names[int(index)] for index in classes)
        scores = tuple(float(p) for p in probabilities)
        spans: tuple[Span, ...] | None = None
        span_scores: tuple[float, ...] = ()
        if self.scheme is not None:
            spans = tuple(tags_to_spans(tags, self.scheme))
            span_scores = tuple(float(np.mean(scores[s.start : s.end])) for s in spans)
        return TokenPrediction(
            example.id,
            example.words,
            tags,
            scores,
            spans,
            span_scores,
            example.offsets,
            example.text,
            logs,
        )


@lru_cache(maxsize=16)
def _legal(labels: LabelSet, scheme: str | None) -> Transitions:
    return log_transitions(labels.names, scheme)


@lru_cache(maxsize=16)
def _continuations(labels: LabelSet, scheme: str | None) -> list[int]:
    tags = [continuation_tag(name, scheme) for name in labels]
    return [labels.id(tag) if tag in labels else i for i, tag in enumerate(tags)]


def _best_tags(
    emissions: np.ndarray, transitions: Transitions, num_words: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best tags of words and their marginal probabilities, both [W]."""
    tags = viterbi(emissions, transitions, num_words)
    return tags, marginals(emissions, transitions, num_words)[np.arange(len(tags)), tags]


class ScoredCandidates(NamedTuple):
    """The candidates of a window that may become spans: index, class and score, each [K]."""

    num_words: int
    indices: np.ndarray
    classes: np.ndarray
    scores: np.ndarray


class SpanDecoder(Decoder):
    """Decodes labeled spans of words."""

    max_width: int | None
    """Number of words of the widest candidate; None for no limit."""
    multi_label: bool
    """Whether a span can have several types."""
    constraint: str
    """The spans that may be predicted together (``finetune.tasks.span_decoding``)."""
    thresholds: Mapping[str, float]
    """The fitted threshold of each span type; 0.5 for types without one."""

    def windows(self, logits: np.ndarray, num_words: Sequence[int]) -> list[ScoredCandidates]:
        """Return the candidates of each sequence whose score could reach a threshold.

        ``logits`` [S, C] belong to the candidates of all sequences. The score of a type is its
        probability against no type: for a softmax p / (p + p of none).
        """
        if self.multi_label:
            scores = _sigmoid(logits)  # [S, C]
            rows, classes = (scores >= LOWEST).nonzero()
            best = scores[rows, classes]
        else:
            scores = _sigmoid(logits[:, 1:].max(-1) - logits[:, 0])  # [S]
            (rows,) = (scores >= LOWEST).nonzero()
            classes, best = logits[rows, 1:].argmax(-1), scores[rows]
        sizes = [num_candidates(number, self.max_width) for number in num_words]
        ends = np.cumsum(sizes)
        arrays = (rows, classes, best.astype(np.float64))
        split = (np.split(array, np.searchsorted(rows, ends[:-1])) for array in arrays)
        return [
            ScoredCandidates(number, own - (end - size), *others)
            for number, end, size, own, *others in zip(num_words, ends, sizes, *split, strict=True)
        ]

    def finish(self, example: TokenExample, partials: Sequence[Partial]) -> SpanPrediction:
        """Predict the most probable set of spans that the constraint allows."""
        check_complete(example, max(p.first_word + p.values.num_words for p in partials))
        prediction = SpanPrediction(
            example.id,
            example.words,
            (),
            (),
            example.offsets,
            example.text,
            tuple(self._candidates(partials)),
        )
        return self.decide(prediction, self.thresholds)

    def _candidates(self, partials: Sequence[Partial]) -> Iterator[tuple[Span, float]]:
        """Yield candidates with their scores, each from the window that predicts it."""
        bounds = [(p.first_word, p.first_word + p.values.num_words) for p in partials]
        for index, (start, end) in enumerate(bounds):
            _, indices, classes, scores = partials[index].values
            if len(bounds) > 1:
                own = predicted_candidates(bounds, index, self.max_width)[indices]
                indices, classes, scores = indices[own], classes[own], scores[own]
            spans = candidates(end - start, self.max_width)[indices] + start
            for (first, last), number, score in zip(
                spans.tolist(), classes.tolist(), scores.tolist(), strict=True
            ):
                yield Span(first, last, self.labels[number]), score

    def decide(self, prediction: SpanPrediction, thresholds: Mapping[str, float]) -> SpanPrediction:
        """Choose among the candidates of a prediction."""
        chosen = best_spans(prediction.candidates, self.constraint, thresholds)
        spans, scores = zip(*chosen, strict=True) if chosen else ((), ())
        return replace(prediction, spans=spans, scores=scores)


def check_complete(example: TokenExample, number: int) -> None:
    """Raise RuntimeError unless every word has a prediction."""
    if number != len(example.words):
        raise RuntimeError(f"{example.where}: {number} predictions for {len(example.words)} words")


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # 1 / inf is the right 0
        found: np.ndarray = 1 / (1 + np.exp(-logits))
    return found
