"""The page to try models, in a real browser: bars, errors, colors, a phone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from finetune.deployment.batcher import Limits
from finetune.deployment.server import make_app
from tests.browser import PHONE, assert_readable, screenshot
from tests.deployment.conftest import served

TEXT = "🙂 The <b>University</b> of New York"


@pytest.fixture(scope="module")
def address(runs: dict[str, Path]) -> Iterator[str]:
    names, limits = ("texts", "pairs", "tags", "choices", "nested"), Limits(max_characters=300)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        served(runs, names, limits) as models,
    ):
        models[-1].batcher.predict = entities
        app = make_app(models, hosts=frozenset({"127.0.0.1"}))
        server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server.should_exit = True
        thread.join()


def entities(items: Any) -> list[dict]:
    """Nested and crossing spans, with a name that must be escaped."""
    words = ["🙂", "The", "<b>University</b>", "of", "New", "York"]
    offsets = [(0, 1), (2, 5), (6, 23), (24, 26), (27, 30), (31, 35)]
    spans = [(1, 6, "ORG"), (4, 6, "<i>LOC"), (5, 6, "PER"), (2, 5, "MISC")]
    rows = [{"start": s, "end": e, "label": label, "score": 0.8} for s, e, label in spans]
    return [{"id": 0, "words": words, "offsets": offsets, "spans": rows} for _ in items]


@pytest.fixture
def opened(open_page: Any, address: str) -> Any:
    def open_there(**options: Any) -> Any:
        page = open_page(address, **options)
        page.wait_for_selector("#text:visible")
        return page

    return open_there


def ask(page: Any, model: str, **fields: str) -> None:
    label = page.locator("#model option", has_text=f"{model} (").inner_text()
    page.select_option("#model", label=label)
    for name, text in fields.items():
        page.fill(f"#{name}", text)
    page.click("#send")
    page.wait_for_selector("#result:visible, #error:visible")


def test_spans_tags_and_choices_are_listed(opened: Any):
    page = opened()
    ask(page, "nested", text=TEXT)
    assert page.locator("#title").inner_text() == "4 spans"
    shown = page.locator("#shown span").all_inner_texts()
    assert shown[2:4] == ["New York — <i>LOC", "0.800"]
    assert page.locator("#shown b").count() == 0, "names are escaped"
    ask(page, "tags", text="Ana saw Oslo")
    assert page.locator("#error").is_hidden()
    ask(page, "choices", context="it was dull", question="what?", choices="warm\n\ndull\n")
    assert page.locator("#title").inner_text() in ("warm", "dull")
    assert sorted(page.locator("#shown span").all_inner_texts())[2:] == ["dull", "warm"]


def test_probabilities_are_bars_and_errors_are_shown(opened: Any):
    page = opened()
    ask(page, "texts", text="a <script>alert(1)</script> room")
    assert page.locator("#title").inner_text() in ("neg", "pos")
    widths = page.evaluate("[...document.querySelectorAll('.bar i')].map((e) => e.offsetWidth)")
    assert len(widths) == 2 and widths[0] >= widths[1] > 0
    ask(page, "pairs", text="Ana lives in Oslo", text_pair="Ana is in Oslo")
    assert page.locator(".bar").count() == 3
    ask(page, "texts", text="x" * 301)
    page.wait_for_selector("#error:visible")
    assert "at most 300" in page.locator("#error").inner_text()
    page.fill("#text", "a warm room")
    page.locator("#text").press("Control+Enter")
    page.wait_for_selector("#result:visible")
    assert page.locator("#error").is_hidden()


def test_colors_and_a_phone(opened: Any):
    page = opened(viewport=PHONE)
    for model, fields in (
        ("nested", {"text": TEXT}),
        ("pairs", {"text": "Ana lives in Oslo", "text_pair": "x" * 200}),
    ):
        ask(page, model, **fields)
        page.locator("summary").click()
        for scheme, color in (("light", "rgb(246, 247, 249)"), ("dark", "rgb(20, 23, 27)")):
            page.emulate_media(color_scheme=scheme)
            assert_readable(page)
            screenshot(page, f"serve-{model}-{scheme}")
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == color
