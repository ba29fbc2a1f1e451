"""The page of a report in a real browser: no network, no console error, filters, theme, phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as fx
from tests.browser import DESK, PHONE, assert_readable, screenshot
from tests.command import run
from tests.covering import few
from tests.runs import label_run, spans_run, tag_run


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    workdir = tmp_path_factory.mktemp("pages")
    first, second = tag_run(workdir / "entities"), label_run(workdir / "texts")
    third = spans_run(workdir / "nested")
    many = [(f"text {number}", "good", "bad", 0.6) for number in range(60)]
    fourth = label_run(workdir / "many", many)
    for folder in (first, second, third, fourth):
        assert run("report", folder).code == 0
    explained = {}
    for task in ("nli", "tag"):
        explained[task] = workdir / f"{task}.html"
        options = ("--explain", "--split", "validation", "--out", explained[task])
        assert run("report", fx.trained(task), *options).code == 0
    label_run(workdir / "other texts")
    run("report", second, workdir / "other texts", "--out", workdir / "both.html").ok()
    return {
        "entities": first / "report.html",
        "texts": second / "report.html",
        "nested": third / "report.html",
        "many": fourth / "report.html",
        "both": workdir / "both.html",
        **explained,
    }


@pytest.fixture
def opened(open_page: Any, pages: dict[str, Path]) -> Any:
    return lambda name, **options: open_page(pages[name], **options)


def shown(page: Any) -> int:
    return page.locator("#errors > li:visible").count()


def test_filters(opened: Any):
    page = opened("entities")
    assert shown(page) == 7 and page.locator("#count").inner_text() == "7 of 7 examples"
    page.select_option("[data-filter=category]", "miss")
    assert shown(page) == 4 and page.locator("#count").inner_text() == "4 of 7 examples"
    page.select_option("[data-filter=label]", "PER")
    assert shown(page) == 2
    page.fill("#search", "BRUNO")
    assert shown(page) == 1
    page.get_by_role("button", name="Clear filters").click()
    page.wait_for_function("document.getElementById('count').textContent === '7 of 7 examples'")
    page.fill("#search", "no such words")
    assert shown(page) == 0
    page.fill("#search", "")
    text = page.locator("#errors").inner_text()  # other scripts
    assert "<script>alert('x')</script>" in text and "東京" in text
    right_to_left = page.locator("dd", has_text="مرحبا").first
    assert right_to_left.evaluate("e => getComputedStyle(e).direction") == "rtl"


@pytest.mark.slow
def test_long_lists_are_unfolded(opened: Any):
    page = opened("many")
    assert shown(page) == 24 and page.locator("#count").inner_text() == "60 of 60 examples"
    page.fill("#search", "text 1")
    assert shown(page) == 11
    page.fill("#search", "")
    page.get_by_role("button", name="Show 36 more").click()
    assert shown(page) == 60 and not page.locator("#more").is_visible()


@pytest.mark.slow
def test_theme_and_filters_from_the_keyboard(opened: Any):
    page = opened("texts")
    page.locator("#search").focus()
    page.keyboard.type("bright")
    assert shown(page) == 1
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.filter") == "label"
    page.keyboard.press("Escape")
    page.fill("#search", "")
    page.select_option("[data-filter=category]", "bad taken for good")
    assert shown(page) == 1
    assert "0.970" in page.locator("#errors > li:visible").inner_text()
    background, button = "getComputedStyle(document.body).backgroundColor", page.locator("#theme")
    light, dark = "rgb(246, 247, 249)", "rgb(20, 23, 27)"
    for scheme, begun in (("light", light), ("dark", dark)):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(background) == begun
        seen = []
        for _ in range(3):
            button.click()
            seen.append((button.inner_text(), page.evaluate(background)))
        assert seen == [("Theme: light", light), ("Theme: dark", dark), ("Theme: auto", begun)]


def check_phone_and_contrast(page: Any, name: str) -> None:
    """The whole width is shown, and texts reach the ratio of 4.5 (WCAG 2.2, 1.4.3)."""
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    for click in (False, True):
        if click:
            page.evaluate("document.querySelectorAll('summary').forEach((each) => each.click())")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert_readable(page)
            screenshot(page, f"{name}-{scheme}")


def test_runs_side_by_side(opened: Any):
    page = opened("both", viewport=PHONE)
    assert shown(page) == 6
    page.select_option("[data-filter=run]", "other texts")
    assert shown(page) == 3
    page.get_by_role("button", name="Clear filters").click()
    check_phone_and_contrast(page, "both")


@pytest.mark.parametrize("name", few(["nli", "tag"], "tag"))
def test_explanations(opened: Any, name: str):
    page = opened(name, viewport=PHONE if name == "tag" else DESK)
    first = page.locator("#errors > li", has=page.locator(".why")).first
    words = first.locator(".why span[title]")
    assert words.count() > 1 and words.first.get_attribute("title")[0] in "+-"
    strongest = first.locator("[style='--share:1.0000']").first
    background = "e => getComputedStyle(e).backgroundColor"
    assert strongest.evaluate(background) != page.locator("body").evaluate(background)
    screenshot(page, f"{name}-explanations")
    if name == "tag":
        check_phone_and_contrast(page, name)
