"""Parsing: the arguments of a command become an instance of its dataclass.

argparse splits the arguments. The fields give each option its name, type, default and group
(``finetune.config.options``), and each value becomes an instance of the type of its field.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from finetune.cli.help import Option, options_of
from finetune.config.values import converted
from finetune.types import UserError, did_you_mean

ALIASES = {
    "--lr": "--learning-rate",
    "--out": "--output-dir",
    "--epochs": "--num-train-epochs",
    "--steps": "--max-steps",
    "--max-length": "--max-seq-length",
    "--model": "--model-name-or-path",
}
"""Names of options in the training scripts of transformers, which are accepted too."""
ONE_WORD = {"--data": "--file", "--file": "--data"}
"""Options that both name what a command reads: a command that has one also takes the other."""
OTHER_MEANING = {
    "--per-device-train-batch-size": "here a batch has the same examples on any number of devices: "
    "write --batch-size for the examples per step over all devices (--max-tokens bounds memory)",
    "--gradient-accumulation-steps": "steps over --max-tokens accumulate by themselves: write "
    "--batch-size for the examples per step over all devices",
    **dict.fromkeys(
        ("--train-file", "--validation-file", "--test-file"),
        "write --data train=FILE,validation=FILE,test=FILE",
    ),
}
"""Options of these scripts that have no equivalent, and the reason."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are errors of use."""

    def error(self, message: str) -> NoReturn:
        problem = re.sub(r"(--[\w-]+)(/--[\w-]+)+", r"\1", message)  # without its aliases
        problem = problem.removeprefix("argument ")
        problem = re.sub(
            r"^(--[\w-]+): expected one argument$",
            r"\1 needs a value (one that begins with a dash is written \1=VALUE)",
            problem,
        )
        problem = re.sub(
            r"^--(\S+): ignored explicit argument .*", r"--\1 takes no value, as --no-\1", problem
        )
        problem = re.sub(r"^the following arguments are required: (.*)", r"missing \1", problem)
        raise UserError(f"{self.prog}: {problem}: see {self.prog} --help.")


def parsed(name: str, kind: type[Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values that arguments give the fields of a command, by name of the field.

    Raises:
        UserError: An option is unknown or a required one missing, or a value is not legal.
    """
    values, rest = parsed_known(name, kind, arguments)
    if rest:
        given = rest[0].partition("=")[0]
        spelled = given.replace("_", "-")
        if spelled in OTHER_MEANING:
            raise UserError(f"{given}: {OTHER_MEANING[spelled]}.")
        names = [option.name for option in options_of(kind) if not option.positional]
        what = "unknown option" if given.startswith("-") else "unexpected argument"
        others = [alias for name, alias in ALIASES.items() if name in names]
        near = did_you_mean(spelled, [*names, *others]) if given[:1] == "-" else ""
        first = next((option.name for option in options_of(kind) if option.positional), None)
        if spelled in ("--model", "--run") and first in ("MODEL", "RUN"):
            near = f" Write the model without an option: finetune {name} {first}."
        elif what == "unexpected argument" and {"--model", "--data"} <= {*names}:
            near = " Write --model for an encoder, and --data for data."
        elif what == "unexpected argument" and "--file" in names:
            near = " Write --file for a file."
        raise UserError(
            f"finetune {name}: {what} {rest[0]!r:.60}.{near} See finetune {name} --help."
        )
    return values


def parsed_known(
    name: str, kind: type[Any], arguments: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the options of a command, and the arguments that it does not know."""
    options = options_of(kind)
    own = {option.name for option in options}
    parser = _Parser(prog=f"finetune {name}", add_help=False, allow_abbrev=False)
    for option in options:
        other = ONE_WORD.get(option.name)
        aliases = [ALIASES.get(option.name), None if other in own else other]
        _add(parser, option, [each for each in aliases if each is not None])
    found, rest = parser.parse_known_intermixed_args(list(arguments))
    by_field = {option.field: option for option in options}
    given = {field: value for field, value in vars(found).items() if value is not None}
    return {
        field: _typed(by_field[field], value)
        for field, value in given.items()
        if value != [] or not by_field[field].positional
    }, rest


def made(kind: type[Any], values: Mapping[str, Any], given: Any = None) -> Any:
    """Return a command with the values of its fields; others are as in ``given``, or unset."""
    arguments: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        before = None if given is None else getattr(given, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            arguments[field.name] = made(hints[field.name], values, before)
        elif field.name in values:
            arguments[field.name] = values[field.name]
        elif given is not None:
            arguments[field.name] = before
    return kind(**arguments)


def _add(parser: argparse.ArgumentParser, option: Option, aliases: Sequence[str]) -> None:
    """Add an option to a parser, without its default: what is not given has no value."""
    several = _tuple_of(option.kind) is not None
    if option.positional:
        number = ("+" if option.required else "*") if several else None if option.required else "?"
        default: Any = argparse.SUPPRESS if number in ("?", "*") else None
        # intermixed parsing resets positional arguments that are not there
        parser.add_argument(option.field, metavar=option.metavar, nargs=number, default=default)
        return
    names = [option.name, *aliases]
    names += [f"--{name[2:].replace('-', '_')}" for name in names if "-" in name[2:]]
    settings: dict[str, Any] = {"dest": option.field, "default": argparse.SUPPRESS}
    if option.kind is bool:
        parser.add_argument(*names, action=argparse.BooleanOptionalAction, **settings)
        return
    if option.switch:
        negative = [f"--no-{name[2:]}" for name in names]
        parser.add_argument(*negative, action="store_const", const="false", **settings)
        settings |= {"nargs": "?", "const": "true"}
    elif several:
        settings |= {} if option.mark.append else {"nargs": "*"}
    action = "append" if option.mark.append else "extend" if several else "store"
    if several and get_origin(_tuple_of(option.kind)) is tuple:
        settings["nargs"] = "*"
    parser.add_argument(*names, action=action, required=option.required, **settings)
    if option.name == "--format" and "json" in _choices(option.kind):
        parser.add_argument("--json", action="store_const", const="json", **settings)


def _typed(option: Option, value: Any) -> Any:
    """Return a value from the command line in the type of its option."""
    kind = option.kind
    if (inner := _tuple_of(kind)) is not None:
        if get_origin(inner) is tuple:
            return tuple(tuple(each) for each in value)
        if inner is int:  # `100,200` as well as `100 200`
            value = [number for each in value for number in each.split(",") if number]
        return tuple(converted(option.name, each, inner) for each in value)
    if isinstance(value, bool):
        return value
    kinds = [each for each in get_args(kind) if each is not NoneType]
    if bool in kinds and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return converted(option.name, value, kind)


def _choices(kind: Any) -> set[Any]:
    """Return the values of a literal, or of an optional one."""
    return {value for each in (kind, *get_args(kind)) for value in get_args(each)}


def _tuple_of(kind: Any) -> Any:
    """Return the type of the items of a tuple, or of an optional one; None for other types."""
    kinds = [each for each in (kind, *get_args(kind)) if get_origin(each) is tuple]
    is_tuple = get_origin(kind) is tuple or NoneType in get_args(kind)
    return get_args(kinds[0])[0] if kinds and is_tuple else None
