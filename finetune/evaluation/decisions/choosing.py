"""Choose the decisions of a model on the predictions of its run, for one goal."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from finetune.config.options import Help
from finetune.config.tasks import flag
from finetune.data import DataError
from finetune.evaluation.decisions import Choice
from finetune.evaluation.decisions.abstaining import choose_confidence
from finetune.evaluation.decisions.costs import choose_costs
from finetune.evaluation.decisions.label_thresholds import Goal, choose_thresholds
from finetune.evaluation.decisions.sets import choose_sets
from finetune.evaluation.predictions import GoldSource, align_runs
from finetune.evaluation.runs import RunFolder
from finetune.evaluation.tables import PredictionType, Tables
from finetune.types import UserError

_LEAST = 1e-6
"""The least share of a goal, whose data a disk may hold."""
_REPLACED = {"thresholds", "confidence", "costs"}
"""The rules that decide the answers of a model: a new one replaces the others."""


@dataclass(frozen=True, kw_only=True)
class DecisionGoal(Goal):
    """The goal of a decision."""

    risk: float | None = None
    """Abstain below a confidence threshold chosen so that at most this fraction of the remaining
    answers is wrong. This holds with probability 0.95 on new data from the same distribution."""
    coverage: float | None = None
    """Abstain below the confidence threshold that keeps this fraction of the answers."""
    sets: Annotated[float | None, Help("LEVEL")] = None
    """Predict sets of labels that contain the right one with this probability (conformal
    prediction)."""
    ood: Annotated[float | None, Help("RATE")] = None
    """Abstain on out-of-distribution texts, with this false positive rate on validation data."""
    costs: Annotated[str | None, Help("FILE")] = None
    """File of the costs of mistakes: predict the label with the least expected cost. It is a table
    with the column gold and a column for each predicted label."""

    @property
    def goals(self) -> list[str]:
        """The options of the goals that are given; a call has one of them."""
        names = [field.name for field in fields(DecisionGoal)]
        return [flag(name) for name in names if getattr(self, name) is not None]

    def check(self) -> None:
        """Raise UserError for several goals, and for values that are not legal."""
        if len(self.goals) > 1:
            raise UserError(f"{self.goals[0]} and {self.goals[1]}: give one goal.")
        for name in ("precision", "recall", "risk", "coverage", "sets", "ood"):
            value = getattr(self, name)
            most = 1.0 if name in ("precision", "recall", "coverage") else 1 - _LEAST
            if value is not None and not _LEAST <= value <= most:
                raise UserError(f"--{name} must be from {_LEAST:g} to {most:.7g}, not {value:g}.")

    def choose(self, run: RunFolder, split: str, type: PredictionType, state: Any) -> Choice:
        """Choose on the predictions of a split; ``state`` is the state of the model's task."""
        of_answers = self.risk is not None or self.coverage is not None
        of_labels = not (of_answers or self.costs is not None or self.sets is not None)
        if not type.wording.confidence:
            raise UserError(
                f"{run.path}: the model predicts {type.wording.predicted}, which have no "
                "probabilities: only a model with probabilities can abstain or has thresholds, as "
                "one of labels, tags, spans, relations, choices or answers."
            )
        if of_labels and not chooses_labels(type, state):
            raise UserError(
                f"{run.path}: --metric, --precision and --recall are for the positive one of two "
                "labels and for each of several labels of texts; `ner` (--calibrate one) and `qa` "
                "choose a threshold in training. Give --risk or --coverage to abstain, or --costs."
            )
        source = GoldSource(positive=state.positive if of_labels else None)
        runs = dict[str, Tables]()  # of the split, and of test for comparison
        for name in filter(run.splits.__contains__, dict.fromkeys((split, "test"))):
            tolerated = () if name == split else (DataError,)  # test may lack labels
            with contextlib.suppress(*tolerated):
                runs[name] = align_runs([run.predictions(name)], source)[0]
        if split not in runs:
            raise UserError(
                f"{run.path}: no predictions.{split}.jsonl with gold to choose on: give "
                "the folder of a run with validation data, or --split."
            )
        if self.costs is not None:
            return choose_costs(self.costs, list(state.labels), type, runs)
        if self.sets is not None:
            return choose_sets(runs, split, self.sets)
        if of_answers:
            chose_epoch = split == "validation" and run.config.get("validation") != "none"
            return choose_confidence(runs, split, self.risk, self.coverage, chose_epoch)
        of_model = list(state.labels), state.positive, state.threshold
        return choose_thresholds(runs, split, *of_model, self, folder=str(run.path))


def chooses_labels(type: PredictionType, state: Any) -> bool:
    """Whether the positive one of two labels, or each of several labels, has a threshold."""
    is_text = type.classes is not None and type.classes.column == "label"
    return is_text and bool(state.threshold_labels)


def fields_with(
    choice: Choice | None, decisions: Mapping[str, Any], has_thresholds: bool
) -> dict[str, Any]:
    """Combine a choice with the ``decisions`` of earlier calls; None removes all of them.

    Returns:
        The fields of the task's state that change.
    """
    chosen = {} if choice is None else dict(choice.fields)
    is_replaced = choice is None or bool(_REPLACED & chosen.keys())
    removed = decisions.keys() if choice is None else _REPLACED if is_replaced else ()
    kept = {name: value for name, value in decisions.items() if name not in removed}
    thresholds = chosen.pop("thresholds", {})
    changed = {"thresholds": thresholds} if has_thresholds and is_replaced else {}
    return {**changed, "decisions": kept | chosen}
