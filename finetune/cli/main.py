"""The command line. Nothing heavy is imported before a command really starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from finetune.cli.arguments import (
    AnalyseCommand,
    BenchCommand,
    CheckCommand,
    CompareCommand,
    ExportCommand,
    PredictCommand,
    PushCommand,
    RecipesCommand,
    ReportCommand,
    ScoreCommand,
)
from finetune.cli.parsing import joined, parse
from finetune.cli.start import configured, run, train
from finetune.config.tasks import CONFIGS
from finetune.types import UserError, perhaps

COMMANDS = {
    "classify": "label texts: one label, several, or a number",
    "nli": "label pairs of texts: entailment, paraphrase and the like",
    "tag": "tag words: named entities, parts of speech, chunks",
    "ner": "label spans of words: named entities, nested ones too",
    "run": "train what a recipe file says",
    "recipes": "list the recipes, the scores they claim and those your runs reached",
    "check": "look at data (or a recipe's) for problems, without a model",
    "predict": "answer new texts with a trained model",
    "export": "write a trained model as an ONNX graph",
    "score": "score a file of predictions against gold, without a model",
    "analyse": "take one system's answers apart: parts, calibration, mistakes",
    "compare": "test whether two systems differ by more than chance, without a model",
    "report": "write a run, or several side by side, as one page to read in a browser",
    "push": "upload a trained model with its model card to the Hugging Face hub",
    "bench": "measure speed and memory against transformers' own training and pipelines",
}
"""The commands, in the order in which help lists them."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: run a command, turn errors of use into one line and a non-zero exit."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _dispatch(arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except (UserError, OSError, RuntimeError, ImportError) as error:
        line = _line(error)
        if line is None or os.environ.get("FINETUNE_TRACEBACK"):
            raise
        _fail(f"error: {line}", 2)


def _line(error: Exception) -> str | None:
    """An error of use in one line; None for what can only be a bug of ours."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename + ': ' if error.filename else ''}{error.strerror}."
    if isinstance(error, RuntimeError):
        # OutOfMemoryError on a GPU; on a CPU torch has no class for it
        full = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
        return "out of memory: lower --max-tokens, then --max-length." if full else None
    return None if isinstance(error, ImportError) else str(error)


def _fail(text: str, code: int) -> None:
    print(text, file=sys.stderr)
    sys.exit(code)


def _dispatch(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return
    name, rest = arguments[0], arguments[1:]
    if name == "--version":
        from importlib.metadata import version

        print(version("finetune"))
        return
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}.{perhaps(name, COMMANDS)}\n\n{_overview()}")
    runners: dict[str, Callable[[list[str]], None]] = {
        "run": run,
        "recipes": _recipes,
        "check": _check,
        "predict": _predict,
        "export": _export,
        "score": _score,
        "analyse": _analyse,
        "compare": _compare,
        "report": _report,
        "push": _push,
        "bench": _bench,
    }
    if name in CONFIGS:
        train(name, rest)
    else:
        runners[name](rest)


def _overview() -> str:
    listed = "\n".join(f"  {name:10} {text}" for name, text in COMMANDS.items())
    return (
        "usage: finetune COMMAND [flags]\n\nFine-tune pretrained text encoders.\n\n"
        f"{listed}\n\n"
        "`finetune COMMAND --help` lists a command's flags. A first try that needs no hub:\n"
        "  finetune nli --model minilm --data examples/data/nli"
    )


def _recipes(arguments: list[str]) -> None:
    command = parse(RecipesCommand, arguments, "recipes")
    from finetune.config.recipes import find_recipes
    from finetune.evaluation.reproduction import finished_runs, listed

    paths = find_recipes(command.folder)
    if not paths:
        raise UserError(f"{command.folder}: no recipes (*.yaml) there.")
    runs = finished_runs(Path(command.runs))
    wrong = 0
    for path in paths:
        try:
            lines = list(listed(path, runs, configured))
        except (ValueError, OSError) as error:
            wrong, lines = wrong + 1, [f"error: {_line(error)}"]
        print("\n    ".join([str(path), *lines]))
    if wrong:
        raise UserError(f"{wrong} of {len(paths)} recipes cannot be read: see above.")


def _check(arguments: list[str]) -> None:
    of_recipe = recipe = None
    if arguments and not arguments[0].startswith("-"):
        from finetune.config.recipes import load_recipe, to_arguments

        if arguments[0].endswith((".yaml", ".yml")):
            recipe = load_recipe(arguments[0])
            of_recipe = configured(recipe)
            print(f"{arguments[0]}: a valid recipe for {recipe.task}")
            given = {"task": recipe.task, "data": of_recipe.data, "columns": of_recipe.columns}
            if of_recipe.max_length is not None:
                given["max_length"] = of_recipe.max_length
            arguments = [*to_arguments(given), *arguments[1:]]
        else:
            arguments = ["--data", *arguments]
    command = parse(
        CheckCommand, arguments, "check", more="finetune check RECIPE checks a recipe and its data."
    )
    if not command.data:
        raise UserError("check needs a recipe or --data.")
    command.require_legal()
    if recipe is not None and command.task != recipe.task:
        raise UserError(
            f"{recipe.path} is a recipe for {recipe.task}, not {command.task}: leave --task out."
        )
    from finetune.cli import commands

    commands.check(command, of_recipe)


def _predict(arguments: list[str]) -> None:
    run, rest = _first(arguments)
    rest = joined(_valued(rest, "--glue-submission", "auto"), "--text", "--pair")
    command = parse(
        PredictCommand, rest, "predict",
        more="finetune predict RUN --text TEXT, or --file FILE. RUN is the folder of a run or of a "
        "model in it.",
    )  # fmt: skip
    if run is None:
        raise UserError("predict needs the folder of a run or model: finetune predict RUN --text …")
    if command.glue_submission is not None:
        if command.text is not None:
            raise UserError("--glue-submission answers a whole test file: leave --text out.")
    elif (command.text is None) == (command.file is None):
        raise UserError("predict needs either --text or --file (`--file -` reads standard input).")
    if sum(argument.startswith("--text=") for argument in rest) > 1:
        raise UserError("--text is given twice: several texts are lines of a file, --file FILE.")
    from finetune.cli import commands

    commands.predict_texts(Path(run), command)


def _export(arguments: list[str]) -> None:
    run, rest = _first(arguments)
    command = parse(ExportCommand, rest, "export", more="finetune export RUN --output FOLDER")
    if run is None or command.output is None:
        raise UserError(
            "export needs the folder of a run or model and a new one: finetune export RUN "
            "--output FOLDER"
        )
    from finetune.cli import commands

    commands.export_model(Path(run), command.output)


def _score(arguments: list[str]) -> None:
    predictions, rest = _first(arguments)
    gold, rest = _first(rest)
    command = parse(ScoreCommand, rest, "score", more="finetune score PREDICTIONS GOLD")
    if predictions is None or gold is None:
        raise UserError("score needs two files: finetune score PREDICTIONS GOLD")
    from finetune.cli import commands

    commands.score_files(Path(predictions), gold, command)


def _analyse(arguments: list[str]) -> None:
    predictions, rest = _first(arguments)
    gold, rest = _first(rest)
    command = parse(
        AnalyseCommand, rest, "analyse",
        more="finetune analyse RUN, or finetune analyse PREDICTIONS GOLD.",
    )  # fmt: skip
    if predictions is None:
        raise UserError("analyse needs a run folder or predictions: finetune analyse FILE GOLD")
    if gold is not None and command.gold is not None:
        raise UserError(f"gold is named twice, as {gold} and as --gold {command.gold}.")
    from finetune.cli import commands

    commands.analyse_file(predictions, gold or command.gold, command)


def _compare(arguments: list[str]) -> None:
    first, rest = _first(arguments)
    second, rest = _first(rest)
    command = parse(
        CompareCommand, rest, "compare",
        more="finetune compare A B. Each is a file of predictions (JSON Lines, or words in columns "
        "with the answer last), the folder of a run, or several runs of one system: A1,A2,A3 or a "
        "folder of run folders.",
    )  # fmt: skip
    if first is None or second is None:
        raise UserError("compare needs two systems: finetune compare A B --gold FILE")
    from finetune.cli import commands

    commands.compare_files(first, second, command)


def _report(arguments: list[str]) -> None:
    folders: list[str] = []
    rest = arguments
    while (found := _first(rest))[0] is not None:
        folders.append(found[0])
        rest = found[1]
    command = parse(
        ReportCommand, rest, "report",
        more="finetune report RUN, or several to compare: finetune report A B C. Each is the "
        "folder of a run, or one of several seeds.",
    )  # fmt: skip
    if not folders:
        raise UserError("report needs the folder of a run: finetune report RUN")
    from finetune.reporting import write_report

    report = write_report(
        [Path(folder) for folder in folders],
        out=Path(command.out) if command.out else None,
        split=command.split,
        most_examples=command.examples,
    )
    for line in report.warnings:
        print(line, file=sys.stderr)
    print(report.path)


def _push(arguments: list[str]) -> None:
    folder, rest = _first(arguments)
    id, rest = _first(rest)
    command = parse(PushCommand, rest, "push", more="finetune push RUN OWNER/NAME")
    if folder is None or id is None:
        raise UserError(
            "push needs the folder of a run and an id on the hub: finetune push RUN OWNER/NAME"
        )
    from finetune.reporting.hub_upload import push

    print(push(Path(folder), id, private=command.private))


def _bench(arguments: list[str]) -> None:
    command = parse(BenchCommand, arguments, "bench")
    command.require_legal()
    from finetune.benchmark.command import run

    run(command)


def _valued(arguments: list[str], flag: str, value: str) -> list[str]:
    """The arguments, with a value for a flag that may stand alone."""
    result = []
    for argument, following in pairwise([*arguments, "--"]):
        result.append(argument)
        if argument == flag and following.startswith("--"):
            result.append(value)
    return result


def _first(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The leading positional argument, if there is one, and the rest."""
    if arguments and not arguments[0].startswith("--") and arguments[0] != "-h":
        return arguments[0], arguments[1:]
    return None, arguments


if __name__ == "__main__":
    main()
