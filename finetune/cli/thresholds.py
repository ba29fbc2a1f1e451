"""`finetune thresholds`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from finetune.cli.options import Command, FormatOption
from finetune.cli.output import print_tables, show
from finetune.config.options import Help, argument
from finetune.config.tasks import flag
from finetune.data.dataset import DataError
from finetune.types import UserError, abbreviated

if TYPE_CHECKING:
    from finetune.evaluation.items import TableRows, Tables
    from finetune.evaluation.thresholds import LabelProbabilities
    from finetune.tasks.base import Task

DELTA = 0.05
"""The default of --delta."""
LEAST = 1e-6
"""The least share of a goal, whose data a disk may hold."""
GOALS = ("metric", "precision", "recall", "risk", "coverage", "sets", "unlike", "costs")
"""The options of which one is given."""
_OF_ANSWERS = {"thresholds", "confidence", "costs"}
"""The rules of which one decides the answers of a model."""


@dataclass(frozen=True)
class Choice:
    """A choice: the fields of the model's record that it sets, and its output."""

    fields: Mapping[str, Any]
    content: Mapping[str, Any]
    """The JSON output."""
    tables: Mapping[str, TableRows]
    notes: Sequence[str] = ()
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Thresholds(FormatOption, Command):
    """Choose on validation when a trained model answers, without training.

    The choice is saved with the model, for `finetune predict` and `finetune serve`: the probability
    from which a label is predicted, answers to withhold, prediction sets, texts unlike the training
    data, or the label with the least expected cost.

    Examples:
        finetune thresholds runs/topics --metric macro_f1
        finetune thresholds runs/nli --risk 0.05
        finetune thresholds runs/spam --precision 0.95 --dry-run
    """

    folder: Annotated[str, argument("RUN")]
    """Folder of a run with validation data."""
    metric: str | None = None
    """Metric of labels to raise. Unset is `f1` of two labels, and `micro_f1` of several."""
    precision: float | None = None
    """The best recall of each label at this precision; of more than two labels of which one is
    right, answers are withheld."""
    recall: float | None = None
    """The best precision of each label at this recall."""
    risk: float | None = None
    """Withhold answers below the confidence above which at most this share is wrong, with
    probability 1 - δ on new data of the same kind."""
    coverage: float | None = None
    """Withhold answers below the confidence that leaves this share of them."""
    delta: float = DELTA
    """The probability δ that the guarantee of --risk fails."""
    sets: Annotated[float | None, Help("LEVEL")] = None
    """Predict sets of classes that hold the right one with this probability."""
    set_scores: Literal["probability", "cumulative", "randomized"] = "probability"
    """Rank the classes of a set by probability (the smallest sets), by cumulative probability (sets
    that adapt to the text), or by the latter with a random share (smaller sets)."""
    per_class: bool = False
    """Hold the level of --sets for each class."""
    unlike: Annotated[float | None, Help("RATE")] = None
    """Withhold answers for texts unlike the training data; this share of validation is taken for
    such by mistake."""
    costs: Annotated[str | None, Help("FILE")] = None
    """Predict the label with the least expected cost. JSON, `{"gold": {"predicted": 5}}`, or a
    table with the column gold and one for each predicted label."""
    split: str = "validation"
    """Split to choose on. Scores on this split become too high, so a run should use validation."""
    dry_run: bool = False
    """Print the tables and save nothing."""
    reset: bool = False
    """Remove what was saved by earlier calls."""

    def run(self) -> None:
        """Choose, save the choice, and print what it does."""
        from finetune.inference.vectors import FILE as DISTANCE_FILE
        from finetune.tasks import model_folder, saved_task

        goal = self._goal_name()
        folder, model = Path(self.folder), model_folder(self.folder)
        if not (folder.exists() or self.dry_run):
            raise UserError(
                f"{folder} is a hub id, whose files cannot be changed here: add --dry-run, or "
                "download the model into a folder."
            )
        task = saved_task(model)
        record: Any = task.record
        no_thresholds: dict[str, Any] = {"thresholds": {}} if _chooses_labels(task) else {}
        if self.reset:
            (model / DISTANCE_FILE).unlink(missing_ok=True)
            self._save(task, no_thresholds | {"decisions": {}}, model)
            show(f"{model}: thresholds and decisions removed.")
            return
        choice = self._chosen(goal, task, model)
        fields, decisions = {}, dict(record.decisions)
        if _OF_ANSWERS & choice.fields.keys():  # one rule decides
            fields = no_thresholds
            decisions = {n: value for n, value in decisions.items() if n not in _OF_ANSWERS}
        for name, value in choice.fields.items():
            (fields if name == "thresholds" else decisions)[name] = value
        if not self.dry_run:
            self._save(task, fields | {"decisions": decisions}, model)
        if self.format == "json":
            show(json.dumps(choice.content, indent=2, ensure_ascii=False))
            return
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

    def _chosen(self, goal: str, task: Task, model: Path) -> Choice:
        if goal in ("risk", "coverage"):
            return self._withhold()
        if goal == "sets":
            return self._choose_sets()
        if goal == "unlike":
            return self._choose_distance(task, model)
        return self._choose_costs(task) if goal == "costs" else self._choose_labels(task)

    def _save(self, task: Task, fields: Mapping[str, Any], model: Path) -> None:
        from finetune.evaluation.runs import CHECKSUMS, write_run_checksums
        from finetune.tasks import replace_record

        replace_record(replace(task, record=replace(task.record, **fields)), model)
        if (model.parent / CHECKSUMS).is_file():
            write_run_checksums(model.parent)

    def _goal_name(self) -> str:
        given = [name for name in GOALS if getattr(self, name) is not None]
        if len(given) > 1:
            raise UserError(f"{flag(given[0])} and {flag(given[1])}: give one goal.")
        for name in ("precision", "recall", "risk", "coverage", "sets", "unlike", "delta"):
            value = getattr(self, name)
            last = name in ("precision", "recall", "coverage")  # 1 is legal
            most = 1.0 if last else 1 - LEAST
            if value is not None and not LEAST <= value <= most:
                raise UserError(f"--{name} must be from {LEAST:g} to {most:.7g}, not {value:g}.")
        if (self.per_class or self.set_scores != "probability") and self.sets is None:
            raise UserError("--per-class and --set-scores are about sets: add --sets LEVEL.")
        if self.delta != DELTA and self.risk is None and self.coverage is None:
            raise UserError("--delta is about the bound of the risk: add --risk or --coverage.")
        if self.reset and (given or self.dry_run):
            other = flag(given[0]) if given else "--dry-run"
            raise UserError(f"--reset removes what was saved: leave out {other}.")
        return given[0] if given else ""

    def _runs(self, positive: str | None = None) -> dict[str, Tables]:
        from finetune.evaluation.alignment import align_runs
        from finetune.evaluation.predictions import GoldSource
        from finetune.evaluation.runs import RunFolder

        runs, opened = {}, RunFolder.open(Path(self.folder))
        for split in dict.fromkeys((self.split, "test")):
            if split in opened.splits:
                try:
                    source = GoldSource(positive=positive)
                    runs[split] = align_runs([opened.predictions(split)], source).runs[0]
                except DataError:
                    if split == self.split:
                        raise  # and test may lack labels
        if self.split not in runs:
            raise UserError(
                f"{self.folder}: no predictions.{self.split}.jsonl with gold to choose on: give "
                "the folder of a run with validation data, or --split."
            )
        return runs

    # --- Answers to withhold ---

    def _withhold(self) -> Choice:
        from finetune.evaluation import selective
        from finetune.evaluation.runs import RunFolder

        opened = RunFolder.open(Path(self.folder))
        splits = {split: selective.Answers.of(run) for split, run in self._runs().items()}
        answers = splits[self.split]
        if self.risk is not None:
            chosen = selective.at_risk(answers, self.risk, self.delta)
        else:
            chosen = selective.at_coverage(answers, self.coverage or 1.0, self.delta)
        rows = []
        for split, own in splits.items():
            given = own.above(chosen.confidence)
            row = {"split": split, "answers": len(own), "coverage": len(given) / len(own)}
            row |= {"risk of all": own.risk, "risk": given.risk}
            row[f"bound (δ {self.delta:g})"] = selective.risk_bound(given, self.delta)
            rows.append(row | {"aurc": selective.area_under_risk(own)})
        tables, classes = {"": rows}, selective.by_class(answers, chosen.confidence)
        if len(classes) > 1:
            tables[f"by predicted class, {self.split}"] = classes
        notes = [f"answers with a probability below {chosen.confidence:.4f} are withheld"]
        if self.split == "validation" and opened.config.get("validation") != "none":
            notes.append(
                "validation also chose the epoch of the model, so its risk and the bound are a "
                "little low: --split names another split"
            )
        return Choice(
            {"confidence": max(0.0, chosen.confidence - 5e-7)},  # files have six digits
            {**chosen._asdict(), "splits": rows, "classes": classes},
            tables,
            notes,
        )

    def _choose_sets(self) -> Choice:
        from finetune.evaluation.conformal import fit_sets, table_of_sets

        assert self.sets is not None
        runs = self._runs()
        rule = fit_sets(runs[self.split], self.sets, self.set_scores, self.per_class)
        tables: dict[str, TableRows] = {}
        for split, run in runs.items():
            with contextlib.suppress(UserError):  # half of validation may be too small
                own = split == self.split
                how = ", each half with the rule of the other" if own else ""
                tables[f"sets on {split}{how}"] = table_of_sets(run, rule, refit=own)
        return Choice({"sets": vars(rule)}, {"sets": vars(rule), **tables}, tables)

    def _choose_distance(self, task: Task, model: Path) -> Choice:
        from finetune.inference.vectors import TrainingVectors, largest_distance, vectors_of_run

        assert self.unlike is not None
        vectors = vectors_of_run(task, model, self.split)
        found = TrainingVectors.fit(vectors["train"])
        distances = {split: found.distances(own) for split, own in vectors.items()}
        largest = largest_distance(distances[self.split], self.unlike)
        if not self.dry_run:
            found.save(model)
        rows = [
            {
                "split": split,
                "examples": len(own),
                "mean distance": float(own.mean()),
                "unlike": float((own > largest).mean()),
            }
            for split, own in distances.items()
        ]
        note = f"answers for texts at a distance above {largest:.4f} are withheld"
        return Choice(
            {"distance": largest}, {"distance": largest, "splits": rows}, {"": rows}, [note]
        )

    # --- Costs ---

    def _choose_costs(self, task: Task) -> Choice:
        from finetune.evaluation import costs as pricing
        from finetune.evaluation.prediction_types import TYPES, score

        costs = pricing.read_costs(self.costs or "")
        pricing.check_costs(costs, list(task.record.labels), TYPES[task.record.kind])
        rows: TableRows = []
        tables = {"": rows}
        for split, run in self._runs().items():
            before = score(pricing.with_costs(run, costs))
            after = score(by_cost := pricing.by_cost(run, costs))
            row = {"split": split, "texts": len(run)}
            row |= {"cost before": before["mean_cost"], "cost": after["mean_cost"]}
            rows.append(
                row | {"accuracy before": before["accuracy"], "accuracy": after["accuracy"]}
            )
            if split == self.split and (prices := pricing.price_table(by_cost)):
                tables[f"confusions on {split} by cost"] = prices
        return Choice({"costs": costs}, {"splits": rows}, tables)

    # --- Labels ---

    def _choose_labels(self, task: Task) -> Choice:
        import numpy as np

        from finetune.evaluation.thresholds import (
            FEWEST,
            Goal,
            LabelProbabilities,
            choose,
            cross_fitted,
            table_of,
        )

        record: Any = task.record
        if not _chooses_labels(task):
            raise UserError(
                f"{self.folder}: --metric, --precision and --recall are for labels of texts; "
                "`ner` (--calibrate types) and `qa` choose thresholds in training. Give --risk or "
                "--coverage to withhold answers."
            )
        usual = "f1" if record.positive else "micro_f1"
        splits = {
            split: LabelProbabilities.of(run, list(record.labels), record.positive)
            for split, run in self._runs(record.positive).items()
        }
        data, metric = splits[self.split], self.metric or usual
        by_rate = self.precision is not None or self.recall is not None
        goal = Goal(None if by_rate else metric, self.precision, self.recall)
        default = 0.0 if data.is_of_one else record.threshold
        if data.is_of_one and not by_rate and self.metric is None:
            raise UserError(
                f"{self.folder}: the most probable of several labels needs no threshold. Give "
                "--risk, --coverage, --precision or --recall to withhold answers, or --costs."
            )
        chosen = choose(data, goal, default)
        rows = table_of(data, chosen)
        if all(row["gold"] < FEWEST for row in rows):
            raise UserError(
                f"{self.folder}: no label has {FEWEST} gold examples in {self.split}, too few to "
                "choose a threshold on: train with more validation data."
            )
        notes = []
        if few := [row["label"] for row in rows if row["gold"] < FEWEST]:
            notes.append(f"under {FEWEST} gold examples, so not chosen: {', '.join(few)}")
        if len(rows) == 1:
            notes += [f"threshold of {name}: {value:.4f}" for name, value in chosen.items()]
        fitted, before_after = cross_fitted(data, goal, default), {}
        for split, own in splits.items():
            of_split, before = own.metric(metric), np.full(len(chosen), default)
            after = fitted if split == self.split else np.array(list(chosen.values()))
            old, new = own.value(of_split, before), own.value(of_split, after)
            before_after[split] = {"before": old, "after": new}
            how = " (each half with the threshold of the other)" if split == self.split else ""
            notes.append(f"{split} {metric}: {old:.4f} at {default:g}, now {new:.4f}{how}")
        fixed = "precision" if self.recall is None else "recall"
        least = float(self.precision or self.recall or 0)
        if missed := [r["label"] for r in rows if r[fixed] < least and r["gold"] >= FEWEST]:
            notes.append(
                f"no threshold reaches this for {abbreviated(missed)}: the nearest is taken"
            )
        title = f"{goal}, chosen on {len(data.gold):,} examples of {self.split}"
        content = {"goal": str(goal), "thresholds": chosen, "metric": metric}
        field = "confidence" if data.is_of_one else "thresholds"
        tables = {"": _shown(data, chosen, default)}
        return Choice({field: chosen}, content | {"scores": before_after}, tables, notes, title)


def _shown(data: LabelProbabilities, chosen: Mapping[str, float], default: float) -> TableRows:
    from finetune.evaluation.thresholds import table_of, trade_of

    rows = table_of(data, chosen)
    if len(rows) > 1:
        before = table_of(data, dict.fromkeys(data.columns, default))
        return [
            row | {f"f1 at {default:g}": old["f1"]} for row, old in zip(rows, before, strict=True)
        ]
    shown = ("precision", "recall", "f1", "predicted")
    trade = sorted([*trade_of(data), *rows], key=lambda row: row["threshold"])
    name = f"threshold of {data.columns[0]}"
    return [{name: row["threshold"]} | {each: row[each] for each in shown} for row in trade]


def _chooses_labels(task: Task) -> bool:
    from finetune.evaluation.prediction_types import TYPES

    type = TYPES[task.record.kind]
    return type.takes_thresholds and (type.one_class or bool(task.record.threshold_labels))
