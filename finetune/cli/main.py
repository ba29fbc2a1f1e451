"""The command line: the list of commands, parsing, errors and exit codes."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout
from typing import IO, Any, cast

import finetune
from finetune import registry
from finetune.cli.help import command_help, options_of, overview
from finetune.cli.options import Command
from finetune.cli.output import show
from finetune.cli.parsing import filled, is_option, parsed
from finetune.config.recipes import is_multitask, is_suite
from finetune.config.tasks import CONFIGS
from finetune.registry import SUITE_COMMAND, SUITE_PARSE, imported
from finetune.runtime.processes import (
    LAUNCH_VARIABLES,
    ReportedError,
    end_with_launcher,
    num_processes,
    process_index,
    require_honored_settings,
)
from finetune.runtime.progress import output_may_be_lost
from finetune.runtime.terminal import error_line
from finetune.types import UserError, did_you_mean

HELP = ("-h", "--help", "--help-all")
"""The options for the help of a command; the last lists all options with their whole texts."""

OPTIONS_OF_ALL = ("--quiet", "--verbose")
"""The options of every command: results and errors only; all messages of libraries, tracebacks."""

OTHER_COMMANDS = {
    "train": "the task is the command: finetune classify, nli, tag, ner …",
    "fit": "the task is the command: finetune classify, nli, tag, ner …",
    "evaluate": "finetune score RUN --data FILE scores a model, finetune score FILE predictions",
    "eval": "finetune score RUN --data FILE scores a model, finetune score FILE predictions",
    "infer": "finetune predict RUN --file FILE",
    "test": "finetune predict RUN --file FILE",
    "list": "finetune run lists recipes, finetune --help commands",
}
"""Commands of other tools, and what to write here."""

COMMANDS = (*CONFIGS, *registry.COMMANDS)
"""The names of all commands."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; print an error in one line and exit with 2, or 1 if it is a bug."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not have all characters
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if arguments is None:  # this is the program: its imports make a million values that stay
        gc.set_threshold(50_000, 50, 50)
        # Threads that wait by spinning stop each other where other programs use the processor.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    command, main_process = None, process_index() == 0
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        words, output = _with_verbosity(words)
        with _without(*(() if main_process else (redirect_stdout, redirect_stderr))):
            parsed = parse(words)
            if num_processes() > 1:
                require_honored_settings()
            alone = num_processes() > 1 and not parsed.shares_work
        if alone and not main_process:
            return
        for variable in LAUNCH_VARIABLES if alone else ():  # as if it had been started alone
            os.environ.pop(variable, None)
        command = parsed
        with _without(*(() if main_process else (redirect_stdout,))), output:
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
        line, code = error_line(error)
        if main_process or command is not None:  # all processes have the same arguments
            show(line, error=True)
        sys.exit(code)


@contextlib.contextmanager
def _without(*streams: Callable[[IO[str]], AbstractContextManager[Any]]) -> Iterator[None]:
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.ExitStack() as stack:
        for redirect in streams:
            stack.enter_context(redirect(nothing))
        yield


def _with_verbosity(arguments: list[str]) -> tuple[list[str], AbstractContextManager[None]]:
    quiet, verbose = (option in arguments for option in OPTIONS_OF_ALL)
    if quiet and verbose:
        raise UserError("--quiet and --verbose exclude each other: leave one out.")
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    remaining = [argument for argument in arguments if argument not in OPTIONS_OF_ALL]
    return remaining, _without(*((redirect_stderr,) if quiet else ()))


def _run(command: Command) -> None:
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


def command_class(name: str) -> type[Any]:
    """Import the dataclass of a command: its options are the fields."""
    if name not in CONFIGS:
        return cast("type[Any]", imported(registry.COMMANDS[name]))
    from finetune.cli.train import task_command

    return task_command(name)


def parse(arguments: Sequence[str]) -> Any:
    """Parse the arguments into the dataclass of a command.

    Raises:
        UserError: If an option or a value is wrong.
        SystemExit: After help.
    """
    name, *words = arguments or ["help"]
    if (text := _information(name, words)) is not None:
        show(text)
        sys.exit(0)
    _require_command(name)
    path = words[0] if name == "run" and words and not is_option(words[0]) else None
    if path is not None and is_suite(path):
        return imported(SUITE_PARSE)(path, words[1:])
    cls, defaults = _command(name, words, path)
    values = parsed(name if path is None else f"run {path}", cls, words)
    return filled(cls, values, defaults)


def _command(
    name: str, arguments: Sequence[str], recipe: str | None
) -> tuple[type[Any], Command | None]:
    if name == "search" and arguments and arguments[0] in CONFIGS:
        from finetune.cli.search import SearchCommand
        from finetune.cli.train import task_command

        return task_command(arguments[0], SearchCommand), None
    if recipe is None:
        return command_class(name), None
    from finetune.cli.run import MultitaskOptions, recipe_command

    if is_suite(recipe):
        return imported(SUITE_COMMAND), None
    if is_multitask(recipe):
        return MultitaskOptions, None
    defaults = recipe_command(recipe)
    return type(defaults), defaults


def _information(name: str, arguments: list[str]) -> str | None:
    if name == "--version":
        return str(finetune.__version__)
    if name == "help" and arguments:
        name, arguments = arguments[0], [*arguments[1:], "--help"]
    if name in ("help", *HELP):
        return overview()
    option, _, shell = name.partition("=")
    if option == "--print-completion":
        from finetune.cli.completion import completion

        options = {name: options_of(command_class(name)) for name in COMMANDS}
        return completion(shell or "".join(arguments), options)
    if wanted := [argument for argument in arguments if argument in HELP]:
        remaining = [argument for argument in arguments if argument not in HELP]
        _require_command(name)
        recipe = remaining[0] if name == "run" and remaining else None
        cls, defaults = _command(name, [], recipe)
        return command_help(name, cls, defaults, everything="--help-all" in wanted)
    return None


def _require_command(name: str) -> None:
    if name not in COMMANDS:
        if name in OTHER_COMMANDS:
            raise UserError(f"there is no command {name!r}: {OTHER_COMMANDS[name]}.")
        raise UserError(
            f"unknown command {name!r}.{did_you_mean(name, COMMANDS)} Commands are "
            f"{', '.join(COMMANDS)}."
        )
