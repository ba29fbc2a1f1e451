"""Rank candidate texts for a query with a bi-encoder: their vectors are computed once.

python examples/rank.py
"""

import os
import time

from finetune import ClassifyConfig, fit, load_task, read_text
from finetune.embeddings.rank import Ranker

config = ClassifyConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/similarity",  # numbers from 0 to 5
    pair_encoder="bi",  # or "poly"; "cross" reads each candidate with each query
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-rank"),
)
task, data = load_task(config, "classify")
result = fit(task, data, config)
print("test pearson:", round(result.metrics["test"]["pearson"], 4))

examples = read_text("examples/data/similarity").splits["test"]
candidates = list(dict.fromkeys(example.pair for example in examples))
begin = time.perf_counter()
ranker = Ranker(result.folder, candidates)
print(f"{len(candidates)} candidates, read once in {time.perf_counter() - begin:.2f} s")

begin = time.perf_counter()
ranked = ranker.rank("A woman is playing the violin.", 3)
print(f"ranked in {time.perf_counter() - begin:.4f} s")
for each in ranked:
    print(round(each.score, 2), each.text)
