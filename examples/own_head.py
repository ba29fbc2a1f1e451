"""A head of your own, in runs with seeds, metrics, checkpoints and a table.

python examples/own_head.py               # the same command continues runs that were stopped
"""

import os
import statistics
from dataclasses import replace

import torch
from torch import nn

from finetune import ClassifyConfig, fit, load_task
from finetune.models.heads.base import EncoderModel, EncoderModelConfig
from finetune.tasks.text_classification import TextClassificationTask


class AttentionPoolingConfig(EncoderModelConfig):
    model_type = "attention-pooling"


class AttentionPooling(EncoderModel):
    """Logits [N, C] from a learned mean of the hidden states of each text."""

    config_class = AttentionPoolingConfig

    def add_layers(self, width) -> None:
        self.score, self.classifier = nn.Linear(width, 1), nn.Linear(width, len(self.labels))

    def read(self, hidden, batch) -> torch.Tensor:
        """Return logits from hidden states [T, H]: texts lie end to end, without padding."""
        weights = self.score(hidden).float().sigmoid()  # [T, 1]; bf16 is too coarse for sums
        texts = torch.arange(len(batch.lengths), device=hidden.device)
        text = texts.repeat_interleave(batch.cu_seqlens.diff().long())  # of each token
        sums = weights.new_zeros(len(texts), hidden.shape[1]).index_add(0, text, weights * hidden)
        total = weights.new_zeros(len(texts), 1).index_add(0, text, weights)
        return self.classifier((sums / total).to(hidden.dtype))


class AttentionPoolingTask(TextClassificationTask):
    """Text classification with the head above; data, loss and scores stay."""

    def model(self, folder=None) -> AttentionPooling:
        if folder is not None:  # a checkpoint, or the best model
            return AttentionPooling.from_pretrained(folder)
        labels = list(self.state.labels)
        return AttentionPooling.from_pretrained(self.state.config.model, labels=labels)


if __name__ == "__main__":
    out, scores = os.environ.get("OUT", "runs/example-own-head"), []
    config = ClassifyConfig(
        model=os.environ.get("MODEL", "minilm"),
        data="examples/data/sentiment",
        steps=int(os.environ.get("STEPS", "45")),
        resume="auto",
    )
    for seed in (1, 2, 3):
        config = replace(config, seed=seed, out=f"{out}/seed-{seed}")
        task, data = load_task(config, "classify")
        result = fit(AttentionPoolingTask(task.state, task.tokenizer), data, config)
        scores.append(result.metrics["test"]["accuracy"])
        print(f"seed {seed}: test accuracy {scores[-1]:.4f}")
    print(f"mean {statistics.mean(scores):.4f}, deviation {statistics.stdev(scores):.4f}")
