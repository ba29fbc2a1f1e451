"""Marks of settings and options: their help, their legal values, and what they affect."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints


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


def argument(metavar: str) -> Help:
    """Mark a field as a positional argument."""
    return Help(metavar, "arguments", positional=True)


DATA = Help(group="data", common=True)
"""The mark of an option that names data."""
OUTPUT = Help(group="output", common=True)
"""The mark of an option that concerns the output."""
COMMON = Help(common=True)
"""The mark of an option that many people use."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The legal values of a setting that is set: ``lr: Annotated[float | None, POSITIVE]``."""

    legal: Callable[[Any], bool]
    wanted: str
    """The values in words, after "must be"."""


def matching(pattern: str, wanted: str) -> Limit:
    """Limit a setting to the texts that match a pattern as a whole."""
    return Limit(lambda value: re.fullmatch(pattern, value) is not None, wanted)


POSITIVE = Limit(lambda value: value > 0, "above 0")
NOT_NEGATIVE = Limit(lambda value: value >= 0, "0 or more")
FRACTION = Limit(lambda value: 0 < value < 1, "between 0 and 1")
SHARE = Limit(lambda value: 0 <= value < 1, "0 or more and below 1")
FACTOR = Limit(lambda value: 0 < value <= 1, "above 0 and at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Affects:
    """The parts of a run that a setting may affect.

    A field without this mark has the ``affects`` of its class, by default of the class that
    declares it first.
    """

    data: bool = False
    """The prepared data, and what follows from them alone. If a setting affects nothing else, the
    fingerprint of the data tells."""
    weights: bool = False
    """The model: how it reads and predicts, where its weights start, and how they are trained."""
    scores: bool = False
    """What is scored, and which model is selected: results of other values cannot be compared."""
    inherited: bool = True
    """True if a student of ``finetune distill`` has the value of its teacher."""
    shared: bool = True
    """True if tasks that train one encoder together need the same value."""
    acts: str = ""
    """The effect of the setting beyond the run, such as `uploads the model`. Only a command can set
    it: a file may be a stranger's, and another run does not inherit it."""

    @property
    def results(self) -> bool:
        """True if the setting may change results of a run, besides by the data."""
        return self.weights or self.scores


class Declared(NamedTuple):
    """A field of a dataclass, with the classes that declare it and its marks; the last ones count.

    The marks of a base hold where a class declares the field again.
    """

    type: Any
    classes: tuple[type[Any], ...]
    marks: tuple[Any, ...]


def _declared_fields(cls: Any) -> Mapping[str, Declared]:
    types = get_type_hints(cls)
    declared = dict[str, Declared]()
    bases: Any = filter(dataclasses.is_dataclass, reversed(cls.__mro__))
    for base in bases:
        hints = get_type_hints(base, include_extras=True)
        for name in inspect.get_annotations(base):
            _, classes, marks = declared.get(name, (None, (), ()))
            marks = (*marks, *getattr(hints[name], "__metadata__", ()))
            declared[name] = Declared(types[name], (*classes, base), marks)
    return {field.name: declared[field.name] for field in dataclasses.fields(cls)}


declared_fields: Callable[[Any], Mapping[str, Declared]] = functools.cache(_declared_fields)
"""Looks up the declarations of each field of a dataclass."""
