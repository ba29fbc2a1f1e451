"""What the heads over Hugging Face's own task models share: loading, labels, saving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from finetune.models.encoder import Batching, Encoder
from finetune.models.families import family_of
from finetune.models.loading import load_config, load_weights, quiet
from finetune.models.padding import flat, in_order, length_groups
from finetune.types import Batch, LabelSet, UserError

Problem = Literal["single", "multi", "regression"]

PROBLEM_TYPES: dict[str, str] = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
}
"""What transformers calls each problem (``config.problem_type``)."""

_DROPOUT_SETTINGS = {
    "albert": "classifier_dropout_prob",
    "distilbert": "seq_classif_dropout",
    "deberta": "cls_dropout",
    "deberta-v2": "cls_dropout",
}
"""What a model type calls the dropout before its classifier, where not ``classifier_dropout``."""


class PretrainedHead(nn.Module):
    """A Hugging Face model with a task head, run on batches without padding.

    ``model`` is the Hugging Face model and owns all weights, so that what is saved loads anywhere;
    ``encoder`` is a view of its base model, not registered as a submodule of this one: each
    weight has one name. ``known_type`` is the model type, empty where its code is not listed.
    """

    auto_class: ClassVar[Any]
    head_lr_factor: ClassVar[float] = 1.0
    """How many times the encoder's learning rate the head's is, where --head-lr is unset."""
    own_learning_rates: ClassVar[Mapping[str, tuple[str, float]]] = {}
    """Parts, by the first of their names, with a learning rate of their own: the setting that
    says it, and the rate where that is unset."""
    encoder: Encoder

    def __init__(self, model: PreTrainedModel, batching: Batching = "auto") -> None:
        """Wrap a Hugging Face model that has a head of the right kind."""
        super().__init__()
        self.model = model
        self.__dict__["encoder"] = Encoder(model.base_model, batching)
        own = family_of(model.base_model) is not None
        self.known_type: str = model.config.model_type if own else ""

    @classmethod
    def _load(
        cls, name: str, *, labels: Sequence[str] | None, problem: Problem | None = None,
        revision: str | None = None, batching: Batching = "auto",
        trust_remote_code: bool = False, dropout: float | None = None,
    ) -> Self:  # fmt: skip
        where = {"revision": revision, "trust_remote_code": trust_remote_code}
        config = load_config(name, **where)
        before = dict(config.id2label)
        if labels is not None:
            _set_labels(config, LabelSet(labels))
            if problem is not None:
                config.problem_type = PROBLEM_TYPES[problem]
        if dropout is not None:
            setattr(config, _dropout_setting(config), dropout)
        model = load_weights(cls.auto_class, name, config, new_head=labels is not None, **where)
        _keep_classes(model, before)
        return cls(model, batching)

    @property
    def labels(self) -> LabelSet:
        """The label names, in the order of the classes."""
        names = self.model.config.id2label
        return LabelSet(names[index] for index in range(len(names)))

    @property
    def revision(self) -> str | None:
        """The commit of the hub model that was loaded; None for a local folder."""
        return getattr(self.model.config, "_commit_hash", None)

    def is_head(self, parameter_name: str) -> bool:
        """Whether a parameter lies above the hidden states: a classifier, or a pooler under it."""
        below = f"model.{self.model.base_model_prefix}."
        inner = parameter_name.removeprefix(below)
        return inner == parameter_name or inner.startswith("pooler.")

    def head_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters above the hidden states, by their names in ``named_parameters()``."""
        return {name: value for name, value in self.named_parameters() if self.is_head(name)}

    def depth_of(self, parameter_name: str) -> int:
        """``Encoder.depth_of`` for a name of ``named_parameters()``: L+1 for all of the head."""
        if self.is_head(parameter_name):
            return self.encoder.top_depth
        return self.encoder.depth_of(
            parameter_name.removeprefix(f"model.{self.model.base_model_prefix}.")
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors for plain transformers to load."""
        with quiet():
            self.model.save_pretrained(folder)

    def _padded_logits(self, batch: Batch, *, tokens: bool) -> Tensor:
        """What the Hugging Face model itself answers to padded rows: [N, C], or [T, C] for each of
        the tokens."""
        self.encoder.check(batch)
        groups = list(length_groups(batch))
        parts = [self.model(**self.encoder.padded_inputs(group.batch)).logits for group in groups]
        if not tokens:
            return in_order(parts, [group.sequences for group in groups])
        rows = [flat(part, group.batch) for part, group in zip(parts, groups, strict=True)]
        return in_order(rows, [group.tokens for group in groups])


def _set_labels(config: Any, labels: LabelSet) -> None:
    if not len(labels):
        raise UserError("a head needs at least one label")
    config.num_labels = len(labels)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}


def _keep_classes(model: PreTrainedModel, before: dict[int, str]) -> None:
    """Put the rows of a checkpoint's classifier into a new order of the same labels.

    A model for (contradiction, neutral, entailment) asked for as (entailment, neutral,
    contradiction) would else load without complaint and mean something else.
    """
    old = [before[index].lower() for index in range(len(before))]
    new = [model.config.id2label[index].lower() for index in range(len(model.config.id2label))]
    if old == new or sorted(old) != sorted(new) or len(set(old)) != len(old):
        return
    rows = torch.tensor([old.index(label) for label in new])
    with torch.no_grad():
        for parameter in _classifier(model).parameters():
            parameter.copy_(parameter[rows])


def select_classes(model: PreTrainedModel, rows: Sequence[int], labels: Sequence[str]) -> None:
    """Keep these classes of a model's classifier, in this order and under these names."""
    last = _classifier(model)
    index = torch.tensor(list(rows))
    for name, parameter in list(last.named_parameters()):
        setattr(last, name, nn.Parameter(parameter.detach()[index].clone()))
    last.out_features = len(index)
    _set_labels(model.config, LabelSet(labels))


def _classifier(model: PreTrainedModel) -> nn.Linear:
    """The layer with a row for each class."""
    size = len(model.config.id2label)
    return next(m for m in reversed(list(model.modules())) if _has_rows(m, size))  # type: ignore


def _has_rows(module: nn.Module, num_classes: int) -> bool:
    return isinstance(module, nn.Linear) and module.out_features == num_classes


def _dropout_setting(config: Any) -> str:
    """The name of the classifier's dropout in a configuration."""
    name = _DROPOUT_SETTINGS.get(config.model_type, "classifier_dropout")
    if not hasattr(config, name) and name != "cls_dropout":
        raise UserError(
            f"--classifier-dropout: {config.model_type} models have no such dropout: leave it out."
        )
    return name
