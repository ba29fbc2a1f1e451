"""The pages of word maps and of geometry in a real browser: pointer, keyboard, layers, themes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import laboratory as lab
from tests.browser import PHONE, assert_readable, screenshot
from tests.command import run
from tests.tiny import LAYERS

SENTENCES = [
    ("die </script><script>alert('x')</script>", "a & b"),
    ("roll the die & <b>win</b>", "<i>dice</i>"),
    ("يموت die البنك", "a & b"),
    *((f"the die number {number}", "tool") for number in range(9)),
]


LINES = ["anna saw a big red dog in the garden", "the man is playing <b>the guitar</b>"] * 8


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two maps, and a page of geometry."""
    place, model = tmp_path_factory.mktemp("pages"), lab.checkpoint()
    data = place / "data.jsonl"
    data.write_text(
        "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in SENTENCES)
    )
    words = {"labels": (data, "die"), "words": ("examples/data/words/senses.jsonl", "die,bank")}
    for name, (file, word) in words.items():
        output = place / f"{name}.html"
        run("map", model, "--file", file, "--word", word, "--out", output).ok()
    (place / "text.txt").write_text("\n".join(LINES))
    files = ("--out", place / "geometry.html", "--out", place / "geometry.json")
    arguments = ("--data", place / "text.txt", "--sentence", "anna saw a dog")
    run("geometry", model, *arguments, *files).ok()
    return {name: place / f"{name}.html" for name in (*words, "geometry")}


def places(page: Any) -> list[str]:
    return page.eval_on_selector_all("#points path", "all => all.map((e) => e.style.transform)")


def test_pointing_and_selecting(open_page: Any, pages: dict[str, Path]):
    page = open_page(pages["labels"], reduced_motion="reduce")
    assert not page.locator("#tip").is_visible()
    point = page.locator("#points path").nth(1)
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "roll the die & <b>win</b>" in page.locator("#tip").inner_text()
    assert page.locator("#tip mark").inner_text() == "die"
    page.mouse.down()
    page.mouse.up()
    assert page.locator("#neighbors li").count() == 8
    data = json.loads(page.locator("#data").inner_text())
    first = SENTENCES[data["neighbors"][LAYERS][1][0]][0]
    assert first in page.locator("#neighbors li").first.inner_text()
    assert f"cosine {data['cosines'][LAYERS][1][0]:.3f}" in page.locator("#neighbors").inner_text()
    page.locator("#neighbors button").first.click()
    assert first in page.locator("#chosen").inner_text()


def test_layers(open_page: Any, pages: dict[str, Path]):
    page = open_page(pages["words"], reduced_motion="reduce")
    last = places(page)
    page.locator("#layer").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#layer-name").inner_text() == str(LAYERS - 1)
    assert places(page) != last and "1-NN purity" in page.locator("#summary").inner_text()
    page.keyboard.press("ArrowRight")
    assert places(page) == last


def test_keyboard(open_page: Any, pages: dict[str, Path]):
    page = open_page(pages["words"], reduced_motion="reduce")
    page.locator("#map").focus()
    seen = set()
    for key in ["ArrowRight", *["ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"] * 4]:
        page.keyboard.press(key)
        seen.add(page.locator("#tip").inner_text())
        assert page.locator("#points .cursor").count() == 1
    assert len(seen) > 3
    assert page.locator("#map").get_attribute("aria-label")
    page.keyboard.press("Enter")
    assert page.locator("#chosen").inner_text() in seen
    page.keyboard.press("Escape")
    assert page.locator("#nothing").is_visible() and not page.locator("#tip").is_visible()
    page.locator("#occurrences button").nth(3).focus()
    page.keyboard.press("Enter")
    assert page.locator("#points .chosen").count() == 1


def test_groups_and_search(open_page: Any, pages: dict[str, Path]):
    page = open_page(pages["labels"])
    listed = page.locator("#occurrences > li:visible")
    assert listed.count() == 12
    tool = page.get_by_role("button", name="tool 9")
    tool.click()
    assert listed.count() == 3 and page.locator("#points path:visible").count() == 3
    tool.click()
    page.fill("#search", "NUMBER 4")
    assert listed.count() == 1 and page.locator("#points .dim").count() == 11
    assert page.locator("#count").inner_text() == "1 of 12 occurrences"


@pytest.mark.parametrize("name", ["labels", "words", "geometry"])
def test_phone_and_contrast(open_page: Any, pages: dict[str, Path], name: str):
    page = open_page(pages[name], viewport=PHONE, has_touch=True)
    if name != "geometry":
        page.locator("#occurrences button").first.tap()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert_readable(page)
        screenshot(page, f"{name}-{scheme}")
    if name != "geometry":
        page.locator("#map").tap()


def test_without_scripts(open_page: Any, pages: dict[str, Path]):
    page = open_page(pages["labels"], java_script_enabled=False)
    assert page.locator("#points path").count() == 12 and not page.locator("#layer").is_visible()
    assert "<script>alert('x')</script>" in page.locator("#occurrences").inner_text()


def test_attention_by_layer(open_page: Any, pages: dict[str, Path]) -> None:
    page = open_page(pages["geometry"])
    figures = json.loads(pages["geometry"].with_suffix(".json").read_text())
    (sentence,) = figures["attention"]["sentences"]

    def first_row() -> list[int]:
        cells = page.locator(".attention tbody tr").first.locator("td").all_inner_texts()
        return [int(cell) for cell in cells]

    def expected(kind: str, layer: int) -> list[float]:
        row = sentence[kind][layer - 1][0]
        return [100 * value / sum(row) for value in row]

    assert first_row() == pytest.approx(expected("norms", LAYERS), abs=0.6)
    page.locator(".layer").fill("1")
    assert first_row() == pytest.approx(expected("norms", 1), abs=0.6)
    page.locator(".kind").select_option("weights")
    assert first_row() == pytest.approx(expected("weights", 1), abs=0.6)
    assert page.locator(".attention output").inner_text() == "1"
    assert page.locator(".chart").count() == 4
