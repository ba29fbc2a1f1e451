"""A task in one file and one row: ordinal regression, which trains, predicts and is saved.

Labels are ranks from 0. One logit for each rank but the first tells whether the rank of a text is
at least this one (Cheng et al., 2008).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.nn import functional

import finetune
from finetune.config.description import TaskDescription
from finetune.config.tasks import CONFIGS, TrainConfig
from finetune.data import Dataset
from finetune.models.heads.pretrained import SequenceClassifier
from finetune.preprocessing.encodings import FlatSequences, Ragged
from finetune.preprocessing.texts import TextSequences
from finetune.registry import TASKS, TaskPaths
from finetune.tasks.base import Task, labeled_model
from finetune.tasks.state import TaskState
from finetune.types import Batch, LabelSet, TextExample, TextPrediction, TokenSequence, WindowOutput
from tests.small_data import write_jsonl
from tests.tiny import save_tiny_checkpoint


@dataclass(frozen=True, kw_only=True)
class RankConfig(TrainConfig):
    group: ClassVar[str] = "task"
    description: ClassVar = TaskDescription(
        name="rank", title="ordinal regression", pairs=False, metrics=("accuracy",)
    )


class RankTask(Task):
    state_class = TaskState
    gold = attrgetter("label")

    @classmethod
    def derive(cls, config: RankConfig, data: Dataset) -> dict[str, Any]:
        highest = max(int(example.label) for example in data.splits["train"])
        return {"labels": LabelSet(f"at least {n}" for n in range(1, highest + 1)), "pairs": False}

    def _sequences(self, examples: Sequence[TextExample]) -> tuple[list[list[TokenSequence]], int]:
        limit = self.state.max_length
        found, num_cut = TextSequences(self.tokenizer, limit, "truncate").encode(examples)
        for example, encodings in zip(examples, found, strict=True):
            target = None if example.label is None else {"rank": [int(str(example.label))]}
            encodings[:] = [replace(encoding, target=target) for encoding in encodings]
        return found, num_cut

    def _targets(
        self, rows: Mapping[str, Ragged], sequences: FlatSequences
    ) -> dict[str, torch.Tensor]:
        return {"rank": torch.from_numpy(rows["rank"].values.astype(int))}

    def model(self, folder: str | Path | None = None) -> SequenceClassifier:
        return labeled_model(self, SequenceClassifier.from_pretrained, folder, problem="multi")

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        ranks = torch.arange(1, logits.shape[1] + 1)
        at_least = (batch.targets["rank"][:, None] >= ranks).to(logits.dtype)
        losses = functional.binary_cross_entropy_with_logits(logits, at_least, reduction="none")
        return losses.sum(), logits.new_tensor(len(logits))

    def decode(self, logits: torch.Tensor, batch: Batch) -> list[WindowOutput]:
        return batch.window_outputs((logits > 0).sum(1).tolist())

    def finish(self, example: Any, outputs: Sequence[WindowOutput]) -> TextPrediction:
        return TextPrediction(example.id, str(outputs[0].values))


def test_a_task_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = TaskPaths(f"{__name__}:RankConfig", f"{__name__}:RankTask", "the rank of a text")
    monkeypatch.setitem(TASKS, "rank", row)
    monkeypatch.setitem(CONFIGS.paths, "rank", row.config)
    texts = ["the dog", "the dog saw it", "the dog saw it and a"]
    rows = [{"text": text, "label": str(rank)} for rank, text in enumerate(texts)] * 3
    data = str(write_jsonl(tmp_path / "train.jsonl", rows).parent)
    model, out = str(save_tiny_checkpoint(tmp_path / "bert", dropout=0.0)), str(tmp_path / "run")
    course = {"validation": "none", "steps": 30, "batch_size": 3, "max_length": 16, "lr": 5e-3}
    run = finetune.train("rank", data=data, model=model, out=out, **course)
    predicted = finetune.load(run.folder).predict(texts)
    assert [each.label for each in predicted] == ["0", "1", "2"]
