"""Examples that occur more than once: within a split, with other labels, and across splits."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from finetune.data.dataset import Dataset
from finetune.data.findings import Finding, first_places, gold_of, texts_of
from finetune.types import Example, TokenExample


def text_key(example: Example) -> tuple[str, ...]:
    """The example's text with case, width and white space evened out."""
    return tuple(" ".join(unicodedata.normalize("NFKC", text).casefold().split())
                 for text in texts_of(example))  # fmt: skip


def repeated(split: str, rows: Sequence[Example]) -> Iterator[Finding]:
    """Examples of a split whose text another one has, and those with other labels."""
    groups: dict[tuple[str, ...], list[Example]] = defaultdict(list)
    for row in rows:
        groups[text_key(row)].append(row)
    doubles = [group for group in groups.values() if len(group) > 1]
    if doubles:
        extra = sum(len(group) - 1 for group in doubles)
        share = 100 * extra / len(rows)
        message = f"{split}: {extra:,} examples ({share:.1f}%) repeat another of the split"
        yield Finding("info", "duplicates", message, first_places([g[1].where for g in doubles]))
    conflicts = [pair for group in doubles if (pair := _conflict(group)) is not None]
    if conflicts:
        message = f"{split}: {len(conflicts):,} repeated texts have different labels"
        places = [f"{a.where} and {b.where}" for a, b in conflicts]
        yield Finding("warning", "duplicates", message, first_places(places))


def _conflict(group: Sequence[Example]) -> tuple[Example, Example] | None:
    """The first two of the same text whose gold differs."""
    labelled = [row for row in group if gold_of(row) is not None]
    return next(((labelled[0], row) for row in labelled if _answer(row) != _answer(labelled[0])),
                None)  # fmt: skip


def _answer(example: Example) -> Any:
    if isinstance(example, TokenExample):
        return example.tags, example.spans
    return set(example.label) if isinstance(example.label, tuple) else example.label


def leaks(dataset: Dataset) -> Iterator[Finding]:
    """Evaluation examples that are in an earlier split too."""
    seen: dict[tuple[str, ...], Example] = {}
    owner: dict[tuple[str, ...], str] = {}
    for split, rows in dataset.splits.items():
        found: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            key = text_key(row)
            if key not in seen:
                seen[key], owner[key] = row, split
            elif owner[key] != split:
                found[owner[key]].append(f"{row.where} = {seen[key].where}")
        for other, places in found.items():
            share = 100 * len(places) / len(rows)
            message = f"{split}: {len(places):,} examples ({share:.1f}%) are also in {other}"
            level = "warning" if other == "train" else "info"
            yield Finding(level, "leak", message, first_places(places))
