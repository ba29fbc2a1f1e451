"""Natural language inference: classify pairs of texts.

python examples/nli.py
"""

import os

from finetune import NliConfig, fit, load, load_task

config = NliConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/nli",  # data="mnli" loads MNLI from the hub
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-nli"),
)
# Labels are matched by name (entails, e, ENTAILMENT, …), because data sets number them differently.
task, data = load_task(config, "nli")
result = fit(task, data, config)
print("test accuracy:", round(result.metrics["test"]["accuracy"], 4))

(prediction,) = load(result.folder).predict(
    [("A man is cooking dinner.", "Somebody prepares food.")]
)
print(prediction.label, round(prediction.score, 2))
