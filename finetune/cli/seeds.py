"""Train several seeds of one configuration and print their scores."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune.cli.commands import quiet_libraries
from finetune.cli.train import report_run, train_once
from finetune.config.recipes import Recipe, follow
from finetune.config.tasks import TrainConfig
from finetune.reporting import REPORT_FILE
from finetune.runtime.launch import is_main_process
from finetune.runtime.progress import clock
from finetune.training import seeds
from finetune.training.environment import command_line
from finetune.training.run_folder import RUNS, run_name
from finetune.types import UserError


def train_seeds(
    task: str,
    config: TrainConfig,
    recipe: Recipe | None,
    of_recipe: TrainConfig | None,
    number: int,
) -> None:
    """Train ``number`` seeds from ``config.seed`` on and print the summary of their scores."""
    if config.push_to_hub is not None:
        raise UserError(
            "--push-to-hub uploads a single run: leave it out with --seeds, and upload the seed "
            "you choose with: finetune push RUN ID"
        )
    quiet_libraries()
    start = time.monotonic()
    name = (recipe.name if recipe else run_name(config, task)) + "-seeds"
    folder = Path(config.out or RUNS / name)
    recipe_run = follow(recipe, config, of_recipe)

    def announce(each: TrainConfig, finished: bool) -> None:
        if is_main_process():
            print(f"seed {each.seed}: {each.out}{' is finished: kept' if finished else ''}")

    results = seeds.train_seeds(
        config,
        number,
        folder,
        lambda each: train_once(task, each, command_line, recipe_run),
        recipe_run=recipe_run,
        on_start=announce,
    )
    if not is_main_process():
        return
    print("\n".join(table(seeds.summarize(results.metrics))))
    for seed, reasons in results.degenerate.items():
        print(f"seed {seed} is degenerate: {'; '.join(reasons)}")
    for claim in results.verdicts():
        print(claim.line())
    report_run(folder)
    print(
        f"{clock(time.monotonic() - start)} in all. Everything is in {folder}, see "
        f"{seeds.SEEDS_FILE} and {REPORT_FILE}."
    )


def table(summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Return the summary as lines of text, without the scores of single types."""
    rows = [("", "mean", "deviation", "median", "lowest", "highest")]
    for split, scores in summary.items():
        for name, each in scores.items():
            if ":" in name:
                continue
            keys = ("mean", "standard_deviation", "median", "minimum", "maximum")
            cells = ["" if each[key] is None else f"{each[key]:.4f}" for key in keys]
            rows.append((f"{split} {name}", *cells))
    width = max(len(row[0]) for row in rows)
    return [f"{row[0]:>{width}}" + "".join(f"{cell:>11}" for cell in row[1:]) for row in rows]
