"""CustomModel: the base of models for tasks that no Hugging Face class covers.

They are saved with a registered class and configuration, which embeds the whole configuration of
the model inside, so that a folder needs nothing else to load.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedModel

from finetune.models.heads.base import Head
from finetune.models.loading import quiet
from finetune.types import UserError


class CustomModel(Head, PreTrainedModel):
    """A ``PreTrainedModel`` with a head that Hugging Face does not have."""

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name: str | Path, *inputs: Any, output_loading_info: bool = False, **options: Any
    ) -> Any:
        """Load a trained model from a folder.

        Args:
            name: The folder.
            inputs: Passed on to transformers.
            output_loading_info: Return transformers' report of the loaded weights as well.
            options: Passed on to transformers; ``batching`` is that of ``Encoder``.

        Raises:
            UserError: If the folder has no such model, or weights are missing.
        """
        try:
            with quiet():
                loaded: Any = super().from_pretrained(
                    name, *inputs, output_loading_info=True, **options
                )
        except (OSError, RuntimeError, SafetensorError) as error:
            detail = f"{' '.join(str(error).split()):.300}"
            raise UserError(f"model {str(name)!r} cannot be loaded: {detail}") from error
        model, report = loaded
        if missing := sorted(report["missing_keys"]):
            raise UserError(
                f"model {str(name)!r}: {len(missing)} weights are missing (first: {missing[0]}): "
                "restore the folder from its source, or train again."
            )
        return (model, report) if output_loading_info else model

    def save_pretrained(  # type: ignore[override]
        self, folder: str | Path, **options: Any
    ) -> None:
        """Write config.json and model.safetensors, all that ``from_pretrained`` needs."""
        with quiet():
            super().save_pretrained(folder, **options)
