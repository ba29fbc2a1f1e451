"""The words that carried a decision: by leaving each word out, and by integrated gradients.

The score explained is the log-probability of the predicted label, or the logit of one of several
labels and of the type of a span (``Task.decision_scores``). Over several windows it is their mean.

Leaving out is exact: the score minus the score of the text without the word. In a sentence, whose
words have tags or spans, the mask token stands in place of the word.

Integrated gradients (Sundararajan et al., 2017, "Axiomatic Attribution for Deep Networks") add the
gradients along the line from a baseline to the embeddings of the subwords. The baseline has the
mask token in place of every subword of a word, and the special tokens of the text. The scores of
the words add up to the score minus the score of the baseline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from finetune.config.tasks import default_max_tokens
from finetune.data.word_splitting import split_words
from finetune.inference.loop import CPU_TOKENS, forward_passes, precision_on
from finetune.preprocessing.batching import pack
from finetune.preprocessing.encodings import Array
from finetune.runtime.device import batch_to_device
from finetune.tasks.base import Task
from finetune.types import Decision, Encoding, TextExample, TokenExample, UserError

STEPS = (16, 32, 64, 128, 256)
"""Points of the line whose gradients are added: twice as many until the sum is complete."""
TOLERANCE = 0.01
"""Largest error of the sum, in units of the difference that it explains, or of 1 if that is less.
"""


class Words(NamedTuple):
    """The words of an example, of both texts of a pair."""

    words: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...] | None
    """The characters of each word in its text; None for an example of words."""
    num_first: int
    """Number of words of the first text."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The score of each word for a decision: how much it raises the score of the label.

    ``score`` is the score explained. ``error`` is the difference that the scores of integrated
    gradients lack, 0 for leaving out.
    """

    decision: Decision
    score: float
    words: Words
    scores: tuple[float, ...]
    error: float = 0.0

    def record(self) -> dict[str, Any]:
        """Return the explanation as JSON values; the words of a sentence are in its prediction."""
        record: dict[str, Any] = {"label": self.decision.label}
        if self.decision.words is not None:
            record |= dict(zip(("start", "end"), self.decision.words, strict=True))
        cut = self.words.num_first
        for prefix, part in (("", slice(cut)), ("pair_", slice(cut, None))):
            if self.words.words[part] or not prefix:
                record[f"{prefix}words"] = list(self.words.words[part])
                if self.words.offsets is not None:
                    record[f"{prefix}offsets"] = [list(o) for o in self.words.offsets[part]]
                record[f"{prefix}scores"] = [round(score, 6) for score in self.scores[part]]
        return record


def explaining_method(task: Task, method: str | None = None) -> str:
    """Return the method that explains the predictions of a task: as given, or the most faithful.

    Raises:
        UserError: No method, or not this one, explains such predictions.
    """
    legal = task.explained_by
    if not legal:
        raise UserError(
            f"--explain: the predictions of this `{task.name}` model cannot be explained: legal "
            "are models of classify, nli, tag and ner without --marked-words and --context."
        )
    if method not in (None, *legal):
        raise UserError(f"--explain {method}: legal for this model: {', '.join(legal)}.")
    return method or legal[0]


def words_of(example: TextExample | TokenExample) -> Words:
    """Return the words of an example, in the order of the scores of an explanation."""
    if isinstance(example, TokenExample):
        return Words(example.words, None, len(example.words))
    split = [split_words(text) for text in example.texts()]
    words = tuple(word for words, _ in split for word in words)
    return Words(words, tuple(o for _, places in split for o in places), len(split[0][0]))


def without(task: Task, example: Any, left_out: Collection[int]) -> Any:
    """Return an example without some of its words.

    A word leaves with the blanks before it. Words that were apart stay apart, by a blank.
    """
    if isinstance(example, TokenExample):
        tokenizer: Any = task.tokenizer.tokenizer
        mask = tokenizer.mask_token or tokenizer.unk_token
        words = (mask if n in left_out else word for n, word in enumerate(example.words))
        return replace(example, words=tuple(words))
    first = len(split_words(example.text)[0])
    text = _shortened(example.text, {n for n in left_out if n < first})
    if example.pair is None:
        return replace(example, text=text)
    pair = _shortened(example.pair, {n - first for n in left_out if n >= first})
    return replace(example, text=text, pair=pair)


def _shortened(text: str, left_out: Collection[int]) -> str:
    if not left_out:
        return text
    parts, end, gap = list[str](), 0, False
    for number, (start, stop) in enumerate(split_words(text)[1]):
        if number not in left_out:
            between = text[end:start]
            parts += [between or " " if gap and parts else between, text[start:stop]]
        gap, end = number in left_out, stop
    return "".join([*parts, text[end:]]).strip()


def explain(
    example: Any, prediction: Any, task: Task, head: Any, method: str, device: torch.device
) -> list[Explanation]:
    """Explain each label of a prediction for an example, by a model on a device."""
    decisions, words = task.decisions(prediction), words_of(example)
    if not decisions:
        return []
    if method == "gradients":
        return [
            Explanation(decision, *_gradients(task, head, example, words, decision, device))
            for decision in decisions
        ]
    shorter = (without(task, example, {number}) for number in range(len(words.words)))
    scores = decision_scores(task, head, [example, *shorter], decisions, device)
    return [
        Explanation(decision, float(own[0]), words, tuple((own[0] - own[1:]).tolist()))
        for decision, own in zip(decisions, scores.T, strict=True)
    ]


def decision_scores(
    task: Task,
    head: Any,
    examples: Sequence[Any],
    decisions: Sequence[Decision],
    device: torch.device,
) -> Array:
    """Return the scores of D decisions in each of N examples, means over windows: [N, D]."""
    renumbered = [replace(each, id=number) for number, each in enumerate(examples)]
    sequences = task.encode(renumbered).sequences
    found = np.full((len(sequences), len(decisions)), np.nan)
    passes = forward_passes(
        head,
        sequences.lengths,
        lambda rows: pack(sequences.take(rows)),
        lambda output, batch: task.decision_scores(output).double().cpu().numpy(),
        device=device,
        precision=precision_on(task, device),
        max_tokens=task.record.config.max_tokens,
    )
    with contextlib.closing(passes):
        for group, scores in passes:
            counts = task.num_logits(sequences.take(group))
            for number, first in zip(group, np.cumsum(counts) - counts, strict=True):
                for column, decision in enumerate(decisions):
                    row = task.decision_row(decision, sequences[int(number)])
                    if row is not None:
                        found[number, column] = scores[first + row, decision.number]
    means = np.empty((len(examples), len(decisions)))
    for number in range(len(examples)):
        means[number] = np.nanmean(found[sequences.example == number], axis=0)
    return means


def _gradients(
    task: Task, head: Any, example: Any, words: Words, decision: Decision, device: torch.device
) -> tuple[float, Words, tuple[float, ...], float]:
    total, scores, lacking = 0.0, np.zeros(len(words.words) + 1), 0.0
    sequences = [
        (sequence, row)
        for sequence in task.encode([example]).sequences
        if (row := task.decision_row(decision, sequence)) is not None
    ]
    head.eval()
    for sequence, row in sequences:
        of_tokens = np.array(task.words_of_tokens(example, sequence))
        place = row, decision.number
        score, of_embeddings, error = _along_line(task, head, sequence, of_tokens, place, device)
        total, lacking = total + score, lacking + error
        np.add.at(scores, of_tokens, of_embeddings)  # the last one takes what is in no word
    count = len(sequences)
    return total / count, words, tuple((scores[:-1] / count).tolist()), lacking / count


def _along_line(
    task: Task,
    head: Any,
    sequence: Encoding,
    of_tokens: Array,
    place: tuple[int, int],
    device: torch.device,
) -> tuple[float, Array, float]:
    """Integrate the gradients of the score at a row and class of a sequence of T tokens.

    Return the score, the attribution of each token [T], and the error of their sum.
    """
    tokenizer: Any = task.tokenizer.tokenizer
    mask = tokenizer.mask_token_id
    mask = tokenizer.unk_token_id if mask is None else mask
    embed = head.encoder.model.get_input_embeddings()
    with torch.no_grad():
        ids = torch.tensor(sequence.input_ids, device=device)
        of_words = torch.from_numpy(of_tokens >= 0).to(device)
        end = embed(ids).float()
        start = embed(torch.where(of_words, mask, ids)).float()
    tokens = task.record.config.max_tokens or default_max_tokens(device.type)
    tokens = min(tokens, CPU_TOKENS) if device.type == "cpu" else tokens
    most = max(1, tokens // len(ids))
    for steps in STEPS:
        points, weights = np.polynomial.legendre.leggauss(steps)
        shares = torch.tensor([0, 1, *(points + 1) / 2], dtype=end.dtype, device=device)
        weight = torch.tensor([0, 0, *weights / 2], dtype=end.dtype, device=device)
        values, gradient = list[float](), torch.zeros_like(end)
        for share, own in zip(shares.split(most), weight.split(most), strict=True):
            batch = batch_to_device(pack([sequence] * len(share)), device)
            between = start + share[:, None, None] * (end - start)
            vectors = between.flatten(0, 1).requires_grad_()
            with torch.enable_grad(), head.encoder.reading(vectors):
                scores = task.decision_scores(head(batch))
                scores = scores.unflatten(0, (len(share), -1))[:, *place]
                (found,) = torch.autograd.grad(scores.sum(), vectors)
            values += scores.tolist()
            gradient += (own[:, None, None] * found.view_as(between)).sum(0)
        attributions = (gradient * (end - start)).sum(-1).double().cpu().numpy()
        difference = values[1] - values[0]
        error = difference - float(attributions.sum())
        if abs(error) <= TOLERANCE * max(1.0, abs(difference)):
            break
    return values[1], attributions, error
