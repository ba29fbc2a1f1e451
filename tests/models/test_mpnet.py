"""MPNet on a packed row: its biases by distance, near and far."""

from __future__ import annotations

import pytest

from tests.models.test_deberta import assert_equals_plain


@pytest.mark.parametrize("lengths", [(200, 17, 170), (140, 140), (1, 2), (16, 16), (31, 33)])
def test_distances_share_buckets(lengths: tuple[int, ...]) -> None:
    assert_equals_plain(lengths, "mpnet", max_position_embeddings=256)
