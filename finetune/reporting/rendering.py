"""The jinja2 environment of all templates, and how they format values."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from finetune.config.values import is_numeric, shown_value
from finetune.evaluation.prediction_types.labels import metric_title
from finetune.types import quantity

if TYPE_CHECKING:
    from jinja2 import Environment

    from finetune.reporting.charts import Chart

PACKAGE = "finetune.reporting"
"""The package whose folder ``templates`` has the templates."""
MAX_WORD_LENGTH = 100
"""Characters shown of a word, and of the text between two words."""


@dataclass(frozen=True)
class PageTable:
    """A table whose first column names the rows; the columns ``bars`` hold fractions."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    bars: Sequence[int] = ()


@dataclass(frozen=True)
class Section:
    """A section of a page, with its content in order."""

    title: str
    notes: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[PageTable] = ()
    html: str = ""
    """Markup of ``markup``, after the notes."""
    parts: Sequence[Section] = ()
    """Sections to unfold, such as one for each run."""

    @property
    def id(self) -> str:
        """The anchor of the section."""
        return re.sub(r"\W+", "-", self.title.lower())

    @property
    def has_content(self) -> bool:
        """True if there is anything to show."""
        content = self.notes, self.charts, self.tables, self.html
        return any(content) or any(part.has_content for part in self.parts)


def page_of(
    eyebrow: str,
    heading: str,
    sections: Sequence[Section],
    *,
    about: str = "",
    source: str = "",
    command: str,
) -> str:
    """Render a page of notes, charts and tables: one file that needs no network.

    ``eyebrow`` stands above the heading, ``about`` under it, ``source`` and the ``command`` at the
    end. A section without content is left out.
    """
    script = _template_text("script.js")
    script_hash = hashlib.sha256(script.encode()).digest()
    return render(
        "page.html",
        eyebrow=eyebrow,
        heading=heading,
        sections=[section for section in sections if section.has_content],
        about=about,
        source=source,
        command=command,
        script=script,
        script_hash=base64.b64encode(script_hash).decode(),
        style=_template_text("style.css"),
    )


def _template_text(name: str) -> str:
    return (resources.files(PACKAGE) / "templates" / name).read_text(encoding="utf-8")


def markup(template: str, macro: str, *values: Any) -> str:
    """Render a macro of a template, whose values are escaped."""
    text: str = vars(template_environment().get_template(template).module)[macro](*values)
    return text


def render(template: str, **values: Any) -> str:
    """Fill a template; the text is printable."""
    return printable(template_environment().get_template(template).render(values))


def printable(text: str) -> str:
    """Replace control characters and lone surrogates, which no HTML page may hold, by U+FFFD."""
    unprintable = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]"
    return re.sub(unprintable, "\N{REPLACEMENT CHARACTER}", text)


@functools.cache
def template_environment() -> Environment:
    """Make the environment of the templates, once.

    HTML templates escape every value. Markdown has no escape that also holds inside of code, so
    the Markdown templates pass every name through the filter ``code``, and every sentence that
    holds names of the data through the filter ``sentence``.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=lambda name: name is None or not name.endswith(".md"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "value": shown_value,
        "json": functools.partial(json.dumps, ensure_ascii=False),
        "code": markdown_code,
        "sentence": markdown_text,
        "clip": clip,
        "metric_title": metric_title,
    }
    environment.globals["quantity"] = quantity
    environment.tests["numeric"] = is_numeric
    return environment


def markdown_code(value: Any) -> str:
    """Format a name as Markdown code that cannot end its code span or its table cell."""
    line = " ".join(str(value).split())
    return f"`{line.replace('`', chr(39)).replace('|', '/')}`"


def markdown_text(value: Any) -> str:
    """Format a sentence as Markdown without markup or HTML: names of the data stand as they are."""
    line = " ".join(str(value).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[|])", r"\\\1", line)


def clip(text: str, length: int = MAX_WORD_LENGTH) -> str:
    """Shorten a text to ``length`` characters and an ellipsis."""
    return text if len(text) <= length else f"{text[:length]}…"
