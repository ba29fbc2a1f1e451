"""Adapt an encoder to running text, fill masks, and measure how much gradients vary with the masks.

python examples/pretrain.py
"""

import os
from dataclasses import replace

import torch

from finetune import PretrainConfig, fit, load, load_task, pack

config = PretrainConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/text",
    mask="words",
    steps=int(os.environ.get("STEPS", "60")),
    batch_size=16,
    max_length=64,
    out=os.environ.get("OUT", "runs/example-pretrain"),
)
task, data = load_task(config, "pretrain")
result = fit(task, data, config)
print("validation:", result.metrics["validation"])
(found,) = load(result.folder).predict(["The fish are sold on the [MASK]."])
print(found.to_dict())

# Seven masks of the same sequences, drawn one by one or as the parts of a whole (--explore): the
# variance of their mean gradient (Zheng et al., 2020).
encoded = task.encode(data.splits["train"][:8]).sequences
model = task.model(result.folder / "best").eval()
weights = [weight for name, weight in model.named_parameters() if name.endswith("query.weight")]
for explore in (False, True):
    task, _ = load_task(replace(config, explore=explore), "pretrain")
    means = []
    for repeat in range(4):
        for epoch in range(7 * repeat, 7 * repeat + 7):
            masked = task.sequences_of_epoch(encoded, 1, epoch)
            batch = pack(masked, task.collate(masked))
            total, count = task.loss(model(batch), batch)
            (total / count).backward()
        means.append(torch.cat([weight.grad.flatten() / 7 for weight in weights]))
        model.zero_grad()
    variance = torch.stack(means).var(0).sum()
    print(f"explore {explore}: variance of the gradient {variance:.3e}")
