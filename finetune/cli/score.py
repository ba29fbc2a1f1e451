"""`finetune score`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from finetune.cli.output import TableFormat, print_tables, show
from finetune.config.tasks import column_map
from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score a file of predictions against a file of gold labels; or print the scores of a run."""

    predictions: Annotated[Positional[str], arg(metavar="PREDICTIONS")]
    """File of predictions (JSON Lines), aligned with gold by `id` where both have ids, else by
    position. `-` reads standard input. A run folder, or a folder of seeds, has scores: the
    command prints them."""
    gold: Annotated[Positional[str | None], arg(metavar="GOLD")] = None
    """File of gold labels."""
    format: TableFormat = "json"
    """Print JSON or CSV with all digits, or a table as text, LaTeX (booktabs) or Markdown."""
    positive: str | None = None
    """Positive class of `f1`, of two labels. Unset: that of the run; else that by name, as in
    training, or the rarer of gold."""
    columns: tuple[str, ...] = ()
    """Columns of the gold file if their names are not recognized, as `role=column`."""
    encoding: str = "utf-8"
    """Text encoding of the gold file, and of predictions in columns, such as
    `cp1252`, `utf-16` or `gb18030`. Predictions in JSON Lines are UTF-8."""

    def run(self) -> None:
        """Print the metrics."""
        from finetune.evaluation.reproduction import score_table
        from finetune.evaluation.runs import align_runs, score_aligned

        folder = Path(self.predictions)
        if self.gold is None and folder.is_dir():
            return print_tables(self.format, ("", *score_table(folder)))
        if self.gold is None:
            raise UserError(f"{folder}: name the file of gold labels too; a run folder needs none.")
        found = align_runs(
            [Path(self.predictions)],
            self.gold,
            columns=column_map(self.columns),
            positive=self.positive,
            encoding=self.encoding,
        )
        if found.aligned_by == "position":
            show("Aligned by position: one of the files has no ids.", error=True)
        if found.positive_note:
            show(found.positive_note, error=True)
        scores = score_aligned(found.runs[0])
        if self.format == "json":
            return show(json.dumps(scores, indent=2))
        return print_tables(self.format, ("", ("metric", "value"), list(scores.items())))
