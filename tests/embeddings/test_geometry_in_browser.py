"""The page of an encoder's geometry in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.browser import CONTRAST, PHONE
from tests.command import run
from tests.tiny import LAYERS, save_tiny_checkpoint

LINES = ["anna saw a big red dog in the garden", "the man is playing <b>the guitar</b>"] * 8


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("geometry")
    (folder / "text.txt").write_text("\n".join(LINES))
    model = save_tiny_checkpoint(folder / "bert", "bert")
    outcome = run(
        "geometry",
        model,
        "--data",
        folder / "text.txt",
        "--out",
        folder / "g.html",
        "--out",
        folder / "g.json",
        "--sentence",
        "anna saw a dog",
    )
    assert outcome.code == 0, outcome.err
    return folder


def test_attention_by_layer(open_page: Any, place: Path) -> None:
    page = open_page(place / "g.html")
    (sentence,) = json.loads((place / "g.json").read_text())["attention"]["sentences"]

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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_and_contrast(open_page: Any, place: Path, scheme: str) -> None:
    page = open_page(place / "g.html", viewport=PHONE, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    worst = page.evaluate(CONTRAST)
    assert worst["ratio"] >= 4.5, worst
