"""PretrainedHead: the base of heads over Hugging Face's task models, with loading and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from finetune.config.tasks import flag
from finetune.models.bilstm import BILSTM
from finetune.models.dropout import keyed_dropout
from finetune.models.encoder import Batching, Encoder
from finetune.models.families import family_of
from finetune.models.heads.base import Head, labels_of
from finetune.models.heads.layers import POOLED, layers_of, pooled_tokens
from finetune.models.loading import copy_tokenizer, load_config, load_weights, quiet
from finetune.models.padding import batch_of_rows, restore_order, unpad
from finetune.types import Batch, LabelSet, UserError

Problem = Literal["single", "multi", "regression"]

PROBLEM_TYPES: dict[Problem, str] = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
}
"""The name of each problem in transformers (``config.problem_type``)."""

_DROPOUT_SETTINGS = {
    "albert": "classifier_dropout_prob",
    "distilbert": "seq_classif_dropout",
    "deberta": "cls_dropout",
    "deberta-v2": "cls_dropout",
}
"""The setting of the dropout before the classifier, if it is not ``classifier_dropout``."""


class PaddedRows(NamedTuple):
    """Padded rows [N, L] of token ids, as the classes of transformers take them."""

    input_ids: Tensor | None
    attention_mask: Tensor | None
    token_type_ids: Tensor | None


class PretrainedHead(Head, PreTrainedModel):  # type: ignore[misc]  # our push_to_hub
    """A Hugging Face model with a task head, run on batches without padding.

    It is a ``PreTrainedModel`` so that ``transformers.Trainer`` trains it, and saves it with its
    configuration. It saves folders as ``model`` does: plain transformers loads them.

    Args:
        model: A model as ``auto_class`` loads it. It owns all weights: saved folders load anywhere.
        batching: How the ``Encoder`` batches sequences; the numbers are the same.

    Attributes:
        known_type: The model type, or empty if the class of the model cannot be packed.
    """

    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True  # as ``model`` allows
    auto_class: ClassVar[Any]
    output_class: ClassVar[Any]
    """The output of transformers for padded rows."""
    per_token: ClassVar[bool] = True
    """Whether the class of transformers has logits for each token, and not for each sequence."""

    def __init__(self, model: PreTrainedModel, batching: Batching = "auto") -> None:
        super().__init__(model.config)
        self.model = model
        self.register_load_state_dict_pre_hook(_with_prefix)  # type: ignore[no-untyped-call]
        base_model: Any = model.base_model
        self.__dict__["encoder"] = Encoder(base_model, batching)
        self.encoder_prefix = f"model.{model.base_model_prefix}."
        family = family_of(base_model)
        self.known_type: str = model.config.model_type if family and family.packing else ""
        if getattr(model.config, BILSTM, False) and not self.known_type:
            raise UserError(
                f"{flag(BILSTM)} does not work with {model.config.model_type} "
                "models, whose head runs together with the encoder: leave it out."
            )
        self._layers = layers_of(self.auto_class, self.known_type)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        name: str | Path,
        *,
        labels: Sequence[str] | None = None,
        batching: Batching = "auto",
        **options: Any,
    ) -> Self:
        """Load a trained model; with ``labels`` make one to train, in float32.

        Args:
            name: Hub id, short name or folder of an encoder, or of a trained model.
            labels: The labels of a model to train; for regression the name of the number. A head
                that the checkpoint lacks, or has for another number of labels, is new.
            batching: As in ``Encoder``; changes memory and speed only.
            options: ``dropout`` before the classifier; ``revision``, ``trust_remote_code``
                and ``bilstm``, as in ``load_config``.

        Raises:
            UserError: There is no such model or setting, or without ``labels`` no trained head.
        """
        model = load_task_model(cls.auto_class, str(name), labels=labels, **options)
        return cls(model, batching)

    @property
    def labels(self) -> LabelSet:
        """The label names, in the order of the classes."""
        return labels_of(self.model.config)

    def save_pretrained(  # type: ignore[override]
        self,
        folder: str | Path,
        *,
        state_dict: Mapping[str, Tensor] | None = None,
        is_main_process: bool = True,
    ) -> None:
        """Write config.json and model.safetensors for plain transformers to load.

        A folder without a tokenizer gets the tokenizer of the model that was loaded.

        Args:
            folder: The folder to write.
            state_dict: The weights to write, by default the model's.
            is_main_process: Whether this process writes.
        """
        if state_dict is not None:
            state_dict = {name.removeprefix("model."): v for name, v in state_dict.items()}
        with quiet():
            self.model.save_pretrained(
                folder, state_dict=state_dict, is_main_process=is_main_process
            )
        if is_main_process:
            copy_tokenizer(Path(self.model.name_or_path), Path(folder))

    def forward(
        self,
        batch: Batch | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Any:
        """Return the logits of a batch, as the class says.

        ``transformers.Trainer`` can train the head: it also takes padded rows [N, L] as keywords,
        with ``labels`` as the class of transformers takes them, and then returns its output.
        """
        if batch is None:
            return self._output(PaddedRows(input_ids, attention_mask, token_type_ids), labels)
        return self._logits(batch)

    def vectors(self, batch: Batch) -> Tensor:
        """Return the hidden states [N, H] that the head decides on (``Head.vectors``)."""
        if self._pooling == "first":
            return super().vectors(batch)
        return pooled_tokens(self.encoder(batch), batch)

    def _rows(self, batch: Batch) -> Tensor | None:
        """Return the rows of hidden states that the head reads; None for all T."""
        return None if self.per_token else batch.cu_seqlens[:-1]

    def _logits(self, batch: Batch) -> Tensor:
        """Return the logits of a batch."""
        rows = self._rows(batch)
        if self._layers is None:
            logits = self._padded_logits(batch)
            return logits if rows is None or not self.per_token else logits.index_select(0, rows)
        hidden, pooling = self.encoder(batch), self._pooling
        if pooling == "mean":
            hidden = pooled_tokens(hidden, batch)
        elif pooling != "late" and rows is not None:
            hidden = hidden.index_select(0, rows)
        with keyed_dropout(batch, torch.arange(len(hidden)) if rows is None else rows):
            logits = self._layers(self.model, hidden)
        return pooled_tokens(logits, batch) if pooling == "late" else logits

    @property
    def _pooling(self) -> str:
        """The pooling of a sequence: its first token, the mean, or (late) the mean of logits."""
        pooled = not self.per_token and self.known_type in POOLED
        return self.model.config.classifier_pooling if pooled else "first"

    def _padded_logits(self, batch: Batch) -> Tensor:
        """Return the logits of the whole model on padded rows, of sequences [N, C] or tokens."""
        self.encoder.check_batch(batch)
        parts, indices = [], []
        for group, output in self.encoder.padded_outputs(self._whole_model, batch):
            logits = self._logits_of(output)
            parts.append(unpad(logits, group.batch) if self.per_token else logits)
            indices.append(group.tokens if self.per_token else group.sequences)
        return restore_order(parts, indices)

    @property
    def _whole_model(self) -> Any:
        """The model of transformers, on padded rows of one sequence each."""
        return self.model

    def _logits_of(self, output: Any) -> Tensor:
        """Return the logits in an output of the whole model on padded rows."""
        logits: Tensor = output.logits
        return logits

    def _output(self, rows: PaddedRows, labels: Tensor | None) -> Any:
        """Return the output of transformers for padded rows, computed without padding."""
        logits = self._logits_of_rows(rows)
        loss = None if labels is None else self._padded_loss(logits, labels)
        return self.output_class(loss=loss, logits=logits)

    def _logits_of_rows(self, rows: PaddedRows) -> Tensor:
        """Return the logits of padded rows [N, L]: of sequences [N, C] or of tokens [N, L, C]."""
        input_ids, attention_mask, token_type_ids = rows
        if input_ids is None:
            raise UserError("a head takes a Batch (finetune.pack), or input_ids of padded rows.")
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        segments = token_type_ids if self.encoder.num_segments else None
        logits: Tensor = self(batch_of_rows(input_ids, attention_mask, segments))
        if len(logits) != len(input_ids):  # one for each token: [T, C] -> [N, L, C]
            padded = logits.new_zeros(*input_ids.shape, logits.shape[-1])
            logits = padded.masked_scatter(attention_mask.bool()[..., None], logits)
        return logits

    def _padded_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss, as the class of transformers computes it."""
        return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


