"""The command line: the list of commands, parsing by tyro, errors and exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Union

import tyro
from tyro.conf import subcommand

from finetune.cli.agreement import Agreement
from finetune.cli.analyze import Analyze
from finetune.cli.bench import Bench
from finetune.cli.check import Check
from finetune.cli.compare import Compare
from finetune.cli.convert import Convert
from finetune.cli.curve import Curve, parse_curve
from finetune.cli.distill import Distill
from finetune.cli.embed import Embed
from finetune.cli.export import Export
from finetune.cli.geometry import Geometry
from finetune.cli.map import Map
from finetune.cli.output import error_line, show
from finetune.cli.perplexity import Perplexity
from finetune.cli.predict import Predict
from finetune.cli.push import Push
from finetune.cli.recipes import Recipes
from finetune.cli.report import Report
from finetune.cli.review import Review
from finetune.cli.score import Score
from finetune.cli.search import Search, parse_search
from finetune.cli.serve import Serve
from finetune.cli.similarity import Similarity
from finetune.cli.suggest import Suggest
from finetune.cli.thresholds import Thresholds
from finetune.cli.train import TASKS, Multitask, Run, TaskCommand, expand_recipe
from finetune.cli.vocabulary import Vocabulary
from finetune.cli.wic import Wic
from finetune.cli.wsd import Wsd
from finetune.config.tasks import RENAMED, flag
from finetune.runtime.processes import (
    end_with_launcher,
    leave_launch,
    num_processes,
    process_index,
    require_honored_settings,
)
from finetune.runtime.progress import output_may_be_lost
from finetune.types import UserError, did_you_mean

COMMANDS: dict[str, type[Any]] = {
    **TASKS,
    **{
        kind.__name__.lower(): kind
        for kind in (Multitask, Run, Curve, Search, Distill, Recipes, Check, Convert, Agreement,
                     Suggest, Review, Predict, Embed, Similarity, Geometry, Map, Wsd, Wic, Serve,
                     Export, Score, Analyze, Compare, Thresholds, Report, Push, Vocabulary,
                     Perplexity, Bench)
    },
}  # fmt: skip
"""The dataclass of each command: its options are the fields, and ``run()`` carries it out."""

OLD_NAMES = {"analyse": "analyze"} | {flag(old): flag(new) for old, new in RENAMED.items()}
"""Former names of commands and options, accepted for one release."""

TRANSFORMERS_NAMES = {
    "--learning-rate": "--lr", "--output-dir": "--out", "--num-train-epochs": "--epochs",
    "--max-steps": "--steps", "--max-seq-length": "--max-length",
    "--model-name-or-path": "--model",
}  # fmt: skip
"""Options of the training scripts of transformers that the commands for training accept."""

OTHER_MEANING = {
    "--per-device-train-batch-size": "here a batch has the same examples on any number of devices: "
    "write --batch-size for the examples per step over all devices (--max-tokens bounds memory)",
    "--gradient-accumulation-steps": "steps over --max-tokens accumulate by themselves: write "
    "--batch-size for the examples per step over all devices",
}
"""Options of these scripts that have no equivalent, and the reason."""

DESCRIPTION = """Fine-tune pretrained text encoders.

