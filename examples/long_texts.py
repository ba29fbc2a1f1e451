"""Texts longer than the model: read in overlapping windows instead of cut at the end.

python examples/long_texts.py
"""

import os

from finetune import ClassifyConfig, fit, load, load_task

config = ClassifyConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/sentiment",
    max_length=16,  # far too short, so that windows are needed
    # A text weighs the same in training however many windows it has, and its answer is the mean
    # of theirs. The other choices are `truncate` (cut and counted) and `error`.
    long_text="window",
    overlap=6,
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-long-texts"),
)
task, data = load_task(config, "classify")
result = fit(task, data, config)
print(*result.notes, sep="\n")  # how many texts of each split are read in several windows
print("test accuracy:", round(result.metrics["test"]["accuracy"], 4))

(answer,) = load(result.folder).predict(["The room was small and dark. " * 40 + "I loved it."])
print(answer.label, round(answer.score, 2))
