"""Read run folders for a report: settings, scores, training log and analyzed predictions.

Missing and damaged files are reported as warnings, so that an unfinished run has a report too.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.config.tasks import affects_results
from finetune.config.values import conforms
from finetune.data.json_files import parse_json, read_object
from finetune.evaluation import significance
from finetune.evaluation.baselines import Baseline, selection_note
from finetune.evaluation.error_analysis import Analysis, analyze
from finetune.evaluation.prediction_types import score_limits
from finetune.evaluation.prediction_types.labels import metric_title, positive_of
from finetune.evaluation.reproduction import standard_deviation
from finetune.evaluation.runs import RunFolder, read_summary, require_common_scores
from finetune.evaluation.significance import ALPHA, Estimate
from finetune.types import UserError, abbreviated, quantity

MOST_CLASSES = 10
"""Most classes whose scores are listed; the report has all."""
RARE = 10
"""Classes with fewer examples in gold are named as rare."""
_MAY_DIFFER = {"seed", "revision_used", "data", "data_used"}
"""Settings that may differ between runs of one model. Data are compared by fingerprint."""


@dataclass(frozen=True, kw_only=True)
class Run(RunFolder):
    """A run folder with its log and its analyzed predictions."""

    training: Sequence[dict[str, Any]]
    """Lines of the log of training."""
    evaluations: Sequence[dict[str, Any]]
    """Lines of the log of evaluations."""
    evaluated: Analysis | None
    warnings: Sequence[str]
    """Missing or damaged files."""

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self.config.get("task", "?"))

    @property
    def selection_note(self) -> str:
        """The note that the split of the score also selected the model; empty if it did not."""
        return selection_note(self.metrics, self.config.get("validation", "auto"))

    @property
    def class_rows(self) -> tuple[str, Sequence[Mapping[str, Any]]]:
        """The column of the classes, such as ``label``, and their scores; empty if unknown."""
        classes = self.evaluated.run.type.classes if self.evaluated else None
        column = classes.column if classes else ""
        return column, self.evaluated.tables.get(column, []) if self.evaluated else []

    @property
    def positive(self) -> str | None:
        """The class of ``f1``, of two labels."""
        return positive_of(self.evaluated.run) if self.evaluated else None


@dataclass(frozen=True)
class MainScore:
    """The score of a model by the metric that selects models: the mean over its runs.

    ``scores`` belong to the runs; ``deviation`` is their standard deviation. ``num_units`` examples
    were resampled, each a text or sentence (``unit``).
    """

    metric: str
    split: str
    estimate: Estimate
    scores: tuple[float, ...]
    deviation: float | None
    num_units: int
    unit: str


@dataclass(frozen=True)
class ModelRuns:
    """A model: one run, or the runs of several seeds in one folder; ``seeds`` is seeds.json."""

    name: str
    folder: Path
    runs: Sequence[Run]
    score: MainScore | None
    seeds: Mapping[str, Any]
    warnings: Sequence[str]

    @property
    def source(self) -> tuple[str, str]:
        """The model and the data."""
        config = self.runs[0].config
        model = config.get("init_from") or config.get("model", "?")
        return str(model), str(config.get("data", "?"))

    @property
    def baseline(self) -> Baseline | None:
        """The majority-class baseline of the split of the score."""
        baselines = self.seeds.get("baselines") or self.runs[0].environment.get("baselines") or {}
        baseline = baselines.get(self.score.split, {}) if self.score else {}
        return Baseline(**baseline) if {"label", "metric", "share"} <= baseline.keys() else None

    @property
    def verdicts(self) -> Sequence[Mapping[str, Any]]:
        """The verdicts on the scores that the recipe expects."""
        recipe = self.runs[0].environment.get("recipe") or {}
        return self.seeds.get("verdicts") or recipe.get("verdicts") or ()

    @property
    def problems(self) -> list[str]:
        """The warnings of the folder and of its runs, and the degenerate runs."""
        lines = list(self.warnings)
        for run in self.runs:
            prefix = f"{run.path.name}: " if len(self.runs) > 1 else ""
            lines += [f"{prefix}{line}" for line in run.warnings]
            if not self.seeds and (reasons := run.environment.get("degenerate")):
                lines.append(f"{prefix}the run is degenerate: {'; '.join(reasons)}")
        for run_of_seed in self.seeds.get("degenerate") or ():
            seed = run_of_seed["seed"]
            name = seed if "folds" in self.seeds else f"seed {seed}"
            lines.append(f"{name} is degenerate: {'; '.join(run_of_seed['reasons'])}")
        return lines


def load_runs(folder: Path, split: str | None) -> ModelRuns:
    """Read a run folder, or a folder of several seeds.

    Analyze the predictions on ``split``; None is a test split, or another with gold.
    """
    require_common_scores(folder)
    paths = sorted(filter(_is_run, folder.glob("*")), key=lambda p: (len(p.name), str(p)))
    warnings, seeds = list[str](), dict[str, Any]()
    if _is_run(folder):
        runs = [load_run(folder, split)]
    elif paths:
        runs = [load_run(path, split) for path in paths]
        try:
            seeds = read_summary(folder)
        except OSError:
            warnings.append("no seeds.json")
        except UserError as error:
            warnings.append(str(error))
        settings = [(name, value) for run in runs for name, value in run.config.items()]
        draws = "folds" in seeds or runs[0].config.get("per_class")  # each run has its own data
        of_data = {"fingerprint", "training_fingerprint"} if draws else set[str]()
        differing = {name for name, value in settings if value != runs[0].config.get(name)}
        if names := sorted(filter(affects_results, differing - _MAY_DIFFER - of_data)):
            warnings.append(f"the runs differ in more than their seed: {', '.join(names)}")
    else:
        problem = "has no config.json of a run" if folder.is_dir() else "does not exist"
        raise UserError(
            f"{folder}: the folder {problem}. Give the folder of --out, or one of several seeds."
        )
    score = _score_of_folds(runs, seeds) if "folds" in seeds else _main_score(runs, warnings)
    return ModelRuns(folder.resolve().name, folder, runs, score, seeds, warnings)


def _score_of_folds(runs: Sequence[Run], folds: Mapping[str, Any]) -> MainScore | None:
    evaluated = next((run.evaluated for run in runs if run.evaluated), None)
    if evaluated is None:
        return None
    metric = runs[0].usual_metric("test", evaluated.run.type.default)
    summary = (folds.get("metrics") or {}).get("test", {}).get(metric, {})
    if "low" not in summary:
        return None
    interval = Estimate(summary["mean"], summary["low"], summary["high"])
    scores, deviation = tuple(summary["seeds"].values()), summary["standard_deviation"]
    return MainScore(metric, "test", interval, scores, deviation, len(scores), "fold")


def _is_run(folder: Path) -> bool:
    path = folder / "config.json"
    try:
        return "task" in read_object(path)
    except (OSError, UserError):
        return path.is_file()


def load_run(folder: Path, split: str | None = None) -> Run:
    """Read the folder of one run, and analyze its predictions on a split."""
    opened = RunFolder.open(folder)
    consequences = {"metrics.json": ": the run is not finished"}
    warnings = [
        problem or f"no {name}{consequences.get(name, '')}"
        for name, problem in opened.problems.items()
        if name != "environment.json" or opened.metrics
    ]
    log = _read_log(folder / "log.jsonl", warnings)
    return Run(
        **vars(opened),
        training=[line for line in log if "loss" in line],
        evaluations=[line for line in log if "split" in line],
        evaluated=_evaluate(opened, split, warnings),
        warnings=warnings,
    )


def _main_score(runs: Sequence[Run], warnings: list[str]) -> MainScore | None:
    analyzed = [(run, run.evaluated) for run in runs if run.evaluated]
    analyzed = [pair for pair in analyzed if pair[0].metrics] or analyzed
    if not analyzed:
        return None
    split = Counter(analysis.split for _, analysis in analyzed).most_common(1)[0][0]
    analyzed = [pair for pair in analyzed if pair[1].split == split]
    if len(analyzed) < len(runs):
        warnings.append(
            f"the score covers {len(analyzed)} of {len(runs)} runs: the others are not finished, "
            f"or have no predictions on {split} that can be analyzed"
        )
    predictions = [analysis.run for _, analysis in analyzed]
    if len({(tables.type, len(tables)) for tables in predictions}) > 1:
        warnings.append("the runs predicted different examples: there is no score over all of them")
        return None
    type = predictions[0].type
    metric = analyzed[0][0].usual_metric(split, type.default)
    try:
        counts = significance.count_metric(metric, predictions)
    except UserError as error:
        warnings.append(f"the interval is for {type.default}, not for {metric}: {error}")
        metric = type.default
        counts = significance.count_metric(metric, predictions)
    interval = significance.estimate(counts, limits=score_limits(metric))
    scores = tuple(significance.observed_scores(counts).tolist())
    units, deviation = (counts[0].num_units, predictions[0].unit), standard_deviation(scores)
    return MainScore(metric, split, interval, scores, deviation, *units)


def _evaluate(run: RunFolder, wanted: str | None, warnings: list[str]) -> Analysis | None:
    names = run.splits
    if not names:
        reason = "no split was scored" if run.is_finished else "there was no evaluation yet"
        warnings.append(f"no predictions: {reason}")
        return None
    if wanted is not None and wanted not in names:
        warnings.append(f"no predictions of the split {wanted!r} (there are {', '.join(names)})")
        return None
    order = sorted(names, key=lambda name: (not name.startswith("test"), len(name), name))
    for name in order if wanted is None else [wanted]:
        try:
            return analyze(str(run.path), split=name)
        except (UserError, OSError) as error:
            warnings.append(f"the predictions on {name} cannot be analyzed: {error}")
    return None


def _read_log(path: Path, warnings: list[str]) -> list[dict[str, Any]]:
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        warnings.append(f"no {path.name}: the course of training is unknown")
        return []
    rows = []
    for number, line in enumerate(lines, 1):
        content: Any = None
        with contextlib.suppress(UserError):
            content = parse_json(line, f"{path.name}:{number}")
        values = content.items() if isinstance(content, dict) else ()
        numbers = {name: value for name, value in values if name != "split"}
        if "step" in numbers and conforms(numbers, dict[str, float]):
            rows.append(content)
        else:
            warnings.append(f"{path.name} has an incomplete line: {number}")
    return rows


def summary_lines(model: ModelRuns) -> list[str]:
    """Sum up a run in lines: its score with the interval, classes if they are few, rare classes."""
    score, run = model.score, model.runs[0]
    if score is None:
        return []
    value, low, high = score.estimate
    name = metric_title(score.metric, run.positive)
    lines = [
        f"{score.split} {name} {value:.4f}, {1 - ALPHA:.0%} interval "
        f"{low:.4f} to {high:.4f} over {quantity(score.num_units, score.unit)}"
    ]
    if run.selection_note:
        lines.append(run.selection_note)
    column, rows = run.class_rows
    if 2 <= len(rows) <= MOST_CLASSES:
        scores = (f"{row[column]} {row['f1']:.4f} ({row['support']:,})" for row in rows)
        lines.append(f"F1 by {column} (examples): {', '.join(scores)}")
    if rare := [f"{row[column]} ({row['support']})" for row in rows if row["support"] < RARE]:
        lines.append(f"rare on {score.split}, with scores that say little: {abbreviated(rare)}")
    return lines
