"""The words that carried a decision: the score of a label minus the score without each word.

The score explained is the log-probability of the predicted label, or the logit of one of several
labels and of the type of a span. Over several windows it is their mean. In a sentence, whose words
have tags or spans, the mask token stands in place of the word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from finetune.data.word_splitting import split_words
from finetune.evaluation.temperature import log_probabilities
from finetune.inference.loop import chunks, pass_options, values_of_examples
from finetune.models.heads.crf import CrfScores
from finetune.preprocessing.encodings import Array
from finetune.preprocessing.span_candidates import candidate_index, num_candidates
from finetune.tasks.base import Task
from finetune.tasks.decoding import TextDecoder
from finetune.tasks.span_decoding import SpanDecoder
from finetune.tasks.tag_decoding import TagDecoder
from finetune.types import (
    Batch,
    LabelSet,
    LabelSpan,
    SpanPrediction,
    TextExample,
    TokenExample,
    TokenPrediction,
    UserError,
)

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


_UNITS = {"labels": "logit", "spans": "logit", "number": "number"}
"""The unit of scores by the type of predictions; of others it is a log-probability."""


def require_explained(task: Task) -> None:
    """Raise UserError if no words explain the predictions of a task."""
    decoders = TextDecoder, TagDecoder, SpanDecoder
    if not isinstance(task.state, decoders) or task.state.context_words:
        raise UserError(
            f"--explain: the predictions of this `{task.name}` model cannot be explained: legal "
            "are models of classify, nli, tag and ner without --context."
        )


def explained_labels(labels: LabelSet, prediction: Any) -> list[LabelSpan]:
    """List the labels of a prediction that words explain, those that it abstains from included.

    They are the labels of a text, or its number, the tag of each word but O, or the types of spans.
    """
    if isinstance(prediction, SpanPrediction):
        return [LabelSpan(s.label, labels.id(s.label), s[:2]) for s in prediction.spans]
    if isinstance(prediction, TokenPrediction):
        tags = [(n, tag) for n, tag in enumerate(prediction.tags) if tag not in ("O", None)]
        return [LabelSpan(tag, labels.id(tag), (n, n + 1)) for n, tag in tags]
    label = prediction.label
    label = prediction.decided.get("withheld") if label is None else label
    if label is None:
        return []
    if isinstance(label, float):
        return [LabelSpan(labels[0], 0)]
    names = label if isinstance(label, tuple) else (str(label),)
    return [LabelSpan(name, labels.id(name)) for name in names]


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
    pair = example.pair and _shortened(example.pair, {n - first for n in left_out if n >= first})
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


def _first_words(text: str, number: int) -> str:
    offsets = split_words(text)[1]
    return text[: offsets[number - 1][1]] if len(offsets) > number else text


def explain(
    example: Any, prediction: Any, task: Task, model: Any, device: torch.device
) -> list[Explanation]:
    """Explain each label of a prediction for an example, by a model on a device."""
    labels = explained_labels(task.state.labels, prediction)
    if not labels:
        return []
    if task.state.long_text == "truncate":  # later words are not read
        texts = [_first_words(text, task.state.max_length) for text in example.texts()]
        example = replace(example, text=texts[0], pair=texts[1] if len(texts) > 1 else None)
    words = words_of(example)
    shorter = (without(task, example, {word}) for word in range(len(words.words)))
    examples = chunks(chain([example], shorter), _CHUNK)
    scores = np.concatenate(
        [label_scores(task, model, chunk, labels, device) for chunk in examples]
    )
    differences = scores[0] - scores[1:]
    unit = _UNITS.get(task.state.prediction_type, "log-probability")
    return [
        Explanation(label, float(scores[0, n]), unit, words, tuple(differences[:, n].tolist()))
        for n, label in enumerate(labels)
    ]


def label_scores(
    task: Task,
    model: Any,
    examples: Sequence[Any],
    labels: Sequence[LabelSpan],
    device: torch.device,
) -> Array:
    """Compute the scores of D labels in each of N examples, means over windows: [N, D]."""
    values = values_of_examples(
        model,
        task.encode(examples),
        lambda output, batch: _label_scores(task, output, batch, labels),
        **pass_options(task, device),
    )
    return np.stack([np.nanmean(windows, axis=0) for _, windows in sorted(values)])


def _label_scores(task: Task, output: Any, batch: Batch, labels: Sequence[LabelSpan]) -> Array:
    # uncalibrated [N, D]; NaN if the words of a label are in another window
    state = task.state
    scores = np.full((len(batch.window), len(labels)), np.nan)
    for row, values in enumerate(_class_scores(task, output, batch)):
        first, size = batch.window[row], batch.num_words[row]
        for column, label in enumerate(labels):
            if label.words is None:
                scores[row, column] = values[label.number]
                continue
            start, end = (word - first for word in label.words)
            if start >= 0 and end <= size:
                place = start
                if isinstance(state, SpanDecoder):
                    place = int(candidate_index(start, end, size, state.max_width))
                scores[row, column] = values[place, label.number]
    return scores


def _class_scores(task: Task, output: Any, batch: Batch) -> Iterable[Array]:
    # of each sequence [C], of its words or candidates [..., C]
    state = task.state
    if isinstance(state, SpanDecoder):
        logits = output.cpu().double().numpy()
        scores = logits if state.multi_label else logits[:, 1:] - logits[:, :1]
        sizes = [num_candidates(number, state.max_width) for number in batch.num_words]
        return np.split(scores, np.cumsum(sizes)[:-1])
    if isinstance(state, TagDecoder):  # a CRF gives scores from its emissions alone
        emissions = output.emissions if isinstance(output, CrfScores) else output
        lengths = batch.word_lengths.cpu().numpy()
        return state.windows(emissions.cpu().double().numpy(), batch.num_words, lengths)
    values = np.array(task.decode(output, batch))
    if state.prediction_type == "number":
        return values
    is_multi = state.prediction_type == "labels"
    logs = log_probabilities(values, independent=is_multi)
    return logs[..., 1] - logs[..., 0] if is_multi else logs
