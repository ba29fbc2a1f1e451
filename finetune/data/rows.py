"""The way from rows to examples, in three steps.

1. A reader of a format (``FORMATS``) yields the rows of a ``Table``, with their ``file:line``, of
   named columns or of words; hub sets and data in memory are tables, too.
2. A ``RowReader``, one for each shape of example, chooses the columns of a table once, from its
   first rows.
3. It makes an example of each row. Bad rows raise an error with their location, or are listed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

from finetune.data import examples as holder
from finetune.data.examples import Dataset, Examples, collected
from finetune.data.files import UTF_8, DataFile, ReadOptions, Row, keep_error
from finetune.data.sources import open_input, open_splits
from finetune.data.tables import MissingColumn, Table, check_columns, column_notes, open_text_table
from finetune.runtime.memory import without_garbage_collection
from finetune.types import DataError, abbreviated

Make = Callable[[int, Any], Any]
"""Makes an example, given its ``id`` and a row; None leaves the row out."""


NamedColumns = Mapping[str, str]
"""Columns that the user names, by role."""
Gold = Literal["unread", "read", "required"]
Splits = Mapping[str, Examples]
"""Examples by split."""


def refuse_rows_of_tools(table: Table, columns: NamedColumns) -> None:
    """Raise DataError for tasks of Prodigy, and for predictions, whose labels are not gold."""
    if "_task_hash" in table.header:
        raise DataError(
            f"{table.name}: an export of Prodigy: finetune convert {table.name} --out data.jsonl"
        )
    if {"gold", "where"} <= {*table.header} and "gold" not in columns.values():
        raise DataError(
            f"{table.name}: predictions with their gold, whose labels are those of a model: give "
            "the data that were predicted."
        )


def _empty(split: str, table: Table) -> DataError:
    more = "".join(f" ({note})" for note in table.notes)  # such as further sheets
    return DataError(f"{table.name}: the {split} split is empty{more}: add rows or leave it out.")


class RowReader(ABC):
    """Reads examples from rows of any source: for training, prediction and scores alike."""

    roles: tuple[str, ...]
    """The roles that ``--columns`` can name."""
    header_names: ClassVar[frozenset[str]]
    """Usual names of columns, in lower case. They tell a header from data."""

    open = staticmethod(open_text_table)

    @abstractmethod
    def choose(self, table: Table, first: Sequence[Any], named: NamedColumns, gold: Gold) -> Make:
        """Choose the columns of a table, and return the function that makes examples.

        Args:
            table: The table.
            first: Its first rows: all in memory, or one for prediction.
            named: The columns that the user names, by role.
            gold: Whether gold is read, and there must be some.

        Raises:
            DataError: A column is missing.
        """

    def finished(self, splits: Splits, tables: Mapping[str, Table]) -> tuple[Splits, list[str]]:
        """Convert the gold of all splits to one form, and write notes on all splits."""
        return splits, []

    def predicted(self, index: int, example: Any) -> Any:
        """Convert the result of ``choose`` for a row to an example to predict."""
        return example

    @without_garbage_collection()
    def read(
        self,
        spec: Any,
        *,
        columns: Mapping[str, str] | None = None,
        splits: Sequence[str] | None = None,
        encoding: str = UTF_8,
        errors: list[str] | None = None,
    ) -> Dataset:
        """Read the splits of a ``--data`` value, or of data in memory, as ``read_text`` does.

        Raises:
            DataError: If the data cannot be read; the message names file and line.
        """
        columns = check_columns(columns, self.roles) if columns else {}
        options = ReadOptions(columns, self.header_names, errors=errors)
        dataset, tables = open_splits(spec, splits, partial(self.open, options=options), encoding)
        notes, by_split, order = list(dataset.notes), dict[str, Examples](), tuple[str, ...]()
        for split, table in tables.items():
            by_split[split] = collected(self._examples(split, table, columns, errors))
            notes += [note for note in table.notes if note not in notes]
            label = table.read.get("label") or table.read.get("tags")
            order = order or tuple(table.names.get(label or "", ()))
        examples, more_notes = self.finished(by_split, tables)
        notes += column_notes(tables) + more_notes
        return replace(
            dataset, splits=examples, notes=notes, label_order=order, fingerprint_of=None
        )

    def _examples(
        self, split: str, table: Table, columns: NamedColumns, errors: list[str] | None
    ) -> Iterator[Any]:
        first = table.peek(holder.MOST_IN_MEMORY + 1)
        if not first:
            raise _empty(split, table)
        gold: Gold = "required" if split == "train" else "read"
        make = self.choose(table, first, columns, gold)
        refuse_rows_of_tools(table, columns)
        num_first, header, later = len(first), {*table.header}, dict[str, None]()
        has_later = num_first > holder.MOST_IN_MEMORY and not table.sentences
        del first  # the table has them until they are read
        index = 0
        for number, row in enumerate(table.rows):
            if has_later and number >= num_first and not header.issuperset(row.values):
                later.update(dict.fromkeys(name for name in row.values if name not in header))
            try:
                example = make(index, row)
            except DataError as error:
                keep_error(error, errors)
                continue
            if example is None:
                table.left_out += 1
            else:
                yield example
                index += 1
        if not index:
            raise _empty(split, table)
        if later:
            names = abbreviated(later)
            table.notes.append(
                f"columns that no row has before row {num_first:,} are not read: {names}"
            )

    def stream(
        self,
        source: str | Path | IO[Any] | DataFile | Table,
        *,
        columns: Mapping[str, str] | None = None,
        usual_columns: Mapping[str, str] | None = None,
        format: str | None = None,
        encoding: str = UTF_8,
        rows: dict[int, Mapping[str, Any]] | None = None,
        gold: bool = False,
        predicting: bool = True,
    ) -> Iterator[Any]:
        """Stream the examples of an input for prediction; ``id`` is the row number from 0.

        Args:
            source: A path, a folder or pattern of several files (``input_files``), ``-`` for
                standard input, a file object, or a table in memory (``input_table``). Standard
                input and file objects hold JSON Lines or, by their first line, one text per line.
            columns: Columns by role.
            usual_columns: Columns that are read if the file has them and ``columns`` names none.
            format: The format of a file whose suffix does not say it.
            encoding: Text encoding of the files.
            rows: Gets the values of each row by ``id``.
            gold: Whether to read gold: for prediction, its columns may hold anything.
            predicting: Whether to yield examples to predict; else what ``choose`` makes of rows.
        """
        columns, usual = check_columns(columns, self.roles), usual_columns or {}
        if isinstance(source, Table):
            table = source
        else:
            names = self.header_names | {name.lower() for name in usual.values()}
            options = ReadOptions(columns, names, usual_columns=usual, predicting=predicting)
            table = open_input(source, partial(self.open, options=options), format, encoding)
        if not (first := table.peek(1 if predicting else holder.MOST_IN_MEMORY)):
            return
        if gold or not predicting:
            refuse_rows_of_tools(table, columns)
        header = table.by_name.keys()
        for role, name in usual.items():
            if name.lower() in header or header >= {*name.lower().split("+")}:
                columns = {role: name, **columns}
        if table.first_row is not None and len(table.header) == 1:
            columns = {"text": "0", **columns}
        make = self.choose(table, first, columns, "read" if gold else "unread")
        for index, row in enumerate(table.rows):
            if rows is not None and not table.sentences:
                rows[index] = row.values
            example = make(index, row)
            yield self.predicted(index, example) if predicting else example

    def example(self, index: int, row: Mapping[str, Any], where: str) -> Any:
        """Make the example of one row in memory, without its gold."""
        table, with_location = Table(where, list(row)), Row(row, where)
        try:
            make = self.choose(table, [with_location], {}, "unread")
        except MissingColumn as error:
            keys = ", ".join(map(repr, row)) or "none"
            raise DataError(
                f"{where}: no key holds {error.content} (keys here: {keys}): add {error.usual!r}."
            ) from error
        return make(index, with_location)
