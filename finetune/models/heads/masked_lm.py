"""MaskedLanguageModel: the probability of each subword of the vocabulary at chosen positions.

Jurafsky & Martin, chapter "Masked Language Models", section on masked language modeling: y_i =
softmax(W_V z_i), and the loss is the mean of -log P(x_i | z_i) over the chosen positions. Hidden
states of these positions are selected before the head: over a vocabulary of 30,000, a head over all
tokens costs as much as six layers of width 384.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForMaskedLM, PreTrainedModel

from finetune.models.families import family_of
from finetune.models.heads.pretrained import PretrainedHead
from finetune.models.heads.task_models import require_class
from finetune.models.loading import load_config, load_weights
from finetune.types import Batch

MOST_LOGITS = 2**25
"""Most logits of a forward pass to keep for the backward pass (128 MB in float32). Logits beyond
are computed in chunks, and again in the backward pass."""


class MaskedScores(NamedTuple):
    """Scores of M chosen positions."""

    loss: Tensor
    """-log P(x_i | z_i) of the target of each position, [M]."""
    best: Tensor
    """The most probable subword of each position [M]; empty while gradients are computed."""


class MaskedLanguageModel(PretrainedHead):
    """Logits of a vocabulary of V subwords, or the scores of targets, at M positions of a batch.

    The targets of a batch are ``position`` [M], rows of the T tokens, and ``token`` [M], the
    subwords to predict there. ``PretrainedHead`` explains arguments and attributes.

    Examples:
        >>> from finetune import TokenSequence, MaskedLanguageModel, pack
        >>> import torch
        >>> model = MaskedLanguageModel.from_pretrained("roberta-base")  # doctest: +SKIP
        >>> chosen = {"position": torch.tensor([1]), "token": torch.tensor([713])}
        >>> batch = pack([TokenSequence(0, [0, 50264, 16, 2])], chosen)  # position 1 is masked
        >>> model(batch).loss.shape, model.logits(batch).shape  # doctest: +SKIP
        (torch.Size([1]), torch.Size([1, 50265]))
    """

    auto_class: ClassVar[Any] = AutoModelForMaskedLM
    lr_factor = 5.0

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        base_model: Any = model.base_model
        has_row = family_of(base_model) is not None
        weights = {id(weight): name for name, weight in base_model.named_parameters()}
        self._tied = {
            name: weights[id(weight)]
            for name, weight in self.named_parameters()
            if id(weight) in weights and not name.startswith(self.encoder_prefix)
        }
        self._type_of_layers = model.config.model_type if has_row else ""

    @classmethod
    def from_pretrained(cls, name: str | Path, *, new_head: bool = True, **options: Any) -> Self:
        """Load a masked language model in float32.

        Args:
            name: Hub id, short name or folder.
            new_head: Initialize weights of the head that the checkpoint lacks. Most families share
                the output matrix with the embeddings.
            options: As in ``load_config``, such as ``revision``.

        Raises:
            UserError: There is no such model, or transformers has no masked language model of its
                type.
        """
        name = str(name)
        config = load_config(name, **options)
        require_class(cls.auto_class, name, config)
        return cls(load_weights(cls.auto_class, name, config, new_head=new_head, **options))

    @classmethod
    def from_config(cls, config: Any) -> MaskedLanguageModel:
        """Make a model with random weights."""
        require_class(cls.auto_class, config.model_type, config)
        return cls(cls.auto_class.from_config(config))

    def forward(self, batch: Batch) -> MaskedScores | Tensor:
        """Compute the scores of the targets of a batch, or logits if the targets have no tokens."""
        if "token" not in batch.targets:
            return self.logits(batch)
        if self._layers is None:
            return self._scores(self.logits(batch), batch.targets["token"])
        scores: MaskedScores = self.read(self.encoder(batch), batch)
        return scores

    def read(self, hidden: Tensor, batch: Batch) -> MaskedScores:
        """Compute the scores of the targets of a batch, given its hidden states [T, H]."""
        states = hidden.index_select(0, batch.targets["position"])
        return self._scores_of(self._chosen_logits, states, batch.targets["token"])

    def logits(self, batch: Batch) -> Tensor:
        """Compute the logits [M, V] at each ``position`` of a batch, without targets at all T."""
        position = batch.targets.get("position")
        rows = slice(None) if position is None else position
        if self._layers is None:
            return self._padded_logits(batch)[rows]
        return self._layers(self.model, self.encoder(batch)[rows])

    def is_head(self, parameter_name: str) -> bool:
        """Whether a parameter is above the hidden states and not shared with the encoder."""
        return parameter_name not in self._tied and super().is_head(parameter_name)

    def depth_of(self, parameter_name: str) -> int:
        """The depth of a parameter; an output matrix that is the embeddings has theirs."""
        if parameter_name in self._tied:
            return self.encoder.depth_of(self._tied[parameter_name])
        return super().depth_of(parameter_name)

    def _chosen_logits(self, states: Tensor) -> Tensor:
        assert self._layers is not None
        return self._layers(self.model, states)

    def _scores_of(
        self, layers: Callable[[Tensor], Tensor], states: Tensor, token: Tensor
    ) -> MaskedScores:
        size = max(1, MOST_LOGITS // self.encoder.vocabulary_size)
        if len(states) <= size:
            return self._scores(layers(states), token)
        run = partial(
            checkpoint, self._scores_of, layers, use_reentrant=False, preserve_rng_state=False
        )
        parts = map(run, states.split(size), token.split(size))
        return MaskedScores(*map(torch.cat, zip(*parts, strict=True)))

    def _scores(self, logits: Tensor, token: Tensor) -> MaskedScores:
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        best = token[:0] if torch.is_grad_enabled() else logits.argmax(-1)
        return MaskedScores(F.cross_entropy(logits, token, reduction="none"), best)
