"""Pairs for next sentence prediction: their share, their parts, and degenerate documents."""

from __future__ import annotations

import numpy as np
import pytest

from finetune.preprocessing.encodings import FlatSequences
from finetune.preprocessing.subwords import Template
from finetune.pretraining.sentence_pairs import sentence_pairs
from finetune.types import TokenSequence

CLS, SEP = 1, 2
TEMPLATE = Template((CLS,), (SEP,), (SEP,), (0, 0, 0, 1, 1))


def pairs_of(
    packed: FlatSequences, rows: list[int] | range | None = None, *key: int
) -> FlatSequences:
    chosen = np.arange(len(packed)) if rows is None else np.array(rows)
    return sentence_pairs(packed, chosen, TEMPLATE, 43, *key)


def blocks(documents: list[list[list[int]]], seed: int = 0) -> FlatSequences:
    """Blocks of documents, given by the numbers of subwords of the lines of each block. The
    subword ids of a line are those of no other line: 100 * line + place."""
    rng = np.random.default_rng(seed)
    sequences, line = [], 0
    for document, sizes_of_blocks in enumerate(documents):
        for sizes in sizes_of_blocks:
            ids, starts, lines = [CLS], [1], [0]
            for size in sizes:
                line += 1
                ids += [100 * line + position for position in range(size)]
                while starts[-1] < len(ids):
                    starts.append(min(len(ids), starts[-1] + int(rng.choice([1, 1, 2]))))
                lines.append(len(starts) - 1)
            target = {"lines": lines, "document": [document]}
            sequences.append(TokenSequence(len(sequences), [*ids, SEP], None, starts, 0, target))
    return FlatSequences.of(sequences)


def parts(pair: TokenSequence) -> tuple[list[int], list[int]]:
    """Check the form of a pair, and return its two texts."""
    ids = pair.input_ids
    assert ids[0] == CLS and ids[-1] == SEP and ids.count(SEP) == 2 and len(ids) <= 43
    middle = ids.index(SEP)
    assert pair.token_type_ids == [0] * (middle + 1) + [1] * (len(ids) - middle - 1)
    starts = pair.word_starts
    assert starts[0] == 1 and starts[-1] == len(ids) - 1 and middle in starts
    assert starts == sorted(set(starts))
    return ids[1:middle], ids[middle + 1 : -1]


def test_half_of_the_pairs_are_adjacent_the_others_from_another_document() -> None:
    rng = np.random.default_rng(1)
    documents = [[rng.integers(3, 9, 6).tolist() for _ in range(4)] for _ in range(20)]
    packed = blocks(documents)
    document_of_line = [0]
    for number, sizes_of_blocks in enumerate(documents):
        document_of_line += [number] * sum(map(len, sizes_of_blocks))
    shares, lengths = [], {0: [], 1: []}
    for epoch in range(25):
        pairs = pairs_of(packed, None, 3, epoch)
        for row, pair in enumerate(pairs):
            first, second = parts(pair)
            text = packed[row].input_ids[1:-1]
            assert first == text[: len(first)]
            complete = len(first) == len(text) or text[len(first)] % 100 == 0
            assert complete and second[0] % 100 == 0, "parts begin and end with lines"
            first_document = document_of_line[first[0] // 100]
            other_documents = {document_of_line[id // 100] for id in second}
            (label,) = pair.target["next"]
            if label == 0:
                assert first + second == text
            else:
                assert len(other_documents) == 1 and other_documents != {first_document}
                numbers = sorted({id // 100 for id in second})
                assert numbers == list(range(numbers[0], numbers[-1] + 1)), "lines in order"
            shares.append(label == 0)
            lengths[label].append(len(pair.input_ids))
    assert np.mean(shares) == pytest.approx(0.5, abs=3 * 0.5 / len(shares) ** 0.5)
    assert np.mean(lengths[0]) == pytest.approx(np.mean(lengths[1]), rel=0.1), "no hint of lengths"


def test_pairs_depend_on_seed_epoch_and_sequence_alone() -> None:
    packed = blocks([[[4, 5, 6], [5, 5]], [[3, 8, 3, 3]], [[7, 7]], [[5], [6, 2]]])
    pairs = pairs_of(packed, None, 1, 2)
    assert list(pairs_of(packed, [4, 1], 1, 2)) == [pairs[4], pairs[1]]
    other_epochs = [list(pairs_of(packed, None, *key)) for key in ((1, 3), (2, 2))]
    assert all(other != list(pairs) for other in other_epochs)


@pytest.mark.parametrize("size", [1, 5, 30, 40])
def test_documents_of_one_line(size: int) -> None:
    """The second text is always random; where both do not fit, both are cut between words."""
    packed = blocks([[[size]] for _ in range(6)])
    for epoch in range(5):
        pairs = pairs_of(packed, None, 1, epoch)
        for row, pair in enumerate(pairs):
            first, second = parts(pair)
            assert pair.target["next"] == [1] and first[0] // 100 == row + 1 != second[0] // 100
            assert min(len(first), len(second)) >= min(size, 18)
            assert 1 + len(first) in packed[row].word_starts


def test_a_word_longer_than_the_room_is_cut() -> None:
    ids = [CLS, *range(100, 140), SEP]
    targets = [{"lines": [0, 1], "document": [number]} for number in (0, 1)]
    sequences = [
        TokenSequence(n, ids, None, [1, 41], 0, target) for n, target in enumerate(targets)
    ]
    for pair in pairs_of(FlatSequences.of(sequences), None, 1, 0):
        assert [len(part) for part in parts(pair)] == [20, 20]


def test_one_document_has_nearly_all_of_the_text() -> None:
    packed = blocks([[[9, 9, 9]] * 1000, [[4, 4]]])
    pairs = pairs_of(packed, range(40), 1, 0)
    random = [parts(pair)[1] for pair in pairs if pair.target["next"] == [1]]
    assert len(random) > 5 and all(second[0] // 100 > 3000 for second in random)
