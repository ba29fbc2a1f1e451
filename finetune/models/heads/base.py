"""Bases of models with a task head: interface for training and inference, saving, loading."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from finetune.models.encoder import ABOVE, Encoder, remove_pooler
from finetune.models.heads.layers import pool
from finetune.models.heads.task_models import label_settings, require_labels
from finetune.models.loading import (
    copy_tokenizer,
    library_errors,
    load_config,
    load_weights,
    load_whole,
    quiet,
    require_finite,
)
from finetune.types import Batch, LabelSet, UserError


class Head(nn.Module, ABC):
    """A task head on an ``Encoder``.

    Attributes:
        encoder: The encoder inside: a view and not a submodule, so that weights have one name.
        encoder_prefix: The prefix of the encoder's weights in ``named_parameters()``.
        lr_factor: The default learning rate, in multiples of the usual one of fine-tuning.
        head_lr_factor: The default learning rate of the head, in multiples of the encoder's.
        separate_learning_rates: Submodules with a separate learning rate and no weight decay.
        texts_per_sequence: The number of texts in a sequence that the encoder reads apart.
    """

    lr_factor: ClassVar[float] = 1.0
    head_lr_factor: ClassVar[float] = 1.0
    separate_learning_rates: ClassVar[Mapping[str, float]] = {}
    texts_per_sequence: ClassVar[int] = 1
    encoder: Encoder
    encoder_prefix: str
    save_pretrained: Callable[..., None]
    config: Any

    @property
    def labels(self) -> LabelSet:
        """The labels, in the order of the classes; without none."""
        return labels_of(self.config)

    def forward(self, batch: Batch) -> Any:
        """Compute the output of the head for a batch."""
        return self.read(self.encoder(batch), batch)

    @abstractmethod
    def read(self, hidden: Tensor, batch: Batch) -> Any:
        """Compute the output of the head, given the hidden states [T, H] of a batch."""

    def with_states(self, batch: Batch, layers: Sequence[int]) -> tuple[Any, list[Tensor]]:
        """Compute the output of the head, and the hidden states [T, H] of layers."""
        if not layers:
            return self(batch), []
        hidden, states = self.encoder(batch, layers)
        return self.read(hidden, batch), states

    def vectors(self, batch: Batch) -> Tensor:
        """Compute the hidden states [N, H] that the head decides on.

        They are the state of the first token of a sequence, or the mean of its words.
        """
        hidden: Tensor = self.encoder(batch)
        if not len(batch.words):
            return hidden.index_select(0, batch.cu_seqlens[:-1])
        return pool(hidden.index_select(0, batch.words), batch.words_cu.diff())

    def is_head(self, parameter_name: str) -> bool:
        """Whether a parameter is above the hidden states: a head, or a layer under it."""
        inner = parameter_name.removeprefix(self.encoder_prefix)
        return inner == parameter_name or inner.startswith(ABOVE)

    def depth_of(self, parameter_name: str) -> int:
        """Apply ``Encoder.depth_of`` to a name in ``named_parameters()``; L+1 for the head."""
        if self.is_head(parameter_name):
            return self.encoder.top_depth
        return self.encoder.depth_of(parameter_name.removeprefix(self.encoder_prefix))


class EncoderModelConfig(PreTrainedConfig):
    """The configuration of an ``EncoderModel``, which embeds the one of its ``encoder``."""

    sub_configs = {"encoder": AutoConfig}  # noqa: RUF012 (transformers' own attribute)

    encoder: PreTrainedConfig | dict[str, Any] | None = None

    def __post_init__(self, **more: Any) -> None:
        """Embed a copy of the encoder's configuration, whose attention the base class resets."""
        encoder = self.encoder  # a dict if it is from a file
        if isinstance(encoder, dict):
            self.encoder = AutoConfig.for_model(**encoder)
        else:
            self.encoder = copy.deepcopy(encoder)
        super().__post_init__(**more)  # type: ignore[no-untyped-call]

    def require_legal(self) -> None:
        """Raise ``UserError`` if the settings are incomplete, or not legal together."""
        if self.encoder is None:
            raise UserError(
                f"the configuration ({self.model_type}) has no encoder: give the labels to train a "
                "head on a pretrained encoder, or the folder of a trained model."
            )


