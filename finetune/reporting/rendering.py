"""Pages of notes, charts and tables, and the jinja2 environment of all templates.

Charts are shapes with their coordinates, which ``templates/macros.html`` draws; the style sheet of
the page sets all colors.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from finetune.config.values import is_numeric, shown_value
from finetune.evaluation.prediction_types.labels import metric_title
from finetune.types import quantity

if TYPE_CHECKING:
    from jinja2 import Environment

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


# --- Charts ---------------------------------------------------------------------------------------

WIDTH, HEIGHT = 380, 230
"""Size of a chart in SVG units, which are about pixels."""
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 38
"""Margins around the plotted area."""
NUM_COLORS = 6
"""Colors of series in the style sheet. Further series repeat them with a dashed line."""
MOST_MARKED = 30
"""Points of the longest line up to which all points of lines are marked."""

Points = Sequence[tuple[float, float]]
Dots = Sequence[tuple[float, float, str]]
"""Points with their tooltips."""
ChartShape = tuple[str, dict[str, Any], str]
"""An SVG element, its attributes, and the content of a text element or the tooltip of another."""


@dataclass(frozen=True)
class Chart:
    """A chart with its caption; ``label`` describes it for screen readers.

    ``legend`` has the name and the CSS class of each series, where there are several.
    """

    caption: str
    label: str
    shapes: Sequence[ChartShape]
    legend: Sequence[tuple[str, str]] = ()
    size: ClassVar[tuple[int, int]] = (WIDTH, HEIGHT)


class Ranges(NamedTuple):
    """The ranges of both axes of a chart."""

    left: float
    right: float
    bottom: float
    top: float

    def x(self, value: float) -> float:
        """The horizontal coordinate of a value."""
        span = self.right - self.left or 1.0
        return LEFT + (value - self.left) / span * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """The vertical coordinate of a value."""
        span = self.top - self.bottom or 1.0
        return HEIGHT - BOTTOM - (value - self.bottom) / span * (HEIGHT - TOP - BOTTOM)


def chart(
    caption: str,
    x_name: str = "",
    *,
    label: str = "",
    bins: Sequence[Mapping[str, Any]] = (),
    lines: Sequence[tuple[str, Points]] = (),
    dots: Sequence[tuple[str, Dots]] = (),
    ranges: Ranges | None = None,
) -> Chart:
    """Draw a reliability diagram of ``bins``, lines and dots; series have a color and a legend.

    ``label`` describes the chart for screen readers. Points of short lines are marked.
    """
    if ranges is None:
        shown: list[Any] = [point[:2] for _, points in (*lines, *dots) for point in points]
        xs, ys = zip(*shown, strict=True)
        ranges = Ranges(min(xs), max(xs), *padded(min(ys), max(ys)))
    shapes = _axes(ranges, x_name)
    for row in (row for row in bins if row["number"]):
        low, high, number, confidence, accuracy = row.values()
        x, width = ranges.x(low) + 1, ranges.x(high) - ranges.x(low) - 2
        top, mark = ranges.y(accuracy), ranges.y(confidence)
        tooltip = (
            f"confidence {low:.2f} to {high:.2f}: {quantity(number, 'prediction')}, "
            f"mean confidence {confidence:.3f}, accuracy {accuracy:.3f}"
        )
        shapes += [
            _shape("rect", "bar1", tooltip, x=x, y=top, width=width, height=ranges.y(0) - top),
            _line("expected", x, mark, x + width, mark),
        ]
    if bins:
        low, high = ranges.left, ranges.right
        ends = ranges.x(low), ranges.y(low), ranges.x(high), ranges.y(high)
        shapes.append(_line("diagonal", *ends))
    marked = max((len(points) for _, points in lines), default=0) <= MOST_MARKED
    styles = [
        f"series{number % NUM_COLORS + 1}{' again' if number >= NUM_COLORS else ''}"
        for number in range(len(lines) + len(dots))
    ]
    for (name, points), style in zip(lines, styles, strict=False):
        path = " ".join(f"{ranges.x(x):.1f},{ranges.y(y):.1f}" for x, y in points)
        shapes.append(_shape("polyline", f"line {style}", points=path))
        for x, y in points if marked else ():
            tooltip = f"{name}, {x_name} {tick(x)}: {y:.4g}"
            shapes.append(_dot(ranges.x(x), ranges.y(y), f"dot {style}", tooltip))
    for (_, group), style in zip(dots, styles[len(lines) :], strict=True):
        for x, y, tooltip in group:
            shapes.append(_dot(ranges.x(x), ranges.y(y), f"point {style}", tooltip))
    legend = list(zip([name for name, _ in (*lines, *dots)], styles, strict=True))
    return Chart(caption, label or caption, shapes, legend if len(legend) > 1 else ())


def ticks(low: float, high: float) -> list[float]:
    """Choose about five round values from ``low`` to ``high``.

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def tick(value: float) -> str:
    """Format a value of an axis.

    >>> tick(12000), tick(0.5), tick(0.00002)
    ('12,000', '0.5', '2e-05')
    """
    if value and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"


def padded(low: float, high: float) -> tuple[float, float]:
    """Widen a range on both sides; if its low end is near 0, down to 0."""
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    near = 0 <= low < (high - low) * 0.5
    return (0.0 if near else low - room), high + room


def _axes(ranges: Ranges, x_name: str) -> list[ChartShape]:
    shapes = []
    for value in ticks(ranges.bottom, ranges.top):
        y = ranges.y(value)
        shapes += [
            _line("grid", LEFT, y, WIDTH - RIGHT, y),
            _text(LEFT - 6, y + 4, tick(value), "end"),
        ]
    for value in ticks(ranges.left, ranges.right):
        shapes.append(_text(ranges.x(value), HEIGHT - BOTTOM + 17, tick(value)))
    return [*shapes, _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, x_name, style="axis")]


def _shape(element: str, style: str, text: str = "", **attributes: Any) -> ChartShape:
    values = {
        name: f"{value:.1f}" if isinstance(value, float) else value
        for name, value in attributes.items()
    }
    return element, {"class": style} | values, text


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> ChartShape:
    return _shape("line", style, x1=x1, y1=y1, x2=x2, y2=y2)


def _dot(x: float, y: float, style: str, tooltip: str) -> ChartShape:
    return _shape("circle", style, tooltip, cx=x, cy=y, r=3)


def _text(x: float, y: float, text: str, anchor: str = "middle", style: str = "tick") -> ChartShape:
    return _shape("text", style, text, x=x, y=y, **{"text-anchor": anchor})
