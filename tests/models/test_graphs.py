"""Recorded passes: a recorder that calls functions again stands for CUDA graphs.

Attention reads the boundaries of sequences as a tensor, as FlashAttention does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from finetune.models import attention, graphs
from finetune.models.dropout import dropout
from finetune.models.encoder import Encoder
from finetune.models.graphs import EncoderGraphs
from finetune.models.packing import PackedCall
from finetune.models.recorders import CallAgain
from finetune.models.shapes import MULTIPLE, RowShapes, Shape, best_sizes, with_fillers
from finetune.preprocessing.batching import pack
from finetune.types import Batch, Encoding
from tests import tiny
from tests.models.parity import CLOSE, assert_equal, encodings

PACKED = tuple(family for family in tiny.PACKED if not family.startswith("deberta"))


def attend(query: Tensor, key: Tensor, value: Tensor, call: PackedCall) -> Tensor:
    """Attention of a packed row [T, A, D] that reads no length on the host."""
    places = torch.arange(len(query), device=query.device)
    sequence = torch.searchsorted(call.layout.cu_seqlens[1:], places.int(), right=True)
    allowed = sequence[:, None] == sequence
    if (window := call.sliding_window) is not None:
        allowed &= (places[:, None] - places).abs() < window
    scale = query.shape[-1] ** -0.5 if call.scaling is None else call.scaling
    scores = torch.einsum("iad,jad->aij", query, key) * scale
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return torch.einsum("aij,jad->iad", dropout(weights, call.dropout), value)


@pytest.fixture(autouse=True)
def device_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_flash_supports", lambda query: True)
    monkeypatch.setattr(attention, "_flash", attend)
    monkeypatch.setattr(graphs, "SIGHTINGS", 1)


class Pool(CallAgain):
    """Spoils the results of earlier passes in a replay, as passes that share memory do."""

    def __init__(self) -> None:
        self.results: list[list[Tensor]] = []

    def record(self, run: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        replay, results = super().record(run)
        self.results.append(results)

        def spoiling() -> None:
            for tensors in self.results if results else ():
                for tensor in tensors:
                    tensor.fill_(torch.nan)
            replay()

        return spoiling, results


SHAPES = RowShapes((96, 160, 224), 16, 24)


def batch_of(seed: int, model: Any, sequences: int = 8) -> Batch:
    lengths = np.random.default_rng(seed).integers(3, 24, sequences).tolist()
    return pack(encodings(model, lengths, seed))


def encoder_of(family: str = "bert", p: float = 0.1, **changes: Any) -> Encoder:
    return Encoder(tiny.model(family, dropout=p, **changes).double().train())


def losses(
    encoder: Encoder, batches: Sequence[Batch], recorder: CallAgain | None, **options: Any
) -> tuple[list[Any], EncoderGraphs]:
    """Sums of states and gradients of two steps, and the state of the generator after them."""
    options = {"report": pytest.fail, **options}
    encoder.graphs = EncoderGraphs(encoder, SHAPES, recorder, **options)
    results = []
    for step in range(2):
        torch.manual_seed(step)
        for batch in batches:
            hidden = encoder(batch)
            (hidden**3).sum().backward()
            results.append(hidden.detach())
        results += [w.grad.clone() for w in encoder.parameters() if w.grad is not None]
        encoder.zero_grad()
        with torch.no_grad():
            for weight in encoder.parameters():
                weight.mul_(1.01)
    return [*results, torch.get_rng_state()], encoder.graphs


@pytest.mark.parametrize("family", PACKED)
def test_replayed_passes_equal_plain_ones_to_the_bit(family: str) -> None:
    """With dropout, several shapes, several micro-batches in a step, and new weights."""
    encoder = encoder_of(family)
    batches = [batch_of(seed, encoder.model, 4 + 2 * seed) for seed in range(4)]
    plain, _ = losses(copy.deepcopy(encoder), batches, None)
    replayed, run = losses(encoder, batches, Pool())
    assert len(run.recordings) == len({key.shape for key in run.recordings}) > 1
    assert all(map(torch.equal, plain, replayed))
