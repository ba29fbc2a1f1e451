"""The chart of all pages as shapes with their coordinates; ``templates/macros.html`` draws them.

The style sheet of the page sets all colors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

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


class Bar(NamedTuple):
    """A bar from x = ``low`` to ``high``, with a mark where its ``value`` is expected to be."""

    low: float
    high: float
    value: float
    expected: float
    tooltip: str


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
    bars: Sequence[Bar] = (),
    lines: Sequence[tuple[str, Points]] = (),
    dots: Sequence[tuple[str, Dots]] = (),
    ranges: Ranges | None = None,
) -> Chart:
    """Draw bars with the diagonal, lines and dots, in this order. Series have a color and a legend.

    ``label`` describes the chart for screen readers. Points of short lines are marked.
    """
    if ranges is None:
        shown: list[Any] = [point[:2] for _, points in (*lines, *dots) for point in points]
        xs, ys = zip(*shown, strict=True)
        ranges = Ranges(min(xs), max(xs), *padded(min(ys), max(ys)))
    shapes = _axes(ranges, x_name)
    for bar in bars:
        x, width = ranges.x(bar.low) + 1, ranges.x(bar.high) - ranges.x(bar.low) - 2
        top, mark = ranges.y(bar.value), ranges.y(bar.expected)
        height = ranges.y(0) - top
        shapes += [
            _shape("rect", "bar1", bar.tooltip, x=x, y=top, width=width, height=height),
            _line("expected", x, mark, x + width, mark),
        ]
    if bars:
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
