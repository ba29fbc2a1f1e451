"""Spans that seqeval finds by stretches, against whole sentences and our counts."""

from __future__ import annotations

import random
import time
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support
from seqeval.scheme import BILOU, IOB2, IOBES

from finetune.data.tag_schemes import SCHEMES, tag_names
from finetune.evaluation import metrics
from finetune.evaluation.metrics import f1, item_counts, precision, recall, tagging_scores
from finetune.evaluation.pairs import pair
from finetune.evaluation.seqeval_spans import seqeval_counts

TYPES = ["X", "art-film", "-x", "x-", "é"]
quick = settings(max_examples=25, deadline=None)


def tag_pairs(scheme: str, predicted: str, types: list[str] = TYPES) -> st.SearchStrategy[Any]:
    """Gold and predicted tags of sentences; legal and illegal sequences."""
    words = st.tuples(*(st.sampled_from(tag_names(types, each)) for each in (scheme, predicted)))
    sentences = st.lists(st.lists(words, max_size=9), min_size=1, max_size=5)
    return sentences.map(
        lambda drawn: tuple([[word[side] for word in each] for each in drawn] for side in (0, 1))
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("predicted", [None, "BIO", "BIOES"])
def test_seqeval_and_our_counts_agree(scheme: str, predicted: str | None):
    @quick
    @given(tag_pairs(scheme, predicted or scheme))
    def check(tags: tuple[list[list[str]], list[list[str]]]) -> None:
        schemes = (scheme, predicted or scheme)
        pairs = pair("tags", *tags, schemes=schemes)
        ours = [item_counts(pairs, strict=strict).sum(axis=0) for strict in (False, True)]
        assert seqeval_counts(*tags, schemes).tolist() == np.array(ours).tolist()

    check()


@pytest.mark.parametrize(("scheme", "theirs"), [("BIO", IOB2), ("BIOES", IOBES), ("BILOU", BILOU)])
def test_the_scores_are_those_of_seqeval_on_whole_sentences(scheme: str, theirs: type):
    @quick
    @given(tag_pairs(scheme, scheme, ["X", "art-film"]))
    def check(tags: tuple[list[list[str]], list[list[str]]]) -> None:
        conll, strict = seqeval_counts(*tags, (scheme, scheme))
        expected = f1_score(*tags, mode="strict", scheme=theirs, zero_division=0)
        assert f1(strict) == pytest.approx(expected, abs=1e-12)
        if scheme != "BILOU":  # the default mode has no L and U
            found = precision_recall_fscore_support(*tags, average="micro", zero_division=0)
            scores = [float(value(conll)) for value in (precision, recall, f1)]
            assert scores == pytest.approx(found[:3], abs=1e-12)

    check()


def test_a_disagreement_stops_the_run(monkeypatch: pytest.MonkeyPatch):
    gold, predicted = [["B-X", "O", "B-X"]], [["B-X", "O", "O"]]
    found = tagging_scores(gold, predicted, "BIO")
    assert found["span_f1_conll"] == found["span_f1_strict"] == 2 / 3
    monkeypatch.setattr(metrics, "seqeval_counts", lambda *_: np.array([[1, 1, 2], [1, 1, 1]]))
    with pytest.raises(RuntimeError, match=r"span_f1_strict is 0.66.* by our counts and 1.0 by"):
        tagging_scores(gold, predicted, "BIO")


def test_large_data_take_little_time_and_no_warnings():
    """50,000 sentences; seqeval's own score functions take longer than this generous limit."""
    rng = random.Random(0)
    sentence = ["O"] * 12 + ["B-PER", "I-PER", "B-LOC", "O", "B-ORG", "I-ORG", "I-ORG"]
    gold = [rng.sample(sentence, rng.randint(1, len(sentence))) for _ in range(50_000)]
    predicted = [[tag if rng.random() < 0.95 else "O" for tag in tags] for tags in gold]
    seqeval_counts(gold[:1], predicted[:1], ("BIO", "BIO"))  # the import
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counts = seqeval_counts(gold, predicted, ("BIO", "BIO"))
        tagging_scores([["O"]], [["O"]], "BIO")
    assert time.process_time() - start < 3
    assert (counts[:, 0] <= counts[:, 1]).all() and (counts > 0).all()
