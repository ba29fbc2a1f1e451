"""When to abstain: the risk of the answers above a confidence, with a guarantee.

The risk is the share of wrong answers among the given ones, the coverage the share of answers that
are given (El-Yaniv & Wiener 2010). A bound on the risk holds with probability 1 - δ over the data
it was computed on, for new data of the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from finetune.evaluation.decisions import Choice
from finetune.evaluation.metrics import Items
from finetune.evaluation.tables import TableRows, Tables
from finetune.types import UserError, quantity

DELTA = 0.05
"""The probability that a guarantee fails."""
MOST_STEPS = 100
"""Thresholds to test in turn."""


def answers_of(tables: Tables) -> Items:
    """Take the answers whose probability is known; UserError if there are none.

    The column ``cluster`` is the index of the document of an answer, or of its example without
    documents.
    """
    items = tables.items.answered
    items = items.take(~np.isnan(items.score))
    if not len(items):
        raise UserError(
            "these predictions have no answers with a probability: there is none to abstain from."
        )
    columns = {"cluster": tables.clusters[items.example]}
    return replace(items, credit=items.credit > 0, columns=columns)


def num_independent(answers: Items) -> float:
    """The number of independent answers: that of the clusters, if all are equally large (Kish
    1965). Answers of one cluster depend on each other, by an amount that few clusters hide."""
    sizes = np.unique(answers.columns["cluster"], return_counts=True)[1]
    return len(answers) ** 2 / float((sizes**2).sum()) if len(answers) else 0.0


class Chosen(NamedTuple):
    """A threshold of confidence, with its coverage, its risk and the upper bound of the risk."""

    confidence: float
    coverage: float
    risk: float
    bound: float


def upper_bound(wrong: float, number: float) -> float:
    """Compute the upper limit of Clopper & Pearson (1934) for a share of errors."""
    from scipy.stats import beta  # imported late: it costs half a second

    return float(beta.ppf(1 - DELTA, wrong + 1, number - wrong)) if wrong < number else 1.0


def fewest_for_risk(risk: float) -> int:
    """The number of independent answers, all right, that show a risk."""
    return math.ceil(math.log(DELTA) / math.log1p(-risk))


def at_confidence(answers: Items, confidence: float) -> Chosen:
    """Measure the answers above a threshold; without any, none is wrong.

    The bound is that of the number of independent answers.
    """
    kept = answers.take(answers.score >= confidence)
    risk, number = float(1 - kept.credit.mean()) if len(kept) else 0.0, num_independent(kept)
    bound = upper_bound(risk * number, number)
    return Chosen(confidence, len(kept) / len(answers), risk, bound)


def at_risk(answers: Items, risk: float) -> Chosen:
    """Find the lowest threshold above which at most a share ``risk`` of the answers is wrong.

    Thresholds are tested from high to low until the bound of one exceeds the risk, which needs no
    correction for their number (fixed sequence testing; Angelopoulos et al. 2021, "Learn then
    Test"). Their order, and the first one, depend only on the confidences.

    Raises:
        UserError: There are too few answers, or too many of the most confident ones are wrong.
    """
    chosen, tested = None, None
    for confidence in _tested(answers, fewest_for_risk(risk)):
        tested = at_confidence(answers, confidence)
        if tested.bound > risk:
            break
        chosen = tested
    if chosen is not None:
        return chosen
    if tested is None:
        number = quantity(len(answers), "answer")
        if (independent := num_independent(answers)) < len(answers):
            number += f" (as good as {int(independent):,} of different texts or documents)"
        raise UserError(
            f"{number}: a risk of {risk:g} needs {fewest_for_risk(risk):,} answers or more: add "
            "validation data, or give a higher --risk."
        )
    confident = answers.take(answers.score >= tested.confidence)
    raise UserError(
        f"no confidence is safe: of the {len(confident):,} most confident answers "
        f"{int((~confident.credit).sum()):,} are wrong, so their risk may be {tested.bound:.3f}, "
        f"above {risk:g}: add validation data, train a better model, or give a higher --risk."
    )


def _tested(answers: Items, fewest: int) -> Iterator[float]:
    number, independent = len(answers), num_independent(answers)
    if independent < fewest:
        return
    # enough for the first threshold to bear an error
    first = max(fewest, int(min(4 * fewest, independent / 2)), int(independent / 4))
    levels = np.sort(answers.score)[::-1]
    steps = np.unique(np.linspace(first, number, MOST_STEPS).round().astype(int))
    for threshold in dict.fromkeys(levels[steps - 1].tolist()):
        if num_independent(answers.take(answers.score >= threshold)) >= first:
            yield threshold


def at_coverage(answers: Items, coverage: float) -> Chosen:
    """Find the highest threshold that keeps at least a share ``coverage`` of the answers."""
    number = math.ceil(coverage * len(answers) - 1e-9)
    return at_confidence(answers, float(np.sort(answers.score)[::-1][max(1, number) - 1]))


def choose_confidence(
    runs: Mapping[str, Tables],
    split: str,
    risk: float | None,
    coverage: float | None,
    chose_epoch: bool,
) -> Choice:
    """Choose the threshold for a risk or a coverage, and tabulate its effect on each split."""
    splits = {name: answers_of(run) for name, run in runs.items()}
    answers = splits[split]
    if risk is not None:
        chosen = at_risk(answers, risk)
    else:
        chosen = at_coverage(answers, coverage or 1.0)
    rows = []
    for name, every in splits.items():
        point = at_confidence(every, chosen.confidence)
        row = {"split": name, "answers": len(every), "coverage": point.coverage}
        row |= {"risk of all": at_confidence(every, 0.0).risk, "risk": point.risk}
        rows.append(row | {f"bound (δ {DELTA:g})": point.bound})
    notes = [f"the model abstains below a probability of {chosen.confidence:.4f}"]
    if chose_epoch:
        notes.append(
            "validation also chose the epoch of the model, so its risk and the bound are a "
            "little low: --split names another split"
        )
    fields = {"confidence": max(0.0, chosen.confidence - 5e-7)}  # files have six digits
    return Choice(fields, {**chosen._asdict(), "splits": rows}, {"": rows}, notes)


def abstained_note(tables: Tables) -> str:
    """Say how often a model abstained, and the score of the answers that it gave."""
    if not tables.type.wording.confidence:  # without probabilities, no model abstains
        return ""
    left_out = [prediction.decided.get("withheld") for prediction in tables.predictions]
    if parts := sum(len(answers) for answers in left_out if isinstance(answers, list)):
        return f"abstained from {quantity(parts, 'answer')}, which count as missing"
    abstained = np.array([answers not in (None, []) for answers in left_out], bool)
    if not abstained.any():
        return ""
    note = f"abstained on {int(abstained.sum()):,} of {len(left_out):,}"
    blank = tables.type.classes is not None and np.array([p == "" for p in tables.predicted], bool)
    answered = ~(abstained | blank)
    if not answered.any():
        return note
    metric = tables.type.metrics[tables.type.default]
    value = float(metric.value(metric.counts(tables)[answered].sum(axis=0)))
    return f"{note}; {tables.type.default} of the answers given {value:.3f}"


def risk_table(tables: Tables) -> TableRows:
    """Tabulate the risk by coverage, for reports; empty if no probability is known."""
    if np.isnan(tables.items.answered.score).all():
        return []
    answers = answers_of(tables)
    chosen = [at_coverage(answers, tenths / 10) for tenths in range(10, 0, -1)]
    return [
        {"coverage": point.coverage, "confidence": point.confidence, "risk": point.risk}
        for point in dict.fromkeys(chosen)  # few answers have few coverages
    ]
