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

from finetune.config.recipes import RecipeRun
from finetune.config.tasks import TrainConfig
from finetune.data.json_files import check_types, read_object
from finetune.evaluation.reproduction import ScoreVerdict, seed_verdicts, summarize
from finetune.runtime.files import entries, recover, vacant, write_text
from finetune.runtime.launch import on_main_process
from finetune.runtime.progress import Reporter
from finetune.training.run_folder import (
    Diverged,
    hold,
    is_run,
    require_own,
    require_same_run,
    require_writable,
)
from finetune.types import UserError

SEEDS_FILE = "seeds.json"
"""File with the summary, next to the run folders of the seeds."""

Metrics = Mapping[str, Mapping[str, float]]
"""Scores by split and name."""


@dataclass
class SeedResults:
    """Scores, and reasons why a seed is degenerate, by seed."""

    recipe_run: RecipeRun | None = None
    metrics: dict[int, Metrics] = field(default_factory=dict)
    degenerate: dict[int, list[str]] = field(default_factory=dict)
    baselines: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None
    """Hash of the data of the first seed."""

    def add(self, seed: int, folder: Path) -> None:
        """Read the scores of a finished seed, which must have the data of the others."""
        config = read_object(folder / "config.json", {"fingerprint": str})
        metrics = read_object(folder / "metrics.json")
        environment = read_object(
            folder / "environment.json", {"baselines": dict, "degenerate": list[str]}
        )
        check_types(folder / "metrics.json", metrics, dict.fromkeys(metrics, dict[str, float]))
        self.fingerprint = self.fingerprint or config["fingerprint"]
        if config["fingerprint"] != self.fingerprint:
            raise UserError(
                f"{folder}: was trained on other data than the other seeds: choose another --out, "
                "or delete the folder to train it again."
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
            self.recipe_run.recipe.expected, summarize(self.metrics), self.recipe_run.differing,
            len(self.degenerate), len({*self.metrics, *self.degenerate}), self.fingerprint,
        )  # fmt: skip

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
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_text(folder / SEEDS_FILE, text)


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

    Seeds that are finished in ``folder`` are kept. ``train_one`` writes all files of the run folder
    ``seed-<n>``, ``README.md`` last; if it raises Diverged, the seed is degenerate.
    ``on_start`` is called for each seed with its configuration and whether it is finished.
    """
    configs = [
        replace(config, seed=seed, out=str(folder / f"seed-{seed}"))
        for seed in range(config.seed, config.seed + number)
    ]
    results = SeedResults(recipe_run)

    def find_states() -> list[str]:
        require_writable(folder)
        if is_run(folder):
            raise UserError(f"--seeds: {folder} is the folder of a single run: use another --out.")
        runs = [path for path in folder.glob("seed-*") if path.is_dir()]
        new = vacant(folder) or all(folder / name in runs for name in entries(folder))
        require_own(folder, any(map(is_run, runs)) or (new and all(map(vacant, runs))))
        return [_state(Path(each.out or ""), each) for each in configs]

    def record(config: TrainConfig, diverged: str | None) -> None:
        if diverged is None:
            results.add(config.seed, Path(config.out or ""))
        else:
            results.degenerate[config.seed] = [diverged]
        results.write(folder)

    states = on_main_process(find_states)
    with hold(folder):
        on_main_process(lambda: recover(folder))
        for each, state in zip(configs, states, strict=True):
            on_start(each, state == "finished")
            diverged = None
            if state != "finished":
                try:
                    train_one(replace(each, resume=state == "unfinished"))
                except Diverged as error:
                    diverged = str(error)
            on_main_process(partial(record, each, diverged))
    return results


def _state(folder: Path, config: TrainConfig) -> str:
    """Return whether the run of a seed is ``finished``, ``unfinished`` or ``new``."""
    if not is_run(folder):
        return "new"
    require_same_run(folder, config)
    for name in ("metrics.json", "environment.json"):
        try:
            read_object(folder / name)
        except OSError:
            return "unfinished"
        except UserError as error:
            Reporter().say(f"{error} The seed is scored again.")
            return "unfinished"
    return "finished" if (folder / "README.md").is_file() else "unfinished"
