"""`finetune thresholds`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from finetune.cli.command import Command
from finetune.cli.options import FormatOption
from finetune.cli.output import print_tables, show
from finetune.config.options import argument
from finetune.data.dataset import DataError
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.evaluation.thresholds import Goal, LabelProbabilities


@dataclass(frozen=True, kw_only=True)
class Thresholds(FormatOption, Command):
    """Choose on validation from which probability a model predicts a label, without training.

    For models of several labels for a text, one for each label; for models of two labels, one for
    the positive label. The choice is saved with the model, for `finetune predict`.

    Examples:
        finetune thresholds runs/topics --metric macro_f1
        finetune thresholds runs/spam --precision 0.95 --dry-run
    """

    folder: Annotated[str, argument("RUN")]
    """Folder of a run of `classify` or `nli`."""
    metric: str | None = None
    """Metric to raise. Unset is `f1` of two labels, and `micro_f1` of several."""
    precision: float | None = None
    """In place of a metric: the best recall of each label at this precision."""
    recall: float | None = None
    """In place of a metric: the best precision of each label at this recall."""
    split: str = "validation"
    """Split to choose on. Scores on this split become too high, so a run should use validation."""
    dry_run: bool = False
    """Print the tables and save nothing."""
    reset: bool = False
    """Remove the thresholds that were saved by an earlier call."""

    def run(self) -> None:
        """Choose thresholds, save them, and print precision and recall by threshold."""
        import numpy as np

        from finetune.evaluation.kinds import KINDS
        from finetune.evaluation.thresholds import FEWEST, choose, cross_fitted, table_of
        from finetune.tasks import model_folder, saved_task

        goal = self._goal()
        folder, model = Path(self.folder), model_folder(self.folder)
        if not (folder.exists() or self.dry_run):
            raise UserError(
                f"{folder} is a hub id, whose files cannot be changed here: add --dry-run, or "
                "download the model into a folder."
            )
        task = saved_task(model)
        record: Any = task.record
        if not task.threshold_labels or not KINDS[record.kind].takes_thresholds:
            raise UserError(
                f"{folder}: thresholds are for `classify` and `nli` models of two labels or of "
                "several labels for a text; `ner` (--calibrate types) and `qa` choose them in "
                "training, and --loss logit-adjusted shifts the decision between more than two "
                "labels."
            )
        if self.reset:
            self._save(replace(task, record=replace(record, thresholds={})), model)
            show(f"{model}: thresholds removed.")
            return
        splits, usual = self._splits(record), "f1" if record.positive else "micro_f1"
        data, metric = splits[self.split], goal.metric or usual
        if goal.precision is None and goal.recall is None:
            goal = replace(goal, metric=metric)
        chosen = choose(data, goal, record.threshold)
        if all(row[-1] < FEWEST for row in table_of(data, chosen)):
            raise UserError(
                f"{folder}: no label has {FEWEST} gold examples in {self.split}, too few to choose "
                "a threshold on: train with more validation data."
            )
        fitted = cross_fitted(data, goal, record.threshold)
        scores: dict[str, tuple[float, float]] = {}
        for split, own in splits.items():
            of_split = own.metric(metric)
            before = np.full(len(chosen), record.threshold)
            after = fitted if split == self.split else np.array(list(chosen.values()))
            scores[split] = own.value(of_split, before), own.value(of_split, after)
        if not self.dry_run:
            self._save(replace(task, record=replace(record, thresholds=chosen)), model)
        if self.format == "json":
            content = {"goal": str(goal), "thresholds": chosen, "metric": metric}
            before_after = {s: {"before": b, "after": a} for s, (b, a) in scores.items()}
            show(json.dumps(content | {"scores": before_after}, indent=2, ensure_ascii=False))
            return
        self._print(data, goal, chosen, scores, metric, record.threshold)
        if not self.dry_run:
            self.note(f"saved in {model}: `finetune predict` uses them; --reset removes them.")

    def _save(self, task: Any, model: Path) -> None:
        """Replace the record of the model, which its run has a checksum of."""
        from finetune.evaluation.runs import CHECKSUMS, write_run_checksums
        from finetune.tasks import replace_record

        replace_record(task, model)
        if (model.parent / CHECKSUMS).is_file():
            write_run_checksums(model.parent)

    def _goal(self) -> Goal:
        """Return the goal to maximize; by default the usual metric."""
        from finetune.evaluation.thresholds import Goal

        given = [n for n in ("metric", "precision", "recall") if getattr(self, n) is not None]
        if len(given) > 1:
            raise UserError(f"--{given[0]} and --{given[1]}: give one goal.")
        for name in ("precision", "recall"):
            if (value := getattr(self, name)) is not None and not 0 < value <= 1:
                raise UserError(f"--{name} must be above 0 and at most 1, not {value:g}.")
        return Goal(self.metric, self.precision, self.recall)

    def _splits(self, record: Any) -> dict[str, LabelProbabilities]:
        """Read the predictions of the split of the choice and of test."""
        from finetune.evaluation.aligned_runs import align_runs
        from finetune.evaluation.predictions import GoldSource
        from finetune.evaluation.runs import RunFolder
        from finetune.evaluation.thresholds import LabelProbabilities

        positive, splits = record.positive, {}
        opened = RunFolder.open(Path(self.folder))
        for split in dict.fromkeys((self.split, "test")):
            if split in opened.splits:
                try:
                    source = GoldSource(positive=positive)
                    run = align_runs([opened.predictions(split)], source).runs[0]
                except DataError:
                    if split == self.split:
                        raise
                    continue  # test without labels
                splits[split] = LabelProbabilities.of(run, list(record.labels), positive)
        if self.split not in splits:
            raise UserError(
                f"{self.folder}: no predictions.{self.split}.jsonl with gold to choose on: give "
                "the folder of a run with validation data, or --split."
            )
        return splits

    def _print(
        self,
        data: LabelProbabilities,
        goal: Goal,
        chosen: Mapping[str, float],
        scores: Mapping[str, tuple[float, float]],
        metric: str,
        default: float,
    ) -> None:
        from finetune.evaluation.thresholds import FEWEST, table_of, trade_of

        self.note(f"{goal}, chosen on {len(data.gold):,} examples of {self.split}")
        rates = ("precision", "recall", "f1", "predicted")
        if len(data.columns) == 1:
            rows: list[Any] = trade_of(data)
            rows += [row[1:-1] for row in table_of(data, chosen)]
            columns: tuple[str, ...] = (f"threshold of {data.columns[0]}", *rates)
            rows = sorted(rows)
        else:
            before = table_of(data, dict.fromkeys(data.columns, default))
            rows = [(*row, old[4]) for row, old in zip(table_of(data, chosen), before, strict=True)]
            columns = ("label", "threshold", *rates, "gold", f"f1 at {default:g}")
        print_tables(self.format, ("", columns, rows))
        few = [row[0] for row in table_of(data, chosen) if row[-1] < FEWEST]
        if few:
            names = ", ".join(few)
            self.note(f"under {FEWEST} gold examples, so not chosen: {names}", indent=2)
        for name, value in chosen.items():
            if len(data.columns) == 1:
                self.note(f"threshold of {name}: {value:.4f}")
        for split, (old, new) in scores.items():
            how = " (each half with the threshold of the other)" if split == self.split else ""
            self.note(f"{split} {metric}: {old:.4f} at {default:g}, now {new:.4f}{how}")
