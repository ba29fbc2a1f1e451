"""`finetune score`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from finetune.cli.options import Command, FormatOption, MetricOptions
from finetune.cli.output import print_tables, show
from finetune.cli.predict import predicted
from finetune.config.options import DATA, argument
from finetune.types import UserError, quantity


@dataclass(frozen=True, kw_only=True)
class ScoreCommand(FormatOption, MetricOptions, Command):
    """Score predictions against gold labels, score a model on a file, or print the scores of a run.

    Examples:
        finetune score predictions.jsonl gold.jsonl
        finetune score runs/nli --data new-test.jsonl --format json
    """

    predictions: Annotated[str, argument("PREDICTIONS")]
    """File of predictions (JSON Lines), or a run folder or folder of seeds, whose scores are
    printed. `-` reads standard input. With --data, a run folder, saved model or hub id."""
    gold: Annotated[str | None, argument("GOLD")] = None
    """File of gold labels, aligned with the predictions by `id` if both have ids, else by position.
    Default: the field `gold` of the predictions."""
    data: Annotated[str | None, DATA] = None
    """File with gold labels that the model predicts and is scored on, such as another test set."""

    def run(self) -> None:
        """Print the metrics."""
        from finetune.evaluation.reproduction import score_table

        if self.data is not None:
            return self._score_model(self.data)
        if self.gold is None and Path(self.predictions).is_dir():
            return print_tables(self.format, ("", *score_table(Path(self.predictions))))
        if Path(self.predictions).is_dir():
            raise UserError(
                f"{self.predictions} is a folder, not a file of predictions: to predict "
                f"{self.gold} with its model, write --data {self.gold}."
            )
        self._score(Path(self.predictions), self.gold)

    def _score_model(self, data: str) -> None:
        if self.gold is not None:
            raise UserError(f"--data {data} holds the gold labels, too: leave out {self.gold}.")
        if not Path(data).is_file():
            problem = "is a folder" if Path(data).is_dir() else "does not exist"
            raise UserError(f"--data {data} {problem}: name one file with gold labels.")
        with predicted(self.predictions, data, self) as predictions:
            self._score(predictions, data)

    def _score(self, predictions: Path, gold: str | None) -> None:
        from finetune.evaluation.metrics import score
        from finetune.evaluation.prediction_types.labels import choose_positive
        from finetune.evaluation.predictions import align_runs, notes_on

        (tables,) = align_runs([predictions], self.gold_source(gold))
        scores = score(tables)
        if self.format == "json":
            show(json.dumps(scores, indent=2))
        else:
            print_tables(self.format, ("", ("metric", "value"), list(scores.items())))
        by_position = "Aligned by position: one of the files has no ids."
        unsure = tables.aligned_by == "position" and self.data is None  # not predicted from gold
        number = tables.num_without_gold
        _, on_positive = choose_positive([tables], tables.positive)
        without = f"Not scored: {quantity(number, 'row')} of {tables.files[1]} without gold."
        notes = [by_position if unsure else "", without if number else "", on_positive]
        for note in filter(None, [*notes, *notes_on(tables, predictions.parent)]):
            show(note, error=True)
