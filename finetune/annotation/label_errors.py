"""Find labels of the training data that are probably wrong.

Confident learning (``confident_learning``) compares each label with the prediction of a
model that was not trained on it. For spans only its thresholds are used: a prediction contradicts
gold if its probability reaches the mean probability of gold spans of its type.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from finetune.annotation.confident_learning import confident_joint, probable_label_errors
from finetune.annotation.cross_validation import OutOfFold, predict_folds
from finetune.cli.output import show
from finetune.data.tag_schemes import convert_tags
from finetune.evaluation.error_analysis import ErrorCase
from finetune.evaluation.prediction_types import scores_of
from finetune.evaluation.span_matching import match_spans
from finetune.evaluation.training_vocabulary import surface
from finetune.runtime.files import write_text
from finetune.runtime.progress import Reporter
from finetune.types import Span, TextExample, UserError, quantity

_SPAN_CATEGORIES = {"false positive": "missing span", "miss": "no span"}
"""Categories of label issues by the error of the model if gold were right, where they differ."""


@dataclass(frozen=True, eq=False)
class LabelIssue:
    """A label that is probably wrong, and the label that the models suggest, as texts.

    ``category`` is ``label``, ``word`` or the category of span error.
    """

    example: Any
    category: str
    given: str
    suggested: str
    confidence: float
    """Probability of the suggested label."""
    given_confidence: float
    """Probability of the label in the data."""
    words: tuple[int, int] | None = None
    """The words with the label, if it is not of a text."""
    worst: bool = True
    """Whether it is the first issue of its sentence."""

    @property
    def margin(self) -> float:
        """``confidence`` less ``given_confidence``."""
        return self.confidence - self.given_confidence

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values, with words only for labels of words."""
        file, line = file_and_line(self.example.where)
        values = {
            "file": file,
            "line": line,
            "given": self.given,
            "suggested": self.suggested,
            "confidence": round(self.confidence, 6),
            "given_confidence": round(self.given_confidence, 6),
            "margin": round(self.margin, 6),
            "text": self.example.line(),
            "kind": self.category,
        }
        if self.words is not None:
            first, end = self.words
            values |= {"first_word": first, "end_word": end, "worst": self.worst}
        if self.example.key is not None:
            values["id"] = self.example.key
        return values


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
class LabelIssues:
    """All label issues of the training data, the most probable errors first."""

    issues: list[LabelIssue]
    number: int
    """Number of labels in the data."""
    unit: str = "label"
    """The unit of the counts: a label, a word or a span."""
    share: float | None = None
    """Estimated fraction of wrong labels; None for spans and for several labels per text."""
    errors: list[tuple[str, str, float]] = field(default_factory=list)
    """Given label, true label and estimated number of such errors, most frequent first."""


def cross_fitted_score(validated: OutOfFold) -> CrossFitted:
    """Compute the score of out-of-fold predictions, and of a constant rule.

    The score is the accuracy of labels, of decisions on each of several labels, or of tags, and the
    rule predicts the most frequent label. For spans it is F1, and the rule predicts every word as a
    span of the most frequent type.
    """
    examples, labels = validated.examples, list(validated.task.state.labels)
    if validated.task.state.prediction_type == "spans":
        gold = [example.spans or () for example in examples]
        predicted = [[Span(*span[:3]) for span in row["spans"]] for row in validated.predictions]
        label = Counter(span.label for spans in gold for span in spans).most_common(1)[0][0]
        words = [[Span(n, n + 1, label) for n in range(len(e.words))] for e in examples]
        metric = "span_f1_strict"
        value, baseline = (scores_of("spans", gold, spans)[metric] for spans in (predicted, words))
        number = sum(map(len, gold))
        return CrossFitted(metric, value, baseline, f"every word as {label!r}", number)
    if isinstance(examples[0], TextExample) and isinstance(examples[0].label, tuple):
        is_gold = np.array([[name in example.label for name in labels] for example in examples])
        probable = np.array(validated.predictions, dtype=float) > 0.5
        value, baseline = ((is_gold == x).mean() for x in (probable, is_gold.mean(0) > 0.5))
        rule = "always deciding for the majority"
        return CrossFitted("accuracy", value, baseline, rule, is_gold.size)
    classes, probabilities, _ = _gold_classes(validated)
    counts = np.bincount(classes, minlength=len(labels))
    rule = f"always predicting {labels[counts.argmax()]!r}"
    value = float((probabilities.argmax(-1) == classes).mean())
    return CrossFitted("accuracy", value, counts.max() / len(classes), rule, len(classes))


