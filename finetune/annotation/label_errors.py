"""Find labels of texts that are probably wrong, from the test predictions of `--folds`.

Each text is in the test split of one fold, whose model was not trained on it. Confident learning
compares each label with the prediction of this model (Northcutt, Jiang & Chuang 2021, "Confident
Learning: Estimating Uncertainty in Dataset Labels"). The model must be good: a poor or
overconfident one contradicts correct labels too.

Shapes: N texts, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finetune.cli.output import check_output, show
from finetune.data.json_files import read_object
from finetune.data.labels import canonical_names
from finetune.evaluation.predictions import align_runs
from finetune.evaluation.runs import RunFolder
from finetune.runtime.files import require_replaceable, write_text
from finetune.runtime.row_files import json_line
from finetune.types import TextExample, UserError, quantity

if TYPE_CHECKING:
    from finetune.cli.check import Check


class Decisions(NamedTuple):
    """A label of each of N texts, of C classes, and the probabilities of models that were not
    trained on these texts."""

    classes: Sequence[str]
    labels: np.ndarray
    """The number of the class of each text [N]."""
    probabilities: np.ndarray
    """The probability of each class [N, C]."""


def decisions_of(
    examples: Sequence[TextExample], names: Sequence[str], probabilities: np.ndarray
) -> list[Decisions]:
    """Compare the labels of texts with the probability of each of the ``names`` [N, C].

    Each of several labels is a decision between two classes: the text has it, or not.
    """
    labels: list[Any] = [example.label for example in examples]
    if not isinstance(labels[0], tuple):
        numbers = np.array([names.index(str(label)) for label in labels])
        return [Decisions(names, numbers, probabilities)]
    has_name = np.array([[name in label for name in names] for label in labels]).T
    return [
        Decisions((f"not {name}", name), has.astype(int), np.stack([1 - p, p], 1))
        for name, has, p in zip(names, has_name, probabilities.T, strict=True)
    ]


def read_folds(folder: Path) -> tuple[list[TextExample], list[Decisions]]:
    """Read the texts of each fold of a folder of `--folds`, of the first repeat, and predictions.

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
    examples, scores = list[TextExample](), list[Any]()
    for number in range(1, saved["folds"] + 1):
        run = RunFolder.open(folder / f"fold-1.{number}")
        if not run.is_finished:
            raise UserError(
                f"{run.path}: the fold is not finished: the training command continues."
            )
        tables = align_runs([run.predictions("test")])[0]
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
    return examples, decisions_of(examples, [spelled.get(name, name) for name in scores[0]], rows)


def find_label_issues(
    examples: Sequence[TextExample], decisions: Sequence[Decisions]
) -> list[dict[str, Any]]:
    """List the labels that are probably wrong, as JSON values.

    A label is an issue if the most likely of the ``confident_classes`` is more likely than it. The
    issue with the largest difference of both probabilities is first.
    """
    issues = []
    for classes, labels, probabilities in decisions:
        better = confident_classes(probabilities, labels)
        for i in np.flatnonzero((better >= 0) & (better != labels)).tolist():
            issue = {
                "where": examples[i].where,
                "given": classes[labels[i]],
                "suggested": classes[better[i]],
                "confidence": float(probabilities[i, better[i]]),
                "given_confidence": float(probabilities[i, labels[i]]),
                "text": examples[i].line(),
            }
            issues.append(issue)
    return sorted(issues, key=lambda issue: issue["given_confidence"] - issue["confidence"])


def confident_classes(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Find the most likely class [N] that the model is confident about, or -1.

    A model is confident of a class if its probability reaches the mean probability of the class
    over the examples with this label. Unlike in the paper, the class must also be more likely than
    the label: a rare class that a model cannot predict has a threshold near 0.
    """
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
    return joint / len(labels)


def find_label_errors(command: Check) -> bool:
    """Print the most probable label errors of a folder of `--folds`, and write all to --out.

    Returns:
        Whether there is one.

    Raises:
        UserError: The models are no better than a constant rule.
    """
    if command.out is not None:
        check_output(command.out, suffixes=(".jsonl", ""))
        require_replaceable(Path(command.out), '{"where": ')
    examples, decisions = read_folds(Path(command.source or ""))
    number = len(examples) * len(decisions)
    accuracy = float(np.mean([of.probabilities.argmax(1) == of.labels for of in decisions]))
    frequencies = [np.bincount(of.labels) for of in decisions]
    baseline = sum(int(counts.max()) for counts in frequencies) / number
    has_one_label = not isinstance(examples[0].label, tuple)
    classes, labels, probabilities = decisions[0]
    rule = "always deciding for the majority"
    if has_one_label:
        rule = f"always predicting {classes[int(frequencies[0].argmax())]!r}"
    score = f"cross-fitted accuracy {accuracy:.4f} ({rule}: {baseline:.4f})"
    if accuracy <= baseline:
        raise UserError(
            f"--label-errors: the models learned nothing, {score}, so their label issues would be "
            "chance: train the folds with more --epochs, or with another --model."
        )
    issues = find_label_issues(examples, decisions)
    num_issues = quantity(len(issues), "label issue")
    show(f"{num_issues} among the {quantity(number, 'label')} of the training data")
    show(score)
    if accuracy - baseline < 2 * math.sqrt(accuracy * (1 - accuracy) / number):
        show("warning: this is hardly better than chance, and so are the label issues", error=True)
    if has_one_label:
        joint = confident_joint(probabilities, labels)
        show(f"estimated fraction of wrong labels: {100 * (1 - np.trace(joint)):.1f} %")
        errors = [(i, j) for i, j in np.argwhere(joint).tolist() if i != j]
        for i, j in sorted(errors, key=lambda error: -joint[error])[:8]:
            expected = joint[i, j] * number
            show(f"  labeled {classes[i]}, probably {classes[j]}: about {expected:,.0f}")
    for issue in issues[: command.examples]:
        show(
            "{where}  {given} -> {suggested} ({confidence:.3f} against {given_confidence:.3f})\n"
            "    {text:.200}".format(**issue)
        )
    if command.out is not None:
        for issue in issues:
            for name in ("confidence", "given_confidence"):
                issue[name] = round(issue[name], 6)
        write_text(Path(command.out), "".join(f"{json_line(row)}\n" for row in issues), follow=True)
        show(f"all label issues, the most probable first: {command.out}")
    return bool(issues)
