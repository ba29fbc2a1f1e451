"""Names of labels: one spelling of names that differ only in case, and of the labels of NLI."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from finetune.data.dataset import Dataset
from finetune.data.labels import majority, renamed_votes, voted_names
from finetune.types import TextExample, abbreviated

NLI_LABELS = ("entailment", "neutral", "contradiction")
"""The three classes in the order of our models."""

ALIASES = {
    **dict.fromkeys(("entailment", "entails", "entailed", "e"), "entailment"),
    **dict.fromkeys(("neutral", "n"), "neutral"),
    **dict.fromkeys(("contradiction", "contradicts", "contradictory", "c"), "contradiction"),
    **dict.fromkeys(("not_entailment", "not-entailment", "not entailment"), "not_entailment"),
}
"""Other spellings of the NLI labels, in lower case."""

_TAG = re.compile(r"([BI]-)(.+)", re.DOTALL)


def variants(labels: Iterable[str]) -> list[list[str]]:
    """Return the groups of labels that differ only in case, blanks or invisible characters."""
    groups = defaultdict(list)
    for name in sorted({*labels}):
        plain = unicodedata.normalize("NFKC", name).casefold()
        visible = "".join(c for c in plain if unicodedata.category(c) != "Cf")
        groups[" ".join(visible.split())].append(name)
    return [names for names in groups.values() if len(names) > 1]


def folded(data: Dataset) -> Dataset:
    """Return the data with one spelling of labels that differ only in case, and a note on them.

    The spelling is the most frequent one. ``data`` has texts with names as labels, or words with
    tags or spans.
    """
    counts = Counter(
        _type(name) if tagged else name
        for rows in data.splits.values()
        for tagged in [rows.are_words and rows[0].spans is None]
        for names in rows.golds()
        for name in names or ()
    )
    counts.update(dict.fromkeys(voted_names(data.splits.values()), 0))
    mapping = {
        name: max(names, key=lambda each: (counts[each], each))
        for names in variants(counts)
        for name in names
    }
    if not mapping:
        return data
    note = f"--labels-case fold: one spelling each of {abbreviated(sorted({*mapping.values()}))}"
    renamed = _renamed(data, mapping, note)
    return renamed.with_splits(renamed.splits)


def _renamed(data: Dataset, mapping: Mapping[str, str], note: str) -> Dataset:
    """Return the data with other names of labels, a note, and the fingerprint as it was."""
    splits = {
        split: rows.map(lambda _, row: with_names(row, mapping))
        for split, rows in data.splits.items()
    }
    order = tuple(dict.fromkeys(_mapped(name, mapping) for name in data.label_order))
    return replace(data, splits=splits, notes=[*data.notes, note], label_order=order)


def _type(tag: str) -> str:
    """Return the type of a BIO tag, any other label as it is."""
    match = _TAG.fullmatch(tag)
    return match[2] if match else tag


def _mapped(name: str, mapping: Mapping[str, str]) -> str:
    """Return the new name of a label; of a BIO tag with its prefix."""
    match = _TAG.fullmatch(name)
    if match and name not in mapping:
        return match[1] + mapping.get(match[2], match[2])
    return mapping.get(name, name)


def with_names(row: Any, mapping: Mapping[str, str]) -> Any:
    """Return an example with other names of its labels."""
    if isinstance(row, TextExample):
        label = row.label
        if (votes := renamed_votes(row.votes, mapping)) is not None:
            return replace(row, label=majority(votes), votes=votes)
        if isinstance(label, tuple):
            return replace(row, label=tuple(dict.fromkeys(mapping.get(n, n) for n in label)))
        return replace(row, label=mapping.get(label, label)) if isinstance(label, str) else row

    def spans(old: Any) -> Any:
        return old and tuple(s._replace(label=mapping.get(s.label, s.label)) for s in old)

    relations = row.relations and tuple(
        r._replace(label=mapping.get(r.label, r.label)) for r in row.relations
    )
    tags = row.tags and tuple(_mapped(tag, mapping) for tag in row.tags)
    return replace(
        row,
        tags=tags,
        spans=spans(row.spans),
        unreachable=spans(row.unreachable),
        relations=relations,
    )


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
    renamed = sorted(name for name, standard in mapped.items() if name != standard)
    listed = ", ".join(f"{name!r} is {mapped[name]}" for name in renamed)
    return _renamed(data, mapped, f"labels mapped by name: {listed}")
