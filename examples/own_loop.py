"""Your own training loop, loss and optimizer around a packed model.

python examples/own_loop.py
"""

import os
import random

import torch
from torch.nn.functional import cross_entropy

from finetune import SequenceClassifier, SubwordTokenizer, TextExample, read_text

name = os.environ.get("MODEL", "minilm")
data = read_text("examples/data/sentiment")
labels = ["negative", "positive"]
tokenizer = SubwordTokenizer.from_pretrained(name)
model = SequenceClassifier.from_pretrained(name, labels=labels)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def logits(examples: list[TextExample]) -> torch.Tensor:
    # Sequences lie end to end, without padding or attention mask; logits are [N, C].
    return model(tokenizer([example.text for example in examples], max_length=62))


def targets(examples: list[TextExample]) -> torch.Tensor:
    return torch.tensor([labels.index(example.label) for example in examples])


model.train()  # turn dropout on: from_pretrained returns models in evaluation mode
for step in range(int(os.environ.get("STEPS", "45"))):
    batch = random.sample(data.splits["train"], 32)
    loss = cross_entropy(logits(batch), targets(batch))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 15 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

model.eval()
with torch.inference_mode():
    correct = logits(data.splits["test"]).argmax(-1) == targets(data.splits["test"])
print(f"test accuracy: {correct.float().mean().item():.4f}")

# AutoModelForSequenceClassification of transformers loads this folder.
model.save_pretrained(out := os.environ.get("OUT", "runs/example-own-loop"))
tokenizer.save_pretrained(out)
