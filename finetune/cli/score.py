"""`finetune score`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from finetune.config.tasks import column_map


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score a file of predictions against a file of gold labels, as JSON."""

    predictions: Annotated[Positional[str], arg(metavar="PREDICTIONS")]
    """File of predictions (JSON Lines)."""
    gold: Annotated[Positional[str], arg(metavar="GOLD")]
    """File of gold labels."""
    columns: tuple[str, ...] = ()
    """Columns of the gold file if their names are not recognized, as `role=column`."""

    def run(self) -> None:
        """Print the metrics."""
        from finetune.evaluation.runs import score_predictions

        scores = score_predictions(Path(self.predictions), self.gold, column_map(self.columns))
        print(json.dumps(scores, indent=2))
