"""Train only the rows of the embedding table whose subwords occur in the data.

Small data sets use a small fraction of a vocabulary. The other rows have no gradient, so AdamW only
multiplies them by 1 - learning rate * weight decay in each step. This can wait until the table is
saved; the saved table equals the result of training all rows. The factors are applied one after the
other, not as one product: each product is rounded as in AdamW, whenever the run is saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.optim import Optimizer

from finetune.models.families import family_of
from finetune.runtime.processes import num_processes
from finetune.types import UserError


class CompactEmbedding(nn.Module):
    """Replaces an ``nn.Embedding`` of V rows and trains A of them, ``weight`` [A, H].

    Ids keep their meaning. In ``state_dict()`` the weight is the whole table, so that the model is
    saved with a plain embedding. ``pending`` has the factors of weight decay that are not yet
    applied to ``rest``.
    """

    index: Tensor
    """For each id its row in ``weight``, or -1, [V]."""
    absent: Tensor
    """The ids of the rows in ``rest``, [V - A]."""
    rest: Tensor
    """The other rows, [V - A, H], as they were before ``pending``."""

    def __init__(self, plain: nn.Embedding, rows: Tensor) -> None:
        """Split the table of ``plain``; ``rows`` [A] are the ids that may be looked up."""
        super().__init__()
        table = plain.weight.detach()
        occurs = torch.zeros(len(table), dtype=torch.bool, device=table.device)
        occurs[rows.to(table.device)] = True
        index = occurs.cumsum(0).sub_(1).masked_fill_(~occurs, -1)
        self.weight = nn.Parameter(table[occurs])
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("absent", (~occurs).nonzero()[:, 0], persistent=False)
        self.register_buffer("rest", table[~occurs], persistent=False)
        padding = plain.padding_idx
        self.padding_idx = None if padding is None else int(index[padding])
        self.pending: list[float] = []
        self._gradient: Tensor | None = None
        self._added: list[Tensor] = []

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows [..., H] of ids [...]; IndexError for an id that has none."""
        rows = self.index[ids]
        if self.weight.is_cpu and num_processes() == 1:
            found: Tensor = _Lookup.apply(self.weight, rows, self)  # type: ignore[no-untyped-call]
            return found
        return nn.functional.embedding(rows, self.weight, self.padding_idx)

    def add_gradient(self, rows: Tensor, gradient: Tensor) -> None:
        """Add the gradient [N, H] of looked up rows [N] to the gradient of the weight.

        Torch writes zeros into a new gradient of the whole table for each batch, which takes longer
        than adding a few rows. Here the table is kept, and only rows with a gradient are zeroed.
        """
        unique, places = rows.unique(return_inverse=True)
        padding = -1 if self.padding_idx is None else self.padding_idx
        row = int(torch.searchsorted(unique, padding))
        is_read = row < len(unique) and int(unique[row]) == padding
        added = torch.ops.aten.embedding_dense_backward(
            gradient, places, len(unique), row if is_read else -1, False
        )
        if self.weight.grad is None:
            if self._gradient is None:
                self._gradient = torch.zeros_like(self.weight)
            for before in self._added:
                self._gradient.index_fill_(0, before, 0.0)
            self._added.clear()
            self.weight.grad = self._gradient
        total = self.weight.grad
        total.index_copy_(0, unique, total.index_select(0, unique).add_(added))
        self._added.append(unique)

    @property
    def rows(self) -> Tensor:
        """The ids of the rows of ``weight``, in their order: [A]."""
        return (self.index >= 0).nonzero()[:, 0]

    def table(self) -> Tensor:
        """Return a copy of the whole table [V, H], after the pending weight decay."""
        # blocks that fit into the processor's cache
        numbers = 2**16 if self.rest.device.type == "cpu" else 2**22
        for block in torch.split(self.rest, max(1, numbers // self.rest.shape[1])):
            for factor in self.pending:
                block.mul_(factor)
        self.pending.clear()
        table = self.rest.new_empty(len(self.index), self.rest.shape[1])
        table[self.rows] = self.weight.detach()
        table[self.absent] = self.rest
        return table

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.table()


class _Lookup(torch.autograd.Function):
    """Look up rows of a ``CompactEmbedding`` on the CPU, which adds their gradient itself."""

    @staticmethod
    def forward(context: Any, weight: Tensor, rows: Tensor, table: CompactEmbedding) -> Tensor:
        context.save_for_backward(rows)
        context.table = table
        return nn.functional.embedding(rows, weight)

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[None, None, None]:
        (rows,) = context.saved_tensors
        with torch.no_grad():
            context.table.add_gradient(rows.flatten(), gradients[0].flatten(0, -2))
        return None, None, None


BLOCK = 2**24
"""Number of token ids to sort together."""


class SparseEmbeddings:
    """Context in which a run trains the rows of the input embeddings that occur in its data.

    At its end the model has its plain embedding again, with the trained rows. If all rows are
    trained, ``embedding`` is None and ``reason`` says why; otherwise ``note`` tells the user the
    number of rows.
    """

    def __init__(
        self, head: Any, setting: str, read: Iterable[np.ndarray], added: Sequence[int] = ()
    ) -> None:
        """Replace the embeddings.

        ``read`` has the ids of all sequences that the model will read, ``added`` further ids.
        """
        self.encoder, self.note = head.encoder, ""
        self.embedding: CompactEmbedding | None = None
        self.plain = self.encoder.model.get_input_embeddings()
        self.reason = "it is off" if setting == "off" else _why_unsupported(head)
        if self.reason and setting == "on":
            raise UserError(f"--sparse-embeddings on: {self.reason}; use auto or off.")
        self.size = len(self.plain.weight)
        if not self.reason:
            rows = self._rows(read, added)
            occur = f"{len(rows):,} of {self.size:,} subwords of the vocabulary occur in the data"
            # leaving out less than 40 % saves little
            if len(rows) >= (0.6 if setting == "auto" else 1.0) * self.size:
                self.reason = occur
            else:
                self.embedding = CompactEmbedding(self.plain, rows)
                self.note = f"{occur}: the embeddings of the others are not updated"
        if self.embedding is not None:
            self._replace(self.plain, self.embedding)
            self.plain.weight.data = self.plain.weight.new_empty(0)  # the compact one holds copies

    def _rows(self, read: Iterable[np.ndarray], added: Sequence[int]) -> Tensor:
        others = {self.encoder.pad_id, self.plain.padding_idx, *added} - {None}
        seen = [
            np.unique(ids[start : start + BLOCK])
            for ids in read
            for start in range(0, len(ids), BLOCK)
        ]
        seen.append(np.array(list(others)))
        ids = np.unique(np.concatenate(seen)).astype(np.int64)
        return torch.from_numpy(ids[ids < len(self.plain.weight)])

    def _replace(self, old: nn.Module, new: nn.Module) -> None:
        name = next(n for n, m in self.encoder.model.named_modules() if m is old)
        parent, _, child = name.rpartition(".")
        setattr(self.encoder.model.get_submodule(parent), child, new)

    def attach(self, optimizer: Optimizer) -> Optimizer:
        """Record the weight decay of each step of the optimizer, and return it."""
        if self.embedding is not None:
            optimizer.register_step_post_hook(self._after_step)
        return optimizer

    def _after_step(self, optimizer: Optimizer, *call: Any) -> None:
        if self.embedding is None:
            return
        weight = self.embedding.weight
        group = next(g for g in optimizer.param_groups if any(w is weight for w in g["params"]))
        factor = 1 - group["lr"] * group["weight_decay"]
        if factor != 1:
            self.embedding.pending.append(factor)

    def __enter__(self) -> SparseEmbeddings:
        return self

    def __exit__(self, *error: object) -> None:
        """Give the model its plain embedding back, with the trained rows in it."""
        if self.embedding is not None:
            self.plain.weight.data = self.embedding.table()
            self.plain.training = self.embedding.training
            self._replace(self.embedding, self.plain)
            self.embedding = None


def _why_unsupported(head: Any) -> str:
    model_type = head.encoder.model.config.model_type
    if family_of(head.encoder.model) is None:
        return f"no test shows that {model_type} models use their embeddings for lookups only"
    embedding = head.encoder.model.get_input_embeddings()
    if type(embedding) is not nn.Embedding or embedding.max_norm is not None or embedding.sparse:
        return f"the embeddings of this {model_type} model are not a plain nn.Embedding"
    if not embedding.weight.requires_grad:
        return "the embeddings are frozen (--freeze, --tuning)"
    weights = (weight for _, weight in head.named_parameters(remove_duplicate=False))
    if sum(weight is embedding.weight for weight in weights) > 1:
        return "another layer of the model shares the table"
    return ""
