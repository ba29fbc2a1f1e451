"""`finetune thresholds`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from finetune.cli.options import Command, FormatOption
from finetune.cli.output import print_tables, show
from finetune.config.options import argument
from finetune.evaluation.decisions.choosing import DecisionGoal, chooses_labels, fields_with
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.evaluation.decisions import Choice


@dataclass(frozen=True, kw_only=True)
class Thresholds(DecisionGoal, FormatOption, Command):
    """Choose decision thresholds of a trained model on validation data.

    The choice is saved with the model, for `finetune predict` and `finetune serve`: the threshold
    of each label, a confidence below which the model abstains, prediction sets, a threshold for
    out-of-distribution texts, or the costs of mistakes.

    Examples:
        finetune thresholds runs/topics --metric macro_f1
        finetune thresholds runs/nli --risk 0.05
        finetune thresholds runs/spam --precision 0.95 --dry-run
    """

    folder: Annotated[str, argument("RUN")]
    """Run folder with validation data."""
    split: str = "validation"
    """Split on which thresholds are chosen. Scores on it become too high afterwards, so use
    validation."""
    dry_run: bool = False
    """Print the tables without saving the choice."""
    reset: bool = False
    """Remove the saved choices of earlier calls."""

    def run(self) -> None:
        """Choose, save the choice, and print its effect."""
        from finetune.tasks import model_folder, replace_state, saved_task

        self.check()
        if self.reset and (self.goals or self.dry_run):
            other = self.goals[0] if self.goals else "--dry-run"
            raise UserError(f"--reset removes what was saved: leave out {other}.")
        folder, model = Path(self.folder), model_folder(self.folder)
        if not (folder.exists() or self.dry_run):
            raise UserError(
                f"{folder} is a hub id, whose files cannot be changed here: add --dry-run, or "
                "download the model into a folder."
            )
        from finetune.evaluation.prediction_types import TYPES
        from finetune.evaluation.runs import CHECKSUMS, RunFolder, write_run_checksums
        from finetune.inference.vectors import FILE as DISTANCE_FILE
        from finetune.inference.vectors import choose_distance

        task = saved_task(model)
        state: Any = task.state
        type, choice = TYPES[state.prediction_type], None
        if self.ood is not None:
            choice = choose_distance(task, model, self.split, self.ood, save=not self.dry_run)
        elif not self.reset:
            choice = self.choose(RunFolder.open(folder), self.split, type, state)
        if not self.dry_run:
            fields = fields_with(choice, state.decisions, chooses_labels(type, state))
            replace_state(replace(task, state=replace(state, **fields)), model)
            if self.reset:
                (model / DISTANCE_FILE).unlink(missing_ok=True)
            if (model.parent / CHECKSUMS).is_file():
                write_run_checksums(model.parent)
        if choice is None:
            return show(f"{model}: thresholds and decisions removed.")
        self._print(choice)
        if not self.dry_run:
            self.note(f"saved in {model}: `finetune predict` uses it; --reset removes it.")
        return None

    def _print(self, choice: Choice) -> None:
        if choice.title:
            self.note(choice.title)
        if self.format == "json":
            show(json.dumps(choice.content, indent=2, ensure_ascii=False))
        else:
            tables = [
                (title, tuple(rows[0]), [tuple(row.values()) for row in rows])
                for title, rows in choice.tables.items()
            ]
            print_tables(self.format, *tables)
        for note in choice.notes:
            self.note(note)
