"""Any number of labels for each text: a list in the data makes it multi-label.

python examples/multi_label.py
"""

import os

from finetune import ClassifyConfig, fit, load, load_task

config = ClassifyConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/topics",  # {"text": …, "labels": ["health", "sports"]}
    class_weights="auto",  # each topic is rare, so "none applies" would be a cheap answer
    threshold=0.5,  # the probability from which a label applies
    epochs=6,
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-multi-label"),
)
task, data = load_task(config, "classify")
result = fit(task, data, config)
print("test micro F1:", round(result.metrics["test"]["micro_f1"], 4))

(answer,) = load(result.folder).predict(["A new stadium will cost the city two hundred million."])
print("labels:", answer.label)  # a tuple, empty where no label applies
print("scores:", {name: round(score, 2) for name, score in answer.scores.items()})
