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
from finetune.pretraining.vocabulary import kind_of, train_tokenizer
from finetune.pretraining.vocabulary_transfer import (
    WordVectors,
    cooccurrence_vectors,
    embedding_map,
    focus_weights,
    overlap,
    sparsemax,
    subword_texts,
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


def new_tokenizer(old: SubwordTokenizer, kind: str | None = None, size: int = 420):
    trained = train_tokenizer(lambda: LINES, kind or kind_of(old), size, like=old)
    return SubwordTokenizer(trained, words=True)


@pytest.mark.parametrize(
    ("family", "kind"),
    covering(["bert", "roberta", "xlm-roberta"], ["wordpiece", "bpe", "unigram"]),
)
def test_overlap_by_text_across_kinds(family: str, kind: str):
    old = SubwordTokenizer(tokenizer(family), words=True)
    new = new_tokenizer(old, kind)
    pairs = overlap(old, new)
    for role in ("cls", "sep", "pad", "unk", "mask"):
        ids = (getattr(subwords.tokenizer, f"{role}_token_id") for subwords in (new, old))
        assert pairs[next(ids)] == next(ids)
    assert len(set(new.tokenizer.all_special_ids) & pairs.keys()) == 5
    old_texts, new_texts = subword_texts(old), subword_texts(new)
    assert len(pairs) > 20
    for id, before in pairs.items():
        a, b = new_texts.get(id), old_texts.get(before)
        assert (a is None) == (b is None)
        assert a is None or a[1] in (b[1], b[1].lower()) or a[1].lower() == b[1]


def test_bytes_are_no_characters():
    old = SubwordTokenizer(tokenizer("bert"))
    new = new_tokenizer(old, "bpe")
    texts = subword_texts(new)
    _, *ids = new.text_subwords(["ጨ"])[0]  # not in the text: a space and single bytes
    assert all(texts[id][1].startswith("\ufffd") for id in ids)
    assert not overlap(old, new).keys() & set(ids)


@pytest.mark.parametrize(("family", "smaller"), covering(FAMILIES, [False, True]))
def test_saved_model(family: str, smaller: bool, tmp_path: Path):
    folder = checkpoint(family)
    old = SubwordTokenizer.from_pretrained(folder)
    before = AutoModelForMaskedLM.from_pretrained(folder).state_dict()
    new = new_tokenizer(old, size=420 if smaller else 500)
    embeddings = embedding_map(old, new, "overlap")
    model = with_vocabulary(str(folder), old, new, embeddings)
    with quiet():
        model.save_pretrained(tmp_path / "new")
    new.save_pretrained(tmp_path / "new")
    loaded, report = AutoModelForMaskedLM.from_pretrained(
        tmp_path / "new", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["mismatched_keys"]
    vocabulary = len(new.tokenizer)
    assert loaded.config.vocab_size == vocabulary == len(loaded.get_input_embeddings().weight)
    assert loaded.config.pad_token_id == new.tokenizer.pad_token_id
    tied = AutoModelForMaskedLM.from_pretrained(folder)
    same = tied.get_input_embeddings().weight is tied.get_output_embeddings().weight
    output = loaded.get_output_embeddings()
    assert (loaded.get_input_embeddings().weight is output.weight) == same
    state = loaded.state_dict()
    for name, value in state.items():
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
            AutoModelForMaskedLM.from_pretrained(path).eval()(row, output_hidden_states=True)
            for path, row in zip((tmp_path / "new", folder), both, strict=True)
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
    places = ("--for", tmp_path / "old", "--out", tmp_path / "new")
    done = run("vocabulary", texts, *places, "--size", "420").ok()
    assert "copied" in done.out and "old" in done.out
    size = len(AutoTokenizer.from_pretrained(tmp_path / "new"))
    assert AutoModel.from_pretrained(tmp_path / "new").config.vocab_size == size
    assert type(AutoModel.from_pretrained(tmp_path / "new")).__name__ == "BertModel"
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
    model = with_vocabulary(str(tmp_path), old, new, embedding_map(old, new, "overlap"))
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
    embeddings = embedding_map(old, new, "similarity", LINES)
    pairs = overlap(old, new)
    sums = np.asarray(embeddings.weights.sum(axis=1)).ravel()
    assert embeddings.num_weights.max() > 1 and np.allclose(sums[sums > 0], 1)
    for id, before in pairs.items():
        assert embeddings.weights[[id]].toarray()[0].nonzero()[0].tolist() == [before]
    again = embedding_map(old, new, "similarity", LINES)
    assert (embeddings.weights != again.weights).nnz == 0
    old_rows = torch.randn(embeddings.weights.shape[1], 8)
    ordinary = np.arange(5, embeddings.weights.shape[1])
    applied = embeddings.apply(old_rows, ordinary, 0)
    torch.testing.assert_close(applied[list(pairs)], old_rows[list(pairs.values())])
    mean = embedding_map(old, new, "mean").apply(old_rows, ordinary, 0)
    torch.testing.assert_close(mean[-1], old_rows[5:].mean(0))
    torch.testing.assert_close(mean[:5], old_rows[:5])


def test_words_in_like_contexts_have_similar_vectors():
    lines = [
        f"{subject} {verb} the garden"
        for subject in ("anna", "peter")
        for verb in ("sees", "likes")
    ] * 10 + ["two plus three is five"] * 20
    trained = train_tokenizer(lambda: lines, "wordpiece", 200)
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
    source = WordVectors.read(word_vectors(tmp_path / "en.vec", words, vectors))
    target = WordVectors.read(word_vectors(tmp_path / "xx.vec", foreign, vectors))
    old, new = (
        SubwordTokenizer(
            train_tokenizer(lambda w=w: [" ".join(w)] * 9, "wordpiece", 150), words=True
        )
        for w in (words, foreign)
    )
    weights = wechsel_weights(target.of_subwords(new), source.of_subwords(old)).toarray()
    np.testing.assert_allclose(weights.sum(axis=1)[weights.any(axis=1)], 1, rtol=1e-5)
    assert ((weights > 0).sum(axis=1) <= 10).all()
    for word, translation in zip(words, foreign, strict=True):
        ids = new.tokenizer.convert_tokens_to_ids(translation)
        before = old.tokenizer.convert_tokens_to_ids(word)
        assert weights[ids, before] == weights[ids].max() > 0
    embeddings = embedding_map(old, new, "similarity", vectors=(source, target))
    assert embeddings.num_weights.max() > 1 and (embeddings.num_weights == 1).sum() >= 5


def test_damaged_word_vectors(tmp_path: Path):
    path = tmp_path / "a.vec"
    damaged = {"a 1 2\nb 1\n": ":2", "a 1 x\n": ":1", "a 1e60\n": ":1", "": "no word"}
    for text, place in damaged.items():
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=place):
            WordVectors.read(path)
    with pytest.raises(UserError, match="no such file"):
        WordVectors.read(tmp_path / "absent.vec")
