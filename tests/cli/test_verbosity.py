"""Options of every command: --quiet and --verbose; machine-readable checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import run
from tests.small_data import write_jsonl


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Training data with a warning: a text twice, with different labels."""
    rows = [{"text": f"text {n}", "label": "ab"[n % 2]} for n in range(12)]
    return write_jsonl(tmp_path / "train.jsonl", [*rows, {"text": "text 0", "label": "b"}])


def test_quiet_prints_results_and_errors_only(texts: Path):
    command = ("convert", texts, "--to", "jsonl", "--out", texts.parent / "out.jsonl")
    assert run(*command).err and run(*command, "--quiet") == (0, "", "")
    shown = run("check", texts, "--quiet")
    assert shown.code == 0 and "warning" in shown.out
    run("check", "--quiet", texts.parent / "no").refused()
    run("check", texts, "--quiet", "--no-such-option").refused("no-such-option")
    run("check", texts, "--quiet", "--verbose").refused("exclude each other")


def test_verbose_prints_the_traceback_of_an_error(texts: Path):
    outcome = subprocess.run(
        [sys.executable, "-m", "finetune", "check", "no", "--verbose"],
        capture_output=True,
        text=True,
        cwd=texts.parent,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert outcome.returncode == 2 and outcome.stderr.splitlines()[-1].startswith("error: no: ")
    assert "Traceback" in outcome.stderr
    assert "Traceback" not in run("check", "no").err


def test_checks_for_pipelines(texts: Path):
    plain, strict = run("check", texts, "--json"), run("check", texts, "--strict")
    findings = json.loads(plain.out)
    assert (plain.code, strict.code) == (0, 1)
    levels = {finding["level"] for finding in findings}
    assert levels == {"info", "warning"}
    assert {*findings[0]} == {"level", "check", "message", "locations"}
