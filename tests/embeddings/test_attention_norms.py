"""Norm-based analysis of attention: contributions add up to what each block computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel

from finetune.embeddings.attention_norms import BLOCKS, analyze_attention
from finetune.models.encoder import Encoder
from finetune.types import TokenSequence
from tests import fixtures as fx
from tests import tiny
from tests.models.test_every_family import CHANGES, SIZES

IDS = [2, 9, 30, 31, 12, 40, 8, 25, 3]


def encoder(family: str, **changes: Any) -> Encoder:
    if family in tiny.FAMILIES:
        return Encoder(tiny.model(family, **changes).double())
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SIZES | CHANGES.get(family, {}))
    return Encoder(AutoModel.from_config(config).double().eval())


@pytest.mark.parametrize("family", [name for name in BLOCKS if name in CONFIG_MAPPING])
def test_contributions_add_up_to_the_output_of_the_block(family: str) -> None:
    analyzed = encoder(family)
    blocks = analyze_attention(analyzed, TokenSequence(0, IDS))
    assert len(blocks) == analyzed.num_layers
    for block in blocks:
        assert block.error < 1e-10
        torch.testing.assert_close(block.weights.sum(1), torch.ones(len(IDS)).double())
        assert ((block.mixing > 0) & (block.mixing < 1)).all()


def test_equal_to_a_direct_computation_in_bert() -> None:
    """Equation by equation, with transformers' own attention weights, token by token."""
    bert = encoder("bert", num_hidden_layers=2)
    model: Any = bert.model
    block = analyze_attention(bert, TokenSequence(0, IDS))[1]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(torch.tensor([IDS]), output_hidden_states=True, output_attentions=True)
    layer, x = model.encoder.layer[1], output.hidden_states[1][0]
    weights = output.attentions[1][0]
    torch.testing.assert_close(block.weights, weights.mean(0))
    dense, norm = layer.attention.output.dense, layer.attention.output.LayerNorm
    values = layer.attention.self.value(x).detach().split(tiny.WIDTH // tiny.HEADS, dim=1)
    attended = torch.cat([head @ value for head, value in zip(weights, values, strict=True)], 1)
    deviation = ((dense(attended) + x).var(-1, correction=0) + norm.eps).sqrt()
    for i in range(len(IDS)):
        contributions = []
        for j in range(len(IDS)):
            read = torch.cat([h[i, j] * v[j] for h, v in zip(weights, values, strict=True)])
            f = dense.weight @ read + (x[j] if i == j else 0)
            contributions.append((f - f.mean()) / deviation[i] * norm.weight)
            torch.testing.assert_close(block.norms[i, j], contributions[-1].norm())
        itself = contributions.pop(i).norm()
        mixed = torch.stack(contributions).sum(0).norm()
        torch.testing.assert_close(block.mixing[i], mixed / (mixed + itself))


def test_sliding_windows_of_modernbert_in_padded_rows() -> None:
    changes = {"local_attention": 4, "global_attn_every_n_layers": 3}
    with fx.padded_rows():
        modernbert = Encoder(tiny.model("modernbert", **changes))
    blocks = analyze_attention(modernbert, TokenSequence(0, IDS))
    seen = [int((block.weights[0] > 0).sum()) for block in blocks]
    assert seen[0] == len(IDS) and seen[1] == 3  # the token and two on its right
    assert all(block.error < 1e-5 for block in blocks)
