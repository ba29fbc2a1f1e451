"""The relation classifier equals its textbook form on single sequences; saving and loading."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModel

from finetune.models.heads.configurations import RelationClassifierConfig
from finetune.models.heads.relation_classifier import RelationClassifier
from finetune.preprocessing.batching import pack
from finetune.types import Encoding, UserError
from tests import tiny
from tests.models.parity import assert_same_gradients

SUBJECT, OBJECT = 7, 9
SEQUENCES = [  # ids, rows of subject and object
    ([2, 7, 12, 9, 14, 15, 3], 1, 3),
    ([2, 9, 12, 13, 7, 3], 4, 1),
    ([2, 7, 9, 3], 1, 2),
    ([2, 20, 21, 22, 9, 7, 7, 3], 5, 4),
]


def head_of(family: str, batching: str = "auto") -> RelationClassifier:
    inner = tiny.model(family)
    config = RelationClassifierConfig(
        encoder=inner.config, subject_id=SUBJECT, id2label={0: "in", 1: "of"}
    )
    head = RelationClassifier(config, batching, inner)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in head.head_parameters().values():
            parameter.normal_(std=0.5)
    return head.eval().double()


@pytest.mark.parametrize("batching", ["auto", "padded"])
@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_logits_and_gradients_are_those_of_the_paper(family: str, batching: str):
    head = head_of(family, batching)
    reference = copy.deepcopy(head)
    made = [
        Encoding(number, ids, None, [*sorted((subject, object)), len(ids)])
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
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
    weight = torch.randn_like(expected)
    (logits * weight).sum().backward()
    (expected * weight).sum().backward()
    assert_same_gradients(head, reference, 1e-9)


def test_a_saved_model_loads_as_any_other(tmp_path):
    head = head_of("bert").float()
    head.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path).eval()
    assert isinstance(again, RelationClassifier)
    assert (list(again.labels), again.config.subject_id) == (["in", "of"], SUBJECT)
    batch = pack([Encoding(0, SEQUENCES[0][0], None, [1, 3, 7])])
    assert torch.equal(again(batch), head(batch))
    with pytest.raises(UserError, match="needs its encoder's configuration"):
        RelationClassifier(RelationClassifierConfig())
