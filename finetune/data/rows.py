"""The way from rows to examples, in three steps.

1. A reader of a format (``FORMATS``) opens a file as a ``Table``; hub sets and data in memory are
   tables, too: a stream of rows with their ``file:line``, of named columns or of words.
2. A ``RowReader``, one for each shape of example, chooses the columns of a table once, from its
   first rows.
3. It makes an example of each row (``made_examples``). Bad rows raise an error with their place, or
   are listed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

from finetune.data import examples as holder
from finetune.data.dataset import DataError, Dataset
from finetune.data.examples import Examples, collected
from finetune.data.files import UTF_8, DataFile, ReadOptions, Record, keep_error
from finetune.data.formats import open_text_table
from finetune.data.sources import open_input, open_splits, resolve
from finetune.data.tables import MissingColumn, Table, check_columns, column_notes
from finetune.runtime.memory import without_garbage_collection
from finetune.types import abbreviated

Make = Callable[[int, Any], Any]
"""Makes an example, given its ``id`` and a row, or tells in a word why the row is left out."""


Columns = Mapping[str, str]
"""Names of columns by role."""
Gold = Literal["unread", "read", "required"]
Splits = Mapping[str, Examples]
"""Examples by split."""


class RowReader(ABC):
    """Reads examples from rows of any source: for training, prediction and scores alike."""

    roles: tuple[str, ...]
    """The roles that ``--columns`` can name."""
    gold_roles: ClassVar[tuple[str, ...]] = ("label",)
    """The roles of gold."""
    header_names: ClassVar[frozenset[str]]
    """Usual names of columns, in lower case. They tell a header from data."""

    @abstractmethod
    def choose(self, table: Table, first: Sequence[Any], given: Columns, gold: Gold) -> Make:
        """Choose the columns of a table, and return the function that makes examples.

        Args:
            table: The table.
            first: Its first rows: all in memory, or one for prediction.
            given: The columns that the user names, by role.
            gold: Whether gold is read, and there must be some.

        Raises:
            DataError: A column is missing.
        """

    def open(self, file: DataFile, options: ReadOptions) -> Table:
        """Open a file as a table."""
        return open_text_table(file, options)

    def usable(self, make: Make, table: Table) -> Make:
        """Return ``make`` with a reason for each row that is no training or test data."""
        return make

    def notes(self, split: str, table: Table, rows: Examples, left: Counter[str]) -> list[str]:
        """Return notes on the examples of a split, and on the rows that are left out."""
        return []

    def empty(self, split: str, table: Table, left: Counter[str]) -> DataError:
        """Return the error for a split without examples."""
        more = "".join(f" ({note})" for note in table.notes)  # such as further sheets of a workbook
        return DataError(
            f"{table.name}: the {split} split is empty{more}: add rows or leave it out."
        )

    def finished(self, splits: Splits, tables: Mapping[str, Table]) -> tuple[Splits, list[str]]:
        """Return the examples with the gold of all splits in one form, and notes on all splits."""
        return splits, column_notes(tables)

    def predicted(self, index: int, made: Any) -> Any:
        """Return what ``choose`` makes of a row as an example to predict."""
        return made

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
        columns = check_columns(columns, self.roles)
        options = ReadOptions(columns, self.header_names, errors=errors)
        source = open_splits(resolve(spec), splits, lambda file: self.open(file, options), encoding)
        notes, found = list(source.notes), dict[str, Examples]()
        for split, table in source.splits.items():
            gold: Gold = "required" if split == "train" else "read"
            rows, left_out = self.examples(table, columns, errors, gold)
            if not rows:
                raise self.empty(split, table, left_out)
            found[split] = rows
            notes += table.notes
            more = self.notes(split, table, rows, left_out)
            notes += [note for note in more if note not in notes]
        examples, more = self.finished(found, source.splits)
        orders = (table.label_order for table in source.splits.values())
        return Dataset(
            source.name,
            examples,
            notes=notes + more,
            format=source.format,
            label_order=next(filter(None, orders), ()),
            pinned=source.pinned,
        )

    def examples(
        self,
        table: Table,
        columns: Columns,
        errors: list[str] | None = None,
        gold: Gold = "read",
    ) -> tuple[Examples, Counter[str]]:
        """Read a table; return its examples, and how many rows are left out, by reason."""
        first = table.peek(holder.MOST_IN_MEMORY + 1)
        if not first:
            return Examples(), Counter()
        table.set_header(first)
        make = self.choose(table, first, columns, gold)
        if "_task_hash" in table.header or _are_answers(table, first):
            raise DataError(
                f"{table.name}: an export of Prodigy: finetune convert {table.name} "
                "--out data.jsonl"
            )
        num_first = len(first)
        del first  # the table has them until they are read
        return made_examples(table, self.usable(make, table), errors, num_first)

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
        """
        columns, usual = check_columns(columns, self.roles), usual_columns or {}
        if isinstance(source, Table):
            table = source
            table.usual_columns = usual
        else:
            names = self.header_names | {name.lower() for name in usual.values()}
            options = ReadOptions(columns, names, usual_columns=usual, predicting=True)
            table = open_input(source, lambda file: self.open(file, options), format, encoding)
        if (first := table.first()) is None:
            return
        make = self.choose(table, [first], columns, "read" if gold else "unread")
        for index, row in enumerate(table.records):
            if rows is not None and not table.sentences:
                rows[index] = row.values
            yield self.predicted(index, make(index, row))

    def example(self, index: int, row: Mapping[str, Any], where: str) -> Any:
        """Return the example of one row in memory, without its gold."""
        table, record = Table(where, list(row), iter(())), Record(row, where)
        try:
            make = self.choose(table, [record], {}, "unread")
        except MissingColumn as error:
            keys = ", ".join(map(repr, row)) or "none"
            raise DataError(
                f"{where}: no key holds {error.content} (keys here: {keys}): add {error.usual!r}."
            ) from error
        return make(index, record)


