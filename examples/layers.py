"""Frozen layers, layer-wise learning rates, and a learning rate for the head.

python examples/layers.py
"""

import os

from finetune import ClassifyConfig, fit, load_task
from finetune.training.optimizer import parameter_groups

config = ClassifyConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/sentiment",
    freeze="1",  # the embeddings and the lowest layer stay fixed
    lr=2e-4,
    layer_decay=0.8,  # lower layers are more general and change less
    head_lr=1e-3,  # the head is new
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-layers"),
)
task, data = load_task(config, "classify")

# Inspect the settings before training.
head = task.model()
frozen = head.encoder.freeze(config.freeze)
print(f"{frozen:,} of {sum(p.numel() for p in head.parameters()):,} weights are frozen")
rates = {group["lr"] for group in parameter_groups(head, config)}
print("peak learning rates from the head down:", *(f"{r:.2e}" for r in sorted(rates, reverse=True)))

result = fit(task, data, config, model=head)
print("test accuracy:", round(result.metrics["test"]["accuracy"], 4))
