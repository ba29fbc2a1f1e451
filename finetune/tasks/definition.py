"""From settings and data to a task: the steps of all tasks, which call the class of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from finetune.config.tasks import IN_MEMORY, TrainConfig
from finetune.data import Dataset, unmeasured_labels
from finetune.data.json_files import read_object
from finetune.evaluation.runs import RunFolder
from finetune.models.families import FAMILIES, position_limit
from finetune.models.loading import load_config, new_config
from finetune.models.warm_start import WarmStart, find_warm_start
from finetune.preprocessing.preparation import Prepared, limited, prepared_data, read_data
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.tasks import TASK_FILE, saved_task, task_class, task_of
from finetune.tasks.base import Task
from finetune.types import DataError, UserError


def load_defined(task: type[Task], config: TrainConfig, data: Any = None) -> tuple[Task, Dataset]:
    """Read and prepare the data, derive the labels, load the tokenizer (``load_task``)."""
    if config.replayed is not None and not config.columns:
        columns = RunFolder.open(Path(config.replayed[0])).config.get("columns") or ()
        config = replace(config, columns=tuple(columns))
    data, derived, _ = _prepared(task, config, data)
    warm_start, tokenizer = load_tokenizer(config, task, derived["labels"], derived.get("problem"))
    limit = sequence_limit(config, tokenizer, warm_start)
    state = task.state_class(config=config, max_length=limit, **derived)
    loaded = task_of(task, state, tokenizer, warm_start)
    data = limited(data, config)
    return loaded, loaded.complete(replace(data, notes=[*data.notes, *unmeasured_labels(data)]))


def run_data(
    task: Task, model: Path, need: str, data: Any = None, otherwise: str = "train again"
) -> Dataset:
    """Read the data that a model was trained on, divided as in training.

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
    config: Any = replace(task.state.config, resume=False)
    config = replace(config, data=saved.get("data_used") or config.data)
    definition = task_class(task.name)
    if data is not None:
        return definition.prepare(config, read_data(definition, config, data))
    if config.data == IN_MEMORY:
        raise UserError(f"{model}: was trained on data in memory, and {need}: {otherwise}.")
    try:
        dataset = limited(_prepared(definition, config).data, config)
    except DataError as error:
        raise UserError(
            f"{model.parent}: was trained on {config.data}, and {need}: {error} Restore them, or "
            f"run the command in the folder where they are, or {otherwise}."
        ) from error
    if saved.get("fingerprint", dataset.fingerprint) != dataset.fingerprint:
        if (model.parent.parent / "folds.json").is_file():
            raise UserError(
                f"{model.parent}: was trained on a fold of {dataset.name}, and {need}: {otherwise}."
            )
        raise UserError(
            f"{dataset.name}: changed since the training of {model.parent}, and {need}: restore "
            f"them, or {otherwise}."
        )
    return dataset


def _prepared(task: type[Task], config: TrainConfig, data: Any = None) -> Prepared:
    labels: tuple[str, ...] = ()
    path = Path(config.out or "") / "last" / TASK_FILE
    if config.resume and path.is_file():
        labels = tuple(read_object(path, {"labels": list[str]})["labels"])
    return prepared_data(task, config, data, labels, partial(_data_of_run, config))


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
    """Load the model to begin with, if there is one, and the tokenizer of the encoder."""
    words = config.description.words
    if config.init_from is not None:
        RunFolder.open(Path(config.init_from)).require_intact()
        warm_start = find_warm_start(config, task.reusable_head, labels, problem)
        return warm_start, SubwordTokenizer.saved(warm_start.source, words=words)
    return None, SubwordTokenizer.from_pretrained(str(config.model), words=words)


def sequence_limit(
    config: TrainConfig, tokenizer: SubwordTokenizer, warm_start: WarmStart | None
) -> int:
    """The longest sequence in tokens, special tokens included."""
    encoder = starting_config(config, warm_start)
    limit = position_limit(encoder, FAMILIES.get(encoder.model_type))
    return tokenizer.max_length(limit, config.max_length)


def starting_config(config: TrainConfig, warm_start: WarmStart | None = None) -> Any:
    """Load the Hugging Face configuration of the encoder that a new model starts from."""
    if warm_start is None and config.init_from is not None:
        warm_start = find_warm_start(config, None, (), None)
    if warm_start is not None:
        return warm_start.config
    if config.new_encoder is not None:
        return new_config(config.new_encoder)
    return load_config(str(config.model))
