"""Cache for the sequences of large data sets: files that later runs map into memory.

An entry is named by a hash of all that its content depends on: examples, tokenizer, task and
settings. Entries are in ``$FINETUNE_CACHE`` (by default ``~/.cache/finetune``; ``off`` disables
the cache) and are deleted after a month without use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from finetune.config.tasks import TrainConfig, settings
from finetune.data import fingerprint
from finetune.preprocessing.encodings import SEQUENCES, Encoded, Encodings, Ragged
from finetune.runtime.files import SaveError, replace_folder
from finetune.tasks.base import FITTED, Task
from finetune.types import Example, TokenExample

MIN_EXAMPLES = 50_000
"""Smallest number of examples to cache; fewer are tokenized in a few seconds."""
UNUSED_SECONDS = 30 * 86_400
"""Time without use after which an entry is deleted."""


def is_cached(examples: Sequence[Example]) -> bool:
    """Return whether the sequences of these examples are cached."""
    return len(examples) >= MIN_EXAMPLES and os.environ.get("FINETUNE_CACHE") != "off"


def encode(task: Task, examples: Sequence[Example]) -> Encoded:
    """Encode examples, or load their sequences from the cache if it has them."""
    if not is_cached(examples):
        return task.encode(examples)
    entry = cache_folder() / encoding_key(task, examples)
    if (entry / "entry.json").is_file():
        with contextlib.suppress(OSError, ValueError, KeyError):  # damaged: encode again
            return _load(entry)
    encoded = task.encode(examples)
    with contextlib.suppress(OSError, SaveError):
        _save(entry, encoded)
        latest = time.time() - UNUSED_SECONDS
        for other in entry.parent.iterdir():  # also incomplete ones of interrupted processes
            with contextlib.suppress(OSError):
                if other.stat().st_mtime < latest:
                    shutil.rmtree(other)
    return encoded


def encoding_key(task: Task, examples: Sequence[Example]) -> str:
    """Hash everything that ``task.encode(examples)`` depends on, and some settings besides."""
    record, tokenizer = task.record, task.tokenizer
    common = {field.name for field in dataclasses.fields(TrainConfig)}
    own = {n: v for n, v in settings(record.config).items() if n not in common}
    derived = {name: v for name, v in record.extra_fields().items() if name not in FITTED}
    facts = [SEQUENCES, task.name, list(record.labels), derived, record.max_length, record.overlap]
    facts += [tokenizer.uses_segments, tokenizer.placeholder, tokenizer.leading_space]
    described = json.dumps([*facts, own, tokenizer.backend.to_str()], sort_keys=True)
    ids = json.dumps([example.id for example in examples])
    content = described + ids + fingerprint({"examples": examples})
    if (context := record.inputs.context) is not None:
        content += context.facts(cast("Sequence[TokenExample]", examples))
    return hashlib.sha256(content.encode()).hexdigest()


def cache_folder() -> Path:
    """Return the folder of the entries."""
    named = os.environ.get("FINETUNE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named or Path(base) / "finetune").expanduser() / "encodings"


def _save(entry: Path, content: Encoded) -> None:
    sequences = content.sequences
    rows = {"ids": sequences.ids, "words": sequences.words}
    rows |= {f"target-{name}": target for name, target in (sequences.targets or {}).items()}
    arrays = {"windows": content.offsets, "example": sequences.example}
    arrays["part"] = sequences.part
    if sequences.segments is not None:
        arrays["segments"] = sequences.segments
    for name, ragged in rows.items():
        arrays |= {f"{name}.values": ragged.values, f"{name}.offsets": ragged.offsets}
    widths = {name: ragged.width for name, ragged in rows.items()}
    text = json.dumps({"num_cut": content.num_cut, "notes": content.notes, "widths": widths})
    with replace_folder(entry) as fresh:
        for name, array in arrays.items():
            np.save(fresh / f"{name}.npy", array)
        (fresh / "entry.json").write_text(text, encoding="utf-8")


def _load(entry: Path) -> Encoded:
    """Map the content of an entry into memory."""
    described: dict[str, Any] = json.loads((entry / "entry.json").read_text(encoding="utf-8"))
    os.utime(entry)

    def array(name: str) -> np.ndarray:
        mapped: np.ndarray = np.load(entry / f"{name}.npy", mmap_mode="r")
        return mapped.view(np.ndarray)

    rows = {
        name: Ragged(array(f"{name}.values"), array(f"{name}.offsets"), width)
        for name, width in described["widths"].items()
    }
    targets = {n.removeprefix("target-"): r for n, r in rows.items() if n.startswith("target-")}
    segments = array("segments") if (entry / "segments.npy").is_file() else None
    sequences = Encodings(
        rows["ids"], segments, rows["words"], array("example"), array("part"), targets or None
    )
    return Encoded(sequences, array("windows"), described["num_cut"], tuple(described["notes"]))
