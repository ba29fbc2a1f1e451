"""Counts of the spans that the library seqeval finds in tags.

The reported span scores of tags rest on these counts. seqeval's own score functions are slow on
large data: here seqeval reads each distinct stretch between words that both sides tag O once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from finetune.data.tag_schemes import spans_to_tags, strict_spans

Tags = tuple[str, ...]

_PREFIXES = {"L": "E", "U": "S", "M": "I"}
"""BIOES prefixes for BILOU and BMES, as seqeval's default mode knows no others."""


def seqeval_counts(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], schemes: tuple[str, str]
) -> np.ndarray:
    """Return the correct, predicted and gold spans by seqeval's default and strict modes [2, 3].

    ``schemes`` are the tag schemes of gold and of predictions. seqeval's strict mode has no IO, and
    reads some illegal IOB1 tags as spans: spans of these schemes are read strictly here and
    converted to BIO.
    """
    from seqeval.metrics.sequence_labeling import get_entities  # loads scikit-learn
    from seqeval.scheme import IOB2, IOBES, Entities

    def entities(tags: Tags, scheme: str) -> tuple[set[Any], set[Any]]:
        tolerant = set(get_entities(list(map(_seqeval_tag, tags))))
        if scheme in ("IO", "IOB1"):
            tags = tuple(spans_to_tags(strict_spans(tags, scheme), len(tags), "BIO"))
        written = IOB2 if scheme in ("IO", "IOB1", "BIO") else IOBES
        return tolerant, set(Entities([list(map(_seqeval_tag, tags))], written).entities[0])

    counts = np.zeros((2, 3), dtype=np.int64)
    stretches: Counter[tuple[Tags, ...]] = Counter()
    for sentence in zip(gold, predicted, strict=True):
        for outside, words in groupby(zip(*sentence, strict=True), ("O", "O").__eq__):
            if not outside:
                stretches[tuple(zip(*words, strict=True))] += 1
    for stretch, number in stretches.items():
        modes = zip(*map(entities, stretch, schemes), strict=True)
        counts += [[number * len(each) for each in (g & p, p, g)] for g, p in modes]
    return counts


def _seqeval_tag(tag: str) -> str:
    """Return a tag for seqeval; its strict mode strips hyphens of types, so types become hex."""
    prefix, hyphen, span_type = tag.partition("-")
    return f"{_PREFIXES.get(prefix, prefix)}{hyphen}{span_type.encode().hex()}"
