"""Processes that are forked from the one that runs the tests, which has imported what they need.

Importing torch and transformers costs each new interpreter more than a small training.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
import types
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

from tests.command import environment_of_two

CONTEXT = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
"""The threads of autograd that wait for a GPU do not survive a fork."""


class Fork:
    """A started process, with the methods and the attribute of ``subprocess.Popen`` used here."""

    def __init__(self, words: Sequence[str], environment: dict[str, str], workdir: Path) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._paths = [Path(self._folder.name, name) for name in ("out", "err")]
        assert words[0] == sys.executable, words
        for path in self._paths:
            path.touch()
        self._lines = self._paths[0].open(encoding="utf-8")
        arguments = (list(words[1:]), environment, str(workdir), *map(str, self._paths))
        self._process = CONTEXT.Process(target=_run, args=arguments)
        self._process.start()
        self.terminate = self._process.terminate

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def readline(self) -> str:
        """Wait for the next line of the output."""
        line = ""
        while not line.endswith("\n") and self._process.is_alive():
            time.sleep(0.01)
            line += self._lines.readline()
        return line

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int | None:
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"no end in {timeout} seconds: {self._read()}")
        return self._process.exitcode

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        self.wait(timeout)
        return self._read()

    def _read(self) -> tuple[str, str]:
        out, err = (path.read_text("utf-8") for path in self._paths)
        return out, err


def in_fork(words: Sequence[str], workdir: Path) -> Fork:
    """Start a command of Python in a folder.

    What is read as modules are imported (OMP_NUM_THREADS, the cache of the hub) is that of the
    tests; a test that changes it, kills or limits a process needs a fresh one.
    """
    return Fork(words, dict(os.environ), workdir)


def in_two_forks(words: Sequence[str]) -> list[Fork]:
    """Start a command of Python as ``in_two_processes`` does, with the limits of ``in_fork``."""
    return [Fork(words, environment, Path.cwd()) for environment in environment_of_two()]


def _run(words: list[str], environment: dict[str, str], folder: str, out: str, err: str) -> None:
    """Do what ``python WORDS`` does."""
    gc.freeze()
    torch.set_num_threads(1)
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()  # the tests are one process, this may be one of two
    for name, path in (("stdout", out), ("stderr", err)):
        stream = open(path, "w", encoding="utf-8", buffering=1)
        os.dup2(stream.fileno(), 1 if name == "stdout" else 2)
        setattr(sys, name, stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    option, program, *arguments = words
    sys.argv = [option, *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), vars(main))
