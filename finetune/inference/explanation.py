"""The words that carried a decision: the score of a label minus the score without each word.

The score explained is the log-probability of the predicted label, or the logit of one of several
labels and of the type of a span (``finetune.tasks.explained``). Over several windows it is their
mean. In a sentence, whose words have tags or spans, the mask token stands in place of the word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from finetune.data.word_splitting import split_words
from finetune.inference.loop import chunks, precision_on, sequence_values
from finetune.preprocessing.encodings import Array
from finetune.tasks.base import Task
from finetune.tasks.explained import Explained
from finetune.types import LabelSpan, TextExample, TokenExample, UserError

_CHUNK = 256
"""Number of shortened examples that are encoded at a time."""


class Words(NamedTuple):
    """The words of an example, of both texts of a pair."""

    words: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...] | None
    """The characters of each word in its text; None for an example of words."""
    num_first: int
    """Number of words of the first text."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The score of each word for a label: how much the word raises the score of the label.

    ``score`` is the score of the label itself, and ``unit`` the unit of all scores.
    """

    label: LabelSpan
    score: float
    unit: str
    words: Words
    scores: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON values; the words of a sentence are in its prediction."""
        values: dict[str, Any] = {"label": self.label.label, "unit": self.unit}
        if self.label.words is not None:
            values |= dict(zip(("start", "end"), self.label.words, strict=True))
        cut = self.words.num_first
        for prefix, text in (("", slice(cut)), ("pair_", slice(cut, None))):
            if self.words.words[text] or not prefix:
                values[f"{prefix}words"] = list(self.words.words[text])
                if self.words.offsets is not None:
                    values[f"{prefix}offsets"] = [list(o) for o in self.words.offsets[text]]
                values[f"{prefix}scores"] = [round(score, 6) for score in self.scores[text]]
        return values


def explained_by(task: Task) -> Explained:
    """The part of the predictions of a task that words explain.

    Raises:
        UserError: The predictions cannot be explained.
    """
    explained = None if task.explained is None else task.explained(task.state)
    if explained is None or not explained.unit:
        raise UserError(
            f"--explain: the predictions of this `{task.name}` model cannot be explained: legal "
            "are models of classify, nli, tag and ner without --context."
        )
    return explained


def words_of(example: TextExample | TokenExample) -> Words:
    """The words of an example, in the order of the scores of an explanation."""
    if isinstance(example, TokenExample):
        return Words(example.words, None, len(example.words))
    split = [split_words(text) for text in example.texts()]
    words = tuple(word for words, _ in split for word in words)
    return Words(words, tuple(o for _, offsets in split for o in offsets), len(split[0][0]))


def without(task: Task, example: Any, left_out: Collection[int]) -> Any:
    """Remove some of the words of an example.

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
    pieces, end, gap = list[str](), 0, False
    for number, (start, stop) in enumerate(split_words(text)[1]):
        if number not in left_out:
            between = text[end:start]
            pieces += [between or " " if gap and pieces else between, text[start:stop]]
        gap, end = number in left_out, stop
    return "".join([*pieces, text[end:]]).strip()


def explain(
    example: Any, prediction: Any, task: Task, model: Any, device: torch.device
) -> list[Explanation]:
    """Explain each label of a prediction for an example, by a model on a device."""
    about = explained_by(task)
    labels = about.labels(prediction)
    if not labels:
        return []
    limit = task.state.max_length if task.state.long_text not in (None, "window") else None
    words, numbers = words_of(example), list[int]()
    for start, stop in ((0, words.num_first), (words.num_first, len(words.words))):
        numbers += range(start, stop)[:limit]
    shorter = (without(task, example, {number}) for number in numbers)
    scores = label_scores(task, model, chain([example], shorter), labels, device)
    offsets = words.offsets
    explained = Words(
        tuple(words.words[number] for number in numbers),
        None if offsets is None else tuple(offsets[number] for number in numbers),
        sum(number < words.num_first for number in numbers),
    )
    return [
        Explanation(
            label,
            float(of_label[0]),
            about.unit,
            explained,
            tuple((of_label[0] - of_label[1:]).tolist()),
        )
        for label, of_label in zip(labels, scores.T, strict=True)
    ]


def label_scores(
    task: Task,
    model: Any,
    examples: Iterable[Any],
    labels: Sequence[LabelSpan],
    device: torch.device,
) -> Array:
    """Compute the scores of D labels in each of N examples, means over windows: [N, D]."""
    about, means = explained_by(task), []
    for chunk in chunks(examples, _CHUNK):
        encoded = task.encode(chunk)
        scores = sequence_values(
            model,
            encoded.sequences,
            lambda output, batch: about.scores(output, batch, labels),
            device=device,
            precision=precision_on(task, device),
            max_tokens=task.state.config.max_tokens,
        )
        for start, end in pairwise(encoded.offsets.tolist()):
            means.append(np.nanmean(scores[start:end], axis=0))
    return np.stack(means)
