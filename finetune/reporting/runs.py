"""Read run folders for a report: settings, scores, training log and analyzed predictions.

Missing and damaged files are reported as warnings, so that an unfinished run has a report too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.config.tasks import RESULT_FREE
from finetune.evaluation.alignment import AlignedPredictions
from finetune.evaluation.error_analysis import Analysis, analyze_predictions
from finetune.evaluation.resampling import count_metric, default_metric
from finetune.evaluation.runs import align_runs, find_system
from finetune.evaluation.significance import Estimate, estimate, observed_scores
from finetune.types import UserError

TOLERANCE = 1e-4
"""Largest difference of scores that count as equal."""
MOST_DRAWN = 20_000_000
"""Most resampling units times resamples of an interval, which bounds its time to seconds. The
scores of large test sets vary less, so they need fewer resamples."""
MOST_RESAMPLES, FEWEST_RESAMPLES = 1000, 100
MOST_SEEDS = 10
"""Most runs of one system that are read."""
_MAY_DIFFER = RESULT_FREE | {"seed", "revision_used", "data"}
"""Settings that may differ between runs of one system. Data are compared by their fingerprint."""


@dataclass(frozen=True)
class Evaluated:
    """The predictions of a run on one split, and their analysis."""

    split: str
    predictions: AlignedPredictions
    analysis: Analysis


@dataclass(frozen=True)
class Run:
    """The content of a run folder.

    Attributes:
        folder: The run folder.
        config: Settings, from config.json.
        environment: Command, versions and machine, from environment.json.
        metrics: Scores by split and name; empty for an unfinished run.
        training: Log lines of training steps.
        evaluations: Log lines of evaluations.
        evaluated: Analyzed predictions of one split; None where there are none.
        warnings: A line for everything that is missing or damaged.
    """

    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: dict[str, dict[str, float]]
    training: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    evaluated: Evaluated | None
    warnings: list[str]

    @property
    def task(self) -> str:
        """Return the name of the task."""
        return str(self.config.get("task", "?"))


@dataclass(frozen=True)
class Headline:
    """The main score of a system with its interval.

    Attributes:
        metric: Name of the metric that selects models.
        split: Split that was scored.
        estimate: Mean over the runs, with its confidence interval.
        runs: Score of each run.
        folders: Folders of these runs.
        num_units: Examples that were resampled.
        num_resamples: Resamples of the interval.
    """

    metric: str
    split: str
    estimate: Estimate
    runs: tuple[float, ...]
    folders: tuple[Path, ...]
    num_units: int
    num_resamples: int


@dataclass(frozen=True)
class System:
    """One run, or the runs of several seeds in one folder; ``seeds`` is their seeds.json."""

    name: str
    folder: Path
    runs: list[Run]
    headline: Headline | None
    seeds: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def gather(folder: Path, split: str | None) -> System:
    """Read a run folder, or a folder of several seeds.

    Args:
        folder: The folder.
        split: Split whose predictions are analyzed; None is a test split, or another with gold.

    Raises:
        UserError: The folder holds no run.
    """
    seeds_folders = sorted(filter(_is_run, folder.glob("*")), key=lambda p: (len(p.name), str(p)))
    is_run = _is_run(folder)
    if not (is_run or seeds_folders):
        problem = "has no config.json of a run" if folder.is_dir() else "does not exist"
        raise UserError(
            f"{folder}: the folder {problem}. Give the folder of --out, or one of several seeds."
        )
    warnings: list[str] = []
    if is_run:
        runs, seeds = [gather_run(folder, split)], {}
    else:
        runs = [gather_run(path, split) for path in seeds_folders[:MOST_SEEDS]]
        seeds = _read_object(folder / "seeds.json", warnings)
        if differing := _differing_settings(runs):
            warnings.append(f"the runs differ in more than their seed: {', '.join(differing)}")
        if len(seeds_folders) > MOST_SEEDS:
            warnings.append(f"only the first {MOST_SEEDS} of {len(seeds_folders)} runs are read")
    return System(folder.resolve().name, folder, runs, headline(runs, warnings), seeds, warnings)


def _is_run(folder: Path) -> bool:
    """Return whether a folder has the settings of a run, and not only those of a model."""
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return path.is_file()
    return isinstance(content, dict) and "task" in content


def _differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings that differ between runs, apart from those that may."""
    names = dict.fromkeys(name for run in runs for name in run.config)
    first = runs[0].config
    return [
        name for name in names
        if name not in _MAY_DIFFER and any(r.config.get(name) != first.get(name) for r in runs)
    ]  # fmt: skip


