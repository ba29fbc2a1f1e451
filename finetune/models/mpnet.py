"""MPNet on a packed row, with attention inside each sequence.

Each attention head adds a learned bias to the score of tokens i and j, which depends on the
distance j - i alone (Song et al., 2020, arXiv:2004.09297). So one table of biases for the longest
sequence serves all sequences and all layers. All submodules belong to the Hugging Face model.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from finetune.models.attention import attend_in_groups
from finetune.models.packing import PackedLayout

_MAX_WASTE = 0.15
"""Padding in attention on the CPU, as a fraction of the tokens: attention here is not fused, so
that padding costs more than calls."""


def unsupported_reason(model: Any) -> str:
    """Why a model cannot run here; empty if it can."""
    from transformers import MPNetModel

    if type(model) is not MPNetModel:
        return f"{type(model).__name__} is not the mpnet model that transformers has"
    return ""


def forward(
    model: Any,
    *,
    position_ids: Tensor,
    layout: PackedLayout,
    input_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    output_hidden_states: bool = False,
) -> BaseModelOutput:
    """Run a base model on one packed row: ids [1, T] twice -> hidden states [1, T, H].

    ``inputs_embeds`` [1, T, E] are read in place of ``input_ids``.
    """
    hidden = model.embeddings(
        input_ids=input_ids, position_ids=position_ids, inputs_embeds=inputs_embeds
    )[0]  # [T, H]
    if position_ids.device.type == "cpu":
        layout = dataclasses.replace(layout, max_waste=_MAX_WASTE)
    longest = max(group.longest for group in layout.groups)
    bias = model.encoder.compute_position_bias(hidden.new_empty(1, longest))[0]  # [A, L, L]
    biases = []
    for group in layout.groups:
        bias_of_group = bias[:, : group.longest, : group.longest]
        if group.key_mask is not None:
            bias_of_group = bias_of_group.masked_fill(~group.key_mask, float("-inf"))
        biases.append(bias_of_group)  # [A, L, L] or [size, A, L, L]
    states = [hidden]
    for layer in model.encoder.layer:
        attention, heads = layer.attention, layer.attention.attn
        p = heads.dropout.p if heads.training else 0.0
        shape = heads.num_attention_heads, heads.attention_head_size
        rows = [project(hidden).unflatten(-1, shape) for project in (heads.q, heads.k, heads.v)]
        output = attend_in_groups(rows, layout.row_order(shape[0]), biases, p, shape[1] ** -0.5)
        output = heads.o(output.flatten(1))
        output = attention.LayerNorm(attention.dropout(output) + hidden)
        hidden = layer.output(layer.intermediate(output), output)
        states.append(hidden)
    hidden_states = tuple(state[None] for state in states) if output_hidden_states else None
    return BaseModelOutput(last_hidden_state=hidden[None], hidden_states=hidden_states)
