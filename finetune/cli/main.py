"""The command line: the list of commands, parsing by tyro, errors and exit codes."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tyro

import finetune
from finetune import registry
from finetune.cli.command import Command
from finetune.cli.output import error_line, show
from finetune.cli.overview import overview
from finetune.config.tasks import CONFIGS
from finetune.registry import LISTS, Registry
from finetune.runtime.processes import (
    ReportedError,
    end_with_launcher,
    leave_launch,
    num_processes,
    process_index,
    require_honored_settings,
)
from finetune.runtime.progress import output_may_be_lost
from finetune.types import UserError, did_you_mean

HELP = ("-h", "--help", "--help-all")
"""The options for the help of a command; the last lists all options with their whole texts."""

OPTIONS_OF_ALL = ("--quiet", "--verbose")
"""The options of every command: results and errors only; all messages of libraries, tracebacks."""

COMMANDS = (*CONFIGS, *registry.COMMANDS)
"""The names of all commands."""

TRANSFORMERS_NAMES = {
    "--learning-rate": "--lr",
    "--output-dir": "--out",
    "--num-train-epochs": "--epochs",
    "--max-steps": "--steps",
    "--max-seq-length": "--max-length",
    "--model-name-or-path": "--model",
}
"""Options of the training scripts of transformers that the commands for training accept."""

OTHER_MEANING = {
    "--per-device-train-batch-size": "here a batch has the same examples on any number of devices: "
    "write --batch-size for the examples per step over all devices (--max-tokens bounds memory)",
    "--gradient-accumulation-steps": "steps over --max-tokens accumulate by themselves: write "
    "--batch-size for the examples per step over all devices",
}
"""Options of these scripts that have no equivalent, and the reason."""

MARKERS = (tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; print an error in one line and exit with 2, or 1 if it is a bug."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not have all characters
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if arguments is None:  # this is the program: its imports make a million values that stay
        gc.set_threshold(50_000, 50, 50)
    command, main_process = None, process_index() == 0
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        given, output = _with_verbosity(given)
        with contextlib.nullcontext() if main_process else _no_output():
            parsed = parse(given)
            alone = num_processes() > 1 and not _shares_work(parsed)
        if alone and not main_process:
            return
        if alone:
            leave_launch()
        command = parsed
        with contextlib.nullcontext() if main_process else _no_output(errors=True), output:
            _run(command)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        show("interrupted", error=True)
        sys.exit(130)
    except ReportedError:
        sys.exit(2)
    except Exception as error:
        logging.getLogger(__name__).info("the error:", exc_info=error)  # with --verbose
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


def _with_verbosity(
    arguments: list[str],
) -> tuple[list[str], contextlib.AbstractContextManager[None]]:
    """Return the arguments without ``OPTIONS_OF_ALL``, and the context to run their command in."""
    quiet, verbose = (option in arguments for option in OPTIONS_OF_ALL)
    if quiet and verbose:
        raise UserError("--quiet and --verbose exclude each other: leave one out.")
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    rest = [argument for argument in arguments if argument not in OPTIONS_OF_ALL]
    return rest, _errors_only() if quiet else contextlib.nullcontext()


@contextlib.contextmanager
def _errors_only() -> Iterator[None]:
    """Context without progress and notes, which are on standard error."""
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stderr(nothing):
        yield


def _run(command: Command) -> None:
    """Run a command, and leave the other processes in the end."""
    seed = vars(command).get("seed")
    if seed is not None and not 0 <= seed < 2**32:
        raise UserError(f"--seed {seed}: must be from 0 to {2**32 - 1}.")
    try:
        with contextlib.ExitStack() as stack:
            if command.trains:
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


def _shares_work(command: Command) -> bool:
    """Return whether all processes of a launch run a command; else the main process runs it."""
    require_honored_settings()
    if name := command.single_process:
        raise UserError(f"{name} runs in one process: start it without accelerate or torchrun.")
    return command.shares_work


def command_class(name: str) -> type[Any]:
    """Import the dataclass of a command: its options are the fields."""
    if name not in CONFIGS:
        return Registry[type[Any]](registry.COMMANDS)[name]
    from finetune.cli.train import task_command

    return task_command(name)


def parse(arguments: Sequence[str]) -> Any:
    """Return the dataclass of the command, with its options.

    Raises:
        UserError: If a value is out of range.
        SystemExit: After help, or with 2 after tyro's message about wrong arguments.
    """
    name, *rest = arguments or ["help"]
    if (text := _information(name, rest)) is not None:
        show(text)
        sys.exit(0)
    _require_command(name)
    rest = ["--format=json" if argument == "--json" else argument for argument in rest]
    rest = _with_resume(rest)
    if name in ("curve", "search") and rest and rest[0] in CONFIGS:
        return _parse_repeated(name, rest)
    if name in (*CONFIGS, "run", "check"):
        rest = _translated(rest)
    if name == "run" and (listed := _recipe_list(rest)) is not None:
        path, key = listed
        rest.remove(path)
        return Registry[Callable[..., Command]]({key: LISTS[key].parse})[key](path, rest, parse)
    default: Any = tyro.MISSING_NONPROP
    if name in (*CONFIGS, "run"):
        from finetune.cli.train import expand_recipe

        name, rest, recipe = expand_recipe(name, rest)
        default = tyro.MISSING_NONPROP if recipe is None else recipe
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return tyro.cli(
                command_class(name),
                prog=f"finetune {name}",
                args=rest,
                default=default,
                config=MARKERS,
            )
    except SystemExit as end:
        cause: BaseException | None = end
        while cause is not None:  # a range check of a configuration, which tyro would put in a box
            if isinstance(cause, UserError):
                raise cause from None
            cause = cause.__context__
        if text := messages.getvalue():
            show(_without_none(text.rstrip("\n")), error=True)
        raise


def _without_none(message: str) -> str:
    """Return a message of tyro without `{None}|`, at the same width."""
    return re.sub(r"\{None\}\|(\w+)", lambda found: found[1] + " " * len("{None}|"), message)


def _information(name: str, rest: list[str]) -> str | None:
    """Return the version, the help or the completion that the arguments ask for."""
    if name == "--version":
        return str(finetune.__version__)
    if name in ("help", *HELP):
        return overview()
    option, _, shell = name.partition("=")
    if option == "--print-completion":
        return _completion(shell or "".join(rest))
    if wanted := [argument for argument in rest if argument in HELP]:
        others = [argument for argument in rest if argument not in HELP]
        return _help(name, others, everything="--help-all" in wanted)
    return None


def _completion(shell: str) -> str:
    """Return the script that completes commands and options in a shell."""
    from finetune.cli.completion import completed_options, completion

    return completion(shell, {n: completed_options(command_class(n), n) for n in COMMANDS})


def _require_command(name: str) -> None:
    if name not in COMMANDS:
        raise UserError(
            f"unknown command {name!r}.{did_you_mean(name, COMMANDS)} Commands are "
            f"{', '.join(COMMANDS)}."
        )


def _help(name: str, rest: list[str], *, everything: bool) -> str:
    """Return the help of a command; with a recipe, the help of its task with its values."""
    from finetune.cli.help import command_help

    _require_command(name)
    given = None
    if name == "run" and rest and (listed := _recipe_list(rest)) is not None:
        key = listed[1]
        kind = Registry[type[Any]]({key: LISTS[key].command})[key]
        return command_help("run", kind, None, everything=everything)
    if name in CONFIGS or (name == "run" and rest):
        from finetune.cli.train import expand_recipe

        name, _, given = expand_recipe(name, rest)
    kind = command_class(name)
    return command_help(name, kind, given, everything=everything)


def _recipe_list(rest: list[str]) -> tuple[str, str] | None:
    """Return the file that `finetune run` names, and its key of ``LISTS``; None for a recipe."""
    from finetune.cli.train import named_recipe
    from finetune.config.recipes import listed_recipes

    path = named_recipe(rest)
    key = listed_recipes(path) if path is not None else None
    return None if path is None or key is None else (path, key)


def _parse_repeated(name: str, arguments: list[str]) -> Command:
    """Return the command that trains a task many times."""
    if name == "curve":
        from finetune.cli.curve import parse_curve

        return parse_curve(arguments[0], arguments[1:], parse)
    from finetune.cli.search import parse_search

    return parse_search(arguments[0], arguments[1:], parse)


def _with_resume(arguments: list[str]) -> list[str]:
    """Join `--resume` and its optional value: `--resume=True` or `--resume=auto`."""
    switches, joined = {"--resume": "--resume=True", "--no-resume": "--resume=False"}, list[str]()
    for argument in arguments:
        if argument == "auto" and joined[-1:] == ["--resume=True"]:
            joined[-1] = "--resume=auto"
        else:
            joined.append(switches.get(argument, argument))
    return joined


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
