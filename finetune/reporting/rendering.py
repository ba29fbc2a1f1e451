"""The jinja2 environment of all templates, and how they format values."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from finetune.reporting.highlight import clip

if TYPE_CHECKING:
    from jinja2 import Environment

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def render(template: str, **values: Any) -> str:
    """Fill a template of ``reporting/templates``; the text is printable."""
    return printable(environment().get_template(template).render(values))


def printable(text: str) -> str:
    """Replace control characters and lone surrogates, which no HTML page may hold, by U+FFFD."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


@functools.cache
def environment() -> Environment:
    """Return the environment of all templates.

    HTML templates escape every value. Markdown has no escape that also holds inside of code, so
    the Markdown templates pass every name through the filter ``code``.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("finetune.reporting"),
        autoescape=lambda name: name is None or not name.endswith(".md"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "value": format_value,
        "score_rows": score_rows,
        "json": functools.partial(json.dumps, ensure_ascii=False),
        "fraction": clamped,
        "code": markdown_code,
        "clip": clip,
    }
    made.tests["numeric"] = is_numeric
    return made


def is_numeric(value: Any) -> bool:
    """Return whether a value is a number (True and False are none)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def format_value(value: Any) -> str:
    """Format a table cell: fractions with four decimals, counts with separators."""
    if value is None:
        return ""
    if not is_numeric(value):
        return str(value)
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) > 1):
        return f"{value:,.0f}"
    return f"{value:.4f}"


def format_score(value: float, name: str) -> str:
    """Format a metric: counts (``inner_gold``) as whole numbers, others with four decimals."""
    return f"{value:,.0f}" if name.startswith("inner_") else format_value(float(value))


def score_rows(metrics: Mapping[str, Mapping[str, float]]) -> list[tuple[str, list[str]]]:
    """Return the name of each metric with its formatted values, one for each split."""
    names = dict.fromkeys(name for values in metrics.values() for name in values)
    return [
        (
            name,
            [format_score(each[name], name) if name in each else "" for each in metrics.values()],
        )
        for name in names
    ]


def clamped(value: float) -> str:
    """Format the length of a bar, from 0 to 1."""
    return f"{min(max(float(value), 0.0), 1.0):.4f}"


def markdown_code(value: Any) -> str:
    """Format a name as Markdown code that cannot end its code span or its table cell."""
    line = " ".join(str(value).split())
    return f"`{line.replace('`', chr(39)).replace('|', '/')}`"
