"""Checks of values from files and callers against type hints."""

from __future__ import annotations

import codecs
import functools
import math
import re
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Union, get_args, get_origin

from finetune.types import UserError, abbreviated, did_you_mean

_NAMES = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    list: "a list",
    tuple: "a list of texts",
    dict: "an object",
    type(None): "null",
}


MOST_RUNS = 10_000
"""Largest number of runs of one command."""
MOST_RESAMPLES = 10_000_000
"""Largest number of resamples of a test."""


def require_count(option: str, value: int, least: int = 1, most: float = math.inf) -> None:
    """Raise UserError unless the number of an option is whole, from ``least`` to ``most``."""
    if not conforms(value, int):
        raise UserError(f"{option} must be a whole number, not {value!r:.60}.")
    if value < least:
        raise UserError(f"{option} must be {least} or more, not {value}.")
    if value > most:
        raise UserError(f"{option} must be at most {most:,}, not {value:,}.")


def numbers_by_label(
    option: str, setting: str | Mapping[str, Any], labels: Sequence[str], most: float = math.inf
) -> dict[str, float]:
    """Read finite numbers from 0 to ``most`` for labels: `a=1,b=2.5`, or a mapping.

    Raises:
        UserError: A name is no label, or a value is no such number.
    """
    items = setting.items() if isinstance(setting, Mapping) else []
    if isinstance(setting, str):
        # labels may hold commas: one that ends a number separates
        parts = (part.rpartition("=") for part in re.split(r"(?<=[\d.]),", setting))
        items = [(name.strip(), value) for name, _, value in parts]
    numbers = dict[str, float]()
    for name, value in items:
        if name and name not in labels:
            raise UserError(
                f"{option}: {name!r} is none of {abbreviated(labels)}.{did_you_mean(name, labels)}"
            )
        with suppress(TypeError, ValueError):
            numbers[name] = float(value)
        if not (name and 0 <= numbers.get(name, -1) <= most and math.isfinite(numbers[name])):
            legal = "of 0 or more" if most == math.inf else f"from 0 to {most:g}"
            raise UserError(
                f"{option}: {f'{name}={value}' if name else value!r} is not LABEL=NUMBER, with a "
                f"number {legal}, as in {labels[0]}={0.5 if most == 1 else 2}."
            )
    return numbers


def parse_folds(text: str) -> tuple[int, int]:
    """Parse the number of folds of the data, and how often the data are divided.

    >>> parse_folds("5"), parse_folds("5x10")
    ((5, 1), (5, 10))
    """
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if match is None:
        raise UserError(
            f"--folds {text!r:.40}: write N folds, or NxR to repeat them R times, as in 5x10."
        )
    number, repeats = int(match[1]), int(match[2] or 1)
    require_count("--folds: the folds", number, 2, most=MOST_RUNS)
    require_count("--folds: the repeats", repeats, most=MOST_RUNS)
    require_count("--folds: the folds of all repeats", number * repeats, most=MOST_RUNS)
    return number, repeats


def conforms(value: object, hint: Any) -> bool:
    """Check a value against a type hint, also inside of lists and objects.

    Whole numbers conform to ``float``; truth values are no numbers.

    >>> conforms({"a": [1, 2]}, dict[str, list[float]]), conforms(True, int)
    (True, False)
    """
    if type(value) in _members(hint):
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(conforms(value, option) for option in arguments)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is dict:
        return isinstance(value, dict) and all(conforms(v, arguments[1]) for v in value.values())
    if origin in (list, tuple):
        return isinstance(value, origin) and all(conforms(item, arguments[0]) for item in value)
    if isinstance(value, bool):
        return hint in (bool, object, Any)
    if hint is Any:
        return True
    return isinstance(value, (int, float) if hint is float else origin or hint)


@functools.cache
def _members(hint: Any) -> frozenset[Any]:
    is_union = get_origin(hint) in (Union, types.UnionType)
    return frozenset(get_args(hint) if is_union else [hint])