def _are_answers(table: Table, rows: Sequence[Any]) -> bool:
    if table.sentences or "answer" not in table.header or "answer" in table.read.values():
        return False
    answers = [row.values["answer"] for row in rows if row.values.get("answer") is not None]
    texts = all(isinstance(answer, str) for answer in answers)
    return texts and {"accept"} < {*answers} <= {"accept", "reject", "ignore"}


def made_examples(
    table: Table, make: Make, errors: list[str] | None = None, num_first: int = 0
) -> tuple[Examples, Counter[str]]:
    """Return the examples of rows, and how many rows are left out, by reason.

    Args:
        table: The table, whose notes get the columns that none of its first rows has.
        make: Makes an example.
        errors: Gets the errors of bad rows, which are left out; without it, the first one is
            raised.
        num_first: The number of first rows, which the columns were chosen from.
    """
    later, left_out = dict[str, None](), Counter[str]()
    rows = table.records
    if num_first > holder.MOST_IN_MEMORY and not table.sentences:
        rows = chain(islice(rows, num_first), _noting(rows, {*table.header}, later))
    examples = collected(_made(rows, make, errors, left_out))
    if later:
        names = abbreviated(later)
        table.notes.append(
            f"columns that no row has before row {num_first:,} are not read: {names}"
        )
    return examples, left_out


def _noting(rows: Iterable[Record], header: set[str], later: dict[str, None]) -> Iterator[Record]:
    for row in rows:
        if not header.issuperset(row.values):
            later |= dict.fromkeys(name for name in row.values if name not in header)
        yield row


def _made(
    rows: Iterable[Any], make: Make, errors: list[str] | None, left_out: Counter[str]
) -> Iterator[Any]:
    index = 0
    for row in rows:
        try:
            example = make(index, row)
        except DataError as error:
            keep_error(error, errors)
            continue
        if isinstance(example, str):
            left_out[example] += 1
            continue
        yield example
        index += 1
