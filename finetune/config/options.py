"""Marks of settings and options for the help of the command line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Help:
    """Help of an option, besides the text under its field.

    An option is marked in its annotation: ``epochs: Annotated[float | None, COMMON]``. The class
    that declares options names their group in the help: ``group: ClassVar[str] = "training"``. The
    group of settings of one task is "task".
    """

    metavar: str | None = None
    """Name of the value; unset follows from the type and the name of the option."""
    group: str | None = None
    """Heading of the option in the help; unset is the heading of its class."""
    common: bool = False
    """Whether `--help` lists the option where the command has too many for one screen."""
    positional: bool = False
    """Whether the value is written without the name of the option."""
    append: bool = False
    """Whether the option may be repeated, each time with one value (or one list of values)."""
    name: str | None = None
    """The option, if it is not the name of the field."""


def argument(metavar: str) -> Help:
    """Return the mark of a positional argument."""
    return Help(metavar, "arguments", positional=True)


DATA = Help(group="data", common=True)
"""The mark of an option that names data."""
OUTPUT = Help(group="output", common=True)
"""The mark of an option that concerns the output."""
COMMON = Help(common=True)
"""The mark of an option that many people use."""
