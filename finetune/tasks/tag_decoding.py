"""One tag for each word: scores of words from scores of their subwords, and the best legal tags.

W words of N sequences are laid end to end, ``num_words`` each. The recursions go from position to
position over all sequences that are long enough, so nothing is padded. Transitions are log scores;
-inf rules out. Numpy alone, as exported models decode with this file too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from finetune.data.tag_schemes import continuation_tag, legal_transitions, tags_to_spans
from finetune.evaluation.temperature import log_softmax
from finetune.tasks.decoding import Decoder, check_complete
from finetune.types import LabelSet, Span, TokenExample, TokenPrediction, WindowOutput

_Transitions = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Log scores of tags at the start [C], at the end [C], and of pairs [C, C]."""


class Chain(NamedTuple):
    """The emissions of a sequence's core words; their tags and probabilities if it is a sentence.
    Training treats windows as separate chains, prediction joins them."""

    emissions: np.ndarray
    transitions: _Transitions
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
        transitions: _Transitions | None = None,
    ) -> list[Any]:
        """Compute the log-probabilities [words, C] of the core words of each sequence, or a chain.

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
                logs = word_scores(logs, word_lengths, self.continuations)
            return np.split(logs, cuts)
        emissions = logits - logits.max(-1, keepdims=True)  # for precision in float32
        parts = (emissions, *_best_tags(emissions, transitions, num_words))
        split = (np.split(part, cuts) for part in parts)
        return [Chain(scores, transitions, *best) for scores, *best in zip(*split, strict=True)]

    def postprocess(
        self, example: TokenExample, outputs: Sequence[WindowOutput]
    ) -> TokenPrediction:
        """Predict one tag for each word."""
        values, logs = [output.values for output in outputs], None
        if isinstance(values[0], Chain):
            _, transitions, classes, probabilities = values[0]
            if len(values) > 1:
                emissions = np.concatenate([chain.emissions for chain in values])
                classes, probabilities = _best_tags(emissions, transitions, [len(emissions)])
        else:
            logs = np.concatenate(values)
            classes = self._best_classes(logs)
            probabilities = np.exp(logs[np.arange(len(classes)), classes])
        check_complete(example, len(classes))
        names = self.labels
        tags = tuple(names[index] for index in classes.tolist())
        scores = tuple(probabilities.astype(float).tolist())
        spans = None if self.scheme is None else tuple(tags_to_spans(tags, self.scheme))
        prediction = TokenPrediction(
            example.id,
            example.words,
            tags,
            scores,
            spans,
            _span_scores(spans, scores),
            logs,
            offsets=example.offsets,
            text=example.text,
        )
        return self.decide(prediction)

    def _best_classes(self, logs: np.ndarray) -> np.ndarray:
        classes: np.ndarray = logs.argmax(-1)
        legal = start, end, pairs = log_transitions(self.labels, self.scheme)
        if self.constrained and len(classes):
            costs = start[classes[0]] + end[classes[-1]] + pairs[classes[:-1], classes[1:]].sum()
            if costs < 0:
                return viterbi(logs, legal)
        return classes

    def decide(self, prediction: TokenPrediction) -> TokenPrediction:
        """Apply the temperature to the probabilities of a prediction."""
        if self.temperature is None:
            return prediction
        classes = self.labels.ids(prediction.tags, -1)
        logs = log_softmax(prediction.log_probabilities / self.temperature)
        scores = tuple(np.exp(logs[np.arange(len(classes)), classes]).tolist())
        return replace(
            prediction,
            scores=scores,
            span_scores=_span_scores(prediction.spans, scores),
            uncalibrated=prediction.scores,
        )


def _span_scores(spans: Sequence[Span] | None, scores: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(np.mean(scores[span.start : span.end])) for span in spans or ())


@lru_cache(maxsize=16)
def _continuations(labels: LabelSet, scheme: str | None) -> list[int]:
    tags = [continuation_tag(name, scheme) for name in labels]
    return [labels.id(tag) if tag in labels else i for i, tag in enumerate(tags)]


def _best_tags(
    emissions: np.ndarray, transitions: _Transitions, num_words: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    tags = viterbi(emissions, transitions, num_words)
    return tags, marginals(emissions, transitions, num_words)[np.arange(len(tags)), tags]


@lru_cache(maxsize=16)
def log_transitions(tags: tuple[str, ...], scheme: str | None) -> _Transitions:
    """The transitions that a tag scheme allows, with scores of 0."""
    start, end, pairs = (np.where(part, 0.0, -np.inf) for part in legal_transitions(tags, scheme))
    return start, end, pairs


def viterbi(
    scores: np.ndarray, transitions: _Transitions, num_words: Sequence[int] | None = None
) -> np.ndarray:
    """Find the tags [W] with the largest sum of scores [W, C] and transitions (Viterbi, 1967).

    ``num_words`` lists the words of each sequence; None makes all words one sequence.
    """
    start, end, pairs = transitions
    positions = _positions([len(scores)] if num_words is None else num_words)
    tags = np.zeros(len(scores), dtype=int)
    if not positions:
        return tags
    best, origins = [scores[positions[0]] + start], []  # [n, C] each
    for rows in positions[1:]:
        paths = best[-1][: len(rows), :, None] + pairs  # [n, C, C]
        origins.append(paths.argmax(1))
        best.append(paths.max(1) + scores[rows])
    current = np.zeros(0, dtype=int)
    for number in reversed(range(len(positions))):
        going_on = len(current)
        if going_on:
            current = origins[number][np.arange(going_on), current]
        last = (best[number][going_on:] + end).argmax(1)
        tags[positions[number]] = current = np.concatenate([current, last])
    return tags


def marginals(
    scores: np.ndarray, transitions: _Transitions, num_words: Sequence[int]
) -> np.ndarray:
    """Compute the probability of each tag of each word given its sequence, [W, C].

    This is the forward-backward algorithm; a tag on no legal path has exactly 0.
    """
    start, end, pairs = transitions
    before = _messages(scores, start, pairs, _positions(num_words))
    after = _messages(scores, end, pairs.T, _positions(num_words, from_end=True))
    logs = before + scores + after
    scaled = np.exp(logs - logs.max(-1, keepdims=True))
    probabilities: np.ndarray = scaled / scaled.sum(-1, keepdims=True)
    return probabilities


def _messages(
    scores: np.ndarray, first: np.ndarray, pairs: np.ndarray, positions: list[np.ndarray]
) -> np.ndarray:
    messages = np.zeros_like(scores)
    for rows in positions[:1]:
        messages[rows] = first
    for earlier, rows in pairwise(positions):
        states = (messages[earlier] + scores[earlier])[: len(rows), :, None] + pairs  # [n, C, C]
        top = states.max(1, keepdims=True)
        top[np.isneginf(top)] = 0
        with np.errstate(divide="ignore"):
            messages[rows] = np.log(np.exp(states - top).sum(1)) + top[:, 0]
    return messages


def _positions(num_words: Sequence[int], *, from_end: bool = False) -> list[np.ndarray]:
    lengths = np.asarray(num_words, dtype=int)
    begins = np.cumsum(lengths) - lengths
    order = np.argsort(-lengths, kind="stable")
    lengths, begins = lengths[order], begins[order]
    counts = [int((lengths > position).sum()) for position in range(max([0, *num_words]))]
    first, step = (begins + lengths - 1, -1) if from_end else (begins, 1)
    return [first[:count] + step * position for position, count in enumerate(counts)]


def word_scores(
    logs: np.ndarray, word_lengths: np.ndarray, continuations: Sequence[int]
) -> np.ndarray:
    """Average log-probabilities of subwords [P, C] to log-probabilities of words [W, C].

    A later subword counts for the tags that continue with its tag (``I-`` for ``B-``), so only the
    first subword decides between tags with the same continuation.
    """
    starts = np.cumsum(word_lengths) - word_lengths  # [W]
    if not len(starts):
        return logs
    scores = logs[:, list(continuations)]
    scores[starts] = logs[starts]
    means = np.add.reduceat(scores, starts) / word_lengths[:, None].astype(logs.dtype)
    return log_softmax(means)
