"""A data set in memory, its fingerprint, and the fixed rule that holds out validation data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finetune.types import Example, TextExample, TokenExample, UserError

HELD_OUT_EVERY = 10
"""One example (or document) in this many becomes validation data where a set has none."""
MIN_DOCUMENTS = 20
"""From this many documents on, whole documents are held out instead of single examples."""


class DataError(UserError):
    """An error in the user's data; the message names file and line, and what to write instead."""


@dataclass(frozen=True)
class Dataset:
    """A data set in memory.

    Attributes:
        splits: Examples by split (``train``, ``validation``, ``test``, …). The ``id`` of an example
            is its index.
        fingerprint: SHA-256 of the content of the examples: the same on every machine, in whatever
            format the data were stored.
        notes: Sentences for people: what was converted, left out or chosen while reading.
        format: Formats of the files, ``hub`` or ``save_to_disk``.
    """

    name: str
    splits: dict[str, list[Any]]  # all TextExample or all TokenExample
    fingerprint: str = ""
    notes: list[str] = field(default_factory=list)
    format: str = ""

    def __post_init__(self) -> None:
        """Compute the fingerprint unless it is given."""
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", fingerprint(self.splits))


def fingerprint(splits: Mapping[str, Sequence[Example]]) -> str:
    """Return the hexadecimal SHA-256 of the content of all examples, in order; splits by name."""
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
    gold = [example.spans, example.tags]
    content = ["token", example.words, *gold, example.document, example.text, example.offsets]
    return [*content, example.unreachable] if example.unreachable else content


def texts_of(example: Example) -> list[str]:
    """Return the text, or both texts of a pair, or the words joined by blanks."""
    if isinstance(example, TokenExample):
        return [" ".join(example.words)]
    return [example.text] if example.pair is None else [example.text, example.pair]


def normalized_texts(example: Example) -> tuple[str, ...]:
    """Return the texts of an example without differences of case, width and white space."""
    return tuple(" ".join(unicodedata.normalize("NFKC", text).casefold().split())
                 for text in texts_of(example))  # fmt: skip


def renumbered(examples: Sequence[Example]) -> list[Example]:
    """Return the examples with ``id`` = index."""
    return [dataclasses.replace(example, id=index) for index, example in enumerate(examples)]


def hold_out(dataset: Dataset) -> Dataset:
    """Return the data set with a validation split, held out of train if there is none.

    The rule is fixed and uses no seed, so that runs with different seeds are scored on the same
    examples:

    - every tenth document if all examples name their documents and there are at least 20;
    - else every tenth example;
    - but every tenth example of each label if a label of twenty examples or more would otherwise
      have none (labels in a regular order: yes, no, yes, no).
    """
    if any(name.split("_")[0] == "validation" for name in dataset.splits):
        return dataset
    train = dataset.splits.get("train", [])
    if len(train) < 2:
        raise DataError(
            f"{dataset.name} has no validation split and only {len(train)} training example(s) to "
            "hold some out of: add a file validation.jsonl."
        )
    held, rule = _held_out_indices(train)
    splits: dict[str, list[Example]] = {
        "train": renumbered([e for i, e in enumerate(train) if i not in held]),
        "validation": renumbered([e for i, e in enumerate(train) if i in held]),
        **{name: rows for name, rows in dataset.splits.items() if name != "train"},
    }
    counted = f"{len(held):,} of {len(train):,} examples"
    note = f"no validation split: held out {rule} of train ({counted})"
    return Dataset(dataset.name, splits, notes=[*dataset.notes, note], format=dataset.format)


def _held_out_indices(train: Sequence[Example]) -> tuple[set[int], str]:
    """Return the indices of the examples to hold out, and the rule in words."""
    documents = [e.document if isinstance(e, TokenExample) else None for e in train]
    order = {name: index for index, name in enumerate(dict.fromkeys(documents))}
    last = HELD_OUT_EVERY - 1
    if None not in order and len(order) >= MIN_DOCUMENTS:
        held = {i for i, name in enumerate(documents) if order[name] % HELD_OUT_EVERY == last}
        return held, "every tenth document"
    if len(train) < HELD_OUT_EVERY:
        return {len(train) - 1}, "the last example"
    held = set(range(last, len(train), HELD_OUT_EVERY))
    labels = [e.label if isinstance(e, TextExample) else None for e in train]
    frequent = {label for label, count in Counter(labels).items()
                if isinstance(label, str) and count >= 2 * HELD_OUT_EVERY}  # fmt: skip
    if frequent <= {labels[index] for index in held}:
        return held, "every tenth example"
    held, seen = set(), Counter[object]()
    for index, label in enumerate(labels):
        seen[label] += 1
        if seen[label] % HELD_OUT_EVERY == 0:
            held.add(index)
    return held, "every tenth example of each label"
