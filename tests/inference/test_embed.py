"""Embeddings: equal to plain transformers in any batch, for every unit, layer and pooling."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import finetune
from finetune.inference import embed
from finetune.inference.embed import Embedder
from finetune.types import TextExample, TokenExample, UserError
from tests import fixtures as fx
from tests.covering import covering
from tests.tiny import FAMILIES, LAYERS, WIDTH

TEXTS = [
    "the train from paris to berlin was late",
    "",
    "Anna's film is good, that film isn't bad",
    "a man is playing a guitar",
    " ".join(["two children run across the street because it rains"] * 12),
    "anna",
]
SHORT = [text for text in TEXTS if len(text) < 100]


def plain(folder: Path, text: str, **options: Any) -> tuple[torch.Tensor, Any]:
    """All hidden states [L+1, T, H] of one text, and its encoding, by transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    encoding = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoding.pop("offset_mapping")
    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = model(**encoding, output_hidden_states=True).hidden_states
    return torch.cat(states), offsets[0].tolist()


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bert", {}),
        ("roberta", {"layers": [0], "pooling": "first"}),
        ("modernbert", {"layers": "last4", "combine": "sum"}),
        ("squeezebert", {"layers": [1, -1], "combine": "none", "pooling": "max"}),
        ("deberta-v2", {"layers": "last4", "combine": "sum", "pooling": "first"}),
    ],
)
def test_texts_equal_plain_transformers(family: str, settings: dict[str, Any]) -> None:
    embedder = Embedder(fx.checkpoint(family, dropout=0.1), max_tokens=25, **settings)
    numbers = settings.get("layers", [LAYERS])
    numbers = range(LAYERS + 1)[-4:] if numbers == "last4" else numbers
    pool = {
        "mean": lambda rows: rows.mean(-2),
        "first": lambda rows: rows[..., 0, :],
        "max": lambda rows: rows.amax(-2),
    }[settings.get("pooling", "mean")]
    for text, found in zip(SHORT, embedder.encode(SHORT), strict=True):
        states = plain(fx.checkpoint(family, dropout=0.1), text)[0][list(numbers)]
        combine = {"none": lambda s: s, "sum": lambda s: s.sum(0), "mean": lambda s: s.mean(0)}
        expected = pool(combine[settings.get("combine", "mean")](states))
        assert found.units == (text,) and found.vectors.dtype == np.float32
        np.testing.assert_allclose(found.vectors, expected[None].numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "family"), covering(["mean", "first", "max"], ["bert", "modernbert"])
)
def test_words_and_subwords_equal_plain_transformers(family: str, pooling: str):
    folder = fx.checkpoint(family, dropout=0.1)
    words = Embedder(folder, unit="word", pooling=pooling, max_tokens=25)
    subwords = Embedder(folder, unit="subword", max_tokens=25).encode(SHORT)
    sentences = [tuple(text.split()) for text in SHORT]
    for text, sentence, of_words, of_subwords in zip(
        SHORT, sentences, words.encode(sentences), subwords, strict=True
    ):
        states, offsets = plain(folder, text)
        inner = states[-1][1:-1]
        assert of_subwords.offsets == tuple(map(tuple, offsets[1:-1]))
        np.testing.assert_allclose(of_subwords.vectors, inner.numpy(), atol=1e-5)
        pieces = words.tokenizer.word_subwords([sentence])[0]
        ids = words.tokenizer.build([id for word in pieces for id in word])[0]
        model = AutoModel.from_pretrained(folder).eval()
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0, 1:-1]
        assert of_words.units == sentence and len(of_words.vectors) == len(sentence)
        by_word = states.split(list(map(len, pieces)))
        for rows, vector in zip(by_word, of_words.vectors, strict=True):
            pools = {"mean": rows.mean(0), "first": rows[0], "max": rows.amax(0)}
            np.testing.assert_allclose(vector, pools[pooling], atol=1e-5)


@pytest.mark.parametrize(
    ("family", "unit"), [*zip(sorted(FAMILIES), itertools.cycle(["text", "subword", "word"]))]
)
def test_words_are_read_as_their_text(family: str, unit: Any, tmp_path: Path) -> None:
    embedder = Embedder(fx.checkpoint(family), unit=unit)
    text = "the bank raised interest"
    words = tuple(text.split())
    forms = [text, list(words), TokenExample(2, words), TextExample(3, text)]
    first, *others = embedder.encode(forms)
    for other in others:
        assert other.units == first.units
        np.testing.assert_allclose(other.vectors, first.vectors, atol=1e-5)


