"""Natural language inference: does the second text follow from the first?

python examples/nli.py
"""

import os

from finetune import NliConfig, fit, load, load_task

config = NliConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/nli",  # data="mnli" takes MNLI from the hub
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-nli"),
)
# Labels go by name (entails, e, ENTAILMENT, …): data sets number the three classes differently.
task, data = load_task(config, "nli")
result = fit(task, data, config)
print("test accuracy:", round(result.metrics["test"]["accuracy"], 4))

(answer,) = load(result.folder).predict([("A man is cooking dinner.", "Somebody prepares food.")])
print(answer.label, round(answer.score, 2))
