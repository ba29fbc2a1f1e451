"""Training only the rows of the embedding table that occur in the data.

Small data use a few thousand of the 30,000 to 250,000 pieces of a vocabulary. The rows of the
others have no gradient, so their moments stay 0 and AdamW does nothing to them but decay: in each
step they are multiplied by 1 - rate * weight decay. That can wait until somebody looks. Gradients,
their norm, moments and updates are then those of the rows that occur, and what is saved is what
training of the whole table gives, row by row.

The factors are applied one after the other, not as one product: so each is rounded as AdamW does,
and it does not matter at which steps a run is saved, interrupted and continued.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from finetune.models.families import family_of
from finetune.preprocessing.encodings import Encoded
from finetune.types import UserError

SHARE = 0.6
"""``auto`` trains the whole table from this share of occurring rows on: less is hardly saved."""


class _Lookup(torch.autograd.Function):
    """Rows of a table, where the gradient of one step after the other has the same memory.

    torch makes a gradient of the size of the table in each step. New memory that large comes
    page by page from the operating system: 28 of 240 ms in a profile of 11,600 rows of 384 on two
    cores. Training in turns with and without it, kept memory was worth 1.06x.
    """

    @staticmethod
    def forward(context: Any, places: Tensor, weight: nn.Parameter, embedding: Any) -> Tensor:
        context.save_for_backward(places)
        context.weight, context.embedding = weight, embedding
        return nn.functional.embedding(places, weight)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[None, None, None]:
        (places,), weight = context.saved_tensors, context.weight
        if weight.grad is None:
            weight.grad = _memory(context.embedding, weight)
        weight.grad.index_add_(0, places.flatten(), gradients[0].flatten(0, -2))
        padding = context.embedding.padding_idx
        if padding is not None:
            weight.grad[padding] = 0
        return None, None, None


def _memory(embedding: Any, weight: Tensor) -> Tensor:
    """Zeros of a table's shape, in the memory of the gradient before."""
    kept = embedding.__dict__.get("gradient")
    if kept is None or kept.shape != weight.shape or kept.dtype != weight.dtype:
        embedding.__dict__["gradient"] = kept = torch.empty_like(weight)
    return kept.zero_()


def _looked_up(places: Tensor, embedding: Any) -> Tensor:
    """The rows of an embedding at places of any shape [...]: [..., H]."""
    if places.is_cpu and embedding.weight.requires_grad and torch.is_grad_enabled():
        return _Lookup.apply(places, embedding.weight, embedding)
    return nn.functional.embedding(places, embedding.weight, embedding.padding_idx)


class WholeEmbedding(nn.Embedding):
    """Replaces an ``nn.Embedding`` during a run that trains all of its rows."""

    def __init__(self, plain: nn.Embedding) -> None:
        """Share the weight of ``plain``."""
        super().__init__(*plain.weight.shape, plain.padding_idx, _weight=plain.weight)
        self.weight = plain.weight
        self.train(plain.training)

    def forward(self, input: Tensor) -> Tensor:
        """The rows of ids of any shape [...]: [..., H]."""
        return _looked_up(input, self)


