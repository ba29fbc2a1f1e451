"""Cache for the sequences of large data sets: files that later runs map into memory.

An entry is named by a hash of all that its content depends on: examples, tokenizer, task and
settings (``runtime/cache.py`` has the folder and the life of entries). Data larger than memory are
encoded to files in any case, by all processors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

from finetune.config.tasks import TrainConfig, settings
from finetune.data import fingerprint
from finetune.data.example_store import ExampleStore, column
from finetune.preprocessing.encoding_files import EncodedWriter, load_encoded
from finetune.preprocessing.encodings import SEQUENCES, Encoded
from finetune.runtime.cache import (
    cache_folder,
    is_enabled,
    remove_unused,
    write_about,
)
from finetune.runtime.files import SaveError, replace_folder
from finetune.runtime.progress import stage
from finetune.runtime.workers import forked_map, num_workers
from finetune.tasks.base import FITTED, EncodeChunk, Task
from finetune.types import Example, TokenExample, UserError

MIN_EXAMPLES = 50_000
"""Smallest number of examples to cache; fewer are tokenized in a few seconds."""


def is_cached(examples: Sequence[Example]) -> bool:
    """Return whether the sequences of these examples are cached."""
    return len(examples) >= MIN_EXAMPLES and is_enabled()


def encode(task: Task, examples: Sequence[Example], title: str = "") -> Encoded:
    """Encode examples, or load their sequences from the cache if it has them.

    ``title`` names the data in ``finetune cache``.
    """
    if is_cached(examples):
        entry = cache_folder("encodings") / encoding_key(task, examples)
        with contextlib.suppress(OSError, ValueError, KeyError):  # missing or damaged: encode
            return _load(entry)
        with contextlib.suppress(OSError, SaveError):  # no room, or read-only
            with replace_folder(entry) as fresh:
                encoded = task.encode(examples, partial(_to_files, fresh, len(examples)))
                text = json.dumps({"notes": encoded.notes})
                (fresh / NOTES).write_text(text, encoding="utf-8")
                write_about(fresh, title)
            remove_unused(entry.parent)
            return _load(entry)
    if isinstance(examples, ExampleStore):
        # the system keeps the files until they are unmapped
        with tempfile.TemporaryDirectory() as folder:
            try:
                return task.encode(examples, partial(_to_files, Path(folder), len(examples)))
            except OSError as error:
                raise UserError(
                    f"the sequences of the data could not be written ({error.strerror}) to the "
                    f"cache, {cache_folder('encodings')}, nor to {folder}: make room, or name "
                    "another folder with FINETUNE_CACHE or TMPDIR."
                ) from error
    return task.encode(examples)


NOTES = "notes.json"
"""File of an entry with the notes of the task."""


def _to_files(
    folder: Path, number: int, encode_chunk: EncodeChunk, starts: Sequence[int]
) -> Encoded:
    """Encode all chunks with all processors, write them to a folder, and map it."""
    writer = EncodedWriter(folder)
    with stage("tokenizing", number) as show:
        workers = max(1, min(num_workers(), len(starts)))
        for chunk in forked_map(encode_chunk, starts, workers):
            writer.add(chunk)
            show(writer.num_examples)
    writer.finish()
    return load_encoded(folder)


def _load(entry: Path) -> Encoded:
    """Map the content of an entry into memory."""
    encoded = load_encoded(entry)
    notes = json.loads((entry / NOTES).read_text(encoding="utf-8"))["notes"]
    os.utime(entry)
    return dataclasses.replace(encoded, notes=tuple(notes))


def encoding_key(task: Task, examples: Sequence[Example]) -> str:
    """Hash everything that ``task.encode(examples)`` depends on, and some settings besides."""
    record, tokenizer = task.record, task.tokenizer
    common = {field.name for field in dataclasses.fields(TrainConfig)}
    own = {n: v for n, v in settings(record.config).items() if n not in common}
    derived = {name: v for name, v in record.extra_fields().items() if name not in FITTED}
    facts = [SEQUENCES, task.name, list(record.labels), derived, record.max_length, record.overlap]
    facts += [tokenizer.uses_segments, tokenizer.placeholder, tokenizer.leading_space]
    described = json.dumps([*facts, own, tokenizer.backend.to_str()], sort_keys=True)
    if isinstance(examples, ExampleStore):
        content = described + examples.digest()
    else:
        ids = json.dumps(list(column(examples, "id")))
        content = described + ids + fingerprint({"examples": examples})
    if (context := record.inputs.context) is not None:
        content += context.facts(cast("Sequence[TokenExample]", examples))
    return hashlib.sha256(content.encode()).hexdigest()
