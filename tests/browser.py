"""A real browser for tests of HTML pages; `tests/conftest.py` has the fixtures."""

from __future__ import annotations

import os
import shutil
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}

CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const mixed = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const line = (v) => v <= 0.04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const [r, g, b] = rgb.map((v) => line(v / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  let worst = {ratio: 21};
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !node.checkVisibility()) continue;
    const behind = [];
    for (let e = node; e; e = e.parentElement) behind.unshift(getComputedStyle(e).backgroundColor);
    const style = getComputedStyle(node);
    const ink = node.ownerSVGElement ? style.fill : style.color;
    const [a, b] = [light(mixed(behind)), light(mixed([...behind, ink]))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < worst.ratio) worst = {ratio, what: node.outerHTML.slice(0, 120)};
  }
  return worst;
}"""
"""A script that returns the lowest contrast of a text with what lies behind it."""


def assert_readable(page: Any) -> None:
    """Texts differ from what lies behind them, and a phone shows the whole width."""
    worst = page.evaluate(CONTRAST)
    assert worst["ratio"] >= 4.5, worst
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def screenshot(page: Any, name: str) -> None:
    """Write an image of a page, to look at, into the folder of the variable SCREENSHOTS."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)
