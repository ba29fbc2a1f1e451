"""From settings and data to a task: the steps of all tasks, which call the class of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from finetune.config.tasks import (
    IN_MEMORY,
    TrainConfig,
    changes_of,
    named_test_sets,
    settings,
)
from finetune.data import (
    Dataset,
    check_data,
    unmeasured_labels,
    with_held_out_splits,
    with_test_sets,
)
from finetune.data import examples as holder
from finetune.data.dataset import WARNING, DataError
from finetune.data.json_files import read_object
from finetune.data.mixing import with_replay
from finetune.data.snapshots import Inputs, Prepared, large_inputs
from finetune.data.sources import Content, PartOf, content_of, is_test, resolve
from finetune.evaluation.runs import RunFolder
from finetune.models.families import FAMILIES, position_limit
from finetune.models.loading import is_hub_id, load_config, model_commit, new_config, resolve_model
from finetune.models.warm_start import WarmStart, find_warm_start
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.tasks import TASK_FILE, saved_task, task_class
from finetune.tasks.base import Task
from finetune.types import UserError, quantity


def read_data(task: type[Task], config: TrainConfig, source: Any = None) -> Dataset:
    """Read the data of a run with its further test sets; ``source`` replaces ``config.data``."""
    source = config.data if source is None else source
    data = task.read(config, PartOf(source, most_rows=most_rows(config)))
    others = {
        split: task.read(config, each) for split, each in named_test_sets(config.test_sets).items()
    }
    return with_test_sets(data, others)


def most_rows(config: TrainConfig) -> int | None:
    """Return the number of rows of the training split to read with ``--limit``; None reads all.

    As many as fit in memory are read, and at least twice as many as asked for: labels, checks and
    the examples that are held out come from these rows, too.
    """
    return None if config.limit is None else max(2 * config.limit, holder.MOST_IN_MEMORY)


def load_defined(task: type[Task], config: TrainConfig, data: Any = None) -> tuple[Task, Dataset]:
    """Read and prepare the data, derive the labels, load the tokenizer (``load_task``)."""
    config = _with_columns_of_replayed(config)
    data, derived, _ = _prepared(task, config, data)
    warm_start, tokenizer = load_tokenizer(config, task, derived["labels"], derived.get("problem"))
    limit = sequence_limit(config, tokenizer, warm_start)
    record = task.record_class(config=config, max_length=limit, **derived)
    data = limited(data, config)
    notes = [*data.notes, *unmeasured_labels(data), *task.notes(record, data)]
    notes += [warm_start.note] if warm_start else []
    made = task.of(record, tokenizer, warm_start)
    return made, made.complete(replace(data, notes=notes))


def _prepared(task: type[Task], config: TrainConfig, data: Any) -> Prepared:
    """Return the prepared data and the derived fields of the record, of large data from the cache.

    They depend on settings that change data, and on the labels of a run to resume.
    """
    saved = _saved_labels(config) if config.resume else ()
    make = partial(_prepare, task, config, data, saved)
    if isinstance(data, Dataset) or config.replayed is not None:
        return make()
    most = most_rows(config)
    if most == holder.MOST_IN_MEMORY:
        return make()  # takes seconds, and the whole input would be hashed for the cache
    inputs = _inputs(config, data)
    if inputs is None:
        return make()
    if not saved:
        return inputs.prepared(make)
    found = inputs.known()  # most checkpoints have the labels in the order of the data
    if found is not None and tuple(found.derived["labels"]) == saved:
        return found
    return inputs.prepared(make, labels=saved)


def read_once(task: type[Task], config: TrainConfig) -> Dataset:
    """Read the data of several runs (``read_data``); take large data from the cache."""

    def make() -> Prepared:
        data = read_data(task, config)
        return Prepared(data, {}, data.is_large)

    inputs = _inputs(config, None)
    made = inputs.prepared(make, of="runs") if inputs else make()
    return made.data


def _inputs(config: TrainConfig, data: Any) -> Inputs | None:
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
    marks = changes_of(type(config))
    facts = {
        "task": config.description.name,
        "sources": list(map(repr, sources)),
        "settings": {n: value for n, value in settings(config).items() if marks[n].data},
        **more,
    }
    return large_inputs(contents, facts)


def run_data(
    task: Task, model: Path, need: str, data: Any = None, otherwise: str = "train again"
) -> Dataset:
    """Return the data that a model was trained on, as training read and divided them.

    Args:
        task: The task of the model.
        model: Its folder, in the folder of its run.
        need: What the data are needed for, for messages.
        data: Other data in place of them, which are not divided.
        otherwise: What a user can do if the data are gone.

    Raises:
        UserError: The data were in memory, or have changed since.
    """
    saved = RunFolder.open(model.parent).config  # empty if the folder is a model alone
    config: Any = replace(task.record.config, resume=False)
    config = replace(config, data=saved.get("data_used") or config.data)
    definition = task_class(task.name)
    if data is not None:
        return definition.prepare(config, read_data(definition, config, data))
    if config.data == IN_MEMORY:
        raise UserError(f"{model}: was trained on data in memory, and {need}: {otherwise}.")
    try:
        found = limited(_prepared(definition, config, None).data, config)
    except DataError as error:
        raise UserError(
            f"{model.parent}: was trained on {config.data}, and {need}: {error} Restore them, or "
            f"run the command in the folder where they are, or {otherwise}."
        ) from error
    if saved.get("fingerprint", found.fingerprint) != found.fingerprint:
        raise UserError(
            f"{found.name}: changed since the training of {model.parent}, and {need}: restore "
            f"them, or {otherwise}."
        )
    return found


def _prepare(task: type[Task], config: TrainConfig, data: Any, saved: tuple[str, ...]) -> Prepared:
    """Read, convert, check and divide the data, and derive the fields of the record.

    ``saved`` are the labels of a run to resume: its head has them in this order.
    """
    if not isinstance(data, Dataset):
        data = read_data(task, config, data)
    for split, rows in data.splits.items():
        if rows:
            config.description.require_examples(rows.kind, f"{data.name}: the examples of {split}")
    data = task.prepare(config, data)
    if "train" not in data.splits:
        raise UserError(
            f"{config.data}: there is no train split (found: {', '.join(data.splits)}). "
            "Name it with --data train=FILE,test=FILE."
        )
    if (replayed := config.replayed) is not None:
        data = with_held_out_splits(data, config)
        data = with_replay(data, _data_of_run(config, replayed[0]), replayed[1], config.seed)
    data = replace(data, label_order=saved or data.label_order)
    data = _without_unlabeled_tests(task, data)
    data = _checked(data, task.skipped_checks)
    derived = task.derive(config, data)
    if replayed is None:
        data = with_held_out_splits(data, config)
    return Prepared(data, derived, data.is_large)


def _with_columns_of_replayed(config: TrainConfig) -> TrainConfig:
    if config.columns or config.replayed is None:
        return config
    columns = RunFolder.open(Path(config.replayed[0])).config.get("columns") or ()
    return replace(config, columns=tuple(columns))


def _data_of_run(config: TrainConfig, name: str) -> Dataset:
    run = RunFolder.open(Path(name))
    run.require_config()
    if not run.is_finished or run.config["task"] != config.description.name:
        raise UserError(
            f"--replay {name}: name the folder of a finished run of finetune "
            f"{config.description.name}, perhaps with a share, as in RUN:0.5."
        )
    otherwise = "add old examples to the data"
    return run_data(saved_task(name), run.best, "--replay draws from them", otherwise=otherwise)


def load_tokenizer(
    config: TrainConfig, task: type[Task], labels: Sequence[str], problem: Any = None
) -> tuple[WarmStart | None, SubwordTokenizer]:
    """Return the model to begin with, if there is one, and the tokenizer of the encoder."""
    words = config.description.words
    if config.init_from is not None:
        RunFolder.open(Path(config.init_from)).require_intact()
        warm_start = find_warm_start(config, task.reusable_head, labels, problem)
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


def _saved_labels(config: TrainConfig) -> tuple[str, ...]:
    path = Path(config.out or "") / "last" / TASK_FILE
    return tuple(read_object(path, {"labels": list[str]})["labels"]) if path.is_file() else ()


def _checked(data: Dataset, skipped: Collection[str]) -> Dataset:
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


def _without_unlabeled_tests(task: type[Task], data: Dataset) -> Dataset:
    unlabeled = {
        split: examples
        for split, examples in data.splits.items()
        if is_test(split) and all(task.gold(example) is None for example in examples)
    }
    notes = [
        f"{split}: {quantity(len(examples), 'example')} without labels, which are not "
        "predicted (finetune predict predicts them)"
        for split, examples in unlabeled.items()
    ]
    splits = {split: data.splits[split] for split in data.splits if split not in unlabeled}
    return replace(data, splits=splits, notes=[*data.notes, *notes])
