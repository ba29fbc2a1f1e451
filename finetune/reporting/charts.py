"""Charts as shapes with their coordinates; ``templates/macros.html`` draws them as SVG.

The style sheet of the page sets all colors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

WIDTH, HEIGHT = 380, 230
"""Size of a chart in SVG units, which are about pixels."""
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 38
"""Margins around the plotted area."""
NUM_COLORS = 6
"""Colors of series in the style sheet. Further series repeat them with a dashed line."""

Points = Sequence[tuple[float, float]]


class Shape(NamedTuple):
    """One SVG element; ``text`` is the content of a text element and the tooltip of others."""

    element: str
    attributes: dict[str, Any]
    text: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart with its caption; ``label`` describes it for screen readers.

    ``legend`` has the name and the CSS class of each series, where there are several.
    """

    caption: str
    label: str
    shapes: Sequence[Shape]
    legend: Sequence[tuple[str, str]] = ()
    size: tuple[int, int] = (WIDTH, HEIGHT)


class Bar(NamedTuple):
    """A bar of a height ``value`` between two places, with a mark where it is expected to end."""

    low: float
    high: float
    value: float
    expected: float
    tooltip: str


@dataclass(frozen=True)
class Scale:
    """The ranges of both axes."""

    left: float
    right: float
    bottom: float
    top: float

    def x(self, value: float) -> float:
        """Return the horizontal coordinate of a value."""
        span = self.right - self.left or 1.0
        return LEFT + (value - self.left) / span * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return the vertical coordinate of a value."""
        span = self.top - self.bottom or 1.0
        return HEIGHT - BOTTOM - (value - self.bottom) / span * (HEIGHT - TOP - BOTTOM)


def chart(
    caption: str,
    label: str,
    scale: Scale,
    x_name: str,
    *,
    places: Sequence[tuple[float, str]] | None = None,
    bars: Sequence[Bar] = (),
    guide: str = "",
    lines: Sequence[tuple[str, Points]] = (),
    dotted: Collection[str] = (),
    dots: Sequence[tuple[float, float, str]] = (),
) -> Chart:
    """Draw bars, the diagonal, lines and dots, in this order.

    Args:
        caption: The line above the chart.
        label: The description for screen readers.
        scale: The ranges of both axes.
        x_name: The name of the horizontal axis.
        places: The marks of the horizontal axis, in place of round numbers.
        bars: Bars from the bottom.
        guide: The CSS class of the diagonal; without it there is none.
        lines: The name and the points of each line.
        dotted: Names of the lines with a dot at each point.
        dots: Single points, with their tooltips.
    """
    shapes = _axes(scale, x_name, places)
    for bar in bars:
        x, width = scale.x(bar.low) + 1, scale.x(bar.high) - scale.x(bar.low) - 2
        top, mark = scale.y(bar.value), scale.y(bar.expected)
        height = scale.y(0) - top
        shapes += [
            _shape("rect", "bar1", bar.tooltip, x=x, y=top, width=width, height=height),
            _line("expected", x, mark, x + width, mark),
        ]
    if guide:
        ends = scale.x(scale.left), scale.y(scale.left), scale.x(scale.right), scale.y(scale.right)
        shapes.append(_line(guide, *ends))
    for number, (name, each) in enumerate(lines):
        path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in each)
        shapes.append(_shape("polyline", f"line {_series(number)}", points=path))
        for x, y in each if name in dotted else ():
            tooltip = f"{name}, {x_name} {tick(x)}: {y:.4g}"
            shapes.append(_dot(scale.x(x), scale.y(y), f"dot {_series(number)}", tooltip))
    shapes += [_dot(scale.x(x), scale.y(y), "point", tooltip) for x, y, tooltip in dots]
    legend = [(name, _series(number)) for number, (name, _) in enumerate(lines)]
    return Chart(caption, label, shapes, legend if len(lines) > 1 else ())


def line_chart(
    caption: str,
    label: str,
    series: Sequence[tuple[str, Points]],
    x_name: str = "step",
    dotted: Collection[str] | None = None,
) -> Chart:
    """Draw one line for each named series; the series ``dotted`` get a dot at each point.

    By default these are all, unless a series is long.
    """
    xs, ys = zip(*(point for _, each in series for point in each), strict=True)
    if dotted is None:
        short = max(len(each) for _, each in series) <= 30
        dotted = [name for name, _ in series] if short else ()
    scale = Scale(min(xs), max(xs), *padded(min(ys), max(ys)))
    return chart(caption, label, scale, x_name, lines=series, dotted=dotted)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return about ``most`` round values from ``low`` to ``high``.

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / most
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


def _axes(
    scale: Scale, x_name: str, places: Sequence[tuple[float, str]] | None = None
) -> list[Shape]:
    shapes = []
    for value in ticks(scale.bottom, scale.top):
        y = scale.y(value)
        shapes += [
            _line("grid", LEFT, y, WIDTH - RIGHT, y),
            _text(LEFT - 6, y + 4, tick(value), "end"),
        ]
    if places is None:
        places = [(value, tick(value)) for value in ticks(scale.left, scale.right)]
    for value, name in places:
        shapes.append(_text(scale.x(value), HEIGHT - BOTTOM + 17, name))
    return [*shapes, _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, x_name, kind="axis")]


def _series(number: int) -> str:
    return f"series{number % NUM_COLORS + 1}{' again' if number >= NUM_COLORS else ''}"


def _shape(element: str, kind: str, text: str = "", **attributes: Any) -> Shape:
    values = {
        name: f"{value:.1f}" if isinstance(value, float) else value
        for name, value in attributes.items()
    }
    return Shape(element, {"class": kind} | values, text)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Shape:
    return _shape("line", kind, x1=x1, y1=y1, x2=x2, y2=y2)


def _dot(x: float, y: float, kind: str, tooltip: str) -> Shape:
    return _shape("circle", kind, tooltip, cx=x, cy=y, r=3)


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "tick") -> Shape:
    return _shape("text", kind, text, x=x, y=y, **{"text-anchor": anchor})
