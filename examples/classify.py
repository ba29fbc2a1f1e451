"""Text classification in three calls.

python examples/classify.py            # MODEL, STEPS and OUT in the environment override
"""

import os

from finetune import ClassifyConfig, fit, load_task

config = ClassifyConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/sentiment",  # columns are found by name, or set: columns=("text=review",)
    steps=int(os.environ.get("STEPS", "0")) or None,  # unset: config.epochs
    out=os.environ.get("OUT", "runs/example-classify"),
)
task, data = load_task(config, "classify")  # raises UserError if the data have problems
print("labels:", list(task.state.labels))
result = fit(task, data, config)

# The model with the best validation score is scored once on the test split.
print("test accuracy:", round(result.metrics["test"]["accuracy"], 4))
print("the model:", result.folder / "best")
