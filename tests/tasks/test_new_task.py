"""A task in one file, one dataclass and one row: multiple choice, which trains and predicts.

A text has several continuations. Each makes a sequence, and one softmax over the sequences of an
example chooses, so that the loss needs all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch

import finetune
from finetune.config.description import TaskDescription
from finetune.config.tasks import CONFIGS, TrainConfig, column_map
from finetune.data import Dataset, read_text
from finetune.models.heads.sequence_classification import SequenceClassifier
from finetune.preprocessing.encodings import Ragged
from finetune.registry import TASKS, TaskPaths
from finetune.tasks import load_task
from finetune.tasks.base import Task, TaskRecord
from finetune.tasks.capabilities import CoupledLoss
from finetune.tasks.definition import TaskDefinition
from finetune.tasks.inputs import TextInputs
from finetune.types import (
    Batch,
    Encoding,
    LabelSet,
    Partial,
    Sequences,
    TextExample,
    TextPrediction,
)
from tests.small_data import write_jsonl
from tests.tiny import save_tiny_checkpoint


@dataclass(frozen=True, kw_only=True)
class ChoiceConfig(TrainConfig):
    """Multiple choice."""

    group: ClassVar[str] = "task"
    description: ClassVar = TaskDescription(
        name="choice", title="multiple choice", pairs=False, windows=False, metrics=("accuracy",)
    )
    data: str = ""


@dataclass(frozen=True, kw_only=True)
class ChoiceRecord(TaskRecord):
    """The record of multiple choice."""

    kind = "label"

    @property
    def inputs(self) -> TextInputs:
        return TextInputs(column_map(self.config.columns), pairs=False)


class Scores(NamedTuple):
    """The score of each sequence [N, 1]."""

    vectors: torch.Tensor


class ChoiceHead(SequenceClassifier):
    """A score for each sequence."""

    def forward(self, batch: Batch) -> Any:
        return Scores(super().forward(batch))


GOLD = attrgetter("label")


class ChoiceTask(Task):
    """The text that goes on best."""

    record: ChoiceRecord
    _gold = GOLD

    def _capabilities(self) -> Iterator[object]:
        yield CoupledLoss(self._softmax)

    def _sequences(self, examples: Sequence[TextExample]) -> tuple[list[list[Encoding]], int]:
        found = []
        for example in examples:
            choices = example.text.split("|")
            chosen = None if example.label is None else choices.index(str(example.label))
            found.append(
                [
                    Encoding(
                        example.id,
                        *self.tokenizer.build(ids),
                        [],
                        number,
                        None if chosen is None else {"chosen": [number == chosen]},
                    )
                    for number, ids in enumerate(self.tokenizer.text_subwords(choices))
                ]
            )
        return found, 0

    def _targets(self, rows: Mapping[str, Ragged]) -> dict[str, torch.Tensor]:
        return {"chosen": torch.from_numpy(rows["chosen"].values.astype(bool))}

    def head(self, folder: str | Path | None = None) -> ChoiceHead:
        if folder is not None:
            return ChoiceHead.from_pretrained(str(folder), labels=None)
        with self._pretrained() as start:
            return ChoiceHead.from_pretrained(labels=["score"], problem="regression", **start)

    def _softmax(
        self, head: Any, vectors: torch.Tensor, sequences: Sequences
    ) -> tuple[torch.Tensor, torch.Tensor]:
        example, chosen = torch.tensor(sequences.example), sequences.targets["chosen"]
        losses = [
            -vectors[example == one, 0].log_softmax(0)[chosen[example == one]]
            for one in example.unique()
        ]
        return torch.cat(losses).sum(), vectors.new_tensor(len(losses))

    def decode(self, logits: Scores, batch: Batch) -> list[Partial]:
        rows = logits.vectors[:, 0].cpu().numpy()
        return batch.partials(rows)

    def finish(
        self, example: TextExample, partials: Sequence[Partial], *, log_probabilities: bool = False
    ) -> TextPrediction:
        scores = [each.values for each in sorted(partials, key=attrgetter("part"))]
        return TextPrediction(example.id, example.text.split("|")[int(np.argmax(scores))])

    def _score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        pairs = zip(gold, predicted, strict=True)
        return {"accuracy": sum(e.label == p.label for e, p in pairs) / len(gold)}


def read_choices(config: ChoiceConfig, source: Any) -> Dataset:
    return read_text(source, columns=column_map(config.columns), pair=False)


def derive_choices(config: ChoiceConfig, data: Dataset) -> dict[str, Any]:
    return {"labels": LabelSet(()), "pairs": False}


CHOICE = TaskDefinition(
    task=ChoiceTask,
    record=ChoiceRecord,
    read=read_choices,
    derive=derive_choices,
    gold=GOLD,
    skipped_checks=("labels",),
)


def test_a_task_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = TaskPaths(f"{__name__}:ChoiceConfig", f"{__name__}:CHOICE", "the text that goes on best")
    monkeypatch.setitem(TASKS, "choice", row)
    monkeypatch.setitem(CONFIGS.paths, "choice", row.config)
    rows = [
        {"text": f"the dog {a}|the dog {b}", "label": "the dog saw it"}
        for a, b in (("saw it", "and a"), ("and a", "saw it"), ("in the", "saw it")) * 3
    ]
    config = ChoiceConfig(
        model=str(save_tiny_checkpoint(tmp_path / "bert", dropout=0.0)),
        data=str(write_jsonl(tmp_path / "train.jsonl", rows).parent),
        out=str(tmp_path / "run"),
        validation="none",
        steps=30,
        batch_size=3,
        max_tokens=40,
        max_length=16,
        lr=5e-3,
    )
    task, data = load_task(config, "choice")
    result = finetune.fit(task, data, config)
    model = finetune.load(result.folder)
    predicted = model.predict(["the dog and a|the dog saw it", "the dog saw it|the dog in the"])
    assert [each.label for each in predicted] == ["the dog saw it"] * 2
