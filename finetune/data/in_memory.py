"""Data sets in memory: of `datasets`, data frames of pandas or polars, and lists of dicts.

None of these libraries is imported here: a data frame exists only if its library is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from finetune.data.annotation_tools import tool_rows
from finetune.data.dataset import DataError
from finetune.data.hub import dataset_tables
from finetune.data.tables import Table


def memory_tables(data: Any) -> dict[str, Table]:
    """Return the tables of a data set in memory, by split.

    Args:
        data: Rows, which are the train split, or a mapping from splits to rows. Rows are a
            ``datasets.Dataset``, a data frame of pandas or polars, or a list of dicts.

    Raises:
        DataError: The data have another type, or a row is not a dict.
    """
    splits = dict(data) if isinstance(data, Mapping) else {"train": data}
    tables: dict[str, Table] = {}
    for split, rows in splits.items():
        name = f"data[{split!r}]" if isinstance(data, Mapping) else "data"
        if _is_from("datasets", "Dataset", rows):
            tables |= dataset_tables({str(split): rows}, name)
        else:
            tables[str(split)] = Table(name, [], _records(_dicts(rows, name), name))
    return tables


def _is_from(library: str, kind: str, rows: Any) -> bool:
    """Return whether rows are an instance of a class of a library that may not be loaded."""
    return library in sys.modules and isinstance(rows, vars(sys.modules[library])[kind])


def _dicts(rows: Any, name: str) -> Sequence[Any]:
    """Return rows as dicts."""
    if _is_from("pandas", "DataFrame", rows):
        known = rows.astype(object).where(rows.notna(), None)
        found: list[Any] = known.to_dict("records")
        return found
    if _is_from("polars", "DataFrame", rows):
        return list(rows.to_dicts())
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return rows
    raise DataError(
        f"{name}: {type(rows).__name__} is not a table: give a datasets.Dataset, a data frame of "
        "pandas or polars, or a list of dicts such as {'text': 'Fine film', 'label': 'positive'}; "
        "or a dict of these by split."
    )


def _records(rows: Sequence[Any], name: str) -> Iterator[Any]:
    def read(number: int, row: Any) -> Iterator[Any]:
        if not isinstance(row, Mapping):
            raise DataError(
                f"{name}, row {number}: {row!r:.60} is not a dict such as "
                "{'text': 'Fine film', 'label': 'positive'}."
            )
        values = {str(column): _plain(value) for column, value in row.items()}
        return tool_rows(values, f"{name}, row {number}")

    return chain.from_iterable(read(number, row) for number, row in enumerate(rows, 1))


def _plain(value: Any) -> Any:
    """Return a cell as JSON values: arrays and tuples as lists, numpy's numbers as Python's."""
    import numpy as np

    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return value
