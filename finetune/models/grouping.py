"""The rows of a packed row's tokens in the order of groups of sequences, by head, and back.

Each token is in one place; what stands at padding has no gradient, as nobody sees it. So gradients
are gathered, too, where indexing would add them up row by row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from finetune.models.packing import Group, PackedLayout
from finetune.runtime.transfer import to_device


class Order(NamedTuple):
    """Which row of tokens [T * A] each row of groups [G * A] is (``places``), and where those are
    there (``back``); ``sizes`` are the numbers of rows of the groups.

    In a group, rows are ordered as [size, A, L], or as [A, size, L] where heads come first.
    """

    places: Tensor
    back: Tensor
    sizes: list[int]

    def there(self, rows: Tensor) -> Tensor:
        """Rows of tokens [T, A, D] -> rows of groups [G * A, D]."""
        return _There.apply(rows.flatten(0, 1), self.places, self.back)

    def again(self, rows: Tensor) -> Tensor:
        """Rows of groups [G * A, D] -> rows of tokens [T * A, D]."""
        return _Again.apply(rows, self.back)


def order_of(layout: PackedLayout, num_heads: int, heads_first: bool = False) -> Order:
    """The order of a layout's groups, the same for all layers."""
    key = (num_heads, heads_first)
    if key not in layout.plans:
        layout.plans[key] = _order(layout, num_heads, heads_first)
    return layout.plans[key]


def _order(layout: PackedLayout, num_heads: int, heads_first: bool) -> Order:
    heads = torch.arange(num_heads)
    places, inside = [], []
    for rows, valid in layout.places:
        shape = (num_heads, *rows.shape) if heads_first else (len(rows), num_heads, rows.shape[1])
        own = rows if heads_first else rows[:, None]  # [size, L] or [size, 1, L]
        head = heads[:, None, None] if heads_first else heads[:, None]
        places.append((own * num_heads + head).flatten())
        inside.append((valid if heads_first else valid[:, None]).expand(shape).flatten())
    joined = torch.cat(places)
    tokens = torch.cat(inside).nonzero()[:, 0]
    back = torch.empty_like(tokens)
    back[joined[tokens]] = tokens
    device = layout.cu_seqlens.device
    return Order(to_device(joined, device), to_device(back, device), [len(rows) for rows in places])


def seen_by(group: Group, sliding_window: int | None, device: torch.device) -> Tensor | None:
    """Who may see whom in a group, broadcastable to [size, A, L, L]; None where all may.

    ``sliding_window`` w lets tokens see others less than w away.
    """
    if sliding_window is None or group.longest <= sliding_window:
        return group.keys
    place = torch.arange(group.longest, device=device)
    near = (place[:, None] - place).abs() < sliding_window
    if group.keys is None:
        return near
    # A padded query far from every key would see nothing (NaN): let it see itself.
    return (near & group.keys) | torch.eye(group.longest, dtype=torch.bool, device=device)


class _There(torch.autograd.Function):
    """Rows in the order of groups."""

    @staticmethod
    def forward(context: Any, rows: Tensor, places: Tensor, back: Tensor) -> Tensor:
        context.save_for_backward(back)
        return rows.index_select(0, places)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (back,) = context.saved_tensors
        return gradients[0].index_select(0, back), None, None


class _Again(torch.autograd.Function):
    """Rows in the order of tokens."""

    @staticmethod
    def forward(context: Any, rows: Tensor, back: Tensor) -> Tensor:
        context.save_for_backward(back)
        context.num_rows = len(rows)
        return rows.index_select(0, back)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (back,) = context.saved_tensors
        whole = gradients[0].new_zeros(context.num_rows, *gradients[0].shape[1:])
        return whole.index_copy_(0, back, gradients[0]), None
