"""A task in one file: ordinal regression, one logit for each rank but the first (Cheng, 2008)."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import finetune
from finetune import LabelSet, SequenceClassifier, TextPrediction, TrainConfig
from finetune.config.description import TaskDescription
from finetune.config.tasks import CONFIGS
from finetune.preprocessing.texts import encode_texts
from finetune.registry import TASKS, TaskPaths
from finetune.tasks.base import Task
from tests import fixtures as fx


class RankConfig(TrainConfig):
    description = TaskDescription(name="rank", title="ranks", metrics=("accuracy",))


class RankTask(Task):
    @classmethod
    def derive(cls, config, data):
        highest = max(int(example.label) for example in data.splits["train"])
        return {"labels": LabelSet(map(str, range(highest))), "pairs": False}

    def _sequences(self, examples):
        return encode_texts(examples, self.tokenizer, self.state.max_length, "truncate")

    def _window_targets(self, example, windows):
        return [{"rank": [int(example.label or 0)]}]

    def model(self, folder=None):
        return self._load(SequenceClassifier.from_pretrained, folder, problem="multi")

    def loss(self, logits, batch):
        at_least = batch.targets["rank"][:, None] > torch.arange(logits.shape[1])
        loss = binary_cross_entropy_with_logits(logits, at_least.to(logits.dtype), reduction="sum")
        return loss, logits.new_tensor(len(logits))

    def decode(self, logits, batch):
        return (logits > 0).sum(1).tolist()

    def postprocess(self, example, outputs):
        return TextPrediction(example.id, str(outputs[0].values))


def test_a_task_in_one_file(tmp_path, monkeypatch):
    row = TaskPaths(f"{__name__}:RankConfig", f"{__name__}:RankTask", "the rank of a text")
    monkeypatch.setitem(TASKS, "rank", row)
    monkeypatch.setitem(CONFIGS.paths, "rank", row.config)
    texts = ["the dog", "the dog saw it", "the dog saw it and a"]
    rows = [{"text": text, "label": str(rank)} for rank, text in enumerate(texts)] * 3
    settings = {"validation": "none", "steps": 30, "batch_size": 3, "lr": 5e-3, "quiet": True}
    settings |= {"model": str(fx.checkpoint(dropout=0.0)), "out": str(tmp_path / "run")}
    predictor = finetune.train("rank", rows, **settings).predictor
    assert [found.label for found in predictor.predict(texts)] == ["0", "1", "2"]
