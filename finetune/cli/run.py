"""`finetune run`: a recipe, several tasks on one encoder, or the list of recipes and suites."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from finetune.cli.options import Command, FormatOption
from finetune.cli.output import (
    TableFormat,
    print_table,
    print_tables,
    quiet_libraries,
    show,
)
from finetune.cli.train import (
    RunOptions,
    TaskCommand,
    resumable,
    show_run,
    task_command,
)
from finetune.config.options import Help, argument
from finetune.config.recipes import (
    Recipe,
    RecipeRun,
    find_recipes,
    find_suites,
    listed_recipes,
    load_multitask,
    load_recipe,
)
from finetune.config.tasks import Resume
from finetune.registry import LISTS, imported
from finetune.types import UserError, abbreviated, quantity


@dataclass(frozen=True, kw_only=True)
class RecipeCommand(TaskCommand):
    """A command that trains with the settings of a recipe."""

    recipe: Annotated[str, argument("RECIPE")]
    """Recipe (file or name), or run folder whose settings are used; options override them."""
    smoke: bool = False
    """Run a quick check with the `smoke` settings of the recipe."""

    @property
    def recipe_run(self) -> RecipeRun:
        """The recipe that the run follows."""
        recipe = load_recipe(self.recipe)
        followed = recipe.smoke_recipe() if self.smoke else recipe
        return RecipeRun.of(followed, self.config, recipe.config())

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
class RunCommand(FormatOption, RunOptions, Command):
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
    on one encoder. Without RECIPE, recipes and suites are listed, with expected scores and the
    scores of your runs."""
    folder: str = "recipes"
    """Folder of recipes to list, with its subfolders. If there is no folder `recipes`, the packaged
    recipes are listed."""
    only: str | None = None
    """List only recipes with this text in their name, task, model or data."""
    runs: str = "runs"
    """Folder of the runs whose scores are listed with their recipes."""
    smoke: bool = False
    """Run a quick check with the `smoke` settings of the recipe."""

    def run(self) -> None:
        """List the recipes; with one, its task is run in place of this command."""
        for name in vars(self).keys() - {"folder", "runs", "format", "only"}:
            if getattr(self, name) != getattr(RunCommand, name):
                recipe = self.recipe or "RECIPE"
                raise UserError(f"finetune run: a recipe comes first: finetune run {recipe} ….")
        list_recipes(self.folder, self.runs, self.format, self.only)


def recipe_command(path: str, *, smoke: bool) -> RecipeCommand:
    """Build the command with the settings of a recipe, or of its quick check."""
    recipe = load_recipe(path)
    followed = recipe.smoke_recipe() if smoke else recipe
    cls: type[RecipeCommand] = task_command(recipe.task, RecipeCommand)
    return cls(recipe=path, smoke=smoke, config=followed.config())


@dataclass(frozen=True, kw_only=True)
class MultitaskOptions(Command):
    """Train several tasks on one encoder, with the settings of a recipe.

    Examples:
        finetune run multitask.yaml
        finetune run multitask.yaml --alpha 0 --out runs/joint
    """

    recipe: Annotated[str, argument("RECIPE")]
    """Recipe file with `task: multitask`, and the settings of each task below `tasks`."""
    out: str | None = None
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
        )
        quiet_libraries()
        seed = next(iter(recipe.tasks.values()))[1].seed
        out = Path(self.out or RUNS / f"{recipe.path.stem}-seed{seed}")
        reporter = Reporter(quiet=not is_main_process())
        command = command_line()
        with resumable(reporter, lambda: f"{command} --resume", *(out / n for n in recipe.tasks)):
            runs = api.train_multitask(recipe, out, command=command, reporter=reporter)
        for name, run in runs.items():
            show_run(run, f"{name}, in {run.folder}:", "this run")


def list_recipes(
    folder: str, runs_folder: str, format: TableFormat, only: str | None = None
) -> None:
    """Print the recipes and suites of a folder, the scores they expect, and the scores of runs.

    ``only`` is a text in the name, task, model or data. Raise UserError at the end if one cannot be
    read.
    """
    from finetune.evaluation.reproduction import (
        RECIPE_COLUMNS,
        finished_runs,
        recipe_rows,
        run_lines,
    )

    paths = find_recipes(folder)
    if not paths:
        raise UserError(f"{folder}: no recipes (*.yaml) in this folder.")
    suites = find_suites(folder)
    runs = finished_runs(Path(runs_folder))
    unreadable: list[str] = []
    rows, scores, lines = list[list[str]](), list[list[Any]](), list[str]()
    for path in [*paths, *suites]:
        try:
            row, recipe = _row_of_list(path) if path in suites else _row_of_recipe(path)
        except (UserError, OSError) as error:
            unreadable.append(str(path))
            show(str(error), error=True)
            continue
        if only is not None and not any(only.lower() in cell.lower() for cell in row):
            continue
        rows.append(row)
        if recipe is not None:
            scores += recipe_rows(recipe, runs)
            lines += run_lines(recipe, runs)
    if format == "table":
        print_table(("name", "task", "model", "data", "expected"), rows)
        for line in lines:
            show(line)
    else:
        print_tables(format, ("", RECIPE_COLUMNS, scores))
    if unreadable:
        number = len(paths) + len(suites)
        raise UserError(
            f"{len(unreadable)} of {quantity(number, 'recipe')} cannot be read: "
            f"{abbreviated(unreadable, 3)}; the reasons are above."
        )


def _row_of_recipe(path: Path) -> tuple[list[str], Recipe | None]:
    recipe = load_recipe(path)
    config = recipe.config()
    model = config.model or config.init_from or config.new_encoder or ""
    scores = (f"{score.split} {score.metric} {score.claimed}" for score in recipe.expected)
    return [path.stem, recipe.task, model, config.data, "; ".join(scores)], recipe


def _row_of_list(path: Path) -> tuple[list[str], Recipe | None]:
    key = listed_recipes(path)
    if key is None:
        raise UserError(f"{path}: lists no recipes: it needs one of {', '.join(LISTS)}.")
    title, *_ = imported(LISTS[key].lines)(path)
    return [path.stem, "", "", "", title], None
