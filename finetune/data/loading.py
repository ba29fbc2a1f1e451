"""Steps that reading texts and reading words share: splits -> tables, and finding columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from finetune.data.dataset import DataError
from finetune.data.files import Opened, format_of, open_data
from finetune.data.hub import hub_tables, saved_tables
from finetune.data.sources import Source, canonical_split, select_splits
from finetune.data.tables import Table
from finetune.types import perhaps, shortened

T = TypeVar("T")


@dataclass
class Loaded:
    """The tables of the chosen splits, in order, before they are read through."""

    name: str
    tables: dict[str, Table]
    format: str
    notes: list[str] = field(default_factory=list)


def tables_of(
    source: Source, splits: Sequence[str] | None, opening: Callable[[Opened], Table]
) -> Loaded:
    """Open what the source names; ``opening`` turns one opened file into a table."""
    if source.files:
        chosen = select_splits(list(source.files), splits, source.name)
        tables = {split: _joined(source.files[split], opening) for split in chosen}
        formats = {format_of(source.files[split][0]) or "plain" for split in chosen}
        return Loaded(source.name, tables, "+".join(sorted(formats)))
    found = saved_tables(source.saved) if source.saved else hub_tables(source.hub)
    named = {canonical_split(split) or split: table for split, table in found.items()}
    if splits is None:
        legal = [split for split in named if canonical_split(split)] or list(named)
    else:
        legal = select_splits(list(named), splits, source.name)
    tables = {split: named[split] for split in select_splits(legal, None, source.name)}
    left = [split for split in named if split not in tables]
    notes = [f"splits not read: {', '.join(left)}"] if left and splits is None else []
    return Loaded(source.name, tables, "save_to_disk" if source.saved else "hub", notes)


def _joined(paths: Sequence[Path], opening: Callable[[Opened], Table]) -> Table:
    """The table of one file, or of all shards of a split in order."""
    tables = [opening(open_data(path)) for path in paths]
    first = tables[0]
    if len(tables) > 1:
        first.records = itertools.chain(*[table.records for table in tables])
    return first


def check_columns(columns: Mapping[str, str] | None, roles: Sequence[str]) -> dict[str, str]:
    """The user's columns by role, as text; raises DataError for a role that does not exist."""
    columns = {role: str(name) for role, name in (columns or {}).items()}
    for role in columns:
        if role not in roles:
            raise DataError(
                f"--columns {role}={columns[role]}: {role!r} is no role: the roles here are "
                f"{', '.join(roles)}.{perhaps(role, roles)}"
            )
    return columns


def find_column(table: Table, role: str, name: str) -> str:
    """The column that the user means: its name (in any case), or its number from 0."""
    if name in table.header:
        return name
    lowered = {column.lower(): column for column in reversed(table.header)}
    if name.lower() in lowered:
        return lowered[name.lower()]
    if name.isdecimal() and int(name) < len(table.header) and not table.typed:
        return table.header[int(name)]
    raise DataError(
        f"{table.name}: no column {name!r} (--columns {role}={name}); {columns_found(table)}."
        f"{perhaps(name, table.header)}"
    )


def no_column(table: Table, role: str, what: str, usual: str) -> DataError:
    """The error for a role that no column has the usual name of."""
    example = "NAME (its name)"
    if table.headless is not None:
        example = f"0 (its number from 0; if that row is a header, its name: {role}=NAME)"
    return DataError(
        f"{table.name}: no column is known to hold {what}; {columns_found(table)}. Name it: "
        f"--columns {role}={example}, or call it {usual!r} in the file."
    )


def columns_found(table: Table) -> str:
    """The columns of a table, in words; for a file without header its first row."""
    if table.headless is None:
        return f"columns found: {shortened(table.header) or 'none'}"
    cells = (cell if len(cell) <= 30 else cell[:29] + "…" for cell in table.headless)
    row = ", ".join(f"{index}: {cell!r}" for index, cell in enumerate(cells))
    return f"the file has no header with known names; its first row: {row}"
