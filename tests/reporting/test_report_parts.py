"""The parts of a page: escaping, spans that nest and cross, axes, and cards of odd names."""

from __future__ import annotations

import doctest
import math
import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.reporting import charts, highlight, tables
from finetune.reporting import html as markup
from finetune.reporting.charts import line_chart, ticks
from finetune.reporting.highlight import fragments, marked
from finetune.reporting.html import Html, element, escaped, joined
from finetune.reporting.model_card import for_hub
from finetune.reporting.tables import shown
from finetune.types import Span, TokenExample

SPANS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(1, 5), st.sampled_from("AB")).map(
        lambda part: Span(part[0], min(8, part[0] + part[1]), part[2])
    ),
    max_size=6,
    unique=True,
)


@pytest.mark.parametrize("module", [charts, highlight, markup])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


@given(st.text())
def test_any_text_comes_back_from_a_browser(text: str):
    plain = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "\ufffd", text)
    made = escaped(text)
    assert unescape(made) == plain.encode("utf-8", "replace").decode()
    assert not set("<>\"'") & set(made)


def test_markup_is_escaped_once():
    assert element("p", Html("<b>x</b>"), "<b>") == "<p><b>x</b>&lt;b&gt;</p>"
    assert joined(["<", element("i", "&")], " & ") == "&lt; &amp; <i>&amp;</i>"
    assert element("input", id='"', hidden=None) == '<input id="&quot;">'


@given(SPANS)
def test_fragments_nest_and_cover_each_span_once(spans: list[Span]):
    found = fragments(spans)
    for span in spans:
        own = sorted(f[:2] for f in found if f.span == span)
        assert [own[0][0], *(end for _, end in own)] == [*(start for start, _ in own), own[-1][1]]
        assert (own[0][0], own[-1][1]) == span[:2]
        assert sum(f.last for f in found if f.span == span) == 1
    for one in found:
        for other in found:
            apart = one.end <= other.start or other.end <= one.start
            within = one.start <= other.start and other.end <= one.end
            around = other.start <= one.start and one.end <= other.end
            assert apart or within or around


@given(SPANS, st.integers(0, 3), st.integers(5, 8))
def test_marked_words_are_all_there(spans: list[Span], first: int, last: int):
    words = tuple(f"w{n}<" for n in range(8))
    made = marked(TokenExample(0, words), dict.fromkeys(spans, "right"), first, last)
    assert made.count("<mark") == made.count("</mark>")
    text = unescape(re.sub(r"<b>.*?</b>|<.*?>", "", made)).strip("… ")
    assert text == " ".join(words[first:last])


def test_raw_text_keeps_its_spaces():
    example = TokenExample(0, ("東京", "は"), text="東京は", offsets=((0, 2), (2, 3)))
    assert marked(example, {Span(0, 1, "LOC"): "missed"}, 0, 2) == (
        '<mark class="missed">東京<b>LOC</b></mark>は'
    )


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_round_and_inside(low: float, size: float):
    found = ticks(low, low + size)
    assert len(found) <= 8
    assert all(low - size * 1e-6 <= value <= low + size * (1 + 1e-6) for value in found)


def test_lines_of_one_point_and_of_one_value():
    for points in ([(1, 2.0)], [(1, 3.0), (2, 3.0)], [(0, 0.0)]):
        drawn = line_chart("a & b", [("x", points), ("<y>", points)])
        assert "nan" not in drawn and "a &amp; b" in drawn and "<y>" not in drawn


def test_numbers_to_read():
    values = (0.5, 2.0, 1234, 1.0, None, "x", math.nan, math.inf)
    assert [shown(value) for value in values] == [
        "0.5000", "2", "1,234", "1.0000", "", "x", "nan", "inf"]  # fmt: skip


def test_a_confusion_matrix_says_rows_and_columns():
    rows = [{"gold": "<a>", "predicted": {"<a>": 3, "b": 1}},
            {"gold": "b", "predicted": {"<a>": 0, "b": 0}}]  # fmt: skip
    made = tables.confusion_matrix(rows)
    assert "&lt;a&gt; answered b: 1 of 4 (25.0%)" in made and "<a>" not in made


def test_an_example_of_a_card_is_renamed_for_the_hub():
    native = 'model="path/to/this/folder"'
    assert for_hub(native, "a/b") == 'model="a/b"'
    own = 'import finetune\n\nmodel = finetune.load("path/to/this/folder")'
    assert for_hub(own, "a/b").splitlines() == [
        "import finetune", "from huggingface_hub import snapshot_download", "",
        'model = finetune.load(snapshot_download("a/b"))']  # fmt: skip
