"""Simulate active learning: label what a model suggests, or random examples, and train again.

python examples/annotation_loop.py
python examples/annotation_loop.py classify trec6 --by both random --seeds 1 2 3
"""

import argparse
import json
import os
import shutil

import numpy as np

import finetune
from finetune.annotation.suggestion import Suggester
from finetune.data import read_text, read_tokens

METRICS = {"classify": "accuracy", "nli": "accuracy", "tag": "span_f1_conll"}
parser = argparse.ArgumentParser()
parser.add_argument("task", nargs="?", default="classify", choices=METRICS)
parser.add_argument("data", nargs="?", default="examples/data/sentiment")
parser.add_argument("--by", nargs="+", default=["both"])
parser.add_argument("--seeds", nargs="+", type=int, default=[1])
parser.add_argument("--start", type=int, default=100, help="examples of the first round")
parser.add_argument("--add", type=int, default=100, help="examples that each round adds")
parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS", "2")))
parser.add_argument("--pool", type=int, default=2000, help="examples to choose from")
parser.add_argument("--test", type=int, default=500, help="examples to score on")
parser.add_argument("--epochs", type=float, default=4)
options = parser.parse_args()

out = os.environ.get("OUT", "runs/example-loop")
steps = {"steps": int(os.environ["STEPS"])} if "STEPS" in os.environ else {"epochs": options.epochs}
read = read_tokens if options.task == "tag" else read_text
data = read(options.data)
for seed in options.seeds:
    order = np.random.default_rng(seed).permutation(len(data.splits["train"]))
    pool = data.splits["train"].take(order[: options.pool]).renumbered()
    test = data.splits["test"][: options.test].renumbered()
    for by in options.by:
        labeled, suggester = set(range(options.start)), None
        for _ in range(options.rounds + 1):
            if suggester is not None:  # a person labels these
                rest = [example for example in pool if example.id not in labeled]
                chosen = suggester.suggest(rest, options.add, by, seed)
                labeled |= {each.example.id for each in chosen}
            train = pool.take(sorted(labeled)).renumbered()
            shutil.rmtree(out, ignore_errors=True)
            run = finetune.train(
                options.task,
                finetune.Dataset("pool", {"train": train, "test": test}),
                os.environ.get("MODEL", "minilm"),
                validation="none",
                batch_size=16,
                lr=2e-4,
                seed=seed,
                out=out,
                quiet=True,
                **steps,
            )
            score = run.metrics["test"][METRICS[options.task]]
            found = {"data": options.data, "by": by, "seed": seed, "labeled": len(labeled)}
            print(json.dumps(found | {"score": round(score, 4)}), flush=True)
            suggester = Suggester(out)
