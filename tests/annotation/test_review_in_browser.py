"""The page of `finetune review` in a real browser, and its decisions applied to data."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.browser import PHONE, assert_readable
from tests.command import Outcome, run
from tests.small_data import read_jsonl, write_jsonl

TEXTS = ["a </script><b>x</b>", "b 😀", "same", "same", "يموت"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, suspects of them, and a page."""
    place = tmp_path_factory.mktemp("review")
    data = [{"id": n, "text": text, "label": "neg"} for n, text in enumerate(TEXTS)]
    write_jsonl(place / "data.jsonl", data)
    suspect = {"file": "data.jsonl", "given": "neg", "suggested": "pos", "kind": "label"}
    suspect |= {"confidence": 0.9, "given_confidence": 0.05}
    suspects = [suspect | {"line": n + 1, "text": text} for n, text in enumerate(TEXTS)]
    suspects[4]["suggested"] = "neutral"
    write_jsonl(place / "suspects.jsonl", suspects)
    run("review", place / "suspects.jsonl", "--out", place / "page.html").ok()
    return place


def reload(page: Any, position: str) -> None:
    """Reload until the page shows a position: a busy browser stores decisions a moment later."""
    deadline = time.monotonic() + 30
    page.reload()
    while (shown := page.locator("#position").inner_text()) != position:
        assert time.monotonic() < deadline, shown
        page.reload()


def convert(data: Path, decisions: Path, out: Path) -> Outcome:
    return run("convert", data, "--decisions", decisions, "--to", "jsonl", "--out", out)


def saved(page: Any, path: Path) -> list[dict]:
    with page.expect_download() as started:
        page.keyboard.press("d")
    started.value.save_as(path)
    return read_jsonl(path)


def test_decisions(open_page: Any, folder: Path, tmp_path: Path):
    page = open_page(folder / "page.html", tmp_path / "profile")
    assert page.locator("#text").inner_text() == TEXTS[0]
    assert page.locator("#position").inner_text() == "1 of 5, 0 decided"
    page.keyboard.press("a")
    page.keyboard.press("k")
    page.keyboard.press("s")
    reload(page, "4 of 5, 3 decided")
    page.locator("#labels button", has_text="neutral").click()
    page.keyboard.press("ArrowLeft")
    pressed = page.locator("#labels [aria-pressed=true]")
    assert pressed.inner_text() == "neutral (2)"
    decisions = saved(page, tmp_path / "decisions.jsonl")
    assert [(d["line"], d["decision"], d["label"]) for d in decisions] == [
        (1, "accept", "pos"),
        (2, "keep", "neg"),
        (4, "other", "neutral"),
    ]
    output = tmp_path / "corrected.jsonl"
    outcome = convert(folder / "data.jsonl", tmp_path / "decisions.jsonl", output)
    assert "note: 3 decisions applied, 2 rows changed" in outcome.err
    rows = read_jsonl(output)
    assert [row["label"] for row in rows] == ["pos", "neg", "neg", "neutral", "neg"]
    assert [row["text"] for row in rows] == TEXTS


def test_a_label_has_one_key_on_every_text(open_page: Any, folder: Path, tmp_path: Path):
    page = open_page(folder / "page.html", tmp_path / "profile")
    keys = ["neg (1)", "neutral (2)", "pos (3)"]
    for _ in TEXTS[:-1]:
        assert page.locator("#labels button").all_inner_texts() == keys
        page.keyboard.press("3")
    assert page.locator("#labels button").all_inner_texts() == keys  # suggests another label
    page.locator("#labels input").fill("zz")
    page.keyboard.press("Enter")
    page.locator("#labels input").fill("b")
    page.keyboard.press("Enter")
    reload(page, "1 of 5, 5 decided")
    assert page.locator("#labels button").all_inner_texts() == [*keys, "zz (4)", "b (5)"]
    page.keyboard.press("1")
    page.keyboard.press("2")
    decisions = saved(page, tmp_path / "decisions.jsonl")
    assert [(d["decision"], d["label"]) for d in decisions] == [
        ("keep", "neg"),
        ("other", "neutral"),
        ("accept", "pos"),
        ("accept", "pos"),
        ("other", "b"),
    ]


def shared(window: Any, other: Any) -> str:
    """Send the event with which a browser tells another window what one stores; the position."""
    stored = window.evaluate("Object.entries(localStorage).find(([key]) => key.includes('review'))")
    event = "([key, newValue]) => dispatchEvent(new StorageEvent('storage', {key, newValue}))"
    other.evaluate(event, stored)
    return str(other.locator("#position").inner_text())