def test_long_inputs_are_read_in_windows() -> None:
    word = Embedder(fx.checkpoint(dropout=0.1), unit="word", max_length=20)
    (found,) = word.encode([TEXTS[4]])
    assert len(found.vectors) == len(TEXTS[4].split())
    assert [TEXTS[4][start:end] for start, end in found.offsets] == list(found.units)
    (whole,) = Embedder(fx.checkpoint(dropout=0.1), max_length=20).encode([TEXTS[4]])
    pieces = Embedder(fx.checkpoint(dropout=0.1), unit="subword", max_length=20)
    room = 18
    ids = pieces.tokenizer.text_subwords([TEXTS[4]])[0]
    sums, count = np.zeros(WIDTH), 0
    model = AutoModel.from_pretrained(fx.checkpoint(dropout=0.1)).eval()
    for start in range(0, len(ids), room):
        sequence = pieces.tokenizer.build(ids[start : start + room])[0]
        with torch.no_grad():
            states = model(torch.tensor([sequence])).last_hidden_state[0]
        sums, count = sums + states.sum(0).numpy(), count + len(sequence)
    np.testing.assert_allclose(whole.vectors[0], sums / count, atol=1e-5)


def test_examples_streams_and_length() -> None:
    embedder = Embedder(fx.checkpoint(dropout=0.1), normalize=True)
    examples = [TextExample(0, "a man", key="x7"), TokenExample(1, ("a", "man"))]
    first, second = embedder.encode(iter(examples))
    assert (first.id, second.id) == ("x7", 1)
    np.testing.assert_allclose(first.vectors, second.vectors, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(first.vectors), 1, atol=1e-6)
    for inputs, message in (
        ("abc", r"write encode\(\['abc'\]\)"),
        ([{"text": "a"}], "input 0: .* is neither a text nor a list of words .predict of"),
        (Path("a.txt"), r"encode takes a list of inputs, not PosixPath\('a.txt'\)"),
        ([1], "input 0: 1 is neither a text nor a list of words"),
        ({"text": ["a"]}, "dict is a table: give one of its columns, such as encode"),
        (pandas.DataFrame({"text": ["a"]}), "DataFrame is a table: give one of its columns"),
        ([TextExample(0, "a", "b")], "input 0: a pair of texts has no vector"),
    ):
        with pytest.raises(UserError, match=message):
            list(embedder.encode(inputs))
    for option in ("unit", "combine", "pooling"):
        with pytest.raises(UserError, match=f"{option} must be one of .*, not 'cls'"):
            Embedder(fx.checkpoint(), **{option: "cls"})
    for tokens in (0, -1, 1.5):
        with pytest.raises(UserError, match="max_tokens must be"):
            Embedder(fx.checkpoint(), max_tokens=tokens)  # type: ignore[arg-type]
    for layers in ("first", [LAYERS + 1], [-LAYERS - 2], [], 1, ["1"]):
        with pytest.raises(UserError, match=f"numbers from 0 .* to {LAYERS}"):
            Embedder(fx.checkpoint(dropout=0.1), layers=layers)  # type: ignore[arg-type]


def test_few_vectors_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Embedder(fx.checkpoint(dropout=0.1), unit="word", layers="all", combine="none")
    whole = list(embedder.encode(TEXTS))
    size = whole[0].vectors.nbytes + 1
    monkeypatch.setattr(embed, "CHUNK_BYTES", size)
    read: list[str] = []
    stream = embedder.encode(read.append(text) or text for text in 20 * TEXTS)  # type: ignore[func-returns-value]
    first = next(stream)
    assert 1 < len(read) < 4 * len(TEXTS)
    for one, other in zip(20 * whole, [first, *stream], strict=True):
        np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)


def test_the_encoder_of_a_trained_model() -> None:
    head = finetune.load(fx.trained("ner")).model
    (found,) = Embedder(fx.trained("ner")).encode(["a man"])
    tokenizer = fx.tokenizer()
    ids = tokenizer.build(tokenizer.text_subwords(["a man"])[0])[0]
    with torch.no_grad():
        states = head.model(torch.tensor([ids])).last_hidden_state[0]
    np.testing.assert_allclose(found.vectors[0], states.mean(0).numpy(), atol=1e-5)
