"""From settings and data to a task: the functions of each task, and the steps of all tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from finetune.config.tasks import (
    LabelConfig,
    TrainConfig,
    changes_of,
    named_test_sets,
    settings,
)
from finetune.data import (
    Dataset,
    check_data,
    example_store,
    unmeasured_labels,
    with_held_out_splits,
    with_test_sets,
)
from finetune.data.dataset import WARNING
from finetune.data.example_store import column
from finetune.data.json_files import read_object
from finetune.data.label_names import renamed
from finetune.data.snapshots import Inputs, Prepared, is_large, large_inputs
from finetune.data.sources import Content, PartOf, content_of, is_test, resolve
from finetune.evaluation.runs import RunFolder
from finetune.models.families import FAMILIES, position_limit
from finetune.models.loading import is_hub_id, load_config, model_commit, new_config, resolve_model
from finetune.models.warm_start import ReusableHead, WarmStart, find_warm_start
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.tasks import TASK_FILE
from finetune.tasks.base import Task, TaskRecord
from finetune.types import TextExample, UserError, quantity


@dataclass(frozen=True, kw_only=True)
class TaskDefinition:
    """Functions that make a task from settings and data; ``registry.TASKS`` names it.

    ``config`` in a signature are the settings of the task, ``source`` what ``config.data`` names,
    or data in memory. What ``read``, ``prepare`` and ``derive`` return for data larger than memory
    depends on settings of data and task, ``seed`` and ``overlap`` alone: later runs with other
    models and training settings take it from the cache.
    """

    task: Callable[[Any, SubwordTokenizer, WarmStart | None], Task]
    """Make the task of a record, a tokenizer, and the trained model to begin with."""
    record: type[TaskRecord]
    read: Callable[[Any, Any], Dataset]
    """Read data: from the settings and the source."""
    derive: Callable[[Any, Dataset], dict[str, Any]]
    """Derive the record's fields from the training data: ``labels`` and those it adds."""
    gold: Callable[[Any], Any]
    """Return the gold of an example, None if it has none."""
    prepare: Callable[[Any, Dataset], Dataset] = lambda config, data: data
    """Convert labels for the task; drop rows without gold and count them in the notes."""
    notes: Callable[[Any, Dataset], list[str]] = lambda record, data: []
    """Return notes for the log on how the record and the data fit together."""
    complete: Callable[[Task, Dataset], Dataset] = lambda task, data: data
    """Check the data with the task, and add what scores need."""
    skipped_checks: Collection[str] = ()
    """The data checks that do not apply."""
    reusable_head: ReusableHead | None = None
    """The class of heads that ``--init-from`` can reuse."""
    load: Callable[[TaskDefinition, Any, Any], tuple[Task, Dataset]] | None = None
    """In place of ``load_defined``, for a task whose examples need the tokenizer."""


def read_data(definition: TaskDefinition, config: TrainConfig, source: Any = None) -> Dataset:
    """Read the data of a run with its further test sets; ``source`` replaces ``config.data``."""
    source = config.data if source is None else source
    data = definition.read(config, PartOf(source, most_rows=most_rows(config)))
    others = {
        split: definition.read(config, each)
        for split, each in named_test_sets(config.test_sets).items()
    }
    return with_test_sets(data, others)


def most_rows(config: TrainConfig) -> int | None:
    """Return the number of rows of the training split to read with ``--limit``; None reads all.

    As many as fit in memory are read, and at least twice as many as asked for: labels, checks and
    the examples that are held out come from these rows, too.
    """
    return None if config.limit is None else max(2 * config.limit, example_store.MOST_IN_MEMORY)


def load_defined(
    definition: TaskDefinition, config: TrainConfig, data: Any = None
) -> tuple[Task, Dataset]:
    """Read and prepare the data, derive the labels, load the tokenizer (``load_task``)."""
    data, derived, _ = _prepared(definition, config, data)
    warm_start, tokenizer = load_tokenizer(
        config, definition, derived["labels"], derived.get("problem")
    )
    limit = sequence_limit(config, tokenizer, warm_start)
    record = definition.record(config=config, max_length=limit, **derived)
    data = limited(data, config)
    notes = [*data.notes, *unmeasured_labels(data), *definition.notes(record, data)]
    notes += [warm_start.note] if warm_start else []
    task = definition.task(record, tokenizer, warm_start)
    return task, definition.complete(task, replace(data, notes=notes))


