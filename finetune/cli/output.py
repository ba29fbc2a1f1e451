"""Terminal output that commands share: tables, errors, files that appear when complete."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging as python_logging
import math
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from finetune.config.tasks import flag
from finetune.config.values import shown_value
from finetune.runtime.files import is_free
from finetune.runtime.progress import terminal
from finetune.runtime.row_files import (
    ROW_SUFFIXES,
    Write,
    csv_line,
    json_line,
    require_suffix,
    row_writer,
)
from finetune.runtime.terminal import printable
from finetune.types import UserError

TableFormat = Literal["table", "csv", "latex", "markdown", "json"]


def show(text: str = "", *, error: bool = False) -> None:
    """Print a text on standard output or standard error, without its control characters.

    Commands print with this function and `print_table` only.
    """
    print(printable(text), file=sys.stderr if error else sys.stdout, flush=True)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None
) -> None:
    """Print a table as aligned columns, of which nothing is wrapped or cut.

    Columns whose first value is a number are aligned to the right.
    """
    console = terminal(width=10_000, no_color=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column, value in zip(columns, rows[0] if rows else columns, strict=True):
        align: Literal["left", "right"] = "left" if isinstance(value, str) else "right"
        table.add_column(Text(printable(column)), justify=align, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(shown_value(value))) for value in row))
    with console.capture() as captured:
        if title is not None:
            console.print(Text(printable(title)), soft_wrap=True)
        console.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_tables(
    format: TableFormat, *tables: tuple[str, Sequence[str], Sequence[Sequence[Any]]]
) -> None:
    """Print tables (title, columns, rows) in a format, and nothing else.

    Several tables are separated by a blank line. JSON is a list of objects, one for each row, or
    for several tables an object of such lists by title. Control characters are shown as text.
    """
    if format == "json":
        objects = {
            title: [dict(zip(columns, row, strict=True)) for row in rows]
            for title, columns, rows in tables
        }
        content = objects if len(objects) > 1 else next(iter(objects.values()))
        return show(json.dumps(content, indent=2, ensure_ascii=False))
    if format == "table":
        for title, columns, rows in tables:
            print_table(columns, rows, title or None)
        return None
    show("\n\n".join(table_text(format, *table) for table in tables))
    return None


def table_text(
    format: Literal["csv", "latex", "markdown"],
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> str:
    """Format a table."""
    if format == "csv":
        return "\n".join(map(csv_line, [columns, *rows]))
    return (_latex if format == "latex" else _markdown)(title, columns, rows)


_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",
    "]": "{]}",
    "\n": " ",
}


@dataclass(frozen=True)
class ScoreCell:
    """A score in a table for papers: perhaps with a deviation, in bold, and with a mark."""

    score: str
    deviation: str | None = None
    bold: bool = False
    marked: bool = False

    def __str__(self) -> str:
        """The score in Markdown and plain text."""
        deviation = "" if self.deviation is None else f" ± {self.deviation}"
        score = f"**{self.score}**" if self.bold else self.score
        return f"{score}{deviation}{' †' * self.marked}"

    @property
    def latex(self) -> str:
        """The score in LaTeX."""
        text = re.sub(r"\*\*(.*)\*\*", r"\\textbf{\1}", str(self))
        return text.replace("±", r"$\pm$").replace(" †", r"$^{\dagger}$")


def in_percent(metric: str) -> bool:
    """Whether tables for papers have a metric in percent: all but errors and counts."""
    from finetune.evaluation.prediction_types import score_limits

    return math.isfinite(score_limits(metric)[1])


def score_cell(metric: str, value: float, deviation: float | None, **marks: bool) -> ScoreCell:
    """Format a score and its deviation for a table; ``marks`` are those of ``ScoreCell``."""
    form = "{:.2f}" if in_percent(metric) else "{:.4f}"
    scale = 100 if in_percent(metric) else 1
    shown = None if deviation is None else form.format(scale * deviation)
    return ScoreCell(form.format(scale * value), shown, **marks)


def _latex(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def line(values: Sequence[Any]) -> str:
        texts = (
            value.latex
            if isinstance(value, ScoreCell)
            else "".join(_LATEX.get(c, c) for c in shown_value(value))
            for value in values
        )
        return " & ".join(texts) + r" \\"

    sides = "".join("r" if right else "l" for right in _numeric(columns, rows))
    return "\n".join(
        [
            *([f"% {title}"] if title else []),
            rf"\begin{{tabular}}{{{sides}}}",
            r"\toprule",
            line(columns),
            r"\midrule",
            *map(line, rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def line(values: Sequence[Any]) -> str:
        texts = (
            str(value)
            if isinstance(value, ScoreCell)
            else re.sub(r"([\\`*_|<\[])", r"\\\1", shown_value(value))
            for value in values
        )
        return "| " + " | ".join(text.replace("\n", " ") for text in texts) + " |"

    rule = " | ".join("---:" if right else "---" for right in _numeric(columns, rows))
    head = [f"**{title}**", ""] if title else []
    return "\n".join([*head, line(columns), f"| {rule} |", *map(line, rows)])


def _numeric(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bool]:
    return [
        bool(rows) and not any(isinstance(row[index], str) for row in rows)
        for index in range(len(columns))
    ]


@contextlib.contextmanager
def open_rows(path: str | None, inputs: Iterable[Path] = ()) -> Iterator[Write]:
    """Yield a function that writes a row to --out, whose suffix is the format.

    The file appears when it is complete. None prints JSON Lines.
    """
    if path is None:
        yield lambda row: show(json_line(row))
        return
    check_output(path, inputs, ROW_SUFFIXES)
    with row_writer(path) as write:
        yield write


def check_output(path: str, inputs: Iterable[Path] = (), suffixes: Iterable[str] = ()) -> None:
    """Raise UserError if --out cannot be a file, or is an input, perhaps by another name.

    The suffix must be one of ``suffixes``, if there are any.
    """
    if path == "-":
        raise UserError("--out -: name a file, or leave it out if the command can print.")
    if Path(path).is_dir() or not Path(path).absolute().parent.is_dir():
        problem = "is a folder" if Path(path).is_dir() else "its folder does not exist"
        raise UserError(f"--out {path}: {problem}: name a file in a folder that exists.")
    for source in inputs:
        if source.is_file() and Path(path).is_file() and source.samefile(path):
            raise UserError(f"--out {path} would overwrite the input {source}: name another file.")
    if suffixes:
        require_suffix(path, suffixes)


def inputs_of(file: str | None) -> list[Path]:
    """List the files that --file names, for ``check_output``."""
    from finetune.data.sources import input_files

    return input_files(file) if file and file != "-" else []


def refuse_options(command: Any, used: Collection[str], subject: str) -> None:
    """Raise UserError if an option is given that ``subject`` does not use."""
    for field in dataclasses.fields(command):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        if field.name not in used and vars(command)[field.name] != default:
            raise UserError(f"{flag(field.name)}: it does not apply to {subject}: leave it out.")


def require_free(out: str | None) -> Path:
    """Check that the folder of --out is empty; UserError if not."""
    folder = Path(out or "")
    if not is_free(folder):
        raise UserError(f"--out {folder} is not empty: name a new folder.")
    return folder


def write_run(folder: Path, config: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Write the settings and the scores of a run that trains no model."""
    for name, content in (("config", config), ("metrics", metrics)):
        text = json.dumps(content, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def quiet_libraries() -> None:
    """Turn off the progress bars and advice of transformers, unless --verbose asks for them."""
    if python_logging.getLogger().isEnabledFor(python_logging.INFO):
        return
    import transformers
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars

    logging: Any = transformers.logging
    logging.set_verbosity_error()
    downloads = not are_progress_bars_disabled()
    logging.disable_progress_bar()
    if downloads:
        enable_progress_bars()
