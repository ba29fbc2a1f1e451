"""Tables of the page: numbers to read, with bars for shares, in a frame that scrolls by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.reporting.html import EMPTY, Html, element, joined, own_text

SHARES = frozenset({"precision", "recall", "f1", "accuracy"})
"""Columns that are drawn as bars too."""
LONG = 28
"""Letters from which the text of a cell is set in several lines."""
MOST_LABELS = 20
"""Labels of the widest confusion matrix that is drawn."""


def shown(value: Any) -> str:
    """A cell: shares with four decimals, counts with separators."""
    if value is None:
        return ""
    if not _is_number(value):
        return str(value)
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) > 1):
        return f"{value:,.0f}"
    return f"{value:.4f}"


def table(
    caption: str, columns: Sequence[Any], rows: Sequence[Sequence[Any]], bars: Sequence[int] = ()
) -> Html:
    """A table whose first column names the rows; columns ``bars`` hold shares from 0 to 1."""
    numeric = [any(_is_number(row[place]) for row in rows) for place in range(len(columns))]
    head = element(
        "tr",
        *(
            element("th", name, scope="col", class_="num" if is_number else None)
            for name, is_number in zip(columns, numeric, strict=True)
        ),
    )
    body = [
        element("tr", element("th", own_text(shown(row[0])), scope="row"),
                *(_cell(value, place in bars) for place, value in enumerate(row[1:], 1)))
        for row in rows
    ]  # fmt: skip
    made = element(
        "table", element("caption", caption), element("thead", head), element("tbody", *body)
    )
    return scrolling(caption, made)


def scrolling(name: str, content: Html) -> Html:
    """A frame that scrolls sideways where its content is wider than the page."""
    return element("div", content, class_="scroll", role="region", aria_label=name, tabindex="0")


def _cell(value: Any, bar: bool) -> Html:
    if isinstance(value, Html):
        return element("td", value)
    number = _is_number(value)
    if bar and number:
        share = min(max(float(value), 0.0), 1.0)
        return element("td", shown(value), class_="num bar", style=f"--share:{share:.4f}")
    if number:
        return element("td", shown(value), class_="num")
    if value is None:
        return element("td")
    long = len(str(value)) > LONG
    return element("td", own_text(value), class_="long" if long else None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def record_table(caption: str, rows: Sequence[Mapping[str, Any]]) -> Html:
    """A table of an analysis: rows of equal columns, of which the first names the row."""
    if not rows:
        return EMPTY
    columns = list(rows[0])
    bars = [place for place, name in enumerate(columns) if name in SHARES]
    return table(caption, columns, [list(row.values()) for row in rows], bars)


def confusion_matrix(rows: Sequence[Mapping[str, Any]]) -> Html:
    """Counts by gold label (row) and predicted label (column), shaded by their share of the row."""
    names = list(rows[0]["predicted"])
    head = element(
        "tr", element("td", "gold \N{RIGHTWARDS ARROW} predicted", class_="corner"),
        *(element("th", own_text(name), scope="col") for name in names),
    )  # fmt: skip
    body = [_confusion_row(row["gold"], row["predicted"]) for row in rows]
    caption = "Confusion: gold in rows, predicted in columns; shades are shares of the row"
    made = element(
        "table", element("caption", caption), element("thead", head), element("tbody", *body),
        class_="confusion",
    )  # fmt: skip
    return scrolling("Confusion matrix", made)


def _confusion_row(gold: str, predicted: Mapping[str, int]) -> Html:
    total = sum(predicted.values())
    cells = []
    for name, number in predicted.items():
        share = number / total if total else 0.0
        kind = "right" if name == gold else "wrong"
        title = f"{gold} answered {name}: {number:,} of {total:,} ({share:.1%})"
        cells.append(
            element("td", f"{number:,}" if number else "·", class_=f"num {kind}",
                    style=f"--share:{share:.4f}", title=title)
        )  # fmt: skip
    return element("tr", element("th", own_text(gold), scope="row"), joined(cells))
