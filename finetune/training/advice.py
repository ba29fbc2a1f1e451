"""What helps a run that learned nothing, or that had few labels."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from finetune.config.tasks import TrainConfig
from finetune.training.optimizer import Schedule
from finetune.types import Example, TextExample, quantity

FEW_EXAMPLES, ENOUGH_EXAMPLES, ENOUGH_STEPS = 100, 64, 100
"""Most training examples of a tiny run; examples of each label from which fine-tuning scores as
high as few-shot training; and steps (these fine-tuned runs had 60 to 120; docs/results.md)."""


def advice(config: TrainConfig, train: Sequence[Example], degenerate: bool) -> str:
    """Return advice after a degenerate run, or a run on few examples; empty for other runs.

    Args:
        config: The settings of the run, with its folder.
        train: The training examples.
        degenerate: Whether the run learned nothing.
    """
    few = len(train) < FEW_EXAMPLES
    if not degenerate and (config.schedule.once or not few):
        return ""
    schedule = Schedule.from_config(config, len(train))
    names = [example.label if isinstance(example, TextExample) else None for example in train]
    labels = {name for name in names if isinstance(name, str)}
    each = len(train) / max(1, len(labels))
    settings = Path(config.out or "") / "config.json"
    ways, command = [], ["finetune", "run", str(settings)]
    option = config.few_label_option
    if option and all(isinstance(name, str) for name in names) and each < ENOUGH_EXAMPLES:
        ways.append(
            f"{option} (it scores higher than fine-tuning with fewer than about "
            f"{ENOUGH_EXAMPLES} examples of each label)"
        )
        command += [option]
    if schedule.num_steps < ENOUGH_STEPS:
        epochs = math.ceil(ENOUGH_STEPS / schedule.steps_per_epoch)
        ways.append(f"more epochs (--epochs {epochs} makes {epochs * schedule.steps_per_epoch:,})")
        command += [] if option in command else ["--epochs", str(epochs)]
    if few or each < ENOUGH_EXAMPLES:
        many = f"{ENOUGH_EXAMPLES} of each label or more; " if labels else ""
        ways.append(f"more labeled examples ({many}`finetune curve` estimates what more bring)")
    if len(command) == 3:
        ways.append(
            "another --lr (`finetune search` tries several), or `finetune check` of the data"
        )
    of_each = f", {each:.0f} of each of {quantity(len(labels), 'label')}" if labels else ""
    tried = ""
    if len(command) > 3:
        tried = f" Try: {shlex.join([*command, '--out', f'{config.out}-2'])}"
    return (
        f"The run made {quantity(schedule.num_steps, 'step')} on "
        f"{quantity(len(train), 'training example')}{of_each}. What can help: "
        f"{'; '.join(ways)}.{tried}"
    )
