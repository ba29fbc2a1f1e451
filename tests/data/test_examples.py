"""Examples on disk equal examples in memory: items, views, columns, stats, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.data import columns
from finetune.data.examples import COLUMN_STATS, Examples, collected
from finetune.data.token_rows import TokenRow
from finetune.types import (
    Answer,
    ChoiceQuestion,
    Question,
    Relation,
    SenseTarget,
    Span,
    TextBlock,
    TextExample,
    TokenExample,
    UserError,
)
from tests.small_data import keep_on_disk

TEXTS = [
    TextExample(i, f"text {i}", None, "abc"[i % 3] if i % 7 else None, f"f:{i}", i)
    for i in range(23)
]
WORDS = [
    TokenExample(i, ("a",) * i, (Span(0, i, "X"),) if i else (), ("B-X",) * i, f"d{i // 5}")
    for i in range(23)
]
QUESTIONS = [
    Question(i, f"q {i}", f"context {i % 4}", answers=(Answer(0, "c"),) * (i % 2) or None)
    for i in range(23)
]
RELATED = [
    TokenExample(i, ("a", "\ufffd"), s, relations=(Relation(*s, "r"),), misaligned=s[:1])
    for i, s in enumerate([(Span(0, 1, "X"), Span(1, 2, "Y"))] * 23)
]
EXAMPLES: dict[str, list[Any]] = {
    "texts": TEXTS,
    "words": WORDS,
    "questions": QUESTIONS,
    "relations": RELATED,
}
ORDER = np.array([20, 3, 4, 21, 0])
ODD = [i % 2 == 1 for i in range(23)]
VIEWS: dict[str, Callable[[Examples], Any]] = {
    "all": list,
    "items": lambda rows: [rows[i] for i in (0, -1, len(rows) // 2)],
    "slice": lambda rows: list(rows[3:17:2]),
    "take": lambda rows: list(rows.take(ORDER % len(rows))),
    "taken twice": lambda rows: list(rows.take(ORDER % len(rows))[1:3]),
    "ids": lambda rows: list(rows[::-1].column("id")),
    "keep": lambda rows: list(rows.keep(ODD[: len(rows)])),
    "renumbered": lambda rows: list(rows.take(ORDER % len(rows)).renumbered()),
    "columns": lambda rows: list(rows.columns("where", "id")),
    "replaced": lambda rows: list(rows.replace("key", range(len(rows)))),
    "converted": lambda rows: list(rows.converted(rows.example_type, {"key": range(len(rows))})),
    "mapped": lambda rows: list(rows.map(lambda i, row: replace(row, key=i))),
    "golds": lambda rows: (list(rows.golds()), rows.gold_counts()),
    "statistics": lambda rows: {name: rows.stats(name).tolist() for name in COLUMN_STATS},
    "content": lambda rows: b"".join(rows.content("")),
    "type": lambda rows: (rows.example_type, rows.are_words, len(rows)),
    "codes": lambda rows: tuple(map(list, rows.codes("key"))),
    "locations": lambda rows: rows.locations([1, 0]),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_CACHE", "off")
    keep_on_disk(monkeypatch)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_memory_and_disk_hold_the_same(name: str, view: str) -> None:
    memory, disk = Examples(EXAMPLES[name]), collected(iter(EXAMPLES[name]))
    assert disk.is_large and not memory.is_large and disk == memory == EXAMPLES[name]
    order = [9, 2, 3, 11, 10, 0, 22, 7, 8]
    parts = [lambda rows: rows, lambda rows: rows.take(order[:5]), lambda rows: rows[4:9]]
    for part in [*parts, lambda rows: rows.take(order)]:
        assert VIEWS[view](part(disk)) == VIEWS[view](part(memory))
    assert list(disk) == list(memory) == EXAMPLES[name], "what others are made of stays as it is"


@pytest.mark.parametrize(
    "example",
    [
        *(
            TextExample(0, "a", label=label)
            for label in (1, 1.0, "1", -0.0, "None", ("a", "b"), (), columns._END)
        ),
        TextExample(0, "\u2028\r\n\0", "", "NA", votes=(("a", 3), ("b", 3.0)), key=7),
        TextExample(0, "a", "b", 0.1, negative="c", targets=((0, 1), (2, 3)), key="7"),
        Question(0, "q", "c", answers=(Answer(None, ""), Answer(0, "c"))),
        ChoiceQuestion(0, "", label="1", choices=("", "b")),
        TextBlock(0, "a", document=2**40, subwords=(b"\0", b"", b"\xff")),
        TokenExample(0, ("", "\ufffd"), (Span(0, 1, "X"),), None, offsets=((0, 0), (1, 2))),
        TokenExample(0, (), before=((), ("a",)), after=(("b",),), misaligned=(Span(0, 2, "Y"),)),
        TokenExample(0, ("a",), targets=(SenseTarget(0, 1, "a", "NOUN", ("s1", "s2"), "k"),)),
        TokenExample(0, ("a\x1fb", "", "\x1f"), tags=("",)),
        TokenExample(0, ("",), tags=()),
        TokenRow(("a",), "f:1", None, (("B-X",), ("O",)), num_discontinuous=1, key=1),
    ],
    ids=str,
)
def test_a_value_of_a_field_comes_back(example: Any) -> None:
    others = [replace(example, label="other")] if isinstance(example, TextExample) else []
    rows: list[Any] = [example, *others] * 8
    if not isinstance(example, TokenRow):
        rows = [replace(row, id=i) for i, row in enumerate(rows)]
    on_disk = collected(iter(rows))
    assert on_disk.is_large and list(map(repr, on_disk)) == list(map(repr, rows))
    if isinstance(example, TextBlock):
        assert {row.subwords for row in on_disk} == {example.subwords}


def test_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(UserError, match=r"words: '\\ud800' is half of a surrogate pair"):
        collected(TokenExample(i, ("a", "\ud800")) for i in range(9))


def test_what_no_example_has() -> None:
    for rows in (Examples(TEXTS), collected(iter(TEXTS))):
        assert rows != TEXTS[:-1] and rows != TEXTS[::-1]
        with pytest.raises(IndexError):
            rows[23]
        for number in (22, 24):
            with pytest.raises(ValueError):
                rows.take(range(23)).replace("label", "x" * number)
    assert [*Examples().columns("words", "levels")] == [], "of no examples, any field"


def test_content_is_a_line_for_each_example() -> None:
    rows = Examples(TokenExample(n, ("a", "\0", "b", "\0")) for n in range(3))
    assert len(b"".join(rows.content("")).splitlines()) == 3


def test_the_digest_tells_apart_content_and_order_but_not_places() -> None:
    first = collected(iter(TEXTS))
    moved = collected(replace(each, where="g") for each in TEXTS)
    assert first.digest() == moved.digest()
    other = collected(replace(each, text=each.text.upper()) for each in TEXTS)
    digests = {each.digest() for each in (first, other, first[1:], first[::-1])}
    assert len(digests) == 4


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the pages of files")
def test_pages_of_files_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def mapped() -> int:
        """The resident kilobytes of files."""
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("RssFile")).split()[1])

    monkeypatch.setattr(columns, "MOST_MAPPED", 2**22)
    on_disk = collected(TextExample(i, f"{i:9}" * 50_000) for i in range(90))
    before = mapped()
    assert on_disk.digest() and on_disk.stats("text").any() and len(list(on_disk.column("text")))
    assert mapped() - before < 2**14, "of 39 MiB at most 16"


def test_rows_that_are_far_apart() -> None:
    rows = [replace(TEXTS[i % 23], id=i) for i in range(99)]
    on_disk = collected(iter(rows))
    assert list(on_disk.take([97, 1])) == [rows[97], rows[1]]
    assert list(on_disk.take([]).map(lambda i, row: row)) == []