def _prepared(definition: TaskDefinition, config: TrainConfig, data: Any) -> Prepared:
    """Return the prepared data and the derived fields of the record, of large data from the cache.

    They depend on settings that change data, and on the labels of a run to resume.
    """
    saved = _saved_labels(config) if config.resume else ()
    make = partial(_prepare, definition, config, data, saved)
    if isinstance(data, Dataset):
        return make()
    most = most_rows(config)
    if most == example_store.MOST_IN_MEMORY:
        return make()  # takes seconds, and the whole input would be hashed for the cache
    inputs = _inputs(config, data)
    if inputs is None:
        return make()
    if not saved:
        return inputs.prepared(config.description.name, make)
    found = inputs.known()  # most checkpoints have the labels in the order of the data
    if found is not None and tuple(found.derived["labels"]) == saved:
        return found
    return inputs.prepared(config.description.name, make, labels=saved)


def read_once(definition: TaskDefinition, config: TrainConfig) -> Dataset:
    """Read the data of several runs (``read_data``); take large data from the cache."""

    def make() -> Prepared:
        data = read_data(definition, config)
        return Prepared(data, {}, is_large(data))

    inputs = _inputs(config, None)
    made = inputs.prepared(config.description.name, make, of="runs") if inputs else make()
    return made.data


def _inputs(config: TrainConfig, data: Any) -> Inputs | None:
    """Return the inputs of a run that ``read_data`` reads, if they are large."""
    train = PartOf(config.data if data is None else data, most_rows=most_rows(config))
    sources = list(map(resolve, [train, *named_test_sets(config.test_sets).values()]))
    return inputs_of(config, sources, list(map(content_of, sources)))


def inputs_of(
    config: TrainConfig, sources: Sequence[Any], contents: Sequence[Content], **more: Any
) -> Inputs | None:
    """Return the inputs of large data, with all settings that prepared data may depend on.

    Args:
        config: The settings.
        sources: The sources of the data.
        contents: The content of each source.
        more: Further settings.
    """
    map_file = config.label_map if isinstance(config, LabelConfig) else None
    others = [Path(map_file)] if map_file else []
    marks = changes_of(type(config))
    facts = {
        "task": config.description.name,
        "sources": list(map(repr, sources)),
        "settings": {n: value for n, value in settings(config).items() if marks[n].data},
        **more,
    }
    return large_inputs(contents, facts, others)


def with_new_names(config: TrainConfig, data: Dataset) -> Dataset:
    """Rename labels by --label-map and --labels-case."""
    if not isinstance(config, LabelConfig):
        return data
    fold = config.labels_case == "fold"
    return renamed(data, fold=fold, map_file=config.label_map) if fold or config.label_map else data


def _prepare(
    definition: TaskDefinition, config: TrainConfig, data: Any, saved: tuple[str, ...]
) -> Prepared:
    """Read, convert, check and divide the data, and derive the fields of the record.

    ``saved`` are the labels of a run to resume: its head has them in this order.
    """
    if not isinstance(data, Dataset):
        data = read_data(definition, config, data)
    data = definition.prepare(config, with_new_names(config, data))
    if "train" not in data.splits:
        raise UserError(
            f"{config.data}: there is no train split (found: {', '.join(data.splits)}). "
            "Name it with --data train=FILE,test=FILE."
        )
    data = replace(data, label_order=saved or data.label_order)
    data = _without_unlabeled_tests(definition, data)
    data = _checked(data, definition.skipped_checks)
    derived = definition.derive(config, data)
    data = with_held_out_splits(data, config)
    return Prepared(data, derived, is_large(data))


