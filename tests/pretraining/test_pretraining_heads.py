"""Further objectives of pretraining, by hand and against transformers."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

from finetune.models.heads import masked_lm
from finetune.preprocessing.batching import pack
from finetune.pretraining.model import (
    BOUNDARY_FILE,
    MOST_TARGETS,
    NEXT_SENTENCE,
    POSITION_WIDTH,
    PretrainingModel,
)
from finetune.types import TokenSequence, UserError
from tests import tiny
from tests.models.test_every_family import batch_of, model_of

SPANS = {0: [(2, 4), (8, 8)], 1: [(3, 7)]}
"""First and last position of spans in two sequences of 12 tokens, none at an end."""


def batch_of_spans(vocabulary: int):
    """Two sequences with spans; the last one of the first sequence is at its end."""
    generator = torch.Generator().manual_seed(2)
    names = ("position", "token", "boundary", "left", "right", "offset")
    rows, target = [], {name: [] for name in names}
    for number in (0, 1):
        ids = torch.randint(5, vocabulary, (12,), generator=generator).tolist()
        rows.append(TokenSequence(number, ids))
        for first, last in [*SPANS[number], (10, 10)]:
            for position in range(first, last + 1):
                if last < 10:
                    target["boundary"].append(len(target["position"]))
                    target["left"].append(12 * number + first - 1)
                    target["right"].append(12 * number + last + 1)
                    target["offset"].append(position - first)
                target["position"].append(12 * number + position)
                target["token"].append(5 + 3 * position)
    return pack(rows, {name: torch.tensor(values) for name, values in target.items()})


def by_hand(head: PretrainingModel, states: torch.Tensor) -> torch.Tensor:
    """Equations 11.17 to 11.20 in loops over subwords: the loss of each."""
    boundary, config = head.boundary, head.model.config
    first, _, norm, second, _, last = boundary.layers
    matrix = head.model.get_output_embeddings().weight
    losses = []
    for number, spans in SPANS.items():
        z = states[12 * number : 12 * number + 12]
        for start, end in spans:
            for i in range(start, end + 1):
                p = boundary.position.weight[i - start + 1 - 1]  # p_1 is the first row
                h = torch.cat([z[start - 1], z[end + 1], p])
                for linear, scale in ((first, norm), (second, last)):
                    h = linear.weight @ h + linear.bias
                    h = 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))
                    h = (h - h.mean()) / (h.var(correction=0) + config.layer_norm_eps).sqrt()
                    h = scale.weight * h + scale.bias
                scores = matrix @ h + boundary.bias
                losses.append(torch.logsumexp(scores, 0) - scores[5 + 3 * i])
    return torch.stack(losses)


@pytest.mark.parametrize("most_logits", [masked_lm.MOST_LOGITS, 700])
@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "electra", "modernbert"])
def test_the_boundary_loss_by_hand(family: str, most_logits: int, monkeypatch) -> None:
    monkeypatch.setattr(masked_lm, "MOST_LOGITS", most_logits)
    torch.manual_seed(3)
    model = tiny.model(family, AutoModelForMaskedLM)
    if not hasattr(model.config, "layer_norm_eps"):
        model.config.layer_norm_eps = 1e-12
    head = PretrainingModel(model, boundary=True).double().eval()
    with torch.no_grad():
        for weight in head.boundary.parameters():
            weight.normal_(std=0.3)
    batch = batch_of_spans(head.encoder.vocabulary_size)
    scores = head(batch)
    expected = by_hand(head, head.encoder(batch))
    torch.testing.assert_close(scores.boundary, expected, rtol=1e-12, atol=1e-12)
    plain = masked_lm.MaskedLanguageModel(model)(batch)
    torch.testing.assert_close(scores.loss, plain.loss, rtol=0, atol=1e-12)
    weights = list(head.parameters())
    gradients, by_loops = (
        torch.autograd.grad(loss.sum(), weights, allow_unused=True)
        for loss in (scores.boundary, expected)
    )
    for one, other in zip(gradients, by_loops, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert head.boundary.position.weight.shape == (MOST_TARGETS, POSITION_WIDTH)


def test_the_boundary_head_is_saved_beside_the_model(tmp_path) -> None:
    head = PretrainingModel(tiny.model("bert", AutoModelForMaskedLM), boundary=True).eval()
    head.save_pretrained(tmp_path)
    batch = batch_of_spans(head.encoder.vocabulary_size)
    again = PretrainingModel.from_pretrained(str(tmp_path), boundary=True, new_head=False).eval()
    torch.testing.assert_close(again(batch).boundary, head(batch).boundary, rtol=0, atol=1e-5)
    (tmp_path / BOUNDARY_FILE).unlink()
    with pytest.raises(UserError, match="missing or damaged"):
        PretrainingModel.from_pretrained(str(tmp_path), boundary=True, new_head=False)


@pytest.mark.parametrize("family", NEXT_SENTENCE)
@torch.no_grad()
def test_next_sentence_prediction_equals_that_of_transformers(family: str) -> None:
    """With token type ids, which differ in the second half of each sequence."""
    plain = model_of(family, AutoModelForPreTraining)
    head = PretrainingModel(plain)
    chosen = {"position": torch.tensor([1, 7]), "token": torch.tensor([6, 9])}
    ids = [row.tolist() for row in batch_of().input_ids.split(batch_of().lengths)]
    rows = [(row, [int(n > len(row) // 2) for n in range(len(row))]) for row in ids]
    batch = pack([TokenSequence(n, *row) for n, row in enumerate(rows)], chosen)
    scores = head(batch)
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
