"""The options of `convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from finetune.cli.options import Command, DataOptions
from finetune.cli.output import check_output
from finetune.config.options import OUTPUT, argument

FORMAT_SUFFIXES = {
    "jsonl": (".jsonl",),
    "conll": (".conll", ".txt", ".tsv", ".iob", ".iob2", ".bio", ".conllu"),
    "doccano": (".jsonl",),
    "label-studio": (".json",),
}
"""The suffixes of the files of a format."""


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
    to: Annotated[Literal["jsonl", "conll", "doccano", "label-studio"], OUTPUT] = "jsonl"
    """Format to write."""
    out: Annotated[str, OUTPUT]
    """File to write, with a suffix of its format."""
    columns: tuple[str, ...] = ()
    """Names of the columns to read, if they are not recognized: `role=column`. `spans=NAME` reads
    spans if a row also has a label."""

    def run(self) -> None:
        """Write the output, and print its omissions."""
        check_output(self.out, [Path(self.source)], FORMAT_SUFFIXES[self.to])
        from finetune.annotation.conversion import convert

        convert(self)
