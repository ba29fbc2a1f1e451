"""A task in one file: ordinal regression, one logit for each rank but the first (Cheng, 2008)."""

from finetune import LabelSet, SequenceClassifier, TextPrediction, TrainConfig, train
from finetune.config.tasks import CONFIGS, TaskDescription
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
        at_least = batch.targets["rank"][:, None] > logits.new_tensor(range(logits.shape[1]))
        losses = logits.logaddexp(logits.new_zeros(1)) - logits * at_least  # cross entropies
        return losses.sum(), logits.new_tensor(len(logits))

    def decode(self, logits, batch):
        return (logits > 0).sum(1).tolist()

    def postprocess(self, example, outputs):
        return TextPrediction(example.id, str(outputs[0].values))


def test_a_task_in_one_file(tmp_path, monkeypatch):
    paths = TaskPaths(f"{__name__}:RankConfig", f"{__name__}:RankTask", "the rank of a text")
    monkeypatch.setitem(TASKS, "rank", paths)
    monkeypatch.setitem(CONFIGS.paths, "rank", paths.config)
    texts = ["the dog", "the dog saw it", "the dog saw it and a"]
    rows = [{"text": text, "label": str(rank)} for rank, text in enumerate(texts)] * 3
    settings = {"model": str(fx.checkpoint(dropout=0.0)), "out": str(tmp_path / "run")}
    result = train("rank", rows, validation="none", steps=30, lr=5e-3, quiet=True, **settings)
    assert [p.label for p in result.predictor.predict(texts)] == ["0", "1", "2"]
