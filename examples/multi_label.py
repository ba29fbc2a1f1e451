"""Multi-label classification: lists of labels in the data select it.

python examples/multi_label.py
"""

import os

from finetune import ClassifyConfig, fit, load, load_task

config = ClassifyConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/topics",  # {"text": …, "labels": ["health", "sports"]}
    class_weights="auto",  # each topic is rare; without weights the model would predict none
    epochs=6,
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-multi-label"),
)
task, data = load_task(config, "classify")
result = fit(task, data, config)
print("test micro F1:", round(result.metrics["test"]["micro_f1"], 4))

(prediction,) = load(result.folder).predict(
    ["A new stadium will cost the city two hundred million."]
)
print("labels:", prediction.label)  # a tuple, empty if no label applies
print("scores:", {name: round(score, 2) for name, score in prediction.scores.items()})
