"""Sentence vectors: train an encoder on scored pairs, and search with its vectors.

python examples/sentence_encoder.py
"""

import os

import numpy as np

from finetune import Embedder, SentenceConfig, fit, load_task

config = SentenceConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/similarity",
    objective="cosine",
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-sentences"),
)
task, data = load_task(config, "sentence")
result = fit(task, data, config)
print("test:", {name: round(value, 4) for name, value in result.metrics["test"].items()})

# The vectors are those of the saved model: pooled and scaled as in training.
texts = ["A man plays a guitar.", "The train was late.", "Children run in the rain."]
embedder = Embedder(result.folder, normalize=True)
vectors = np.concatenate([each.vectors for each in embedder.encode(texts)])
(query,) = embedder.encode(["Somebody makes music."])
for index in np.argsort(-(vectors @ query.vectors[0])):
    print(f"{float(vectors[index] @ query.vectors[0]):.2f}", texts[index])