def _gold_classes(
    validated: OutOfFold,
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int | None]]]:
    # The class [N] and probabilities [N, C] of each label of a text or word, its example and word.
    state: Any = validated.task.state
    labels, names, locations = list(state.labels), list[str](), list[tuple[int, int | None]]()
    for index, example in enumerate(validated.examples):
        if not validated.task.description.words:
            names.append(str(example.label))
            locations.append((index, None))
            continue
        tags = example.tags or ()
        if state.scheme is not None:
            tags = convert_tags(tags, state.source, state.scheme)
        names += tags
        locations += [(index, word) for word in range(len(tags))]
    classes = np.array([labels.index(name) for name in names], dtype=int)
    rows = [np.array(row, dtype=float).reshape(-1, len(labels)) for row in validated.predictions]
    return classes, np.concatenate(rows), locations


def find_label_issues(validated: OutOfFold) -> LabelIssues:
    """Rank the labels of cross-validated data."""
    examples, labels = validated.examples, list(validated.task.state.labels)
    if validated.task.state.prediction_type == "spans":
        return _span_issues(examples, validated.predictions)
    if isinstance(examples[0], TextExample) and isinstance(examples[0].label, tuple):
        probabilities = np.array(validated.predictions, dtype=float)
        locations: list[tuple[int, int | None]] = [(index, None) for index in range(len(examples))]
        issues = []  # each of several labels is a decision between two classes
        for name, positive in zip(labels, probabilities.T, strict=True):
            gold = np.array([name in example.label for example in examples], dtype=int)
            both = np.stack([1 - positive, positive], 1)
            issues += _class_issues(examples, (f"not {name}", name), gold, both, locations)
        return LabelIssues(sorted(issues, key=lambda s: -s.margin), probabilities.size)
    classes, probabilities, locations = _gold_classes(validated)
    joint = confident_joint(probabilities, classes)
    errors = [
        (labels[i], labels[j], float(joint[i, j]) * len(classes))
        for i, j in zip(*np.nonzero(joint), strict=True)
        if i != j
    ]
    return LabelIssues(
        _class_issues(examples, labels, classes, probabilities, locations),
        len(classes),
        "word" if validated.task.description.words else "label",
        1 - float(np.trace(joint)),
        sorted(errors, key=lambda error: -error[2]),
    )


def _class_issues(
    examples: Sequence[Any],
    labels: Sequence[str],
    classes: np.ndarray,
    probabilities: np.ndarray,
    locations: Sequence[tuple[int, int | None]],
) -> list[LabelIssue]:
    worst: dict[int, float] = {}
    rows = []
    for i, j in probable_label_errors(probabilities, classes):  # in descending order of the margin
        index, word = locations[i]
        issue = LabelIssue(
            examples[index],
            "label" if word is None else "word",
            labels[classes[i]],
            labels[j],
            float(probabilities[i, j]),
            float(probabilities[i, classes[i]]),
            None if word is None else (word, word + 1),
            worst=index not in worst,
        )
        worst.setdefault(index, issue.margin)
        rows.append((index, issue))
    rows.sort(key=lambda row: (-worst[row[0]], row[0], -row[1].margin))
    return [issue for _, issue in rows]


