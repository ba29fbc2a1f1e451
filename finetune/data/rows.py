"""Rows whose columns have roles of their own, such as questions and their choices.

``RowReader`` reads them from any source, for training, prediction and scores alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

from finetune.data.collecting import collected_rows
from finetune.data.dataset import DataError, Dataset
from finetune.data.files import UTF_8, DataFile, Record, Wanted
from finetune.data.sources import open_input, open_splits, resolve
from finetune.data.tables import (
    MissingColumn,
    Table,
    check_columns,
    column_notes,
    empty_split,
    numbered_rows,
)
from finetune.data.texts import open_text_table
from finetune.types import TextExample, quantity

MakeExample = Callable[[int, Record], TextExample]
"""Makes the example of a row, given its number from 0."""


@dataclass(frozen=True)
class RowReader:
    """Reads examples from rows of named columns.

    Attributes:
        roles: The roles that ``--columns`` can name.
        header_names: Usual names of columns, in lower case. They tell a header from data.
        choose: Chooses the columns of a table and returns the function that makes examples. It gets
            the columns that the user names, by role, and whether to read gold.
        gold: Returns the gold of an example, None without gold.
        gold_roles: The roles of gold.
        corrected: For notes on ``Table.corrected``: the noun of a value, and its correction.
    """

    roles: tuple[str, ...]
    header_names: frozenset[str]
    choose: Callable[[Table, Mapping[str, str], bool], MakeExample]
    gold: Callable[[TextExample], object] = attrgetter("label")
    gold_roles: tuple[str, ...] = ("label",)
    corrected: tuple[str, str] = ("value", "corrected")

    def read(
        self,
        spec: Any,
        *,
        columns: Mapping[str, str] | None = None,
        encoding: str = UTF_8,
        errors: list[str] | None = None,
    ) -> Dataset:
        """Read all splits of a ``--data`` value, or of data in memory, as ``read_text`` does.

        Raises:
            DataError: If the data cannot be read; the message names file and line.
        """
        columns = check_columns(columns, self.roles)
        source = open_splits(
            resolve(spec), None, lambda file: self._open(file, columns, errors=errors), encoding
        )
        notes, splits = list(source.notes), dict[str, Sequence[Any]]()
        for split, table in source.splits.items():
            first, rows = table.rows()
            if not first:
                raise empty_split(table, split)
            table.records = iter(first[:1])  # the choice of columns may look at it
            make = self.choose(table, table.columns(columns, self.roles), True)
            splits[split], _ = collected_rows(rows, make, corrected=table.corrected, errors=errors)
            if not splits[split]:
                raise empty_split(table, split)
            notes += table.notes
            if table.corrected:
                noun, done = self.corrected
                number = quantity(len(table.corrected), noun)
                notes.append(f"{table.name}: {number} {done}; first in {table.corrected[0]}")
            if missing := sum(self.gold(row) is None for row in splits[split]):
                counted = f"{missing:,} of {quantity(len(splits[split]), 'row')}"
                notes.append(f"{split}: {counted} without label")
        notes += column_notes(source.splits)
        return Dataset(source.name, splits, notes=notes, format=source.format, pinned=source.pinned)

    def stream(
        self,
        source: str | Path | IO[Any] | DataFile | Table,
        *,
        columns: Mapping[str, str] | None = None,
        usual_columns: Mapping[str, str] | None = None,
        encoding: str = UTF_8,
        rows: dict[int, Mapping[str, Any]] | None = None,
        wanted: Wanted | None = None,
        gold: bool = False,
    ) -> Iterator[TextExample]:
        """Stream the examples of an input or table; the arguments are as in ``read_text_file``.

        Gold is read on request only: for prediction, its columns may hold anything.
        """
        columns = check_columns(columns, self.roles)
        if isinstance(source, Table):
            table = source
            table.usual_columns = usual_columns or {}
        else:
            table = open_input(
                source, lambda file: self._open(file, columns, usual_columns), encoding=encoding
            )
        if table.first() is None:
            return
        make = self.choose(table, table.columns(columns, self.roles), gold)
        for index, record in numbered_rows(table.records, rows, wanted):
            yield make(index, record)

    def example(self, index: int, row: Mapping[str, Any], where: str) -> TextExample:
        """Return the example of one row in memory, without its gold."""
        table = Table(where, list(row), iter(()))
        try:
            make = self.choose(table, {}, False)
        except MissingColumn as error:
            keys = ", ".join(map(repr, row)) or "none"
            raise DataError(
                f"{where}: no key holds {error.content} (keys here: {keys}): add {error.usual!r}."
            ) from error
        return make(index, Record(row, where))

    def _open(
        self,
        file: DataFile,
        columns: Mapping[str, str],
        usual_columns: Mapping[str, str] | None = None,
        errors: list[str] | None = None,
    ) -> Table:
        return open_text_table(file, columns, False, usual_columns, self.header_names, errors)
