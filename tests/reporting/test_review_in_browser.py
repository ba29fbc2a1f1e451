"""The page of `finetune review` in a real browser, and its decisions applied to data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.browser import CONTRAST, PHONE
from tests.command import run
from tests.small_data import write_jsonl

TEXTS = ["a </script><b>x</b>", "b 😀", "same", "same", "يموت"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, suspects of them, and a page."""
    place = tmp_path_factory.mktemp("review")
    data = [{"id": n, "text": text, "label": "neg"} for n, text in enumerate(TEXTS)]
    write_jsonl(place / "data.jsonl", data)
    suspects = [
        {"file": "data.jsonl", "line": n + 1, "given": "neg", "suggested": "pos",
         "confidence": 0.9, "given_confidence": 0.05, "text": text, "kind": "label"}
        for n, text in enumerate(TEXTS)
    ]  # fmt: skip
    suspects[4]["suggested"] = "neutral"
    write_jsonl(place / "suspects.jsonl", suspects)
    outcome = run("review", place / "suspects.jsonl", "--output", place / "page.html")
    assert outcome.code == 0, outcome.err
    return place


def saved(page: Any, path: Path) -> list[dict]:
    with page.expect_download() as started:
        page.keyboard.press("d")
    started.value.save_as(path)
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_decisions(open_page: Any, folder: Path, tmp_path: Path):
    page = open_page(folder / "page.html")
    assert page.locator("#text").inner_text() == TEXTS[0]
    assert page.locator("#position").inner_text() == "1 of 5, 0 decided"
    page.keyboard.press("a")
    page.keyboard.press("k")
    page.keyboard.press("s")
    page.reload()
    assert page.locator("#position").inner_text() == "4 of 5, 3 decided"  # survives
    page.locator("#decisions button", has_text="neutral").click()
    page.keyboard.press("ArrowLeft")
    pressed = page.locator("#decisions [aria-pressed=true]")
    assert pressed.inner_text() == "neutral (1)"
    decisions = saved(page, tmp_path / "decisions.jsonl")
    assert [(d["line"], d["decision"], d["label"]) for d in decisions] == [
        (1, "accept", "pos"), (2, "keep", "neg"), (4, "other", "neutral")]  # fmt: skip
    output = tmp_path / "corrected.jsonl"
    outcome = run("convert", folder / "data.jsonl", "--decisions", tmp_path / "decisions.jsonl",
                  "--to", "jsonl", "--output", output)  # fmt: skip
    assert "note: 3 decisions applied, 2 labels changed" in outcome.err
    rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [row["label"] for row in rows] == ["pos", "neg", "neg", "neutral", "neg"]
    assert [row["text"] for row in rows] == TEXTS


def test_contrast_and_phone(open_page: Any, folder: Path):
    for scheme in ("light", "dark"):
        page = open_page(folder / "page.html", viewport=PHONE, color_scheme=scheme)
        assert page.evaluate(CONTRAST)["ratio"] >= 4.5
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_suggestions_label_what_has_no_label(tmp_path: Path):
    rows = [{"id": 7, "text": "t", "text_pair": "u", "label": "x", "scores": {"x": 0.6, "y": 0.4},
             "uncertainty": 0.8}]  # fmt: skip
    write_jsonl(tmp_path / "next.jsonl", rows)
    outcome = run("review", tmp_path / "next.jsonl", "--output", tmp_path / "page.html")
    assert outcome.code == 0, outcome.err
    decision = {"text": "t ||| u", "given": None, "decision": "other", "label": "y", "id": 7}
    write_jsonl(tmp_path / "decisions.jsonl", [decision, decision | {"text": "gone"}])
    outcome = run("convert", tmp_path / "next.jsonl", "--decisions", tmp_path / "decisions.jsonl",
                  "--to", "jsonl", "--output", tmp_path / "labeled.jsonl")  # fmt: skip
    assert "1 decision applied, 1 label changed" in outcome.err
    assert "1 decision on no row of the data" in outcome.err
    assert json.loads((tmp_path / "labeled.jsonl").read_text())["label"] == "y"


def test_several_labels_and_refusals(tmp_path: Path):
    write_jsonl(tmp_path / "data.jsonl", [{"text": "t", "label": ["a", "b"]}])
    decisions = [
        {"text": "t", "given": "a", "decision": "accept", "label": "not a", "line": 1},
        {"text": "t", "given": "not c", "decision": "accept", "label": "c", "line": 1},
    ]
    write_jsonl(tmp_path / "decisions.jsonl", decisions)
    run("convert", tmp_path / "data.jsonl", "--decisions", tmp_path / "decisions.jsonl",
        "--to", "jsonl", "--output", tmp_path / "out.jsonl")  # fmt: skip
    assert json.loads((tmp_path / "out.jsonl").read_text())["label"] == ["b", "c"]
    write_jsonl(tmp_path / "words.jsonl", [{"given": "O", "suggested": "B-X", "kind": "word",
                                            "text": "t"}])  # fmt: skip
    outcome = run("review", tmp_path / "words.jsonl", "--output", tmp_path / "page.html")
    assert outcome.code == 2
    assert "neither a suspect nor a suggestion of one label" in outcome.err
