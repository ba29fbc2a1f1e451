"""A data set and its fingerprint."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finetune.data.examples import Examples
from finetune.runtime.memory import without_garbage_collection
from finetune.types import UserError

WARNING = "warning: "
"""The beginning of a note on what probably costs quality."""
WITHOUT_LEAKS = "_without_leaks"
"""Suffix of a split for the scores of its examples whose texts are not in train."""


CONVERT_ADVICE = "for an export of an annotation tool: finetune convert FILE --out data.jsonl"
"""What to do with a file of another shape."""


class DataError(UserError):
    """An error in the user's data; the message names file, line, and the correction."""


class WordsNotTexts(DataError):
    """The data are words where texts are read."""


@dataclass
class Dataset:
    """A data set.

    Attributes:
        splits: Examples by split (``train``, ``validation``, ``test``, …), all TextExample or all
            TokenExample; other sequences become ``Examples``. The ``id`` of an example is its
            index.
        notes: Sentences for people: what was converted, left out or chosen while reading.
        format: Formats of the files, ``hub`` or ``save_to_disk``.
        label_order: Names of the classes in the order of their numbers, if the data number them
            (``ClassLabel`` of `datasets`).
        pinned: The ``--data`` value that reads the same commit of a hub data set again.
        fingerprint_of: Returns ``fingerprint``; by default of these splits.
    """

    name: str
    splits: Mapping[str, Examples]
    notes: list[str] = field(default_factory=list)
    format: str = ""
    label_order: tuple[str, ...] = ()
    pinned: str | None = None
    fingerprint_of: Callable[[], str] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Data sets with converted labels keep the fingerprint of the data as they were read."""
        self.splits = {
            name: rows if isinstance(rows, Examples) else Examples(rows)
            for name, rows in self.splits.items()
        }
        if self.fingerprint_of is None:
            self.fingerprint_of = functools.cache(functools.partial(fingerprint, self.splits))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fingerprint in place of the function that computes it."""
        return {**vars(self), "fingerprint_of": functools.partial(str, self.fingerprint)}

    @property
    def is_large(self) -> bool:
        """True if a split does not fit in memory."""
        return any(rows.is_large for rows in self.splits.values())

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content of the examples. Machine and file format do not change it."""
        assert self.fingerprint_of is not None
        return self.fingerprint_of()

    @property
    def training_fingerprint(self) -> str:
        """The fingerprint of all splits but test splits, which do not influence training."""
        return fingerprint(self.without_tests())

    @property
    def scored_splits(self) -> list[str]:
        """The names of all splits but ``train``."""
        return [name for name in self.splits if name != "train"]

    def without_tests(self) -> dict[str, Examples]:
        """The splits that influence training."""
        return {name: rows for name, rows in self.splits.items() if not name.startswith("test")}

    def with_splits(self, splits: Mapping[str, Any]) -> Dataset:
        """Copy the data set with other examples, and so with another fingerprint."""
        return dataclasses.replace(self, splits=splits, fingerprint_of=None)


_fingerprints: dict[Any, str] = {}
"""Fingerprints of large data, by the hashes of their splits."""


@without_garbage_collection()
def fingerprint(splits: Mapping[str, Sequence[Any]]) -> str:
    """Compute the hexadecimal SHA-256 of all examples in order, of the splits by name."""
    examples = {name: Examples.of(splits[name]) for name in sorted(splits)}
    is_large = any(rows.is_large for rows in examples.values())
    if is_large and (earlier := _fingerprints.get(_digests(examples))):
        return earlier
    digest = hashlib.sha256()
    for split, rows in examples.items():
        digest.update(f"\x00{split}\n".encode())
        for lines in rows.content(f"fingerprint of {split}"):
            digest.update(lines)
    if is_large:
        remember_fingerprint(examples, digest.hexdigest())
    return digest.hexdigest()


def remember_fingerprint(splits: Mapping[str, Examples], value: str) -> None:
    """Keep the fingerprint of large data, which is known from an earlier run."""
    _fingerprints[_digests(splits)] = value


def _digests(splits: Mapping[str, Examples]) -> tuple[tuple[str, str], ...]:
    return tuple((name, rows.digest()) for name, rows in sorted(splits.items()))


def numbered_order(labels: Collection[str], order: Sequence[str]) -> list[str]:
    """Sort labels in the order of their numbers; none if they are not all in ``order``."""
    return [name for name in order if name in labels] if {*labels} <= {*order} else []
