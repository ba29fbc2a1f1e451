"""Examples made of rows or of other examples: in a list, or on disk if they are many.

All processors make the examples on disk, a chunk at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from finetune.data import example_store
from finetune.data.dataset import DataError
from finetune.data.example_facts import computed_facts
from finetune.data.example_store import ComputeFacts, ExampleStore, Packed, StoreWriter, packed
from finetune.data.files import Unparsed, in_units, keep_error
from finetune.runtime.progress import stage
from finetune.runtime.workers import forked_map, num_workers

R = TypeVar("R")
T = TypeVar("T")

Make = Callable[[int, Any], Any]
"""Makes an example, given its ``id`` and a row or another example."""


class Many(Iterable[T], Generic[T]):
    """Rows that are too many for the memory, also in chunks for other processes.

    Args:
        first: The first rows, which are read already. This list is emptied.
        rows: The others.
    """

    def __init__(self, first: list[T], rows: Iterator[T]) -> None:
        begun = rows.begun() if isinstance(rows, Unparsed) else []
        unparsed = in_units(rows)
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


def read_rows(rows: Iterator[T]) -> list[T] | Many[T]:
    """Return rows as a list, or as ``Many`` if they are more than ``MOST_IN_MEMORY``."""
    first = list(itertools.islice(rows, example_store.MOST_IN_MEMORY + 1))
    return Many(first, rows) if len(first) > example_store.MOST_IN_MEMORY else first


def collected(
    examples: Iterable[Any], title: str = "reading", facts: ComputeFacts = computed_facts
) -> Sequence[Any]:
    """Return examples as a list, or as a store if they are more than ``MOST_IN_MEMORY``."""
    examples = iter(examples)
    with stage(title, unit="row") as show:
        head = []
        for chunk in _chunks(examples):
            head += chunk
            show(len(head))
            if len(head) > example_store.MOST_IN_MEMORY:
                break
        else:
            return head
        writer, first = StoreWriter(), len(head)
        for chunk in _chunks(itertools.chain(_emptied(head), examples)):
            writer.add(packed(chunk, facts))
            show(max(writer.size, first))
        return writer.finish()


def collected_rows(
    rows: Sequence[Any] | Many[Any],
    make: Make,
    keep: Callable[[Any], bool] = lambda row: True,
    facts: ComputeFacts = computed_facts,
    corrected: list[str] | None = None,
    errors: list[str] | None = None,
) -> tuple[Sequence[Any], int]:
    """Return the examples of the rows to keep, and the number of rows that are left out.

    They are a list, or a store of many rows. ``make`` and ``keep`` also run in other processes.
    ``corrected`` is a list to which ``make`` appends, in whatever process it runs. ``errors`` gets
    the errors of bad rows, which are left out; without it, the first one is raised.
    """
    made = _Made(make, keep, errors)
    if not isinstance(rows, Many):
        return collected(made.examples(rows), facts=facts), made.skipped
    many = rows
    lists = [[] if each is None else each for each in (corrected, errors)]
    known = list(map(len, lists))

    def read(chunk: Any) -> tuple[Packed | None, int, int, dict[str, None], list[list[str]]]:
        made.skipped, later = 0, dict[str, None]()
        examples = list(made.examples(many.parsed(chunk, later)))
        own = [each[size:] for each, size in zip(lists, known, strict=True)]
        for each, size in zip(lists, known, strict=True):
            del each[size:]
        size = len(examples) + made.skipped
        return packed(examples, facts) if examples else None, size, made.skipped, later, own

    writer, number, left, later = StoreWriter(), 0, 0, dict[str, None]()
    every: list[list[str]] = [[] for _ in lists]
    with stage("reading", unit="row") as show:
        for chunk, size, without, new, own in forked_map(read, many.chunks(), num_workers()):
            if chunk is not None:
                writer.add(chunk)
            number += size
            left += without
            later |= new
            for found, more in zip(every, own, strict=True):
                found += more
            show(number, share=many.share)
    many.note(later)
    for each, found in zip(lists, every, strict=True):
        each += found
    return writer.finish() if writer.size else [], left


@dataclass
class _Made:
    """Makes the examples of the rows to keep; counts the others, and keeps errors of bad rows."""

    make: Make
    keep: Callable[[Any], bool]
    errors: list[str] | None
    skipped: int = 0

    def examples(self, rows: Iterable[Any]) -> Iterator[Any]:
        index = 0
        for row in rows:
            if not self.keep(row):
                self.skipped += 1
                continue
            try:
                example = self.make(index, row)
            except DataError as error:
                keep_error(error, self.errors)
            else:
                yield example
                index += 1


def transformed(
    rows: Sequence[Any],
    change: Callable[[Any], Any],
    facts: ComputeFacts = computed_facts,
    title: str = "converting",
) -> Sequence[Any]:
    """Return the changed examples, with the ids that they have; large data stay on disk.

    ``change`` also runs in other processes.
    """
    if not isinstance(rows, ExampleStore):
        return list(map(change, rows))
    store = rows

    def changed(start: int) -> Packed:
        return packed(list(map(change, store[start : start + example_store.CHUNK])), facts)

    writer, starts = StoreWriter(), range(0, len(store), example_store.CHUNK)
    with stage(title, len(store)) as show:
        for chunk in forked_map(changed, starts, min(num_workers(), len(starts))):
            writer.add(chunk)
            show(writer.size)
    found = writer.finish()
    return found if store.ids is None else found.with_ids(store.ids)


def remade(rows: Sequence[Any], make: Make) -> Sequence[Any]:
    """Return the examples that are made of others, with ``id`` = index; as ``transformed``."""
    if isinstance(rows, ExampleStore):
        made = transformed(rows, partial(make, 0))
        return made.renumbered() if isinstance(made, ExampleStore) else made
    return collected(itertools.starmap(make, enumerate(rows)), "converting")


def each_chunk(rows: Sequence[Any], compute: Callable[[Sequence[Any]], R]) -> Iterator[R]:
    """Yield what ``compute`` returns for each chunk of examples; it also runs in other processes.

    Examples in memory are one chunk.
    """
    if not isinstance(rows, ExampleStore):
        yield compute(rows)
        return

    def computed(start: int) -> R:
        return compute(rows[start : start + example_store.CHUNK])

    starts = range(0, len(rows), example_store.CHUNK)
    yield from forked_map(computed, starts, min(num_workers(), len(starts)))


def lack(rows: Sequence[Any], name: str) -> bool:
    """Return whether a field is None for any of the examples."""

    def any_none(chunk: Sequence[Any]) -> bool:
        return any(value is None for value in example_store.column(chunk, name))

    return any(each_chunk(rows, any_none))


def _chunks(examples: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(examples, example_store.CHUNK)):
        yield chunk


def _emptied(examples: list[Any]) -> Iterator[Any]:
    """Yield examples and free their memory."""
    examples.reverse()
    while examples:
        yield examples.pop()
