"""Several tables read as one split."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from finetune.data import examples as holder
from finetune.data.dataset import DataError
from finetune.data.files import Record, Rows, joined_rows
from finetune.data.tables import Table
from finetune.data.token_records import TokenRecord
from finetune.types import abbreviated, quantity

MAX_REPEATED = 0.5
"""Fraction of the rows of a split that may also be in the splits that it is joined with."""


def joined(parts: Sequence[Table]) -> Table:
    """Return tables as one; its rows keep the order of the parts.

    Raises DataError if the parts do not fit together.
    """
    first, *others = parts
    for other in others:
        _check_fit(first, other)
    if not others:
        return first
    first.records = joined_rows([_rows(part, number) for number, part in enumerate(parts, 1)])
    header = chain.from_iterable(part.header for part in parts)
    # rows of JSON have no header: then it is made of the columns of all rows
    first.header = list(dict.fromkeys(header)) if all(part.header for part in parts) else []
    first.typed = all(part.typed for part in parts)
    first.names = {name: names for part in parts for name, names in part.names.items()}
    first.notes = list(dict.fromkeys(note for part in parts for note in part.notes))
    return first


def joined_in_turn(paths: Sequence[Path], open_path: Callable[[Path], Table]) -> Table:
    """Return files as one; each is opened once the rows of the files before it are read.

    The header is the header of the first file. Raises DataError if a file does not fit to it.
    """
    first = open_path(paths[0])
    if len(paths) == 1:
        return first
    records = first.records

    def parts() -> Iterator[Rows[Any]]:
        yield records
        for number, path in enumerate(paths[1:], 2):
            other = open_path(path)
            _check_fit(first, other)
            yield _rows(other, number)

    first.records = joined_rows(parts())
    return first


def joined_splits(
    data: str, splits: Mapping[str, Sequence[tuple[str, Table]]]
) -> tuple[dict[str, Table], list[str]]:
    """Return one table for each split, and notes on splits that are joined from several tables.

    Raises DataError for tables whose first rows (``MOST_IN_MEMORY``) are mostly the same: training
    on both would count these rows twice, and only the user knows which table to choose.
    """
    found: dict[str, Table] = {}
    notes = []
    for split, parts in splits.items():
        if len(parts) == 1:
            found[split] = parts[0][1]
            continue
        rows, over = dict[str, list[Record]](), dict[str, str]()
        for name, table in parts:
            most = holder.MOST_IN_MEMORY
            found_rows = table.records.peek(most + 1)
            rows[name] = found_rows[:most]
            over[name] = "over " if len(found_rows) > most else ""
        _refuse_repeated(data, split, rows)
        found[split] = joined([table for _, table in parts])
        listed = ", ".join(f"{name} ({over[name]}{len(own):,})" for name, own in rows.items())
        number = quantity(sum(map(len, rows.values())), "row")
        notes.append(f"{split}: {max(over.values())}{number}, joined from {listed}")
    return found, notes


def _refuse_repeated(data: str, split: str, rows: Mapping[str, Sequence[Record]]) -> None:
    content = {name: Counter(map(_content, own)) for name, own in rows.items()}
    for name, own in content.items():
        others = {key for other, found in content.items() if other != name for key in found}
        repeated = sum(count for key, count in own.items() if key in others)
        if repeated > MAX_REPEATED * own.total():
            raise DataError(
                f"{data}: the splits {abbreviated(list(rows))} all mean {split}, and "
                f"{repeated:,} of {quantity(own.total(), 'row')} of {name} are also in the others: "
                f"choose with --data {data},{split}={name} ({split}=A+B for several; in Python, "
                "leave some out)."
            )


def _content(record: Record) -> str:
    """Return the values of a row without its numbers and ids."""
    values = {
        name: value
        for name, value in record.values.items()
        if name.lower() not in ("idx", "index") and not name.lower().endswith("id")
    }
    return json.dumps(values or dict(record.values), default=str)


def _check_fit(first: Table, other: Table) -> None:
    """Raise DataError if only one has columns, or their columns or classes have other numbers."""
    if first.sentences and other.sentences:
        return
    if first.sentences or other.sentences:
        raise DataError(
            f"{first.name} and {other.name} cannot be read as one split, since only one of "
            "them has rows of named columns: convert one of them with `finetune convert`."
        )
    if (first.headless is None) != (other.headless is None):
        with_header, without = (first, other) if first.headless is None else (other, first)
        raise DataError(
            f"{with_header.name} names its columns and {without.name} does not: add the same "
            "header to both."
        )
    for column in first.names.keys() & other.names.keys():
        if list(first.names[column]) != list(other.names[column]):
            raise DataError(
                f"{first.name} and {other.name} number the classes of {column!r} in different ways "
                f"({abbreviated(first.names[column])}; {abbreviated(other.names[column])}): save "
                "them with the same features."
            )
    for column in first.names.keys() ^ other.names.keys():
        if {column} <= {*first.header} & {*other.header}:
            named, plain = (first, other) if column in first.names else (other, first)
            raise DataError(
                f"{named.name} has class names for {column!r} and {plain.name} has none: save them "
                "with the same features."
            )


def _rows(table: Table, number: int) -> Rows[Any]:
    """Return the rows of a part; after the first part, documents have its number in their names."""
    if number == 1 or not table.sentences:
        return table.records

    def renamed(records: Iterable[TokenRecord]) -> Iterator[TokenRecord]:
        for record in records:
            if record.document is not None:
                record = record._replace(document=f"{record.document} in file {number}")
            yield record

    return table.records.converted(renamed)
