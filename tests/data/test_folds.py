"""Folds: related examples stay together, sizes and label fractions are balanced."""

from __future__ import annotations

from collections import Counter

import pytest

from finetune.data import DataError, assign_folds
from finetune.types import TextExample, TokenExample

LONG = tuple("a sentence of ten words is long enough to join".split())


def texts(*rows: tuple[str, str]) -> list[TextExample]:
    return [TextExample(i, text, None, label) for i, (text, label) in enumerate(rows)]


def test_folds_have_equal_sizes_and_shares_of_labels():
    rows = texts(*[(f"text {i}", "rare" if i % 10 == 0 else "common") for i in range(100)])
    folds = assign_folds(rows, 5)
    assert Counter(folds) == dict.fromkeys(range(5), 20)
    rare = Counter(f for f, row in zip(folds, rows, strict=True) if row.label == "rare")
    assert rare == dict.fromkeys(range(5), 2)
    assert assign_folds(rows, 5) == folds, "no chance in it"
    assert assign_folds(rows, 5, seed=1) != folds


def test_the_same_text_is_in_one_fold():
    rows = texts(
        *[(("Text  %d" if i % 2 else "text %d") % (i // 2), "ab"[i % 2]) for i in range(60)]
    )
    folds = assign_folds(rows, 3)
    assert folds[::2] == folds[1::2]
    assert len(set(folds)) == 3


def test_a_document_is_in_one_fold_and_joined_by_a_long_sentence():
    sentences = [("Results", ":")] * 30  # short ones join nothing
    examples = [TokenExample(i, words, document=str(i // 3)) for i, words in enumerate(sentences)]
    folds = assign_folds(examples, 5)
    assert all(folds[i] == folds[i // 3 * 3] for i in range(30))
    assert Counter(folds) == dict.fromkeys(range(5), 6)
    examples[0] = TokenExample(0, LONG, document="0")
    examples[29] = TokenExample(29, LONG, document="9")
    folds = assign_folds(examples, 5)
    assert folds[0] == folds[29]


def test_too_few_to_deal():
    with pytest.raises(DataError, match="only 2 documents or different texts"):
        assign_folds(texts(("a", "x"), ("b", "y"), ("A", "x")), 3)