def load_tokenizer(
    config: TrainConfig, definition: TaskDefinition, labels: Sequence[str], problem: Any = None
) -> tuple[WarmStart | None, SubwordTokenizer]:
    """Return the model to begin with, if there is one, and the tokenizer of the encoder."""
    words = config.description.words
    if config.init_from is not None:
        RunFolder.open(Path(config.init_from)).require_intact()
        warm_start = find_warm_start(config, definition.reusable_head, labels, problem)
        source, options = warm_start.source, warm_start.options
        return warm_start, SubwordTokenizer.saved(source, words=words, **options)
    return None, SubwordTokenizer.from_pretrained(
        str(config.model),
        words=words,
        trust_remote_code=config.trust_remote_code,
    )


def sequence_limit(
    config: TrainConfig, tokenizer: SubwordTokenizer, warm_start: WarmStart | None
) -> int:
    """Return the longest sequence in tokens, special tokens included."""
    encoder = starting_config(config, warm_start)
    limit = position_limit(encoder, FAMILIES.get(encoder.model_type))
    return tokenizer.max_length(limit, config.max_length)


def starting_config(config: TrainConfig, warm_start: WarmStart | None = None) -> Any:
    """Return the Hugging Face configuration of the encoder that a new model starts from."""
    if warm_start is None and config.init_from is not None:
        warm_start = find_warm_start(config, None, (), None)
    if warm_start is not None:
        return warm_start.config
    if config.new_encoder is not None:
        return new_config(config.new_encoder)
    return load_config(str(config.model), trust_remote_code=config.trust_remote_code)


def starting_commit(config: TrainConfig) -> str | None:
    """Return the commit of the hub model that training starts from; None for a local model."""
    name = config.init_from or config.model
    if name is None or not is_hub_id(resolve_model(name)):
        return None
    return model_commit(name)


def limited(data: Dataset, config: TrainConfig) -> Dataset:
    """Keep the first ``limit`` training examples, and the first ``limit_eval`` of other splits."""
    splits, notes = dict(data.splits), list(data.notes)
    for split, examples in data.splits.items():
        option, limit = "--limit", config.limit
        if split != "train":
            option, limit = "--limit-eval", config.limit_eval
        if limit is None or limit >= len(examples):
            continue
        splits[split] = examples[:limit]
        note = f"{option}: the first {limit:,} of {quantity(len(examples), 'example')} of {split}"
        texts = isinstance(examples[0], TextExample)
        labels = set(column(splits[split], "label")) if texts else set()
        if len(labels) == 1 and None not in labels:
            note += f"; no label but {labels.pop()!r}: the data are sorted, shuffle them"
        notes.append(note)
    return replace(data, splits=splits, notes=notes)


def _saved_labels(config: TrainConfig) -> tuple[str, ...]:
    """Return the labels of the checkpoint of a run to resume; empty if there is none."""
    path = Path(config.out or "") / "last" / TASK_FILE
    return tuple(read_object(path, {"labels": list[str]})["labels"]) if path.is_file() else ()


def _checked(data: Dataset, skipped: Collection[str]) -> Dataset:
    """Raise UserError for the first error of the data checks; add their warnings to the notes."""
    findings = check_data(data, max_length=None)
    findings = [finding for finding in findings if finding.check not in skipped]
    for finding in findings:
        if finding.level == "error":
            where = finding.locations[0] if finding.locations else data.name
            raise UserError(f"{where}: {finding.message}.")
    warnings = [
        f"{WARNING}{finding}"
        for finding in findings
        if finding.level == "warning" and finding.check != "reading"  # a note already
    ]
    return replace(data, notes=[*data.notes, *warnings])


def _without_unlabeled_tests(definition: TaskDefinition, data: Dataset) -> Dataset:
    """Leave out test splits without any gold: nothing can be scored on them."""
    unlabeled = {
        split: examples
        for split, examples in data.splits.items()
        if is_test(split) and all(definition.gold(example) is None for example in examples)
    }
    notes = [
        f"{split}: {quantity(len(examples), 'example')} without labels, which are not "
        "predicted (finetune predict predicts them)"
        for split, examples in unlabeled.items()
    ]
    splits = {split: data.splits[split] for split in data.splits if split not in unlabeled}
    return replace(data, splits=splits, notes=[*data.notes, *notes])
