"""Search spaces: the settings that `finetune search` varies, and the values to try."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from finetune.config.recipes import typed_setting
from finetune.config.tasks import CONFIGS, TrainConfig, changes_of, flag, setting_types
from finetune.types import UserError, abbreviated, did_you_mean

SYNTAX = "NAME=A,B,C, or NAME=LOW:HIGH for numbers (NAME=LOW:HIGH:log on a logarithmic scale)"


@dataclass(frozen=True)
class Choices:
    """Values of a setting to choose from, by their text."""

    values: Mapping[str, Any]

    def __str__(self) -> str:
        return ",".join(self.values)

    def typed(self, value: str) -> Any:
        """Return the value of a text."""
        return self.values[value]

    def examples(self) -> list[Any]:
        """Return all values."""
        return list(self.values.values())


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``, both included."""

    low: float
    high: float
    log: bool
    whole: bool
    """Whether the setting is a whole number."""

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}{':log' if self.log else ''}"

    def typed(self, value: float) -> int | float:
        """Return a number with three digits, which people can read and write in recipes."""
        if self.whole:
            return int(value)
        return min(max(float(f"{value:.3g}"), self.low), self.high)

    def examples(self) -> list[Any]:
        """Return the ends of the range."""
        return [self.low, self.high]


SearchSpace = Mapping[str, Choices | Range]
"""The values to try, by setting."""


def parse_space(
    task: str, base: TrainConfig, items: Sequence[str] | Mapping[str, Any]
) -> SearchSpace:
    """Parse and check a search space.

    Args:
        task: The task.
        base: The other settings.
        items: Texts such as ``lr=1e-5:1e-3:log`` and ``batch_size=8,16``; or a mapping of settings
            to the part after the equals sign, or to a list of values.

    Raises:
        UserError: A setting is unknown or must not vary, or a value is legal in no combination.

    >>> space = parse_space("nli", CONFIGS["nli"](), ["lr=1e-5:1e-3:log", "batch_size=8,16"])
    >>> str(space["lr"]), space["batch_size"].examples()
    ('1e-05:0.001:log', [8, 16])
    """
    space: dict[str, Choices | Range] = {}
    for name, value in _named(items):
        marks = changes_of(CONFIGS[task])
        legal = [each for each, mark in marks.items() if mark.results and not mark.scores]
        name = name.replace("-", "_")
        if name not in legal:
            raise UserError(
                f"--space {name}: not a setting of {task} to search over."
                f"{did_you_mean(name, legal)} Legal are {abbreviated(legal, 60)}."
            )
        if name in space:
            raise UserError(f"--space {name}: given twice: keep one.")
        space[name] = _dimension(task, name, value)
    if not space:
        raise UserError(f"--space is empty: write {SYNTAX}.")
    _check_values(base, space)
    return space


def _named(items: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    if isinstance(items, Mapping):
        return list(items.items())
    pairs = []
    for item in items:
        name, equals, value = item.partition("=")
        if not (name and equals and value):
            raise UserError(f"--space {item!r}: write {SYNTAX}.")
        pairs.append((name, value))
    return pairs


def _dimension(task: str, name: str, value: Any) -> Choices | Range:
    hint = setting_types(CONFIGS[task])[name]
    numeric = {int, float} & {hint, *get_args(hint)}
    if isinstance(value, str) and numeric and ":" in value:
        return _range(task, name, value, whole=int in numeric)
    texts = value.split(",") if isinstance(value, str) else [str(each) for each in value]
    values = {text.strip(): typed_setting(task, name, text.strip()) for text in texts}
    if len(values) < len(texts):
        raise UserError(f"--space {name}={','.join(texts)}: a value is given twice: keep one.")
    return Choices(values)


def _range(task: str, name: str, text: str, *, whole: bool) -> Range:
    where = f"--space {name}={text}"
    ends, log = text.removesuffix(":log").split(":"), text.endswith(":log")
    if len(ends) != 2:
        raise UserError(f"{where}: write {SYNTAX}.")
    low, high = (typed_setting(task, name, each) for each in ends)
    if not (isinstance(low, int | float) and isinstance(high, int | float) and low < high):
        raise UserError(f"{where}: write two numbers, the lower first.")
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UserError(f"{where}: the ends must be finite.")
    if log and low <= 0:
        raise UserError(f"{where}: a logarithmic scale must begin above 0.")
    return Range(low, high, log, whole)


def _check_values(base: TrainConfig, space: SearchSpace) -> None:
    draw = random.Random(0)
    for name, dimension in space.items():
        for value in dimension.examples():
            try:
                replace(base, **{name: value})
                continue
            except UserError as error:
                problem = error
            for _ in range(100):  # values such as a rank of lora are legal only with others
                others = {other: draw.choice(each.examples()) for other, each in space.items()}
                try:
                    replace(base, **{**others, name: value})
                    break
                except UserError:
                    pass
            else:
                raise UserError(f"--space {name}={dimension}: {flag(name)} {value}: {problem}")
