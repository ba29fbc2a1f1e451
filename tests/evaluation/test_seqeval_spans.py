"""Spans that seqeval finds by stretches, against our own reading of tags."""

from __future__ import annotations

import random
import time
import warnings

from finetune.evaluation.kinds import scores_of

TYPES = ["X", "art-film", "-x", "x-", "é"]


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
