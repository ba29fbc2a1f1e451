"""Models with some of the layers of another: which they keep, that they load, what is refused."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from finetune.models.fewer_layers import spread_layers, with_layers
from finetune.models.heads.pretrained import SequenceClassifier
from finetune.preprocessing.batching import pack
from finetune.types import UserError
from tests.covering import few
from tests.models.parity import encodings
from tests.tiny import FAMILIES
from tests.tiny import model as tiny_model

LAYERS = 3


def classifier(family: str, **changes) -> SequenceClassifier:
    made = tiny_model(family, AutoModelForSequenceClassification, layers=LAYERS, **changes)
    return SequenceClassifier(made)


def shortened(head: SequenceClassifier, layers: list[int]) -> SequenceClassifier:
    return with_layers(head, layers, SequenceClassifier.from_pretrained).eval()


def test_layers_are_spread_up_to_the_last() -> None:
    assert spread_layers(2, 6) == [3, 6]
    assert spread_layers(4, 12) == [3, 6, 9, 12]
    assert spread_layers(5, 12) == [2, 4, 7, 9, 12]
    assert spread_layers(6, 6) == [1, 2, 3, 4, 5, 6]
    assert spread_layers(4, 2) == [1, 1, 1, 2]


OF_THEIR_OWN = ("bert", "distilbert", "modernbert", "deberta-v2", "squeezebert")
"""Families whose layers have modules and names of their own; the others are slow."""


@pytest.mark.parametrize("family", few(sorted({*FAMILIES} - {"albert"}), *OF_THEIR_OWN))
def test_the_model_has_the_chosen_layers_of_the_other(family: str) -> None:
    whole = classifier(family)
    batch = pack(encodings(whole.encoder.model))
    all_of_it = shortened(classifier(family), list(range(1, LAYERS + 1)))
    torch.testing.assert_close(all_of_it(batch), whole(batch))

    layers: dict[int, list[torch.Tensor]] = {}
    for name, value in whole.named_parameters():
        layers.setdefault(whole.depth_of(name), []).append(value)
    for first in (1, 2):  # the first layer of ModernBERT has no norm of attention
        short = shortened(classifier(family), [first, 3])
        assert short.encoder.num_layers == 2
        assert short(batch).isfinite().all()
        for name, value in short.named_parameters():
            depth = {0: 0, 1: first, 2: 3, 3: LAYERS + 1}[short.depth_of(name)]
            assert any(torch.equal(value, each) for each in layers[depth]), name


def test_what_cannot_be_shortened_is_refused() -> None:
    with pytest.raises(UserError, match="--layers does not work with a teacher with albert models"):
        shortened(classifier("albert"), [1, 2])
    with pytest.raises(UserError, match="--layers must be from 1 to the 3 of the teacher, not 4"):
        shortened(classifier("bert"), [1, 1, 2, 3])
    with pytest.raises(UserError, match="with a teacher with --bilstm"):
        shortened(classifier("bert", bilstm=True), [1])
