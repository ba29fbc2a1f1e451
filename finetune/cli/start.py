"""The arguments of the commands that train: a recipe's settings, the flags over them, seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finetune.cli.arguments import ALSO
from finetune.cli.parsing import joined, parse
from finetune.config.tasks import CONFIGS, TrainConfig
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.config.recipes import Recipe


def train(task: str, arguments: list[str]) -> None:
    """`finetune TASK`, with --recipe perhaps."""
    recipe = None
    arguments = joined(arguments, "--recipe")
    if named := [argument for argument in arguments if argument.startswith("--recipe=")]:
        recipe = named[-1].removeprefix("--recipe=")
        arguments = [argument for argument in arguments if argument not in named]
    elif "--recipe" in arguments:
        raise UserError("--recipe needs a file.")
    _start(task, recipe, arguments)


def run(arguments: list[str]) -> None:
    """`finetune run RECIPE`."""
    if not arguments or arguments[0].startswith("-"):
        print(
            "usage: finetune run RECIPE [flags]\n\nTrain what a recipe file says; flags win over "
            "the recipe and are those of its task\n(`finetune nli --help`). `--dry-run` shows "
            "the plan only, `--smoke` is a quick check with the\nrecipe's `smoke` settings, "
            "`--seeds 5` trains five seeds and sums them up. `finetune recipes`\nlists recipes."
        )
        if not any(a in ("-h", "--help") for a in arguments):
            raise UserError("finetune run needs a recipe file.")
        return
    _start(None, arguments[0], arguments[1:])


def _start(task: str | None, recipe_path: str | None, arguments: list[str]) -> None:
    """Train, or show the plan; the task is a recipe's where there is one."""
    recipe = None
    if recipe_path is not None:
        from finetune.config.recipes import load_recipe

        recipe = load_recipe(recipe_path)
        if task is not None and recipe.task != task:
            raise UserError(f"{recipe_path} is a recipe for {recipe.task}, not {task}.")
        task = recipe.task
    assert task is not None
    dry, smoke = "--dry-run" in arguments, "--smoke" in arguments
    arguments = [argument for argument in arguments if argument not in ("--dry-run", "--smoke")]
    number, arguments = _seeds(arguments)
    of_recipe = configured(recipe) if recipe else None
    if smoke:
        if recipe is None:
            raise UserError("--smoke goes with a recipe: name one, or leave --smoke out.")
        recipe = recipe.quickly()
    before = recipe.arguments if recipe else []
    config = parse(CONFIGS[task], before + arguments, task, more=ALSO)
    if config.init_from is not None and _names(before + arguments, "--model"):
        from finetune.models.warm_start import check_asked_model

        check_asked_model(config)
    from finetune.cli import train as training
    from finetune.runtime.launch import destroy_process_group

    try:
        if dry:
            training.dry_run(task, config)
        elif number is None:
            training.train(task, config, recipe, of_recipe)
        else:
            from finetune.cli.seeds import train_seeds

            train_seeds(task, config, recipe, of_recipe, number)
    finally:
        destroy_process_group()


def _names(arguments: list[str], flag: str) -> bool:
    """Whether a flag is among the arguments."""
    return any(argument.partition("=")[0] == flag for argument in arguments)


def _seeds(arguments: list[str]) -> tuple[int | None, list[str]]:
    """The number that --seeds asks for, if it does, and the other arguments."""
    arguments = joined(arguments, "--seeds")
    named = [argument for argument in arguments if argument.partition("=")[0] == "--seeds"]
    if not named:
        return None, arguments
    value = named[-1].partition("=")[2]
    if not value.isdecimal() or int(value) < 1:
        raise UserError(f"--seeds must be the number of seeds, 1 or more, not {value!r}.")
    if "--resume" in arguments:
        raise UserError("--seeds goes on where it was stopped by itself: leave --resume out.")
    return int(value), [argument for argument in arguments if argument not in named]


def configured(recipe: Recipe) -> TrainConfig:
    """The configuration that a recipe describes."""
    try:
        return parse(CONFIGS[recipe.task], recipe.arguments, recipe.task)
    except ValueError as error:
        raise UserError(f"{recipe.path}: {error}") from None
