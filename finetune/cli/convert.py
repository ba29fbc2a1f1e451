"""`finetune convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from finetune.cli.output import check_output, show
from finetune.config.tasks import column_map
from finetune.runtime.files import replace_file, replace_folder, vacant
from finetune.types import UserError, quantity


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Convert annotated data, or predictions, to the format of an annotation tool or another."""

    source: Annotated[Positional[str], arg(metavar="SOURCE")]
    """File of any format, export of an annotation tool, folder of brat, or predictions of a run."""
    to: Literal["jsonl", "conll", "prodigy", "doccano", "label-studio", "brat"]
    """Format to write."""
    output: str
    """File to write; for brat a folder that is empty or absent."""
    columns: tuple[str, ...] = ()
    """Columns if their names are not recognized, as `role=column`; `spans=NAME` reads spans where
    a row has a label too."""
    decisions: str | None = None
    """Decisions from the page of `review`, to apply."""
    encoding: str = "utf-8"
    """Text encoding of the source, such as `cp1252`, `utf-16` or `gb18030`."""

    def run(self) -> None:
        """Write the output, and print what it does not hold."""
        from finetune.data.annotation_writers import check_format, to_text, write_brat
        from finetune.data.annotations import read_annotations
        from finetune.data.decisions import apply_decisions, read_decisions

        output = Path(self.output)
        if self.to == "brat":
            if output.exists() and not (output.is_dir() and vacant(output)):
                raise UserError(f"--output {output} exists: name an empty or absent folder.")
        else:
            check_output(self.output, [Path(self.source)])
        decisions = None if self.decisions is None else read_decisions(Path(self.decisions))
        words = any("label" not in decision for decision in decisions or ())
        annotations = read_annotations(
            self.source, columns=column_map(self.columns), encoding=self.encoding, words=words
        )
        decided: list[str] = []
        if decisions is not None:
            annotations, decided = apply_decisions(annotations, decisions)
        check_format(annotations, self.to)
        if self.to == "brat":
            with replace_folder(output) as folder:
                notes = write_brat(annotations, folder)
        else:
            text, notes = to_text(annotations, self.to)
            with replace_file(output, follow=True) as file:
                file.write(text)
        for note in [*annotations.notes, *decided, *notes]:
            show(f"note: {note}", error=True)
        show(f"wrote {quantity(len(annotations.rows), 'row')}: {output}", error=True)
