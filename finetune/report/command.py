"""`finetune report`: what was gathered about runs, written as one page."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.answers import Gold
from finetune.config import CONFIGS, settings
from finetune.report.errors import MOST_EXAMPLES
from finetune.report.gathering import System, gather

if TYPE_CHECKING:
    from finetune.arguments import ReportCommand

FILE = "report.html"


def run(folders: Sequence[str], command: ReportCommand) -> None:
    """What the command does."""
    if command.examples < 0:
        raise ValueError(f"--examples must be 0 or more, not {command.examples}.")
    paths = [Path(folder) for folder in folders]
    if repeated := [path for path in paths if paths.count(path) > 1]:
        raise ValueError(f"{repeated[0]}: named twice: name each run once.")
    systems = _named_apart([gather(path, command.split) for path in paths])
    out = Path(command.out or (paths[0] / FILE if len(paths) == 1 else FILE))
    write(systems, out, command.examples)
    for system in systems:
        for each in (system, *system.runs):
            for line in each.missing:
                print(f"{each.folder}: {line}", file=sys.stderr)
    print(out)


def write(systems: Sequence[System], out: Path, most_examples: int = MOST_EXAMPLES) -> None:
    """Write the page; raises ValueError where the place cannot be written to."""
    from finetune.report.page import page

    defaults = {name: settings(kind()) for name, kind in CONFIGS.items()}
    text = page(systems, defaults, most_examples)
    if out.is_dir() or not out.absolute().parent.is_dir():
        what = "is a folder" if out.is_dir() else "its folder does not exist"
        raise ValueError(f"--out {out}: {what}: name a file in a folder that exists.")
    fresh = out.with_name(out.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(out)


def write_run(folder: Path, gold: Mapping[str, Gold] | None = None) -> System:
    """Write the page of one run, or of a folder of seeds, into its folder."""
    system = gather(folder, None, gold)
    write([system], folder / FILE)
    return system


def _named_apart(systems: Sequence[System]) -> list[System]:
    """Systems whose folders have the same name are called by more of their path."""
    from dataclasses import replace

    names = [system.name for system in systems]
    return [
        replace(system, name=str(system.folder)) if names.count(system.name) > 1 else system
        for system in systems
    ]
