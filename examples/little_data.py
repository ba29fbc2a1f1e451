"""Score a model on folds of little data, with an interval that is right for folds.

python examples/little_data.py
"""

import os
from pathlib import Path

from finetune import ClassifyConfig
from finetune.api import train_once
from finetune.training.repeated_runs import plan_folds

config = ClassifyConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/sentiment",
    limit=120,
    steps=int(os.environ.get("STEPS", "40")),
)
folder = Path(os.environ.get("OUT", "runs/example-folds"))


def train(config, data, opened):
    train_once("classify", config, data, command="python examples/little_data.py", folder=opened)


runs = plan_folds("classify", config, 2, 1, folder)
runs.train(train)  # finished runs are kept
score = runs.summary["test"]["accuracy"]
print(f"accuracy {score['mean']:.3f}, 95 % interval {score['low']:.3f} to {score['high']:.3f}")
print("by fold:", {name: round(value, 3) for name, value in score["seeds"].items()})

# On the command line: finetune classify … --folds 2
