"""From settings to the data of a run: read, convert, check, divide.

``read_and_divide`` is the way of all data of labeled tasks. What a task says of its data is a
``TaskData``. ``prepared_data`` takes large data from the cache, so that a second start reads no row
again: an entry has the examples of all splits and what was derived from them.
It is named by a hash of the bytes of the input files, of the settings that it depends on, and of
the version of the program. Data that fit in memory have none.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

import finetune
from finetune.config.description import TaskDescription
from finetune.config.tasks import TrainConfig, affects_of, column_map, named_test_sets, settings
from finetune.data import examples as holder
from finetune.data.checks import check_data
from finetune.data.choices import CHOICES
from finetune.data.examples import WARNING, Dataset, Examples, remember_fingerprint
from finetune.data.hub import Download
from finetune.data.questions import QUESTIONS
from finetune.data.rows import RowReader
from finetune.data.sources import PartOf, SourceContent, content_of, is_test, resolve
from finetune.data.splitting import DEFAULT_SHARE, hold_out, with_test_sets
from finetune.data.texts import TextReader
from finetune.data.tokens import TokenReader
from finetune.preprocessing.replay import with_replay
from finetune.runtime.cache import (
    cache_folder,
    check_entry,
    file_hash,
    is_enabled,
    making,
    write_about,
)
from finetune.runtime.files import SaveError, replace_folder
from finetune.types import ChoiceQuestion, Example, LabelSet, Question, UserError, quantity

LOOKED_AT = 2**23
"""Most bytes of data that are read once more before torch is imported."""


CACHE_NAME = "examples"
"""The folder of the cache."""
MIN_BYTES = 10 * 2**20
"""Least size of the input files; smaller ones are read in a few seconds."""
VERSION = 9
"""A number to raise with each change of what is read, converted, checked, divided or written."""
DESCRIPTION = "description.json"
"""The file of an entry with all but columns of examples."""
_FIELDS = ("name", "notes", "format", "label_order", "pinned")
"""What an entry has of a data set besides its splits."""


class Prepared(NamedTuple):
    """Data that are ready for a task."""

    data: Dataset
    derived: dict[str, Any]
    """Further values for the task: literals of Python, and sets of labels."""
    is_large: bool
    """Whether the data, or the documents that they were made from, do not fit in memory."""


class TaskData(Protocol):
    """What the class of a task says of its data."""

    @property
    def gold(self) -> Callable[[Any], Any]:
        """The function from an example to its gold, None if it has none."""
        ...

    def read(self, config: Any, source: Any) -> Dataset:
        """Read the data that ``config.data`` names, or data in memory."""
        ...

    def prepare(self, config: Any, data: Dataset) -> Dataset:
        """Convert labels for the task; drop rows without gold and count them in the notes."""
        ...

    def derive(self, config: Any, data: Dataset) -> dict[str, Any]:
        """Derive the fields of the task's state from the training data."""
        ...


def read_and_divide(
    task: TaskData,
    config: TrainConfig,
    data: Any = None,
    saved: tuple[str, ...] = (),
    replayed: Callable[[str], Dataset] | None = None,
) -> Prepared:
    """Read, convert, check and divide the data, and derive the fields of the task's state.

    Args:
        task: The task.
        config: The settings.
        data: Data in memory, in place of ``config.data``.
        saved: The labels of a run to resume: its head has them in this order.
        replayed: Returns the data of a run by its folder, for ``--replay``.
    """
    if not isinstance(data, Dataset):
        data = read_data(task, config, data)
    if "train" not in data.splits:
        raise UserError(
            f"{data.name}: there is no train split (found: {', '.join(data.splits)}). "
            "Name it with --data train=FILE,test=FILE."
        )
    for split, rows in data.splits.items():
        if rows:
            config.description.require_examples(
                rows.example_type, f"{data.name}: the examples of {split}"
            )
    data = task.prepare(config, data)
    if replayed is not None and config.replayed is not None:
        run, share = config.replayed
        data = with_held_out_splits(data, config)
        data = with_replay(data, replayed(run), share)
    data = replace(data, label_order=saved or data.label_order)
    data = _without_unlabeled_tests(task, data)
    skipped_checks = list(config.description.skipped_checks)
    if vars(config).get("problem") == "regression":
        skipped_checks.append("numbers")
    data = _checked(data, skipped_checks)
    derived = task.derive(config, data)
    if config.replayed is None:
        data = with_held_out_splits(data, config)
    return Prepared(data, derived, data.is_large)


def with_held_out_splits(
    dataset: Dataset, config: TrainConfig, default: float = DEFAULT_SHARE
) -> Dataset:
    """Hold a validation split out of train, as the settings say."""
    if config.validation == "none":
        return dataset
    share = None if config.validation == "auto" else float(config.validation)
    return hold_out(dataset, share, default)


