"""Names of NLI labels in one spelling and one order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import chain

from finetune.data.dataset import Dataset
from finetune.data.label_names import with_names
from finetune.data.votes import voted_names

NLI_LABELS = ("entailment", "neutral", "contradiction")
"""The three classes in the order of our models."""

ALIASES = {
    **dict.fromkeys(("entailment", "entails", "entailed", "e"), "entailment"),
    **dict.fromkeys(("neutral", "n"), "neutral"),
    **dict.fromkeys(("contradiction", "contradicts", "contradictory", "c"), "contradiction"),
    **dict.fromkeys(("not_entailment", "not-entailment", "not entailment"), "not_entailment"),
}
"""Other spellings of the NLI labels, in lower case."""


def canonical_name(name: str) -> str:
    """Return an NLI label in its usual spelling, any other name unchanged."""
    return ALIASES.get(name.strip().lower(), name)


def canonical_names(names: Iterable[str]) -> list[str]:
    """Return the names in their usual spelling if all are NLI labels, else unchanged."""
    names = list(names)
    if all(name.strip().lower() in ALIASES for name in names):
        return [canonical_name(name) for name in names]
    return names


def with_standard_names(data: Dataset) -> Dataset:
    """Rename the labels if all of them are NLI labels, with a note."""
    every = chain.from_iterable(rows.column("label") for rows in data.splits.values())
    names = {label for label in every if isinstance(label, str)}
    names |= voted_names(data.splits.values())
    mapped = dict(zip(names, canonical_names(names), strict=True))
    if all(name == standard for name, standard in mapped.items()):
        return data
    splits = {
        split: rows.map(lambda _, row: with_names(row, mapped))
        for split, rows in data.splits.items()
    }
    renamed = sorted(name for name, standard in mapped.items() if name != standard)
    listed = ", ".join(f"{name!r} is {mapped[name]}" for name in renamed)
    notes = [*data.notes, f"labels mapped by name: {listed}"]
    order = tuple(mapped.get(name, name) for name in data.label_order)
    return dataclasses.replace(data, splits=splits, notes=notes, label_order=order)
