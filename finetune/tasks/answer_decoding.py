"""From the start and end scores of context tokens to answers (extractive question answering).

The score of an answer is the sum of the scores of its first and last token (Devlin et al., 2019,
section 4.2), and its probability a softmax over all answers that the decoder allows. Windows of a
context overlap: an answer is scored once, in the window that has the most context around it, the
one whose middle is nearest. So every answer of at most as many tokens as windows share is whole in
its window. The rule of BERT decides by the first token alone, and loses answers that begin in one
window and end in the next.

Numpy alone, as exported models decode with this file too.

Shapes: n tokens of a context, m tokens of a window, B tokens of the longest answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from finetune.preprocessing.questions import ContextTokens
from finetune.tasks.decoding import Decoder
from finetune.types import AnswerPrediction, FoundAnswer, TextExample, WindowOutput

NUM_ANSWERS = 5
"""Most answers in a prediction."""
NO_ANSWER = "no answer"
"""The name of the threshold of questions without an answer."""


class AnswerCandidates(NamedTuple):
    """Answers as first and last tokens with their scores: each [K]."""

    first: np.ndarray
    last: np.ndarray
    scores: np.ndarray

    def best(self, number: int) -> AnswerCandidates:
        """Select the best ones in order."""
        chosen = np.arange(len(self.scores))
        if len(chosen) > number:  # ties with the last one compete by their place, too
            least = -np.partition(-self.scores, number - 1)[number - 1]
            chosen = np.flatnonzero(self.scores >= least)
        order = np.lexsort((self.last[chosen], self.first[chosen], -self.scores[chosen]))
        best = chosen[order[:number]]
        return AnswerCandidates(self.first[best], self.last[best], self.scores[best])


class AnswerDecoder(Decoder):
    """Decodes the best answers to a question.

    No answer is predicted if its probability reaches the threshold of ``NO_ANSWER`` or, without a
    threshold, if no answer is more probable than the best one.
    """

    max_answer: int
    """Longest answer in words."""
    unanswerable: bool
    """Whether some questions have no answer, so that none may be predicted."""
    thresholds: Mapping[str, float]
    """Least probability of ``NO_ANSWER`` with which no answer is predicted."""

    def windows(self, logits: np.ndarray, rows: Sequence[tuple[int, int, int]]) -> list[np.ndarray]:
        """Gather the scores [1 + m, 2] of the first token and the context tokens of each sequence.

        Args:
            logits: The start and end logits of all tokens [T, 2].
            rows: For each sequence the row of its first token, the row of its first context token,
                and the row after the last one.
        """
        return [logits[[first, *range(begin, end)]] for first, begin, end in rows]

    def postprocess(
        self, example: TextExample, outputs: Sequence[WindowOutput], tokens: ContextTokens
    ) -> AnswerPrediction:
        """Choose the best answers of all windows of a context."""
        context = example.pair or ""
        scores = [output.values.astype(np.float64) for output in outputs]
        starts = [output.window for output in outputs]
        legal = legal_answers(tokens, starts, [window[1:] for window in scores], self.max_answer)
        none = min(float(window[0].sum()) for window in scores)
        competing = np.append(legal.scores, none) if self.unanswerable else legal.scores
        if not len(competing):
            return AnswerPrediction(example.id, None, 1.0)
        highest = competing.max()
        total = highest + np.log(np.exp(competing - highest).sum())
        answers = []
        for first, last, score in zip(*legal.best(NUM_ANSWERS), strict=True):
            start, end = int(tokens.starts[first]), int(tokens.ends[last])
            answers.append(
                FoundAnswer(start, end, context[start:end], float(np.exp(score - total)))
            )
        no_answer = float(np.exp(none - total)) if self.unanswerable else None
        return self.decide(AnswerPrediction(example.id, None, 0.0, no_answer, tuple(answers)))

    def decide(self, prediction: AnswerPrediction) -> AnswerPrediction:
        """Decide for the best answer or none, by the threshold."""
        best, none = prediction.best, prediction.no_answer_score
        answer, score = (best[0], best[0].score) if best else (None, 0.0)
        if none is not None and (answer is None or none >= self.thresholds.get(NO_ANSWER, score)):
            answer, score = None, none
        return replace(prediction, answer=answer, score=score)


def legal_answers(
    tokens: ContextTokens, windows: Sequence[int], scores: Sequence[np.ndarray], max_answer: int
) -> AnswerCandidates:
    """List all answers of up to ``max_answer`` words, each with its score in its best window.

    Args:
        tokens: The n tokens of the context.
        windows: The first token of each window, in order.
        scores: The start and end scores of the tokens of each window [m, 2]; m does not differ.
        max_answer: Largest number of words of an answer.
    """
    readable = tokens.starts < tokens.ends
    # the number of tokens from each first token to the last one that an answer may have
    reach = np.searchsorted(tokens.last_words, tokens.first_words + max_answer)
    reach -= np.arange(len(reach))
    parts = []
    for number, (begin, window) in enumerate(zip(windows, scores, strict=True)):
        size = len(window)
        width = min(int(reach[begin : begin + size].max(initial=0)), size)
        if width <= 0:
            continue
        start = np.where(readable[begin : begin + size], window[:, 0], -np.inf)
        end = np.full(size + width - 1, -np.inf)
        end[:size] = np.where(readable[begin : begin + size], window[:, 1], -np.inf)
        table = start[:, None] + np.lib.stride_tricks.sliding_window_view(end, width)  # [m, B]
        first = np.arange(size)[:, None]
        length = np.arange(width)
        allowed = np.isfinite(table) & (length < reach[begin : begin + size, None])
        # twice the middle of an answer, in tokens of the context
        middle = 2 * (begin + first) + length
        if number > 0:
            allowed &= middle > windows[number - 1] + begin + size - 1
        if number + 1 < len(windows):
            allowed &= middle <= begin + windows[number + 1] + size - 1
        chosen = np.flatnonzero(allowed)
        rows = chosen // width
        parts.append((begin + rows, begin + chosen - rows * (width - 1), table.ravel()[chosen]))
    if not parts:
        return AnswerCandidates(np.zeros(0, int), np.zeros(0, int), np.zeros(0))
    return AnswerCandidates(*(np.concatenate(column) for column in zip(*parts, strict=True)))
