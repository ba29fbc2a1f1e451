"""Attention inside each sequence of a packed row, as an implementation of Hugging Face's own
attention interface, so that modelling code stays untouched.

A packed row is [1, T] tokens: sequences end to end, no padding. Plain attention would let every
token see every other sequence; here each sees its own alone. The ``PackedLayout`` says where
sequences end. It is made once per batch and reaches every layer as the keyword ``layout``.
Half precision on CUDA uses the variable-length FlashAttention kernel that PyTorch carries (Dao
2023, arXiv:2307.08691); everything else puts sequences of near-equal length into few dense calls.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedConfig

from finetune.models.attention_cpu import attended
from finetune.models.grouping import order_of, seen_by
from finetune.models.packing import PackedLayout
from finetune.types import UserError

NAME = "finetune_packed"
"""The name under which transformers knows this implementation. It never reaches a saved file."""

SHORT = 96
"""Tokens up to which attention is written out on a CPU where there is no dropout: forward and
backward then take less than torch's own (fp32 by a tenth to a half, bf16 by more than half), the
forward pass alone less up to 32 tokens and about as much beyond."""


_USES: dict[int, tuple[int, str | None]] = {}
"""By the id of a configuration: the number of blocks that use it now, and its own setting."""
_LOCK = threading.Lock()


@contextlib.contextmanager
def packed_attention(config: PreTrainedConfig) -> Iterator[None]:
    """Let all modules with this configuration call ``attend`` within a ``with`` block.

    The setting of the configuration is restored at the end. Several threads may run a model.
    """
    with _LOCK:
        count, original = _USES.get(id(config), (0, config._attn_implementation))
        _USES[id(config)] = count + 1, original
        config._attn_implementation = NAME
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
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention inside each sequence of a packed row; transformers calls this per layer.

    ``query``, ``key``, ``value`` are [1, A, T, D] with A heads of D values when packed (any batch
    size when not), or keys and values of K heads that A is a multiple of; the result is
    [1, T, A, D]. ``sliding_window`` w lets tokens see others less than w away (ModernBERT's local
    layers). Raises ValueError rather than attend across sequences.
    """
    if layout is None:
        raise UserError(f"{type(module).__name__} got a packed row without its layout")
    query, key, value = _alike(query, key, value)
    num_tokens = sum(layout.lengths)
    if query.shape[0] != 1 or query.shape[2] != num_tokens or key.shape != query.shape:
        raise UserError(
            f"a packed layout of {num_tokens} tokens in one row got queries {list(query.shape)} "
            f"and keys {list(key.shape)}"
        )
    if attention_mask is not None:
        raise UserError("a packed row takes no attention mask: its layout says who sees whom")
    if getattr(module, "is_causal", False):
        raise UserError(f"{type(module).__name__} attends causally; packing is for encoders")
    path = _path(query, key, value, layout, dropout)
    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]  # 3 of [T, A, D]
    return path(*rows, layout, dropout, scaling, sliding_window)[None], None


def _alike(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All three as [1, A, T, D] of one type: under autocast, rotations make float32 of queries and
    keys; and a head of keys and values may serve several of queries (Ainslie et al., 2023)."""
    query, key, times = query.to(value.dtype), key.to(value.dtype), query.shape[1] // key.shape[1]
    if times > 1:
        key, value = (tensor.repeat_interleave(times, dim=1) for tensor in (key, value))
    return query, key, value


def _path(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, dropout: float) -> Any:
    """What computes the attention of these."""
    if _kernel_takes(query, key, value):
        return _kernel
    if query.device.type == "cpu" and (dropout > 0 or layout.max_seqlen <= SHORT):
        return attended
    return _grouped


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout,
    dropout: float, scaling: float | None, sliding_window: int | None,
) -> Tensor:  # fmt: skip
    """One call of torch's own attention per group: [T, A, D] three times -> [T, A, D]."""
    order = order_of(layout, query.shape[1])
    columns = [order.there(tensor).split(order.sizes) for tensor in (query, key, value)]
    results = []
    for group, *rows in zip(layout.groups, *columns, strict=True):
        shape = (group.size, query.shape[1], group.longest)
        mask = seen_by(group, sliding_window, query.device)
        result = F.scaled_dot_product_attention(
            *(own.unflatten(0, shape) for own in rows),
            attn_mask=mask, dropout_p=dropout, scale=scaling,
        )  # fmt: skip
        results.append(result.flatten(0, 2))  # [size * A * L, D]
    return order.again(torch.cat(results)).view(query.shape)


def _kernel_takes(*tensors: Tensor) -> bool:
    """Whether PyTorch's FlashAttention kernel takes these: CUDA, half precision, its head sizes."""
    query, head_size = tensors[0], tensors[0].shape[-1]
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and all(tensor.dtype == query.dtype for tensor in tensors)
        and head_size % 8 == 0
        and head_size <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def _kernel(
    query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout,
    dropout: float, scaling: float | None, sliding_window: int | None,
) -> Tensor:  # fmt: skip
    """FlashAttention over variable lengths, for CUDA: [T, A, D] three times -> [T, A, D].

    The operator under ``torch.nn.attention.varlen.varlen_attn``, without its dropout fixed at 0.
    """
    window = -1 if sliding_window is None else sliding_window - 1  # the kernel's is inclusive
    cu_seqlens, longest = layout.cu_seqlens, layout.max_seqlen
    return torch.ops.aten._flash_attention_forward(
        query, key, value, cu_seqlens, cu_seqlens, longest, longest, dropout, False, False,
        scale=scaling, window_size_left=window, window_size_right=window,
    )[0]  # fmt: skip


AttentionInterface.register(NAME, attend)
# No mask function is registered under this name: models then build no mask of T x T.
