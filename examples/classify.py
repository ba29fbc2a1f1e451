"""One label for each text: read, train, score, in three calls.

python examples/classify.py            # MODEL, STEPS and OUT in the environment override
"""

import os

from finetune import ClassifyConfig, fit, load_task

config = ClassifyConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/sentiment",  # columns are guessed by their names; columns=("text=review",)
    steps=int(os.environ.get("STEPS", "0")) or None,  # unset: config.epochs
    out=os.environ.get("OUT", "runs/example-classify"),
)
task, data = load_task(config, "classify")  # raises an error if the data are wrong
print("labels:", list(task.record.labels))
result = fit(task, data, config)

# The best model was chosen on validation; the test split was scored once, with that model.
print("test accuracy:", round(result.metrics["test"]["accuracy"], 4))
print("the model:", result.folder / "best")