def read_examples(config: TrainConfig, source: Any, errors: list[str] | None = None) -> Dataset:
    """Read the examples of a task: texts, pairs of texts, words, questions or choices.

    ``errors`` as in ``read_text``.
    """
    about, columns = config.description, column_map(config.columns)
    reader = _reader(about, about.pairs, for_training=True)
    return reader.read(source, columns=columns, encoding=config.encoding, errors=errors)


def stream_examples(
    about: TaskDescription, source: Any, *, pair: bool | None = None, **options: Any
) -> Iterator[Example]:
    """Stream the examples of a task for prediction; ``options`` as in ``RowReader.stream``.

    ``pair`` is as in ``read_text``, for texts.
    """
    return _reader(about, pair, for_training=False).stream(source, **options)


def _reader(about: TaskDescription, pair: bool | None, for_training: bool) -> RowReader:
    if about.examples is Question:
        return QUESTIONS
    if about.examples is ChoiceQuestion:
        return CHOICES
    if about.words:
        return TokenReader(about.given_spans, relations=about.given_spans and for_training)
    return TextReader(pair, labeled=for_training)


def look_at_data(config: TrainConfig, without_test: bool = False) -> None:
    """Read small data files of a run, so that an error in them is told within a second.

    The task, which reads them again, needs torch, whose import takes several. ``without_test``
    leaves test splits unread.

    Raises:
        DataError: The data cannot be read; the message names file and line.
    """
    data = PartOf(config.data, without_test)
    if config.description.own_reader or not (source := resolve(data)).files:
        return
    paths = chain.from_iterable(source.files.values())
    if sum(path.stat().st_size for path in paths) <= LOOKED_AT:
        read_examples(config, data)


def read_data(task: TaskData, config: TrainConfig, source: Any = None) -> Dataset:
    """Read the data of a run with its further test sets; ``source`` replaces ``config.data``."""
    source = config.data if source is None else source
    data = task.read(config, PartOf(source, most_rows=most_rows(config)))
    test_sets = {
        split: task.read(config, spec) for split, spec in named_test_sets(config.test_sets).items()
    }
    return with_test_sets(data, test_sets)


def most_rows(config: TrainConfig) -> int | None:
    """The number of rows of the training split to read with ``--limit``; None reads all.

    As many as fit in memory are read, and at least twice as many as asked for: labels, checks and
    the examples that are held out come from these rows, too.
    """
    return None if config.limit is None else max(2 * config.limit, holder.MOST_IN_MEMORY)


def prepared_data(
    task: TaskData,
    config: TrainConfig,
    data: Any = None,
    saved: tuple[str, ...] = (),
    replayed: Callable[[str], Dataset] | None = None,
) -> Prepared:
    """Prepare the data and derive the fields of the task's state; take large data from the cache.

    They depend on settings that change data.
    """
    make = partial(read_and_divide, task, config, data, saved, replayed)
    if isinstance(data, Dataset) or config.replayed is not None:
        return make()
    most = most_rows(config)
    if most == holder.MOST_IN_MEMORY:
        return make()  # takes seconds, and the whole input would be hashed for the cache
    train = PartOf(config.data if data is None else data, most_rows=most)
    sources = list(map(resolve, [train, *named_test_sets(config.test_sets).values()]))
    make_for_any = partial(read_and_divide, task, config, data)
    prepared = cached(make_for_any, config, sources, list(map(content_of, sources)))
    # most checkpoints have the labels in the order of the data
    return make() if saved and tuple(prepared.derived["labels"]) != saved else prepared


def cached(
    make: Callable[[], Prepared],
    config: TrainConfig,
    sources: Sequence[Any],
    contents: Sequence[SourceContent],
    **more: Any,
) -> Prepared:
    """Take large data from the cache, or prepare them and keep them there.

    Small data and data in memory are prepared. Of several processes one prepares large data, and
    the others wait for it.

    Args:
        make: Prepares the data.
        config: The settings; those that prepared data may depend on are part of the key.
        sources: The sources of the data.
        contents: The content of each source.
        more: Further settings, values of JSON.
    """
    files = [path for content in contents if isinstance(content, Sequence) for path in content]
    downloads = [content for content in contents if isinstance(content, Download)]
    try:
        size = sum(path.stat().st_size for path in files) + sum(d.size for d in downloads)
        is_known = None not in contents and all(d.used.revision for d in downloads)
        is_kept = is_enabled() and is_known and size >= MIN_BYTES
        hashes = list(map(file_hash, files)) if is_kept else []
    except OSError:
        is_kept = False  # the readers report it
    if not is_kept:
        return make()
    marks = affects_of(type(config))
    hashed = {
        "versions": [VERSION, finetune.__version__],
        "task": config.description.name,
        "sources": list(map(repr, sources)),
        "settings": {n: value for n, value in settings(config).items() if marks[n].data},
        "files": hashes,
        "commits": [str(download.used) for download in downloads],
        **more,
    }
    key = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()
    if (earlier := _load(key)) is not None:
        return earlier
    with making(CACHE_NAME, key) as waited:
        if (earlier := _load(key)) is not None:
            return earlier
        if not waited:
            fresh = make()
            if fresh.is_large and list(map(file_hash, files)) == hashes:
                return _saved(key, fresh) or fresh
            return fresh
    return make()  # small data, or there is no room: each process reads for itself


