"""Find labels of the training data that are probably wrong.

Confident learning (``evaluation.confident_learning``) compares each label with the prediction of a
model that was not trained on it: of texts, of words, and for each of several labels. Of spans it
uses the thresholds only: a prediction contradicts gold if its probability reaches the mean
probability of gold spans of its type.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from finetune.config.tasks import TrainConfig
from finetune.data.tag_schemes import convert_tags
from finetune.evaluation.confident_learning import confident_joint, probable_label_errors
from finetune.evaluation.errors import excerpt, span_errors, text_excerpt
from finetune.training import checkpoint
from finetune.training.cross_validation import OutOfFold, cross_validate
from finetune.types import Span, TextExample, TokenExample

_KINDS = {"false positive": "missing span", "miss": "no span"}
"""Kinds of label errors, by the kind of error that the model would make if gold were right. Other
kinds (boundary, type) have the same name in both."""
NO_SPAN = "nothing"
"""The given or suggested label where there is no span."""


@dataclass(frozen=True)
class Suspect:
    """One label that is probably wrong.

    Attributes:
        file: file of the example.
        line: line of the example in the file, if known.
        given: the label in the data.
        suggested: the label that the model predicts.
        confidence: probability of the suggested label.
        given_confidence: probability of the given label.
        margin: ``confidence`` less ``given_confidence``.
        text: the text of the example.
        excerpt: the words around the label.
        kind: ``label``, ``word`` or the kind of span error.
        first_word: position of the first word that the label covers.
        end_word: position after its last word.
        worst: whether it is the first suspect of its sentence.
    """

    file: str
    line: int | None
    given: str
    suggested: str
    confidence: float
    given_confidence: float
    margin: float
    text: str
    excerpt: str = field(repr=False)
    kind: str = "label"
    first_word: int | None = None
    end_word: int | None = None
    worst: bool = True

    def record(self) -> dict[str, Any]:
        """Return JSON values, without the excerpt, and with words only for labels of words."""
        record = {name: value for name, value in asdict(self).items() if name != "excerpt"}
        for name in ("confidence", "given_confidence", "margin"):
            record[name] = round(record[name], 6)
        if self.first_word is None:
            del record["first_word"], record["end_word"], record["worst"]
        return record


@dataclass(frozen=True)
class Suspects:
    """All suspects of the training data, the most probable errors first.

    Attributes:
        found: the suspects.
        number: number of labels in the data.
        share: estimated fraction of wrong labels; None for spans and for several labels per text.
        taken: given label, true label and estimated number of such errors, most frequent first.
    """

    found: list[Suspect]
    number: int
    share: float | None = None
    taken: list[tuple[str, str, float]] = field(default_factory=list)


def search_label_errors(
    task: str, config: TrainConfig, num_folds: int, out: Path | None, work: Path
) -> Suspects:
    """Cross-validate the training data and rank their labels.

    Args:
        task: the task.
        config: settings of the training of each fold.
        num_folds: number of folds.
        out: file for all suspects, as JSON Lines; after it is written, ``work`` is removed.
        work: folder of the folds, from which an interrupted search continues.

    Raises:
        UserError: labels are numbers, or ``work`` has folds of other data or settings.
        Interrupted: after Ctrl-C.
    """
    suspects = find_suspects(cross_validate(task, config, num_folds, work))
    if out is not None:
        rows = (json.dumps(each.record(), ensure_ascii=False) + "\n" for each in suspects.found)
        checkpoint.write_text(out, "".join(rows))
        shutil.rmtree(work)
    return suspects


def find_suspects(validated: OutOfFold) -> Suspects:
    """Rank the labels of cross-validated data."""
    record = validated.task.record
    labels = list(record.labels)
    if validated.task.name == "ner":
        return _of_spans(validated.examples, validated.predictions)
    if validated.task.reads_words:
        return _of_words(record, validated.examples, validated.predictions, labels)
    return _of_texts(validated.examples, validated.predictions, labels)


def _of_texts(
    examples: Sequence[TextExample], predictions: Sequence[Any], labels: list[str]
) -> Suspects:
    probabilities = np.array(predictions, dtype=float)  # [N, C]
    if isinstance(examples[0].label, tuple):
        return _of_label_sets(examples, probabilities, labels)
    given = np.array([labels.index(str(example.label)) for example in examples])
    found = [
        _suspect_of_text(
            examples[i],
            labels[given[i]],
            labels[j],
            probabilities[i, j],
            probabilities[i, given[i]],
        )
        for i, j in probable_label_errors(probabilities, given)
    ]
    return Suspects(found, len(given), *_noise(probabilities, given, labels))


def _of_label_sets(
    examples: Sequence[TextExample], probabilities: np.ndarray, labels: list[str]
) -> Suspects:
    """Rank the labels of texts with several labels: each is a decision between two classes."""
    found = []
    for index, name in enumerate(labels):
        positive = probabilities[:, index]
        both = np.stack([1 - positive, positive], 1)
        given = np.array([int(name in (example.label or ())) for example in examples])  # type: ignore[operator]
        names = (f"not {name}", name)
        for i, j in probable_label_errors(both, given):
            found.append(
                _suspect_of_text(
                    examples[i], names[given[i]], names[j], both[i, j], both[i, given[i]]
                )
            )
    return Suspects(sorted(found, key=lambda s: -s.margin), probabilities.size)


def _of_words(
    record: Any, examples: Sequence[TokenExample], predictions: Sequence[Any], labels: list[str]
) -> Suspects:
    """Rank the tags of words: sentences by their worst tag, then the tags of a sentence."""
    probabilities = np.concatenate([np.array(rows, dtype=float) for rows in predictions])  # [W, C]
    tags = [
        list(example.tags or ())
        if record.scheme is None
        else convert_tags(example.tags or (), record.source, record.scheme)
        for example in examples
    ]
    given = np.array([labels.index(tag) for each in tags for tag in each])
    words = [(index, word) for index, each in enumerate(tags) for word in range(len(each))]
    worst: dict[int, float] = {}
    rows = []
    for i, j in probable_label_errors(probabilities, given):  # in descending order of the margin
        index, word = words[i]
        confidence, given_confidence = probabilities[i, j], probabilities[i, given[i]]
        first = index not in worst
        worst.setdefault(index, confidence - given_confidence)
        labels_and_scores = labels[given[i]], labels[j], confidence, given_confidence
        suspect = _suspect_at_words(
            examples[index], "word", (word, word + 1), *labels_and_scores, worst=first
        )
        rows.append((index, suspect))
    rows.sort(key=lambda row: (-worst[row[0]], row[0], -row[1].margin))
    return Suspects([s for _, s in rows], len(given), *_noise(probabilities, given, labels))


def _of_spans(examples: Sequence[TokenExample], predictions: Sequence[Any]) -> Suspects:
    """Rank gold spans and missing spans by the margin over the mean probability of their type.

    Without the means, models that predict few spans would rank every gold span that they miss
    before any span that they predict.
    """
    gold = [tuple(example.spans or ()) for example in examples]
    predicted = [
        {Span(start, end, label): score for start, end, label, score in each["spans"]}
        for each in predictions
    ]
    gold_scores = [
        dict(zip(spans, each["gold"], strict=True))
        for spans, each in zip(gold, predictions, strict=True)
    ]
    mean = _mean_by_type(gold_scores)
    confidences = [
        {span: 1 - score for span, score in of_gold.items() if span not in of_predicted}
        | of_predicted
        for of_gold, of_predicted in zip(gold_scores, predicted, strict=True)
    ]
    indices = {example.id: index for index, example in enumerate(examples)}
    rows = []
    for error in span_errors(examples, gold, list(map(list, predicted)), confidences):
        index, given, suggested = indices[error.id], error.gold, error.predicted
        confidence = float(error.confidence or 0.0)
        span = suggested or given
        if confidence < mean.get(span["label"], 1.0):
            continue
        given_confidence = 1 - confidence
        if given is not None:
            given_confidence = gold_scores[index][
                Span(given["start"], given["end"], given["label"])
            ]
        # the probability of no span is usually close to 1
        usual = [1.0 if s is None else mean.get(s["label"], 1.0) for s in (suggested, given)]
        excess = (confidence - usual[0]) - (given_confidence - usual[1])
        suspect = _suspect_at_words(
            examples[index], _KINDS.get(error.category, error.category),
            (span["start"], span["end"]), _span_name(given), _span_name(suggested),
            confidence, given_confidence,
        )  # fmt: skip
        rows.append((excess, index, suspect))
    rows.sort(key=lambda row: -row[0])
    found, seen = [], set()
    for _, index, suspect in rows:
        found.append(replace(suspect, worst=index not in seen))
        seen.add(index)
    return Suspects(found, sum(map(len, gold)))


def _mean_by_type(gold_scores: Sequence[Mapping[Span, float]]) -> dict[str, float]:
    """Return the mean probability of gold spans, by type."""
    by_type: dict[str, list[float]] = {}
    for scores in gold_scores:
        for span, score in scores.items():
            by_type.setdefault(span.label, []).append(score)
    return {label: float(np.mean(values)) for label, values in by_type.items()}


def _span_name(span: Mapping[str, Any] | None) -> str:
    return NO_SPAN if span is None else f"{span['label']} {span['text']!r}"


def _noise(
    probabilities: np.ndarray, given: np.ndarray, labels: Sequence[str]
) -> tuple[float, list[tuple[str, str, float]]]:
    """Estimate the fraction of wrong labels, and the numbers by given and true label."""
    joint = confident_joint(probabilities, given)
    taken = [
        (labels[i], labels[j], float(joint[i, j]) * len(given))
        for i, j in zip(*np.nonzero(joint), strict=True)
        if i != j
    ]
    return 1 - float(np.trace(joint)), sorted(taken, key=lambda row: -row[2])


def _suspect_of_text(
    example: TextExample, given: str, suggested: str, confidence: float, given_confidence: float
) -> Suspect:
    text = example.text if example.pair is None else f"{example.text} ||| {example.pair}"
    return Suspect(
        *file_and_line(example.where), given, suggested, float(confidence), float(given_confidence),
        float(confidence - given_confidence), text, text_excerpt(text),
    )  # fmt: skip


def _suspect_at_words(
    example: TokenExample,
    kind: str,
    words: tuple[int, int],
    given: str,
    suggested: str,
    confidence: float,
    given_confidence: float,
    worst: bool = True,
) -> Suspect:
    text = " ".join(example.words) if example.text is None else example.text
    return Suspect(
        *file_and_line(example.where), given, suggested, float(confidence), float(given_confidence),
        float(confidence - given_confidence), text, excerpt(example.words, *words), kind, *words,
        worst,
    )  # fmt: skip


def file_and_line(where: str) -> tuple[str, int | None]:
    """Split ``file:line``; the line is None if there is none.

    >>> file_and_line("a.jsonl:3")
    ('a.jsonl', 3)
    """
    match = re.fullmatch(r"(.*):(?:row |item )?(\d+)", where)
    return (match[1], int(match[2])) if match else (where, None)
