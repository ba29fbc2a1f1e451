"""Search spaces: the settings that `finetune search` varies, and the values to try."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

from finetune.config.options import Limit
from finetune.config.recipes import typed_setting
from finetune.config.tasks import CONFIGS, affects_of, flag, marks, setting_types
from finetune.types import UserError, abbreviated, did_you_mean

SYNTAX = "NAME=A,B,C, or NAME=LOW:HIGH for numbers (NAME=LOW:HIGH:log on a logarithmic scale)"


class Range(NamedTuple):
    """The numbers from ``low`` to ``high``, both included; whole ones of a whole setting."""

    low: float
    high: float
    log: bool
    whole: bool

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}{':log' if self.log else ''}"


SearchSpace = Mapping[str, Range | list[Any]]
"""The values to try, by setting."""


def parse_space(task: str, items: Sequence[str] | Mapping[str, Any]) -> SearchSpace:
    """Parse a search space.

    Args:
        task: The task.
        items: Texts such as ``lr=1e-5:1e-3:log`` and ``batch_size=8,16``; or a mapping of settings
            to the part after the equals sign, or to a list of values.

    Raises:
        UserError: A setting is unknown or must not vary, or a value has another type or is illegal.

    >>> parse_space("nli", ["lr=1e-5:1e-3:log", "batch_size=8,16"])
    {'lr': Range(low=1e-05, high=0.001, log=True, whole=False), 'batch_size': [8, 16]}
    """
    marks = affects_of(CONFIGS[task])
    legal = [name for name, mark in marks.items() if mark.results and not mark.scores]
    space: dict[str, Range | list[Any]] = {}
    for name, value in _pairs(items):
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
    return space


def _pairs(items: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    if isinstance(items, Mapping):
        return list(items.items())
    pairs = [item.partition("=") for item in items]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise UserError(f"--space {f'{name}{equals}{value}'!r}: write {SYNTAX}.")
    return [(name, value) for name, _, value in pairs]


def _dimension(task: str, name: str, value: Any) -> Range | list[Any]:
    hint = setting_types(CONFIGS[task])[name]
    numeric = {int, float} & {hint, *get_args(hint)}
    if isinstance(value, str) and numeric and ":" in value:
        return _range(task, name, value, whole=int in numeric)
    texts = [str(text).strip() for text in (value.split(",") if isinstance(value, str) else value)]
    if len(set(texts)) < len(texts):
        raise UserError(f"--space {name}={','.join(texts)}: a value is given twice: keep one.")
    return [_typed(task, name, text) for text in texts]


def _typed(task: str, name: str, text: str) -> Any:
    value, limit = typed_setting(task, name, text), marks(CONFIGS[task], Limit).get(name)
    if value is not None and limit is not None and not limit.legal(value):
        raise UserError(f"--space {name}: {flag(name)} must be {limit.wanted}, not {value!r}.")
    return value


def _range(task: str, name: str, text: str, *, whole: bool) -> Range:
    where = f"--space {name}={text}"
    ends, log = text.removesuffix(":log").split(":"), text.endswith(":log")
    if len(ends) != 2:
        raise UserError(f"{where}: write {SYNTAX}.")
    low, high = (_typed(task, name, end) for end in ends)
    if not (isinstance(low, int | float) and isinstance(high, int | float)):
        raise UserError(f"{where}: write two numbers.")
    if not (-math.inf < low < high < math.inf) or (log and low <= 0):
        raise UserError(
            f"{where}: write two finite numbers, the lower first, for a logarithmic scale above 0."
        )
    return Range(low, high, log, whole)