class EncoderModel(Head, PreTrainedModel):
    """A ``PreTrainedModel`` with a head that Hugging Face does not have: layers above ``model``.

    It is saved with a registered class and configuration, which embeds the whole configuration of
    the model inside, so that a folder needs nothing else to load. ``from_pretrained`` with
    ``labels`` makes a model to train.

    A subclass adds its layers in ``add_layers``. Its ``config_class`` is an ``EncoderModelConfig``.

    Args:
        config: The configuration, of the class ``config_class``.
        model: A base model of transformers to build on; None makes a new one.
    """

    base_model_prefix = "model"
    encoder_prefix = "model."

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]
        if "config_class" in vars(cls):
            kind: Any = cls.config_class
            AutoConfig.register(kind.model_type, kind, exist_ok=True)
            AutoModel.register(kind, cls, exist_ok=True)

    def __init__(self, config: Any, model: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        config.require_legal()
        self.__dict__["encoder"] = self._hold(model)
        self.add_layers(self.encoder.width)
        self.post_init()  # type: ignore[no-untyped-call]

    @abstractmethod
    def add_layers(self, width: int) -> None:
        """Add the layers of the head, on hidden states of this width, with random weights."""

    def _hold(self, model: Any) -> Encoder:
        auto_class: Any = AutoModel
        self.model = auto_class.from_config(self.config.encoder) if model is None else model
        remove_pooler(self.model)
        return Encoder(self.model)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        name: str | Path,
        *,
        labels: Sequence[str] | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> Self:
        """Load a trained model; with ``labels`` make one to train on a pretrained encoder.

        Args:
            name: Hub id, short name or folder of a pretrained encoder, or of a trained model.
            labels: The labels of a model to train.
            revision: Branch, tag or commit on the hub.
            options: The settings of the class. For a model to train also ``trust_remote_code``, as
                in ``load_config``; for a trained model arguments of transformers.

        Raises:
            UserError: The model does not exist, its weights are not all present, used and finite,
                its settings are not legal together, or the encoder comes with Python code.
        """
        require_labels(labels, options)
        if labels is not None:
            names = {field.name for field in dataclasses.fields(cast(Any, cls.config_class))}
            settings = {key: options.pop(key) for key in names & options.keys()}
            options |= {"revision": revision}
            config, model = cls._starting(str(name), labels, settings, **options)
            if not type(model).__module__.startswith("transformers."):
                raise UserError(
                    f"model {str(name)!r} runs its own Python code, which a saved model with this "
                    "head cannot contain: use a model of transformers, or a head of transformers."
                )
            head = cls(config, model)
            head.init_new_weights()
            return head
        return load_whole(super().from_pretrained, name, revision, **options)  # type: ignore[no-any-return]

    @classmethod
    def _starting(
        cls, name: str, labels: Sequence[str], settings: Mapping[str, Any], **options: Any
    ) -> tuple[Any, Any]:
        inner = load_config(name, **options)
        config: Any = cls.config_class
        config = config(encoder=inner, **label_settings(labels), **settings)
        config.require_legal()
        config.encoder.name_or_path = ""  # the checkpoint's, as its architectures
        config.encoder.architectures = None
        return config, load_weights(AutoModel, name, inner, **options)

    def init_new_weights(self) -> None:
        """Change new weights, of a model to train, from what transformers draws."""

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:  # type: ignore[override]
        """Write config.json and model.safetensors, all that ``from_pretrained`` needs.

        A folder without a tokenizer gets the tokenizer of the model that was loaded.
        """
        with quiet():
            super().save_pretrained(folder, **options)
        if options.get("is_main_process", True):
            copy_tokenizer(Path(str(self.encoder.model.name_or_path)), Path(folder))


def save_module(module: nn.Module, path: Path) -> None:
    """Write the weights of a module that has no place in the files of a Hugging Face model."""
    weights = {name: weight.detach().cpu() for name, weight in module.state_dict().items()}
    save_file({name: weight.contiguous() for name, weight in weights.items()}, str(path))


def load_module(module: nn.Module, path: Path, *, new: bool) -> None:
    """Load the weights that ``save_module`` wrote; with ``new``, keep new weights on a misfit."""
    weights: dict[str, Tensor] = {}
    if path.is_file():
        with library_errors(str(path.parent), path.parent):
            weights = load_file(str(path))
    module_weights = module.state_dict()
    if {n: v.shape for n, v in weights.items()} == {n: v.shape for n, v in module_weights.items()}:
        module.load_state_dict(weights)
        require_finite(module, path)
    elif not new:
        raise UserError(f"{path}: missing or damaged: restore it, or train again.")


def labels_of(config: Any) -> LabelSet:
    """The labels of a Hugging Face configuration, in the order of the classes."""
    return LabelSet(config.id2label[index] for index in range(len(config.id2label)))
