"""Regression: the similarity of two texts, from 0 to 5.

python examples/regression.py
"""

import os

from finetune import ClassifyConfig, fit, load, load_task

config = ClassifyConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/similarity",
    problem="regression",  # `auto` detects it: the labels are numbers with a decimal point
    metric="spearman",  # selects the model by rank correlation; the default is pearson
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-regression"),
)
task, data = load_task(config, "classify")
result = fit(task, data, config)
print("test:", {name: round(value, 4) for name, value in result.metrics["test"].items()})

# A model of pairs takes pairs; a single text is an error.
pairs = [("A man plays a guitar.", "Somebody makes music."), ("It rains.", "I like tea.")]
for pair, prediction in zip(pairs, load(result.folder).predict(pairs), strict=True):
    print(round(prediction.label, 2), *pair, sep=" | ")
