"""Tasks of Prodigy (https://prodi.gy/docs/api-interfaces), which hold choices, or spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SKIPPED_ANSWERS = ("reject", "ignore")
"""Values of the column ``answer`` with which an annotator excludes a row."""
TOOL_COLUMNS = ("answer", "options", "accept", "config", "_input_hash", "_task_hash", "_view_id")
"""Columns that only the tool reads."""


def is_choice(row: Mapping[str, Any]) -> bool:
    """Whether a row has accepted options."""
    return isinstance(row.get("accept"), list) and isinstance(row.get("options"), list)


def read_choice(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a task with options: one accepted option is the label, several are a list."""
    config = row.get("config")
    style = config.get("choice_style") if isinstance(config, Mapping) else None
    chosen = row["accept"]
    single = chosen[0] if chosen else None
    return {**row, "label": single if style in (None, "single") else chosen}
