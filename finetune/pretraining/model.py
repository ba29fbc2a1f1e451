"""PretrainingModel: a masked language model with further objectives of pretraining.

The span boundary objective (Joshi et al., 2020, SpanBERT; Jurafsky & Martin, equations 11.17 to
11.20) predicts each subword of a masked span from the two subwords beside it. Next sentence
prediction (Devlin et al., 2019) tells from the first token whether the second text of a pair
follows the first.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForPreTraining

from finetune.models.heads.base import load_module, save_module
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.models.heads.task_models import require_class
from finetune.models.loading import load_config, load_weights, local_model
from finetune.types import Batch, UserError

MOST_TARGETS = 20
"""Rows of the position table: subwords of a span that have a boundary loss."""
POSITION_WIDTH = 200
BOUNDARY_FILE = "boundary.safetensors"
NEXT_SENTENCE = ("bert", "big_bird", "ernie", "fnet", "megatron-bert", "mobilebert")
"""Model types whose class for pretraining has a head for next sentence prediction."""


class PretrainingScores(NamedTuple):
    """Scores of M chosen positions, of which B have a boundary loss."""

    loss: Tensor
    """-log P(x_i | z_i) of the target of each position, [M]."""
    best: Tensor
    """The most probable subword of each position [M]; empty while gradients are computed."""
    boundary: Tensor
    """-log P(x_i | z_{s-1}, z_{e+1}) of the targets in spans s..e [B]."""
    next: Tensor
    """Logits of N pairs: the second text follows the first, or is random [N, 2]."""


class SpanBoundaryHead(nn.Module):
    """The vector of a subword of a span, from the hidden states beside the span.

    s_i = FFN([z_{s-1}; z_{e+1}; p_{i-s+1}]), with twice a linear layer, GELU and LayerNorm. The
    masked language model shares its output matrix, with a separate bias.
    """

    def __init__(self, width: int, output_width: int, vocabulary_size: int, config: Any) -> None:
        super().__init__()
        self.position = nn.Embedding(MOST_TARGETS, POSITION_WIDTH)
        epsilon = getattr(config, "layer_norm_eps", 1e-12)
        self.layers = nn.Sequential(
            nn.Linear(2 * width + POSITION_WIDTH, width),
            nn.GELU(),
            nn.LayerNorm(width, epsilon),
            nn.Linear(width, output_width),
            nn.GELU(),
            nn.LayerNorm(output_width, epsilon),
        )
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=getattr(config, "initializer_range", 0.02))
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, left: Tensor, right: Tensor, offset: Tensor) -> Tensor:
        """Compute s_i [B, E] from z_{s-1} and z_{e+1} [B, H] and ``offset``, i - s [B]."""
        vectors: Tensor = self.layers(torch.cat([left, right, self.position(offset)], -1))
        return vectors


class PretrainingModel(MaskedLanguageModel):
    """A masked language model with span boundary objective and next sentence prediction.

    A batch has the targets of ``MaskedLanguageModel``. The B boundary losses add ``boundary``,
    indices into the M targets, ``left`` and ``right``, rows of the T tokens, and ``offset``, the
    place in the span from 0. The model is a masked language model, or with next sentence prediction
    the family's class for pretraining, such as ``BertForPreTraining``. The head of the boundary
    objective is saved in a separate file.
    """

    def __init__(self, model: Any, *, boundary: bool = False) -> None:
        super().__init__(model)
        if self._layers is None:
            raise UserError(
                "--boundary and --nsp need a model class of transformers, not "
                f"{type(model).__name__}: leave them out."
            )
        self.predicts_next = hasattr(getattr(model, "cls", None), "seq_relationship")
        self.boundary = None
        if boundary:
            size, output_width = self._output_layer().weight.shape
            self.boundary = SpanBoundaryHead(self.encoder.width, output_width, size, model.config)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        name: str,
        *,
        new_head: bool = True,
        boundary: bool = False,
        nsp: bool = False,
        **options: Any,
    ) -> PretrainingModel:
        """Load a model as ``MaskedLanguageModel`` does, with the requested heads."""
        config = load_config(name, **options)
        auto_class = _class(name, config, nsp)
        model = load_weights(auto_class, name, config, new_head=new_head, **options)
        head = cls(model, boundary=boundary)
        if head.boundary is not None:
            path = local_model(name, options.get("revision")) / BOUNDARY_FILE
            load_module(head.boundary, path, new=new_head)
        return head

    @classmethod
    def from_config(
        cls, config: Any, *, boundary: bool = False, nsp: bool = False
    ) -> PretrainingModel:
        """Make a model with random weights."""
        model = _class(config.model_type, config, nsp).from_config(config)
        return cls(model, boundary=boundary)

    def forward(self, batch: Batch) -> PretrainingScores | Tensor:  # type: ignore[override]
        """Compute the scores of the targets of a batch, or logits if the targets have no tokens."""
        targets = batch.targets
        if "token" not in targets:
            return self.logits(batch)
        states = self.encoder(batch)
        masked = self.read(states, batch)
        boundary = masked.loss[:0]
        if self.boundary is not None:
            beside = (states.index_select(0, targets[side]) for side in ("left", "right"))
            vectors = self.boundary(*beside, targets["offset"])
            at_boundary = targets["token"].index_select(0, targets["boundary"])
            layers = partial(F.linear, weight=self._output_layer().weight, bias=self.boundary.bias)
            boundary = self._scores_of(layers, vectors, at_boundary).loss
        following = states.new_zeros(0, 2)
        if self.predicts_next:
            base, head = cast("Any", self.model.base_model), cast("Any", self.model.cls)
            first = states.index_select(0, batch.cu_seqlens[:-1])
            if isinstance(base.pooler, nn.Linear):  # BigBird
                pooled = base.activation(base.pooler(first))
            else:
                pooled = base.pooler(first[:, None])
            following = head.seq_relationship(pooled)
        return PretrainingScores(*masked, boundary, following)

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """Write the files of ``MaskedLanguageModel``, and the weights of the boundary head."""
        super().save_pretrained(folder, **options)
        if self.boundary is not None:
            save_module(self.boundary, Path(folder) / BOUNDARY_FILE)

    def _output_layer(self) -> Any:
        return self.model.get_output_embeddings() or self.model.get_input_embeddings()


def require_next_sentence(name: str, config: Any) -> None:
    """Raise ``UserError`` unless a model can predict next sentences: token type ids, and a head."""
    if config.model_type not in NEXT_SENTENCE or getattr(config, "type_vocab_size", 0) < 2:
        raise UserError(
            f"--nsp: {name} ({config.model_type}) has no token type ids, or transformers no head "
            f"for next sentence prediction: use a model of type {', '.join(NEXT_SENTENCE)}, or "
            "leave --nsp out."
        )


def _class(name: str, config: Any, nsp: bool) -> Any:
    if nsp:
        require_next_sentence(name, config)
        return AutoModelForPreTraining
    require_class(PretrainingModel.auto_class, name, config)
    return PretrainingModel.auto_class
