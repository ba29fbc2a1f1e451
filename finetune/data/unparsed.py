"""Rows that are made one by one, or unit by unit in other processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from finetune.data import example_store

T = TypeVar("T")
R = TypeVar("R")


Wanted = Callable[[int], bool]
"""Tells by its number from 0 whether a row is to be read."""


def _unknown(unit: Any) -> None:
    return None


class Unparsed(Iterator[T], Generic[T]):
    """Lines or rows of a file, made one by one, or unit by unit in other processes.

    Args:
        units: The parts of the file, such as blocks of lines. They can be pickled.
        parse: Returns the lines or rows of a unit; by default a unit is one.
        unit_size: About the number of lines or rows in a unit.
        count: Returns the number of rows of a unit without parsing it; None if it cannot tell.
        share: Returns the fraction of the input that ends with a unit; None if it cannot tell.
    """

    def __init__(
        self,
        units: Iterable[Any],
        parse: Callable[[Any], Iterable[T]] = lambda unit: (unit,),
        unit_size: int = 1,
        count: Callable[[Any], int | None] = _unknown,
        share: Callable[[Any], float | None] = _unknown,
    ) -> None:
        self.units, self.parse, self.unit_size = iter(units), parse, unit_size
        self.count, self.share = count, share
        self._current: Iterator[T] = iter(())

    def __next__(self) -> T:
        while True:
            for item in self._current:
                return item
            self._current = iter(self.parse(next(self.units)))

    def put_back(self, items: Iterable[T]) -> None:
        """Yield these rows before all others."""
        self._current = itertools.chain(list(items), self._current)

    def begun(self) -> list[T]:
        """Return what remains of the unit that is being read; the others are in ``units``."""
        return list(self._current)

    def rest(self) -> Unparsed[T]:
        """Return the rows that are left, all in units."""
        parse, count, share, begun = self.parse, self.count, self.share, self.begun()
        units = ((False, unit) for unit in self.units)
        return Unparsed(
            itertools.chain([(True, begun)] if begun else (), units),
            lambda unit: unit[1] if unit[0] else parse(unit[1]),
            self.unit_size,
            lambda unit: len(unit[1]) if unit[0] else count(unit[1]),
            lambda unit: None if unit[0] else share(unit[1]),
        )

    def converted(
        self,
        convert: Callable[[Iterable[T]], Iterator[R]],
        count: Callable[[Any], int | None] = _unknown,
    ) -> Unparsed[R]:
        """Return what ``convert`` makes of each unit; ``count`` is the number of these rows."""
        own = self.rest()
        return Unparsed(
            own.units,
            lambda unit: convert(own.parse(unit)),
            own.unit_size,
            lambda unit: None if unit[0] else count(unit[1]),
            own.share,
        )

    def numbered(self, wanted: Wanted) -> Iterator[tuple[int, T]]:
        """Yield the wanted rows with their numbers from 0; other units are not parsed."""
        number, rows = 0, self.rest()
        for unit in rows.units:
            size = rows.count(unit)
            if size is not None and not any(map(wanted, range(number, number + size))):
                number += size
                continue
            for row in rows.parse(unit):
                if wanted(number):
                    yield number, row
                number += 1


class Many(Iterable[T], Generic[T]):
    """Rows that are too many for the memory, also in chunks for other processes.

    Args:
        first: The first rows, which are read already. This list is emptied.
        rows: The others.
    """

    def __init__(self, first: list[T], rows: Iterator[T]) -> None:
        begun = rows.begun() if isinstance(rows, Unparsed) else []
        unparsed = _in_units(rows)
        self.units, self.unit_size = unparsed.units, unparsed.unit_size
        self._parse, self._share = unparsed.parse, unparsed.share
        self.share: float | None = None
        """The fraction of the input that is in the chunks so far; None if it is unknown."""
        self.first, self.number = first, len(first)
        self.first += begun
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
            self.share = self._share(units[-1])
            yield False, units

    def _rows(self, units: Iterable[Any]) -> Iterator[T]:
        return itertools.chain.from_iterable(map(self._parse, units))

    def parsed(self, chunk: Any, later: dict[str, None]) -> Iterator[T]:
        """Yield the rows of a chunk; ``later`` gets what ``note`` reports."""
        are_parsed, units = chunk
        yield from self.first[units] if are_parsed else self._rows(units)

    def note(self, later: dict[str, None]) -> None:
        """Report what was found in rows after the first."""


def joined_rows(parts: Iterable[Iterator[T]]) -> Unparsed[T]:
    """Return the rows of several files, one after another.

    To parse units in other processes, all parts must be known when these begin.
    """
    known: list[Unparsed[T]] = []

    def units() -> Iterator[Any]:
        for index, part in enumerate(parts):
            if index == len(known):
                known.append(_in_units(part))
            yield from ((index, unit) for unit in known[index].units)

    if isinstance(parts, Sequence):
        known += map(_in_units, parts)

    def share(unit: tuple[int, Any]) -> float | None:
        """Return the fraction, as if all parts had the same size."""
        own = known[unit[0]].share(unit[1])
        return None if own is None else (unit[0] + own) / len(known)

    return Unparsed(
        units(),
        lambda unit: known[unit[0]].parse(unit[1]),
        min((part.unit_size for part in known), default=1),
        lambda unit: known[unit[0]].count(unit[1]),
        share,
    )


def _in_units(rows: Iterator[T]) -> Unparsed[T]:
    return rows.rest() if isinstance(rows, Unparsed) else Unparsed(rows)


def read_rows(rows: Iterator[T]) -> list[T] | Many[T]:
    """Return rows as a list, or as ``Many`` if they are more than ``MOST_IN_MEMORY``."""
    first = list(itertools.islice(rows, example_store.MOST_IN_MEMORY + 1))
    return Many(first, rows) if len(first) > example_store.MOST_IN_MEMORY else first