def problem_of(config: Any) -> Problem:
    """Return the problem that a model of sequences with this configuration solves."""
    if config.problem_type is None:
        return "regression" if config.num_labels == 1 else "single"
    return next(name for name, known in PROBLEM_TYPES.items() if known == config.problem_type)


def _with_prefix(_: nn.Module, state_dict: dict[str, Tensor], prefix: str, *__: Any) -> None:
    """Give weights of a saved folder, read back by ``transformers.Trainer``, their names here."""
    own = f"{prefix}model."
    outer = [name for name in state_dict if name.startswith(prefix)]
    if outer and not any(name.startswith(own) for name in outer):
        for name in outer:
            state_dict[own + name.removeprefix(prefix)] = state_dict.pop(name)


def load_task_model(
    auto_class: Any,
    name: str,
    *,
    labels: Sequence[str] | None,
    problem: Problem | None = None,
    dropout: float | None = None,
    **options: Any,
) -> Any:
    """Load a Hugging Face model with a task head, in float32.

    Args:
        auto_class: A class such as ``AutoModelForSequenceClassification``.
        name: As in ``load_config``.
        labels: The labels of a head to train. A head that the checkpoint lacks, or has for another
            number of labels, is new. None loads a trained head with its labels and problem.
        problem: The problem of a head to train, a key of ``PROBLEM_TYPES``.
        dropout: Dropout before the classifier; None leaves the checkpoint's.
        options: ``revision`` and ``trust_remote_code``, as in ``load_config``.

    Raises:
        UserError: If there is no such model or setting, or the weights do not match.
    """
    if problem == "regression" and labels is not None and len(labels) != 1:
        raise UserError(f"regression has one label, the name of the number, not {len(labels)}")
    config = load_config(name, **options)
    require_class(auto_class, name, config)
    old_labels = dict(config.id2label)
    if labels is not None:
        _set_labels(config, LabelSet(labels))
        if problem is not None:
            config.problem_type = PROBLEM_TYPES[problem]
    if dropout is not None:
        setting = _DROPOUT_SETTINGS.get(config.model_type, "classifier_dropout")
        if not hasattr(config, setting) and setting != "cls_dropout":
            raise UserError(
                f"--classifier-dropout: {config.model_type} models have no such dropout"
            )
        setattr(config, setting, dropout)
    model = load_weights(auto_class, name, config, new_head=labels is not None, **options)
    _reorder_classes(model, old_labels)
    return model


