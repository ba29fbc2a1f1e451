"""`finetune run FILE`, for a recipe of several tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from finetune.cli.command import Command
from finetune.cli.output import quiet_libraries
from finetune.cli.train import report_run, resumable, show_run
from finetune.config.options import Help, argument
from finetune.config.recipes import load_multitask
from finetune.config.tasks import Resume


@dataclass(frozen=True, kw_only=True)
class Multitask(Command):
    """Train several tasks on one encoder, with the settings of a recipe.

    Examples:
        finetune run multitask.yaml
        finetune run multitask.yaml --alpha 0 --out runs/joint
    """

    recipe: Annotated[str, argument("RECIPE")]
    """File with `task: multitask` and the settings of each task below `tasks`."""
    out: str | None = None
    """Folder, with a run folder for each task; unset is `runs/RECIPE-seedN`."""
    alpha: float | None = None
    """Exponent of the share of each task in the steps, size^alpha: 1 follows the sizes of the
    training data, 0 makes all tasks equal. Unset takes the exponent of the recipe, or 0.5."""
    model: str | None = None
    """Pretrained encoder, in place of the recipe's."""
    epochs: float | None = None
    """Passes over the training data, in place of the recipe's."""
    limit: int | None = None
    """Train each task on the first N of its training examples only."""
    seed: int | None = None
    """Seed, in place of the recipe's."""
    resume: Annotated[Resume, Help("[auto]")] = False
    """Continue the run in the folder from its last checkpoint; `auto` starts a run if there is
    none."""
    trust_remote_code: bool = False
    """Allow a model's own Python code from the hub to run."""

    @property
    def trains(self) -> bool:
        """True: models are trained."""
        return True

    @property
    def shares_work(self) -> bool:
        """True: all processes train."""
        return True

    def run(self) -> None:
        """Train the tasks, and print the scores of each."""
        from finetune import api
        from finetune.reporting.environment import command_line
        from finetune.runtime.launch import is_main_process
        from finetune.runtime.progress import Reporter
        from finetune.training.run_folder import RUNS

        recipe = load_multitask(
            self.recipe,
            alpha=self.alpha,
            model=self.model,
            epochs=self.epochs,
            limit=self.limit,
            seed=self.seed,
            resume=self.resume,
            trust_remote_code=self.trust_remote_code,
        )
        quiet_libraries()
        seed = next(iter(recipe.tasks.values()))[1].seed
        out = Path(self.out or RUNS / f"{recipe.path.stem}-seed{seed}")
        reporter = Reporter(quiet=not is_main_process())
        command = command_line()
        with resumable(reporter, lambda: f"{command} --resume", *(out / n for n in recipe.tasks)):
            runs = api.train_multitask(
                recipe, out, command=command, reporter=reporter, report=report_run
            )
        for name, run in runs.items():
            show_run(run, f"{name}, in {run.folder}:", "this run")
