"""`finetune thresholds`."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from finetune.cli.options import Command, FormatOption
from finetune.cli.output import print_tables, show
from finetune.config.options import Help, argument
from finetune.config.tasks import flag
from finetune.data.dataset import DataError
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.evaluation.decisions import Choice
    from finetune.evaluation.items import Tables
    from finetune.tasks.base import Task

_DELTA = 0.05
"""The default of --delta."""
LEAST = 1e-6
"""The least share of a goal, whose data a disk may hold."""
GOALS = ("metric", "precision", "recall", "risk", "coverage", "sets", "ood", "costs")
"""The options of which one is given."""
_OF_ANSWERS = {"thresholds", "confidence", "costs"}
"""The rules of which one decides the answers of a model: a new one replaces them."""


@dataclass(frozen=True, kw_only=True)
class Thresholds(FormatOption, Command):
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
    metric: str | None = None
    """Metric of labels to maximize. Default: `f1` for two labels, `micro_f1` for multi-label
    data."""
    precision: float | None = None
    """Maximize the recall of each label at this precision. A model that predicts one of more than
    two labels abstains below the threshold."""
    recall: float | None = None
    """Maximize the precision of each label at this recall."""
    risk: float | None = None
    """Abstain below a confidence threshold chosen so that at most this fraction of the remaining
    answers is wrong. This holds with probability 1 - δ on new data from the same distribution."""
    coverage: float | None = None
    """Abstain below the confidence threshold that keeps this fraction of the answers."""
    delta: float = _DELTA
    """Probability δ that the guarantee of --risk does not hold."""
    sets: Annotated[float | None, Help("LEVEL")] = None
    """Predict sets of labels that contain the right one with this probability (conformal
    prediction)."""
    set_scores: Literal["probability", "cumulative", "randomized"] = "probability"
    """Score of labels for --sets: the probability (smallest sets), the cumulative probability (sets
    adapt to the text), or a randomized cumulative probability (smaller sets)."""
    per_class: bool = False
    """Guarantee the level of --sets for each label separately."""
    ood: Annotated[float | None, Help("RATE")] = None
    """Abstain on out-of-distribution texts, with this false positive rate on validation data."""
    costs: Annotated[str | None, Help("FILE")] = None
    """File of the costs of mistakes: predict the label with the least expected cost. It is JSON,
    `{"gold": {"predicted": 5}}`, or a table with the column gold and a column for each predicted
    label."""
    split: str = "validation"
    """Split on which thresholds are chosen. Scores on it become too high afterwards, so use
    validation."""
    dry_run: bool = False
    """Print the tables without saving the choice."""
    reset: bool = False
    """Remove the saved choices of earlier calls."""

    def run(self) -> None:
        """Choose, save the choice, and print what it does."""
        from finetune.evaluation.runs import CHECKSUMS, write_run_checksums
        from finetune.inference.vectors import FILE as DISTANCE_FILE
        from finetune.tasks import model_folder, replace_state, saved_task

        self._check_goal()
        folder, model = Path(self.folder), model_folder(self.folder)
        if not (folder.exists() or self.dry_run):
            raise UserError(
                f"{folder} is a hub id, whose files cannot be changed here: add --dry-run, or "
                "download the model into a folder."
            )
        task = saved_task(model)
        state: Any = task.state
        no_thresholds: dict[str, Any] = {"thresholds": {}} if _chooses_labels(task) else {}
        if self.reset:
            (model / DISTANCE_FILE).unlink(missing_ok=True)
            choice, fields = None, no_thresholds | {"decisions": {}}
        else:
            choice = self._chosen(task, model)
            replaced = _OF_ANSWERS if _OF_ANSWERS & choice.fields.keys() else set()
            decisions = {n: value for n, value in state.decisions.items() if n not in replaced}
            fields = (no_thresholds if replaced else {}) | {"decisions": decisions}
            for name, value in choice.fields.items():
                (fields if name == "thresholds" else decisions)[name] = value
        if not self.dry_run:
            replace_state(replace(task, state=replace(state, **fields)), model)
            if (model.parent / CHECKSUMS).is_file():
                write_run_checksums(model.parent)
        if choice is None:
            show(f"{model}: thresholds and decisions removed.")
        elif self.format == "json":
            show(json.dumps(choice.content, indent=2, ensure_ascii=False))
        else:
            if choice.title:
                self.note(choice.title)
            tables = [
                (title, tuple(rows[0]), [tuple(row.values()) for row in rows])
                for title, rows in choice.tables.items()
            ]
            print_tables(self.format, *tables)
            for note in choice.notes:
                self.note(note)
            if not self.dry_run:
                self.note(f"saved in {model}: `finetune predict` uses it; --reset removes it.")

    def _chosen(self, task: Task, model: Path) -> Choice:
        from finetune.evaluation.decisions import abstaining, costs, label_thresholds, sets
        from finetune.evaluation.prediction_types import TYPES
        from finetune.evaluation.runs import RunFolder
        from finetune.inference.vectors import choose_distance

        state: Any = task.state
        split = self.split
        if self.ood is not None:
            return choose_distance(task, model, split, self.ood, save=not self.dry_run)
        if self.costs is not None:
            type, labels = TYPES[state.prediction_type], list(state.labels)
            return costs.choose_costs(self.costs, labels, type, self._runs(), split)
        if self.sets is not None:
            how = self.set_scores, self.per_class
            return sets.choose_sets(self._runs(), split, self.sets, *how)
        if self.risk is not None or self.coverage is not None:
            validated = RunFolder.open(Path(self.folder)).config.get("validation") != "none"
            chose_epoch = split == "validation" and validated
            wanted = self.risk, self.coverage, self.delta
            return abstaining.choose_confidence(self._runs(), split, *wanted, chose_epoch)
        if not _chooses_labels(task):
            raise UserError(
                f"{self.folder}: --metric, --precision and --recall are for labels of texts; "
                "`ner` (--calibrate types) and `qa` choose thresholds in training. Give --risk or "
                "--coverage to abstain."
            )
        goal = label_thresholds.Goal(self.metric, self.precision, self.recall)
        of_model = list(state.labels), state.positive, state.threshold
        runs = self._runs(state.positive)
        return label_thresholds.choose_thresholds(runs, split, *of_model, goal, folder=self.folder)

    def _check_goal(self) -> None:
        goals = [name for name in GOALS if getattr(self, name) is not None]
        if len(goals) > 1:
            raise UserError(f"{flag(goals[0])} and {flag(goals[1])}: give one goal.")
        for name in ("precision", "recall", "risk", "coverage", "sets", "ood", "delta"):
            value = getattr(self, name)
            most = 1.0 if name in ("precision", "recall", "coverage") else 1 - LEAST
            if value is not None and not LEAST <= value <= most:
                raise UserError(f"--{name} must be from {LEAST:g} to {most:.7g}, not {value:g}.")
        if (self.per_class or self.set_scores != "probability") and self.sets is None:
            raise UserError("--per-class and --set-scores are about sets: add --sets LEVEL.")
        if self.delta != _DELTA and self.risk is None and self.coverage is None:
            raise UserError("--delta is about the bound of the risk: add --risk or --coverage.")
        if self.reset and (goals or self.dry_run):
            other = flag(goals[0]) if goals else "--dry-run"
            raise UserError(f"--reset removes what was saved: leave out {other}.")

    def _runs(self, positive: str | None = None) -> dict[str, Tables]:
        from finetune.evaluation.predictions import GoldSource, align_runs
        from finetune.evaluation.runs import RunFolder

        runs, opened = {}, RunFolder.open(Path(self.folder))
        for split in filter(opened.splits.__contains__, dict.fromkeys((self.split, "test"))):
            tolerated = () if split == self.split else (DataError,)  # test may lack labels
            with contextlib.suppress(*tolerated):
                source = GoldSource(positive=positive)
                runs[split] = align_runs([opened.predictions(split)], source).runs[0]
        if self.split not in runs:
            raise UserError(
                f"{self.folder}: no predictions.{self.split}.jsonl with gold to choose on: give "
                "the folder of a run with validation data, or --split."
            )
        return runs


def _chooses_labels(task: Task) -> bool:
    from finetune.evaluation.prediction_types import TYPES

    type = TYPES[task.state.prediction_type]
    return type.classes == "label" and (type.one_class or bool(task.state.threshold_labels))
