"""From predictions to decisions: the cheapest label, prediction sets, when to abstain.

Exported models decide with this file too, so it imports no other library.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

Costs = Mapping[str, Mapping[str, float]]
"""The cost of a mistake: gold label, predicted label, cost."""


@dataclass(frozen=True)
class SetRule:
    """The rule of prediction sets (split conformal prediction, Vovk et al. 2005).

    A set holds the classes for which 1 less the probability is at most a quantile of these values
    of gold on other data, which makes the smallest sets (Sadinle, Lei & Wasserman 2019).
    """

    level: float
    """The probability that a set holds the right class."""
    quantile: float

    def members(self, probabilities: Mapping[Any, float]) -> list[Any]:
        """List the classes in the set, the most probable first; it may be empty."""
        scores = {name: set_score(value) for name, value in probabilities.items()}
        names = sorted(scores, key=scores.__getitem__)
        return [name for name in names if scores[name] <= self.quantile + 1e-12]


def set_score(probability: float) -> float:
    """1 less a probability of six digits, as in the prediction files that rules are fitted on."""
    return 1 - round(probability, 6)


@dataclass(frozen=True)
class Decisions:
    """The decisions that `finetune thresholds` saves with a model, for `predict` and `serve`.

    Attributes:
        confidence: The model abstains below this probability.
        costs: The costs of mistakes, whose expectation decides the label.
        sets: The rule of prediction sets.
        distance: The model abstains on texts at a larger distance from the training data.
    """

    confidence: float | None = None
    costs: Costs = field(default_factory=dict)
    sets: SetRule | None = None
    distance: float | None = None

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> Self:
        """Read the decisions that a model was saved with."""
        sets = values.get("sets")
        return cls(**{**values, "sets": sets and SetRule(**sets)})

    def to_dict(self) -> dict[str, Any]:
        """Convert the decisions that are set to JSON values."""
        values = dataclasses.asdict(self)
        return {name: value for name, value in values.items() if value not in (None, {})}

    def apply(self, prediction: Any, distance: float | None = None) -> Any:
        """Apply the decisions to a prediction.

        ``decided`` of the prediction tells them: ``cost``, the expected cost of the label, ``set``,
        ``distance`` with ``ood``, and the answers that are ``withheld``. A blank text has no
        distance and no class.
        """
        if self.costs:
            prediction = _cheapest(prediction, self.costs)
        decided, is_ood = dict(prediction.decided), False
        if self.sets is not None:
            decided["set"] = self.sets.members(prediction.class_probabilities)
        if self.distance is not None:
            rounded = None if distance is None else round(distance, 4)  # equal in every batch
            is_ood = rounded is not None and rounded > self.distance
            decided |= {"distance": rounded, "ood": is_ood}
        prediction = dataclasses.replace(prediction, decided=decided)
        if self.confidence is None and self.distance is None:
            return prediction
        return prediction.abstain(math.inf if is_ood else self.confidence or 0.0)


@dataclass(frozen=True)
class Choice:
    """A choice of `finetune thresholds`: the fields of `finetune.json` that it sets."""

    fields: Mapping[str, Any]
    content: Mapping[str, Any]
    """The JSON output."""
    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    notes: Sequence[str] = ()
    title: str = ""


def _cheapest(prediction: Any, costs: Costs) -> Any:
    # the expectation is over the probabilities of the gold label (Elkan 2001); a blank has none
    if not (probabilities := prediction.class_probabilities):
        return dataclasses.replace(prediction, decided={**prediction.decided, "cost": None})
    expected = {
        name: sum(p * costs[gold][name] for gold, p in probabilities.items())
        for name in probabilities
    }
    label = min(probabilities, key=lambda name: (expected[name], -probabilities[name]))
    decided = {**prediction.decided, "cost": round(expected[label], 6)}
    return dataclasses.replace(prediction, label=label, score=probabilities[label], decided=decided)
