"""The command line, run inside the test's own process, or in two as by a launcher."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from finetune.cli.help import options_of
from finetune.cli.main import main
from finetune.runtime.files import LOCK


class Outcome(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    def ok(self) -> Outcome:
        """Return the outcome of a command that must succeed."""
        assert self.code == 0, self.err
        return self

    def refused(self, *said: str) -> Outcome:
        """Return the outcome of an error of use, which is told once and says all this."""
        assert self.code == 2, self.out + self.err
        told = sum(line.startswith("error: ") for line in self.err.splitlines())
        assert told <= 1, self.err  # the error of a user's own function has its traceback
        for part in said:
            assert part in self.err, self.err
        return self

    @property
    def rows(self) -> list[Any]:
        """What a command that prints JSON Lines has printed."""
        return [json.loads(line) for line in self.out.splitlines()]


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


HOLD = """
import sys
from collections.abc import Iterator
from pathlib import Path
from finetune.runtime.files import lock_folder
with lock_folder(Path(sys.argv[1]), name=sys.argv[2]):
    print("held", flush=True)
    input()
"""


@contextlib.contextmanager
def folder_in_use(folder: Path, name: str = LOCK) -> Iterator[subprocess.Popen]:
    """Let another process hold the lock of a folder; the end of its input ends it."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, folder, name], **pipes) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        yield holder
        holder.communicate("\n")


def option_texts(cls: type) -> dict[str, str]:
    """The text of each option of a dataclass."""
    return {option.name: option.text for option in options_of(cls)}


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
