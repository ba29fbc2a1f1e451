"""Texts longer than the maximum length, read in overlapping windows instead of truncated.

python examples/long_texts.py
"""

import os

from finetune import ClassifyConfig, fit, load, load_task

config = ClassifyConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/sentiment",
    max_length=16,  # short, so that windows are needed
    # A text has the same weight in training whatever its number of windows. Its prediction is the
    # mean over its windows. The alternative is `truncate` (and count).
    long_text="window",
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-long-texts"),
)
task, data = load_task(config, "classify")
result = fit(task, data, config)
print(*result.notes, sep="\n")  # the number of texts in each split that are read in windows
print("test accuracy:", round(result.metrics["test"]["accuracy"], 4))

(prediction,) = load(result.folder).predict(["The room was small and dark. " * 40 + "I loved it."])
print(prediction.label, round(prediction.score, 2))
