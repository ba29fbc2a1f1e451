"""Find labels of texts that are probably wrong, from the test predictions of `--folds`.

Each text is in the test split of one fold, whose model was not trained on it. Confident learning
compares each label with the prediction of this model (Northcutt, Jiang & Chuang 2021, "Confident
Learning: Estimating Uncertainty in Dataset Labels"). The model must be good: a poor or
overconfident one contradicts correct labels too.

Shapes: N texts, C classes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finetune.cli.output import check_output, show
from finetune.data.json_files import read_object
from finetune.data.labels import canonical_names
from finetune.evaluation.predictions import align_runs
from finetune.evaluation.runs import RunFolder
from finetune.runtime.files import require_replaceable, write_text
from finetune.types import TextExample, UserError, quantity

if TYPE_CHECKING:
    from finetune.cli.check import Check


@dataclass(frozen=True)
class OutOfFold:
    """The labels of N texts, and their probabilities by models that were not trained on them."""

    examples: Sequence[TextExample]
    labels: Sequence[str]
    probabilities: np.ndarray
    """The probability of each label [N, C]."""

    @property
    def is_multi_label(self) -> bool:
        """Whether a text has several labels."""
        return isinstance(self.examples[0].label, tuple)

    def gold(self) -> np.ndarray:
        """The number of the label of each text [N]; of several labels 1 for each that it has
        [N, C]."""
        labels: list[Any] = [example.label for example in self.examples]
        if self.is_multi_label:
            return np.array([[name in names for name in self.labels] for names in labels])
        return np.array([self.labels.index(str(name)) for name in labels])


class LabelIssue(NamedTuple):
    """A label that is probably wrong, the label that the model suggests, and the probability of
    both."""

    example: TextExample
    given: str
    suggested: str
    confidence: float
    given_confidence: float

    @property
    def margin(self) -> float:
        """``confidence`` less ``given_confidence``."""
        return self.confidence - self.given_confidence

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        file, line = file_and_line(self.example.where)
        return {
            "file": file,
            "line": line,
            "given": self.given,
            "suggested": self.suggested,
            "confidence": round(self.confidence, 6),
            "given_confidence": round(self.given_confidence, 6),
            "margin": round(self.margin, 6),
            "text": self.example.line(),
        }


class CrossFitted(NamedTuple):
    """The accuracy of models on data that they were not trained on, and of a constant rule."""

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
        return f"cross-fitted accuracy {self.value:.4f} ({self.rule}: {self.baseline:.4f})"


@dataclass(frozen=True)
class LabelIssues:
    """All label issues of the training data, the most probable errors first."""

    issues: list[LabelIssue]
    number: int
    """Number of labels in the data."""
    share: float | None = None
    """Estimated fraction of wrong labels; None for several labels per text."""
    errors: list[tuple[str, str, float]] = field(default_factory=list)
    """Given label, true label and estimated number of such errors, most frequent first."""


def read_folds(folder: Path) -> OutOfFold:
    """Read the test predictions of each fold of a folder of `--folds`, of the first repeat.

    Raises:
        UserError: A fold has no finished model, or the predictions have no probabilities of labels.
    """
    path = folder / "folds.json"
    if not path.is_file():
        raise UserError(
            f"{folder}: no folder of folds: train them, as in finetune classify --data FILE "
            "--folds 5 --out runs/folds, and give that folder."
        )
    saved = read_object(path, {"folds": int})
    if "folds" not in saved:
        raise UserError(f"{path}: damaged: train with --folds 5 again.")
    examples, scores = list[TextExample](), list[Any]()
    for number in range(1, saved["folds"] + 1):
        run = RunFolder.open(folder / f"fold-1.{number}")
        if not run.is_finished:
            raise UserError(
                f"{run.path}: the fold is not finished: the training command continues."
            )
        tables = align_runs([run.predictions("test")]).runs[0]
        if not tables.all_probabilities:
            raise UserError(
                f"{run.predictions('test')}: --label-errors needs labels of texts, and the "
                "probability of each."
            )
        examples += tables.examples
        scores += tables.all_probabilities
        if scores[-1].keys() != scores[0].keys():
            raise UserError(
                f"{run.path}: has other labels than the other folds: write fewer --folds."
            )
    rows = np.array([list(map(row.__getitem__, scores[0])) for row in scores])
    # labels as the data spell them, where predictions have the usual names of NLI labels
    names = {example.label for example in examples if isinstance(example.label, str)}
    spelled = {standard: name for name, standard in canonical_names(names).items()}
    return OutOfFold(examples, [spelled.get(name, name) for name in scores[0]], rows)


def cross_fitted_score(folds: OutOfFold) -> CrossFitted:
    """Compute the accuracy of labels, or of decisions on each of several labels, and that of the
    most frequent one."""
    gold = folds.gold()
    if folds.is_multi_label:
        accuracy = ((folds.probabilities > 0.5) == gold).mean()
        baseline = ((gold.mean(0) > 0.5) == gold).mean()
        rule = "always deciding for the majority"
        return CrossFitted(float(accuracy), float(baseline), rule, gold.size)
    counts = np.bincount(gold, minlength=len(folds.labels))
    rule = f"always predicting {folds.labels[int(counts.argmax())]!r}"
    accuracy = (folds.probabilities.argmax(1) == gold).mean()
    return CrossFitted(float(accuracy), counts.max() / len(gold), rule, len(gold))


def find_label_issues(folds: OutOfFold) -> LabelIssues:
    """Rank the labels of cross-validated data."""
    gold, labels, probabilities = folds.gold(), folds.labels, folds.probabilities
    if folds.is_multi_label:
        issues = []  # each of several labels is a decision between two classes
        for name, has_label, positive in zip(labels, gold.T, probabilities.T, strict=True):
            both = np.stack([1 - positive, positive], 1)
            names = f"not {name}", name
            issues += _class_issues(folds.examples, names, has_label.astype(int), both)
        return LabelIssues(sorted(issues, key=lambda issue: -issue.margin), probabilities.size)
    joint = confident_joint(probabilities, gold)
    errors = [
        (labels[i], labels[j], float(joint[i, j]) * len(gold))
        for i, j in np.argwhere(joint).tolist()
        if i != j
    ]
    return LabelIssues(
        _class_issues(folds.examples, labels, gold, probabilities),
        len(gold),
        1 - float(np.trace(joint)),
        sorted(errors, key=lambda error: -error[2]),
    )


def _class_issues(
    examples: Sequence[TextExample],
    labels: Sequence[str],
    gold: np.ndarray,
    probabilities: np.ndarray,
) -> list[LabelIssue]:
    return [
        LabelIssue(
            examples[i],
            labels[int(gold[i])],
            labels[j],
            float(probabilities[i, j]),
            float(probabilities[i, gold[i]]),
        )
        for i, j in probable_label_errors(probabilities, gold)
    ]


def probable_label_errors(probabilities: np.ndarray, labels: np.ndarray) -> list[tuple[int, int]]:
    """Find the examples whose label is probably wrong, each with the class that the model predicts.

    Takes probabilities [N, C] and labels [N]. A label is an issue if the most likely of the
    ``confident_classes`` is more likely than it. The largest margin of the class comes first.
    """
    better = confident_classes(probabilities, labels)
    issues = np.flatnonzero((better >= 0) & (better != labels))
    margins = probabilities[issues, better[issues]] - probabilities[issues, labels[issues]]
    order = issues[np.argsort(-margins, kind="stable")]
    return [(int(index), int(better[index])) for index in order]


def confident_classes(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Find the most likely class [N] that the model is confident about, or -1.

    A model is confident of a class if its probability reaches the mean probability of the class
    over the examples with this label. Unlike in the paper, the class must also be more likely than
    the label: a rare class that a model cannot predict has a threshold near 0.
    """
    if len(labels) == 0:
        return np.zeros(0, dtype=int)
    rows = np.arange(len(labels))
    number = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, probabilities[rows, labels], minlength=probabilities.shape[1])
    # a model is never confident of a class without examples
    thresholds = np.where(number > 0, sums / np.maximum(number, 1), np.inf)
    confident = probabilities >= thresholds - 1e-12  # [N, C]
    confidences = np.where(confident, probabilities, -1.0)
    best = confidences.argmax(1)
    is_better = confidences[rows, best] > probabilities[rows, labels]
    return np.where(is_better, best, np.where(confident[rows, labels], labels, -1))