def _span_issues(examples: Sequence[Any], predictions: Sequence[Any]) -> LabelIssues:
    gold_scores = [
        dict(zip(example.spans or (), prediction["gold"], strict=True))
        for example, prediction in zip(examples, predictions, strict=True)
    ]
    by_type = defaultdict[str, list[float]](list)
    for scores in gold_scores:
        for span, score in scores.items():
            by_type[span.label].append(score)
    # Without the mean probability of their type, models that predict few spans would rank all
    # missed gold spans before all predicted spans.
    mean = {label: float(np.mean(scores)) for label, scores in by_type.items()}
    rows = []
    for index, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        predicted = {Span(*span[:3]): span[3] for span in prediction["spans"]}
        scores = gold_scores[index]
        confidences = {span: 1 - score for span, score in scores.items()} | predicted
        for match in match_spans(tuple(example.spans or ()), predicted):
            gold, suggested = match
            span = suggested or gold
            assert span is not None
            confidence = float(confidences[span])
            if match.category == "correct" or confidence < mean.get(span.label, 1.0):
                continue
            given_confidence = 1 - confidence if gold is None else scores[gold]
            # the probability of no span is usually close to 1
            usual = [1.0 if s is None else mean.get(s.label, 1.0) for s in (suggested, gold)]
            excess = (confidence - usual[0]) - (given_confidence - usual[1])
            given, instead = (
                "nothing" if s is None else f"{s.label} {surface(example.words, s)!r}"
                for s in (gold, suggested)
            )
            error, words = match.category, (span.start, span.end)
            error = _SPAN_CATEGORIES.get(error, error)
            issue = LabelIssue(example, error, given, instead, confidence, given_confidence, words)
            rows.append((excess, index, issue))
    rows.sort(key=lambda row: -row[0])
    issues, seen = [], set()
    for _, index, issue in rows:
        issues.append(replace(issue, worst=index not in seen))
        seen.add(index)
    return LabelIssues(issues, sum(map(len, gold_scores)), "span")


def file_and_line(where: str) -> tuple[str, int | None]:
    """Split ``file:line``; the line is None if there is none.

    >>> file_and_line("a.jsonl:3")
    ('a.jsonl', 3)
    """
    match = re.fullmatch(r"(.*):(?:row |item )?(\d+)", where)
    return (match[1], int(match[2])) if match else (where, None)


def print_label_errors(folds: Path, out: Path | None, examples: int) -> bool:
    """Print the most probable label errors of a folder of `--folds`, and write all to ``out``.

    Returns:
        Whether there is one.

    Raises:
        UserError: The models are no better than a constant rule.
    """
    validated = predict_folds(folds, Reporter())
    score = cross_fitted_score(validated)
    if score.value <= score.baseline:
        raise UserError(
            f"--label-errors: the models learned nothing, {score}, so their label issues would be "
            "chance: train the folds with more --epochs, or with another --model."
        )
    result = find_label_issues(validated)
    number, labels = (
        quantity(len(result.issues), "label issue"),
        quantity(result.number, result.unit),
    )
    show(f"{number} among the {labels} of the training data")
    show(str(score))
    if score.is_weak:
        show("warning: this is hardly better than chance, and so are the label issues", error=True)
    if result.share is not None:
        show(f"estimated fraction of wrong labels: {100 * result.share:.1f} %")
    for label, true, expected in result.errors[:8]:
        show(f"  labeled {label}, probably {true}: about {expected:,.0f}")
    for issue in [issue for issue in result.issues if issue.worst][:examples]:
        file, line = file_and_line(issue.example.where)
        category = "" if issue.category in ("label", "word") else f" ({issue.category})"
        text = ErrorCase(issue.example, issue.category, words=issue.words).excerpt
        show(
            f"{file if line is None else f'{file}:{line}'}  {issue.given} -> {issue.suggested} "
            f"({issue.confidence:.3f} against {issue.given_confidence:.3f}){category}\n    {text}"
        )
    if out is not None:
        rows = (json.dumps(i.to_dict(), ensure_ascii=False) + "\n" for i in result.issues)
        write_text(out, "".join(rows), follow=True)
        show(f"all label issues, the most probable first: {out}")
    return bool(result.issues)
