"""Files of predictions, of any system: JSON lines, or words in columns; one row an example."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.data import DataError, read_token_file
from finetune.data.conll import layout_of
from finetune.data.files import Opened, open_data

Rows = Sequence[tuple[str, dict[str, Any]]]
"""The lines of a file of predictions, each with its ``file:line``."""

_FORMS = ("tags", "spans", "label")


def read_rows(path: Path) -> Rows:
    """The predictions of a file: JSON lines, or words in columns of which the last is the answer.

    Raises DataError for a line that is no prediction, and where there is none.
    """
    file = open_data(path)
    rows = list(_column_rows(path, file) if _in_columns(file) else _rows(path))
    if not rows:
        raise DataError(f"{path}: there is no prediction in it.")
    return rows


def kind_of_rows(rows: Rows) -> str:
    """What the predictions of a file are: ``tags``, ``spans`` or ``label``.

    Tags go before spans where a line has both. Raises DataError where lines differ.
    """
    forms = {next((form for form in _FORMS if form in row), "") for _, row in rows}
    if len(forms) == 1 and (form := forms.pop()):
        return form
    raise DataError(
        f"{file_of(rows)}: each line must have `label`, or each must have `tags`, or each `spans`."
    )


def has_gold_column(path: Path) -> bool:
    """Whether predictions are in columns that can have gold beside them: a word and two more."""
    file = open_data(path)
    columns = _in_columns(file) and file.format != "conllu"
    return columns and layout_of(file, {}).num_columns >= 3


def file_of(rows: Rows) -> str:
    """The file that rows were read from."""
    return rows[0][0].rpartition(":")[0]


def _in_columns(file: Opened) -> bool:
    if file.format in ("conll", "conllu"):
        return True
    return file.format in ("txt", "tsv", "unknown") and file.first().lstrip()[:1] not in ("{", "[")


def _column_rows(path: Path, file: Opened) -> Iterator[tuple[str, dict[str, Any]]]:
    columns = {} if file.format == "conllu" else {"tags": "-1"}
    format = "conll" if file.format != "conllu" else None
    for sentence in read_token_file(path, columns=columns, format=format):
        yield sentence.where, {"words": list(sentence.words), "tags": list(sentence.tags or ())}


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in open_data(path, "jsonl"):
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not a JSON line ({error.msg}): was the file cut?") from error
        if not isinstance(row, dict):
            raise DataError(f'{where}: a prediction is an object such as {{"label": "x"}}.')
        _check_row(where, row)
        yield where, row


def _check_row(where: str, row: Mapping[str, Any]) -> None:
    """Refuse labels and tags of a wrong kind."""
    tags, label = row.get("tags", []), row.get("label", "")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise DataError(
            f"{where}: tags must be a list with a text for each word, not {tags!r:.60}."
        )
    parts = label if isinstance(label, list) else [label]
    if not all(isinstance(part, str | float | int) for part in parts):
        raise DataError(
            f"{where}: label must be a name, a list of names or a number, not {label!r:.60}."
        )
