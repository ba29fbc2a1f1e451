"""Runs commands in forked processes, which start in milliseconds and meet the faults of faults.c.

Reads one JSON object per line from standard input and answers each with one.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import signal
import sys
import time
from typing import Any

import datasets  # noqa: F401  # loaded once, for all commands
import torch
import transformers

from finetune import fit, load_task  # noqa: F401
from finetune.cli.main import main
from finetune.data import examples as holder
from finetune.preprocessing import preparation
from finetune.training import (
    cache,
    repeated_runs,  # noqa: F401
)


def child(job: dict[str, Any], answers: int) -> None:
    """Run a command with its faults, and write exit code, errors and operations."""
    if job["on_disk"]:
        keep_on_disk(job["folder"] + "-kept")
    faults = ctypes.CDLL(None)
    faults.faults_begin(job["folder"].encode(), job["number"], job["kills"])
    sys.argv = ["finetune", *job["arguments"]]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(job["arguments"])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    count = faults.faults_count()
    faults.faults_begin(b"", 0, 0)
    answer = {"code": code, "error": err.getvalue(), "out": out.getvalue(), "count": count}
    os.write(answers, json.dumps(answer).encode())


def keep_on_disk(folder: str) -> None:
    """Let small data take the way of data larger than memory, with a cache in ``folder``."""
    holder.MOST_IN_MEMORY, holder.CHUNK = 5, 4
    preparation.MIN_BYTES, cache.MIN_EXAMPLES = 0, 5
    os.environ["FINETUNE_CACHE"] = folder


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run a command in a process of its own; kill it after ``job["seconds"]`` if that is not 0."""
    reading, writing = os.pipe()
    begin = time.monotonic()
    if not (process := os.fork()):
        os.close(reading)
        os.chdir(job["directory"])
        child(job, writing)
        os._exit(0)
    os.close(writing)
    if job["seconds"]:
        time.sleep(job["seconds"])
        os.kill(process, signal.SIGKILL)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(process, 0)
    answer = json.loads(text) if text else {"code": -9, "error": "", "out": "", "count": 0}
    return {**answer, "seconds": time.monotonic() - begin}


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
