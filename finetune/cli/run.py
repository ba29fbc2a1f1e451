"""`finetune run`: a recipe, several tasks on one encoder, or the list of recipes and suites."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from finetune.cli.options import Command
from finetune.cli.output import print_table, quiet_libraries, show
from finetune.cli.train import RunOptions, TaskCommand, resumable, show_run, task_command
from finetune.config.options import Help, argument
from finetune.config.recipes import (
    MAY_DIFFER,
    MULTITASK,
    RecipeRun,
    changed,
    find_recipes,
    find_suites,
    is_multitask,
    is_suite,
    load_multitask,
    load_recipe,
)
from finetune.config.tasks import Resume, settings
from finetune.registry import SUITE_LINES, imported
from finetune.runtime.processes import num_processes
from finetune.types import UserError, abbreviated, quantity


@dataclass(frozen=True, kw_only=True)
class RecipeCommand(TaskCommand):
    """A command that trains with the settings of a recipe."""

    recipe: Annotated[str, argument("RECIPE")]
    """Recipe (file or name), or run folder whose settings are used; options override them."""

    @property
    def recipe_run(self) -> RecipeRun:
        """The recipe that the run follows."""
        recipe = load_recipe(self.recipe)
        differing = changed(settings(self.config), recipe.config(), *MAY_DIFFER)
        return RecipeRun(recipe, tuple(differing))

    def run(self) -> None:
        """Train one run or several seeds, or show the plan."""
        from finetune.data import DataError

        try:
            super().run()
        except DataError as error:
            run, data = self.recipe_run.recipe.run, self.config.data
            if run is None or "data" in self.recipe_run.differing or Path(data).exists():
                raise
            raise UserError(
                f"{run}: was trained on {data}: {error} Run the command in the folder where they "
                "are, or name them with --data."
            ) from error


@dataclass(frozen=True, kw_only=True)
class RunCommand(RunOptions, Command):
    """Train with the settings of a recipe or of a run, or list the recipes.

    Examples:
        finetune run --only minilm
        finetune run mnli-roberta-base --seeds 5
        finetune run runs/my-run --lr 1e-5
    """

    recipe: Annotated[str | None, argument("RECIPE")] = None
    """Recipe (file or name), suite, or run folder whose settings are used. Options of the task
    override them (`finetune run RECIPE --help` lists them with the values of the recipe). A suite
    trains all its recipes (`finetune run glue --help`), a file with `task: multitask` several tasks
    on one encoder. Without RECIPE, the recipes and suites of the folder `recipes`, or the packaged
    ones, are listed with the scores that they expect."""
    only: Annotated[str | None, Help("TEXT")] = None
    """List only recipes with this text in their name, task, model or data."""

    def run(self) -> None:
        """List the recipes; with one, its task is run in place of this command."""
        for name in vars(self).keys() - {"only"}:
            if getattr(self, name) != getattr(RunCommand, name):
                recipe = self.recipe or "RECIPE"
                raise UserError(f"finetune run: a recipe comes first: finetune run {recipe} ….")
        unreadable, rows = list[str](), list[list[str]]()
        paths = [*find_recipes("recipes"), *find_suites("recipes")]
        for path in paths:
            try:
                row = _row(path)
            except (UserError, OSError) as error:
                unreadable.append(str(path))
                show(str(error), error=True)
                continue
            if self.only is None or any(self.only.lower() in cell.lower() for cell in row):
                rows.append(row)
        print_table(("name", "task", "model", "data", "expected"), rows)
        if unreadable:
            raise UserError(
                f"{len(unreadable)} of {quantity(len(paths), 'recipe')} cannot be read: "
                f"{abbreviated(unreadable, 3)}; the reasons are above."
            )


def recipe_command(path: str) -> RecipeCommand:
    """Build the command with the settings of a recipe."""
    recipe = load_recipe(path)
    cls: type[RecipeCommand] = task_command(recipe.task, RecipeCommand)
    return cls(recipe=path, config=recipe.config())


@dataclass(frozen=True, kw_only=True)
class MultitaskOptions(Command):
    """Train several tasks on one encoder, with the settings of a recipe.

    Examples:
        finetune run multitask.yaml
        finetune run multitask.yaml --alpha 0 --out runs/joint
    """

    recipe: Annotated[str, argument("RECIPE")]
    """Recipe file with `task: multitask`, and the settings of each task below `tasks`."""
    out: Annotated[str | None, Help("FOLDER")] = None
    """Folder for the run folders of the tasks; default: `runs/RECIPE-seedN`."""
    alpha: float | None = None
    """Exponent of task sampling: a task is trained in proportion to size^alpha of its training
    data. 1 keeps the proportions of the sizes, 0 makes all tasks equal. Default: the exponent of
    the recipe, or 0.5."""
    model: str | None = None
    """Pretrained encoder, instead of the recipe's."""
    epochs: float | None = None
    """Passes over the training data, instead of the recipe's."""
    limit: int | None = None
    """Train each task on its first N training examples."""
    seed: int | None = None
    """Seed, instead of the recipe's."""
    resume: Annotated[Resume, Help("[auto]")] = False
    """Continue the run in the folder from its last checkpoint; `auto` starts a new run if there is
    none."""

    trains = shares_work = True

    def run(self) -> None:
        """Train the tasks, and print the scores of each."""
        from finetune.preprocessing.preparation import look_at_data

        overrides = {n: v for n, v in vars(self).items() if n not in ("recipe", "out")}
        recipe = load_multitask(self.recipe, **overrides)
        quiet_libraries()
        if num_processes() == 1 and not self.resume:
            for _, config in recipe.tasks.values():
                look_at_data(config)
        from finetune import api
        from finetune.reporting.environment import command_line
        from finetune.runtime.launch import is_main_process
        from finetune.runtime.progress import Reporter
        from finetune.training.run_folder import RUNS

        seed = next(iter(recipe.tasks.values()))[1].seed
        out = Path(self.out or RUNS / f"{recipe.path.stem}-seed{seed}")
        reporter = Reporter(quiet=not is_main_process())
        command = command_line()
        with resumable(reporter, lambda: f"{command} --resume", *(out / n for n in recipe.tasks)):
            runs = api.train_multitask(recipe, out, command=command, reporter=reporter)
        for name, run in runs.items():
            show_run(run, f"{name}, in {run.folder}:", "this run")
        if runs:
            show(f"Everything is in {out}, with a run folder for each task.")


def _row(path: Path) -> list[str]:
    if is_suite(path):
        title, *_ = imported(SUITE_LINES)(path)
        return [path.stem, "", "", "", title]
    if is_multitask(path):
        configs = [config for _, config in load_multitask(path).tasks.values()]
        data = ", ".join(config.data for config in configs)
        return [path.stem, MULTITASK, configs[0].model or "", data, ""]
    recipe = load_recipe(path)
    config = recipe.config()
    model = config.model or config.init_from or config.new_encoder or ""
    scores = (f"{score.split} {score.metric} {score.claimed}" for score in recipe.expected)
    return [path.stem, recipe.task, model, config.data, "; ".join(scores)]
