"""`finetune export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from finetune.cli.output import quiet_libraries, show


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a trained model (classify, nli, tag) as an ONNX graph, checked against torch."""

    folder: Annotated[Positional[str], arg(metavar="RUN")]
    """Folder of a run or of a model in it."""
    output: str
    """New folder for the graph, tokenizer and labels. It appears when it is complete."""

    def run(self) -> None:
        """Write the graph; print its distance from torch, its size and its speed."""
        quiet_libraries()
        from finetune.inference.onnx import export_onnx

        show("\n".join(export_onnx(Path(self.folder), self.output).lines()))
