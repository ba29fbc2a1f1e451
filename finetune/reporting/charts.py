"""Plain SVG with axes: lines over steps, points, and bars; colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from finetune.reporting.html import Html, element, joined

WIDTH, HEIGHT = 380, 230
"""Units of every drawing; about pixels, on a phone too."""
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 38
NUM_COLOURS = 6
"""Colours of series in the style; later series begin again, with another dash."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Frame:
    """Where values stand in a drawing."""

    left: float
    right: float
    bottom: float
    top: float

    def x(self, value: float) -> float:
        """Horizontal place of a value."""
        span = self.right - self.left or 1.0
        return LEFT + (value - self.left) / span * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Vertical place of a value."""
        span = self.top - self.bottom or 1.0
        return HEIGHT - BOTTOM - (value - self.bottom) / span * (HEIGHT - TOP - BOTTOM)


def line_chart(
    label: str, series: Sequence[tuple[str, Points]], *, x_name: str = "step",
    y_range: tuple[float, float] | None = None, dots: bool = False,
) -> Html:  # fmt: skip
    """One line for each named series; ``label`` says in words what is drawn."""
    points = [point for _, each in series for point in each]
    ys = [y for _, y in points]
    low, high = y_range or _padded(min(ys), max(ys))
    frame = Frame(min(x for x, _ in points), max(x for x, _ in points), low, high)
    parts = [_axes(frame, x_name)]
    for number, (name, each) in enumerate(series):
        parts.append(_line(frame, each, number))
        if dots or len(each) == 1:
            parts += [_dot(frame, x, y, f"{name}, {x_name} {tick(x)}: {y:.4g}", number)
                      for x, y in each]  # fmt: skip
    drawing = _svg(label, joined(parts))
    return joined([drawing, legend([name for name, _ in series])]) if len(series) > 1 else drawing


def legend(names: Sequence[str]) -> Html:
    """Which colour is which series."""
    return element(
        "ul",
        *(
            element("li", element("i", class_=f"key {_series(number)}"), element("bdi", name))
            for number, name in enumerate(names)
        ),
        class_="legend",
    )


def reliability_chart(label: str, rows: Sequence[tuple[float, float, int, float, float]]) -> Html:
    """Shares of right answers by confidence: bars against the diagonal, and how many answers there
    are in each as a strip below. Rows are low, high, number, mean confidence, share right."""
    frame = Frame(0.0, 1.0, 0.0, 1.0)
    most = max(number for _, _, number, *_ in rows)
    parts = [_axes(frame, "confidence")]
    for low, high, number, confidence, accuracy in rows:
        if not number:
            continue
        x, width = frame.x(low) + 1, frame.x(high) - frame.x(low) - 2
        said = (f"confidence {low:.2f} to {high:.2f}: {number:,} answers, mean {confidence:.3f}, "
                f"right {accuracy:.3f}")  # fmt: skip
        parts += [
            _box(x, frame.y(accuracy), width, frame.y(0) - frame.y(accuracy), said, "bar1"),
            _box(x, frame.y(0) + 1, width, 5, said, "density",
                 opacity=f"{math.log1p(number) / math.log1p(most):.3f}"),
            element("line", x1=_n(x), x2=_n(x + width), y1=_n(frame.y(confidence)),
                    y2=_n(frame.y(confidence)), class_="expected"),
        ]  # fmt: skip
    parts.append(
        element("line", x1=_n(frame.x(0)), y1=_n(frame.y(0)), x2=_n(frame.x(1)), y2=_n(frame.y(1)),
                class_="diagonal")
    )  # fmt: skip
    return _svg(label, joined(parts))


def bar_chart(label: str, bars: Sequence[tuple[str, float]], x_name: str) -> Html:
    """Counts by group."""
    frame = Frame(0.0, float(len(bars)), 0.0, max(value for _, value in bars) or 1.0)
    parts = [_axes(frame, x_name, x_ticks=False)]
    for place, (name, value) in enumerate(bars):
        x, width = frame.x(place) + 2, frame.x(1) - frame.x(0) - 4
        said = f"{name}: {tick(value)}"
        parts += [
            _box(x, frame.y(value), width, frame.y(0) - frame.y(value), said, "bar1"),
            _text(x + width / 2, HEIGHT - BOTTOM + 17, name, "middle"),
        ]
    return _svg(label, joined(parts))


def scatter_chart(label: str, points: Points) -> Html:
    """Predicted over gold numbers, with the line where both are equal."""
    low, high = _padded(*(f(v for p in points for v in p) for f in (min, max)))
    frame = Frame(low, high, low, high)
    diagonal = element("line", x1=_n(frame.x(low)), y1=_n(frame.y(low)), x2=_n(frame.x(high)),
                       y2=_n(frame.y(high)), class_="diagonal")  # fmt: skip
    dots = [_dot(frame, x, y, f"gold {x:.3g}, predicted {y:.3g}", 0, "point") for x, y in points]
    return _svg(label, joined([_axes(frame, "gold"), diagonal, *dots]))


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values between two ends, both included where they are round.

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
    """A number beside an axis.

    >>> tick(12000), tick(0.5), tick(0.00002)
    ('12,000', '0.5', '2e-05')
    """
    if value and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"


def _padded(low: float, high: float, from_zero: bool = True) -> tuple[float, float]:
    """A range with room on both sides, or down to 0 where that is near."""
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    near = from_zero and 0 <= low < (high - low) * 0.5
    return (0.0 if near else low - room), high + room


def _axes(frame: Frame, x_name: str, x_ticks: bool = True) -> Html:
    parts = []
    for value in ticks(frame.bottom, frame.top):
        y = frame.y(value)
        parts += [
            element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=_n(y), y2=_n(y), class_="grid"),
            _text(LEFT - 6, y + 4, tick(value), "end"),
        ]
    for value in ticks(frame.left, frame.right) if x_ticks else ():
        parts.append(_text(frame.x(value), HEIGHT - BOTTOM + 17, tick(value), "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, x_name, "middle", "axis"))
    return joined(parts)


def _line(frame: Frame, points: Points, number: int) -> Html:
    path = " ".join(f"{_n(frame.x(x))},{_n(frame.y(y))}" for x, y in points)
    return element("polyline", points=path, class_=f"line {_series(number)}")


def _dot(frame: Frame, x: float, y: float, said: str, number: int, kind: str = "dot") -> Html:
    return element("circle", element("title", said), cx=_n(frame.x(x)), cy=_n(frame.y(y)), r=3,
                   class_=f"{kind} {_series(number)}")  # fmt: skip


def _series(number: int) -> str:
    again = " again" if number >= NUM_COLOURS else ""
    return f"series{number % NUM_COLOURS + 1}{again}"


def _box(
    x: float, y: float, width: float, height: float, said: str, kind: str, **more: Any
) -> Html:
    return element("rect", element("title", said), x=_n(x), y=_n(y), width=_n(width),
                   height=_n(max(0.0, height)), class_=kind, **more)  # fmt: skip


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> Html:
    return element("text", text, x=_n(x), y=_n(y), text_anchor=anchor, class_=kind)


def _n(value: float) -> str:
    return f"{value:.1f}"


def _svg(label: str, content: Html, height: int = HEIGHT) -> Html:
    return element("svg", content, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=label)


def interval_chart(
    label: str, rows: Sequence[tuple[str, float, float, float, Sequence[float]]]
) -> Html:
    """Scores with their intervals, a row for each: name, score, low, high, scores of its runs."""
    ends = [v for _, score, low, high, runs in rows for v in (score, low, high, *runs)]
    left, right = _padded(min(ends), max(ends), from_zero=False)
    frame, height = Frame(left, right, 0, 1), 40 * len(rows) + 26
    parts = []
    for value in ticks(left, right):
        x = _n(frame.x(value))
        parts += [element("line", x1=x, x2=x, y1=4, y2=height - 22, class_="grid"),
                  _text(frame.x(value), height - 7, tick(value), "middle")]  # fmt: skip
    for number, (name, score, low, high, runs) in enumerate(rows):
        y, said = 40 * number + 28, f"{name}: {score:.4f}, from {low:.4f} to {high:.4f}"
        parts += [
            _text(LEFT, y - 11, name[:52], "start", "name"),
            element("line", element("title", said), x1=_n(frame.x(low)), x2=_n(frame.x(high)),
                    y1=y, y2=y, class_=f"interval {_series(number)}"),
            *(element("circle", element("title", f"{name}: {run:.4f}"), cx=_n(frame.x(run)), cy=y,
                      r=2.5, class_="point") for run in runs),
            element("circle", element("title", said), cx=_n(frame.x(score)), cy=y, r=5,
                    class_=f"dot {_series(number)}"),
        ]  # fmt: skip
    return _svg(label, joined(parts), height)
