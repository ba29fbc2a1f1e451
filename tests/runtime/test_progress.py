"""Progress: plain lines in a file, one bar for each stage on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from finetune.runtime import progress
from finetune.runtime.progress import Reporter, clock


def test_plain_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    reporter = Reporter(stream=(stream := io.StringIO()))
    with reporter:
        reporter.start("training", 10)
        reporter.update(4, "loss 0.5")
        reporter.update(5, "loss 0.4")
        reporter.start("validation", 3, unit="batch")
        reporter.update(3)
        reporter.stop()
        reporter.update(10)
    early, first, second, third = stream.getvalue().splitlines()
    assert early.startswith("training: step 4/10 loss 0.5 ")
    assert early.endswith("steps/s"), "four steps say little about the time left"
    assert first.startswith("training: step 5/10 loss 0.4 ") and "steps/s" in first
    assert first.endswith(" left")
    assert second.startswith("validation: batch 3/3 ") and "batches/s" in second
    assert third.startswith("training: step 10/10 "), "the outer stage continues"


def test_unknown_total(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    reporter = Reporter(stream=(stream := io.StringIO()))
    with reporter:
        reporter.start("embedding", None, unit="sequence")
        reporter.update(4096)
    assert stream.getvalue().startswith("embedding: sequence 4,096 ")
    assert stream.getvalue().splitlines()[0].endswith(" sequences/s")
    reporter.console = Console(file=(stream := io.StringIO()), force_terminal=True, width=120)
    with reporter:
        reporter.start("embedding", None, unit="sequence")
        reporter.update(7)
    assert "7/?" in stream.getvalue()


def test_nothing_between_lines_and_nothing_of_a_quiet_reporter(monkeypatch: pytest.MonkeyPatch):
    # rich 13 prints an empty line at the end of a display that is disabled
    monkeypatch.setattr(progress.Progress, "stop", lambda display: display.console.print())
    for quiet in (False, True):
        monkeypatch.setattr(progress, "LINE_EVERY", 0.0 if quiet else 60.0)
        reporter = Reporter(quiet=quiet, stream=(stream := io.StringIO()))
        with reporter:
            reporter.start("training", 10)
            reporter.update(4)
        assert stream.getvalue() == ""


def test_bars_on_a_terminal_may_be_nested():
    reporter = Reporter(stream=(stream := io.StringIO()))
    reporter.console = Console(file=stream, force_terminal=True, width=120, highlight=False)
    with reporter:
        reporter.start("training", 10)
        reporter.update(4, "loss [0.5]")
        reporter.start("validation", 3, unit="batch")
        reporter.update(3)
        reporter.stop()
        reporter.log("a message [not markup]")
        reporter.update(10, "loss [0.5]")
    text = stream.getvalue()
    assert "10/10" in text, "the outer bar continues"
    assert text.endswith("\x1b[2K"), "the bar vanishes at its end"
    assert "a message [not markup]" in text and "loss [0.5]" in text


def test_clock():
    assert [clock(seconds) for seconds in (0, 123, 5025)] == ["0:00", "2:03", "1:23:45"]
