"""Attention of a packed row on the CPU, with forward and backward passes written out.

Rows are ordered with heads first, once on the way in and once on the way out. Softmax runs in
single precision, as torch's half-precision softmax is slow for short rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from finetune.models.dropout import DropoutMask
from finetune.models.packing import PackedCall, RowOrder

_Plan = tuple[RowOrder, list[Tensor | None]]
"""The order of rows, and the bias on the scores of each group, [size, A, L, L] or broadcastable:
-inf where a query must not attend to a key, else 0 (None: 0 everywhere)."""


def attend_on_cpu(query: Tensor, key: Tensor, value: Tensor, call: PackedCall) -> Tensor:
    """Compute attention inside each sequence: [T, A, D] three times -> [T, A, D]."""
    layout = call.layout
    scale = query.shape[-1] ** -0.5 if call.scaling is None else call.scaling

    def biases() -> list[Tensor | None]:
        device = torch.device("cpu")
        masks = [group.attention_mask(call.sliding_window, device) for group in layout.groups]
        return [None if m is None else torch.where(m, 0.0, -torch.inf) for m in masks]

    plan = layout.row_order(query.shape[1]), layout.cached(("biases", call.sliding_window), biases)
    output: Tensor = _Attention.apply(query, key, value, plan, call.dropout, scale)  # type: ignore[no-untyped-call]
    return output


class _Attention(torch.autograd.Function):
    """softmax(Q K^T * scale) V of each group (Vaswani et al., 2017, equation 1), with dropout.

    Saved for backward are the rows of groups, the weights and the bits of the dropout masks.
    """

    @staticmethod
    def forward(
        context: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plan: _Plan,
        dropout: float,
        scale: float,
    ) -> Tensor:
        order, biases = plan
        rows = [t.flatten(0, 1).index_select(0, order.sources) for t in (query, key, value)]
        outputs, saved = torch.empty_like(rows[2]), []
        with torch.autocast("cpu", enabled=False):
            parts = zip(order.split(*rows, outputs), biases, strict=True)
            for (group, (queries, keys, values, out)), bias in parts:
                scores = torch.bmm(queries, keys.transpose(1, 2))
                weights = _softmax(scores, bias, group.size, scale)
                mask = DropoutMask.draw(weights, dropout)
                torch.bmm(mask(weights), values, out=out)
                saved += [weights, mask.bits]
        context.save_for_backward(*rows, *saved)
        context.order, context.scale, context.mask_scale = order, scale, mask.scale
        return outputs.index_select(0, order.positions).view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        order: RowOrder = context.order
        positions, saved = order.positions, context.saved_tensors
        rows, weights_and_bits = saved[:3], zip(saved[3::2], saved[4::2], strict=True)
        of_tokens = gradients[0].reshape(-1, rows[0].shape[1])
        of_outputs = torch.zeros_like(rows[2]).index_copy_(0, positions, of_tokens)  # 0 at padding
        of_rows = [torch.empty_like(row) for row in rows]
        with torch.autocast("cpu", enabled=False):
            for _, tensors in order.split(*rows, of_outputs, *of_rows):
                queries, keys, values, out, of_queries, of_keys, of_values = tensors
                weights, bits = next(weights_and_bits)
                mask = DropoutMask(bits, context.mask_scale)
                torch.bmm(mask(weights).transpose(1, 2), out, out=of_values)
                of_weights = mask(torch.bmm(out, values.transpose(1, 2)))
                of_scores = _softmax_gradient(of_weights, weights, context.scale)
                torch.bmm(of_scores, keys, out=of_queries)
                torch.bmm(of_scores.transpose(1, 2), queries, out=of_keys)
        shape = gradients[0].shape
        return (*(row.index_select(0, positions).view(shape) for row in of_rows), None, None, None)


def _softmax_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _softmax(scores: Tensor, bias: Tensor | None, size: int, scale: float) -> Tensor:
    if bias is None:
        scaled = scores.to(_softmax_dtype(scores)).mul_(scale)
    else:
        scaled = torch.add(bias, scores.unflatten(0, (size, -1)), alpha=scale).view_as(scores)
    return scaled.softmax(-1).to(scores.dtype)


def _softmax_gradient(gradient: Tensor, weights: Tensor, scale: float) -> Tensor:
    dtype = _softmax_dtype(weights)
    of_scores = torch._softmax_backward_data(gradient.to(dtype), weights.to(dtype), -1, dtype)
    return of_scores.mul_(scale).to(weights.dtype)
