"""The relation classifier equals its textbook form on single sequences; saving and loading."""

from __future__ import annotations

import copy

import pytest
import torch

from finetune.preprocessing.batching import pack
from finetune.types import TokenSequence
from tests.models.heads import head_of
from tests.models.parity import assert_equal

SUBJECT, OBJECT = 7, 9
SEQUENCES = [  # ids, rows of subject and object
    ([2, 7, 12, 9, 14, 15, 3], 1, 3),
    ([2, 9, 12, 13, 7, 3], 4, 1),
    ([2, 7, 9, 3], 1, 2),
    ([2, 20, 21, 22, 9, 7, 7, 3], 5, 4),
]


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_logits_and_gradients_are_those_of_the_paper(family: str):
    head = head_of("relations", family)
    reference = copy.deepcopy(head)
    made = [
        TokenSequence(number, ids, None, [*sorted((subject, object)), len(ids)])
        for number, (ids, subject, object) in enumerate(SEQUENCES)
    ]
    logits = head(pack(made))
    states = [reference.model(torch.tensor([ids])).last_hidden_state[0] for ids, *_ in SEQUENCES]
    expected = torch.stack(
        [
            reference.classifier(torch.cat([hidden[subject], hidden[object]]))
            for hidden, (_, subject, object) in zip(states, SEQUENCES, strict=True)
        ]
    )
    assert_equal(logits, expected, head, reference, 1e-10)
