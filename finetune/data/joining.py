"""Several tables, or several files of sentences, read as one split."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from finetune.data import example_store
from finetune.data.dataset import DataError
from finetune.data.files import Record, Unparsed, in_units, joined_rows
from finetune.data.tables import Table
from finetune.data.token_records import Sentences, TokenRecord
from finetune.types import abbreviated, quantity

Opened = TypeVar("Opened", bound=Table | Sentences)
MAX_REPEATED = 0.5
"""Fraction of the rows of a split that may also be in the splits that it is joined with."""


def joined(parts: Sequence[Opened]) -> Opened:
    """Return tables, or files of sentences, as one; its rows keep the order of the parts.

    Raises DataError if the parts do not fit together.
    """
    first, *others = parts
    if not others:
        return first
    for other in others:
        _check_fit(first, other)
    if isinstance(first, Sentences):
        sentences = [part for part in parts if isinstance(part, Sentences)]
        first.records = joined_rows(
            [_with_unique_documents(part.records, i) for i, part in enumerate(sentences, 1)]
        )
    else:
        tables = [part for part in parts if isinstance(part, Table)]
        first.records = joined_rows([table.records for table in tables])
        header = chain.from_iterable(table.header for table in tables)
        # rows of JSON have no header: then it is made of the columns of all rows
        first.header = list(dict.fromkeys(header)) if all(t.header for t in tables) else []
        first.typed = all(table.typed for table in tables)
        first.names = {name: names for table in tables for name, names in table.names.items()}
        first.notes = list(dict.fromkeys(note for table in tables for note in table.notes))
    return first


def joined_in_turn(paths: Sequence[Path], open_path: Callable[[Path], Opened]) -> Opened:
    """Return files as one; each is opened once the rows of the files before it are read.

    The header is the header of the first file. Raises DataError if a file does not fit to it.
    """
    first = open_path(paths[0])
    if len(paths) == 1:
        return first
    records = first.records

    def parts() -> Iterator[Iterator[Any]]:
        yield records
        for number, path in enumerate(paths[1:], 2):
            other = open_path(path)
            _check_fit(first, other)
            if isinstance(other, Sentences):
                yield _with_unique_documents(other.records, number)
            else:
                yield other.records

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
            table.records = records = in_units(table.records)
            rows[name] = list(islice(records, example_store.MOST_IN_MEMORY))
            records.put_back(more := list(islice(records, 1)))
            records.put_back(rows[name])
            over[name] = "over " if more else ""
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


def _check_fit(first: Table | Sentences, other: Table | Sentences) -> None:
    """Raise DataError if only one has columns, or their columns or classes have other numbers."""
    if isinstance(first, Sentences) and isinstance(other, Sentences):
        return
    if isinstance(first, Sentences) or isinstance(other, Sentences):
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


def _with_unique_documents(records: Iterator[TokenRecord], number: int) -> Iterator[TokenRecord]:
    """Return the records of a part, with its number in the names of documents."""
    if number == 1:
        return records

    def renamed(own: Iterable[TokenRecord]) -> Iterator[TokenRecord]:
        for record in own:
            if record.document is not None:
                record = record._replace(document=f"{record.document} in file {number}")
            yield record

    return records.converted(renamed) if isinstance(records, Unparsed) else renamed(records)