`finetune COMMAND --help` lists the options of a command. A first run that needs no download:
finetune nli --model minilm --data examples/data/nli"""


MARKERS = (tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; print an error in one line and exit with 2, or 1 if it is a bug."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not have all characters
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    command, main_process = None, process_index() == 0
    try:
        with contextlib.nullcontext() if main_process else _no_output():
            parsed = parse(sys.argv[1:] if arguments is None else arguments)
            alone = num_processes() > 1 and not _shares_work(parsed)
        if alone and not main_process:
            return
        if alone:
            leave_launch()
        command = parsed
        with contextlib.nullcontext() if main_process else _no_output(errors=True):
            _run(command)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        show("interrupted", error=True)
        sys.exit(130)
    except Exception as error:
        line, code = error_line(error)
        if main_process or command is not None:  # all processes have the same arguments
            show(line, error=True)
        sys.exit(code)


@contextlib.contextmanager
def _no_output(errors: bool = False) -> Iterator[None]:
    """Context without standard output, and without standard error unless ``errors``."""
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stdout(nothing):
        with contextlib.nullcontext() if errors else contextlib.redirect_stderr(nothing):
            yield


def _run(command: Any) -> None:
    """Run a command, and leave the other processes in the end."""
    trains = isinstance(command, TaskCommand | Multitask | Curve | Search | Distill) or (
        isinstance(command, Check) and command.label_errors
    )
    try:
        with contextlib.ExitStack() as stack:
            if trains:
                stack.enter_context(output_may_be_lost())
            if num_processes() > 1:
                end_with_launcher()
                from finetune.runtime.launch import lost_processes

                stack.enter_context(lost_processes())
            command.run()
    finally:
        if "torch" in sys.modules:
            from finetune.runtime.launch import destroy_process_group

            destroy_process_group()


def _shares_work(command: Any) -> bool:
    """Return whether all processes of a launch run a command; else the main process runs it."""
    require_honored_settings()
    label_errors = isinstance(command, Check) and command.label_errors
    if label_errors or isinstance(command, Bench):
        name = "--label-errors" if label_errors else "bench"
        raise UserError(f"{name} runs in one process: start it without accelerate or torchrun.")
    return isinstance(command, Predict | Multitask) or (
        isinstance(command, TaskCommand) and not command.dry_run
    )


def parse(arguments: Sequence[str]) -> Any:
    """Return the dataclass of the command, with its options.

    Raises:
        UserError: If a value is out of range.
        SystemExit: After help, or with 2 after tyro's message about wrong arguments.
    """
    name, *rest = [_current_name(argument) for argument in arguments] or ["help"]
    if name == "curve" and rest and rest[0] in TASKS:
        return parse_curve(rest[0], rest[1:], parse)
    if name == "search" and rest and rest[0] in TASKS:
        return parse_search(rest[0], rest[1:], parse)
    if name in (*TASKS, "run", "check"):
        rest = _translated(rest)
    if name == "--version":
        from importlib.metadata import version

        show(version("finetune"))
        sys.exit()
    if name in ("help", "-h", "--help") or name.startswith("--tyro-"):  # shell completion
        commands: Any = Union[*(Annotated[k, subcommand(n)] for n, k in COMMANDS.items())]
        given = [name, *rest] if name.startswith("--tyro-") else ["-h"]
        tyro.cli(commands, prog="finetune", description=DESCRIPTION, args=given, config=MARKERS)
    if name not in COMMANDS:
        raise UserError(
            f"unknown command {name!r}.{did_you_mean(name, COMMANDS)} Commands are "
            f"{', '.join(COMMANDS)}."
        )
    if name in ("analyze", "compare"):
        rest = ["--format=json" if argument == "--json" else argument for argument in rest]
    name, rest, recipe = expand_recipe(name, rest)
    default = tyro.MISSING_NONPROP if recipe is None else recipe
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return tyro.cli(
                COMMANDS[name], prog=f"finetune {name}", args=rest, default=default, config=MARKERS
            )
    except SystemExit as end:
        cause: BaseException | None = end
        while cause is not None:  # a range check of a configuration, which tyro would put in a box
            if isinstance(cause, UserError):
                raise cause from None
            cause = cause.__context__
        if text := messages.getvalue():
            show(text.rstrip("\n"), error=True)
        raise


def _current_name(argument: str) -> str:
    """Replace the former name of a command or an option, with a note."""
    name, equals, value = argument.partition("=")
    if name not in OLD_NAMES:
        return argument
    show(f"note: {name} is now called {OLD_NAMES[name]}.", error=True)
    return OLD_NAMES[name] + equals + value


def _translated(arguments: list[str]) -> list[str]:
    """Replace the options of the training scripts of transformers."""
    translated, files, rest = [], {}, iter(arguments)
    for argument in rest:
        given, equals, value = argument.partition("=")
        name = given.replace("_", "-") if given.startswith("--") else given
        if name in OTHER_MEANING:
            raise UserError(f"{given}: {OTHER_MEANING[name]}.")
        if name in ("--train-file", "--validation-file", "--test-file"):
            files[name[2:-5]] = value if equals else next(rest, "")
        else:
            translated.append(TRANSFORMERS_NAMES.get(name, given) + equals + value)
    if files and any(argument.split("=")[0] == "--data" for argument in translated):
        raise UserError(
            f"--data names the files of all splits: leave --{next(iter(files))}-file out."
        )
    data = ",".join(f"{split}={file}" for split, file in files.items())
    return [*translated, f"--data={data}"] if files else translated
