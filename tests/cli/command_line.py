"""Every option of every command, one a line: ``python -m tests.cli.command_line``.

The output is kept in ``command_line.txt``, so that the diff of a commit shows what it changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from finetune.cli.help import options_of
from finetune.cli.main import COMMANDS, command_class
from finetune.config.tasks import CONFIGS
from finetune.registry import SUITE_COMMAND, SUITE_KEY, imported

FILE = Path(__file__).with_suffix(".txt")


def command_line() -> str:
    """Return the name, type and default of the options of each command; of all tasks, once."""
    options = {f"finetune {name}": [*_options(command_class(name))] for name in COMMANDS}
    options[f"finetune run ({SUITE_KEY})"] = [*_options(imported(SUITE_COMMAND))]
    tasks = [f"finetune {name}" for name in CONFIGS]
    shared = [line for line in options[tasks[0]] if all(line in options[task] for task in tasks)]
    for task in tasks:
        options[task] = [line for line in options[task] if line not in shared]
    blocks = {"finetune TASK (all tasks)": shared, **options}
    return "\n".join(
        f"{name}\n" + "".join(f"    {o}\n" for o in own) for name, own in blocks.items()
    )


def _options(cls: type[Any]) -> Iterator[str]:
    for option in options_of(cls):
        default = "" if option.required else f" = {option.default!r}"
        yield f"{option.name}: {_type_name(option.type)}{default}"


def _type_name(cls: Any) -> str:
    """Return the name of a type; a Literal is its values, separated by bars."""
    arguments = get_args(cls)
    if get_origin(cls) is Literal:
        return " | ".join(map(repr, arguments))
    if get_origin(cls) in (Union, UnionType):
        return " | ".join(map(_type_name, arguments))
    if arguments:
        return str(cls)
    return "None" if cls is NoneType else str(cls.__name__)


if __name__ == "__main__":
    print(command_line(), end="")
