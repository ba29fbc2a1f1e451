"""What a run folder holds, and what its answers come to; what it lacks is said, not guessed."""

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
from finetune.evaluation.runs import align_runs, find_system
from finetune.evaluation.significance import Estimate, estimate
from finetune.evaluation.sufficient_statistics import count, default_metric
from finetune.types import UserError

SAME = 1e-4
"""Scores that differ by more are not the same."""
MOST_DRAWN = 20_000_000
"""Units times resamples of an interval: a second or two. Large test sets are resampled fewer times,
as their scores vary less."""
MOST_RESAMPLES, FEWEST_RESAMPLES = 1000, 100
MOST_SEEDS = 10
"""Runs of a system that are read with all their answers."""
_SEED_FREE = RESULT_FREE | {"seed", "revision_used", "data"}
"""What may differ between runs of one system; of data the fingerprint tells."""


@dataclass(frozen=True)
class Evaluated:
    """The answers of a run on one split, with what was found in them."""

    split: str
    predictions: AlignedPredictions
    analysis: Analysis


@dataclass(frozen=True)
class Run:
    """The folder of one run; what is missing in it is said in ``missing``."""

    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: dict[str, dict[str, float]]
    training: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    evaluated: Evaluated | None
    missing: list[str]

    @property
    def task(self) -> str:
        """The name of its task."""
        return str(self.config.get("task", "?"))


@dataclass(frozen=True)
class Headline:
    """The score that counts, with its interval: the mean over the runs of a system, which are in
    ``folders``."""

    metric: str
    split: str
    estimate: Estimate
    runs: tuple[float, ...]
    folders: tuple[Path, ...]
    num_units: int
    num_resamples: int


@dataclass(frozen=True)
class System:
    """What was named: one run, or a folder of several seeds (``seeds`` is its summary)."""

    name: str
    folder: Path
    runs: list[Run]
    headline: Headline | None
    seeds: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def gather(folder: Path, split: str | None) -> System:
    """Everything about a run folder, or about one of several seeds.

    Raises ValueError where the folder holds no run.
    """
    several = sorted(filter(_is_run, folder.glob("*")), key=lambda p: (len(p.name), str(p)))
    is_run = _is_run(folder)
    if not (is_run or several):
        what = (
            "is no folder of a run: no config.json of one in it"
            if folder.is_dir()
            else "no such folder"
        )
        raise UserError(
            f"{folder}: {what}. Give the folder that --out named, or one of several seeds."
        )
    missing: list[str] = []
    if is_run:
        runs, seeds = [gather_run(folder, split)], {}
    else:
        runs = [gather_run(path, split) for path in several[:MOST_SEEDS]]
        seeds = _object(folder / "seeds.json", missing)
        if differing := _differing(runs):
            missing.append(f"its runs differ in more than their seed: {', '.join(differing)}")
        if len(several) > MOST_SEEDS:
            missing.append(f"only the first {MOST_SEEDS} of {len(several)} runs are read")
    return System(folder.resolve().name, folder, runs, headline(runs, missing), seeds, missing)


def _is_run(folder: Path) -> bool:
    """Whether a folder has the settings of a run, and not those of a model alone."""
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return path.is_file()
    return isinstance(content, dict) and "task" in content


def _differing(runs: Sequence[Run]) -> list[str]:
    """The settings in which runs differ that should differ in their seed alone."""
    names = dict.fromkeys(name for run in runs for name in run.config)
    first = runs[0].config
    return [
        name for name in names
        if name not in _SEED_FREE and any(r.config.get(name) != first.get(name) for r in runs)
    ]  # fmt: skip


def gather_run(folder: Path, split: str | None = None) -> Run:
    """Everything about the folder of one run."""
    missing: list[str] = []
    config = _object(folder / "config.json", missing)
    metrics = _object(folder / "metrics.json", missing, "the run is not finished")
    environment = _object(folder / "environment.json", missing) if metrics else {}
    log = list(_log(folder / "log.jsonl", missing))
    evaluated = _evaluated(folder, split, missing)
    return Run(
        folder,
        config,
        environment,
        metrics,
        [line for line in log if "loss" in line],
        [line for line in log if "split" in line],
        evaluated,
        missing,
    )


