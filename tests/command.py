"""The command line, run inside the test's own process, or in two as by a launcher."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from finetune.cli.help import options_of
from finetune.cli.main import main


class Outcome(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


def run(*arguments: str | Path, stdin: bytes | None = None) -> Outcome:
    """Run ``finetune`` with these arguments; anything but a clean exit is the test's failure."""
    out, err = io.StringIO(), io.StringIO()
    typed = [str(argument) for argument in arguments]
    patches = [mock.patch.object(sys, "argv", ["finetune", *typed])]
    if stdin is not None:
        patches.append(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))))
    code = 0
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            main(typed)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return Outcome(code, out.getvalue(), err.getvalue())


def refused(outcome: Outcome, *parts: str) -> None:
    """The outcome is an error of use whose one line, the last of all, has all parts."""
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err
    lines = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and outcome.err.endswith(lines[0] + "\n"), outcome.err
    for part in parts:
        assert part in lines[0], outcome.err


def option_texts(kind: type) -> dict[str, str]:
    """The text of each option of a dataclass."""
    return {option.name: option.text for option in options_of(kind)}


def in_two_processes(
    words: list[str], folders: tuple[Path | None, Path | None] = (None, None)
) -> list[subprocess.Popen]:
    """Start a command as an accelerate launcher does, each process in a folder of its own."""
    return [
        subprocess.Popen(
            words,
            env=environment,
            cwd=folder,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for environment, folder in zip(environment_of_two(), folders, strict=True)
    ]


def environment_of_two() -> list[dict[str, str]]:
    """The environment that an accelerate launcher gives each of two processes."""
    shared = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20_000 + os.getpid() % 20_000),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    return [{**shared, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(2)]
