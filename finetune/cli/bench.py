"""`finetune bench`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from finetune.benchmark.settings import BenchSettings

if TYPE_CHECKING:
    from finetune.benchmark.measure import Case, Row


@dataclass(frozen=True, kw_only=True)
class Bench(BenchSettings):
    """Measure speed and memory against transformers' Trainer and pipelines."""

    def run(self) -> None:
        """Measure the phases; print a table for each case, or one JSON object."""
        from finetune.benchmark.command import run
        from finetune.benchmark.measure import as_json, table

        def show_case(case: Case) -> None:
            print(f"{case.phase}: {case.name}: {len(case.arms)} arms", file=sys.stderr, flush=True)

        def show_rows(rows: list[Row]) -> None:
            if not self.json:
                print(table(rows), flush=True)

        rows, environment = run(self, show_case, show_rows)
        if self.json:
            print(json.dumps({"rows": as_json(rows), "environment": environment}))
        else:
            print("; ".join(f"{name}: {value}" for name, value in environment.items()))
