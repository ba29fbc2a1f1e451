"""Further objectives of pretraining, by hand and against transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForPreTraining

from finetune.preprocessing.batching import pack
from finetune.pretraining.model import (
    NEXT_SENTENCE,
    PretrainingModel,
    require_next_sentence,
)
from finetune.types import Encoding, UserError
from tests.models.test_every_family import batch_of, config, model_of


@pytest.mark.parametrize("family", NEXT_SENTENCE)
@torch.no_grad()
def test_next_sentence_prediction_equals_that_of_transformers(family: str) -> None:
    """With segment ids, which differ in the second half of each sequence."""
    plain = model_of(family, AutoModelForPreTraining)
    head = PretrainingModel(plain)
    segments = [
        [int(place > length // 2) for place in range(length)] for length in batch_of().lengths
    ]
    chosen = {"position": torch.tensor([1, 7]), "token": torch.tensor([6, 9])}
    ids = [row.tolist() for row in batch_of().input_ids.split(batch_of().lengths)]
    made = [Encoding(n, *each) for n, each in enumerate(zip(ids, segments, strict=True))]
    batch = pack(made, chosen)
    scores = head(batch)
    rows = zip(ids, segments, strict=True)
    outputs = [
        plain(
            input_ids=torch.tensor([one]),
            token_type_ids=torch.tensor([other]),
            attention_mask=torch.ones(1, len(one)),
        )
        for one, other in rows
    ]
    expected = torch.cat([output.seq_relationship_logits for output in outputs])
    torch.testing.assert_close(scores.next, expected, rtol=1e-5, atol=1e-5)
    logits = torch.cat([output.prediction_logits[0] for output in outputs])
    torch.testing.assert_close(head.logits(batch), logits[[1, 7]], rtol=1e-5, atol=1e-5)
    assert expected.std(0).min() > 1e-3, "the comparison would be one of constants"


@pytest.mark.parametrize("family", ["roberta", "modernbert", "albert", "distilbert"])
def test_families_without_next_sentence_prediction(family: str) -> None:
    with pytest.raises(UserError, match=r"--nsp: x .*use a model of type bert, big_bird"):
        require_next_sentence("x", config(family))
