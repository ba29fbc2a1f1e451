"""Tasks: what to read, encode, score and answer. How to train and predict is not their business.

A new task is one file with a class that has the members of ``Task``, a line in ``TASKS`` and a
configuration class in ``finetune.config.tasks``.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from finetune.config.tasks import TrainConfig
from finetune.types import Batch, Encoding, Example, LabelSet, Partial, Prediction, UserError

if TYPE_CHECKING:
    import torch

    from finetune.data import Dataset
    from finetune.preprocessing.encodings import Encoded

TASKS = {
    "classify": "finetune.tasks.text_classification:TextClassificationTask",
    "nli": "finetune.tasks.text_classification:NliTask",
    "tag": "finetune.tasks.token_classification:TokenClassificationTask",
    "ner": "finetune.tasks.span_ner:SpanNerTask",
}
"""Where each task's class is; imported on first use."""

TASK_FILE = "finetune.json"
"""The file beside a saved model that says which task it is for and how to use it."""


class Task(Protocol):
    """What the trainer and the commands need of a task."""

    name: str
    words: bool
    """Whether its input is words (and not whole texts)."""
    pairs: bool | None
    """Whether an example has two texts; None where both kinds are answered."""
    config: TrainConfig
    metric: str
    """The metric that selects the best model (higher is better)."""
    labels: LabelSet
    notes: list[str]
    """What a person should know about how the data was read."""
    fingerprint: str
    """Hash of the data's content."""
    num_cut: int
    """Texts or words cut to fit since the count was last set to 0."""
    num_alone: int
    """Examples answered without the context that the task reads: they name no document."""

    @property
    def splits(self) -> list[str]:
        """Names of the splits there are, ``train`` first."""

    def on(self, data: Dataset) -> Task:
        """The same task, with its labels and all, on other data in the task's form."""

    def forget(self) -> None:
        """Drop what an earlier training fitted on validation (``calibrate``)."""

    def read(self, split: str) -> Sequence[Example]:
        """The examples of a split."""

    def in_context(self, examples: Iterable[Any]) -> Iterator[Any]:
        """Examples to answer, in order, each with what the task reads around it."""

    def encode(self, examples: Sequence[Example]) -> Encoded:
        """The sequences of each example: one, or several windows."""

    def encoding_key(self, examples: Sequence[Example]) -> str:
        """A hash of all that ``encode(examples)`` follows from."""

    def unreadable(self, encoded: Encoded) -> list[str]:
        """What the tokenizer has no pieces for, if it is much, in lines to read."""

    def lost(self, examples: Sequence[Example], encoded: Encoded) -> list[str]:
        """What gold of these examples no answer can contain, in lines to read."""

    def collate(self, encodings: Iterable[Encoding]) -> Mapping[str, torch.Tensor]:
        """The targets of a batch of sequences, in the same order; none where gold is missing."""

    def head(self, name: str | Path | None = None) -> Any:
        """A model: fresh on the configured encoder, or the one saved in a folder."""

    def encoder_config(self) -> Any:
        """The Hugging Face configuration of the encoder of fresh models."""

    def loss(self, logits: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of the losses and what to divide it by, so that batches can be added up.

        ``logits`` is what the head answers: a tensor or a named tuple of tensors.
        """

    def decode(self, logits: Any, batch: Batch) -> list[Partial]:
        """What each sequence of a batch says about its example."""

    def finish(self, example: Example, partials: Sequence[Partial]) -> Prediction:
        """The one prediction for an example, from all its sequences."""

    def has_gold(self, example: Example) -> bool:
        """Whether the example can be scored."""

    def score(self, gold: Sequence[Example], predicted: Sequence[Prediction]) -> dict[str, float]:
        """Metrics by name; gold and predictions are in the same order."""

    def calibrate(
        self, head: Any, gold: Sequence[Example], predicted: Sequence[Prediction]
    ) -> list[Prediction] | None:
        """Fit on validation what is left open until then (thresholds), keep it in task and head;
        returns the predictions as they are now, or None where there is nothing to fit."""

    def save(self, folder: Path) -> None:
        """Write beside a model all that is needed to use it again."""


def task_class(name: str) -> Any:
    """The class of a task by name."""
    module, _, attribute = TASKS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def load_task(config: TrainConfig, name: str, data: Dataset | None = None) -> Task:
    """The task with its data read and its tokenizer loaded, ready for training.

    ``data`` in memory takes the place of what ``config.data`` names.
    """
    return task_class(name).from_data(config, data)


def saved_task(folder: str | Path) -> Task:
    """The task of a saved model; raises ValueError where the folder holds none."""
    path = model_folder(folder) / TASK_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        task = task_class(content["task"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: damaged, or of another version of finetune ({error!r:.100}): restore the "
            "folder from its source, or train again."
        ) from error
    return task.from_folder(path.parent, content)


def model_folder(folder: str | Path) -> Path:
    """The folder that holds the model: the one given, or its ``best`` where it is a run folder."""
    folder = Path(folder)
    for candidate in (folder, folder / "best"):
        if (candidate / TASK_FILE).is_file():
            return candidate
    if not folder.exists():
        raise UserError(f"{folder}: no such folder. Give a run folder or the model inside it.")
    inner = next(
        (run for run in sorted(folder.glob("*/")) if (run / "best" / TASK_FILE).is_file()), None
    )
    if inner is not None:
        raise UserError(
            f"{folder} is a folder of runs, not one of them: write for instance {inner}."
        )
    raise UserError(
        f"{folder}: no {TASK_FILE} in it or in {folder / 'best'}, so this is no model saved by "
        "finetune (or its training has not reached the first evaluation)."
    )
