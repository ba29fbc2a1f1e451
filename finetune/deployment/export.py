"""`finetune export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from finetune.cli.options import Command
from finetune.cli.output import quiet_libraries, show
from finetune.config.options import DATA, Help, argument
from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Export a model (classify, nli, tag, ner, qa) to ONNX, and check its predictions against
    torch.

    The package `predictor` in the folder predicts without torch.

    Examples:
        finetune export runs/nli --out exported
        finetune export runs/nli --out exported --int8 --max-loss 1
    """

    folder: Annotated[str, argument("RUN")]
    """Run folder, or folder of a model in it."""
    out: Annotated[str, Help("FOLDER", "output")]
    """New folder for the graph, the predictor, the tokenizer and the labels. It appears when it is
    complete."""
    int8: bool = False
    """Quantize weights to 8 bits: the model is smaller, and faster on most processors. The
    validation score is measured before and after."""
    max_loss: float | None = None
    """Largest loss of the validation score by --int8, in points; a larger loss is an error.
    Default: 0.5."""
    data: Annotated[str | None, DATA] = None
    """Data with the validation split for --int8; default: the data of the run."""

    def run(self) -> None:
        """Write the graph; print its distance from torch, its size and the loss of int8."""
        for option, value in (("--max-loss", self.max_loss), ("--data", self.data)):
            if value is not None and not self.int8:
                raise UserError(f"{option} applies to --int8: add --int8, or leave it out.")
        quiet_libraries()
        from finetune.deployment.onnx import MAX_LOSS, export_onnx

        max_loss = MAX_LOSS if self.max_loss is None else self.max_loss
        lines = export_onnx(
            Path(self.folder), self.out, int8=self.int8, max_loss=max_loss, data=self.data
        )
        show("\n".join(lines))
