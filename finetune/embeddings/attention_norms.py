"""Norm-based analysis of attention blocks, with the residual connection and the normalization.

Kobayashi, Kuribayashi, Yokoi & Inui 2021, "Incorporating Residual and Normalization Layers into
Analysis of Masked Language Models" (EMNLP): the output of an attention block for token i is a sum
of vectors F[i, j], one for each input token j, and of a constant. Their norms say how much a token
reads from each other token, which attention weights alone do not.

F[i, j] is the sum over heads of weight[i, j] * value[j] W_O, plus the residual input where i = j.
In models that normalize after the residual connection (BERT) it also passes the normalization,
which is linear once the deviation of the sum is known; in the others (ModernBERT) normalization
comes before the attention and is part of value[j].
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from finetune.models.attention import packed_attention
from finetune.models.encoder import Encoder
from finetune.models.families import ROBERTA, family_of
from finetune.preprocessing.batching import pack
from finetune.runtime.device import batch_to_device
from finetune.types import TokenSequence

_NAME = "finetune_recorded"
"""The name in transformers of attention whose weights and values are recorded."""


class Block(NamedTuple):
    """The modules around the attention of a layer, by their names in the layer.

    ``output`` is the linear map after attention. ``norm`` is the normalization that reads the sum
    with the residual input; it belongs to the block if ``after`` is True.
    """

    output: str
    norm: str
    after: bool


_BERT = Block("attention.output.dense", "attention.output.LayerNorm", True)
_POST = Block("self_attn.o_proj", "post_attention_layernorm", True)
BLOCKS: dict[str, Block] = {
    **dict.fromkeys(("bert", "electra", "ernie", "roc_bert", *ROBERTA), _BERT),
    "albert": Block("attention.dense", "attention.LayerNorm", True),
    "distilbert": Block("attention.out_lin", "sa_layer_norm", True),
    **dict.fromkeys(("nomic_bert", "gte", "jina_embeddings_v3"), _POST),
    "modernbert": Block("attn.Wo", "mlp_norm", False),
    **dict.fromkeys(("eurobert", "ultrabert"), _POST._replace(after=False)),
    "roberta-prelayernorm": Block("attention.output.dense", "intermediate.LayerNorm", False),
    "xlm-roberta-xl": Block("attention.output.dense", "LayerNorm", False),
}
"""The attention blocks of each model type that can be analyzed."""


class BlockAnalysis(NamedTuple):
    """The analysis of one attention block over a sequence of T tokens."""

    weights: Tensor
    """Attention weights, the mean over heads [T, T]; rows read from columns."""
    norms: Tensor
    """Norms of the contributions F[i, j] [T, T]."""
    mixing: Tensor
    """Mixing ratio [T]: the norm of the contribution of other tokens, as a fraction of its sum with
    the norm of the token's own contribution."""
    error: float
    """Largest difference between the block's output and the sum of contributions and constant."""


def reason_without_norms(encoder: Encoder) -> str:
    """The reason why the attention of an encoder cannot be analyzed; empty if it can."""
    model_type = encoder.model.config.model_type
    if model_type in BLOCKS and family_of(encoder.model) is not None:
        return ""
    return (
        f"{model_type} models do not compute attention as a sum over values through the interface "
        "of transformers, or no test shows that their contributions add up"
    )


@torch.no_grad()
def analyze_attention(encoder: Encoder, sequence: TokenSequence) -> list[BlockAnalysis]:
    """Analyze each attention block over a sequence, of a family without ``reason_without_norms``.

    Memory is about T * T * H floats.

    Raises:
        UserError: The sequence is longer than the model reads.
    """
    model: Any = encoder.model
    batch = batch_to_device(pack([sequence]), next(model.parameters()).device)
    encoder.check_batch(batch)
    modules = BLOCKS[model.config.model_type]
    recorded: list[tuple[Tensor, Tensor]] = []  # weights [A, T, T] and values [A, T, D]
    projected: list[tuple[nn.Linear, Tensor]] = []
    normalized: list[tuple[Any, Tensor, Tensor]] = []
    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            if not name.endswith(f".{modules.output}"):
                continue
            norm = model.get_submodule(name.removesuffix(modules.output) + modules.norm)
            for hooked, hook in (
                (module, lambda m, _, out: projected.append((m, out[0]))),
                (norm, lambda m, args, out: normalized.append((m, args[0][0], out[0]))),
            ):
                hooks.callback(hooked.register_forward_hook(hook).remove)
        with packed_attention(model.config, _NAME):
            model(**encoder.packed_inputs(batch), record=recorded)
    blocks = []
    for attention, projection, normalization in zip(recorded, projected, normalized, strict=True):
        (weights, values), (linear, attended) = attention, projection
        norm, total, after_norm = normalization  # total [T, H]: residual input plus attention
        num_heads, num_tokens, size = values.shape
        by_head = linear.weight.unflatten(1, (num_heads, size))  # [H, A, D]
        mapped = torch.einsum("ajd,had->ajh", values, by_head)
        parts = torch.einsum("aij,ajh->ijh", weights, mapped)
        tokens = torch.arange(num_tokens, device=parts.device)
        parts[tokens, tokens] += total - attended  # the residual input
        constant = torch.zeros_like(total[0]) if linear.bias is None else linear.bias
        output = total
        if modules.after:
            variance, _ = torch.var_mean(total, dim=-1, correction=0)
            scale = norm.weight / (variance + norm.eps).sqrt()[:, None]  # [T, H]
            parts = (parts - parts.mean(-1, keepdim=True)) * scale[:, None]
            constant = (constant - constant.mean()) * scale
            if norm.bias is not None:
                constant = constant + norm.bias
            output = after_norm
        sums, diagonal = parts.sum(1), parts[tokens, tokens]
        from_others, from_itself = (sums - diagonal).norm(dim=-1), diagonal.norm(dim=-1)
        mixing = from_others / (from_others + from_itself).clamp_min(torch.finfo(parts.dtype).tiny)
        error = float((sums + constant - output).abs().max())
        blocks.append(BlockAnalysis(weights.mean(0), parts.norm(dim=-1), mixing, error))
    return blocks


def _attend_and_record(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    record: list[tuple[Tensor, Tensor]],
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    times = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(times, dim=1) for tensor in (key, value))
    scores = query.to(value.dtype) @ key.to(value.dtype).transpose(-1, -2)
    scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if sliding_window is not None:
        position = torch.arange(scores.shape[-1], device=scores.device)
        far = (position[:, None] - position).abs() >= sliding_window
        scores = scores.masked_fill(far, -torch.inf)
    weights = scores.softmax(-1)
    record.append((weights[0], value[0]))
    return (weights @ value).transpose(1, 2), None


_attention: Callable[..., Any] = _attend_and_record
AttentionInterface.register(_NAME, _attention)
