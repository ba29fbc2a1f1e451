"""The environment of a run, and the commands that made it, continue it and use it."""

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
    """Versions, machine and command of this process."""
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
    """The command as it was typed, near enough to type it again."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def resume_command(out: str) -> str:
    """The command that continues an interrupted run: the one that was typed, with --resume."""
    named = any(argument.split("=")[0] == "--out" for argument in sys.argv)
    parts = [command_line()]
    parts += [] if named else [f"--out {shlex.quote(out)}"]
    parts += [] if "--resume" in sys.argv else ["--resume"]
    return " ".join(parts)


def predict_command(folder: Path, pairs: bool | None) -> str:
    """The command that asks a trained model."""
    second = ' --pair "…"' if pairs else ""
    return f'finetune predict {shlex.quote(str(folder))} --text "…"{second}'
