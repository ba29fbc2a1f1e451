"""Geometry: expected cosines, rogue dimensions, attention, files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel

from finetune.embeddings.geometry import BLOCKS, ExpectedCosine, analyze_attention, measure_geometry
from finetune.embeddings.vectors import Standardizer, unit_vectors
from finetune.inference.embed import Embedder
from finetune.models.encoder import Encoder
from finetune.types import TokenSequence
from tests import fixtures as fx
from tests import tiny
from tests.command import run
from tests.models.test_every_family import CHANGES, SIZES
from tests.tiny import LAYERS

RANDOM = np.random.default_rng(3)
VECTORS = [RANDOM.normal(size=(words, 2, 6)) for words in (5, 2, 0, 2)]
for of_text in VECTORS:
    of_text[..., 2] += 4


@pytest.mark.parametrize("index", [0, 1])
def test_equal_to_all_pairs(index: int) -> None:
    measured, vectors = ExpectedCosine(), np.concatenate(VECTORS)[:, index]
    for of_text in VECTORS:
        measured.add(unit_vectors(of_text))
    layer = measured.by_layer([0, 3])[index]
    expected = (1 - pdist(vectors, "cosine")).mean()
    assert layer["layer"] == (0, 3)[index] and measured.count == 9
    np.testing.assert_allclose(layer["expected_cosine"], expected)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    products = units[:, None] * units  # [9, 9, H]
    contributions = products[~np.eye(9, dtype=bool)].mean(0)
    top = np.sort(contributions)[::-1]
    np.testing.assert_allclose(layer["shares"][3], top[:3].sum() / top.sum())


TEXTS = Path("examples/data/text/validation.txt")
LINES = list(filter(str.strip, TEXTS.read_text("utf-8").splitlines()))


def embedder(folder: Path) -> Embedder:
    return Embedder(folder, unit="word", layers="all", combine="none")


def test_figures_of_the_sample() -> None:
    encoder = embedder(fx.checkpoint())
    figures = measure_geometry(encoder, LINES, seed=1)
    assert figures["num_texts"] == len(LINES) // 2
    assert [row["layer"] for row in figures["raw"]] == list(range(LAYERS + 1))
    vectors = [e.vectors for e in encoder.encode(LINES[::2])]
    standardizer = Standardizer.fit(vectors)
    assert figures["num_fitted"] == sum(map(len, vectors))
    z = np.concatenate([standardizer(e.vectors)[:, -1] for e in encoder.encode(LINES[1::2])])
    expected = (1 - pdist(z, "cosine")).mean()
    np.testing.assert_allclose(figures["standardized"][-1]["expected_cosine"], expected, atol=1e-5)
    assert len(figures["attention"]["mixing"]) == LAYERS


def test_command(tmp_path: Path) -> None:
    page, figures = tmp_path / "g.html", tmp_path / "g.json"
    files = ("--out", page, "--out", figures, "--sentence", "<b>anna</b> saw a dog")
    outcome = run("geometry", fx.checkpoint(), "--data", TEXTS, *files).ok()
    lines = outcome.out.splitlines()
    assert f"{len(LINES) // 2} texts" in lines[0] and len(lines) == LAYERS + 4
    html = page.read_text()
    assert "&lt;b&gt;anna" in html and "<b>anna" not in html and "Mixing ratio" in html
    content = json.loads(figures.read_text())
    assert f"{content['raw'][0]['expected_cosine']:.4f}" in outcome.out
    (sentence,) = content["attention"]["sentences"]
    tables = [np.array(sentence[name][n]) for name in ("norms", "weights") for n in (0, -1)]
    expected = np.concatenate([(table / table.sum(1, keepdims=True)).ravel() for table in tables])
    cells = [float(share) for share in re.findall(r"--share:([\d.]+)", html)]
    np.testing.assert_allclose(cells, expected, atol=1e-4)
    arguments = ("geometry", fx.checkpoint("squeezebert"), "--data", TEXTS, "--format", "json")
    attention = json.loads(run(*arguments, "--out", page).ok().out)["attention"]
    assert attention["reason"].startswith("squeezebert models") and not attention["mixing"]
    assert "There is no analysis of attention: squeezebert" in page.read_text()


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
