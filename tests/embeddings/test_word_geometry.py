"""The geometry of an encoder: held-out standardization, any batch, attention, files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from finetune.embeddings.geometry import measure_geometry
from finetune.embeddings.vectors import Standardizer
from finetune.inference.embed import Embedder
from finetune.types import UserError
from tests.command import run
from tests.tiny import LAYERS, save_tiny_checkpoint

LINES = [
    "the train from paris to berlin was late and nobody knew why",
    "anna saw a big red dog in the garden of the old house",
    "the man is playing the guitar while a woman is singing a song",
    "two children run across the street because it rains",
    "the bank of england raised its rates on monday",
    "does the second sentence follow from the first",
] * 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("geometry")
    for family in ("bert", "mpnet"):
        save_tiny_checkpoint(folder / family, family)
    (folder / "text.txt").write_text("\n".join(LINES))
    return folder


def embedder(folder: Path, **options: int) -> Embedder:
    return Embedder(folder, unit="word", layers="all", combine="none", **options)


def test_figures_of_the_sample(place: Path) -> None:
    found = measure_geometry(embedder(place / "bert"), LINES, seed=1)
    again = measure_geometry(embedder(place / "bert", max_tokens=40), iter(LINES), seed=1)
    assert found.num_texts == 12 and [each.layer for each in found.raw] == list(range(LAYERS + 1))
    for one, other in zip(found.raw, again.raw, strict=True):
        np.testing.assert_allclose(one.expected_cosine, other.expected_cosine, atol=1e-5)
    fitted, measured = LINES[::2], LINES[1::2]
    texts = [each.vectors for each in embedder(place / "bert").encode(fitted)]
    standardizer = Standardizer.fit(texts)
    assert found.num_fitted == sum(map(len, texts))
    z = [standardizer(each.vectors)[:, -1] for each in embedder(place / "bert").encode(measured)]
    units = np.concatenate(z)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    cosines = units @ units.T
    expected = (cosines.sum() - len(units)) / (len(units) * (len(units) - 1))
    np.testing.assert_allclose(found.standardized[-1].expected_cosine, expected, atol=1e-5)
    assert {each.word for each in found.words} >= {"the"}
    assert found.attention.error < 1e-4 and len(found.attention.mixing) == LAYERS
    assert json.loads(json.dumps(asdict(found)))["raw"][0]["layer"] == 0


def test_sentences_to_show(place: Path) -> None:
    made = embedder(place / "bert")
    (shown,) = measure_geometry(made, LINES, sentences=["the man saw a dog"]).attention.sentences
    assert shown.tokens[:2] == ["[CLS]", "the"] and len(shown.norms) == LAYERS
    assert np.shape(shown.weights) == (LAYERS, len(shown.tokens), len(shown.tokens))
    np.testing.assert_allclose(np.sum(shown.weights, axis=-1), 1, atol=1e-3)
    with pytest.raises(UserError, match="too many to show"):
        measure_geometry(made, LINES, sentences=["dog " * 70])


def test_families_without_analysis_of_attention(place: Path) -> None:
    made = embedder(place / "mpnet")
    found = measure_geometry(made, LINES)
    assert found.attention.reason.startswith("mpnet models") and not found.attention.mixing
    with pytest.raises(UserError, match="--sentence: no analysis of attention: mpnet models"):
        measure_geometry(made, LINES, sentences=["anna"])


def test_command(place: Path, tmp_path: Path) -> None:
    page, figures = tmp_path / "g.html", tmp_path / "g.json"
    outcome = run(
        "geometry",
        place / "bert",
        "--data",
        place / "text.txt",
        "--out",
        page,
        "--out",
        figures,
        "--sentence",
        "<b>anna</b> saw a dog",
    )
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert "12 texts" in lines[0] and len(lines) == LAYERS + 4
    html = page.read_text()
    assert "&lt;b&gt;anna" in html and "<b>anna" not in html and "Mixing ratio" in html
    found = json.loads(figures.read_text())
    assert f"{found['raw'][0]['expected_cosine']:.4f}" in outcome.out
    printed = run("geometry", place / "mpnet", "--data", place / "text.txt", "--format", "json")
    assert json.loads(printed.out)["attention"]["reason"] and printed.code == 0
    page = tmp_path / "mpnet.html"
    assert run("geometry", place / "mpnet", "--data", place / "text.txt", "--out", page).code == 0
    assert "There is no analysis of attention: mpnet" in page.read_text()
    for options, message in (
        (("--texts", "1"), "--texts must be 2 or more"),
        (("--out", tmp_path / "x.txt"), "one of .html, .json"),
    ):
        outcome = run("geometry", place / "bert", "--data", place / "text.txt", *options)
        assert outcome.code == 2 and message in outcome.err
    (tmp_path / "one.txt").write_text("one line\n")
    outcome = run("geometry", place / "bert", "--data", tmp_path / "one.txt")
    assert outcome.code == 2 and "two or more lines of text, not 1" in outcome.err
