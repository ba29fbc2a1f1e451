"""One configuration trained with several seeds, one after the other, and what they come to.

A single run says little: on small data, seeds differ by points, and some learn nothing at all
(Mosbach et al., 2021; Dodge et al., 2020). Finished seeds are kept, so the same command goes on
after an interruption or adds more.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from finetune.cli.commands import quiet_libraries
from finetune.cli.train import report_run, train_once
from finetune.config.recipes import Followed, Recipe, changed, follow
from finetune.config.tasks import TrainConfig, settings
from finetune.evaluation.baselines import Baseline, baselines_of, degenerate
from finetune.evaluation.verdicts import Claim, claims_of_seeds
from finetune.reporting import REPORT_FILE
from finetune.runtime import launch
from finetune.runtime.progress import clock
from finetune.tasks import load_task
from finetune.training.environment import command_line
from finetune.training.run_log import Diverged
from finetune.types import UserError

FILE = "seeds.json"
"""The summary in the folder that holds the seeds' folders."""

Metrics = Mapping[str, Mapping[str, float]]
"""Scores by name, by split."""


@dataclass
class Results:
    """What the seeds came to, by seed: metrics, and why a run counts as degenerate."""

    metrics: dict[int, Metrics] = field(default_factory=dict)
    degenerate: dict[int, list[str]] = field(default_factory=dict)
    baselines: dict[str, Baseline] | None = None
    data: str | None = None
    """Fingerprint of the data of the first seed."""


def train_seeds(
    task: str,
    config: TrainConfig,
    recipe: Recipe | None,
    of_recipe: TrainConfig | None,
    number: int,
) -> None:
    """Train ``number`` seeds from ``config.seed`` on, print and write what they come to.

    Raises ValueError where the folder holds a seed with other settings.
    """
    if config.push_to_hub is not None:
        raise UserError(
            "--push-to-hub goes with one run: leave it out with --seeds, and upload the seed you "
            "choose with: finetune push RUN ID"
        )
    quiet_libraries()
    start = time.monotonic()
    name = (recipe.name if recipe else launch.run_name(config, task)) + "-seeds"
    folder = Path(config.out or launch.RUNS / name)
    configs = [
        replace(config, seed=seed, out=str(folder / f"seed-{seed}"))
        for seed in range(config.seed, config.seed + number)
    ]
    kinds: list[str] = launch.on_main_process(lambda: _kinds(folder, configs))
    results = Results(baselines=_saved_baselines(folder))
    followed = follow(recipe, config, of_recipe)
    for each, kind in zip(configs, kinds, strict=True):
        _train_one(task, each, kind, results, followed)
        if launch.is_main_process():
            _write(folder, results, followed)
    if not launch.is_main_process():
        return
    print("\n".join(table(summary(results.metrics))))
    for seed, reasons in results.degenerate.items():
        print(f"seed {seed} is degenerate: {'; '.join(reasons)}")
    for claim in _claims(results, followed):
        print(claim.line())
    report_run(folder)
    print(
        f"{clock(time.monotonic() - start)} in all. Everything is in {folder}, see {FILE} and "
        f"{REPORT_FILE}."
    )


def _kinds(folder: Path, configs: Sequence[TrainConfig]) -> list[str]:
    """For each seed whether its run is finished, unfinished or new; ValueError where a run cannot
    be one of these seeds."""
    launch.require_writable(folder)
    if launch.is_run(folder):
        raise UserError(f"--seeds: {folder} is the folder of a single run: choose another --out.")
    return [_kind(Path(config.out or ""), config) for config in configs]


def _kind(folder: Path, config: TrainConfig) -> str:
    if not launch.is_run(folder):
        return "new"
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if differing := changed(saved, config):
        name = differing[0]
        raise UserError(
            f"{folder}: was trained with {name} = {saved.get(name)!r}, now "
            f"{settings(config)[name]!r}: use the same settings, or another --out."
        )
    return "finished" if (folder / "metrics.json").is_file() else "unfinished"


