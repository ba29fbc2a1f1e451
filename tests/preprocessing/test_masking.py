"""Masks: exact counts, whole words and spans, 80/10/10, keys, exploration."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from finetune.preprocessing.encodings import FlatSequences
from finetune.preprocessing.masking import KEPT, MASKED, RANDOM, SPAN_LENGTHS, Mask, Masking
from finetune.types import TokenSequence

VOCABULARY, MASK_ID = 200, 4
SPECIAL = np.arange(VOCABULARY) < 5
RULE = Masking(SPECIAL, MASK_ID)
UNITS = ["subwords", "words", "spans"]


def sequences(number: int, length: int = 126, seed: int = 0) -> FlatSequences:
    """Sequences of words of one to four subwords, between special tokens."""
    rng = np.random.default_rng(seed)
    made = []
    for example in range(number):
        starts = [1]
        while starts[-1] < 1 + length:
            starts.append(min(1 + length, starts[-1] + int(rng.choice([1, 1, 1, 2, 3, 4]))))
        ids = [1, *rng.integers(5, VOCABULARY, length).tolist(), 2]
        made.append(TokenSequence(example, ids, None, starts))
    return FlatSequences.of(made)


def masks(found: FlatSequences) -> list[Mask]:
    """The mask of each sequence."""
    assert found.targets is not None
    rows = (found.targets[name] for name in Mask._fields)
    return [Mask(*map(np.array, each)) for each in zip(*map(lists, rows), strict=True)]


def lists(ragged) -> list[list[int]]:
    return [ragged.row(number) for number in range(len(ragged.offsets) - 1)]


@pytest.mark.parametrize("unit", UNITS)
def test_the_counts_of_an_epoch(unit: str) -> None:
    given = sequences(500)
    found = replace(RULE, unit=unit).apply(given, seed=1, epoch=0)
    numbers = found.targets["position"].counts
    if unit != "words":
        assert set(numbers) == {round(0.15 * 126)}
    assert numbers.sum() / (500 * 126) == pytest.approx(0.15, abs=0.001)
    choices, per_unit = [], 0
    for mask in masks(found):
        by_unit = {(unit, choice) for unit, choice in zip(mask.unit, mask.replacement, strict=True)}
        per_unit += len({unit for unit, _ in by_unit})
        choices += [choice for _, choice in by_unit]
    assert len(choices) == per_unit, "every unit has one kind"
    for choice, share in ((MASKED, 0.8), (RANDOM, 0.1), (KEPT, 0.1)):
        deviation = (share * (1 - share) / len(choices)) ** 0.5
        assert choices.count(choice) / len(choices) == pytest.approx(share, abs=3 * deviation)


@pytest.mark.parametrize("unit", UNITS)
def test_what_the_model_reads(unit: str) -> None:
    given = sequences(50)
    found = replace(RULE, unit=unit).apply(given, seed=1, epoch=3)
    changed = 0
    for row, mask in enumerate(masks(found)):
        before, after = given[row].input_ids, found[row].input_ids
        assert mask.position.tolist() == sorted(set(mask.position.tolist()))
        assert 1 <= mask.position[0] and mask.position[-1] <= len(before) - 2, "special tokens stay"
        assert found.targets["token"].row(row) == [before[p] for p in mask.position]
        choices = dict(zip(mask.position.tolist(), mask.replacement.tolist(), strict=True))
        for position, (old, new) in enumerate(zip(before, after, strict=True)):
            if choices.get(position, KEPT) == KEPT:
                assert new == old
            elif choices[position] == MASKED:
                assert new == MASK_ID
            else:
                assert not SPECIAL[new]
                changed += new != old
    assert changed > 20
    assert given.targets is None, "the input is unchanged"


def test_words_are_never_half_masked() -> None:
    given = sequences(200, length=40)
    found = replace(RULE, unit="words", probability=0.3).apply(given, seed=2)
    lengths = Counter()
    for row, mask in enumerate(masks(found)):
        starts, chosen = given[row].word_starts, set(mask.position.tolist())
        for start, end in pairwise(starts):
            inside = len(chosen & set(range(start, end)))
            assert inside in (0, end - start)
            lengths[end - start] += inside > 0
    words = Counter(b - a for row in given for a, b in pairwise(row.word_starts))
    shares = [lengths[n] / words[n] for n in (1, 2, 3, 4)]
    assert min(shares) > 0.2, "long words are chosen too"


def test_spans() -> None:
    """Their lengths, one kind for spans that touch, and boundaries that are never masked."""
    assert np.arange(1, 11) @ SPAN_LENGTHS == pytest.approx(3.80, abs=0.005)
    given = FlatSequences.of(
        TokenSequence(n, [1, *[9] * 400, 2], None, list(range(1, 402))) for n in range(1500)
    )
    found = replace(RULE, unit="spans", probability=0.02).apply(given, seed=1)
    lengths = []
    for mask in masks(found):
        spans = [mask.position[mask.unit == unit] for unit in range(int(mask.unit[-1]) + 1)]
        assert all((np.diff(span) == 1).all() for span in spans)
        assert all(a[-1] + 1 < b[0] for a, b in pairwise(spans)), "a boundary stays between spans"
        lengths += map(len, spans)
        assert sum(map(len, spans)) == 8
    assert set(lengths) == set(range(1, 9))


@pytest.mark.parametrize("unit", UNITS)
def test_a_mask_depends_on_seed_epoch_and_sequence_alone(unit: str) -> None:
    rule, given = replace(RULE, unit=unit), sequences(30)

    def ids(found: FlatSequences) -> list[list[int]]:
        return [found[row].input_ids for row in range(len(found))]

    whole = ids(rule.apply(given, seed=1, epoch=2))
    backwards = rule.apply(given.take(np.arange(29, -1, -1)), seed=1, epoch=2)
    assert ids(backwards)[::-1] == whole
    others = [
        rule.apply(given, seed=1, epoch=3),
        rule.apply(given, seed=2, epoch=2),
        rule.apply(given),
    ]
    for other in others:
        assert sum(a == b for a, b in zip(ids(other), whole, strict=True)) < 3
    assert ids(rule.apply(given)) == ids(rule.apply(given, seed=None, epoch=5))


@pytest.mark.parametrize("unit", ["subwords", "words"])
@pytest.mark.parametrize("length", [3, 40, 126])
def test_exploration_chooses_each_subword_once_in_a_cycle(unit: str, length: int) -> None:
    rule, given = replace(RULE, unit=unit, explore=True), sequences(20, length)
    cycles = []
    for cycle in range(2):
        chosen = [Counter() for _ in range(20)]
        for epoch in range(7 * cycle, 7 * cycle + 7):
            for row, mask in enumerate(masks(rule.apply(given, seed=1, epoch=epoch))):
                chosen[row].update(mask.position.tolist())
        for counter in chosen:
            assert set(counter) == set(range(1, length + 1))
            if length > 7:
                assert set(counter.values()) == {1}
        cycles.append(rule.apply(given, seed=1, epoch=7 * cycle).targets["position"].values)
    if length > 7:
        assert cycles[0].tolist() != cycles[1].tolist()


def test_random_subwords_by_frequency() -> None:
    frequency = np.zeros(VOCABULARY)
    frequency[[3, 50, 60]] = 1000, 30, 10  # the first is special
    found = replace(RULE, frequency=frequency).apply(sequences(800), seed=1)
    drawn = Counter(
        found[row].input_ids[p]
        for row, mask in enumerate(masks(found))
        for p in mask.position[mask.replacement == RANDOM]
    )
    assert set(drawn) == {50, 60}
    assert drawn[50] / drawn.total() == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("unit", UNITS)
def test_degenerate_sequences(unit: str) -> None:
    made = [
        TokenSequence(0, [1, 2], None, [1]),  # no text
        TokenSequence(1, [1, 3, 3, 2], None, [1, 2, 3]),  # unknown subwords only
        TokenSequence(2, [1, 9, 2], None, [1, 2]),
        TokenSequence(3, [1, 9, 9, 9, 3, 9, 2], None, [1, 4, 5, 6]),
    ]
    found = replace(RULE, unit=unit).apply(FlatSequences.of(made), seed=1)
    assert found.targets["position"].counts[:3].tolist() == [0, 0, 1]
    assert 4 not in found.targets["position"].row(3)
    assert 1 <= found.targets["position"].counts[3] <= 3


def test_boundaries_of_spans() -> None:
    """Neighbors of merged spans are never masked; a span beside a special token has none."""
    rule = replace(RULE, unit="spans", separator=np.isin(np.arange(VOCABULARY), [1, 2]))
    given = sequences(400, length=40)
    found = rule.apply(given, seed=1, epoch=0)
    beside = [lists(found.targets[side]) for side in ("left", "right")]
    at_ends = 0
    for number, (mask, left, right) in enumerate(zip(masks(found), *beside, strict=True)):
        ids = given[number].input_ids
        for unit in range(int(mask.unit[-1]) + 1):
            own = mask.unit == unit
            first, last = int(mask.position[own][0]), int(mask.position[own][-1])
            assert last - first + 1 == own.sum(), "spans that touch are merged"
            expected = (first - 1, last + 1)
            assert not {*expected} & {*mask.position.tolist()}
            if first == 1 or last == len(ids) - 2:
                expected = (-1, -1)
                at_ends += 1
            sides = np.array(left)[own], np.array(right)[own]
            assert {*zip(*map(np.ndarray.tolist, sides), strict=True)} == {expected}
    assert at_ends > 20
    assert np.array_equal(
        found.ids.values, replace(rule, separator=None).apply(given, 1, 0).ids.values
    )
