"""Active learning: label the most uncertain texts, or random ones, and train again.

python examples/annotation_loop.py
python examples/annotation_loop.py --by random --rounds 4
"""

import argparse
import os
import shutil

import numpy as np

import finetune
from finetune.data import read_text

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="examples/data/sentiment")
parser.add_argument("--by", choices=["uncertainty", "random"], default="uncertainty")
parser.add_argument("--add", type=int, default=100, help="texts that each round labels")
parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS", "2")))
options = parser.parse_args()

steps = {"steps": int(os.environ["STEPS"])} if "STEPS" in os.environ else {"epochs": 4}
data, out = read_text(options.data), os.environ.get("OUT", "runs/example-loop")
pool, random = data.splits["train"], np.random.default_rng(1)
order = random.permutation(len(pool)).tolist()
labeled, unlabeled = order[: options.add], order[options.add :]
for number in range(options.rounds + 1):
    splits = {"train": pool.take(sorted(labeled)).renumbered(), "test": data.splits["test"]}
    shutil.rmtree(out, ignore_errors=True)
    run = finetune.train(
        "classify",
        finetune.Dataset("pool", splits),
        os.environ.get("MODEL", "minilm"),
        validation="none",
        out=out,
        quiet=True,
        **steps,
    )
    print(f"round {number}: {len(labeled)} texts, accuracy {run.metrics['test']['accuracy']:.4f}")
    if options.by == "uncertainty":  # the difference of the two most probable labels
        predictions = run.predictor.predict([pool[index].text for index in unlabeled])
        probabilities = np.sort([list(each.scores.values()) for each in predictions])
        margins = probabilities[:, -1] - probabilities[:, -2]
        unlabeled = [unlabeled[index] for index in margins.argsort(kind="stable")]
    labeled += unlabeled[: options.add]  # here people label these texts
    unlabeled = unlabeled[options.add :]
