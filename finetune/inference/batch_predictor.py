"""A trained model as a function of batches, for engines such as Ray Data, Spark and Dask."""

from __future__ import annotations

import functools
import pickle
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finetune.data.in_memory import input_table, is_from
from finetune.inference.predictor import Predictor
from finetune.runtime.records import with_same_columns
from finetune.types import UserError, quantity

_LOCK = threading.Lock()
"""Held while a model is loaded or predicts: engines may call from several threads."""


class BatchPredictor:
    """Predicts batches of rows: a function that engines send to their workers.

    It is pickled without the model, which each worker process loads once. A batch is a dict of
    columns (lists or arrays), a data frame of pandas, or a table of pyarrow. The result is of the
    same kind: the columns of the batch and the columns that ``finetune predict --out x.parquet``
    writes, without the row number ``id``. A column of the batch with the name of a field of the
    prediction becomes ``input_NAME``. A batch without rows is returned as it is.

    Args:
        run: A run folder, the folder of a model or its hub id, which every worker can read.
        columns: Columns by role, if they have other names than in training and no usual names.
        options: The other arguments of ``Predictor``.

    Examples:
        >>> predict = BatchPredictor("runs/x")  # doctest: +SKIP
        >>> predict({"text": ["What a film."]})["label"]  # doctest: +SKIP
        ['positive']
    """

    def __init__(
        self,
        run: str | Path,
        *,
        columns: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.run, self.columns, self.options = str(run), columns, options

    def __call__(self, batch: Any) -> Any:
        """Return a batch with its predictions.

        Raises:
            UserError: The batch is of another kind, or a row is not what the model reads.
        """
        is_table = is_from("pandas", "DataFrame", batch) or is_from("pyarrow", "Table", batch)
        if not (is_table or isinstance(batch, Mapping)):
            raise UserError(
                "a batch is a dict of columns, a data frame of pandas or a table of pyarrow, not "
                f"{type(batch).__name__}."
            )
        if not (size := len(batch) if is_table else len(next(iter(batch.values()), ()))):
            return batch
        table, rows = input_table(batch), dict[int, Mapping[str, Any]]()
        assert table is not None
        with _LOCK:
            model = _loaded(pickle.dumps((self.run, self.options)))
            inputs = model.task.record.inputs
            examples = list(inputs.read(table, columns=self.columns, rows=rows))
            found = with_same_columns(each.record() for each in model.stream(examples))
        if len(found) != size:
            raise UserError(
                f"a batch of {quantity(size, 'row')} holds {quantity(len(found), 'example')}: give "
                "one example in each row."
            )
        columns = {name: [row[name] for row in found] for name in found[0] if name != "id"}
        if columns.get("words") == [row.get("words") for row in rows.values()]:
            del columns["words"]  # those of the batch
        return _joined(batch, columns)


@functools.cache
def _loaded(pickled: bytes) -> Predictor:
    """Load the model of a run with options, once in each process."""
    run, options = pickle.loads(pickled)
    return Predictor(run, **options)


def _joined(batch: Any, columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return a batch with further columns."""
    taken = {*columns}
    renamed = {}
    for name in batch.column_names if is_from("pyarrow", "Table", batch) else batch:
        new = name
        while new in taken:
            new = f"input_{new}"
        taken.add(new)
        renamed[name] = new
    if is_from("pyarrow", "Table", batch):
        return _joined_table(batch.rename_columns(list(renamed.values())), columns)
    if is_from("pandas", "DataFrame", batch):
        series = sys.modules["pandas"].Series
        new_columns = {
            name: series(_array(values), index=batch.index) for name, values in columns.items()
        }
        return batch.rename(columns=renamed).assign(**new_columns)
    arrays = all(isinstance(values, np.ndarray) for values in batch.values())
    return {renamed[name]: values for name, values in batch.items()} | {
        name: _array(values) if arrays else list(values) for name, values in columns.items()
    }


def _joined_table(table: Any, columns: Mapping[str, Sequence[Any]]) -> Any:
    import pyarrow

    for name, values in columns.items():
        # a column without values has no type, so that tables of batches can be concatenated
        table = table.append_column(name, pyarrow.array(values))
    return table


def _array(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return values as an array: of numbers, else of objects."""
    if values and all(isinstance(value, bool | int | float) for value in values):
        return np.array(values)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
