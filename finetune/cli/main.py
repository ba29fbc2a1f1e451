"""The command line: the list of commands, parsing by tyro, errors and exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, Union

import tyro

from finetune.cli.analyze import Analyze
from finetune.cli.bench import Bench
from finetune.cli.check import Check
from finetune.cli.compare import Compare
from finetune.cli.export import Export
from finetune.cli.predict import Predict
from finetune.cli.push import Push
from finetune.cli.recipes import Recipes
from finetune.cli.report import Report
from finetune.cli.score import Score
from finetune.cli.train import Classify, Ner, Nli, Run, Tag, expand_recipe
from finetune.config.tasks import RENAMED, flag
from finetune.types import UserError, did_you_mean

COMMANDS: dict[str, type[Any]] = {
    "classify": Classify,
    "nli": Nli,
    "tag": Tag,
    "ner": Ner,
    "run": Run,
    "recipes": Recipes,
    "check": Check,
    "predict": Predict,
    "export": Export,
    "score": Score,
    "analyze": Analyze,
    "compare": Compare,
    "report": Report,
    "push": Push,
    "bench": Bench,
}
"""The dataclass of each command: its options are the fields, and ``run()`` carries it out."""

OLD_NAMES = {"analyse": "analyze"} | {flag(old): flag(new) for old, new in RENAMED.items()}
"""Former names of commands and options, accepted for one release."""

DESCRIPTION = """Fine-tune pretrained text encoders.

`finetune COMMAND --help` lists the options of a command. A first run that needs no download:
finetune nli --model minilm --data examples/data/nli"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; print an error in one line and exit with 2, or 1 if it is a bug."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not have all characters
            stream.reconfigure(errors="backslashreplace")
    try:
        parse(sys.argv[1:] if arguments is None else arguments).run()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        if os.environ.get("FINETUNE_TRACEBACK"):
            raise
        if (line := user_message(error)) is not None:
            _fail(f"error: {line}", 2)
        with tempfile.NamedTemporaryFile(
            "w", prefix="finetune-", suffix=".log", delete=False, encoding="utf-8"
        ) as file:
            file.write(traceback.format_exc())
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        _fail(f"internal error: {problem}; traceback in {file.name}; please report", 1)


def parse(arguments: Sequence[str]) -> Any:
    """Return the dataclass of the command, with its options.

    Raises:
        UserError: If a value is out of range.
        SystemExit: After help, or with 2 after tyro's message about wrong arguments.
    """
    arguments = [_current_name(argument) for argument in arguments]
    if arguments == ["--version"]:
        from importlib.metadata import version

        print(version("finetune"))
        sys.exit(0)
    if arguments in ([], ["help"]):
        arguments = ["--help"]
    name = arguments[0]
    if not name.startswith("-") and name not in COMMANDS:
        raise UserError(
            f"unknown command {name!r}.{did_you_mean(name, COMMANDS)} Commands are "
            f"{', '.join(COMMANDS)}."
        )
    arguments, defaults = expand_recipe(arguments)
    commands = (
        Annotated[kind, tyro.conf.subcommand(name, **_default(defaults, name))]
        for name, kind in COMMANDS.items()
    )
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return tyro.cli(
                Union[tuple(commands)],  # type: ignore[arg-type]  # noqa: UP007
                prog="finetune",
                description=DESCRIPTION,
                args=arguments,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff),
            )
    except SystemExit as end:
        cause: BaseException | None = end
        while cause is not None:  # a range check of a configuration, which tyro would put in a box
            if isinstance(cause, UserError):
                raise cause from None
            cause = cause.__context__
        print(messages.getvalue(), end="", file=sys.stderr)
        raise


def user_message(error: Exception) -> str | None:
    """Return the line that explains an error of use; None for a bug."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror}."
    out_of_memory = (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"  # torch's on a GPU; on a CPU it has no class
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
    return "out of memory: lower --max-tokens, then --max-length." if out_of_memory else None


def _current_name(argument: str) -> str:
    """Replace the former name of a command or an option, with a note."""
    name, equals, value = argument.partition("=")
    if name not in OLD_NAMES:
        return argument
    print(f"note: {name} is now called {OLD_NAMES[name]}.", file=sys.stderr)
    return OLD_NAMES[name] + equals + value


def _default(defaults: dict[str, Any], name: str) -> dict[str, Any]:
    return {"default": defaults[name]} if name in defaults else {}


def _fail(text: str, code: int) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
