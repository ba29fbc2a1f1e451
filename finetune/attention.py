"""Attention inside each sequence of a packed row, as an implementation of Hugging Face's own
attention interface, so that modelling code stays untouched.

A packed row is [1, T] tokens: sequences end to end, no padding. Plain attention would let every
token see every other sequence; here each sees its own alone. The ``PackedLayout`` says where
sequences end. It is made once per batch and reaches every layer as the keyword ``layout``.
Half precision on CUDA uses the variable-length FlashAttention kernel that PyTorch carries (Dao
2023, arXiv:2307.08691); everything else puts sequences of near-equal length into few dense calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from finetune.dropout import dropout as cheap_dropout
from finetune.staging import moved

NAME = "finetune_packed"
"""The name under which transformers knows this implementation. It never reaches a saved file."""

MAX_WASTE = 0.5
"""Padding that a group may add to its sequences, as a share of their tokens. It costs attention
alone, which is little in short sequences, and many small groups cost calls: 0.5 was 1.03 times as
fast as 0.15 in training with MiniLM on sentences of 20 tokens."""

SHORT = 96
"""Tokens up to which attention is faster written out on a CPU, where there is no dropout."""


class Group(NamedTuple):
    """Sequences that share one dense attention call: ``size`` of them, the longest with L tokens.

    ``rows`` are their places in the packed row: [size * L], or a slice where they lie there in
    one piece. ``keys`` [size, 1, 1, L] is False at padding, None where lengths are equal.
    """

    size: int
    longest: int
    rows: Tensor | slice
    keys: Tensor | None


@dataclass(frozen=True)
class PackedLayout:
    """Where the N sequences of a packed row lie: their boundaries [N+1] int32 and lengths.

    ``max_waste`` is the padding that groups of them may add, as a share of their tokens.
    ``longest`` is an upper bound of the lengths, for shapes that are fixed beforehand: on a GPU
    the boundaries alone then say where sequences end, and ``lengths`` are those of one batch among
    many. Sequences may be empty.
    """

    cu_seqlens: Tensor
    lengths: tuple[int, ...]
    max_waste: float = MAX_WASTE
    longest: int | None = None

    @property
    def max_seqlen(self) -> int:
        """Length of the longest sequence, in tokens, or the bound that stands for it."""
        return self.longest or max(self.lengths)

    @cached_property
    def groups(self) -> tuple[tuple[Group, ...], Tensor | None]:
        """Groups that cover all sequences, and the way back.

        The way back [T] finds each token of the packed row among the groups' rows, one group
        after the other; None where both orders are the same.
        """
        starts = [0]
        for length in self.lengths:
            starts.append(starts[-1] + length)
        groups, back, offset = [], torch.empty(starts[-1], dtype=torch.long), 0
        for members in near_equal(self.lengths, self.max_waste):
            begin = torch.tensor([starts[m] for m in members])[:, None]
            place = torch.arange(self.lengths[members[-1]])
            valid = place < torch.tensor([self.lengths[m] for m in members])[:, None]  # [size, L]
            rows = torch.where(valid, begin + place, begin)  # [size, L]
            back[rows[valid]] = offset + valid.flatten().nonzero()[:, 0]
            offset += valid.numel()
            groups.append(_group(rows, valid, self.cu_seqlens.device))
        unmoved = offset == len(back) and bool((back == torch.arange(offset)).all())
        return tuple(groups), None if unmoved else moved(back, self.cu_seqlens.device)

    @cached_property
    def rows(self) -> Tensor:
        """The rows of all groups, one group after the other, as places in the packed row: [G]."""
        places = torch.arange(sum(self.lengths), device=self.cu_seqlens.device)
        return torch.cat([places[group.rows] for group in self.groups[0]])


def near_equal(lengths: Sequence[int], max_waste: float = MAX_WASTE) -> Iterator[list[int]]:
    """Numbers of sequences in groups of ascending length that padding widens by ``max_waste``.

    Empty sequences are in no group.
    """
    members: list[int] = []
    tokens = 0
    filled = (number for number, length in enumerate(lengths) if length)
    for number in sorted(filled, key=lambda n: (lengths[n], n)):
        tokens += lengths[number]
        if members and lengths[number] * (len(members) + 1) > (1 + max_waste) * tokens:
            yield members
            members, tokens = [], lengths[number]
        members.append(number)
    yield members


def _group(rows: Tensor, valid: Tensor, device: torch.device) -> Group:
    """The group of these rows of the packed row and their validity, both [size, L]."""
    size, longest = rows.shape
    if not valid.all():
        keys = moved(valid[:, None, None], device)
        return Group(size, longest, moved(rows.flatten(), device), keys)
    first = int(rows[0, 0])
    if torch.equal(rows.flatten(), torch.arange(first, first + rows.numel())):
        return Group(size, longest, slice(first, first + rows.numel()), None)
    return Group(size, longest, moved(rows.flatten(), device), None)


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
    """What transformers calls in every layer: packed with a layout, scaled dot product without.

    ``query``, ``key``, ``value`` are [1, A, T, D] with A heads of D values when packed (any batch
    size when not); the result is [1, T, A, D]. ``sliding_window`` w lets tokens see others less
    than w away (ModernBERT's local layers). Raises ValueError rather than attend across sequences.
    """
    if layout is None:
        _refuse_unmarked_packing(query, attention_mask, sliding_window, others.get("position_ids"))
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling,
            sliding_window=sliding_window, **others,
        )  # fmt: skip
    num_tokens = sum(layout.lengths)
    if query.shape[0] != 1 or query.shape[2] != num_tokens or key.shape != query.shape:
        raise ValueError(
            f"a packed layout of {num_tokens} tokens in one row got queries {list(query.shape)} "
            f"and keys {list(key.shape)}"
        )
    if attention_mask is not None:
        raise ValueError("a packed row takes no attention mask: its layout says who sees whom")
    if getattr(module, "is_causal", False):
        raise ValueError(f"{type(module).__name__} attends causally; packing is for encoders")
    path = _kernel if _kernel_takes(query, key, value) else _grouped
    if layout.longest is not None and query.is_cuda and path is _grouped:
        raise ValueError(
            f"the variable-length kernel, which fixed shapes need, takes no {query.dtype} heads of "
            f"{query.shape[-1]} values on this device"
        )
    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]  # 3 of [T, A, D]
    return path(*rows, layout, dropout, scaling, sliding_window)[None], None


def _refuse_unmarked_packing(
    query: Tensor, mask: Tensor | None, sliding_window: int | None, position_ids: Tensor | None
) -> None:
    """Raise where a call without layout and mask looks packed, or would lose its window."""
    if mask is not None:
        return
    if position_ids is not None and bool((position_ids.diff(dim=-1) <= 0).any()):
        raise ValueError("positions restart inside a row, but no packed layout came with it")
    if sliding_window is not None and query.shape[2] > sliding_window:
        raise ValueError("a layer with a local window got neither a mask nor a packed layout")


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout,
    dropout: float, scaling: float | None, sliding_window: int | None,
) -> Tensor:  # fmt: skip
    """One dense call per group of sequences: [T, A, D] three times -> [T, A, D]."""
    groups, back = layout.groups
    dense = [query, key, value]
    if back is not None:
        dense = [_Gather.apply(tensor, layout.rows, back) for tensor in dense]
    sizes = [group.size * group.longest for group in groups]
    parts = zip(groups, *(tensor.split(sizes) for tensor in dense), strict=True)
    results = []
    for group, *rows in parts:
        shape = (group.size, group.longest)
        own = [tensor.unflatten(0, shape).transpose(1, 2) for tensor in rows]  # [size, A, L, D]
        mask = _group_mask(group, sliding_window, query.device)
        if query.device.type == "cpu" and (dropout > 0 or group.longest <= SHORT):
            attended = _written_out(*own, mask, dropout, scaling)
        else:
            attended = F.scaled_dot_product_attention(
                *own, attn_mask=mask, dropout_p=dropout, scale=scaling
            )
        results.append(attended.transpose(1, 2).flatten(0, 1))  # [size * L, A, D]
    joined = results[0] if len(results) == 1 else torch.cat(results)
    return joined if back is None else _Return.apply(joined, back)


class _Gather(torch.autograd.Function):
    """Rows of groups [G, A, D] from those of tokens [T, A, D], and back for the gradient.

    Each token is in one place; what stands at padding has no gradient, as nobody sees it. So the
    gradient is gathered, too, where indexing would add it up row by row.
    """

    @staticmethod
    def forward(context: Any, tensor: Tensor, rows: Tensor, back: Tensor) -> Tensor:
        context.save_for_backward(back)
        return tensor.index_select(0, rows)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (back,) = context.saved_tensors
        return gradients[0].index_select(0, back), None, None


class _Return(torch.autograd.Function):
    """Rows of tokens [T, A, D] from those of groups [G, A, D]; padding gets no gradient."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, back: Tensor) -> Tensor:
        context.save_for_backward(back)
        context.num_rows = len(tensor)
        return tensor.index_select(0, back)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (back,) = context.saved_tensors
        whole = gradients[0].new_zeros(context.num_rows, *gradients[0].shape[1:])
        return whole.index_copy_(0, back, gradients[0]), None


def _written_out(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
    dropout: float, scaling: float | None,
) -> Tensor:  # fmt: skip
    """Attention written out: [size, A, L, D] three times -> [size, A, L, D].

    Torch's own on the CPU takes mostly 1.2 to 3 times as long for up to 96 tokens (around 32
    tokens in bfloat16 it can be the faster one). With dropout torch writes it out, too, but
    computes bfloat16 in float32, and draws a mask at eight times the cost.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    shape = query.shape
    rows = [tensor.reshape(-1, *shape[2:]) for tensor in (query * scale, key, value)]
    with torch.autocast("cpu", enabled=False):
        scores = torch.bmm(rows[0], rows[1].transpose(1, 2))  # [size * A, L, L]
        if mask is not None:
            scores = scores.view(*shape[:3], -1).masked_fill(~mask, -torch.inf).view_as(scores)
        weights = cheap_dropout(scores.softmax(-1), dropout)
        return torch.bmm(weights, rows[2]).view(shape)


def _group_mask(group: Group, sliding_window: int | None, device: torch.device) -> Tensor | None:
    """Who may see whom in a group, broadcastable to [size, A, L, L]; None where all may."""
    if sliding_window is None or group.longest <= sliding_window:
        return group.keys
    place = torch.arange(group.longest, device=device)
    near = (place[:, None] - place).abs() < sliding_window
    if group.keys is None:
        return near
    # A padded query far from every key would see nothing (NaN): let it see itself.
    return (near & group.keys) | torch.eye(group.longest, dtype=torch.bool, device=device)


def _kernel_takes(*tensors: Tensor) -> bool:
    """Whether PyTorch's FlashAttention kernel takes these: CUDA, half precision, its head sizes."""
    query = tensors[0]
    head_size = query.shape[-1]
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

    The operator under ``torch.nn.attention.varlen.varlen_attn``, which fixes dropout at 0; BERT
    and RoBERTa train with attention dropout 0.1.
    """
    window = -1 if sliding_window is None else sliding_window - 1  # the kernel's is inclusive
    cu_seqlens, longest = layout.cu_seqlens, layout.max_seqlen
    return torch.ops.aten._flash_attention_forward(
        query, key, value, cu_seqlens, cu_seqlens, longest, longest, dropout, False, False,
        scale=scaling, window_size_left=window, window_size_right=window,
    )[0]  # fmt: skip


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)  # without it padded calls lose their mask