def headline(runs: Sequence[Run], missing: list[str]) -> Headline | None:
    """The score that selects models, over the finished runs that answered the same split."""
    found, split = _counting(runs, missing)
    answers = [run.evaluated.predictions for run in found if run.evaluated]
    if not answers:
        return None
    if len({(each.kind, len(each.gold)) for each in answers}) > 1:
        missing.append("the runs answered different examples: no score over all of them")
        return None
    metric, counts = _counts(found[0].config.get("metric"), answers, missing)
    units = counts[0].num_units
    resamples = max(FEWEST_RESAMPLES, min(MOST_RESAMPLES, MOST_DRAWN // (units * len(counts))))
    interval = estimate(counts, num_resamples=resamples)
    values = tuple(_whole(each) for each in counts)
    for run, value in zip(found, values, strict=True):
        known = run.metrics.get(split, {}).get(metric)
        if known is not None and abs(known - value) > SAME:
            missing.append(
                f"{metric} of {run.folder.name} on {split} comes to {value:.4f} here, over what "
                f"occurs in that split; metrics.json has {known:.4f}"
            )
    folders = tuple(run.folder for run in found)
    return Headline(metric, split, interval, values, folders, units, resamples)


def _counting(runs: Sequence[Run], missing: list[str]) -> tuple[list[Run], str]:
    """The runs that a score is made of, and their split: those that are finished, if any is."""
    known = [run for run in runs if run.evaluated]
    known = [run for run in known if run.metrics] or known
    splits = Counter(run.evaluated.split for run in known if run.evaluated)
    split = max(splits, key=lambda name: splits[name], default="")
    found = [run for run in known if run.evaluated and run.evaluated.split == split]
    if found and len(found) < len(runs):
        missing.append(
            f"the score is that of {len(found)} of {len(runs)} runs: the others are not finished, "
            f"or have no answers on {split} that can be looked at"
        )
    return found, split


def _counts(
    wanted: str | None, answers: Sequence[AlignedPredictions], missing: list[str]
) -> tuple[str, Sequence[Any]]:
    """The metric asked for, or else the usual one where that does not fit the answers, counted."""
    usual = default_metric(answers[0])
    try:
        return wanted or usual, count(wanted or usual, answers)
    except ValueError as error:
        if wanted in (None, usual):
            raise
        missing.append(f"no interval of {wanted}, but of {usual}: {error}")
        return usual, count(usual, answers)


def _whole(counted: Any) -> float:
    import numpy as np

    return float(counted.values(np.ones((1, counted.num_units)))[0])


def _evaluated(folder: Path, wanted: str | None, missing: list[str]) -> Evaluated | None:
    """The answers of the split asked for; else of a test split if it has gold, else of another."""
    names = [path.name.split(".")[1] for path in folder.glob("predictions.*.jsonl")]
    if not names:
        missing.append("no predictions: the run has not reached its first evaluation")
        return None
    if wanted is not None and wanted not in names:
        missing.append(f"no predictions of the split {wanted!r} (there are {', '.join(names)})")
        return None
    order = sorted(names, key=lambda name: (not name.startswith("test"), len(name), name))
    for name in order if wanted is None else [wanted]:
        try:
            system = find_system(str(folder), name)
            aligned = align_runs(system.files)
            answers = aligned.runs[0]
            if not answers.gold:
                raise UserError("no example with gold")
            path = str(system.files[0])
            analysis = analyze_predictions(answers, aligned.vocabulary, path, aligned.gold)
            return Evaluated(name, answers, analysis)
        except (UserError, OSError) as error:
            missing.append(f"{name} predictions cannot be looked at: {error}")
    return None


def _object(path: Path, missing: list[str], why: str = "") -> dict[str, Any]:
    """A JSON object of a file; empty, and noted, where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        missing.append(f"no {path.name}{': ' if why else ''}{why}")
        return {}
    except ValueError as error:
        missing.append(f"{path.name} is damaged ({error})")
        return {}
    return content if isinstance(content, dict) else {}


def _log(path: Path, missing: list[str]) -> Sequence[dict[str, Any]]:
    """The lines of a log that are whole; the last may be cut where a run was killed."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        missing.append(f"no {path.name}: nothing on how training went")
        return []
    found = []
    for line in lines:
        try:
            content = json.loads(line)
        except ValueError:
            missing.append(f"{path.name} has a line that was cut")
            continue
        if isinstance(content, dict) and "step" in content:
            found.append(content)
    return found
