"""The options of `finetune run SUITE`, and its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from finetune.cli.help import options_of
from finetune.cli.options import FormatOption, TrainingCommand
from finetune.cli.output import quiet_libraries
from finetune.cli.parsing import filled, parsed, parsed_known
from finetune.cli.run import RecipeCommand, recipe_command
from finetune.cli.train import task_command
from finetune.config.options import Help, argument
from finetune.config.tasks import flag
from finetune.config.values import MOST_RUNS, require_count
from finetune.suites.definition import Suite, load_suite
from finetune.types import UserError, abbreviated, did_you_mean


@dataclass(frozen=True, kw_only=True)
class SuiteRun(FormatOption, TrainingCommand):
    """Train all recipes of a suite, and print a table of their scores.

    All options of training apply too (`finetune classify --help`), to every recipe.

    Examples:
        finetune run glue --model roberta-base --seeds 5
        finetune run small --only sentiment,nli
    """

    suite: Annotated[str, argument("SUITE")]
    """Suite: a file, or the name of a packaged suite (`finetune run` lists them)."""
    out: Annotated[str | None, Help("FOLDER", group="output", common=True)] = None
    """Folder for the runs of all data sets and the table of scores. Default: `runs/SUITE`, with the
    name of --model. The same command continues there."""
    model: Annotated[str | None, Help(group="model", common=True)] = None
    """Encoder of all runs. A suite may have separate recipes for some encoders; others use the
    recipes of its first encoder."""
    seeds: int = 1
    """Train N runs of each recipe, with consecutive seeds from --seed. Finished runs are kept."""
    seed: int | None = None
    """Seed of the first run of each recipe."""
    only: Annotated[str | None, Help("NAME,…")] = None
    """Run only these data sets (names separated by commas), and those whose models they start
    from."""
    data: Annotated[tuple[str, ...], Help("NAME=DATA …", group="data", common=True)] = ()
    """Your data for some data sets of the suite: `genia=my-genia rte=data/rte`."""
    dry_run: bool = False
    """Show the runs in order (data, steps, finished runs) without training."""


@dataclass(frozen=True, kw_only=True)
class LoadedSuite(SuiteRun):
    """The run of a suite with the command of each task."""

    loaded: Suite
    commands: Mapping[str, RecipeCommand]
    """The command of each task to run, in order, as `finetune run RECIPE` parses it."""

    @property
    def folder(self) -> Path:
        """The folder of the suite."""
        from finetune.training.run_folder import RUNS

        last = (self.model or "").rstrip("/").split("/")[-1]
        return Path(self.out or RUNS / "-".join(filter(None, (self.loaded.path.stem, last))))

    def run(self) -> None:
        """Train the tasks and print the table."""
        quiet_libraries()
        from finetune.suites.running import run_suite

        run_suite(self)


def parse_suite(path: str, rest: Sequence[str]) -> LoadedSuite:
    """Parse the command that runs a suite, with options of the suite and of every task.

    Raises:
        UserError: The suite, an option, or the settings of a task are wrong.
    """
    options = [option for option in options_of(SuiteRun) if not option.positional]
    values, training_options = parsed_known("run", options, rest)
    suite, commands = load_suite(path, values.get("model")), dict[str, RecipeCommand]()
    run = LoadedSuite(suite=path, loaded=suite, commands=commands, **values)
    require_count("--seeds", run.seeds, most=MOST_RUNS)
    data = dict(text.partition("=")[::2] for text in run.data)
    for name, value in data.items():
        if name not in suite.tasks or not value:
            names, hint = abbreviated(suite.tasks, 30), did_you_mean(name, suite.tasks)
            raise UserError(f"--data {name}: write NAME=DATA, with a name of {names}.{hint}")
    for task in suite.order([name.strip() for name in (run.only or "").split(",") if name]):
        name = task.recipe.task
        suite_values = {"model": run.model, "seed": run.seed, "data": data.get(task.name)}
        try:
            settings = parsed(name, task_command(name), training_options)
            settings |= {key: value for key, value in suite_values.items() if value is not None}
            command = recipe_command(str(task.recipe.path))
            commands[task.name] = filled(type(command), settings, command)
        except UserError as error:
            raise UserError(f"{task.name}: {error}") from error
        for setting in ("sizes", "folds", "resume", "init_from", "columns"):
            if setting in settings:
                raise UserError(f"{flag(setting)} does not apply to a suite: leave it out.")
    return run
