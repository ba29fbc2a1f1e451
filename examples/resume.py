"""Interrupt a run and resume it: the result equals that of an uninterrupted run.

python examples/resume.py
"""

import os
import signal
from dataclasses import replace

from finetune import Callback, ClassifyConfig, fit, load_task
from finetune.runtime.signals import Interrupted


class Impatient(Callback):
    """Presses Ctrl-C after the third step."""

    def on_step(self, event):
        if event.step == 3:
            signal.raise_signal(signal.SIGINT)


config = ClassifyConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/sentiment",
    steps=int(os.environ.get("STEPS", "12")),
    save_every=100,  # bounds the work that `kill -9` or a crash can lose
    out=os.environ.get("OUT", "runs/example-resume"),
)
try:
    task, data = load_task(config, "classify")
    fit(task, data, config, callbacks=[Impatient()])
except Interrupted as interrupted:
    print(interrupted)  # the checkpoint holds weights, optimizer, data position and random state

# On the command line: the same command with --resume. Changed settings or data are refused.
config = replace(config, resume=True)
task, data = load_task(config, "classify")
result = fit(task, data, config)
print("test accuracy:", round(result.metrics["test"]["accuracy"], 4))
