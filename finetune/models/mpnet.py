"""MPNet on a packed row, with attention inside each sequence.

Each attention head adds a learned bias to the score of tokens i and j, which depends on the
distance j - i alone (Song et al., 2020, arXiv:2004.09297). So one table of biases for the longest
sequence serves all sequences and all layers. All submodules belong to the Hugging Face model.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from finetune.models.attention import attend_in_groups
from finetune.models.packing import PackedLayout

_MAX_WASTE = 0.15
"""Padding in attention on the CPU, as a fraction of the tokens: attention here is not fused, so
that padding costs more than calls."""


def hidden_states(model: Any, embedded: Tensor, layout: PackedLayout) -> list[Tensor]:
    """Run the layers of a base model on the embeddings [T, H] of a packed row.

    Returns the embeddings, and the hidden states [T, H] of each layer.
    """
    if embedded.is_cpu:
        layout = dataclasses.replace(layout, max_waste=_MAX_WASTE)
    longest = max(group.longest for group in layout.groups)
    bias = model.encoder.compute_position_bias(embedded.new_empty(1, longest))[0]  # [A, L, L]
    biases = []
    for group in layout.groups:
        bias_of_group = bias[:, : group.longest, : group.longest]
        if group.key_mask is not None:
            bias_of_group = bias_of_group.masked_fill(~group.key_mask, float("-inf"))
        biases.append(bias_of_group)  # [A, L, L] or [size, A, L, L]
    states = [embedded]
    for layer in model.encoder.layer:
        hidden = states[-1]
        attention, heads = layer.attention, layer.attention.attn
        p = heads.dropout.p if heads.training else 0.0
        shape = heads.num_attention_heads, heads.attention_head_size
        rows = [project(hidden).unflatten(-1, shape) for project in (heads.q, heads.k, heads.v)]
        output = attend_in_groups(rows, layout.row_order(shape[0]), biases, p, shape[1] ** -0.5)
        output = heads.o(output.flatten(1))
        output = attention.LayerNorm(attention.dropout(output) + hidden)
        states.append(layer.output(layer.intermediate(output), output))
    return states
