"""`finetune report`: what was gathered about runs, written as one page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.config.tasks import CONFIGS, settings
from finetune.evaluation.gold import Gold
from finetune.reporting.errors import MOST_EXAMPLES
from finetune.reporting.model_card import write_card
from finetune.reporting.runs import System, gather
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.cli.arguments import ReportCommand

FILE = "report.html"
MOST_RUNS = 12
"""Runs whose curves and answers one page holds."""


def run(folders: Sequence[str], command: ReportCommand) -> None:
    """What the command does."""
    if command.examples < 0:
        raise UserError(f"--examples must be 0 or more, not {command.examples}.")
    paths = [Path(folder) for folder in folders]
    if repeated := [path for path in paths if paths.count(path) > 1]:
        raise UserError(f"{repeated[0]}: named twice: name each run once.")
    systems = _named_apart([gather(path, command.split) for path in paths])
    if (number := sum(len(system.runs) for system in systems)) > MOST_RUNS:
        raise UserError(f"{number} runs are too many for one page: name {MOST_RUNS} at most.")
    out = Path(command.out or (paths[0] / FILE if len(paths) == 1 else FILE))
    write(systems, out, command.examples)
    _write_first_card(systems)
    for system in systems:
        for each in (system, *system.runs):
            for line in each.missing:
                print(f"{each.folder}: {line}", file=sys.stderr)
    print(out)


def write(systems: Sequence[System], out: Path, most_examples: int = MOST_EXAMPLES) -> None:
    """Write the page; raises ValueError where the place cannot be written to."""
    from finetune.reporting.page import page

    defaults = {name: settings(kind()) for name, kind in CONFIGS.items()}
    text = page(systems, defaults, most_examples)
    if out.is_dir() or not out.absolute().parent.is_dir():
        what = "is a folder" if out.is_dir() else "its folder does not exist"
        raise UserError(f"--out {out}: {what}: name a file in a folder that exists.")
    fresh = out.with_name(out.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(out)


def write_or_say(folder: Path, gold: Mapping[str, Gold] | None = None) -> None:
    """Write the page of a finished run, or of a folder of seeds, and the card of its model.

    The run is finished whatever comes of them: what fails here is said, with the command that
    makes them again.
    """
    try:
        system = gather(folder, None, gold)
        write([system], folder / FILE)
        _write_card(system)
    except Exception as error:
        print(
            f"{FILE} or the model card could not be made ({type(error).__name__}: {error}). The "
            f"run itself is finished; try again with: finetune report {shlex.quote(str(folder))}",
            file=sys.stderr,
        )


def _write_first_card(systems: Sequence[System]) -> None:
    """The card of a model that has none: one that is there may have been edited."""
    if len(systems) == 1 and not (systems[0].folder / "best" / "README.md").exists():
        try:
            _write_card(systems[0])
        except OSError as error:
            print(f"no model card: {error}", file=sys.stderr)


def _write_card(system: System) -> None:
    """The card of the model of a finished run; several seeds have one each."""
    run = system.runs[0]
    if run.folder == system.folder and run.metrics and (run.folder / "best").is_dir():
        write_card(system)


def _named_apart(systems: Sequence[System]) -> list[System]:
    """Systems whose folders have the same name are called by more of their path."""
    from dataclasses import replace

    names = [system.name for system in systems]
    return [
        replace(system, name=str(system.folder)) if names.count(system.name) > 1 else system
        for system in systems
    ]
