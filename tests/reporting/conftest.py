"""A browser that opens pages; tests that need one are skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import CHROMIUM, DESK, FLAGS


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """A function that opens a file; console messages and network requests are failures."""
    contexts, troubles = [], []

    def open_file(path: Path, **options: Any) -> Any:
        context = browser.new_context(viewport=options.pop("viewport", DESK), **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith(("file://", "data:"))
                or troubles.append(request.url))  # fmt: skip
        page.goto(path.as_uri())
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert not troubles
