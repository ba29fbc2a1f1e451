"""From predictions to decisions: the cheapest label, prediction sets, when to abstain.

Exported models decide with this file too, so it imports only numpy.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from finetune.types import UserError

Costs = Mapping[str, Mapping[str, float]]
"""The cost of a mistake: gold label, predicted label, cost."""


@dataclass(frozen=True)
class SetRule:
    """The rule of prediction sets (split conformal prediction, Vovk et al. 2005).

    A set holds the classes whose score is at most a quantile of the scores of gold on other data.
    ``probability`` scores a class by 1 - p (Sadinle, Lei & Wasserman 2019), which makes the
    smallest sets; ``cumulative`` by the sum of all probabilities that are not below its own, whose
    sets adapt to the difficulty of a text (Romano, Sesia & Candès 2020); ``randomized`` leaves out
    a random share of the probability of the class, which makes these sets smaller.
    """

    scores: str
    level: float
    """The probability that a set holds the right class."""
    quantiles: Mapping[str, float]
    """The quantile of each class; the key is empty if all classes share one."""
    salt: str = ""
    """What the random share of a text depends on besides the text."""

    def members(self, probabilities: Mapping[Any, float], texts: Sequence[str]) -> list[Any]:
        """List the classes in the set, the most probable first; it may be empty."""
        scores = set_scores(probabilities, self.scores, texts, self.salt)
        shared = self.quantiles.get("", math.inf)
        return [
            name
            for name, score in scores.items()
            if score <= self.quantiles.get(str(name), shared) + 1e-12
        ]


def set_scores(
    probabilities: Mapping[Any, float], how: str, texts: Sequence[str], salt: str
) -> dict[Any, float]:
    """Compute the score of each class, the most probable first, which has the lowest score.

    Rules are fitted on prediction files, so probabilities have the six digits of these. The random
    share follows from the texts of the example, so that no set depends on other examples.
    """
    rounded = {name: round(value, 6) for name, value in probabilities.items()}
    names = sorted(rounded, key=lambda name: -rounded[name])
    values = np.array([rounded[name] for name in names])
    scores = 1 - values if how == "probability" else np.cumsum(values)
    if how == "randomized":
        content = json.dumps([salt, *texts]).encode()
        digest = hashlib.blake2b(content, digest_size=8).digest()
        scores -= int.from_bytes(digest, "big") / 2**64 * values
    return dict(zip(names, scores.tolist(), strict=True))


@dataclass(frozen=True)
class Decisions:
    """The decisions that `finetune thresholds` saves with a model, for `predict` and `serve`.

    Attributes:
        confidence: The model abstains below this probability: a number, or one for each label.
        costs: The costs of mistakes, whose expectation decides the label.
        sets: The rule of prediction sets.
        distance: The model abstains on texts at a larger distance from the training data.
    """

    confidence: float | Mapping[str, float] | None = None
    costs: Costs = field(default_factory=dict)
    sets: SetRule | None = None
    distance: float | None = None

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> Self:
        """Read the decisions that a model was saved with; UserError if they are damaged."""
        try:
            sets = values.get("sets")
            return cls(**{**values, "sets": None if sets is None else SetRule(**sets)})
        except TypeError as error:
            raise UserError(f"its decisions are damaged ({error}).") from error

    def to_dict(self) -> dict[str, Any]:
        """Convert the decisions that are set to JSON values."""
        values = dataclasses.asdict(self)
        return {name: value for name, value in values.items() if value not in (None, {})}

    def apply(self, prediction: Any, example: Any, distance: float | None = None) -> Any:
        """Apply the decisions to the prediction for an example.

        ``decided`` of the prediction tells them: ``cost``, the expected cost of the label, ``set``,
        ``distance`` with ``ood``, and the answers that are ``withheld``. A blank text has no
        distance and no class.
        """
        if self.costs:
            prediction = _cheapest(prediction, self.costs)
        decided, is_ood = dict(prediction.decided), False
        if self.sets is not None:
            decided["set"] = self.sets.members(prediction.class_probabilities, example.texts())
        if self.distance is not None:
            rounded = None if distance is None else round(distance, 4)  # equal in every batch
            is_ood = rounded is not None and rounded > self.distance
            decided |= {"distance": rounded, "ood": is_ood}
        prediction = dataclasses.replace(prediction, decided=decided)
        if self.confidence is None and self.distance is None:
            return prediction
        least = below(math.inf if is_ood else self.confidence or 0.0)
        return prediction.abstain(least)


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


def below(confidence: float | Mapping[str, float]) -> Callable[[str], float]:
    """Make a function from a label to the lowest probability at which it is predicted."""
    if isinstance(confidence, Mapping):
        return lambda name: confidence.get(name, 0.0)
    return lambda _: confidence
