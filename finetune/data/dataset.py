"""A data set in memory, its fingerprint, and the fixed rule that holds out validation data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finetune.types import Example, TextExample, TokenExample, UserError

HELD_OUT_EVERY = 10
"""One example (or document) in this many becomes validation data where a set has none."""
FEWEST_DOCUMENTS = 20
"""From this many documents on, whole documents are held out instead of single examples."""


class DataError(UserError):
    """Data that cannot be read: what is wrong, where (file:line), what is legal, what to do."""


@dataclass(frozen=True)
class Dataset:
    """Examples by split (``train``, ``validation``, ``test``, …); ``examples[i].id == i``.

    ``fingerprint`` is a SHA-256 over the content of the examples: the same on every machine and
    independent of where and in which format the files lie. ``notes`` are sentences for people:
    what was converted, left out or chosen while reading.
    """

    name: str
    splits: dict[str, list[Example]]
    fingerprint: str = ""
    notes: list[str] = field(default_factory=list)
    format: str = ""

    def __post_init__(self) -> None:
        """Compute the fingerprint unless it is given."""
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", fingerprint(self.splits))


def fingerprint(splits: Mapping[str, Sequence[Example]]) -> str:
    """SHA-256 (hexadecimal) over the content of all examples, in order; splits by name."""
    digest = hashlib.sha256()
    for split in sorted(splits):
        digest.update(f"\x00{split}\n".encode())
        for example in splits[split]:
            digest.update(json.dumps(_content(example), separators=(",", ":")).encode())
            digest.update(b"\n")
    return digest.hexdigest()


def _content(example: Example) -> list[Any]:
    if isinstance(example, TextExample):
        return ["text", example.text, example.pair, example.label]
    return [
        "token",
        example.words,
        example.spans,
        example.tags,
        example.document,
        example.text,
        example.offsets,
    ]


def renumbered(examples: Sequence[Example]) -> list[Example]:
    """The same examples with ``id`` = place in the list."""
    return [
        example if example.id == index else dataclasses.replace(example, id=index)
        for index, example in enumerate(examples)
    ]


def hold_out(dataset: Dataset) -> Dataset:
    """The data set with a validation split: every tenth training example where it has none.

    The rule is fixed and knows no seed, so that runs with different seeds are measured on the
    same examples. Where the data tell documents apart and there are at least 20 of them, every
    tenth document is held out whole; where a label of twenty examples or more would have none among
    the held-out ones (labels that take turns: yes, no, yes, no), every tenth example of each
    label. Raises DataError without training data, or with just one example.
    """
    if any(name.split("_")[0] == "validation" for name in dataset.splits):
        return dataset
    train = dataset.splits.get("train", [])
    if len(train) < 2:
        raise DataError(
            f"{dataset.name} has no validation split and {len(train)} training example(s) to hold "
            "some out of: add a file validation.jsonl, or write "
            "--data train=FILE,validation=FILE."
        )
    held, unit = _held_out(train)
    splits: dict[str, list[Example]] = {
        "train": renumbered([e for i, e in enumerate(train) if i not in held]),
        "validation": renumbered([e for i, e in enumerate(train) if i in held]),
        **{name: rows for name, rows in dataset.splits.items() if name != "train"},
    }
    note = (
        f"no validation split: held out {unit} of train ({len(held):,} of {len(train):,} examples)"
    )
    return dataclasses.replace(
        dataset, splits=splits, notes=[*dataset.notes, note], fingerprint=fingerprint(splits)
    )


def _held_out(train: Sequence[Example]) -> tuple[set[int], str]:
    """Indices of the examples to hold out, and in words which they are."""
    documents = [e.document if isinstance(e, TokenExample) else None for e in train]
    order = {name: index for index, name in enumerate(dict.fromkeys(documents))}
    last = HELD_OUT_EVERY - 1
    if None not in order and len(order) >= FEWEST_DOCUMENTS:
        held = {i for i, name in enumerate(documents) if order[name] % HELD_OUT_EVERY == last}
        return held, "every tenth document"
    if len(train) < HELD_OUT_EVERY:
        return {len(train) - 1}, "the last example"
    held = set(range(last, len(train), HELD_OUT_EVERY))
    names = [e.label if isinstance(e, TextExample) else None for e in train]
    often = {n for n, c in Counter(names).items() if isinstance(n, str) and c >= 2 * HELD_OUT_EVERY}
    if often <= {names[index] for index in held}:
        return held, "every tenth example"
    held, seen = set(), Counter[object]()
    for index, name in enumerate(names):
        seen[name] += 1
        if seen[name] % HELD_OUT_EVERY == 0:
            held.add(index)
    return held, "every tenth example of each label"
