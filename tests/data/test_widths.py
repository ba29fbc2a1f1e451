"""The proposed limit on the width of spans, and what each limit holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.data.widths import proposed_width, width_recall


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=400))
def test_the_smallest_width_that_holds_enough(widths):
    held = {limit: sum(width <= limit for width in widths) for limit in range(61)}
    enough = [limit for limit in held if held[limit] * 1000 >= 995 * len(widths)]
    assert proposed_width(widths) == enough[0]


def test_by_hand():
    assert proposed_width([1] * 995 + [7] * 5) == 1
    assert proposed_width([1] * 994 + [7] * 6) == 7
    assert proposed_width(iter([3])) == 3
    with pytest.raises(ValueError, match="no spans"):
        proposed_width([])


def test_limits_go_up_to_the_widest():
    assert width_recall([]) == []
    assert width_recall([1, 1]) == [(1, 1.0, 0)]
    assert width_recall([1, 1, 2, 7]) == [
        (1, 0.5, 2), (2, 0.75, 1), (3, 0.75, 1), (4, 0.75, 1), (5, 0.75, 1), (6, 0.75, 1),
        (7, 1.0, 0)]  # fmt: skip
    limits = [limit for limit, _, _ in width_recall([1, 70])]
    assert limits == [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 70]
