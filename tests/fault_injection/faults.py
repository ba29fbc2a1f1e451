"""Commands that are killed, or find no space on the disk, at a chosen operation on files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tests.fault_injection.server  # noqa: F401  # every run of the tests sees that it can be imported

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Ended:
    """How a command ended; the code of one that was killed is -9."""

    code: int
    error: str
    out: str
    count: int
    """Operations on files that write."""
    seconds: float


@dataclass
class Server:
    """Runs commands in a directory; those of ``folder`` and all names that begin so are counted."""

    process: subprocess.Popen[str]
    directory: Path
    folder: Path

    def run(
        self,
        arguments: Sequence[str],
        *,
        number: int = 0,
        kills: bool = False,
        seconds: float = 0.0,
        on_disk: bool = False,
    ) -> Ended:
        """Run a command.

        Args:
            arguments: The command.
            number: From this operation on, the disk is full; 0 is never.
            kills: The operation kills the process instead.
            seconds: Time after which the process is killed; 0 is never.
            on_disk: Data do not fit in memory; ``FOLDER-kept`` is the cache.
        """
        job = {
            "arguments": list(arguments),
            "folder": str(self.folder),
            "number": number,
            "kills": kills,
            "seconds": seconds,
            "directory": str(self.directory),
            "on_disk": on_disk,
        }
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return Ended(**json.loads(self.process.stdout.readline()))


@contextmanager
def serving(directory: Path, folder: Path) -> Iterator[Server]:
    """Start a server, or skip the test where there is no C compiler or no LD_PRELOAD."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    library = directory / "faults.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, HERE / "faults.c", "-ldl"], check=True
    )
    variables = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fault_injection.server"],
        env=variables,
        cwd=HERE.parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Server(process, directory, folder)
        assert process.stdin is not None
        process.stdin.close()


RATES = re.compile(rb'"examples_per_second": [0-9.]+|<svg [^>]*aria-label="Training speed.*?</svg>')
"""What may differ between runs: measured rates in the log, and their chart in the report."""


def content(folder: Path) -> dict[str, Any]:
    """All files of a folder, also hidden ones: name, permissions and bytes, without rates."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file():
            data = path.read_bytes()
            rated = path.name in ("log.jsonl", "report.html")
            found[name] = (path.stat().st_mode, RATES.sub(b"", data) if rated else data)
        else:
            found[name] = path.stat().st_mode
    return found


def assert_same(one: dict[str, Any], other: dict[str, Any], when: str) -> None:
    """Assert that two folders have the same files with the same bytes."""
    assert one.keys() == other.keys(), (when, one.keys() ^ other.keys())
    differing = [name for name in one if one[name] != other[name]]
    assert not differing, (when, differing)
