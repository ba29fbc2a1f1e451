"""Find labels of the training data that are probably wrong.

Confident learning (``evaluation.confident_learning``) compares each label with the prediction of a
model that was not trained on it. For spans only its thresholds are used: a prediction contradicts
gold if its probability reaches the mean probability of gold spans of its type.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from finetune.annotation.cross_validation import OutOfFold, predict_folds
from finetune.cli.output import show
from finetune.data.tag_schemes import convert_tags
from finetune.evaluation.confident_learning import confident_joint, probable_label_errors
from finetune.evaluation.error_analysis import ErrorCase, Mistake
from finetune.evaluation.prediction_types import scores_of
from finetune.evaluation.span_matching import match_spans
from finetune.evaluation.training_vocabulary import surface
from finetune.runtime.files import write_text
from finetune.runtime.progress import Reporter
from finetune.types import Span, TextExample, TokenExample, UserError, quantity

_KINDS = {"false positive": "missing span", "miss": "no span"}
"""Kinds of label errors, by the error of the model if gold were right; other kinds are the same."""


@dataclass(frozen=True, eq=False)
class Suspect(ErrorCase):
    """A label that is probably wrong: a mistake of the model, if the label were right.

    The mistake has the label in the data and the prediction as texts; its category is ``label``,
    ``word`` or the kind of span error.
    """

    given_confidence: float
    """Probability of the label in the data."""
    worst: bool = True
    """Whether it is the first suspect of its sentence."""

    @property
    def confidence(self) -> float:
        """Probability of the suggested label."""
        return float(self.mistake.confidence or 0.0)

    @property
    def margin(self) -> float:
        """``confidence`` less ``given_confidence``."""
        return self.confidence - self.given_confidence

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values, with words only for labels of words."""
        file, line = file_and_line(self.example.where)
        record = {
            "file": file,
            "line": line,
            "given": self.mistake.gold,
            "suggested": self.mistake.predicted,
            "confidence": round(self.confidence, 6),
            "given_confidence": round(self.given_confidence, 6),
            "margin": round(self.margin, 6),
            "text": self.example.line(),
            "kind": self.mistake.category,
        }
        if self.mistake.words is not None:
            first, end = self.mistake.words
            record |= {"first_word": first, "end_word": end, "worst": self.worst}
        if self.example.key is not None:
            record["id"] = self.example.key
        return record


class CrossFitted(NamedTuple):
    """The score of models on data that they were not trained on, and of a constant rule."""

    metric: str
    value: float
    baseline: float
    rule: str
    number: int
    """Number of labels that were predicted."""

    @property
    def is_weak(self) -> bool:
        """True if the score is within two standard errors of the baseline."""
        deviation = math.sqrt(self.value * (1 - self.value) / self.number)
        return self.value - self.baseline < 2 * deviation

    def __str__(self) -> str:
        return f"cross-fitted {self.metric} {self.value:.4f} ({self.rule}: {self.baseline:.4f})"


@dataclass(frozen=True)
class Suspects:
    """All suspects of the training data, the most probable errors first."""

    found: list[Suspect]
    number: int
    """Number of labels in the data."""
    share: float | None = None
    """Estimated fraction of wrong labels; None for spans and for several labels per text."""
    taken: list[tuple[str, str, float]] = field(default_factory=list)
    """Given label, true label and estimated number of such errors, most frequent first."""
    score: CrossFitted | None = None
    unit: str = "label"
    """The unit of the counts: a label, a word or a span."""


def search_label_errors(folds: Path) -> Suspects:
    """Rank the labels of the training data of a folder of `--folds`.

    Raises UserError if the models are no better than a constant rule.
    """
    validated = predict_folds(folds, Reporter())
    score = cross_fitted_score(validated)
    if score.value <= score.baseline:
        raise UserError(
            f"--label-errors: the models learned nothing, {score}, so their suspects would be "
            "chance: train the folds with more --epochs, or with another --model."
        )
    return replace(find_suspects(validated), score=score)


def cross_fitted_score(validated: OutOfFold) -> CrossFitted:
    """Compute the score of out-of-fold predictions, and of a constant rule.

    The score is the accuracy of labels, of decisions on each of several labels, or of tags, and the
    rule predicts the most frequent label. For spans it is F1, and the rule predicts every word as a
    span of the most frequent type.
    """
    task, examples = validated.task, validated.examples
    labels = list(task.state.labels)
    if task.state.kind == "spans":
        return _score_of_spans(examples, validated.predictions)
    if task.description.words:
        gold = np.concatenate([_classes(task.state, example, labels) for example in examples])
        best = np.concatenate([np.array(rows).argmax(-1) for rows in validated.predictions if rows])
    else:
        probabilities = np.array(validated.predictions, dtype=float)
        if isinstance(examples[0].label, tuple):
            gold = np.array([[name in example.label for name in labels] for example in examples])
            frequent = gold.mean(0) > 0.5
            value, baseline = ((gold == guess).mean() for guess in (probabilities > 0.5, frequent))
            rule = "always deciding for the majority"
            return CrossFitted("accuracy", value, baseline, rule, gold.size)
        gold = np.array([labels.index(str(example.label)) for example in examples])
        best = probabilities.argmax(-1)
    counts = np.bincount(gold, minlength=len(labels))
    rule = f"always predicting {labels[counts.argmax()]!r}"
    value, baseline = float((best == gold).mean()), counts.max() / len(gold)
    return CrossFitted("accuracy", value, baseline, rule, len(gold))


