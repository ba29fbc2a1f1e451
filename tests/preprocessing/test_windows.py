"""Windows of long texts: sizes, overlap, and the words that each window predicts."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from finetune.preprocessing.windows import Window, windows


@given(counts=st.lists(st.integers(0, 9), max_size=40), capacity=st.integers(1, 16), data=st.data())
def test_windows(counts, capacity, data):
    overlap = data.draw(st.integers(0, capacity - 1))
    found = windows(counts, capacity, overlap)
    before = [0, *accumulate(counts)]

    def size(start, end):
        return before[end] - before[start]

    owned = [word for w in found for word in range(w.core_start, w.core_end)]
    assert owned == list(range(len(counts)))
    for w in found:
        assert w.start <= w.core_start <= w.core_end <= w.end
        assert size(w.start, w.end) <= capacity or w.end == w.start + 1
        assert w.core_start < w.core_end or not counts
    if size(0, len(counts)) <= capacity:
        assert found == [Window(0, len(counts), 0, len(counts))]
    for left, right in pairwise(found):
        assert left.start < right.start and left.end < right.end and right.start <= left.end
        largest = max(counts)
        if overlap + 3 * largest <= capacity:  # then no word stands in the way of the overlap
            assert overlap <= size(right.start, left.end) < overlap + largest


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=40),
    capacity=st.integers(5, 16),
    share=st.floats(0, 0.9),
)
def test_each_word_belongs_where_it_has_most_context(counts, capacity, share):
    found = windows(counts, capacity, int(share * capacity))
    before = [0, *accumulate(counts)]

    def context(word, w):
        left = before[word] - before[w.start] if w.start else before[-1]
        right = before[w.end] - before[word + 1] if w.end < len(counts) else before[-1]
        return min(left, right)

    for w in found:
        for word in range(w.core_start, w.core_end):
            holding = [other for other in found if other.start <= word < other.end]
            assert context(word, w) == max(context(word, other) for other in holding)