def test_windows_share_their_decisions(open_page: Any, folder: Path, tmp_path: Path):
    pages = [open_page(folder / "page.html") for _ in range(2)]
    pages[0].keyboard.press("a")
    assert shared(*pages) == "2 of 5, 1 decided"  # that text is decided: go on
    pages[1].locator("#labels input").fill("zz")
    pages[1].keyboard.press("Enter")
    assert shared(*reversed(pages)) == "3 of 5, 2 decided"
    keys = ["neg (1)", "neutral (2)", "pos (3)", "zz (4)"]
    assert pages[0].locator("#labels button").all_inner_texts() == keys
    pages[0].keyboard.press("ArrowLeft")
    pages[1].keyboard.press("z")
    assert shared(*reversed(pages)) == "2 of 5, 1 decided"
    pages[0].keyboard.press("k")
    decisions = saved(pages[0], tmp_path / "decisions.jsonl")
    assert [d["decision"] for d in decisions] == ["accept", "keep"]


def test_suggestions_label_what_has_no_label(tmp_path: Path):
    row = {"id": 7, "text": "t", "text_pair": "u", "label": "x", "scores": {"x": 0.6, "y": 0.4}}
    write_jsonl(tmp_path / "next.jsonl", [row | {"uncertainty": 0.8}])
    run("review", tmp_path / "next.jsonl", "--out", tmp_path / "page.html").ok()
    decision = {"text": "t ||| u", "given": None, "decision": "other", "label": "y", "id": 7}
    gone = decision | {"text": "gone", "id": 8}
    write_jsonl(tmp_path / "decisions.jsonl", [decision, gone])
    outcome = convert(
        tmp_path / "next.jsonl", tmp_path / "decisions.jsonl", tmp_path / "labeled.jsonl"
    )
    assert "1 decision applied, 1 row changed" in outcome.err
    assert "1 decision on no row of the data" in outcome.err
    assert json.loads((tmp_path / "labeled.jsonl").read_text())["label"] == "y"


def test_several_labels_and_refusals(tmp_path: Path):
    write_jsonl(tmp_path / "data.jsonl", [{"text": "t", "label": ["a", "b"]}])
    decisions = [
        {"text": "t", "given": "a", "decision": "accept", "label": "not a", "line": 1},
        {"text": "t", "given": "not c", "decision": "accept", "label": "c", "line": 1},
    ]
    write_jsonl(tmp_path / "decisions.jsonl", decisions)
    convert(tmp_path / "data.jsonl", tmp_path / "decisions.jsonl", tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text())["label"] == ["b", "c"]
    write_jsonl(
        tmp_path / "words.jsonl", [{"given": "O", "suggested": "B-X", "kind": "word", "text": "t"}]
    )
    done = run("review", tmp_path / "words.jsonl", "--out", tmp_path / "page.html")
    done.refused("words.jsonl:1: nothing to review")


def prediction(number: int, spans: list, gold: list | None) -> dict:
    """A row as prediction files have it, of a text that is split at blanks."""
    text = SENTENCES[number]
    offsets = [[m.start(), m.end()] for m in re.finditer(r"\S+", text)]
    records = [dict(zip(KEYS, span, strict=True)) for span in gold or ()]
    return {
        "id": f"t{number}",
        "words": [text[start:end] for start, end in offsets],
        "offsets": offsets,
        "text": text,
        "where": f"x/data.jsonl:{number + 1}",
        "spans": [dict(zip(KEYS, span, strict=True)) | {"score": 0.5} for span in spans],
        "gold": None if gold is None else {"spans": records},
    }


