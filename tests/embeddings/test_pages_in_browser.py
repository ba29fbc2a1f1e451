"""The pages of word maps and of geometry in a real browser: layers, themes, phones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
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
    """A map, and a page of geometry."""
    place, model = tmp_path_factory.mktemp("pages"), lab.checkpoint()
    data = place / "data.jsonl"
    data.write_text(
        "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in SENTENCES)
    )
    run("map", model, "--file", data, "--word", "die", "--out", place / "map.html").ok()
    (place / "text.txt").write_text("\n".join(LINES))
    files = ("--out", place / "geometry.html", "--out", place / "geometry.json")
    arguments = ("--data", place / "text.txt", "--sentence", "anna saw a dog")
    run("geometry", model, *arguments, *files).ok()
    return {name: place / f"{name}.html" for name in ("map", "geometry")}


@pytest.mark.parametrize("name", ["map", "geometry"])
def test_phone_and_contrast(open_page: Any, pages: dict[str, Path], name: str):
    page = open_page(pages[name], viewport=PHONE, has_touch=True)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert_readable(page)
        screenshot(page, f"{name}-{scheme}")
    if name == "map":
        assert page.locator(".chart .point").count() == 12 * (LAYERS + 1)
        assert "[die] </script><script>alert('x')</script>" in page.locator("main").inner_text()


def test_tables_of_attention(open_page: Any, pages: dict[str, Path]) -> None:
    page = open_page(pages["geometry"])
    figures = json.loads(pages["geometry"].with_suffix(".json").read_text())
    (sentence,) = figures["attention"]["sentences"]
    for name, caption in (("norms", "Lengths of contributions"), ("weights", "Attention weights")):
        for layer in (1, LAYERS):
            title = f"{caption} of layer {layer}"
            table = page.locator("figure.table").filter(has_text=title).locator("table")
            cells = [float(text) for text in table.locator("td.num").all_inner_texts()]
            expected = np.array(sentence[name][layer - 1])
            expected = (expected / expected.sum(axis=1, keepdims=True)).ravel()
            np.testing.assert_allclose(cells, expected, atol=1e-4)
