"""Cache for the sequences of large data sets: files that later runs map into memory.

An entry is named by a hash of all that its content depends on: examples, tokenizer, task and
settings (``runtime/cache.py`` has the folder). Data larger than memory are
encoded to files in any case, by all processors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from finetune.config.tasks import TrainConfig, settings
from finetune.data.examples import Examples
from finetune.preprocessing.context import context_text
from finetune.preprocessing.encodings import SEQUENCES, EncodedExamples, load_encoded
from finetune.runtime.cache import cache_folder, check_entry, is_enabled, making, write_about
from finetune.runtime.files import SaveError, replace_folder
from finetune.runtime.progress import progress_task
from finetune.runtime.workers import forked_map, num_workers
from finetune.tasks.base import EncodeChunk, Task, encode_all
from finetune.tasks.state import FITTED
from finetune.types import Example, TokenExample, UserError

MIN_EXAMPLES = 50_000
"""Smallest number of examples to cache; fewer are tokenized in a few seconds."""


_KIND = "encodings"
"""The folder of the cache."""


def encode(
    task: Task, examples: Sequence[Example], *, for_training: bool = False
) -> EncodedExamples:
    """Encode examples (``Task.encode``), or load their sequences from the cache if it has them."""
    if len(examples) >= MIN_EXAMPLES and is_enabled():
        key = encoding_key(task, examples, of="training" if for_training else "all")
        entry = cache_folder(_KIND) / key
        with contextlib.suppress(OSError, ValueError):  # missing or damaged: encode
            return _load(entry)
        with making(_KIND, entry.name) as waited, contextlib.suppress(OSError, SaveError):
            # no room, or read-only: encode without the cache
            if not waited:
                with replace_folder(entry) as fresh:
                    # other processes of the launch wait, so that all processors are free
                    to_files = partial(_to_files, fresh, len(examples), num_workers(alone=True))
                    encoded = task.encode(examples, to_files, for_training=for_training)
                    text = json.dumps({"notes": encoded.notes})
                    (fresh / NOTES).write_text(text, encoding="utf-8")
                    write_about(fresh)
            with contextlib.suppress(ValueError):
                return _load(entry)
    if Examples.of(examples).is_large:
        # the system keeps the files until they are unmapped
        with tempfile.TemporaryDirectory() as folder:
            try:
                to_files = partial(_to_files, Path(folder), len(examples), num_workers())
                return task.encode(examples, to_files, for_training=for_training)
            except OSError as error:
                raise UserError(
                    f"the sequences of the data could not be written ({error.strerror}) to the "
                    f"cache, {cache_folder(_KIND)}, nor to {folder}: make room, or name "
                    "another folder with FINETUNE_CACHE or TMPDIR."
                ) from error
    return task.encode(examples, encode_all, for_training=for_training)


NOTES = "notes.json"
"""File of an entry with the notes of the task."""


def _to_files(
    folder: Path, number: int, workers: int, encode_chunk: EncodeChunk, starts: Sequence[int]
) -> EncodedExamples:
    with progress_task("tokenizing", number) as show:

        def chunks() -> Iterator[EncodedExamples]:
            done = 0
            for chunk in forked_map(encode_chunk, starts, max(1, min(workers, len(starts)))):
                yield chunk
                show(done := done + len(chunk))

        return EncodedExamples.joined(chunks(), folder)


def _load(entry: Path) -> EncodedExamples:
    check_entry(entry)
    encoded = load_encoded(entry)
    notes = json.loads((entry / NOTES).read_text(encoding="utf-8"))["notes"]
    return dataclasses.replace(encoded, notes=tuple(notes))


def encoding_key(task: Task, examples: Sequence[Example], of: str = "all") -> str:
    """Hash everything that sequences depend on, and some settings besides.

    ``of`` is another text for sequences that are for training alone.
    """
    state, tokenizer = task.state, task.tokenizer
    common = {field.name for field in dataclasses.fields(TrainConfig)}
    of_task = {n: v for n, v in settings(state.config).items() if n not in common}
    derived = {name: v for name, v in state.extra_fields().items() if name not in FITTED}
    hashed = [SEQUENCES, task.name, list(state.labels), derived, state.max_length]
    hashed += [tokenizer.uses_token_types, tokenizer.placeholder, tokenizer.leading_space]
    hashed += [of] if of != "all" else []
    described = json.dumps([*hashed, of_task, tokenizer.backend.to_str()], sort_keys=True)
    content = described + Examples.of(examples).digest()
    if state.context_words:
        content += context_text(cast("Sequence[TokenExample]", examples))
    return hashlib.sha256(content.encode()).hexdigest()
