"""A number for each pair of texts: how similar the two are, from 0 to 5.

python examples/regression.py
"""

import os

from finetune import ClassifyConfig, fit, load, load_task

config = ClassifyConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/similarity",
    problem="regression",  # `auto` sees it too: all labels are numbers with a fraction
    metric="spearman",  # ranks matter more here than the scale; the default is pearson
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-regression"),
)
task, data = load_task(config, "classify")
result = fit(task, data, config)
print("test:", {name: round(value, 4) for name, value in result.metrics["test"].items()})

# A model of pairs is asked with pairs; one text alone is refused.
pairs = [("A man plays a guitar.", "Somebody makes music."), ("It rains.", "I like tea.")]
for pair, answer in zip(pairs, load(result.folder).predict(pairs), strict=True):
    print(round(answer.label, 2), *pair, sep=" | ")