def limited(data: Dataset, config: TrainConfig) -> Dataset:
    """Keep the first ``limit`` training examples."""
    examples, limit = data.splits.get("train"), config.limit
    if examples is None or limit is None or limit >= len(examples):
        return data
    train = examples[:limit]
    note = f"--limit: the first {limit:,} of {quantity(len(examples), 'example')} of train"
    labels = set() if examples.are_words else set(train.column("label"))
    if len(labels) == 1 and None not in labels:
        note += f"; no label but {labels.pop()!r}: the data are sorted, shuffle them"
    return replace(data, splits={**data.splits, "train": train}, notes=[*data.notes, note])


def with_gold(data: Dataset, field: str, row: str, missing: str, dropped: str) -> Dataset:
    """Drop training and validation rows without gold; test splits without any stay.

    Args:
        data: The data.
        field: The field with the gold of an example.
        row: The word for a row, for messages.
        missing: The gold that a split lacks, and perhaps advice: the end of the error.
        dropped: The gold that dropped rows lack, for a note.

    Raises:
        UserError: A split has no gold.
    """
    splits, notes = {}, list(data.notes)
    for split, rows in data.splits.items():
        kept = rows
        if None in rows.column(field):
            kept = rows.keep(value is not None for value in rows.column(field))
        if not kept and not split.startswith("test"):
            raise UserError(f"{data.name}: no {row} of {split} has {missing}")
        if kept and len(kept) < len(rows):
            number = quantity(len(rows) - len(kept), row)
            notes.append(f"{number} of {split} without {dropped} dropped")
        splits[split] = kept or rows
    return replace(data, splits=splits, notes=notes)


def _checked(data: Dataset, skipped: Collection[str]) -> Dataset:
    findings = check_data(data, max_length=None)
    findings = [finding for finding in findings if finding.check not in skipped]
    for finding in findings:
        if finding.level == "error":
            where = finding.locations[0] if finding.locations else data.name
            end = "" if finding.message.endswith("?") else "."
            raise UserError(f"{where}: {finding.message}{end}")
    warnings = [
        f"{WARNING}{finding}"
        for finding in findings
        if finding.level == "warning" and finding.check != "reading"  # a note already
    ]
    return replace(data, notes=[*data.notes, *warnings])


def _without_unlabeled_tests(task: TaskData, data: Dataset) -> Dataset:
    splits, notes = dict[str, Examples](), list(data.notes)
    for split, examples in data.splits.items():
        if is_test(split) and all(task.gold(example) is None for example in examples):
            notes.append(
                f"{split}: {quantity(len(examples), 'example')} without labels, which are not "
                "predicted (finetune predict predicts them)"
            )
        else:
            splits[split] = examples
    return replace(data, splits=splits, notes=notes)


def _load(key: str) -> Prepared | None:
    entry = cache_folder(CACHE_NAME) / key
    with contextlib.suppress(OSError, ValueError):
        check_entry(entry)
        saved = json.loads((entry / DESCRIPTION).read_text(encoding="utf-8"))
        splits = {name: Examples.load(entry, name, rows) for name, rows in saved["splits"].items()}
        fingerprint, fields = saved["fingerprint"], saved["fields"]
        fields["label_order"] = tuple(fields["label_order"])
        data = Dataset(**fields, splits=splits, fingerprint_of=lambda: fingerprint)
        remember_fingerprint(data.without_tests(), saved["training_fingerprint"])
        derived = ast.literal_eval(saved["derived"])
        labels = {name: LabelSet(derived[name]) for name in saved["label_sets"]}
        return Prepared(data, derived | labels, True)
    return None


def _saved(key: str, prepared: Prepared) -> Prepared | None:
    data, entry = prepared.data, cache_folder(CACHE_NAME) / key
    label_sets = [name for name, value in prepared.derived.items() if isinstance(value, LabelSet)]
    derived = prepared.derived | {name: tuple(prepared.derived[name]) for name in label_sets}
    with contextlib.suppress(OSError, SaveError), replace_folder(entry) as fresh:
        content = {
            "splits": {name: rows.save(fresh, name) for name, rows in data.splits.items()},
            "fields": {name: getattr(data, name) for name in _FIELDS},
            "fingerprint": data.fingerprint,
            "training_fingerprint": data.training_fingerprint,
            "derived": repr(derived),
            "label_sets": label_sets,
        }
        (fresh / DESCRIPTION).write_text(json.dumps(content), encoding="utf-8")
        write_about(fresh)
    return _load(key)
