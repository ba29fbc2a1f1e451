"""`finetune push`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from finetune.cli.output import show


@dataclass(frozen=True, kw_only=True)
class Push:
    """Upload the best model of a run, with its model card, to the Hugging Face hub."""

    folder: Annotated[Positional[str], arg(metavar="RUN")]
    """Folder of the run."""
    id: Annotated[Positional[str], arg(metavar="OWNER/NAME")]
    """Id on the hub."""
    private: bool = False
    """Make the repository private, if it is new."""

    def run(self) -> None:
        """Upload the model and print its address."""
        from finetune.reporting.hub_upload import push

        show(f"pushed: {push(Path(self.folder), self.id, private=self.private)}")
