"""The scores that a recipe expects: legal metrics and splits, and their checks."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from finetune.config.description import PROBLEMS
from finetune.config.metric_properties import can_select, properties_of
from finetune.config.values import typed_values
from finetune.types import UserError, abbreviated, did_you_mean

if TYPE_CHECKING:
    from finetune.config.tasks import TrainConfig

SCORED_SPLITS = tuple(
    f"{split}{suffix}"
    for split in ("validation", "test")
    for suffix in ("", "_matched", "_mismatched")
)
"""The usual names of scored splits; ``is_split`` knows all."""
EXPECTED_STATISTICS = ("mean", "median")
"""The statistics over seeds that an expected score can be."""
EXAMPLE = "`- {split: test, metric: accuracy, value: 0.9, tolerance: 0.01, source: a paper}`"
"""An entry under ``expected`` of a recipe, for messages."""


def is_split(name: str) -> bool:
    """Whether a split can be scored: ``validation``, ``test``, or a test set by its name.

    >>> is_split("test_matched"), is_split("test_de"), is_split("train")
    (True, True, False)
    """
    return name in SCORED_SPLITS or re.fullmatch(r"test_\w[\w-]*", name) is not None


@dataclass(frozen=True, slots=True)
class Expected:
    """A score that the recipe reaches: ``value`` within ``tolerance``, according to ``source``."""

    split: str
    metric: str
    value: float
    tolerance: float
    source: str
    source_checked: bool = True
    statistic: str = "mean"
    """Statistic over several seeds that ``value`` is: one of EXPECTED_STATISTICS."""

    @property
    def cited(self) -> str:
        """The source, with a warning if it has not been checked."""
        return self.source if self.source_checked else f"{self.source}; source not checked"

    @property
    def claimed(self) -> str:
        """Statistic, value and tolerance as text, such as ``median 0.9 ± 0.01``."""
        named = "" if self.statistic == "mean" else f"{self.statistic} "
        return f"{named}{self.value:g} ± {self.tolerance:g}"


def metrics_of(task: str) -> tuple[str, ...]:
    """List the metrics of a task; `ner` also has ``span_f1_strict:TYPE``."""
    from finetune.config.tasks import CONFIGS  # which need no scores

    return CONFIGS[task].description.metrics


def require_metric(task: str, config: TrainConfig) -> None:
    """Raise UserError if the metric that selects the best model is none of the task.

    Training knows more: the labels of the data decide which of these metrics exist.
    """
    if config.metric is None:
        return
    custom = [setting.rpartition(":")[2] for setting in config.custom_metrics]
    selecting = [*filter(can_select, metrics_of(task)), *custom]
    # of a level of labels, accuracy_level:1 is accuracy
    name = config.metric.partition(":")[0].removesuffix("_level")
    legal = [*metrics_of(task), *custom]
    if name not in legal or not can_select(name):
        problem = "cannot select a model" if name in legal else f"not a metric of {task}"
        raise UserError(
            f"--metric {config.metric}: {problem}.{did_you_mean(config.metric, selecting)} Legal "
            f"are {abbreviated(selecting, 30)}."
        )


def read_expected(where: str, task: str, problem: Any, entry: Any) -> Expected:
    """Check an entry under `expected` of a recipe, for a task and its setting `problem`.

    ``where`` is the file and line, for messages.
    """
    fields = dataclasses.fields(Expected)
    needed = [field.name for field in fields if field.default is dataclasses.MISSING]
    names = {field.name for field in fields}
    if not isinstance(entry, dict) or not {*needed} <= {*entry} <= names:
        raise UserError(
            f"{where}: each entry under `expected` has the keys {', '.join(needed)} (and perhaps "
            f"source_checked: false, statistic: median), such as {EXAMPLE}, not {entry!r:.60}."
        )
    values = typed_values(where, "key {!r}", get_type_hints(Expected), entry)
    of_problem = PROBLEMS.get(problem) if isinstance(problem, str) else None
    for name, known in (
        ("split", SCORED_SPLITS),
        ("metric", of_problem or metrics_of(task)),
        ("statistic", EXPECTED_STATISTICS),
    ):
        value = values.get(name, "mean")
        of_type = "span_f1_strict" in known and re.fullmatch("span_f1_strict:.+", value)
        of_test_set = name == "split" and is_split(value)
        if value not in known and not of_type and not of_test_set:
            raise UserError(
                f"{where}: unknown {name} {value!r}.{did_you_mean(value, known)} Legal are "
                f"{abbreviated(known, 20)}."
            )
    expected = Expected(**values)
    if not expected.tolerance > 0:
        raise UserError(f"{where}: tolerance must be above 0, not {expected.tolerance:g}.")
    limits = properties_of(expected.metric)
    if not limits.lowest <= expected.value <= limits.highest:
        raise UserError(
            f"{where}: {expected.metric} must be from {limits.lowest:g} to {limits.highest:g}, not "
            f"{expected.value:g}: write 0.9 for 90 %."
        )
    return expected
