"""Parsing: the arguments of a command become an instance of its dataclass.

One argparse parser for each command splits the arguments, prints the help, and completes words in
shells. The fields give each option its name, type, default and group (``finetune.config.options``),
and each value becomes an instance of the type of its field.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn, get_origin

from finetune.cli.help import Option, first_sentence, options_of, type_hints, values_of
from finetune.config.tasks import CONFIGS, OTHER_NAMES, flag
from finetune.config.values import converted
from finetune.types import UserError, did_you_mean

OPTION_ALIASES = {flag(name): flag(other) for other, name in OTHER_NAMES.items()}
"""Names of options in the training scripts of transformers, which are accepted too."""
ONE_WORD = {"--data": "--file", "--file": "--data"}
"""Options that both name what a command reads: a command that has one also takes the other."""
NO_OPTION = "\0"
"""Begins an argument after `--` for argparse, which loses the dashes before several arguments."""
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
        raise UserError(f"{self.prog}: {problem}: see {self.prog} --help.")


def before_dashes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments at `--`, after which nothing is an option."""
    index = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:index]], [*arguments[index + 1 :]]


def parsed(name: str, cls: type[Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Parse arguments into the values of a command's fields, by name.

    Raises:
        UserError: An option is unknown or a required one missing, or a value is not legal.
    """
    options = options_of(cls)
    values, unknown = parsed_known(name, options, arguments)
    if unknown:
        refuse(name, options, unknown)
    missing = [option for option in options if option.required and option.field not in values]
    if missing:
        names = ", ".join(
            option.metavar if option.positional else option.name for option in missing
        )
        raise UserError(f"finetune {name}: missing {names}: see finetune {name} --help.")
    return values


def refuse(name: str, options: Sequence[Option], arguments: Sequence[str]) -> NoReturn:
    """Raise UserError for arguments of a command that none of its options takes."""
    first = next(filter(is_option, arguments), arguments[0])
    typed = first.partition("=")[0]
    spelled = typed.replace("_", "-")
    if spelled in OTHER_MEANING:
        raise UserError(f"{typed}: {OTHER_MEANING[spelled]}.")
    names = [option.name for option in options if not option.positional]
    what = "unknown option" if is_option(first) else "unexpected argument"
    aliases = [alias for name, alias in OPTION_ALIASES.items() if name in names]
    near = did_you_mean(spelled, [*names, *aliases]) if is_option(first) else ""
    positional = next((option.name for option in options if option.positional), None)
    if spelled in ("--model", "--run") and positional in ("MODEL", "RUN"):
        near = f" Write the model without an option: finetune {name} {positional}."
    elif what == "unknown option" and name == "run":
        near += f" The recipe comes first: finetune {name} RECIPE --option value."
    elif what == "unexpected argument" and {"--model", "--data"} <= {*names}:
        near = " Write --model for an encoder, and --data for data."
    elif what == "unexpected argument" and "--file" in names:
        near = " Write --file for a file."
    raise UserError(f"finetune {name}: {what} {first!r:.60}.{near} See finetune {name} --help.")


def is_option(argument: str) -> bool:
    """Whether an argument is an option, not a value such as `-` or `-1`."""
    return argument[:1] == "-" and not re.fullmatch(r"-(\d*\.?\d+)?", argument)


def parsed_known(
    name: str, options: Sequence[Option], arguments: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Parse known options into values by field, and keep all other arguments."""
    words, after = before_dashes(arguments)
    for option in filter(lambda option: option.switch, options):  # its value may be left out
        legal = {"true", "false", *values_of(option.type)}
        for index, word in enumerate(words):
            if word == option.name and not legal & {*words[index + 1 : index + 2]}:
                words[index] = f"{word}=true"
    words += [NO_OPTION + word for word in after]
    has_texts = any(option.name == "--text" and option.item for option in options)
    if has_texts and words and not is_option(words[0]):
        words = [*_with_option_before_each_text(words)]
    parser = _Parser(prog=f"finetune {name}", add_help=False, allow_abbrev=False)
    add_options(parser, options)
    namespace, unknown = parser.parse_known_intermixed_args(words)
    fields = {option.field: option for option in options}
    values = dict[str, Any]()
    for field, value in vars(namespace).items():
        if isinstance(value, str):
            value = value.removeprefix(NO_OPTION)
        elif isinstance(value, list) and get_origin(fields[field].item) is not tuple:
            value = [word.removeprefix(NO_OPTION) for word in value]
        values[field] = _typed(fields[field], value)
    return values, [word.removeprefix(NO_OPTION) for word in unknown]


def _with_option_before_each_text(words: Sequence[str]) -> Iterator[str]:
    number = 0  # of the text that comes next
    for word in words:
        if is_option(word):
            number = 1 if word == "--text" else 2 if word.startswith("--text=") else 0
        elif number:
            yield from ["--text"] * (number > 1)
            number += 1
        yield word


def add_options(
    parser: argparse.ArgumentParser, options: Sequence[Option], *, complete: Any = None
) -> None:
    """Add the options and positional arguments of a command to a parser.

    ``complete`` is what completes values that cannot be listed; None lists no values.
    """
    names = {option.name for option in options}
    for option in options:
        if option.positional:
            number: Any = "*" if option.item else "?"
            added = parser.add_argument(
                option.field, metavar=option.name, nargs=number, default=argparse.SUPPRESS
            )
        else:
            added = _add_option(parser, option, names)
        if complete is None:
            continue
        added.help = first_sentence(option.text).replace("%", "%%")
        if added.nargs != 0:
            added.choices = tuple(CONFIGS) if option.name == "TASK" else values_of(option.type)
            added.choices = added.choices or None
            if added.choices is None:
                vars(added)["complete"] = complete


def _add_option(
    parser: argparse.ArgumentParser, option: Option, others: Collection[str]
) -> argparse.Action:
    aliases = [OPTION_ALIASES.get(option.name), ONE_WORD.get(option.name)]
    names = [option.name, *(name for name in aliases if name is not None and name not in others)]
    names += [f"--{name[2:].replace('-', '_')}" for name in names if "-" in name[2:]]
    settings: dict[str, Any] = {"dest": option.field, "default": argparse.SUPPRESS}
    if option.type is bool:
        return parser.add_argument(*names, action=argparse.BooleanOptionalAction, **settings)
    if option.switch:
        negative = [f"--no-{name[2:]}" for name in names]
        parser.add_argument(*negative, action="store_const", const="false", **settings)
    elif option.item and (not option.mark.append or get_origin(option.item) is tuple):
        settings["nargs"] = "*"
    action = "append" if option.mark.append else "extend" if option.item else "store"
    added = parser.add_argument(*names, action=action, **settings)
    if option.name == "--format" and "json" in values_of(option.type):
        parser.add_argument("--json", action="store_const", const="json", **settings)
    return added


def filled(cls: type[Any], values: Mapping[str, Any], defaults: Any = None) -> Any:
    """Build a command from values of its fields; ``defaults`` is a command with all others."""
    arguments: dict[str, Any] = {}
    hints = type_hints(cls)
    for field in dataclasses.fields(cls):
        default = None if defaults is None else getattr(defaults, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            arguments[field.name] = filled(hints[field.name], values, default)
        elif field.name in values:
            arguments[field.name] = values[field.name]
        elif defaults is not None:
            arguments[field.name] = default
    return cls(**arguments)


def _typed(option: Option, value: Any) -> Any:
    if get_origin(option.item) is tuple:
        return tuple(map(tuple, value))
    if option.item is int:  # `100,200` as well as `100 200`
        value = [number for item in value for number in item.split(",") if number]
    return converted(option.name, value, option.type, text=True)
