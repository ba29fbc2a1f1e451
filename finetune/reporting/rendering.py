"""The jinja2 environment of all templates, and how they format values."""

from __future__ import annotations

import functools
import json
import math
import re
from typing import TYPE_CHECKING, Any

from finetune.evaluation.positive import metric_title
from finetune.reporting.highlight import clip
from finetune.types import quantity

if TYPE_CHECKING:
    from jinja2 import Environment


CORE = "finetune.reporting"
"""The package whose folder ``templates`` has the templates that all pages share."""


def render(template: str, package: str = CORE, /, **values: Any) -> str:
    """Fill a template of ``package`` or of the core; the text is printable."""
    return printable(environment(package).get_template(template).render(values))


def printable(text: str) -> str:
    """Replace control characters and lone surrogates, which no HTML page may hold, by U+FFFD."""
    unprintable = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]"
    return re.sub(unprintable, "\N{REPLACEMENT CHARACTER}", text)


@functools.cache
def environment(package: str = CORE) -> Environment:
    """Return the environment of the templates of a package and of the core.

    HTML templates escape every value. Markdown has no escape that also holds inside of code, so
    the Markdown templates pass every name through the filter ``code``, and every sentence that
    holds names of the data through the filter ``sentence``.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=ChoiceLoader([PackageLoader(each) for each in dict.fromkeys((package, CORE))]),
        autoescape=lambda name: name is None or not name.endswith(".md"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "value": format_value,
        "score": format_score,
        "json": functools.partial(json.dumps, ensure_ascii=False),
        "code": markdown_code,
        "sentence": markdown_text,
        "clip": clip,
        "metric_title": metric_title,
    }
    made.globals["quantity"] = quantity
    made.tests["numeric"] = is_numeric
    return made


def is_numeric(value: Any) -> bool:
    """Return whether a value is a number (and not a boolean)."""
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


def markdown_code(value: Any) -> str:
    """Format a name as Markdown code that cannot end its code span or its table cell."""
    line = " ".join(str(value).split())
    return f"`{line.replace('`', chr(39)).replace('|', '/')}`"


def markdown_text(value: Any) -> str:
    """Format a sentence as Markdown without markup or HTML: names of the data stand as they are."""
    line = " ".join(str(value).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[|])", r"\\\1", line)