def finite_number(value: Any) -> float | None:
    """Convert a value to a finite number; None for one that is none."""
    with suppress(TypeError, ValueError, OverflowError):
        return number if math.isfinite(number := float(value)) else None
    return None


def description(hint: Any) -> str:
    """Describe the legal values of a type hint, such as ``a whole number``."""
    if get_origin(hint) in (Union, types.UnionType):
        options = [member for member in get_args(hint) if member is not type(None)]
        if len(options) > 1 and all(
            option is bool or get_origin(option) is Literal for option in options
        ):
            words = [word for option in options for word in get_args(option) or ("true", "false")]
            return f"{', '.join(words[:-1])} or {words[-1]}"
        return " or ".join(map(description, options))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    return _NAMES.get(get_origin(hint) or hint, "of another type")


def converted(name: str, value: Any, hint: Any, *, text: bool = False) -> Any:
    """Convert a value of YAML, or text of the command line, to the type of a hint.

    YAML 1.1 reads 1e-5 as text. With ``text``, the words true and false are truth values.
    """
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if text and bool in options and isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if value is None and type(None) in options:
        return None
    if len(options) > 1 and any(value in get_args(option) for option in options):
        return value
    options = tuple(option for option in options if option is not type(None))
    hint = options[0] if len(options) == 1 else hint
    if get_origin(hint) is tuple:
        items = value if isinstance(value, list) else [value]
        return tuple(converted(name, item, get_args(hint)[0]) for item in items)
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value not in choices:
            raise UserError(
                f"{name} must be one of {', '.join(choices)}, not {value!r}."
                f"{did_you_mean(str(value), choices)}"
            )
        return value
    value_type = options[0]
    if isinstance(value, bool) == (value_type is bool) and isinstance(value, str | int | float):
        try:
            return value if value_type is bool else value_type(str(value))
        except ValueError:
            pass  # float("many")
    raise UserError(f"{name} must be {description(hint)}, not {value!r:.60}.")


def typed_values(
    where: str, what: str, hints: Mapping[str, Any], values: Mapping[Any, Any]
) -> dict[str, Any]:
    """Convert values of a YAML file to the types of fields; UserError for an unknown name.

    Args:
        where: The file and line, for messages.
        what: What a name stands for, with ``{!r}`` for the name.
        hints: The types by name.
        values: The values by name.
    """
    typed = {}
    for key, value in values.items():
        if key not in hints:
            raise UserError(
                f"{where}: unknown {what.format(key)}.{did_you_mean(str(key), hints)} Legal are "
                f"{abbreviated(hints, 50)}."
            )
        typed[key] = converted(f"{where}: {key}", value, hints[key])
    return typed


def is_numeric(value: Any) -> bool:
    """Whether a value is a number (and not a boolean)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown_value(value: Any) -> str:
    """Format a value of a table: whole numbers by their type, others with four decimals.

    A small value that would be 0.0000, such as a p-value, has two digits, unless it is a rounding
    error.

    >>> shown_value(3.0), shown_value(1234), shown_value(0.0000123), shown_value(-1e-17)
    ('3.0000', '1,234', '1.2e-05', '0.0000')
    """
    if value is None:
        return ""
    if not is_numeric(value):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2g}" if 1e-12 < abs(value) < 0.00005 else f"{value:z,.4f}"


def text_encoding(name: str) -> str:
    """Look up the standard name of a text encoding; UserError for one that Python does not know.

    >>> text_encoding("windows-1252")
    'cp1252'
    """
    try:
        "a".encode(name)  # codecs.lookup also finds codecs of bytes, such as base64
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise UserError(
            f"--encoding {name!r:.40} is not a text encoding that Python knows: write utf-8, "
            "utf-16, cp1252 (Western European), cp1251 (Cyrillic), gb18030 (Chinese), shift_jis "
            "(Japanese), …"
        ) from None
