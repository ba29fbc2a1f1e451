"""Other names for labels: one spelling for names that differ in case only, and a file of names."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from finetune.data.dataset import DataError, Dataset
from finetune.data.files import ReadOptions
from finetune.data.formats import open_data, read_file
from finetune.data.json_files import parse_json
from finetune.data.votes import majority, renamed_votes, voted_names
from finetune.types import TextExample, TokenExample, abbreviated, quantity

_TAG = re.compile(r"([BI]-)(.+)", re.DOTALL)
_LEGAL = (
    'write a JSON object {"label": "new name"}, or a CSV or TSV table with the columns label and '
    "name"
)
NAME, MEANING = "label", "name"
"""Columns of a file of names in a table."""


def variants(labels: Iterable[str]) -> list[list[str]]:
    """Return the groups of labels that differ only in case, blanks or invisible characters."""
    groups = defaultdict(list)
    for name in sorted({*labels}):
        plain = unicodedata.normalize("NFKC", name).casefold()
        visible = "".join(c for c in plain if unicodedata.category(c) != "Cf")
        groups[" ".join(visible.split())].append(name)
    return [names for names in groups.values() if len(names) > 1]


def renamed(data: Dataset, *, fold: bool, map_file: str | None) -> Dataset:
    """Return the data with other names of labels, and notes on them.

    Args:
        data: Texts with names as labels, or words with tags or spans.
        fold: Give labels that differ only in case the most frequent of their spellings.
        map_file: A file with the new names of labels (``read_label_map``); others stay as they are.

    Raises:
        DataError: If the file cannot be read, or has no label of the data.
    """
    mapping: dict[str, str] = {}
    notes = []
    counts = Counter(
        _type(name) if tagged else name
        for rows in data.splits.values()
        for tagged in [any(isinstance(r, TokenExample) and r.spans is None for r in rows[:1])]
        for names in rows.golds()
        for name in names or ()
    )
    counts.update(dict.fromkeys(voted_names(data.splits.values()), 0))
    if map_file is not None:
        mapping = {name: new for name, new in read_label_map(map_file).items() if name in counts}
        if not mapping:
            raise DataError(
                f"--label-map {map_file}: none of its labels is one of the data "
                f"({abbreviated(sorted(counts))}): write the labels of the data on the left."
            )
        number = sum(counts[name] for name in mapping)
        notes.append(f"--label-map: renamed {quantity(len(mapping), 'label')}, {number:,} times")
    if fold:
        after: Counter[str] = Counter()
        for name, count in counts.items():
            after[mapping.get(name, name)] += count
        spelled = {
            name: max(names, key=lambda each: (after[each], each))
            for names in variants(after)
            for name in names
        }
        mapping = {name: spelled.get(new := mapping.get(name, name), new) for name in counts}
        if folded := sorted({*spelled.values()}):
            notes.append(f"--labels-case fold: one spelling each of {abbreviated(folded)}")
    if not any(name != new for name, new in mapping.items()):
        return replace(data, notes=[*data.notes, *notes])
    splits = {
        split: rows.map(lambda _, row: with_names(row, mapping))
        for split, rows in data.splits.items()
    }
    order = tuple(dict.fromkeys(_mapped(name, mapping) for name in data.label_order))
    return replace(data.with_splits(splits), notes=[*data.notes, *notes], label_order=order)


def read_label_map(path: str) -> dict[str, str]:
    """Read the new names of labels: a JSON object, or a table with the columns label and name."""
    file = open_data(path)
    pairs: list[tuple[Any, ...]]
    if Path(path).suffix.lower() == ".json":
        content = parse_json("\n".join(line.text for line in file), path, f": {_LEGAL}.")
        pairs = list(content.items()) if isinstance(content, dict) else []
    else:
        if file.format in ("txt", "unknown"):
            file.format = "tsv"
        table = read_file(file, ReadOptions(header_names=frozenset({NAME, MEANING})))
        if table.sentences:
            raise DataError(f"--label-map {path}: {_LEGAL}.")
        columns = table.header if table.headless else (NAME, MEANING)
        pairs = [tuple(map(row.values.get, columns)) for row in table.records]
    found: dict[str, str] = {}
    for pair in pairs:
        texts = [each.strip() for each in pair if isinstance(each, str)]
        if len(pair) != 2 or len(texts) != 2 or not all(texts):
            raise DataError(
                f"--label-map {path}: {list(pair)!r:.60} is not a label and its new name: {_LEGAL}."
            )
        if found.setdefault(texts[0], texts[1]) != texts[1]:
            raise DataError(
                f"--label-map {path}: {texts[0]!r} has two names, {found[texts[0]]!r} and "
                f"{texts[1]!r}: remove one."
            )
    if not found:
        raise DataError(f"--label-map {path}: there is no label in it.")
    return found


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
    assert isinstance(row, TokenExample)

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
