"""Baselines that read no text, and checks for degenerate runs and optimistic scores."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from finetune.config.metric_properties import properties_of
from finetune.data.examples import Examples
from finetune.evaluation.prediction_types import DEFAULT_METRICS, KEYS, TYPES, is_built_in
from finetune.types import UNANSWERABLE, ChoiceQuestion, Example

SELECTING_METRICS = (
    *("spearman_all", "ranking_accuracy", "exact_match"),
    *(metric for metric in DEFAULT_METRICS.values() if metric != "accuracy"),
)
"""The metrics of tasks in which no single label is a prediction for every example."""


class Baseline(NamedTuple):
    """The score of a rule that reads no text: the fraction of gold that it gets right.

    The rule is to predict always ``label``, the most frequent one in training, unless ``other``
    names another rule.
    """

    label: str
    metric: str
    share: float
    other: str = ""

    @property
    def rule(self) -> str:
        """The rule in words."""
        return self.other or f"always predicting {self.label!r}"

    def __str__(self) -> str:
        return f"{self.rule}: {self.metric} {self.share:.4f}"


def baselines_of(
    splits: Mapping[str, Sequence[Example]], metrics: Mapping[str, Mapping[str, float]]
) -> dict[str, Baseline]:
    """Compute the accuracy of the rule that reads no text, by split.

    It predicts the most frequent label of training; of choices, a random one.
    """
    train, baselines = Examples.of(splits["train"]), dict[str, Baseline]()
    of_choices = train.example_type is ChoiceQuestion
    counts = Counter() if of_choices else Counter(_gold_names(train))
    for split, values in metrics.items():
        metric = next((name for name in ("accuracy", "tag_accuracy") if name in values), None)
        if metric is None or split not in splits:
            continue
        if of_choices:
            questions: Sequence[Any] = splits[split]
            chances = [1 / len(e.choices) for e in questions if e.label is not None]
            chance = sum(chances) / max(1, len(chances))
            baselines[split] = Baseline("", metric, chance, "choosing at random")
        elif counts:
            label, gold = counts.most_common(1)[0][0], list(_gold_names(splits[split]))
            baselines[split] = Baseline(label, metric, gold.count(label) / max(1, len(gold)))
    return baselines


def selection_note(metrics: Mapping[str, object], validation: str) -> str:
    """Say that the split of the scores also selected the model; empty if test has scores."""
    splits = {split.split("_")[0] for split in metrics}
    if validation == "none" or "test" in splits or "validation" not in splits:
        return ""
    return (
        "The score is from the validation split, which also selected the model, so it is too high "
        "on average: give a test split."
    )


def _gold_names(examples: Sequence[Example]) -> Iterator[str]:
    if not examples:
        return
    rows = Examples.of(examples)
    if rows.are_words:
        yield from chain.from_iterable(filter(None, rows.column("tags")))
    else:
        yield from (label for label in rows.column("label") if isinstance(label, str))


def degenerate(
    folder: Path,
    metrics: Mapping[str, Mapping[str, float]],
    baselines: Mapping[str, Baseline],
    metric: str | None = None,
) -> Iterator[str]:
    """Yield the reasons why a run is degenerate.

    A run is degenerate if a score is not finite, if all predictions are equal, or if its score is
    not above the majority-class baseline. ``metric`` comes from the configuration.
    """
    for split, values in metrics.items():
        if bad := [name for name, value in values.items() if not math.isfinite(value)]:
            yield f"{split}: {bad[0]} is not finite"
        same = _only_prediction(folder / f"predictions.{split}.jsonl")
        has_chance = is_built_in((metric or "").partition(":")[0])
        names = (metric if has_chance else None, *SELECTING_METRICS)
        selecting = next((name for name in names if name in values), None)
        if same is not None:
            yield f"{split}: {same}"
        elif (base := baselines.get(split)) and values[base.metric] <= base.share:
            yield f"{split}: {base.metric} {values[base.metric]:.4f}, not above {base}"
        elif selecting and values[selecting] <= properties_of(selecting).chance:
            yield f"{split}: {selecting} {values[selecting]:.4f} is at chance level"


def _only_prediction(path: Path) -> str | None:
    if not path.is_file():
        return None
    values, size, key = set[str](), 0, ""
    with path.open(encoding="utf-8", newline="\n") as lines:
        for row in map(json.loads, lines):
            size += 1
            if not (key := next(filter(row.__contains__, KEYS), "")):
                return None
            answer = UNANSWERABLE if row[key] == "" else row[key]
            # a list of labels is one answer, other lists are several
            several = answer if isinstance(answer, list) and key != "label" else [answer]
            if any(isinstance(value, dict) for value in several):  # spans may be few
                return None
            values |= {json.dumps(value, ensure_ascii=False) for value in several}
            if len(values) > 1:
                return None
    if not values:
        return f"no {TYPES[KEYS[key]].wording.predicted} at all" if key else None
    return f"every prediction is {values.pop()}" if size > 1 else None