def _score_of_spans(examples: Sequence[TokenExample], predictions: Sequence[Any]) -> CrossFitted:
    gold = [example.spans or () for example in examples]
    predicted = [[Span(*span[:3]) for span in prediction["spans"]] for prediction in predictions]
    value = scores_of("spans", gold, predicted)["span_f1_strict"]
    label = Counter(span.label for spans in gold for span in spans).most_common(1)[0][0]
    single = [[Span(n, n + 1, label) for n in range(len(example.words))] for example in examples]
    by_rule = scores_of("spans", gold, single)["span_f1_strict"]
    number = sum(map(len, gold))
    return CrossFitted("span_f1_strict", value, by_rule, f"every word as {label!r}", number)


def _classes(record: Any, example: TokenExample, labels: Sequence[str]) -> np.ndarray:
    tags: Sequence[str] = example.tags or ()
    if record.scheme is not None:
        tags = convert_tags(tags, record.source, record.scheme)
    return np.array([labels.index(tag) for tag in tags], dtype=int)


def find_suspects(validated: OutOfFold) -> Suspects:
    """Rank the labels of cross-validated data."""
    task, data = validated.task, (validated.examples, validated.predictions)
    if task.state.kind == "spans":
        return _of_spans(*data)
    if task.description.words:
        return _of_words(task.state, *data, list(task.state.labels))
    return _of_texts(*data, list(task.state.labels))


def _of_texts(
    examples: Sequence[TextExample], predictions: Sequence[Any], labels: list[str]
) -> Suspects:
    probabilities = np.array(predictions, dtype=float)  # [N, C]
    if not isinstance(examples[0].label, tuple):
        gold = np.array([labels.index(str(example.label)) for example in examples])
        suspects = _text_suspects(examples, labels, probabilities, gold)
        return Suspects(suspects, len(gold), *_noise(probabilities, gold, labels))
    suspects = []  # each of several labels is a decision between two classes
    for index, name in enumerate(labels):
        positive = probabilities[:, index]
        gold = np.array(
            [name in cast("tuple[str, ...]", example.label) for example in examples], int
        )
        suspects += _text_suspects(
            examples, (f"not {name}", name), np.stack([1 - positive, positive], 1), gold
        )
    return Suspects(sorted(suspects, key=lambda s: -s.margin), probabilities.size)


def _text_suspects(
    examples: Sequence[TextExample],
    labels: Sequence[str],
    probabilities: np.ndarray,
    gold: np.ndarray,
) -> list[Suspect]:
    suspects = []
    for i, j in probable_label_errors(probabilities, gold):
        mistake = Mistake("label", labels[gold[i]], labels[j], float(probabilities[i, j]))
        suspects.append(Suspect(examples[i], mistake, float(probabilities[i, gold[i]])))
    return suspects


def _of_words(
    record: Any, examples: Sequence[TokenExample], predictions: Sequence[Any], labels: list[str]
) -> Suspects:
    probabilities = np.concatenate([np.array(rows, dtype=float) for rows in predictions])  # [W, C]
    classes = [_classes(record, example, labels) for example in examples]
    flat = np.concatenate(classes)
    words = [(index, word) for index, each in enumerate(classes) for word in range(len(each))]
    worst: dict[int, float] = {}
    rows = []
    for i, j in probable_label_errors(probabilities, flat):  # in descending order of the margin
        index, word = words[i]
        sure, old = float(probabilities[i, j]), float(probabilities[i, flat[i]])
        mistake = Mistake("word", labels[flat[i]], labels[j], sure, (word, word + 1))
        suspect = Suspect(examples[index], mistake, old, worst=index not in worst)
        worst.setdefault(index, suspect.margin)
        rows.append((index, suspect))
    rows.sort(key=lambda row: (-worst[row[0]], row[0], -row[1].margin))
    suspects = [suspect for _, suspect in rows]
    return Suspects(suspects, len(flat), *_noise(probabilities, flat, labels), unit="word")


