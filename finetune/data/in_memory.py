"""Data sets in memory: of `datasets`, frames of pandas, polars or pyarrow, and lists of dicts.

None of these libraries is imported here: a data frame exists only if its library is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from finetune.data.files import Row
from finetune.data.hub import dataset_table
from finetune.data.tables import Table, refuse_repeated
from finetune.types import DataError


def memory_tables(data: Any) -> dict[str, Table]:
    """Make the tables of a data set in memory, by split.

    Args:
        data: Rows, which are the train split, or a mapping from splits to rows. Rows are a
            ``datasets.Dataset``, a data frame of pandas or polars, a table of pyarrow, a list of
            dicts, or a dict of columns.

    Raises:
        DataError: The data have another type, or a row is not a dict.
    """
    if isinstance(data, Mapping) and all(map(_is_empty, data.values())):
        raise DataError("data: there are no rows to train on.")
    by_split = isinstance(data, Mapping) and not _is_columns(data)
    splits = dict(data) if by_split else {"train": data}
    return {
        str(split): _table(rows, f"data[{split!r}]" if by_split else "data")
        for split, rows in splits.items()
    }


def input_table(data: Any) -> Table | None:
    """Make the table of data in memory to predict, as ``memory_tables`` takes them.

    A plain list of inputs, or a column such as a ``pandas.Series``, is no table: None.

    Raises:
        DataError: The data are a dict of splits, or no table at all.
    """
    if isinstance(data, Mapping) and data and all(_is_empty(values) for values in data.values()):
        return Table("data", [], iter(()))
    if isinstance(data, Mapping) and not _is_columns(data):
        names = ", ".join(map(repr, list(data)[:3])) or "nothing"
        raise DataError(
            f"predict takes rows, not a dict of {names}: give one split such as data['test'], a "
            "dict of columns such as {'text': ['Fine film', 'Dull film']}, or a list of inputs."
        )
    is_list = isinstance(data, Sequence) and not isinstance(data, str | bytes)
    if _is_column(data) or (is_list and not any(isinstance(row, Mapping) for row in data[:1])):
        return None
    return _table(data, "data")


def input_list(inputs: Any, function: str) -> Iterable[Any]:
    """Check a list of inputs; missing texts of a column of pandas are blank, as in a data frame.

    Raises:
        DataError: The inputs are a text, a table or a path.
    """
    if isinstance(inputs, str):
        raise DataError(f"{function} takes a list of inputs: write {function}([{inputs!r:.40}]).")
    frames = ("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table")
    if isinstance(inputs, Mapping) or any(is_from(*frame, inputs) for frame in frames):
        raise DataError(
            f"{function} takes a list of inputs, and {type(inputs).__name__} is a table: give one "
            f"of its columns, such as {function}(data['text'])."
        )
    if not isinstance(inputs, Iterable):
        raise DataError(f"{function} takes a list of inputs, not {inputs!r:.60}.")
    if is_from("pandas", "Series", inputs):
        column: Any = inputs
        return list(column.astype(object).where(column.notna(), ""))
    return inputs


def _table(rows: Any, name: str) -> Table:
    if is_from("datasets", "Dataset", rows):
        return dataset_table(rows, name, f"{name}, row ")
    return Table(name, [], _rows(_dicts(rows, name), name))


def _is_columns(data: Mapping[Any, Any]) -> bool:
    values = data.values()
    return any(map(_is_cells, values)) and all(isinstance(v, list) or _is_cells(v) for v in values)


def _is_column(values: Any) -> bool:
    series = is_from("pandas", "Series", values) or is_from("polars", "Series", values)
    return series or is_from("numpy", "ndarray", values)


def _is_cells(values: Any) -> bool:
    if _is_column(values):
        return True
    is_list = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    return is_list and len(values) > 0 and not isinstance(values[0], Mapping)


def _is_empty(values: Any) -> bool:
    return isinstance(values, list | tuple) and not values


def is_from(library: str, class_name: str, rows: Any) -> bool:
    """True if rows are an instance of a class of a library that may not be loaded."""
    return library in sys.modules and isinstance(rows, vars(sys.modules[library])[class_name])


def _dicts(rows: Any, name: str) -> Sequence[Any]:
    if is_from("pandas", "DataFrame", rows):
        refuse_repeated(rows.columns, name)
        rows = rows.astype(
            {column: "Int64" for column in rows.columns if _has_gaps_in_integers(rows[column])}
        )
        known = rows.astype(object).where(rows.notna(), None)
        dicts: list[Any] = known.to_dict("records")
        return dicts
    if is_from("polars", "DataFrame", rows):
        return list(rows.to_dicts())
    if is_from("pyarrow", "Table", rows):
        refuse_repeated(rows.schema.names, name)
        return list(rows.to_pylist())
    if isinstance(rows, Mapping) and _is_columns(rows):
        columns = {str(column): _cells(values) for column, values in rows.items()}
        lengths = {column: len(values) for column, values in columns.items()}
        if len({*lengths.values()}) > 1:
            counted = ", ".join(f"{column} has {length:,}" for column, length in lengths.items())
            raise DataError(f"{name}: the columns have different lengths: {counted}.")
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return rows
    raise DataError(
        f"{name}: {type(rows).__name__} is not a table: give a datasets.Dataset, a data frame of "
        "pandas or polars, a table of pyarrow, a list of dicts such as {'text': 'Fine film', "
        "'label': 'positive'}, or a dict of columns; or a dict of these by split."
    )


def _has_gaps_in_integers(column: Any) -> bool:
    if column.dtype.kind != "f" or not column.isna().any():
        return False
    return bool((column.dropna() % 1 == 0).all())


def _cells(values: Any) -> list[Any]:
    if is_from("pandas", "Series", values) and _has_gaps_in_integers(values):
        values = values.astype("Int64").astype(object).where(values.notna(), None)
    return list(values)


def _rows(rows: Sequence[Any], name: str) -> Iterator[Any]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataError(
                f"{name}, row {number}: {row!r:.60} is not a dict such as "
                "{'text': 'Fine film', 'label': 'positive'}."
            )
        values = {str(column): _plain(value) for column, value in row.items()}
        yield Row(values, f"{name}, row {number}")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return value