def _train_one(
    task: str, config: TrainConfig, kind: str, results: Results, followed: Followed | None
) -> None:
    """Train a seed, or read what it came to where it is finished."""
    folder = Path(config.out or "")
    if launch.is_main_process():
        print(f"seed {config.seed}: {folder}{' is finished: kept' if kind == 'finished' else ''}")
    if kind != "finished":
        resumed = replace(config, resume=kind == "unfinished")
        try:
            trained = train_once(task, resumed, command_line, followed)
        except Diverged as error:
            results.degenerate[config.seed] = [str(error)]
            return
        if trained is not None:
            results.baselines = trained.baselines
    if not launch.is_main_process():
        return
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    _check_data(folder, results)
    if results.baselines is None:
        results.baselines = baselines_of(load_task(config, task), metrics)
    results.metrics[config.seed] = metrics
    if reasons := list(degenerate(folder, metrics, results.baselines, config.metric)):
        results.degenerate[config.seed] = reasons


def _check_data(folder: Path, results: Results) -> None:
    """Refuse a seed that was trained on other data than the first."""
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    results.data = results.data or saved["fingerprint"]
    if saved["fingerprint"] != results.data:
        raise UserError(
            f"{folder}: was trained on other data than the other seeds: choose another --out, or "
            "delete the folder to train it anew."
        )


def summary(metrics: Mapping[int, Metrics]) -> dict[str, dict[str, dict[str, Any]]]:
    """By split and score: mean, standard deviation (n - 1), median, minimum and maximum over the
    seeds, and the value of each. Scores that some seed lacks, or that are no numbers, are left
    out."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    first = next(iter(metrics.values()), {})
    for split, names in first.items():
        for name in names:
            values = {seed: each.get(split, {}).get(name, math.nan)
                      for seed, each in metrics.items()}  # fmt: skip
            if all(map(math.isfinite, values.values())):
                found.setdefault(split, {})[name] = _spread(values)
    return found


def _spread(by_seed: Mapping[int, float]) -> dict[str, Any]:
    values = list(by_seed.values())
    return {
        "mean": statistics.fmean(values),
        "standard_deviation": statistics.stdev(values) if len(values) > 1 else None,
        "median": statistics.median(values),
        "minimum": min(values),
        "maximum": max(values),
        "seeds": {str(seed): value for seed, value in by_seed.items()},
    }


def table(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """The summary in lines; scores of single types are in the file only."""
    names = ("mean", "deviation", "median", "lowest", "highest")
    rows = [("", *names)]
    for split, scores in found.items():
        for name, each in scores.items():
            if ":" in name:
                continue
            keys = ("mean", "standard_deviation", "median", "minimum", "maximum")
            cells = ["" if each[key] is None else f"{each[key]:.4f}" for key in keys]
            rows.append((f"{split} {name}", *cells))
    width = max(len(row[0]) for row in rows)
    return [f"{row[0]:>{width}}" + "".join(f"{cell:>11}" for cell in row[1:]) for row in rows]


def _claims(results: Results, followed: Followed | None) -> Sequence[Claim]:
    """The recipe's scores against those of the seeds."""
    if followed is None:
        return ()
    number = len({*results.metrics, *results.degenerate})
    return claims_of_seeds(
        followed.recipe.expected,
        summary(results.metrics),
        followed.differing,
        len(results.degenerate),
        number,
        results.data,
    )


def _write(folder: Path, results: Results, followed: Followed | None) -> None:
    """Write the summary of the seeds so far."""
    content = {
        "seeds": list(results.metrics),
        "metrics": summary(results.metrics),
        "degenerate": [
            {"seed": seed, "reasons": reasons} for seed, reasons in results.degenerate.items()
        ],
        "recipe": followed.record() if followed else None,
        "verdicts": [claim.record() for claim in _claims(results, followed)],
        "baselines": {split: base._asdict() for split, base in (results.baselines or {}).items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    (folder / FILE).write_text(text, encoding="utf-8")


def _saved_baselines(folder: Path) -> dict[str, Baseline] | None:
    path = folder / FILE
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    return {split: Baseline(**base) for split, base in content["baselines"].items()}