class CompactEmbedding(nn.Module):
    """Stands in for an ``nn.Embedding`` of V rows and trains A of them; ids keep their meaning.

    ``weight`` [A, H] are the rows that occur, ``rest`` [V - A, H] the others as they were before
    ``pending``, the factors that still apply to them. In ``state_dict()`` the weight is the whole
    table, so that a model with this inside is saved as one without.
    """

    place: Tensor
    rest: Tensor
    absent: Tensor

    def __init__(self, whole: nn.Embedding, rows: Tensor) -> None:
        """Take the rows of ``whole`` apart; ``rows`` [A] are the ids that may be looked up."""
        super().__init__()
        table = whole.weight.detach()
        occurs = torch.zeros(len(table), dtype=torch.bool, device=table.device)
        occurs[rows.to(table.device)] = True
        place = occurs.cumsum(0).sub_(1).masked_fill_(~occurs, -1)  # [V], no place is -1
        self.weight = nn.Parameter(table[occurs])
        self.register_buffer("place", place, persistent=False)
        self.register_buffer("absent", (~occurs).nonzero()[:, 0], persistent=False)
        self.register_buffer("rest", table[~occurs], persistent=False)
        inner = whole.padding_idx
        self.padding_idx = None if inner is None else int(place[inner])
        self.pending: list[float] = []

    def forward(self, ids: Tensor) -> Tensor:
        """The rows of ids of any shape [...]: [..., H]. IndexError for one that does not occur; on
        a CUDA device an assertion there fails, which is heard of later."""
        return _looked_up(self.place[ids], self)

    @property
    def rows(self) -> Tensor:
        """The ids of the rows of ``weight``, in their order: [A]."""
        return (self.place >= 0).nonzero()[:, 0]

    def table(self) -> Tensor:
        """The whole table [V, H], a copy."""
        self._decay()
        table = self.rest.new_empty(len(self.place), self.rest.shape[1])
        table[self.rows] = self.weight.detach()
        table[self.absent] = self.rest
        return table

    def _decay(self) -> None:
        """Apply the pending factors, to as many rows at a time as a cache holds (256 KB of a
        processor's, 16 MB of a GPU's)."""
        numbers = 2**16 if self.rest.device.type == "cpu" else 2**22
        for block in self.rest.split(max(1, numbers // self.rest.shape[1])):
            for factor in self.pending:
                block.mul_(factor)
        self.pending.clear()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.table()


class SparseEmbeddings:
    """Which rows of a model's input embeddings a run trains.

    ``reason`` says why it is the whole table, and is empty where it is the rows that occur; then
    ``note`` says how many. Leaving the context gives the model its plain embedding back.
    """

    def __init__(self, head: Any, setting: str, encoded: Iterable[Encoded]) -> None:
        """Make the embedding of ``head`` compact where ``setting`` (auto, on or off) says so.

        ``encoded`` is all that the model reads until the context is left. Raises ValueError where
        the setting is on and the model does not allow it.
        """
        self.encoder, self.note = head.encoder, ""
        self.embedding: CompactEmbedding | None = None
        self.plain = self.encoder.model.get_input_embeddings()
        reason = _why_whole(head)
        self.reason = "it is off" if setting == "off" else reason
        if self.reason and setting == "on":
            raise UserError(f"--active-vocabulary on: {self.reason}; use auto or off.")
        if not self.reason:
            self._make_compact(self._rows(encoded), SHARE if setting == "auto" else 1.0)
        if self.embedding is None and not reason:
            self._replace(self.plain, WholeEmbedding(self.plain))

    def _make_compact(self, rows: Tensor, most: float) -> None:
        """Train ``rows`` [A] alone, unless they are ``most`` of the table or more."""
        self.size = len(self.plain.weight)
        if len(rows) >= most * self.size:
            self.reason = f"{len(rows):,} of {self.size:,} pieces of the vocabulary occur"
            return
        self.embedding = CompactEmbedding(self.plain, rows)
        self._replace(self.plain, self.embedding)
        self.plain.weight.data = self.plain.weight.new_empty(0)  # the parts are copies
        self.note = (
            f"{len(rows):,} of {self.size:,} pieces of the vocabulary occur: the embeddings of "
            "the others only decay"
        )

    def _rows(self, encoded: Iterable[Encoded]) -> Tensor:
        """The ids that occur, with the padding's: [A]. Those that the model does not have are the
        encoder's to refuse."""
        seen = [np.array([self.encoder.pad_id])]
        if self.plain.padding_idx is not None:
            seen.append(np.array([self.plain.padding_idx]))
        seen += [np.unique(examples.sequences.ids.values) for examples in encoded]
        ids = np.unique(np.concatenate(seen)).astype(np.int64)
        return torch.from_numpy(ids[ids < len(self.plain.weight)])

    def _replace(self, old: nn.Module, new: nn.Module) -> None:
        name = next(n for n, m in self.encoder.model.named_modules() if m is old)
        parent, _, child = name.rpartition(".")
        setattr(self.encoder.model.get_submodule(parent), child, new)

    def follow(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Remember the decay of each of the optimizer's steps, and let its saved state say which
        rows it is for; one saved with other rows is brought to these. Returns the optimizer."""
        optimizer.register_load_state_dict_pre_hook(self._loading)
        if self.embedding is not None:
            optimizer.register_step_post_hook(self.stepped)
            optimizer.register_state_dict_post_hook(self._saving)
        return optimizer

    def stepped(self, optimizer: torch.optim.Optimizer, *call: Any) -> None:
        """Remember the decay of the step that the optimizer has taken."""
        if self.embedding is None:
            return
        group = next(g for _, g, w in _numbered(optimizer) if w is self.embedding.weight)
        factor = 1 - group["lr"] * group["weight_decay"]
        if factor != 1:
            self.embedding.pending.append(factor)

    def _saving(self, optimizer: torch.optim.Optimizer, content: dict[str, Any]) -> dict[str, Any]:
        assert self.embedding is not None
        own = self._index(optimizer)
        state = {
            index: {**values, "rows": self.embedding.rows} if index == own else values
            for index, values in content["state"].items()
        }
        return {**content, "state": state}

    def _loading(self, optimizer: torch.optim.Optimizer, content: dict[str, Any]) -> dict[str, Any]:
        own = self._index(optimizer)
        sizes = {index: weight.shape[:1] for index, _, weight in _numbered(optimizer)}
        state = {}
        for index, values in content["state"].items():
            before = values.get("rows")
            now = self.embedding.rows.cpu() if index == own and self.embedding else None
            size = sizes[index] if now is None else (self.size,)
            state[index] = {
                name: value if value.ndim == 0 else _brought(value, before, now, size)
                for name, value in values.items()
                if name != "rows"
            }
        return {**content, "state": state}

    def _index(self, optimizer: torch.optim.Optimizer) -> int | None:
        """The number of the compact weight among the optimizer's; None where there is none."""
        weight = self.embedding and self.embedding.weight
        return next((index for index, _, w in _numbered(optimizer) if w is weight), None)

    def __enter__(self) -> SparseEmbeddings:
        """Return this; the embedding is replaced from the start."""
        return self

    def __exit__(self, *error: object) -> None:
        """Give the model its plain embedding back, with the trained rows in it."""
        current = self.encoder.model.get_input_embeddings()
        if self.embedding is not None:
            self.plain.weight.data = self.embedding.table()
            self.embedding = None
        if current is not self.plain:
            self.plain.training = current.training
            self._replace(current, self.plain)


def _why_whole(head: Any) -> str:
    """Why a model's table is trained whole, whatever the data; empty where it need not be."""
    kind = head.encoder.model.config.model_type
    if family_of(head.encoder.model) is None:
        return f"no test shows that {kind} models only look rows up in their embeddings"
    embedding = head.encoder.model.get_input_embeddings()
    if type(embedding) is not nn.Embedding or embedding.max_norm is not None or embedding.sparse:
        return f"the embeddings of this {kind} model are of their own kind"
    if not embedding.weight.requires_grad:
        return "the embeddings are frozen (--freeze)"
    weights = (weight for _, weight in head.named_parameters(remove_duplicate=False))
    if sum(weight is embedding.weight for weight in weights) > 1:
        return "another layer of the model shares the table"
    return ""


def _numbered(optimizer: torch.optim.Optimizer) -> list[tuple[int, dict[str, Any], Tensor]]:
    """Each weight with its number in ``state_dict()`` and its group."""
    pairs = [(group, weight) for group in optimizer.param_groups for weight in group["params"]]
    return [(index, group, weight) for index, (group, weight) in enumerate(pairs)]


def _brought(
    value: Tensor, before: Tensor | None, now: Tensor | None, size: tuple[int, ...]
) -> Tensor:
    """Moments of the rows ``before`` [A] as those of the rows ``now`` [B] of a table of ``size``
    (V,); None is all rows. Rows that were not there had no gradient: their moments are 0."""
    if before is not None:
        value = value.new_zeros(*size, *value.shape[1:]).index_copy_(0, before, value)
    return value if now is None else value[now]
