"""Prepared data in the cache, so that a second start on large data reads no row again.

A snapshot has the examples of all splits, as they were read, checked, converted and divided, and
what was derived from them. It is named by a hash of the bytes of the input files, of the settings
that it depends on, and of the version of the program. Data that fit in memory have none.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import finetune
from finetune.data.dataset import Dataset, remember_fingerprint
from finetune.data.examples import Examples
from finetune.data.sources import SourceContent
from finetune.runtime.cache import (
    cache_folder,
    check_entry,
    file_hash,
    is_enabled,
    making,
    write_about,
)
from finetune.runtime.files import SaveError, replace_folder
from finetune.types import LabelSet

KIND = "examples"
"""The folder of the cache."""
MIN_BYTES = 10 * 2**20
"""Least size of the input files; smaller ones are read in a few seconds."""
VERSION = 3
"""A number to raise with each change of what is read, converted, checked, divided or written."""
DESCRIPTION = "description.json"
"""The file of an entry with all but columns and numbers of examples."""


class Prepared(NamedTuple):
    """Data that are ready for a task."""

    data: Dataset
    derived: dict[str, Any]
    """Further values for the task: literals of Python, and sets of labels."""
    is_large: bool
    """Whether the data, or the documents that they were made from, do not fit in memory."""


class Inputs:
    """The files that data are read from, commits of the hub, and settings: all that matters."""

    def __init__(
        self, files: Sequence[Path], commits: Sequence[str], settings: Mapping[str, Any]
    ) -> None:
        self.files, self.commits, self.settings = files, commits, settings
        self.content = self._content()

    def prepared(self, make: Callable[[], Prepared], **more: Any) -> Prepared:
        """Return the prepared data: from the cache, or made and, if they are large, kept there.

        Of several processes one makes them, and the others wait for it.

        Args:
            make: Reads and prepares the data.
            more: Further settings that the result depends on.
        """
        key = self._key(more)
        if (found := _load(key)) is not None:
            return found
        with making(KIND, key) as waited:
            if (found := _load(key)) is not None:
                return found
            if not waited:
                made = make()
                if made.is_large and self._content() == self.content:
                    return _saved(key, made) or made
                return made
        return make()  # small data, or there is no room: each process reads for itself

    def known(self) -> Prepared | None:
        """Return the prepared data if they are in the cache."""
        return _load(self._key({}))

    def _key(self, more: Mapping[str, Any]) -> str:
        facts = [VERSION, finetune.__version__, self.content, {**self.settings, **more}]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _content(self) -> list[str]:
        return [*map(file_hash, self.files), *self.commits]


def large_inputs(contents: Sequence[SourceContent], settings: Mapping[str, Any]) -> Inputs | None:
    """Return inputs whose data may be kept; None for small ones, and without the cache.

    Args:
        contents: What each data set is read from, in order; None if data are in memory.
        settings: Values of JSON.
    """
    if not is_enabled():
        return None
    files, commits, size = list[Path](), list[str](), 0
    try:
        for content in contents:
            if content is None:
                return None
            if isinstance(content, Sequence):
                files += content
                size += sum(path.stat().st_size for path in content)
            elif content.used.revision is None:
                return None
            else:
                commits.append(str(content.used))
                size += content.size
        if size < MIN_BYTES:
            return None
        return Inputs(files, commits, settings)
    except OSError:
        return None  # the readers report it


def _load(key: str) -> Prepared | None:
    entry = cache_folder(KIND) / key
    with contextlib.suppress(OSError, ValueError):
        check_entry(entry)
        saved = json.loads((entry / DESCRIPTION).read_text(encoding="utf-8"))
        splits = {name: Examples.load(entry, name, own) for name, own in saved["splits"].items()}
        fingerprint, fields = saved["fingerprint"], saved["fields"]
        fields["label_order"] = tuple(fields["label_order"])
        data = Dataset(**fields, splits=splits, fingerprint_of=lambda: fingerprint)
        remember_fingerprint(data.without_tests(), saved["training_fingerprint"])
        derived = ast.literal_eval(saved["derived"])
        labels = {name: LabelSet(derived[name]) for name in saved["label_sets"]}
        return Prepared(data, derived | labels, True)
    return None


def _saved(key: str, made: Prepared) -> Prepared | None:
    data, entry = made.data, cache_folder(KIND) / key
    label_sets = [name for name, value in made.derived.items() if isinstance(value, LabelSet)]
    derived = made.derived | {name: tuple(made.derived[name]) for name in label_sets}
    with contextlib.suppress(OSError, SaveError), replace_folder(entry) as fresh:
        content = {
            "splits": {name: rows.save(fresh, name) for name, rows in data.splits.items()},
            "fields": {
                "name": data.name,
                "notes": data.notes,
                "format": data.format,
                "label_order": data.label_order,
                "pinned": data.pinned,
            },
            "fingerprint": data.fingerprint,
            "training_fingerprint": data.training_fingerprint,
            "derived": repr(derived),
            "label_sets": label_sets,
        }
        (fresh / DESCRIPTION).write_text(json.dumps(content), encoding="utf-8")
        write_about(fresh)
    return _load(key)