def _of_spans(examples: Sequence[TokenExample], predictions: Sequence[Any]) -> Suspects:
    # Without the mean probability of their type, models that predict few spans would rank all
    # missed gold spans before all predicted spans.
    gold = [tuple(example.spans or ()) for example in examples]
    predicted = [
        {Span(start, end, label): score for start, end, label, score in prediction["spans"]}
        for prediction in predictions
    ]
    gold_scores = [
        dict(zip(spans, prediction["gold"], strict=True))
        for spans, prediction in zip(gold, predictions, strict=True)
    ]
    by_type: dict[str, list[float]] = {}
    for scores in gold_scores:
        for span, score in scores.items():
            by_type.setdefault(span.label, []).append(score)
    mean = {label: float(np.mean(values)) for label, values in by_type.items()}
    wrong = []
    for index, (known, found_spans) in enumerate(zip(gold_scores, predicted, strict=True)):
        confidences = {span: 1 - score for span, score in known.items()} | found_spans
        words = examples[index].words
        for match in match_spans(gold[index], found_spans):
            wrong_span = match.predicted or match.gold
            if match.kind != "correct" and wrong_span is not None:
                sides = [s and s._asdict() | {"text": surface(words, s)} for s in match]
                confidence = confidences.get(wrong_span)
                mistake = Mistake(match.kind, sides[0], sides[1], confidence, wrong_span[:2])
                wrong.append((index, mistake))
    rows = []
    for index, mistake in wrong:
        gold_span, suggested = mistake.gold, mistake.predicted
        confidence = float(mistake.confidence or 0.0)
        if confidence < mean.get((suggested or gold_span)["label"], 1.0):
            continue
        given_confidence = 1 - confidence
        if gold_span is not None:
            span = Span(gold_span["start"], gold_span["end"], gold_span["label"])
            given_confidence = gold_scores[index][span]
        # the probability of no span is usually close to 1
        usual = [1.0 if s is None else mean.get(s["label"], 1.0) for s in (suggested, gold_span)]
        excess = (confidence - usual[0]) - (given_confidence - usual[1])
        old, new = (
            "nothing" if s is None else f"{s['label']} {s['text']!r}"
            for s in (gold_span, suggested)
        )
        category = _KINDS.get(mistake.category, mistake.category)
        mistake = mistake._replace(category=category, gold=old, predicted=new)
        rows.append((excess, index, Suspect(examples[index], mistake, given_confidence)))
    rows.sort(key=lambda row: -row[0])
    suspects, seen = [], set()
    for _, index, suspect in rows:
        suspects.append(replace(suspect, worst=index not in seen))
        seen.add(index)
    return Suspects(suspects, sum(map(len, gold)), unit="span")


def _noise(
    probabilities: np.ndarray, gold: np.ndarray, labels: Sequence[str]
) -> tuple[float, list[tuple[str, str, float]]]:
    joint = confident_joint(probabilities, gold)
    taken = [
        (labels[i], labels[j], float(joint[i, j]) * len(gold))
        for i, j in zip(*np.nonzero(joint), strict=True)
        if i != j
    ]
    return 1 - float(np.trace(joint)), sorted(taken, key=lambda row: -row[2])


def file_and_line(where: str) -> tuple[str, int | None]:
    """Split ``file:line``; the line is None if there is none.

    >>> file_and_line("a.jsonl:3")
    ('a.jsonl', 3)
    """
    match = re.fullmatch(r"(.*):(?:row |item )?(\d+)", where)
    return (match[1], int(match[2])) if match else (where, None)


def print_label_errors(folds: Path, out: Path | None, examples: int) -> bool:
    """Print the most probable label errors, write all to ``out``; return whether there is one."""
    suspects = search_label_errors(folds)
    _print_suspects(suspects, examples)
    if out is not None:
        rows = (json.dumps(s.to_dict(), ensure_ascii=False) + "\n" for s in suspects.found)
        write_text(out, "".join(rows), follow=True)
        show(f"all suspects, the most probable first: {out}")
    return bool(suspects.found)


def _print_suspects(suspects: Suspects, examples: int) -> None:
    number = quantity(len(suspects.found), "suspect")
    show(f"{number} among the {quantity(suspects.number, suspects.unit)} of the training data")
    score = suspects.score
    show(str(score))
    if score is not None and score.is_weak:
        show("warning: this is hardly better than chance, and so are the suspects", error=True)
    if suspects.share is not None:
        show(f"estimated fraction of wrong labels: {100 * suspects.share:.1f} %")
    for label, true, expected in suspects.taken[:8]:
        show(f"  labeled {label}, probably {true}: about {expected:,.0f}")
    for suspect in [suspect for suspect in suspects.found if suspect.worst][:examples]:
        file, line = file_and_line(suspect.example.where)
        category, label, suggested = suspect.mistake[:3]
        kind = "" if category in ("label", "word") else f" ({category})"
        show(
            f"{file if line is None else f'{file}:{line}'}  {label} -> {suggested} "
            f"({suspect.confidence:.3f} against {suspect.given_confidence:.3f}){kind}\n"
            f"    {suspect.excerpt}"
        )
