"""Processes that are forked from one that has imported what they need.

Importing torch and transformers costs each new interpreter more than a small training.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import runpy
import sys
import tempfile
import types
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from unittest import mock

import transformers.models.bert.modeling_bert
import transformers.models.modernbert.modeling_modernbert  # noqa: F401

import finetune.api
import finetune.cli.predict
import finetune.cli.train
import finetune.inference.predictor
import finetune.tasks.text_classification
import finetune.tasks.token_classification  # noqa: F401
from tests.command import environment_of_two


class Fork:
    """A started process, with the methods and the attribute of ``subprocess.Popen`` used here."""

    def __init__(self, words: Sequence[str], environment: dict[str, str], workdir: Path) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._paths = [Path(self._folder.name, name) for name in ("out", "err")]
        assert words[0] == sys.executable, words
        _start_server()
        arguments = (list(words[1:]), environment, str(workdir), *map(str, self._paths))
        self._process = ForkServerProcess(target=_run, args=arguments)
        self._process.start()

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
    first call; a test that changes it, kills or limits a process needs a fresh one.
    """
    return Fork(words, dict(os.environ), workdir)


def in_two_forks(words: Sequence[str]) -> list[Fork]:
    """Start a command of Python as ``in_two_processes`` does, with the limits of ``in_fork``."""
    return [Fork(words, environment, Path.cwd()) for environment in environment_of_two()]


@functools.cache
def _start_server() -> None:
    context = multiprocessing.get_context("forkserver")
    assert isinstance(context, ForkServerContext)
    context.set_forkserver_preload([__name__])
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        multiprocessing.forkserver.ensure_running()


def _run(words: list[str], environment: dict[str, str], folder: str, out: str, err: str) -> None:
    """Do what ``python WORDS`` does."""
    gc.freeze()
    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
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
