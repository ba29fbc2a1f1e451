"""Train only the rows of the embedding table whose subwords occur in the data.

Small data sets use a small fraction of a vocabulary, and updating the table of a multilingual model
takes a fifth of a step. The other rows have no gradient, and stay as they were: AdamW would only
multiply them by 1 - learning rate * weight decay in each step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from finetune.models.families import family_of

MOST_OCCURRING = 0.6
"""Share of the rows from which all rows are trained: leaving out fewer saves little."""
_BLOCK = 2**24
"""Number of token ids to read together."""


class CompactEmbedding(nn.Module):
    """Stands for an ``nn.Embedding`` of V rows and has A of them, ``weight`` [A, H].

    Ids keep their meaning.
    """

    index: Tensor
    """For each id its row in ``weight``, or -1, [V]."""

    def __init__(self, plain: nn.Embedding, rows: Tensor) -> None:
        """Take the ``rows`` [A] of ``plain``, the ids that may be looked up."""
        super().__init__()
        table = plain.weight.detach()
        index = torch.full((len(table),), -1, device=table.device)
        index[rows] = torch.arange(len(rows), device=table.device)
        self.weight = nn.Parameter(table[rows])
        self.register_buffer("index", index, persistent=False)
        padding = plain.padding_idx
        self.padding_idx = None if padding is None else int(index[padding])

    def forward(self, ids: Tensor) -> Tensor:
        """Look up the rows [..., H] of ids [...]; IndexError for an id that has none."""
        return nn.functional.embedding(self.index[ids], self.weight, self.padding_idx)


class SparseEmbeddings(contextlib.AbstractContextManager[Any]):
    """Context in which a run trains the rows of the input embeddings that occur in its data.

    At its end the model has its plain embedding again, with the trained rows. If all rows are
    trained, ``embedding`` is None.
    """

    def __init__(self, head: Any, read: Sequence[np.ndarray], added: Sequence[int] = ()) -> None:
        """Replace the embeddings.

        Args:
            head: The model to train.
            read: The ids of all sequences that the model will read; empty if they are unknown, and
                then all rows are trained.
            added: Further ids.
        """
        self.encoder = head.encoder
        self.embedding: CompactEmbedding | None = None
        self.plain = self.encoder.model.get_input_embeddings()
        if not (read and _is_replaceable(head, self.plain)):
            return
        size = len(self.plain.weight)
        occurs = np.zeros(size + 1, bool)  # ids beyond the table are for the encoder to refuse
        special = {self.encoder.pad_id, self.plain.padding_idx, *added} - {None}
        for ids in (*read, np.array([*special])):
            for start in range(0, len(ids), _BLOCK):
                occurs[np.minimum(ids[start : start + _BLOCK], size)] = True
        self.rows = torch.from_numpy(np.flatnonzero(occurs[:size])).to(self.plain.weight.device)
        if len(self.rows) < MOST_OCCURRING * size:
            self.embedding = CompactEmbedding(self.plain, self.rows)
            self._replace(self.plain, self.embedding)

    def _replace(self, old: nn.Module, new: nn.Module) -> None:
        name = next(n for n, m in self.encoder.model.named_modules() if m is old)
        self.encoder.model.set_submodule(name, new)

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Give the model its plain embedding, with the trained rows, within a ``with`` block."""
        if (compact := self.embedding) is None:
            yield
            return
        with torch.no_grad():
            self.plain.weight[self.rows] = compact.weight
        self.plain.training = compact.training
        self._replace(compact, self.plain)
        try:
            yield
        finally:
            self._replace(self.plain, compact)

    def __exit__(self, *error: object) -> None:
        """Give the model its plain embedding back, with the trained rows in it."""
        with self.whole():
            compact, self.embedding = self.embedding, None
        if compact is not None:
            self._replace(compact, self.plain)


def _is_replaceable(head: Any, embedding: Any) -> bool:
    # tests show that the families use their embeddings for lookups only
    has_family = family_of(head.encoder.model) is not None
    is_plain = type(embedding) is nn.Embedding and embedding.max_norm is None
    if not (has_family and is_plain and not embedding.sparse and embedding.weight.requires_grad):
        return False
    weights = (weight for _, weight in head.named_parameters(remove_duplicate=False))
    return sum(weight is embedding.weight for weight in weights) == 1  # no layer shares the table
