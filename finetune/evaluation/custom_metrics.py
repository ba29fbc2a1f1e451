"""Custom metrics: any function of gold and predictions."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finetune.evaluation.prediction_types import is_built_in
from finetune.evaluation.tables import Tables
from finetune.types import CustomFunctionError, UserError


@dataclass(frozen=True)
class CustomMetric:
    """A custom metric: ``function(gold, predicted) -> number`` over lists of examples.

    Args:
        function: The function. Both lists hold labels, tuples of labels, numbers, tags of words, or
            tuples of ``Span``, by the task. It is None if the model abstained.
        lower_is_better: Whether lower values are better.
        probabilities: Whether ``predicted`` holds the probability of each label by name.
        name: The name in messages; of a registered metric, the one that it was registered by.

    Examples:
        >>> def cost(gold, predicted):
        ...     return sum(g != p for g, p in zip(gold, predicted)) / len(gold)
        >>> CustomMetric(cost, lower_is_better=True)(["a", "b"], ["a", "a"])
        0.5
    """

    function: Callable[[list[Any], list[Any]], float]
    lower_is_better: bool = False
    probabilities: bool = False
    name: str = ""

    def sides(self, tables: Tables) -> tuple[Sequence[Any], Sequence[Any]]:
        """Gold and predictions of a run, as the function takes them."""
        if not self.probabilities:
            answers, abstained = tables.predicted, tables.items.abstained
            if tables.type.in_words and abstained.any():
                answers = [tuple(tag or None for tag in tags) for tags in answers]
            elif abstained.any():
                pairs = zip(answers, abstained, strict=True)
                answers = [None if left_out else answer for answer, left_out in pairs]
            return tables.gold, answers
        if len(probabilities := tables.all_probabilities) < len(tables):
            raise UserError(
                "a custom metric of probabilities needs predictions of labels of texts."
            )
        return tables.gold, list(map(dict, probabilities))

    def __call__(self, gold: Sequence[Any], predicted: Sequence[Any]) -> float:
        """Compute the score.

        Raises:
            CustomFunctionError: The function raised an error.
            UserError: It did not return a finite number.
        """
        name = self.name or getattr(self.function, "__qualname__", repr(self.function))
        try:
            value = self.function(list(gold), list(predicted))
        except (Exception, SystemExit) as error:
            raise CustomFunctionError(f"the metric {name} raised {type(error).__name__}") from error
        try:
            number = float(value)
        except (OverflowError, TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise UserError(f"the metric {name} returned {value!r:.60}: return a finite number.")
        return number


def load_metric(setting: str) -> tuple[str, CustomMetric]:
    """Load the metric that `FILE.py:NAME` names, a function or a ``CustomMetric``, with its name.

    The file is executed.
    """
    name, function = load_function(setting, "metric")
    return name, _named(function, setting)


def load_function(setting: str, use: str) -> tuple[str, Callable[..., Any]]:
    """Load the function that `FILE.py:NAME` names, with its name; ``use`` is its use.

    The file is executed.
    """
    path, _, name = setting.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise UserError(f"a custom {use} must be FILE.py:FUNCTION, not {setting!r}.")
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file, for the {use} {name}.")
    spec = importlib.util.spec_from_file_location(f"custom_{use}_{Path(path).stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise CustomFunctionError(f"{path} raised {type(error).__name__}") from error
    function = vars(module).get(name)
    if not callable(function):
        raise UserError(f"{path}: there is no function {name!r} in it.")
    return name, function


def _named(function: Callable[..., Any], name: str) -> CustomMetric:
    metric = function if isinstance(function, CustomMetric) else CustomMetric(function)
    return replace(metric, name=name)


def custom_metrics(
    settings: Sequence[str], functions: Mapping[str, Callable[..., Any]]
) -> dict[str, CustomMetric]:
    """Load the custom metrics that settings and callers name."""
    if not isinstance(functions, Mapping) or not all(map(callable, functions.values())):
        raise UserError(
            "metrics must be a dict of functions or finetune.CustomMetric by name, not "
            f"{functions!r:.60}."
        )
    metrics = dict(map(load_metric, settings)) | {n: _named(f, n) for n, f in functions.items()}
    for name in metrics:
        if is_built_in(name) or ":" in name:
            raise UserError(
                f"the custom metric {name!r} needs another name: a built-in metric has it."
            )
    return metrics
