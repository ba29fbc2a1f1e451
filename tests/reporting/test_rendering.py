"""The parts of a report: escaping, highlights that nest and cross, charts, tables, odd names."""

from __future__ import annotations

import doctest
import re
from html import unescape
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from finetune.reporting import rendering
from finetune.reporting.analysis import highlight
from finetune.reporting.rendering import (
    Chart,
    chart,
    markdown_code,
    printable,
    template_environment,
    ticks,
)
from finetune.types import Span, TokenExample

SPANS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(1, 5), st.sampled_from("AB")).map(
        lambda part: Span(part[0], min(8, part[0] + part[1]), part[2])
    ),
    max_size=6,
    unique=True,
)


def macro(name: str, *values: Any, **more: Any) -> str:
    """Return the markup of a macro of the page."""
    return str(
        getattr(template_environment().get_template("macros.html").module, name)(*values, **more)
    )


def test_examples_in_docstrings():
    assert doctest.testmod(rendering).failed == 0


@given(st.text())
@example("\ud800 \x00")
def test_any_text_comes_back_from_a_browser(text: str):
    """Between tags and between the quotes of an attribute."""
    plain = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", "\ufffd", text)
    element = printable(macro("text", text))
    content = element.removeprefix('<bdi dir="auto">').removesuffix("</bdi>")
    region = printable(macro("scrolling", text, caller=str))
    attribute = region.split('aria-label="')[1].removesuffix('" tabindex="0"></div>')
    for made in (content, attribute):
        assert unescape(made) == plain and not set("<>\"'") & set(made)


def test_attributes_of_shapes_are_escaped():
    chart = Chart("a", '"<b>', [("text", {"x": '"><b>'}, "<i>")], [("<u>", "series1")])
    made = macro("chart", chart)
    assert not re.search("<[biu]>", made) and '"&#34;' in made


@given(SPANS, st.integers(0, 3), st.integers(5, 8))
def test_highlighting_keeps_all_words(spans: list[Span], first: int, last: int):
    words = tuple(f"w{n}<" for n in range(8))
    parts = highlight(TokenExample(0, words), dict.fromkeys(spans, "right"), first, last)
    made = macro("highlighted", parts)
    assert made.count("<mark") == made.count("</mark>")
    inside = [s for s in spans if max(s.start, first) < min(s.end, last)]
    ends = [label for kind, label in parts if kind == "end" and label != "\N{RIGHTWARDS ARROW}"]
    clipped = {(max(s.start, first), min(s.end, last), s.label) for s in inside}
    assert sorted(ends) == sorted(label for *_, label in clipped), "each span ends once"
    text = unescape(re.sub(r"<b>.*?</b>|<.*?>", "", made)).strip("… ")
    assert text == " ".join(words[first:last])


def test_raw_text_keeps_its_spaces():
    sentence = TokenExample(0, ("東京", "は"), text="東京は", offsets=((0, 2), (2, 3)))
    parts = highlight(sentence, {Span(0, 1, "LOC"): "missed"}, 0, 2)
    assert macro("highlighted", parts) == '<mark class="missed">東京<b>LOC</b></mark>は'


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_round_and_inside(low: float, size: float):
    found = ticks(low, low + size)
    assert len(found) <= 8
    assert all(low - size * 1e-6 <= value <= low + size * (1 + 1e-6) for value in found)


def test_lines_of_one_point_and_of_one_value():
    for points in ([(1, 2.0)], [(1, 3.0), (2, 3.0)], [(0, 0.0)]):
        drawn = macro("chart", chart("c", label="a & b", lines=[("x", points), ("<y>", points)]))
        assert "nan" not in drawn and "a &amp; b" in drawn and "<y>" not in drawn


def test_tooltips_of_a_confusion_matrix():
    rows = [
        {"gold": "<a>", "predicted": {"<a>": 3, "b": 1}},
        {"gold": "b", "predicted": {"<a>": 0, "b": 0}},
    ]
    made = macro("confusion_matrix", rows)
    assert "&lt;a&gt; predicted as b: 1 of 4 (25.0%)" in made and "<a>" not in made


def test_names_cannot_leave_code_in_markdown():
    assert markdown_code("a`b|c\nd") == "`a'b/c d`"
