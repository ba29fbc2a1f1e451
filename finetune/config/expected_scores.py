"""The scores that a recipe expects: what may stand in one, and what a run makes of it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from finetune.types import UserError, perhaps, shortened

_CALIBRATION = ("ece", "ece_uncalibrated")


PROBLEMS: Mapping[str, tuple[str, ...]] = {
    "single": ("accuracy", "macro_f1", "weighted_f1", "matthews", "f1", *_CALIBRATION),
    "multi": (
        "micro_f1", "macro_f1", "weighted_f1", "subset_accuracy", "hamming_loss", *_CALIBRATION,
    ),
    "regression": ("pearson", "spearman", "mse"),
}  # fmt: skip
"""The metrics of each problem of `classify`."""


METRICS: Mapping[str, tuple[str, ...]] = {
    "classify": tuple(dict.fromkeys(name for names in PROBLEMS.values() for name in names)),
    "nli": PROBLEMS["single"],
    "tag": (
        "span_precision_conll", "span_recall_conll", "span_f1_conll", "span_f1_strict",
        "tag_accuracy", "accuracy", "macro_f1", "weighted_f1", "matthews", *_CALIBRATION,
    ),
    "ner": (
        "span_precision_strict", "span_recall_strict", "span_f1_strict", "span_f1_outermost",
        "span_f1_inner", "inner_gold", "inner_predicted", "inner_found", "span_f1_uncalibrated",
    ),
}  # fmt: skip
"""The metrics that each task can give; `ner` also ``span_f1_strict:TYPE``."""


UNBOUNDED = ("mse", "inner_gold", "inner_predicted", "inner_found")
"""Metrics that may be above 1: all others are shares or correlations."""


CORRELATIONS = ("matthews", "pearson", "spearman")
"""Metrics that may be below 0."""


SPLITS = tuple(
    f"{split}{suffix}" for split in ("validation", "test")
    for suffix in ("", "_matched", "_mismatched")
)  # fmt: skip
"""The splits that are scored, by the names that all data get."""


STATISTICS = ("mean", "median")
"""What a score may be of several seeds."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A score that the recipe is known to reach: ``value`` within ``tolerance``."""

    split: str
    metric: str
    value: float
    tolerance: float
    source: str
    source_checked: bool = True
    statistic: str = "mean"
    """What ``value`` is of several seeds: of STATISTICS."""
    fingerprint: str | None = None
    """That of the data which it was measured on (as in a run's config.json): the same data may then
    be called something else."""

    @property
    def cited(self) -> str:
        """The source, with a warning where nobody looked it up."""
        return self.source if self.source_checked else f"{self.source}; source not checked"

    @property
    def claimed(self) -> str:
        """Value and tolerance, to read; that it is no mean is said."""
        named = "" if self.statistic == "mean" else f"{self.statistic} "
        return f"{named}{self.value:g} ± {self.tolerance:g}"


def read_expected(where: str, task: str, problem: Any, entry: Any) -> Expected:
    """A score of a recipe for ``task`` (and ``problem``, where its settings name one); raises
    ValueError that begins with ``where`` it stands."""
    legal = [f.name for f in dataclasses.fields(Expected)]
    needed = [f.name for f in dataclasses.fields(Expected) if f.default is dataclasses.MISSING]
    if not isinstance(entry, dict) or not set(needed) <= set(entry) or not set(entry) <= set(legal):
        raise UserError(
            f"{where}: each entry under `expected` has the keys {', '.join(needed)} "
            "(and source_checked, if the source was not looked at; statistic, if the value is no "
            f"mean; fingerprint, of the data it was measured on), not {entry!r}."
        )
    _check_name(where, "split", entry["split"], SPLITS)
    of_problem = PROBLEMS.get(problem) if isinstance(problem, str) else None
    _check_name(where, "metric", entry["metric"], of_problem or METRICS[task])
    if not isinstance(entry["source"], str) or not entry["source"].strip():
        raise UserError(f"{where}: source says in words where the score is from, not "
                         f"{entry['source']!r}.")  # fmt: skip
    if not isinstance(checked := entry.get("source_checked", True), bool):
        raise UserError(f"{where}: source_checked is true or false, not {checked!r}.")
    data = entry.get("fingerprint")
    if data is not None and not (isinstance(data, str) and re.fullmatch("[0-9a-f]{64}", data)):
        raise UserError(
            f"{where}: fingerprint is 64 hexadecimal digits, as in a run's config.json, not "
            f"{data!r}."
        )
    _check_name(where, "statistic", entry.get("statistic", "mean"), STATISTICS)
    numbers = {name: _number(where, name, entry[name]) for name in ("value", "tolerance")}
    _check_range(where, entry["metric"], **numbers)
    return Expected(**{**entry, **numbers})


def _check_name(where: str, what: str, name: Any, legal: Collection[str]) -> None:
    """Refuse a name that no run can give; a metric may be that of one type of spans."""
    if not isinstance(name, str):
        raise UserError(f"{where}: {what} is a name, not {name!r}.")
    kind, colon, part = name.partition(":")
    of_type = bool(colon and part) and kind == "span_f1_strict" and kind in legal
    if name not in legal and not of_type:
        raise UserError(
            f"{where}: {what} {name!r} is none that a run gives.{perhaps(name, legal)} Legal "
            f"are {shortened(legal, 20)}."
        )


def _number(where: str, name: str, value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)  # YAML 1.1 reads 1e-2 as a text
    except (TypeError, ValueError):
        raise UserError(f"{where}: {name} {value!r} is no number.") from None
    if not math.isfinite(number):
        raise UserError(f"{where}: {name} {value!r} is no finite number.")
    return number


def _check_range(where: str, metric: str, value: float, tolerance: float) -> None:
    if tolerance <= 0:
        raise UserError(f"{where}: tolerance must be above 0, not {tolerance:g}.")
    if metric in UNBOUNDED:
        return
    lowest = -1 if metric in CORRELATIONS else 0
    if not lowest <= value <= 1:
        raise UserError(
            f"{where}: {metric} is from {lowest} to 1, not {value:g}: write percents as shares."
        )
    if tolerance > 1:
        raise UserError(f"{where}: tolerance {tolerance:g} of {metric} is above 1: write a share.")
