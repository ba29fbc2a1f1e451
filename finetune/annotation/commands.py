"""The options of `convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from finetune.cli.options import Command, DataOptions
from finetune.cli.output import check_output
from finetune.config.options import OUTPUT, argument
from finetune.runtime.files import is_free
from finetune.types import UserError

FORMAT_SUFFIXES = {
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
    """Convert data from or to formats of annotation tools.

    Examples:
        finetune convert export.json --out data.jsonl
        finetune convert data.conll --to doccano --out tasks.jsonl
    """

    source: Annotated[str, argument("SOURCE")]
    """Data to convert: export of an annotation tool, brat folder, data file, or predictions of a
    run."""
    to: Annotated[
        Literal["jsonl", "json", "conll", "prodigy", "doccano", "label-studio", "brat", "spacy"],
        OUTPUT,
    ] = "jsonl"
    """Format to write."""
    out: Annotated[str, OUTPUT]
    """File to write, with a suffix of its format; for brat, an empty or new folder."""
    columns: tuple[str, ...] = ()
    """Names of the columns to read, if they are not recognized: `role=column`. `spans=NAME` reads
    spans if a row also has a label."""

    def run(self) -> None:
        """Write the output, and print its omissions."""
        output = Path(self.out)
        if self.to != "brat":
            check_output(
                self.out, [Path(self.source)], FORMAT_SUFFIXES.get(self.to, [f".{self.to}"])
            )
        elif output.exists() and not (output.is_dir() and is_free(output)):
            raise UserError(f"--out {output} exists: name an empty or absent folder.")
        from finetune.annotation.conversion import convert

        convert(self)
