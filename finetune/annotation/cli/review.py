"""`finetune review`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from finetune.cli.command import Command
from finetune.cli.output import check_output, show
from finetune.config.options import OUTPUT, Help, argument
from finetune.runtime.files import replace_file, require_replaceable
from finetune.types import UserError, abbreviated, did_you_mean, quantity


@dataclass(frozen=True, kw_only=True)
class Review(Command):
    """Write a page to click through suspected or suggested labels, tags and spans.

    Examples:
        finetune review suspects.jsonl --out review.html
        finetune review next.jsonl --out review.html --labels sports politics
    """

    file: Annotated[str, argument("FILE")]
    """Suspects of `check --label-errors --out`, output of `suggest`, or predictions of a run."""
    out: Annotated[str, OUTPUT]
    """HTML file to write: one file that needs no network."""
    columns: Annotated[tuple[str, ...], Help("ROLE=COLUMN …", "data")] = ()
    """Columns of text and pair in predictions with --keep-columns, if they have other names than
    `text` and `text_pair`: `text=Message`."""
    labels: tuple[str, ...] = ()
    """Labels to offer besides the labels of the file."""

    def run(self) -> None:
        """Write the page."""
        from finetune.annotation.review_page import TEXTS, page
        from finetune.config.tasks import column_map
        from finetune.data.files import read_lines
        from finetune.data.json_files import parse_json
        from finetune.data.tables import check_columns

        path, output = Path(self.file), Path(self.out)
        if not path.is_file():
            what = "a folder: name a file in it" if path.is_dir() else "no such file"
            raise UserError(f"{path}: {what}.")
        check_output(self.out, [path])
        require_replaceable(output, "<!doctype html", "--out")
        rows = [
            parse_json(line, f"{path}:{number}") for number, line in read_lines(str(path), path)
        ]
        if not rows or not all(isinstance(row, dict) for row in rows):
            raise UserError(f"{path}: no lines of suspects or suggestions.")
        columns = check_columns(column_map(self.columns), tuple(TEXTS))
        for number, row in enumerate(rows, 1):
            for role, name in columns.items():
                if name not in row:
                    found, hint = abbreviated(list(row)), did_you_mean(name, list(row))
                    raise UserError(
                        f"{path}:{number}: no column {name!r}; columns found: {found}.{hint}"
                    )
                row[TEXTS[role]] = row[name]
        html, number = page(rows, path.name, self.labels)
        with replace_file(output, follow=True) as file:
            file.write(html)
        show(f"wrote {quantity(number, 'text')} to decide on: {output}", error=True)
