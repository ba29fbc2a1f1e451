"""Labels of whole texts: one form for all rows, class weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from finetune.data import Dataset
from finetune.data.example_store import chosen, column, relabeled
from finetune.types import TextExample, UserError, did_you_mean, quantity


def labeled(data: Dataset) -> Dataset:
    """Drop training and validation rows without a label; keep test splits without any."""
    splits, notes = dict[str, Sequence[TextExample]](), list(data.notes)
    for split, examples in data.splits.items():
        kept = examples
        if any(label is None for label in column(examples, "label")):
            kept = chosen(examples, (label is not None for label in column(examples, "label")))
        if kept and len(kept) < len(examples):
            rows = quantity(len(examples) - len(kept), "row")
            notes.append(f"{rows} of {split} without label dropped")
        kept = kept or (examples if split.startswith("test") else [])
        if not kept:
            raise UserError(f"{data.name}: no row of {split} has a label: --columns label=?")
        splits[split] = kept
    return replace(data, splits=splits, notes=notes)


def in_one_form(data: Dataset, problem: str) -> Dataset:
    """Drop training and validation rows without a label, and convert the labels for the problem."""
    data = labeled(data)
    notes = list(data.notes)
    splits = {
        split: relabeled(rows, lambda example: with_problem(example, problem).label)
        for split, rows in data.splits.items()
    }
    given = column(data.splits.get("train", ()), "label")
    if problem == "multi" and not any(isinstance(label, tuple) for label in given):
        notes.append(
            "each row has one label; write several as a list in JSON Lines or Parquet, as in "
            '"label": ["a", "b"]'
        )
    return replace(data, splits=splits, notes=notes)


def with_problem(example: TextExample, problem: str) -> TextExample:
    """Convert the label for the problem; raise UserError if that is impossible."""
    label = example.label
    if label is None:
        return example
    if problem == "regression":
        return replace(example, label=_number(example))
    if problem == "multi":
        return example if isinstance(label, tuple) else replace(example, label=(_name(label),))
    if isinstance(label, tuple):
        raise UserError(
            f"{example.where}: the label is a list {list(label)!r} in place of one label: "
            "write --problem multi, or correct the row."
        )
    return example if isinstance(label, str) else replace(example, label=_name(label))


def _name(label: object) -> str:
    return f"{label:g}" if isinstance(label, float) else str(label)


def _number(example: TextExample) -> float:
    with contextlib.suppress(TypeError, ValueError):
        if math.isfinite(number := float(example.label)):  # type: ignore[arg-type]
            return number
    raise UserError(
        f"{example.where}: label {example.label!r} is not a number, as regression needs: "
        "correct the row, or write --problem single."
    )


def class_weights(
    setting: str, labels: Sequence[str], counts: Mapping[str, int], num_rows: int, problem: str
) -> list[float] | None:
    """Return the class weights: None, inverse frequency (``auto``), or the given (`a=1,b=2`).

    ``auto`` is n / (C n_c), so that every class weighs the same in total (King & Zeng, 2001, as
    scikit-learn's ``balanced``); with several labels it is negatives / positives of each label.
    """
    if setting == "none":
        return None
    if setting == "auto" and problem == "multi":
        return [max(num_rows - counts[name], 0.5) / counts[name] for name in labels]
    if setting == "auto":
        each = sum(counts.values()) / sum(counts[name] > 0 for name in labels)
        return [each / counts[name] if counts[name] else 1.0 for name in labels]
    given: dict[str, float] = {}
    for item in setting.split(","):
        name, _, value = item.rpartition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = math.nan
        if not 0 <= weight < math.inf:
            raise UserError(
                f"--class-weights {setting!r}: {item!r} is not LABEL=NUMBER (0 or more); write "
                f"none, auto or for instance {labels[0]}=1,{labels[-1]}=2."
            )
        if (name := name.strip()) not in labels:
            raise UserError(
                f"--class-weights: no label {name!r}; legal are {', '.join(labels)}."
                f"{did_you_mean(name, labels)}"
            )
        given[name] = weight
    return [given.get(name, 1.0) for name in labels]
