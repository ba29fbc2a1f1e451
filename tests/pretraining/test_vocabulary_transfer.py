"""A new vocabulary for a trained encoder: overlap, similarity, tied weights, positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer

from finetune.models.loading import quiet
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.pretraining.vocabulary import plain_tokenizer, train_tokenizer
from finetune.pretraining.vocabulary_transfer import (
    cooccurrence_vectors,
    embedding_weights,
    focus_weights,
    new_rows,
    overlap,
    read_word_vectors,
    sparsemax,
    subword_vectors,
    wechsel_weights,
    with_vocabulary,
)
from finetune.types import UserError
from tests.command import run
from tests.covering import covering
from tests.fixtures import checkpoint
from tests.models.test_every_family import CHANGES, SIZES
from tests.tiny import model as tiny_model
from tests.tiny import tokenizer

LINES = [
    "the train from Paris to Berlin was late and the children knew why",
    "a big red dog runs across the street because it rains",
    "ጠቅላይ ሚኒስትሩ በአዲስ አበባ ተናገሩ።",
] * 5
FAMILIES = ("bert roberta albert distilbert modernbert deberta-v2 mpnet").split()


def new_tokenizer(old: SubwordTokenizer, size: int = 420):
    return SubwordTokenizer(train_tokenizer(lambda: LINES, size, old.tokenizer), words=True)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_overlap(family: str):
    old = SubwordTokenizer(tokenizer(family), words=True)
    new = new_tokenizer(old)
    pairs = overlap(old, new)
    for role in ("cls", "sep", "pad", "unk", "mask"):
        ids = (getattr(subwords.tokenizer, f"{role}_token_id") for subwords in (new, old))
        assert pairs[next(ids)] == next(ids)
    before, after = (subwords.tokenizer.get_vocab() for subwords in (old, new))
    assert len(pairs) > 20
    assert all(pairs[after[name]] == before[name] for name in before.keys() & after.keys())
    names = {id: name for name, id in before.items()}
    others = {name: names[pairs[id]] for name, id in after.items() if pairs.get(id)}
    assert all(a.strip("#Ġ▁") == b.strip("#Ġ▁") for a, b in others.items() if a.strip("#Ġ▁"))
    assert any(a != b for a, b in others.items())


@pytest.mark.parametrize(("family", "smaller"), covering(FAMILIES, [False, True]))
def test_saved_model(family: str, smaller: bool, tmp_path: Path):
    folder = checkpoint(family)
    old = SubwordTokenizer.from_pretrained(folder)
    before = AutoModelForMaskedLM.from_pretrained(folder).state_dict()
    new = new_tokenizer(old, size=420 if smaller else 500)
    weights = embedding_weights(old, new, "overlap")
    model = with_vocabulary(str(folder), old, new, weights)
    with quiet():
        model.save_pretrained(tmp_path / "new")
    new.save_pretrained(tmp_path / "new")
    load = AutoModelForMaskedLM.from_pretrained
    loaded, report = load(tmp_path / "new", output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    vocabulary = len(new.tokenizer)
    assert loaded.config.vocab_size == vocabulary == len(loaded.get_input_embeddings().weight)
    assert loaded.config.pad_token_id == new.tokenizer.pad_token_id
    tied = load(folder)
    for name, value in loaded.state_dict().items():
        if value.shape == before[name].shape and len(value) != vocabulary:
            torch.testing.assert_close(value, before[name], msg=name)
    # a text of shared subwords alone has the same hidden states as before
    pairs = overlap(old, new)
    ids = [id for id in pairs if id not in new.tokenizer.all_special_ids][:6]
    both = [
        torch.tensor([subwords.build(chosen)[0]])
        for subwords, chosen in ((new, ids), (old, [pairs[id] for id in ids]))
    ]
    with torch.no_grad():
        outputs = [
            model.eval()(row, output_hidden_states=True)
            for model, row in zip((loaded, tied), both, strict=True)
        ]
    states = [output.hidden_states[-1] for output in outputs]
    logits = [output.logits for output in outputs]
    torch.testing.assert_close(states[0], states[1], atol=1e-5, rtol=0)
    rows, columns = torch.tensor(list(pairs)), torch.tensor(list(pairs.values()))
    torch.testing.assert_close(logits[0][..., rows], logits[1][..., columns], atol=1e-4, rtol=0)


def test_encoder_without_head(tmp_path: Path):
    tiny_model("bert").save_pretrained(tmp_path / "old")
    tokenizer("bert").save_pretrained(tmp_path / "old")
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(LINES), encoding="utf-8")
    paths = ("--for", tmp_path / "old", "--out", tmp_path / "new")
    done = run("vocabulary", texts, *paths, "--size", "420").ok()
    assert "copied" in done.out and "old" in done.out
    size = len(AutoTokenizer.from_pretrained(tmp_path / "new"))
    model = AutoModel.from_pretrained(tmp_path / "new")
    assert (type(model).__name__, model.config.vocab_size) == ("BertModel", size)
    embedded = run("embed", tmp_path / "new", "--text", "ጠቅላይ ሚኒስትሩ").ok()
    assert "vectors" in embedded.out
    assert AutoTokenizer.from_pretrained(tmp_path / "new").tokenize("የ አበባ")


def test_mobilebert_loses_its_head(tmp_path: Path):
    """A part of its output matrix is transposed, and not in its output layer."""
    bert = tokenizer("bert")
    sizes = SIZES | CHANGES["mobilebert"] | {"vocab_size": len(bert)}
    plain = AutoModelForMaskedLM.from_config(AutoConfig.for_model("mobilebert", **sizes))
    plain.save_pretrained(tmp_path)
    bert.save_pretrained(tmp_path)
    old = SubwordTokenizer(bert)
    new = new_tokenizer(old)
    model = with_vocabulary(str(tmp_path), old, new, embedding_weights(old, new, "overlap"))
    assert type(model).__name__ == "MobileBertModel"
    assert len(model.get_input_embeddings().weight) == len(new.tokenizer)


def test_sparsemax():
    scores = np.random.default_rng(0).normal(size=(50, 7))
    weights = sparsemax(scores)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert (weights >= 0).all() and (weights == 0).any()
    np.testing.assert_allclose(sparsemax(weights), weights, atol=1e-12)  # a projection
    np.testing.assert_allclose(sparsemax(np.array([[0.5, 0.4, -1.0]])), [[0.55, 0.45, 0]])


def test_focus_by_hand():
    vectors = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [5, 0]], dtype=np.float32)
    copies = sparse.csr_array(([1.0, 1.0, 1.0], ([0, 1, 3], [7, 3, 2])), (5, 9))
    weights = focus_weights(vectors, copies).toarray()
    assert not weights[[0, 1, 3]].any()  # those that overlap are copied elsewhere
    np.testing.assert_allclose(weights[2, [7, 3]], 0.5)
    np.testing.assert_allclose(weights[4], np.eye(9)[7])
    copies = sparse.csr_array(([1.0], ([3], [2])), (5, 9))
    assert not focus_weights(vectors, copies).toarray().any()  # no anchor has a vector


def test_similarity_map():
    old = SubwordTokenizer(tokenizer("bert"), words=True)
    new = new_tokenizer(old)
    weights = embedding_weights(old, new, "similarity", LINES)
    pairs = overlap(old, new)
    sums = np.asarray(weights.sum(axis=1)).ravel()
    assert np.diff(weights.indptr).max() > 1 and np.allclose(sums[sums > 0], 1)
    for id, before in pairs.items():
        assert weights[[id]].toarray()[0].nonzero()[0].tolist() == [before]
    again = embedding_weights(old, new, "similarity", LINES)
    assert (weights != again).nnz == 0
    old_rows = torch.randn(weights.shape[1], 8)
    ordinary = range(5, weights.shape[1])
    applied = new_rows(weights, old_rows, ordinary)
    torch.testing.assert_close(applied[list(pairs)], old_rows[list(pairs.values())])
    mean = new_rows(embedding_weights(old, new, "mean"), old_rows, ordinary, None)
    torch.testing.assert_close(mean[-1], old_rows[5:].mean(0))
    torch.testing.assert_close(mean[:5], old_rows[:5])


def test_words_in_like_contexts_have_similar_vectors():
    sentences = [
        f"{who} {verb} the garden" for who in ("anna", "peter") for verb in ("sees", "likes")
    ]
    lines = sentences * 10 + ["two plus three is five"] * 20
    trained = train_tokenizer(lambda: lines, 200, plain_tokenizer("wordpiece"))
    vectors = cooccurrence_vectors(SubwordTokenizer(trained), lines)
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    anna, peter, five = trained.convert_tokens_to_ids(["anna", "peter", "five"])
    assert units[anna] @ units[peter] > 0.8 > 0.3 > units[anna] @ units[five]
    assert not vectors[trained.pad_token_id].any()


def word_vectors(path: Path, words: list[str], vectors: np.ndarray) -> Path:
    rows = [f"{word} {' '.join(map(str, row))}" for word, row in zip(words, vectors, strict=True)]
    path.write_text(f"{len(words)} {vectors.shape[1]}\n" + "\n".join(rows), encoding="utf-8")
    return path


def test_wechsel_finds_the_translation(tmp_path: Path):
    words = ["house", "dog", "train", "street", "garden", "guitar", "song", "bank"]
    foreign = [word[::-1].upper() for word in words]
    random = np.random.default_rng(0)
    vectors = random.normal(size=(8, 16))
    files = [
        word_vectors(tmp_path / f"{language}.vec", words_of_language, vectors)
        for language, words_of_language in (("en", words), ("xx", foreign))
    ]
    plain = plain_tokenizer("wordpiece")
    old, new = (
        SubwordTokenizer(train_tokenizer(lambda w=w: [" ".join(w)] * 9, 150, plain), words=True)
        for w in (words, foreign)
    )
    languages = zip(map(read_word_vectors, files), (old, new), strict=True)
    both = [subword_vectors(*words, tokenizer) for words, tokenizer in languages]
    weights = wechsel_weights(*reversed(both)).toarray()
    np.testing.assert_allclose(weights.sum(axis=1)[weights.any(axis=1)], 1, rtol=1e-5)
    assert ((weights > 0).sum(axis=1) <= 10).all()
    for word, translation in zip(words, foreign, strict=True):
        ids = new.tokenizer.convert_tokens_to_ids(translation)
        before = old.tokenizer.convert_tokens_to_ids(word)
        assert weights[ids, before] == weights[ids].max() > 0
    sizes = np.diff(embedding_weights(old, new, "similarity", vectors=both).indptr)
    assert sizes.max() > 1 and (sizes == 1).sum() >= 5


@pytest.mark.parametrize(
    ("text", "location"), [("a 1 2\nb 1\n", ":2"), ("a 1 x\n", ":1"), ("a 1e60\n", ":1")]
)
def test_damaged_word_vectors(text: str, location: str, tmp_path: Path):
    (path := tmp_path / "a.vec").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=location):
        read_word_vectors(path)
