"""Rows that are made one by one, or unit by unit in other processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from finetune.data import example_store

T = TypeVar("T")


class Unparsed(Iterator[T], Generic[T]):
    """Lines or rows of a file, made one by one, or unit by unit in other processes.

    Args:
        units: The parts of the file, such as blocks of lines. They can be pickled.
        parse: Returns the lines or rows of a unit; by default a unit is one.
        unit_size: About the number of lines or rows in a unit.
    """

    def __init__(
        self,
        units: Iterable[Any],
        parse: Callable[[Any], Iterable[T]] = lambda unit: (unit,),
        unit_size: int = 1,
    ) -> None:
        self.units, self.parse, self.unit_size = iter(units), parse, unit_size
        self.started = False
        self._current: Iterator[T] = iter(())

    def __next__(self) -> T:
        while True:
            for item in self._current:
                return item
            self.started = True
            self._current = iter(self.parse(next(self.units)))

    def begun(self) -> list[T]:
        """Return what remains of the unit that is being read; the others are in ``units``."""
        return list(self._current)


class Many(Iterable[T], Generic[T]):
    """Rows that are too many for the memory, also in chunks for other processes.

    Args:
        first: The first rows, which are read already. This list is emptied.
        rows: The others.
    """

    def __init__(self, first: list[T], rows: Iterator[T]) -> None:
        unparsed = rows if isinstance(rows, Unparsed) else Unparsed(rows)
        self.units, self.unit_size = unparsed.units, unparsed.unit_size
        self._parse = unparsed.parse
        self.first, self.number = first, len(first)
        self.first += unparsed.begun()
        # full chunks: those that are read later then begin where chunks of sequences begin
        missing = math.ceil(-len(first) % example_store.CHUNK / self.unit_size)
        self.first += self._rows(itertools.islice(self.units, missing))

    def __iter__(self) -> Iterator[T]:
        """Yield all rows. Raises as ``parsed``."""
        later: dict[str, None] = {}
        for chunk in self.chunks():
            yield from self.parsed(chunk, later)
        self.note(later)

    def chunks(self) -> Iterator[Any]:
        """Yield chunks, which can be pickled, for ``parsed``.

        Processes that are forked after the first chunk have the first rows, which are not pickled.
        """
        for start in range(0, len(self.first), example_store.CHUNK):
            yield True, slice(start, start + example_store.CHUNK)
        self.first.clear()
        number = math.ceil(example_store.CHUNK / self.unit_size)
        while units := list(itertools.islice(self.units, number)):
            yield False, units

    def _rows(self, units: Iterable[Any]) -> Iterator[T]:
        return itertools.chain.from_iterable(map(self._parse, units))

    def parsed(self, chunk: Any, later: dict[str, None]) -> Iterator[T]:
        """Yield the rows of a chunk; ``later`` gets what ``note`` reports."""
        are_parsed, units = chunk
        yield from self.first[units] if are_parsed else self._rows(units)

    def note(self, later: dict[str, None]) -> None:
        """Report what was found in rows after the first."""


def read_rows(rows: Iterator[T]) -> list[T] | Many[T]:
    """Return rows as a list, or as ``Many`` if they are more than ``MOST_IN_MEMORY``."""
    first = list(itertools.islice(rows, example_store.MOST_IN_MEMORY + 1))
    return Many(first, rows) if len(first) > example_store.MOST_IN_MEMORY else first
