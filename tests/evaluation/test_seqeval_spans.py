"""Spans that seqeval finds by stretches, against whole sentences and our counts."""

from __future__ import annotations

import random
import time
import warnings
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support
from seqeval.scheme import BILOU, IOB2, IOBES

from finetune.data.tag_schemes import SCHEMES, strict_spans, tag_names, tags_to_spans
from finetune.evaluation.kinds import KINDS, scores_of
from finetune.evaluation.metrics import f1, item_counts, precision, recall
from finetune.evaluation.seqeval_spans import seqeval_spans

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
def test_seqeval_and_our_reading_agree(scheme: str):
    @quick
    @given(tag_pairs(scheme, scheme))
    def check(sides: tuple[list[list[str]], list[list[str]]]) -> None:
        for tags in chain(*sides):
            assert {*seqeval_spans(tags, scheme, False)} == {*tags_to_spans(tags, scheme)}
            assert {*seqeval_spans(tags, scheme, True)} == {*strict_spans(tags, scheme)}

    check()


@pytest.mark.parametrize(("scheme", "theirs"), [("BIO", IOB2), ("BIOES", IOBES), ("BILOU", BILOU)])
def test_the_scores_are_those_of_seqeval_on_whole_sentences(scheme: str, theirs: type):
    @quick
    @given(tag_pairs(scheme, scheme, ["X", "art-film"]))
    def check(tags: tuple[list[list[str]], list[list[str]]]) -> None:
        pairs = KINDS["tags"].pair(*tags, schemes=(scheme, scheme))
        conll, strict = (item_counts(pairs, strict=each).sum(axis=0) for each in (False, True))
        expected = f1_score(*tags, mode="strict", scheme=theirs, zero_division=0)
        assert f1(strict) == pytest.approx(expected, abs=1e-12)
        if scheme != "BILOU":  # the default mode has no L and U
            found = precision_recall_fscore_support(*tags, average="micro", zero_division=0)
            scores = [float(value(conll)) for value in (precision, recall, f1)]
            assert scores == pytest.approx(found[:3], abs=1e-12)

    check()


def test_large_data_take_little_time_and_no_warnings():
    """50,000 sentences; seqeval's own score functions take longer than this generous limit."""
    rng = random.Random(0)
    sentence = ["O"] * 12 + ["B-PER", "I-PER", "B-LOC", "O", "B-ORG", "I-ORG", "I-ORG"]
    gold = [rng.sample(sentence, rng.randint(1, len(sentence))) for _ in range(50_000)]
    predicted = [[tag if rng.random() < 0.95 else "O" for tag in tags] for tags in gold]
    schemes = ("BIO", "BIO")
    scores_of("tags", gold[:1], predicted[:1], schemes=schemes)  # the import
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = scores_of("tags", gold, predicted, schemes=schemes)
    assert time.process_time() - start < 5
    assert 0.9 < found["span_f1_strict"] < 1 and 0.9 < found["span_f1_conll"] < 1
