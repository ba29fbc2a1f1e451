"""`finetune push`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from finetune.cli.output import show
from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class Push:
    """Upload the best model of a run, with its model card, to the Hugging Face hub."""

    folder: Annotated[Positional[str], arg(metavar="RUN")]
    """Folder of the run."""
    id: Annotated[Positional[str], arg(metavar="OWNER/NAME")]
    """Id on the hub."""
    private: bool = False
    """Make the repository private, if it is new."""
    yes: bool = False
    """Upload the model of a degenerate run without a question."""

    def run(self) -> None:
        """Upload the model and print its address."""
        from finetune.reporting.hub_upload import degenerate_reasons, push

        reasons = degenerate_reasons(Path(self.folder))
        if reasons and not self.yes:
            problem = f"{self.folder}: this run is degenerate ({'; '.join(reasons)})"
            if not sys.stdin.isatty():
                raise UserError(f"{problem}: train it again, or add --yes to upload it.")
            show(f"{problem}. Upload its model all the same? [y/N]")
            if input().strip().lower() not in ("y", "yes"):
                raise UserError("nothing was uploaded.")
        show(f"pushed: {push(Path(self.folder), self.id, private=self.private)}")
