"""`finetune bench`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from finetune.benchmark.settings import BenchSettings
from finetune.cli.command import Command
from finetune.cli.output import show

if TYPE_CHECKING:
    from finetune.benchmark.measure import Case, Row


@dataclass(frozen=True, kw_only=True)
class Bench(BenchSettings, Command):
    """Measure speed and memory against transformers' Trainer and pipelines.

    Examples:
        finetune bench
        finetune bench --shape roberta-base --phases train,predict --size large
    """

    @property
    def single_process(self) -> str:
        """One process is measured."""
        return "bench"

    def run(self) -> None:
        """Measure the phases; print a table for each case, or one JSON object."""
        from finetune.benchmark.command import run
        from finetune.benchmark.measure import as_json, table

        def show_case(case: Case) -> None:
            show(f"{case.phase}: {case.name}: {len(case.arms)} arms", error=True)

        def show_rows(rows: list[Row]) -> None:
            if self.format == "table":
                show(table(rows))

        rows, environment = run(self, show_case, show_rows)
        if self.format == "json":
            show(json.dumps({"rows": as_json(rows), "environment": environment}))
        else:
            show("; ".join(f"{name}: {value}" for name, value in environment.items()))