def confident_joint(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Estimate the joint distribution [C, C] of labels in the data (row) and true labels (column).

    Equation 3 of the paper; a row without confident examples counts as correct.
    """
    better = confident_classes(probabilities, labels)
    num_classes = probabilities.shape[1]
    counts = np.zeros((num_classes, num_classes))
    is_confident = better >= 0
    np.add.at(counts, (labels[is_confident], better[is_confident]), 1)
    number = np.bincount(labels, minlength=num_classes)
    empty = counts.sum(1) == 0
    counts[empty, empty] = 1.0
    joint: np.ndarray = counts / counts.sum(1, keepdims=True) * number[:, None]
    return joint / max(1, len(labels))


def file_and_line(where: str) -> tuple[str, int | None]:
    """Split ``file:line``; the line is None if there is none.

    >>> file_and_line("a.jsonl:3")
    ('a.jsonl', 3)
    """
    match = re.fullmatch(r"(.*):(?:row |item )?(\d+)", where)
    return (match[1], int(match[2])) if match else (where, None)


def find_label_errors(command: Check) -> bool:
    """Print the most probable label errors of a folder of `--folds`, and write all to --out.

    Returns:
        Whether there is one.

    Raises:
        UserError: The models are no better than a constant rule.
    """
    if command.out is not None:
        check_output(command.out, suffixes=(".jsonl", ""))
        require_replaceable(Path(command.out), '{"file": ')
    folds = read_folds(Path(command.source or ""))
    score = cross_fitted_score(folds)
    if score.value <= score.baseline:
        raise UserError(
            f"--label-errors: the models learned nothing, {score}, so their label issues would be "
            "chance: train the folds with more --epochs, or with another --model."
        )
    result = find_label_issues(folds)
    number = quantity(len(result.issues), "label issue")
    show(f"{number} among the {quantity(result.number, 'label')} of the training data")
    show(str(score))
    if score.is_weak:
        show("warning: this is hardly better than chance, and so are the label issues", error=True)
    if result.share is not None:
        show(f"estimated fraction of wrong labels: {100 * result.share:.1f} %")
    for label, true, expected in result.errors[:8]:
        show(f"  labeled {label}, probably {true}: about {expected:,.0f}")
    for issue in result.issues[: command.examples]:
        file, line = file_and_line(issue.example.where)
        show(
            f"{file if line is None else f'{file}:{line}'}  {issue.given} -> {issue.suggested} "
            f"({issue.confidence:.3f} against {issue.given_confidence:.3f})\n"
            f"    {issue.example.line():.200}"
        )
    if command.out is not None:
        rows = (json.dumps(i.to_dict(), ensure_ascii=False) + "\n" for i in result.issues)
        write_text(Path(command.out), "".join(rows), follow=True)
        show(f"all label issues, the most probable first: {command.out}")
    return bool(result.issues)
