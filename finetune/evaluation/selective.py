"""When not to answer: the risk of the answers above a confidence, with a guarantee.

The risk is the share of wrong answers among the given ones, the coverage the share of answers that
are given (El-Yaniv & Wiener 2010). A bound on the risk holds with probability 1 - δ over the data
it was computed on, for new data of the same kind.

Shapes: N examples, A answers of all of them, K thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from finetune.data.labels import canonical_names
from finetune.evaluation.conformal import subgroups_of_sets, table_of_sets
from finetune.evaluation.costs import price_table
from finetune.evaluation.decisions import Decisions, below
from finetune.evaluation.kinds import Scored
from finetune.evaluation.kinds.kind import Table
from finetune.types import UserError, quantity

DELTA = 0.05
"""The probability that a guarantee fails."""
SHOWN_COVERAGE = 0.9
"""The coverage at which reports compare classes."""
MOST_STEPS = 100
"""Thresholds to test in turn."""


@dataclass(frozen=True)
class Answers:
    """The answers of predictions: of each its example, probability, class, and whether it is right.

    Attributes:
        example: The index of the example of each answer [A].
        confidence: Their probabilities [A].
        right: Whether they are right [A].
        names: Their classes [A]; empty texts if the kind of predictions has no classes.
    """

    example: np.ndarray
    confidence: np.ndarray
    right: np.ndarray
    names: np.ndarray

    @classmethod
    def of(cls, scored: Scored) -> Answers:
        """Return the answers of aligned predictions.

        Raises:
            UserError: The predictions have no probabilities.
        """
        rows = scored.kind.answers(scored)
        if not any(rows):
            raise UserError("these predictions have no answers with a probability.")
        flat = [(index, *each) for index, row in enumerate(rows) for each in row]
        example, confidence, right, names = zip(*flat, strict=True)
        return cls(
            np.array(example), np.array(confidence), np.array(right, bool), np.array(names, str)
        )

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self.confidence)

    def take(self, chosen: np.ndarray) -> Answers:
        """Return some answers, by indices or as booleans [A]."""
        return Answers(*(values[chosen] for values in vars(self).values()))

    def above(self, confidence: float | Mapping[str, float]) -> Answers:
        """Return the answers that are given at a threshold, or at one of each class."""
        if not isinstance(confidence, Mapping):
            return self.take(self.confidence >= confidence)
        names = canonical_names(confidence)  # as in aligned predictions
        least = below(dict(zip(names, confidence.values(), strict=True)))
        return self.take(self.confidence >= np.array([least(name) for name in self.names]))

    @property
    def risk(self) -> float:
        """The share of wrong answers; 0 without any."""
        return float(1 - self.right.mean()) if len(self) else 0.0


class Chosen(NamedTuple):
    """A threshold of confidence, with its coverage, its risk and the upper bound of the risk."""

    confidence: float
    coverage: float
    risk: float
    bound: float


def risk_bound(answers: Answers, delta: float = DELTA) -> float:
    """Return an upper bound of the risk that holds with probability 1 - δ.

    For one answer of each example it is the exact bound of Clopper & Pearson (1934). Answers of one
    example depend on each other, so for several the number of answers is divided by the design
    effect, which the variance between examples tells (Korn & Graubard 1998).
    """
    number, wrong = len(answers), int((~answers.right).sum())
    if not number:
        return 1.0
    effective = number / max(1.0, _design_effect(answers))
    return upper_bound(wrong / number * effective, effective, delta)


def upper_bound(wrong: float, number: float, delta: float) -> float:
    """Return the upper limit of Clopper & Pearson (1934) for a share of errors."""
    from scipy.stats import beta  # imported late: it costs half a second

    return float(beta.ppf(1 - delta, wrong + 1, number - wrong)) if wrong < number else 1.0


def _design_effect(answers: Answers) -> float:
    examples, index = np.unique(answers.example, return_inverse=True)
    number, risk = len(answers), answers.risk
    if len(examples) in (1, number) or not 0 < risk < 1:
        return number / len(examples) if risk in (0.0, 1.0) else 1.0
    residuals = np.bincount(index, weights=(~answers.right) - risk)
    variance = len(examples) / (len(examples) - 1) * (residuals**2).sum() / number**2
    return float(variance / (risk * (1 - risk) / number))


def needed(risk: float, delta: float = DELTA) -> int:
    """Return the number of answers, all right, that show that a risk is not exceeded."""
    return math.ceil(math.log(delta) / math.log1p(-risk))


def at_risk(answers: Answers, risk: float, delta: float = DELTA) -> Chosen:
    """Return the lowest threshold above which at most a share ``risk`` of the answers is wrong.

    Thresholds are tested from high to low until the bound of one exceeds the risk, which needs no
    correction for their number (fixed sequence testing; Angelopoulos et al. 2021, "Learn then
    Test"). Their order, and the first one, follow from the confidences alone.

    Raises:
        UserError: There are too few answers, or too many of the most confident ones are wrong.
    """
    least, number = needed(risk, delta), len(answers)
    if number < least:
        raise UserError(
            f"{quantity(number, 'answer')}: a risk of {risk:g} with δ {delta:g} needs {least:,} "
            "answers or more: add validation data, or raise --risk or --delta."
        )
    levels = np.sort(answers.confidence)[::-1]
    first = max(least, min(4 * least, number // 2), number // 4)  # enough to bear an error
    steps = np.unique(np.linspace(first, number, MOST_STEPS).round().astype(int))
    found = None
    for threshold in dict.fromkeys(levels[steps - 1].tolist()):
        given = answers.above(threshold)
        if (bound := risk_bound(given, delta)) > risk:
            break
        found = Chosen(threshold, len(given) / number, given.risk, bound)
    if found is None:
        given = answers.above(levels[first - 1])
        raise UserError(
            f"no confidence is safe: of the {len(given):,} most confident answers "
            f"{int((~given.right).sum()):,} are wrong, so their risk may be {bound:.3f}, above "
            f"{risk:g}: raise --risk, add validation data, or train a better model."
        )
    return found


def at_coverage(answers: Answers, coverage: float, delta: float = DELTA) -> Chosen:
    """Return the highest threshold that gives at least a share ``coverage`` of the answers."""
    number = math.ceil(coverage * len(answers) - 1e-9)
    threshold = float(np.sort(answers.confidence)[::-1][max(1, number) - 1])
    given = answers.above(threshold)
    return Chosen(threshold, len(given) / len(answers), given.risk, risk_bound(given, delta))


def risk_curve(answers: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Return coverage and risk of each threshold, the highest first, both [K]."""
    order = np.argsort(-answers.confidence, kind="stable")
    levels, wrong = answers.confidence[order], np.cumsum(~answers.right[order])
    last = np.append(levels[1:] != levels[:-1], True).nonzero()[0]  # of equal confidences
    return (last + 1) / len(answers), wrong[last] / (last + 1)


def area_under_risk(answers: Answers) -> float:
    """Return the mean risk over all coverages, ``aurc`` (Geifman, Uziel & El-Yaniv 2019)."""
    coverage, risk = risk_curve(answers)
    return float((risk * np.diff(coverage, prepend=0.0)).sum())


def by_class(answers: Answers, confidence: float | Mapping[str, float]) -> Table:
    """Return for each predicted class its answers, its coverage, and its risk without and with a
    threshold: the classes that pay for it."""
    rows = []
    for name in np.unique(answers.names).tolist():
        own = answers.take(answers.names == name)
        given = own.above(confidence)
        rows.append(
            {
                "class": name,
                "answers": len(own),
                "coverage": len(given) / len(own),
                "risk of all": own.risk,
                "risk": given.risk if len(given) else None,
            }
        )
    return rows


def risk_table(answers: Answers) -> Table:
    """Return the risk at round coverages, and the confidence that gives them."""
    chosen = [at_coverage(answers, tenths / 10) for tenths in range(10, 0, -1)]
    return [
        {"coverage": each.coverage, "confidence": each.confidence, "risk": each.risk}
        for each in dict.fromkeys(chosen)  # few answers have few coverages
    ]


def tables_of_decisions(scored: Scored, decisions: Decisions) -> dict[str, Table]:
    """Return the tables of a report on decisions: on risk, on sets and on costs.

    Without a saved confidence, the classes are shown at the coverage ``SHOWN_COVERAGE``.
    """
    tables: dict[str, Table] = {}
    if any(scored.kind.answers(scored)):
        answers = Answers.of(scored)
        tables["risk"] = risk_table(answers)
        confidence = decisions.confidence
        if confidence is None:
            confidence = at_coverage(answers, SHOWN_COVERAGE).confidence
        if len(classes := by_class(answers, confidence)) > 1:
            tables["answered"] = classes
    if decisions.sets is not None:
        tables["sets"] = table_of_sets(scored, decisions.sets)
        for name, rows in subgroups_of_sets(scored, decisions.sets).items():
            tables[f"sets by {name}"] = rows
    if scored.costs:
        tables["costs"] = price_table(scored)
    return tables