def require_class(auto_class: Any, name: str, config: Any) -> None:
    """Raise ``UserError`` unless transformers has a class with this head for a model."""
    if type(config) not in auto_class._model_mapping and not getattr(config, "auto_map", None):
        head = auto_class.__name__.removeprefix("AutoModelFor")
        raise UserError(
            f"model {name!r}: transformers has no class for {head} of type {config.model_type!r}: "
            "use another model, or another task."
        )


def _set_labels(config: Any, labels: LabelSet) -> None:
    if not len(labels):
        raise UserError("a head needs at least one label")
    config.num_labels = len(labels)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}


def _reorder_classes(model: Any, old_labels: dict[int, str]) -> None:
    """Reorder the rows of a checkpoint's classifier if the labels are the same in another order.

    Else a model for (contradiction, neutral, entailment), loaded for (entailment, neutral,
    contradiction), would silently predict something else.
    """
    names = model.config.id2label
    old = [old_labels[index].lower() for index in range(len(old_labels))]
    new = [names[index].lower() for index in range(len(names))]
    if old == new or sorted(old) != sorted(new) or len(set(old)) != len(old):
        return
    select_classes(model, [old.index(label) for label in new], list(names.values()))


def select_classes(model: Any, rows: Sequence[int | None], labels: Sequence[str]) -> None:
    """Keep these rows of a model's classifier, in this order and under these labels.

    In place of None is a new row, as the model draws it.
    """
    _, classifier = _classifier(model)
    new = None
    if None in rows:
        new = nn.Linear(classifier.in_features, len(rows), classifier.bias is not None)
        model._init_weights(new)
    for name, parameter in list(classifier.named_parameters()):
        chosen = with_rows(parameter, rows, None if new is None else getattr(new, name))
        setattr(classifier, name, nn.Parameter(chosen))
    classifier.out_features = len(rows)
    _set_labels(model.config, LabelSet(labels))


def with_rows(old: Tensor, rows: Sequence[int | None], new: Tensor | None = None) -> Tensor:
    """Return the old row of each class, or its ``new`` row in place of None."""
    found = old.detach()[[row or 0 for row in rows]].clone()
    for index, row in enumerate(rows):
        if row is None and new is not None:
            found[index] = new.detach()[index]
    return found


def _classifier(model: Any) -> tuple[str, nn.Linear]:
    """Return the last linear layer with a row for each class, and its name."""
    num_classes = len(model.config.id2label)
    return next(
        (name, module)
        for name, module in reversed(list(model.named_modules()))
        if isinstance(module, nn.Linear) and module.out_features == num_classes
    )
