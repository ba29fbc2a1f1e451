"""Helpers of the comparisons with plain Hugging Face.

Hidden states are weighted per element before they are summed: the sum over a LayerNorm's output
has a gradient of zero, and a comparison of zeros shows nothing.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from finetune.types import TokenSequence

LENGTHS = (5, 62, 17, 3, 1, 22, 22, 9, 40, 21)
CLOSE = dict.fromkeys(("deberta", "eurobert"), 1e-6)  # their norms are computed in float32


def encodings(model, lengths=LENGTHS, seed: int = 0) -> list[TokenSequence]:
    """Random sequences, with two segments where the model tells segments apart."""
    chance = random.Random(seed)
    segments = getattr(model.config, "type_vocab_size", 0) > 1
    special = 5
    return [
        TokenSequence(
            example,
            [chance.randrange(special, model.config.vocab_size) for _ in range(length)],
            [int(index > length // 2) for index in range(length)] if segments else None,
        )
        for example, length in enumerate(lengths)
    ]


def plain_inputs(model, made: list[TokenSequence]) -> dict[str, Tensor]:
    """Return the inputs of a data collator: ids and mask padded at the right, nothing else."""
    longest = max(len(e.input_ids) for e in made)
    shape = (len(made), longest)
    inputs = {
        "input_ids": torch.full(shape, model.config.pad_token_id),
        "attention_mask": torch.zeros(shape, dtype=torch.long),
    }
    if made[0].token_type_ids is not None:
        inputs["token_type_ids"] = torch.zeros(shape, dtype=torch.long)
    for row, encoding in enumerate(made):
        length = len(encoding.input_ids)
        inputs["input_ids"][row, :length] = torch.tensor(encoding.input_ids)
        inputs["attention_mask"][row, :length] = 1
        if encoding.token_type_ids is not None:
            inputs["token_type_ids"][row, :length] = torch.tensor(encoding.token_type_ids)
    return inputs


def gradients(model) -> dict[str, Tensor]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(model, reference, tolerance: float) -> None:
    mine, theirs = gradients(model), gradients(reference)
    assert mine.keys() == theirs.keys()
    assert mine
    for name, gradient in theirs.items():
        size = gradient.abs().max()
        assert (mine[name] - gradient).abs().max() <= tolerance * max(1.0, float(size)), name
    live = sum(bool(gradient.abs().max() > 1e-9) for gradient in theirs.values())
    assert live >= 0.8 * len(theirs), "the comparison would be one of zeros"


def assert_equal(found: Tensor, expected: Tensor, model, reference, tolerance: float) -> None:
    """The outputs of two models are the same, and so are the gradients of their weights."""
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    weight = torch.randn_like(expected)
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    assert_same_gradients(model, reference, tolerance)
