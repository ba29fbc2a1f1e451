"""Attention inside each sequence of a packed row, as a function for transformers' interface.

A packed row is [1, T] tokens: sequences end to end, no padding. A ``PackedLayout`` has their
boundaries and reaches every layer as the keyword ``layout``. Half precision on CUDA uses PyTorch's
FlashAttention for variable lengths (Dao, 2023, arXiv:2307.08691).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedConfig

from finetune.models.dropout import dropout as drop
from finetune.models.packing import Group, PackedCall, PackedLayout, RowOrder
from finetune.types import UserError

NAME = "finetune_packed"
"""The name of this implementation in transformers. It never reaches a saved file."""

SHORT = 96
"""Length in tokens up to which a CPU computes products and softmax one by one without dropout, too:
forward and backward then take less time than torch's own attention."""

_USES: dict[int, tuple[int, str | None]] = {}
"""By the id of a configuration: the number of blocks that use it now, and its original setting."""
_LOCK = threading.Lock()


@contextlib.contextmanager
def packed_attention(config: PreTrainedConfig, name: str = NAME) -> Iterator[None]:
    """Let all modules with this configuration call ``attend`` within a ``with`` block.

    ``name`` chooses another function that is registered with transformers. The original setting
    returns at the end. Several threads may run the same model.
    """
    with _LOCK:
        count, original = _USES.get(id(config), (0, config._attn_implementation))
        _USES[id(config)] = count + 1, original
        config._attn_implementation = name
    try:
        yield
    finally:
        with _LOCK:
            count, original = _USES.pop(id(config))
            if count > 1:
                _USES[id(config)] = count - 1, original
            else:
                config._attn_implementation = original


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    layout: PackedLayout | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention inside each sequence of a packed row; transformers calls this per layer.

    Queries [1, A, T, D] for A heads of D values, keys and values [1, K, T, D], where A is a
    multiple of K (grouped-query attention: Ainslie et al., 2023), give [1, T, A, D], and None for
    the weights. ``scaling`` None is 1 / sqrt(D). Tokens attend to others less than
    ``sliding_window`` positions away (the local layers of ModernBERT). ``UserError`` if the call
    would attend across sequences, or does not match its layout.
    """
    if layout is None:
        raise UserError(f"{type(module).__name__} got a packed row without its layout")
    if query.dtype != value.dtype:  # rotations use float32 under autocast
        query, key = query.to(value.dtype), key.to(value.dtype)
    if (times := query.shape[1] // key.shape[1]) > 1:
        key, value = (tensor.repeat_interleave(times, dim=1) for tensor in (key, value))
    if query.shape[2] != layout.num_tokens:
        raise UserError(f"a layout of {layout.num_tokens} tokens got {query.shape[2]} queries")
    if attention_mask is not None:
        raise UserError("a packed row takes no attention mask: its layout has the boundaries")
    call = PackedCall(layout, dropout, scaling, sliding_window)
    if _flash_supports(query):
        compute = _flash
    elif not query.is_cpu and len(layout.groups) == 1:
        return _padded(query, key, value, call), None
    elif query.is_cpu and (dropout > 0 or layout.max_seqlen <= SHORT):
        compute = _by_products
    else:
        compute = _grouped
    # 3 of [T, A, D]; the gradient of an index would be written into zeros
    query, key, value = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    return compute(query, key, value, call)[None], None


def _grouped(query: Tensor, key: Tensor, value: Tensor, call: PackedCall) -> Tensor:
    # [T, A, D] three times -> [T, A, D]
    order: RowOrder = call.layout.row_order(query.shape[1])
    outputs = []
    for group, rows in order.split(*order.to_groups(query, key, value)):
        queries, keys, values = (row.unflatten(0, (group.size, -1)) for row in rows)
        output = _dense(queries, keys, values, group, call)
        outputs.append(output.flatten(0, 2))  # [size * A * L, D]
    return order.to_tokens(outputs).view(query.shape)


def _padded(query: Tensor, key: Tensor, value: Tensor, call: PackedCall) -> Tensor:
    # [1, A, T, D] three times -> [1, T, A, D] for a single group, with few operators
    (group,), (_, heads, num_tokens, size) = call.layout.groups, query.shape
    key_of_rows = "rows", heads
    sources, positions = call.layout.cached(key_of_rows, lambda: group.rows(heads, num_tokens))
    rows = torch.cat([query, key, value]).view(3, -1, size).index_select(1, sources)
    rows = rows.view(3, group.size, heads, group.longest, size)
    query, key, value = rows.unbind()  # to index would add up three gradients of all
    output = _dense(query, key, value, group, call).transpose(1, 2)
    return output.flatten(0, 1).index_select(0, positions)[None]


def _dense(query: Tensor, key: Tensor, value: Tensor, group: Group, call: PackedCall) -> Tensor:
    # [size, A, L, D] three times -> [size, A, L, D]
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=call.layout.bias(group, call.sliding_window, query.dtype),
        dropout_p=call.dropout,
        scale=call.scaling,
    )


def _by_products(query: Tensor, key: Tensor, value: Tensor, call: PackedCall) -> Tensor:
    layout, rows = call.layout, (query, key, value)
    scale = query.shape[-1] ** -0.5 if call.scaling is None else call.scaling
    window = call.sliding_window
    biases = [layout.bias(group, window, torch.float32) for group in layout.groups]
    return attend_in_groups(rows, layout.row_order(query.shape[1]), biases, call.dropout, scale)


def attend_in_groups(
    rows: Sequence[Tensor],
    order: RowOrder,
    biases: Sequence[Tensor | None],
    dropout: float,
    scale: float,
) -> Tensor:
    """Compute softmax(Q K^T * scale + bias) V inside each sequence (Vaswani et al., 2017, eq. 1).

    Queries, keys and values [T, A, D] give [T, A, D]. The bias of each group, [size, A, L, L] or
    broadcastable, is -inf where a query must not attend to a key. Softmax runs in at least float32.
    """
    outputs = []
    groups = order.split(*order.to_groups(*rows))
    for bias, (group, (query, key, value)) in zip(biases, groups, strict=True):
        scores = torch.bmm(query, key.transpose(1, 2)).unflatten(0, (group.size, -1))
        dtype = torch.promote_types(scores.dtype, torch.float32)
        if bias is None:
            scores = scores.to(dtype) * scale
        else:
            scores = torch.add(bias, scores, alpha=scale)
        weights = drop(scores.softmax(-1, dtype=dtype).to(value.dtype), dropout)
        outputs.append(torch.bmm(weights.flatten(0, 1), value).flatten(0, 1))
    return order.to_tokens(outputs).view(rows[2].shape)


def _flash_supports(query: Tensor) -> bool:
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 256
        and _has_flash_attention(query.device)
    )


@functools.cache
def _has_flash_attention(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _flash(query: Tensor, key: Tensor, value: Tensor, call: PackedCall) -> Tensor:
    """The operator under ``varlen_attn``, without dropout: [T, A, D] three times -> [T, A, D]."""
    # the window of the kernel is inclusive
    window = -1 if call.sliding_window is None else call.sliding_window - 1
    cu_seqlens, longest = call.layout.cu_seqlens, call.layout.max_seqlen
    output: Tensor = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        cu_seqlens,
        cu_seqlens,
        longest,
        longest,
        call.dropout,
        False,
        False,
        scale=call.scaling,
        window_size_left=window,
        window_size_right=window,
    )[0]
    return output


# No mask function is registered under this name: modeling code then builds no mask of T x T.
AttentionInterface.register(NAME, attend)
