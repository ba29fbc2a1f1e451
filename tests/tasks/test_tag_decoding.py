"""Viterbi equals enumeration; words' scores from their pieces equal sums done by hand."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.data.tag_schemes import continuation_tag, illegal_transitions, tag_names
from finetune.evaluation.temperature import log_softmax
from finetune.tasks.tag_decoding import TagDecoder, log_transitions, viterbi, word_scores

TAGS = {
    "IO": tuple(tag_names(["A", "B"], "IO")),
    "BIO": tuple(tag_names(["A", "B"], "BIO")),
    "BIOES": tuple(tag_names(["A"], "BIOES")),
    "IOB1": tuple(tag_names(["A"], "IOB1")),
    None: ("NOUN", "VERB", "X"),
}


def legal(tags: list[str], scheme: str | None) -> bool:
    return scheme is None or not illegal_transitions(tags, scheme)


@pytest.mark.parametrize("scheme", TAGS)
@given(data=st.data())
def test_viterbi_equals_enumeration(scheme: str | None, data) -> None:
    names = TAGS[scheme]
    num_words = data.draw(st.integers(1, 4))
    number = st.integers(-8, 8)  # small whole numbers: ties occur, and sums are exact
    row = st.lists(number, min_size=len(names), max_size=len(names))
    rows = data.draw(st.lists(row, min_size=num_words, max_size=num_words))
    scores = np.array(rows, dtype=float)
    ids = viterbi(scores, log_transitions(names, scheme))
    assert ids.shape == (num_words,)
    best = max(
        sum(row[i] for row, i in zip(rows, path, strict=True))
        for path in product(range(len(names)), repeat=num_words)
        if legal([names[i] for i in path], scheme)
    )
    decoder = TagDecoder.restored({"labels": names, "scheme": scheme, "constrained": True})
    shortcut = decoder._best_classes(scores)
    for found in (ids, shortcut):
        assert legal([names[i] for i in found], scheme)
        assert sum(row[i] for row, i in zip(rows, found, strict=True)) == best


def test_no_words_and_long_sentences() -> None:
    names = TAGS["BIOES"]
    transitions = log_transitions(names, "BIOES")
    assert viterbi(np.zeros((0, len(names))), transitions).shape == (0,)
    scores = np.random.default_rng(0).normal(size=(500, len(names)))
    assert legal([names[i] for i in viterbi(scores, transitions)], "BIOES")
    assert viterbi(scores, log_transitions(names, None)).tolist() == scores.argmax(-1).tolist()


LOGS = np.log(
    [  # O, B-A, I-A
        [0.5, 0.3, 0.2],
        [0.1, 0.8, 0.1],  # first of two
        [0.2, 0.5, 0.3],
        [0.2, 0.2, 0.6],  # first of three
        [0.6, 0.1, 0.3],
        [0.1, 0.8, 0.1],
    ]
)
LENGTHS = np.array([1, 2, 3])
NAMES = ["O", "B-A", "I-A"]
CONTINUATIONS = [NAMES.index(continuation_tag(name, "BIO")) for name in NAMES]


def normalised(rows: list[list[float]]) -> np.ndarray:
    return np.array(rows) / np.sum(rows, -1, keepdims=True)


def test_mean_of_log_probabilities() -> None:
    """By hand: geometric means, where later pieces read B- off their I- column."""
    expected = normalised(
        [
            [0.5, 0.3, 0.2],
            [math.sqrt(0.1 * 0.2), math.sqrt(0.8 * 0.3), math.sqrt(0.1 * 0.3)],
            [
                (0.2 * 0.6 * 0.1) ** (1 / 3),
                (0.2 * 0.3 * 0.1) ** (1 / 3),
                (0.6 * 0.3 * 0.1) ** (1 / 3),
            ],
        ]
    )
    np.testing.assert_allclose(np.exp(word_scores(LOGS, LENGTHS, CONTINUATIONS)), expected)


@pytest.mark.parametrize("tag", ["B-A", "I-A", "E-A", "S-A"])
def test_the_first_piece_decides_between_tags_that_continue_alike(tag: str) -> None:
    """A later piece that is surer of I- than the first of its tag must not make a tie."""
    names = TAGS["BIOES"]
    continuations = [names.index(continuation_tag(name, "BIOES")) for name in names]
    logits = np.zeros((2, len(names)))
    logits[0, names.index(tag)] = 1.0
    logits[1, names.index("I-A")] = 9.0
    words = word_scores(log_softmax(logits), np.array([2]), continuations)
    assert names[words[0].argmax()] == tag
    assert np.exp(words).sum() == pytest.approx(1)


@pytest.mark.parametrize("number", [0, 7])
def test_words_of_one_piece_keep_their_scores(number: int) -> None:
    logs = log_softmax(np.random.default_rng(0).normal(size=(number, 3)))
    words = word_scores(logs, np.ones(number, dtype=int), CONTINUATIONS)
    np.testing.assert_allclose(words, logs, rtol=0, atol=1e-15)
