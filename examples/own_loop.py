"""The pieces without the trainer: your own loop, loss and optimizer around a packed model.

python examples/own_loop.py
"""

import os
import random

import torch
from torch.nn.functional import cross_entropy

from finetune import Encoding, SequenceClassifier, SubwordTokenizer, TextExample, pack, read_text

name = os.environ.get("MODEL", "minilm")
data = read_text("examples/data/sentiment")
labels = ["negative", "positive"]
tokenizer = SubwordTokenizer.from_pretrained(name)
model = SequenceClassifier.from_pretrained(name, labels=labels)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def encode(examples: list[TextExample]) -> list[Encoding]:
    pieces = tokenizer.text_subwords([example.text for example in examples])
    return [Encoding(e.id, *tokenizer.build(p[:60])) for e, p in zip(examples, pieces, strict=True)]


def logits(examples: list[TextExample]) -> torch.Tensor:
    # Sequences of any lengths laid end to end: no padding, no attention mask; [N, C] comes out.
    return model(pack(encode(examples)))


def targets(examples: list[TextExample]) -> torch.Tensor:
    return torch.tensor([labels.index(example.label) for example in examples])


model.train()  # dropout on; what from_pretrained returns is ready to answer, not to learn
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
    right = logits(data.splits["test"]).argmax(-1) == targets(data.splits["test"])
print(f"test accuracy: {right.float().mean().item():.4f}")

# Plain transformers files: AutoModelForSequenceClassification loads this folder.
model.save_pretrained(out := os.environ.get("OUT", "runs/example-own-loop"))
tokenizer.save_pretrained(out)
