"""`finetune convert`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from finetune.cli.command import Command
from finetune.cli.options import DataOptions
from finetune.cli.output import check_output, show
from finetune.config.options import OUTPUT, Help, argument
from finetune.runtime.files import is_free, replace_file, replace_folder
from finetune.runtime.records import RECORD_SUFFIXES, with_same_columns, write_records
from finetune.types import UserError, quantity

SUFFIXES = {
    "jsonl": (".jsonl", ".ndjson"),
    "conll": (".conll", ".txt", ".tsv", ".iob", ".iob2", ".bio", ".conllu"),
    "prodigy": (".jsonl",),
    "doccano": (".jsonl",),
    "label-studio": (".json",),
    "spacy": (".json",),
}
"""The suffixes of the files of a format, if its name is not the only suffix."""


@dataclass(frozen=True, kw_only=True)
class Convert(DataOptions, Command):
    """Convert annotated data, or predictions, to the format of an annotation tool or another.

    Examples:
        finetune convert data.conll --to doccano --out data.jsonl
        finetune convert export.json --to conll --out data.conll
    """

    source: Annotated[str, argument("SOURCE")]
    """File of any format, export of an annotation tool, folder of brat, or predictions of a run."""
    to: Annotated[
        Literal[
            "jsonl",
            "json",
            "csv",
            "tsv",
            "xlsx",
            "parquet",
            "conll",
            "prodigy",
            "doccano",
            "label-studio",
            "brat",
            "spacy",
        ],
        OUTPUT,
    ]
    """Format to write; in tables a cell with spans or several labels is JSON."""
    out: Annotated[str, OUTPUT]
    """File to write, with a suffix of the format; for brat a folder that is empty or absent."""
    columns: tuple[str, ...] = ()
    """Columns if their names are not recognized, as `role=column`; `spans=NAME` reads spans where
    a row has a label too."""
    decisions: Annotated[str | None, Help("FILE", "data")] = None
    """Decisions from the page of `review`, to apply."""

    def run(self) -> None:
        """Write the output, and print its omissions."""
        from finetune.annotation.annotations import read_annotations
        from finetune.annotation.decisions import apply_decisions, read_decisions
        from finetune.annotation.writers import (
            LEFT_OUT,
            Omissions,
            check_format,
            to_records,
            to_text,
            write_brat,
        )

        output = Path(self.out)
        if self.to == "brat":
            if output.exists() and not (output.is_dir() and is_free(output)):
                raise UserError(f"--out {output} exists: name an empty or absent folder.")
        else:
            check_output(self.out, [Path(self.source)], SUFFIXES.get(self.to, [f".{self.to}"]))
        decisions = None if self.decisions is None else read_decisions(Path(self.decisions))
        words = any("label" not in decision for decision in decisions or ())
        annotations = read_annotations(self.source, **self.reading, words=words)
        decided: list[str] = []
        if decisions is not None:
            annotations, decided = apply_decisions(annotations, decisions)
        check_format(annotations, self.to)
        omitted: Omissions = defaultdict(list)
        if self.to == "brat":
            with replace_folder(output) as folder:
                notes = write_brat(annotations, folder)
        elif f".{self.to}" in RECORD_SUFFIXES:
            records, notes = to_records(annotations)
            lines = self.to in ("jsonl", "json")
            write_records(output, records if lines else with_same_columns(records))
        else:
            text, notes = to_text(annotations, self.to, omitted)
            with replace_file(output, follow=True) as file:
                file.write(text)
        for note in [*annotations.notes, *decided, *notes]:
            show(f"note: {note}", error=True)
        left_out = sum(len(rows) for (_, what), rows in omitted.items() if what == LEFT_OUT)
        written = len(annotations.rows) - left_out
        show(f"wrote {quantity(written, 'row')}: {output}", error=True)
