"""Classifiers of two texts that are read apart, and of two spans: their textbook form."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from finetune.models.heads.pair_classifier import PairClassifier
from finetune.models.heads.pretrained import SequenceClassifier
from finetune.preprocessing.batching import pack
from finetune.types import TokenSequence, UserError
from tests.models.heads import head_of as tiny_head
from tests.models.parity import assert_equal

PAIRS = [
    ([2, 7, 8, 9, 3], [2, 11, 3]),
    ([2, 12, 3], [2, 9, 9, 14, 15, 16, 3]),
    ([2, 3], [2, 3]),
    ([2, 21, 22, 3], [2, 21, 22, 3]),
]


def head_of(family: str, pair_encoder: str, dropout: float = 0.0) -> Any:
    settings = {"kind": pair_encoder, "num_codes": 5}
    return tiny_head("bi", family, dropout=dropout, settings=settings)


def sequences() -> list[TokenSequence]:
    return [
        TokenSequence(number, first + second, None, [0, len(first), len(first) + len(second)])
        for number, (first, second) in enumerate(PAIRS)
    ]


def naive(head: PairClassifier, first: list[int], second: list[int]) -> Tensor:
    """The formulas of the papers for one pair, with the plain model of transformers."""
    states = [head.model(torch.tensor([ids])).last_hidden_state[0] for ids in (first, second)]
    v, u = states[1].mean(0), states[0].mean(0)
    if head.codes is not None:
        codes = [(states[0] @ c).softmax(0) @ states[0] for c in head.codes.weight]
        u = torch.stack([v @ y for y in codes]).softmax(0) @ torch.stack(codes)
    return head.classifier(torch.cat([u, v, (u - v).abs()]))


@pytest.mark.parametrize("pair_encoder", ["bi", "poly"])
@pytest.mark.parametrize("family", ["bert", "roberta", "squeezebert"])
def test_logits_and_gradients_are_those_of_the_papers(family: str, pair_encoder: str):
    head = head_of(family, pair_encoder)
    reference = copy.deepcopy(head)
    logits = head(pack(sequences()))
    expected = torch.stack([naive(reference, *pair) for pair in PAIRS])
    assert_equal(logits, expected, head, reference, 1e-10)


@pytest.mark.parametrize("pair_encoder", ["bi", "poly"])
def test_one_query_and_cached_candidates_equal_pairs(pair_encoder: str):
    head = head_of("bert", pair_encoder)
    (query, _), *_ = PAIRS
    texts = [second for _, second in PAIRS]
    pairs = [
        replace(e, input_ids=query + t, word_starts=[0, len(query), len(query) + len(t)])
        for e, t in zip(sequences(), texts, strict=True)
    ]
    batch, alone = (
        pack([TokenSequence(n, t) for n, t in enumerate(texts)]),
        pack([TokenSequence(0, query)]),
    )
    candidates = head.text_vectors(head.encoder(batch), batch)
    logits = head.compare(head.query_vectors(head.encoder(alone), alone), candidates)
    torch.testing.assert_close(logits, head(pack(pairs)), rtol=0, atol=1e-10)


def test_another_class_names_what_loads_it(tmp_path: Path):
    head_of("bert", "bi").save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"no trained head .*: finetune\.load reads it"):
        SequenceClassifier.from_pretrained(tmp_path)


RELATED = [  # ids, rows of subject and object
    ([2, 7, 12, 9, 14, 15, 3], 1, 3),
    ([2, 9, 12, 13, 7, 3], 4, 1),
    ([2, 7, 9, 3], 1, 2),
    ([2, 20, 21, 22, 9, 7, 7, 3], 5, 4),
]


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_relations_are_those_of_the_paper(family: str):
    head = tiny_head("relations", family)
    reference = copy.deepcopy(head)
    made = [
        TokenSequence(number, ids, None, [*sorted((subject, object)), len(ids)])
        for number, (ids, subject, object) in enumerate(RELATED)
    ]
    logits = head(pack(made))
    states = [reference.model(torch.tensor([ids])).last_hidden_state[0] for ids, *_ in RELATED]
    expected = torch.stack(
        [
            reference.classifier(torch.cat([hidden[subject], hidden[object]]))
            for hidden, (_, subject, object) in zip(states, RELATED, strict=True)
        ]
    )
    assert_equal(logits, expected, head, reference, 1e-10)
