"""Parsing: the arguments of a command become an instance of its dataclass.

One argparse parser for each command splits the arguments, and completes words in shells. The fields
give each option its name, type, default and group (``finetune.config.options``), and each value
becomes an instance of the type of its field.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

from finetune.cli.help import Option, first_sentence, options_of, values_of
from finetune.config.options import declared_fields
from finetune.config.tasks import ADVICE, CONFIGS, OTHER_NAMES, flag, setting_types
from finetune.config.values import converted
from finetune.types import UserError, did_you_mean

OTHER_OPTIONS = {
    **{flag(other): flag(name) for other, name in OTHER_NAMES.items()},
    "--data": "--file",
    "--file": "--data",
    "--json": "--format=json",
}
"""Other names of options, where a command has no option of this name: those of the training scripts
of transformers, and of what a command reads."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are errors of use."""

    def error(self, message: str) -> NoReturn:
        problem = message.removeprefix("argument ")
        raise UserError(f"{self.prog}: {problem}: see {self.prog} --help.")


def parsed(name: str, cls: type[Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Parse arguments into the values of a command's fields, by name.

    Raises:
        UserError: An option is unknown or a required one missing, or a value is not legal.
    """
    options = options_of(cls)
    values, unknown = parsed_known(name, options, arguments)
    if unknown:
        first = next(filter(is_option, unknown), unknown[0])
        what = "unknown option" if is_option(first) else "unexpected argument"
        names = [option.name for option in options if not option.positional]
        names += [other for other, option in OTHER_OPTIONS.items() if option in names]
        option, end = first.partition("=")[0], "."
        setting = option[2:].replace("-", "_")
        setting = OTHER_NAMES.get(setting, setting)
        config = declared_fields(cls)["config"].type if "config" in declared_fields(cls) else None
        of_task = {*setting_types(config)} - {*config.unused} if config else set[str]()
        if of_task and setting in ADVICE:
            end = f": {ADVICE[setting]}."
        elif setting in of_task:
            end = f": write {setting} in a recipe, in Python, or in --space of finetune search."
        elif is_option(first):
            bare = [option.lstrip("-") for option in names]  # the dashes are no likeness
            end += did_you_mean(option.lstrip("-"), bare).replace("'", "'--", 1)
        else:
            inputs = ("--data", "--file") if Path(first).exists() else ("--text",)
            if named := [option.name for option in options if option.name in inputs]:
                end = f": write {named[0]} {shlex.quote(first):.60}."
        raise UserError(f"finetune {name}: {what} {first!r:.60}{end} See finetune {name} --help.")
    missing = [option for option in options if option.required and option.field not in values]
    if missing:
        listed = ", ".join(option.spelling for option in missing)
        raise UserError(f"finetune {name}: missing {listed}: see finetune {name} --help.")
    return values


def is_option(argument: str) -> bool:
    """Whether an argument is an option, not a value such as `-` or `-1`."""
    return argument[:1] == "-" and not re.fullmatch(r"-(\d*\.?\d+)?", argument)


def parsed_known(
    name: str, options: Sequence[Option], arguments: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Parse known options into values by field, and keep all other arguments."""
    parser = _Parser(prog=f"finetune {name}", add_help=False, allow_abbrev=False)
    add_options(parser, options)
    names = {option.name for option in options}
    words = [_spelled(word, names) for word in arguments]
    namespace, unknown = parser.parse_known_intermixed_args(words)
    fields = {option.field: option for option in options}
    return {field: _typed(fields[field], v) for field, v in vars(namespace).items()}, unknown


def _spelled(word: str, names: Collection[str]) -> str:
    name, mark, value = word.partition("=")
    if not name.startswith("--"):
        return word
    name = name.replace("_", "-")
    other = OTHER_OPTIONS.get(name, "")
    has_other = name not in names and other.partition("=")[0] in names
    return f"{other if has_other else name}{mark}{value}"


def add_options(
    parser: argparse.ArgumentParser, options: Sequence[Option], *, complete: Any = None
) -> None:
    """Add the options and positional arguments of a command to a parser.

    ``complete`` is what completes values that cannot be listed; None lists no values.
    """
    for option in options:
        settings: dict[str, Any] = {"default": argparse.SUPPRESS}
        names = [option.field if option.positional else option.name]
        if option.positional:
            settings |= {"metavar": option.name, "nargs": "*" if option.item else "?"}
        else:
            settings["dest"] = option.field
        if option.type is bool:
            settings["action"] = argparse.BooleanOptionalAction
        elif option.switch:
            settings |= {"nargs": "?", "const": "true"}
        elif option.item and not option.positional:
            settings |= {"nargs": "*", "action": "extend"}
        added = parser.add_argument(*names, **settings)
        if complete is None:
            continue
        added.help = first_sentence(option.text).replace("%", "%%")
        if added.nargs != 0:
            added.choices = tuple(CONFIGS) if option.name == "TASK" else values_of(option.type)
            added.choices = added.choices or None
            if added.choices is None:
                vars(added)["complete"] = complete


def filled(cls: type[Any], values: Mapping[str, Any], defaults: Any = None) -> Any:
    """Build a command from values of its fields; ``defaults`` is a command with all others."""
    arguments: dict[str, Any] = {}
    for name, declared in declared_fields(cls).items():
        default = None if defaults is None else vars(defaults)[name]
        if dataclasses.is_dataclass(declared.type):
            arguments[name] = filled(cast("type[Any]", declared.type), values, default)
        elif name in values:
            arguments[name] = values[name]
        elif defaults is not None:
            arguments[name] = default
    return cls(**arguments)


def _typed(option: Option, value: Any) -> Any:
    if option.item is int:  # `100,200` as well as `100 200`
        value = [number for item in value for number in item.split(",") if number]
    return converted(option.name, value, option.type, text=True)
