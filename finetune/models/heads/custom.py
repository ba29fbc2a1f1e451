"""Models of our own, for tasks that no Hugging Face class does: what they share.

They are saved with a class and a configuration of their own, which embeds the whole configuration
of the model inside, so that a folder needs nothing else to load.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel

from finetune.models.encoder import Encoder
from finetune.models.loading import quiet
from finetune.types import UserError


class OwnModel(PreTrainedModel):
    """A ``PreTrainedModel`` that the trainer can take for a head (see ``PretrainedHead``)."""

    head_lr_factor: ClassVar[float] = 1.0
    own_learning_rates: ClassVar[Mapping[str, tuple[str, float]]] = {}
    encoder: Encoder

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *inputs: Any, output_loading_info: bool = False, **options: Any
    ) -> Any:
        """The trained model of a folder, as any of transformers', with ``batching`` as an option.

        Raises ValueError where there is none, or where weights are missing: they would be made up.
        """
        try:
            with quiet():
                model, report = super().from_pretrained(
                    name, *inputs, output_loading_info=True, **options
                )
        except (OSError, RuntimeError, SafetensorError) as error:
            detail = f"{' '.join(str(error).split()):.300}"
            raise UserError(f"model {str(name)!r} cannot be loaded: {detail}") from error
        if absent := sorted(report["missing_keys"]):
            raise UserError(
                f"model {str(name)!r}: {len(absent)} weights are missing (first: {absent[0]}): "
                "restore the folder from its source, or train again."
            )
        return (model, report) if output_loading_info else model

    @abstractmethod
    def is_head(self, parameter_name: str) -> bool:
        """Whether a parameter lies above the hidden states."""

    def head_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters above the hidden states, by their names in ``named_parameters()``."""
        return {name: value for name, value in self.named_parameters() if self.is_head(name)}

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """Write config.json and model.safetensors, all that ``from_pretrained`` needs."""
        with quiet():
            super().save_pretrained(folder, **options)
