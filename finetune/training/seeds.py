"""Train one configuration with several seeds and summarize their scores.

On small data the scores of seeds differ by several points, and some runs fail entirely (Mosbach et
al., 2021; Dodge et al., 2020). Finished seeds are kept, so that the same call continues after an
interruption, or adds seeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from finetune.config.recipes import RecipeRun, changed
from finetune.config.tasks import TrainConfig, settings
from finetune.evaluation.reproduction import ScoreVerdict, seed_verdicts, summarize
from finetune.runtime.launch import on_main_process
from finetune.training import checkpoint
from finetune.training.run_folder import Diverged, is_run, require_writable
from finetune.types import UserError

SEEDS_FILE = "seeds.json"
"""File with the summary, next to the run folders of the seeds."""

Metrics = Mapping[str, Mapping[str, float]]
"""Scores by split and name."""


@dataclass
class SeedResults:
    """Scores of the seeds trained so far, and the reasons why a seed is degenerate, by seed."""

    recipe_run: RecipeRun | None = None
    metrics: dict[int, Metrics] = field(default_factory=dict)
    degenerate: dict[int, list[str]] = field(default_factory=dict)
    baselines: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None
    """Hash of the data of the first seed."""

    def add(self, seed: int, folder: Path) -> None:
        """Read the scores of a finished seed; UserError if its data are not those of the others."""
        config, metrics, environment = (
            json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            for name in ("config", "metrics", "environment")
        )
        self.fingerprint = self.fingerprint or config["fingerprint"]
        if config["fingerprint"] != self.fingerprint:
            raise UserError(
                f"{folder}: was trained on other data than the other seeds: choose another --out, "
                "or delete the folder to train it anew."
            )
        self.metrics[seed] = metrics
        self.baselines = environment["baselines"]
        if reasons := environment["degenerate"]:
            self.degenerate[seed] = reasons

    def verdicts(self) -> Sequence[ScoreVerdict]:
        """Compare the scores with those that the recipe expects."""
        if self.recipe_run is None:
            return ()
        return seed_verdicts(
            self.recipe_run.recipe.expected,
            summarize(self.metrics),
            self.recipe_run.differing,
            len(self.degenerate),
            len({*self.metrics, *self.degenerate}),
            self.fingerprint,
        )

    def write(self, folder: Path) -> None:
        """Write the summary to ``seeds.json``."""
        content = {
            "seeds": list(self.metrics),
            "metrics": summarize(self.metrics),
            "degenerate": [{"seed": seed, "reasons": r} for seed, r in self.degenerate.items()],
            "recipe": self.recipe_run.record() if self.recipe_run else None,
            "verdicts": [verdict.record() for verdict in self.verdicts()],
            "baselines": self.baselines,
        }
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        checkpoint.write_text(folder / SEEDS_FILE, text)


def train_seeds(
    config: TrainConfig,
    number: int,
    folder: Path,
    train_one: Callable[[TrainConfig], object],
    *,
    recipe_run: RecipeRun | None = None,
    on_start: Callable[[TrainConfig, bool], object] = lambda config, finished: None,
) -> SeedResults:
    """Train ``number`` seeds, from ``config.seed`` on, and write ``seeds.json`` after each.

    Args:
        config: the configuration that the seeds share.
        number: how many seeds to train.
        folder: parent of the run folders ``seed-<n>``. Seeds that are finished there are kept.
        train_one: trains the configuration of one seed and writes all files of its run folder,
            ``environment.json`` last. If it raises Diverged, the seed counts as degenerate.
        recipe_run: the recipe that the configuration follows, whose scores are compared.
        on_start: called for each seed with its configuration and whether it is finished.

    Raises:
        UserError: the folder is that of a single run, or has seeds with other settings or data.
    """
    configs = [
        replace(config, seed=seed, out=str(folder / f"seed-{seed}"))
        for seed in range(config.seed, config.seed + number)
    ]
    states: list[str] = on_main_process(lambda: _states(folder, configs))
    results = SeedResults(recipe_run)
    for each, state in zip(configs, states, strict=True):
        on_start(each, state == "finished")
        diverged = None
        if state != "finished":
            try:
                train_one(replace(each, resume=state == "unfinished"))
            except Diverged as error:
                diverged = str(error)
        on_main_process(partial(_record, results, each, folder, diverged))
    return results


def _record(results: SeedResults, config: TrainConfig, folder: Path, diverged: str | None) -> None:
    if diverged is None:
        results.add(config.seed, Path(config.out or ""))
    else:
        results.degenerate[config.seed] = [diverged]
    results.write(folder)


def _states(folder: Path, configs: Sequence[TrainConfig]) -> list[str]:
    """Return for each seed whether its run is ``finished``, ``unfinished`` or ``new``."""
    require_writable(folder)
    if is_run(folder):
        raise UserError(f"--seeds: {folder} is the folder of a single run: choose another --out.")
    return [_state(Path(config.out or ""), config) for config in configs]


def _state(folder: Path, config: TrainConfig) -> str:
    if not is_run(folder):
        return "new"
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if differing := changed(saved, config):
        name = differing[0]
        raise UserError(
            f"{folder}: was trained with {name} = {saved.get(name)!r}, now "
            f"{settings(config)[name]!r}: use the same settings, or another --out."
        )
    files = ("metrics.json", "environment.json")
    return "finished" if all((folder / name).is_file() for name in files) else "unfinished"
