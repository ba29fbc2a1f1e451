"""Arguments of the command line, read into dataclasses by tyro; its errors in one line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Sequence
from types import MappingProxyType, UnionType
from typing import Any, get_args, get_type_hints

from finetune.config.field_docs import field_docs
from finetune.config.tasks import flag
from finetune.types import UserError, perhaps

FRAME = str.maketrans("╭╮╰╯│", " " * 5)
"""What tyro's box is drawn with; where only ASCII can be printed, with blanks and dashes."""


def parse(kind: type[Any], arguments: Sequence[str], command: str, *, more: str = "") -> Any:
    """Read arguments into a dataclass; ValueError says what is wrong and what is legal.

    ``more`` is help for what tyro does not see: positional arguments and flags taken before.
    """
    import tyro

    docs = field_docs(kind)
    for entry in dataclasses.fields(kind):
        entry.metadata = MappingProxyType({"help": docs[entry.name]})
    # Ranges are checked below: what __post_init__ says would end up in a box of tyro's.
    unchecked = type(kind.__name__, (kind,), {"__post_init__": lambda self: None})
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            read = tyro.cli(
                unchecked,
                args=list(arguments),
                prog=f"finetune {command}",
                description=f"{kind.__doc__}{chr(10) * 2 if more else ''}{more}",
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as end:
        if not end.code:  # after --help
            raise
        line = _in_one_line(said.getvalue(), kind, arguments)
        raise UserError(f"{line} `finetune {command} --help` lists all options.") from None
    names = [entry.name for entry in dataclasses.fields(kind)]
    return kind(**{name: getattr(read, name) for name in names})


def _in_one_line(box: str, kind: type[Any], arguments: Sequence[str]) -> str:
    """What tyro's box of several lines says, without the help that it repeats."""
    text = " ".join(box.translate(FRAME).split())
    said = re.split(r" ?[─-]{4,} ?", text)[1]  # behind the title
    options = [flag(entry.name) for entry in dataclasses.fields(kind)]
    if said.startswith("Unrecognized options: "):
        unknown = [argument for argument in arguments if argument.partition("=")[0] not in options]
        wrong = next((name for name in unknown if name.startswith("--")), said.split(": ")[1])
        return f"{wrong} is no option.{perhaps(wrong, options)}"
    if wrong_value := re.match(r"Error parsing (--[\w-]+): ", said):
        name = wrong_value[1]
        value = next((_value(arguments, at) for at, a in enumerate(arguments)
                      if a.partition("=")[0] == name), "")  # fmt: skip
        return f"{name} must be {_wanted(kind, name)}, not {value!r}."
    if said.startswith("Missing value") and (missing := re.search(r"--[\w-]+", said)):
        return f"{missing[0]} needs a value."
    return said[0].lower() + said[1:].rstrip(".") + "."


def _value(arguments: Sequence[str], at: int) -> str:
    """The value of the flag at a place of the arguments: behind a =, or the next argument."""
    _, equals, value = arguments[at].partition("=")
    return value if equals else " ".join(arguments[at + 1 : at + 2])


def _wanted(kind: type[Any], name: str) -> str:
    """What an option takes, to read."""
    hint = get_type_hints(kind).get(name.lstrip("-").replace("-", "_"))
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    for number, words in ((float, "a number"), (int, "a whole number")):
        if number in kinds:
            return words
    return "one of its legal values"


def joined(arguments: Sequence[str], *flags: str) -> list[str]:
    """The arguments, these flags and their values as one: a value may then begin with a dash.

    >>> joined(["--text", "-1", "--file", "x"], "--text")
    ['--text=-1', '--file', 'x']
    """
    result: list[str] = []
    for argument in arguments:
        if result and result[-1] in flags:
            result[-1] += f"={argument}"
        else:
            result.append(argument)
    return result
