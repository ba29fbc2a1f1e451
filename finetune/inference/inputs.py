"""Inputs of predictions: the rows of a file, of standard input, or of a table in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from finetune.data.files import UTF_8, Wanted
from finetune.data.tables import Table
from finetune.tasks.base import Task
from finetune.types import Example


def read_inputs(
    task: Task,
    source: str | Path | Table,
    *,
    columns: Mapping[str, str] | None = None,
    encoding: str = UTF_8,
    rows: dict[int, Mapping[str, Any]] | None = None,
    wanted: Wanted | None = None,
) -> Iterator[Example]:
    """Stream the examples of a task; ``id`` is the row number from 0.

    Args:
        task: The task of the model. The columns that its training named are read where ``columns``
            names none and the source has them.
        source: A path, a folder or pattern of several files, ``-`` for standard input, or a table.
        columns: Columns by role.
        encoding: Text encoding of the files.
        rows: Gets the values of each row by ``id``.
        wanted: Tells by its number whether to read a row; None reads all.

    Raises:
        DataError: If a row cannot be read; the message names file and line.
    """
    return task.record.inputs.read(
        source, columns=columns, encoding=encoding, rows=rows, wanted=wanted
    )
