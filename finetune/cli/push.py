"""`finetune push`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from finetune.cli.options import Command
from finetune.cli.output import show
from finetune.config.options import argument
from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class Push(Command):
    """Upload the best model of a run, with its model card, to the Hugging Face hub.

    Examples:
        finetune push runs/nli me/nli-model
        finetune push runs/nli me/nli-model --private --license apache-2.0
    """

    folder: Annotated[str, argument("RUN")]
    """Folder of the run."""
    id: Annotated[str, argument("OWNER/NAME")]
    """Id on the hub."""
    private: bool = False
    """Make the repository private, if it is new."""
    yes: bool = False
    """Upload the model also if the run is degenerate."""

    license: str | None = None
    """License of the model for its card, such as `apache-2.0`. Default: the license in the card of
    the base model."""

    def run(self) -> None:
        """Upload the model and print its address."""
        from finetune.reporting.model_card import degenerate_reasons, push, require_owner

        require_owner(self.id)
        reasons = degenerate_reasons(Path(self.folder))
        if reasons and not self.yes:
            problem = f"this run is degenerate ({'; '.join(reasons)})"
            raise UserError(f"{self.folder}: {problem}: train it again, or add --yes to upload it.")
        address, license = push(
            Path(self.folder), self.id, private=self.private, license=self.license
        )
        if license is None:
            show(
                "note: the card names no license, as the card of the base model has none: add one "
                "with finetune push … --license apache-2.0",
                error=True,
            )
        show(f"pushed: {address}")