KEYS = ("start", "end", "label")
SENTENCES = [
    "😀 Ana <img src=x onerror=alert(1)> Bo ran\r\nto\tNew York \x7f",
    "سافر أحمد إلى القاهرة أمس",
    "高 勇 ， 中国 公民",
    "same words",
]


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with spans, predictions that differ from gold, and a page."""
    place = tmp_path_factory.mktemp("spans")
    rows = [
        prediction(0, [(1, 2, "PER"), (8, 10, "</script>")], [(1, 2, "PER"), (7, 8, "LOC")]),
        prediction(1, [(1, 2, "PER")], [(3, 4, "LOC")]),
        prediction(2, [(0, 5, "X"), (0, 2, "PER"), (1, 4, "X")], None),
        prediction(3, [(0, 1, "X")], [(0, 1, "X")]),
    ]
    write_jsonl(place / "predictions.jsonl", rows)
    data = []
    for row in rows:
        found = (row["gold"] or {}).get("spans", ())
        offsets = row["offsets"]
        marked = [[offsets[s["start"]][0], offsets[s["end"] - 1][1], s["label"]] for s in found]
        data.append(
            {"id": row["id"], "text": row["text"], "page": 1}
            | ({"spans": marked} if row["gold"] else {})
        )
    write_jsonl(place / "data.jsonl", data)
    outcome = run("review", place / "predictions.jsonl", "--out", place / "page.html")
    assert "wrote 3 texts to decide on" in outcome.err  # one is predicted as labeled
    return place


def test_contrast_and_phone(open_page: Any, folder: Path, spans: Path):
    for place in (folder, spans):
        page = open_page(place / "page.html", viewport=PHONE)
        if place == spans:
            page.locator("#text [data-word='0']").click()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert_readable(page)


def test_spans(open_page: Any, spans: Path, tmp_path: Path):
    page = open_page(spans / "page.html", tmp_path / "profile")
    labels = page.locator("#text mark > :last-child")
    assert labels.all_inner_texts() == ["PER", "LOC"]  # begins with gold
    assert page.locator("[data-side=suggested] mark.differs b").inner_text() == "</script> 0.50"
    page.locator("#text mark button", has_text="LOC").click()
    page.keyboard.press("Delete")
    page.locator("#text [data-word='8']").click()
    page.locator("#text [data-word='9']").click(modifiers=["Shift"])
    page.keyboard.press("2")  # LOC, after </script>
    page.locator("#text mark button", has_text="PER").click()
    page.locator("#labels input").fill("新")
    page.keyboard.press("Enter")
    assert labels.all_inner_texts() == ["新", "LOC"]
    reload(page, "2 of 3, 1 decided")
    page.locator("#text [data-word='1']").focus()
    assert page.evaluate("getComputedStyle(document.getElementById('text')).direction") == "rtl"
    page.keyboard.press("ArrowRight")  # in such a text, to the word before
    page.keyboard.press("Shift+ArrowLeft")
    page.locator("#labels button", has_text="PER").click()
    assert labels.all_inner_texts() == ["PER", "LOC"]
    page.keyboard.press("z")
    page.keyboard.press("z")  # the label of the first text
    assert page.locator("#position").inner_text() == "1 of 3, 1 decided"
    page.locator("#text mark button", has_text="PER").click()
    page.locator("#labels button", has_text="新").click()
    page.locator("#text mark button", has_text="LOC").click()
    page.keyboard.press("Delete")
    page.locator("#text [data-word='8']").hover()
    page.mouse.down()
    page.locator("#text [data-word='9']").hover()
    page.mouse.up()
    page.keyboard.press("2")
    page.keyboard.press("Enter")
    page.keyboard.press("k")
    assert page.locator("[data-side=given]").count() == 0  # no gold
    assert labels.all_inner_texts() == ["→", "PER", "X", "X"]
    page.keyboard.press("a")
    decisions = saved(page, tmp_path / "decisions.jsonl")
    assert [d["decision"] for d in decisions] == ["edit", "keep", "accept"]
    assert [d["text"] for d in decisions] == SENTENCES[:3]
    output = tmp_path / "corrected.jsonl"
    outcome = convert(spans / "data.jsonl", tmp_path / "decisions.jsonl", output)
    assert "note: 3 decisions applied, 2 rows changed" in outcome.err, outcome.err
    rows = read_jsonl(output)
    assert [row["text"] for row in rows] == SENTENCES and rows[3]["page"] == 1
    found = [
        [(row["text"][s["start"] : s["end"]], s["label"]) for s in row["spans"]] for row in rows
    ]
    assert found == [
        [("Ana", "新"), ("New York", "LOC")],
        [("القاهرة", "LOC")],
        [("高 勇", "PER"), (SENTENCES[2], "X"), ("勇 ， 中国", "X")],
        [("same", "X")],
    ]


def test_tags_and_several_labels(open_page: Any, tmp_path: Path):
    gold = {"tags": ["DET", "NOUN", "VERB"]}
    row = {"id": 0, "words": ["the", "b", "runs"], "tags": ["DET", "NOUN", "NOUN"], "gold": gold}
    write_jsonl(tmp_path / "tags.jsonl", [row])
    run("review", tmp_path / "tags.jsonl", "--out", tmp_path / "tags.html")
    page = open_page(tmp_path / "tags.html")
    assert page.locator("[data-side=suggested] mark.differs").inner_text() == "runsNOUN"
    page.locator("#text [data-word='0']").click()
    page.keyboard.press("3")
    page.keyboard.press("Enter")
    (decision,) = saved(page, tmp_path / "decisions.jsonl")
    assert decision == {
        "id": 0,
        "words": row["words"],
        "given": gold,
        "decision": "edit",
        "tags": ["VERB", "NOUN", "VERB"],
    }
    row = {"id": 0, "text": "t", "label": ["b", "a"], "scores": {"a": 0.9, "b": 0.8, "c": 0.1}}
    write_jsonl(tmp_path / "labels.jsonl", [row, row | {"gold": ["a", "b"]}, row | {"gold": ["c"]}])
    run("review", tmp_path / "labels.jsonl", "--out", tmp_path / "labels.html", "--labels", "z")
    page = open_page(tmp_path / "labels.html")
    assert page.locator("#labels button").all_inner_texts()[3] == "z (4)"
    page.keyboard.press("3")
    page.keyboard.press("1")
    assert page.locator("#labels [aria-pressed=true]").all_inner_texts() == ["b (2)", "c (3)"]
    page.keyboard.press("Enter")
    page.keyboard.press("k")
    decisions = saved(page, tmp_path / "decisions.jsonl")
    assert [(d["given"], d["label"]) for d in decisions] == [(None, ["b", "c"]), (["c"], ["c"])]
