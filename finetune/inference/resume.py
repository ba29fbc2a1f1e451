"""Predictions in a file of JSON Lines, which the same command continues after a kill.

Until the file is complete, its lines are in ``.NAME.new``, and ``.NAME.settings`` says what they
depend on: the model, the input and the settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

import finetune
from finetune.data.files import Content, format_of, read_content
from finetune.data.json_files import read_object
from finetune.runtime.files import lock_file, unfinished_file, write_text
from finetune.types import UserError


def about_rows(files: Sequence[Path], contents: Sequence[Content]) -> int | None:
    """Estimate the number of rows of files with known contents; None if a format does not tell."""
    formats = {format_of(path) for path in files}
    if not files or not formats <= {"jsonl", "txt", "csv", "tsv"}:
        return None
    header = 1 if formats & {"csv", "tsv"} else 0
    return sum(content.num_lines - header for content in contents)


def settings_path(path: Path) -> Path:
    """The file with the settings of an unfinished file of predictions."""
    return path.with_name(f".{path.name}.settings")


def content_of(model: Path, inputs: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs and settings that predictions depend on, as JSON values.

    Args:
        model: The folder of the model.
        inputs: The content hashes of the input files.
        settings: The settings that change predictions.
    """
    digest = xxhash.xxh3_128()
    for path in sorted(model.iterdir()):
        if path.is_file() and path.suffix != ".md" and not path.name.startswith("."):
            digest.update(f"{path.name} {read_content(path).digest}\n".encode())
    content = {"finetune": finetune.__version__, "model": digest.hexdigest(), "input": [*inputs]}
    loaded: dict[str, Any] = json.loads(json.dumps(content | dict(settings), default=str))
    return loaded


def start_lines(path: Path, content: Mapping[str, Any], *, resume: bool, multiple: int) -> int:
    """Start or continue a file; return the number of lines that are kept.

    The number is a multiple of ``multiple``, the rows that are predicted together, so that a
    continued file has the same bytes.

    Raises:
        UserError: The lines are of another model, input or settings.
    """
    with lock_file(path):
        lines, settings = unfinished_file(path), settings_path(path)
        if not (resume and lines.exists() and settings.exists()):
            lines.unlink(missing_ok=True)
            write_text(settings, json.dumps(content))
            return 0
        before = read_object(settings)
        if changed := [name for name, value in content.items() if before.get(name) != value]:
            raise UserError(
                f"--resume: {path} was begun with another {changed[0].replace('_', ' ')}: use what "
                "it was begun with, or leave --resume out to start again."
            )
        kept = number = end = size = 0
        with lines.open("rb+") as file:
            for line in file:
                number, size = number + 1, size + len(line)
                if number % multiple == 0 and line.endswith(b"\n"):
                    kept, end = number, size
            file.truncate(end)
        return kept
