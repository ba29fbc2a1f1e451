"""Write the HTML report of runs and the model card of a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from finetune.config.tasks import CONFIGS, settings
from finetune.evaluation.gold import Gold
from finetune.reporting.errors import MOST_EXAMPLES
from finetune.reporting.model_card import write_card
from finetune.reporting.runs import System, gather
from finetune.types import UserError

REPORT_FILE = "report.html"
MOST_RUNS = 12
"""Most runs that one report shows."""


class WrittenReport(NamedTuple):
    """A report that was written: its path and a line for everything that its runs lack."""

    path: Path
    warnings: list[str]


def write_report(
    folders: Sequence[Path],
    *,
    out: Path | None = None,
    split: str | None = None,
    most_examples: int = MOST_EXAMPLES,
) -> WrittenReport:
    """Write one report on the runs in ``folders``, and the model card of a run that has none.

    Args:
        folders: Run folders, or folders of several seeds.
        out: File to write; None is `report.html` in the only folder, or in the working directory.
        split: Split whose predictions are shown; None is the test split, or another with gold.
        most_examples: Most examples with errors that the report holds.

    Raises:
        UserError: A folder holds no run or is named twice, there are too many runs, or ``out``
            cannot be written.
    """
    if most_examples < 0:
        raise UserError(f"--examples must be 0 or more, not {most_examples}.")
    if repeated := [path for path in folders if folders.count(path) > 1]:
        raise UserError(f"{repeated[0]}: named twice: name each run once.")
    systems = _with_distinct_names([gather(path, split) for path in folders])
    if (number := sum(len(system.runs) for system in systems)) > MOST_RUNS:
        raise UserError(f"{number} runs are too many for one report: name {MOST_RUNS} at most.")
    out = out or (folders[0] / REPORT_FILE if len(folders) == 1 else Path(REPORT_FILE))
    _write_page(systems, out, most_examples)
    if len(systems) == 1 and not (systems[0].folder / "best" / "README.md").exists():
        _write_card(systems[0])  # an existing card may have been edited
    warnings = [
        f"{each.folder}: {line}"
        for system in systems
        for each in (system, *system.runs)
        for line in each.missing
    ]
    return WrittenReport(out, warnings)


def write_run_report(folder: Path, gold: Mapping[str, Gold] | None = None) -> None:
    """Write the report and the model card of a finished run, or the report of a seeds folder."""
    system = gather(folder, None, gold)
    _write_page([system], folder / REPORT_FILE, MOST_EXAMPLES)
    _write_card(system)


def _write_page(systems: Sequence[System], out: Path, most_examples: int) -> None:
    from finetune.reporting.page import page

    defaults = {name: settings(kind()) for name, kind in CONFIGS.items()}
    text = page(systems, defaults, most_examples)
    if out.is_dir() or not out.absolute().parent.is_dir():
        problem = "is a folder" if out.is_dir() else "its folder does not exist"
        raise UserError(f"--out {out}: {problem}: name a file in a folder that exists.")
    fresh = out.with_name(out.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(out)


def _write_card(system: System) -> None:
    """Write the card of a finished run's model; a folder of seeds has one card in each run."""
    run = system.runs[0]
    if run.folder == system.folder and run.metrics and (run.folder / "best").is_dir():
        write_card(system)


def _with_distinct_names(systems: Sequence[System]) -> list[System]:
    """Name systems by their whole path where their folders have the same name."""
    names = [system.name for system in systems]
    return [
        replace(system, name=str(system.folder)) if names.count(system.name) > 1 else system
        for system in systems
    ]
