"""HTML out of Python values: what is not markup already is escaped, so no text can become it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

_VOID = ("input",)
"""Elements that have no end."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Html(str):
    """Text that is markup: it is not escaped again."""

    __slots__ = ()


EMPTY = Html("")


def escaped(value: Any) -> Html:
    """A value as text in HTML, also between quotes; markup stays as it is.

    Control characters and lone surrogates, which no page can hold, become U+FFFD.

    >>> escaped('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    if isinstance(value, Html):
        return value
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return Html(html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), quote=True))


def element(name: str, *children: Any, **attributes: Any) -> Html:
    """An element; ``class_`` and ``aria_label`` are spelled ``class`` and ``aria-label``.

    An attribute that is None or False is left out, and one that is True has no value.

    >>> element("p", "a < b", class_="note", hidden=True)
    '<p class="note" hidden>a &lt; b</p>'
    """
    if name in _VOID:
        return Html(f"<{name}{_attributes(attributes)}>")
    inner = "".join(map(escaped, children))
    return Html(f"<{name}{_attributes(attributes)}>{inner}</{name}>")


def _attributes(values: dict[str, Any]) -> str:
    parts = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        parts.append(f" {name}" if value is True else f' {name}="{escaped(value)}"')
    return "".join(parts)


def joined(parts: Iterable[Any], between: Any = EMPTY) -> Html:
    """Parts one after the other, escaped unless they are markup."""
    return Html(str(escaped(between)).join(map(escaped, parts)))


def own_text(value: Any, name: str = "bdi") -> Html:
    """Somebody's text, which brings its own direction of writing."""
    return element(name, value, dir="auto")


def figure(caption: Any, drawing: Any) -> Html:
    """A drawing with its caption."""
    return element("figure", element("figcaption", caption), drawing)


def details(summary: Any, *children: Any, open_: bool = False) -> Html:
    """Something to unfold."""
    return element("details", element("summary", summary), *children, open=open_)
