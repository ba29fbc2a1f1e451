"""Software versions and machine of a run, and the commands that start, resume and use it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("finetune", "torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")


def environment(device: str, precision: str) -> dict[str, Any]:
    """Return versions, machine and command of this process, for ``environment.json``."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "command": command_line(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "device": device,
        "precision": precision,
        "versions": versions,
    }


def command_line() -> str:
    """Return the command of this process, quoted for a shell."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def resume_command(out: str) -> str:
    """Return the command that continues an interrupted run: the same command with --resume."""
    named = any(argument.split("=")[0] == "--out" for argument in sys.argv)
    words = [command_line()]
    words += [] if named else [f"--out {shlex.quote(out)}"]
    words += [] if "--resume" in sys.argv else ["--resume"]
    return " ".join(words)


def predict_command(folder: Path, pairs: bool | None) -> str:
    """Return a command that predicts with a trained model."""
    second = ' --pair "…"' if pairs else ""
    return f'finetune predict {shlex.quote(str(folder))} --text "…"{second}'
