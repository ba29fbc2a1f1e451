"""Head: what training and inference need from every model with a task head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from finetune.models.encoder import Encoder
from finetune.types import LabelSet


class Head(nn.Module):
    """A task head on an ``Encoder``.

    Attributes:
        encoder: The encoder inside. It is a view and no submodule, so each weight has one name.
        encoder_prefix: The prefix of the encoder's weights in ``named_parameters()``.
        head_lr_factor: The default learning rate of the head, in multiples of the encoder's
            (``--head-lr`` sets it).
        own_learning_rates: Submodules with a separate learning rate and no weight decay: the name
            of the setting, and the rate if it is unset.
    """

    head_lr_factor: ClassVar[float] = 1.0
    own_learning_rates: ClassVar[Mapping[str, tuple[str, float]]] = {}
    encoder: Encoder
    encoder_prefix: str

    @property
    def revision(self) -> str | None:
        """The commit of the hub model that was loaded; None for a local folder."""
        return getattr(self.encoder.model.config, "_commit_hash", None)

    def is_head(self, parameter_name: str) -> bool:
        """Return whether a parameter is above the hidden states: a head, or a pooler under it."""
        inner = parameter_name.removeprefix(self.encoder_prefix)
        return inner == parameter_name or inner.startswith("pooler.")

    def head_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters above the hidden states, by name."""
        return {name: value for name, value in self.named_parameters() if self.is_head(name)}

    def depth_of(self, parameter_name: str) -> int:
        """Return ``Encoder.depth_of`` a name in ``named_parameters()``; L+1 for all of the head."""
        if self.is_head(parameter_name):
            return self.encoder.top_depth
        return self.encoder.depth_of(parameter_name.removeprefix(self.encoder_prefix))


def labels_of(config: Any) -> LabelSet:
    """Return the labels of a Hugging Face configuration, in the order of the classes."""
    return LabelSet(config.id2label[index] for index in range(len(config.id2label)))
