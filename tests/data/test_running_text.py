"""Sampling of languages and sources."""

from __future__ import annotations

import pytest

from finetune.data.running_text import sampling_probabilities
from finetune.types import UserError


def test_sampling_probabilities_of_the_textbook():
    assert sampling_probabilities([1000, 10], 0.3) == pytest.approx([0.799, 0.201], abs=5e-4)
    assert sampling_probabilities([1000, 10], 1) == pytest.approx([0.990, 0.010], abs=5e-4)
    assert sampling_probabilities([7, 1, 2], 0) == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(("sizes", "alpha"), [([1, 2], 1.5), ([1, 2], -0.1), ([1, 0], 0.3)])
def test_impossible_sampling(sizes: list[int], alpha: float):
    with pytest.raises(UserError):
        sampling_probabilities(sizes, alpha)
