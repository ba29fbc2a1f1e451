"""DeBERTa (v2 and v3) on a packed row, with attention inside each sequence.

The score of tokens i and j is the sum of content-to-content, content-to-position and
position-to-content terms (He et al., 2021, arXiv:2006.03654, section 3.1):

    Q_i K_j + Q_i PK[i - j] + K_j PQ[i - j],    divided by sqrt(3 D);

distant positions share buckets. Only relative positions within reach of the longest
sequence are projected, once for all sequences. All submodules belong to the Hugging Face model.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finetune.models.dropout import dropout
from finetune.models.packing import Group, PackedLayout, RowOrder
from finetune.runtime.device import to_device

_MAX_WASTE_ON_DEVICE = 1.0
"""Padding in attention on a GPU, as a fraction of the tokens: calls cost more than rows there."""


RelativePositions = tuple[Tensor, Tensor]
"""Embeddings [R, H], and the row of each distance -(L-1) .. L-1."""


def unsupported_reason(model: Any) -> str:
    """Why a model cannot run here; empty if it can."""
    attention_types = model.config.pos_att_type or []
    if model.z_steps > 1:
        return "the model runs its last layer more than once"
    if model.encoder.conv is not None:
        return "it has a convolution next to its first layer"
    if len({"c2p", "p2c"} & set(attention_types)) != len(attention_types):
        return f"its attention is of types {', '.join(attention_types)}, not of c2p and p2c alone"
    return ""


def hidden_states(model: Any, embedded: Tensor, layout: PackedLayout) -> list[Tensor]:
    """Run the layers of a base model on the embeddings [T, H] of a packed row.

    Returns the embeddings, and the hidden states [T, H] of each layer.
    """
    if embedded.device.type != "cpu":
        layout = dataclasses.replace(layout, max_waste=_MAX_WASTE_ON_DEVICE)
    longest = max(group.longest for group in layout.groups)
    states, positions = [embedded], _relative_positions(model.encoder, longest)
    for layer in model.encoder.layer:
        again = layer.gradient_checkpointing and layer.training and torch.is_grad_enabled()
        run = partial(layer._gradient_checkpointing_func, _layer) if again else _layer
        states.append(run(layer, states[-1], positions, layout))
    return states


def _layer(
    layer: Any, hidden: Tensor, positions: RelativePositions | None, layout: PackedLayout
) -> Tensor:
    attention = _attend(layer.attention.self, hidden, positions, layout)
    attention = layer.attention.output(attention, hidden)
    output: Tensor = layer.output(layer.intermediate(attention), attention)
    return output


def _relative_positions(encoder: Any, longest: int) -> RelativePositions | None:
    embeddings = encoder.get_rel_embedding()
    if embeddings is None:
        return None
    span, buckets = len(embeddings) // 2, encoder.position_buckets
    rows = rows_of_distances(longest, span, buckets, encoder.max_relative_positions)
    first, last = int(rows[0]), int(rows[-1])
    return embeddings[first : last + 1], to_device(rows - first, embeddings.device)


def rows_of_distances(longest: int, span: int, buckets: int, max_distance: int) -> Tensor:
    """The row among 2 * ``span`` embeddings of each distance -(L-1) .. L-1: [2L-1].

    Distances up to half of ``buckets`` have a row each; longer ones share buckets that widen with
    their logarithm. ``buckets`` below 1 means none. Distances out of span have the last row.
    """
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = torch.arange(1 - longest, longest)
    if buckets > 0 and max_distance > 0:
        distances = make_log_bucket_position(distances, buckets, max_distance).long()
    return (distances + span).clamp(0, 2 * span - 1)


def _attend(
    module: Any, hidden: Tensor, positions: RelativePositions | None, layout: PackedLayout
) -> Tensor:
    heads = module.num_attention_heads
    projections = (module.query_proj, module.key_proj, module.value_proj)
    query, key, value = (project(hidden).unflatten(-1, (heads, -1)) for project in projections)
    # sqrt(D times the number of score terms), in float32 as the model computes it
    scale = float(np.sqrt(np.float32(module.attention_head_size * (1 + len(module.pos_att_type)))))
    to_keys, to_queries = _position_projections(module, positions)
    query = query / scale
    to_queries = None if to_queries is None else to_queries / scale
    order: RowOrder = layout.row_order(heads, heads_first=True)
    p = module.dropout.p if module.training else 0.0
    outputs = []
    for group, rows in order.split(*order.to_groups(query, key, value)):
        dense = [row.view(heads, -1, row.shape[2]) for row in rows]  # [A, size * L, D]
        outputs.append(_attend_group(dense, to_keys, to_queries, group, p))
    return order.to_tokens(outputs).view(len(hidden), -1)


def _position_projections(
    module: Any, positions: RelativePositions | None
) -> tuple[Tensor | None, Tensor | None]:
    if positions is None:
        return None, None
    embeddings, rows = positions
    p = module.pos_dropout.p if module.training else 0.0
    embeddings = dropout(embeddings, p)
    prefix = "" if module.share_att_key else "pos_"

    def project(name: str) -> Tensor:
        projected: Tensor = getattr(module, f"{prefix}{name}_proj")(embeddings)
        projected = projected.index_select(0, rows)
        heads = (module.num_attention_heads, -1)
        return torch.unflatten(projected, -1, heads).permute(1, 2, 0)

    to_keys = project("key").flip(-1) if "c2p" in module.pos_att_type else None
    return to_keys, project("query") if "p2c" in module.pos_att_type else None


def _attend_group(
    dense: list[Tensor], to_keys: Tensor | None, to_queries: Tensor | None, group: Group, p: float
) -> Tensor:
    """Attention with dropout ``p``: 3 of [A, size * L, D] -> [A * size * L, D]."""
    sequences = (group.size, group.longest)
    query, key, value = (torch.unflatten(t, 1, sequences) for t in dense)  # [A, size, L, D]
    scores = query @ key.transpose(-1, -2)  # [A, size, L, L]
    if to_keys is not None:
        pairs = dense[0] @ _middle(to_keys, group.longest)  # [A, size * L, 2L-1]
        scores += _distances_to_pairs(torch.unflatten(pairs, 1, sequences))
    if to_queries is not None:
        pairs = dense[1] @ _middle(to_queries, group.longest)
        scores += _distances_to_pairs(torch.unflatten(pairs, 1, sequences)).transpose(-1, -2)
    if group.key_mask is not None:
        scores.masked_fill_(~group.key_mask[:, 0], float("-inf"))
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = dropout(scores.softmax(-1, dtype=wide), p).to(value.dtype)
    return torch.flatten(weights @ value, 0, 2)


def _middle(table: Tensor, longest: int) -> Tensor:
    cut = (table.shape[-1] - (2 * longest - 1)) // 2
    return table[..., cut : table.shape[-1] - cut]


def _distances_to_pairs(scores: Tensor) -> Tensor:
    """[…, L, 2L-1] -> […, L, L] without a copy: i, j is in column L-1 + j - i of row i."""
    scores = scores.contiguous()
    *outer, length, _ = scores.shape
    *outer_strides, row_stride, _ = scores.stride()
    shape, strides = (*outer, length, length), (*outer_strides, row_stride - 1, 1)
    return scores.as_strided(shape, strides, scores.storage_offset() + length - 1)