def gather_run(folder: Path, split: str | None = None) -> Run:
    """Read the folder of one run."""
    warnings: list[str] = []
    config = _read_object(folder / "config.json", warnings)
    metrics = _read_object(folder / "metrics.json", warnings, ": the run is not finished")
    environment = _read_object(folder / "environment.json", warnings) if metrics else {}
    log = _read_log(folder / "log.jsonl", warnings)
    return Run(
        folder,
        config,
        environment,
        metrics,
        training=[line for line in log if "loss" in line],
        evaluations=[line for line in log if "split" in line],
        evaluated=_evaluate(folder, split, warnings),
        warnings=warnings,
    )


def headline(runs: Sequence[Run], warnings: list[str]) -> Headline | None:
    """Return the score that selects models, over the finished runs with the same split."""
    found, split = _runs_to_score(runs, warnings)
    predictions = [run.evaluated.predictions for run in found if run.evaluated]
    if not predictions:
        return None
    if len({(each.kind, len(each.gold)) for each in predictions}) > 1:
        warnings.append("the runs predicted different examples: there is no score over all of them")
        return None
    metric, counts = _counts(found[0].config.get("metric"), predictions, warnings)
    units = counts[0].num_units
    resamples = max(FEWEST_RESAMPLES, min(MOST_RESAMPLES, MOST_DRAWN // (units * len(counts))))
    interval = estimate(counts, num_resamples=resamples)
    values = tuple(observed_scores(counts).tolist())
    for run, value in zip(found, values, strict=True):
        known = run.metrics.get(split, {}).get(metric)
        if known is not None and abs(known - value) > TOLERANCE:
            warnings.append(
                f"{metric} of {run.folder.name} on {split} is {value:.4f} over the labels of that "
                f"split, but {known:.4f} in metrics.json"
            )
    folders = tuple(run.folder for run in found)
    return Headline(metric, split, interval, values, folders, units, resamples)


def _runs_to_score(runs: Sequence[Run], warnings: list[str]) -> tuple[list[Run], str]:
    """Return the runs of the main score and their split: the finished runs, if there are any."""
    known = [run for run in runs if run.evaluated]
    known = [run for run in known if run.metrics] or known
    splits = Counter(run.evaluated.split for run in known if run.evaluated)
    split = max(splits, key=lambda name: splits[name], default="")
    found = [run for run in known if run.evaluated and run.evaluated.split == split]
    if found and len(found) < len(runs):
        warnings.append(
            f"the score is that of {len(found)} of {len(runs)} runs: the others are not finished, "
            f"or have no predictions on {split} that can be analyzed"
        )
    return found, split


def _counts(
    wanted: str | None, predictions: Sequence[AlignedPredictions], warnings: list[str]
) -> tuple[str, Sequence[Any]]:
    """Count by the metric of the run, or by the default where that does not fit the predictions."""
    usual = default_metric(predictions[0])
    try:
        return wanted or usual, count_metric(wanted or usual, predictions)
    except UserError as error:
        if wanted in (None, usual):
            raise
        warnings.append(f"the interval is that of {usual}, not of {wanted}: {error}")
        return usual, count_metric(usual, predictions)


def _evaluate(folder: Path, wanted: str | None, warnings: list[str]) -> Evaluated | None:
    """Analyze the predictions of the wanted split, of a test split, or of another with gold."""
    names = [path.name.split(".")[1] for path in folder.glob("predictions.*.jsonl")]
    if not names:
        warnings.append("no predictions: the run has not reached its first evaluation")
        return None
    if wanted is not None and wanted not in names:
        warnings.append(f"no predictions of the split {wanted!r} (there are {', '.join(names)})")
        return None
    order = sorted(names, key=lambda name: (not name.startswith("test"), len(name), name))
    for name in order if wanted is None else [wanted]:
        try:
            system = find_system(str(folder), name)
            aligned = align_runs(system.files)
            predictions = aligned.runs[0]
            if not predictions.gold:
                raise UserError("no example has gold")
            path = str(system.files[0])
            analysis = analyze_predictions(predictions, aligned.vocabulary, path, aligned.gold)
            return Evaluated(name, predictions, analysis)
        except (UserError, OSError) as error:
            warnings.append(f"the predictions on {name} cannot be analyzed: {error}")
    return None


def _read_object(path: Path, warnings: list[str], consequence: str = "") -> dict[str, Any]:
    """Read a JSON object; warn and return an empty one where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        warnings.append(f"no {path.name}{consequence}")
        return {}
    except ValueError as error:
        warnings.append(f"{path.name} is damaged ({error})")
        return {}
    return content if isinstance(content, dict) else {}


def _read_log(path: Path, warnings: list[str]) -> list[dict[str, Any]]:
    """Read the complete lines of a log; a killed run may have cut the last one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        warnings.append(f"no {path.name}: the course of training is unknown")
        return []
    found = []
    for line in lines:
        try:
            content = json.loads(line)
        except ValueError:
            warnings.append(f"{path.name} has an incomplete line")
            continue
        if isinstance(content, dict) and "step" in content:
            found.append(content)
    return found
