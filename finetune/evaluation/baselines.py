"""What a run must beat to have learnt anything, and the signs that it has not."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from finetune.tasks import Task
from finetune.types import Example, TokenExample

OWN = ("pearson", "micro_f1", "span_f1_conll", "span_f1_strict")
"""Metrics that count where none was asked for, of the tasks in which no one label is an answer to
everything."""
CHANCE = {"pearson": 0.05, "spearman": 0.05, "matthews": 0.05}
"""Up to these a correlation is that of a run that learnt nothing; up to 0 every other score."""


class Baseline(NamedTuple):
    """What always answering the most frequent training label scores."""

    label: str
    metric: str
    share: float

    def __str__(self) -> str:
        return f"always answering {self.label!r}: {self.metric} {self.share:.4f}"


def baselines_of(task: Task, metrics: Mapping[str, Mapping[str, float]]) -> dict[str, Baseline]:
    """By split: the accuracy of always answering the most frequent training label."""
    counts = Counter(name for example in task.read("train") for name in _gold_names(example))
    if not counts:
        return {}
    label = counts.most_common(1)[0][0]
    found = {}
    for split, values in metrics.items():
        name = next((name for name in ("accuracy", "tag_accuracy") if name in values), None)
        if name is None:  # spans have no such answer
            continue
        gold = [name for example in task.read(split) for name in _gold_names(example)]
        share = gold.count(label) / max(1, len(gold))
        found[split] = Baseline(label, name, share)
    return found


def _gold_names(example: Example) -> Sequence[str]:
    """The tags of words, the one label of a text; nothing where there are several, or a number."""
    if isinstance(example, TokenExample):
        return example.tags or ()
    return [example.label] if isinstance(example.label, str) else []


def degenerate(
    folder: Path,
    metrics: Mapping[str, Mapping[str, float]],
    baselines: Mapping[str, Baseline],
    metric: str | None = None,
) -> Iterator[str]:
    """Why a run has learnt nothing worth the name: a score that is no number, the same answer to
    everything, no score above that of the most frequent label, no correlation, no right span.
    ``metric`` is the one asked for."""
    for split, values in metrics.items():
        if bad := [name for name, value in values.items() if not math.isfinite(value)]:
            yield f"{split}: {bad[0]} is no number"
        if (answer := _only_answer(folder / f"predictions.{split}.jsonl")) is not None:
            yield f"{split}: {answer}"
        elif (base := baselines.get(split)) and values[base.metric] <= base.share:
            yield f"{split}: {base.metric} {values[base.metric]:.4f}, not above {base}"
        elif (own := next((name for name in (metric, *OWN) if name in values), None)) and (
            values[own] <= CHANCE.get(own, 0.0)
        ):
            yield f"{split}: {own} {values[own]:.4f} is that of no learning"


def _only_answer(path: Path) -> str | None:
    """What all answers of a file of predictions are, where there are several and all are alike."""
    answers = set()
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    for line in lines:
        record = json.loads(line)
        if "tags" in record:
            answers |= set(record["tags"])
        elif "label" in record:
            answers.add(json.dumps(record["label"], ensure_ascii=False))
        else:
            answers |= {"span" for _ in record["spans"]}
        if len(answers) > 1 or "span" in answers:
            return None
    if not answers:
        return "no spans at all" if lines else None
    return f"every answer is {answers.pop()}" if len(lines) > 1 else None
