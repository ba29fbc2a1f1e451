"""Pairs of texts for next sentence prediction (Devlin et al., 2019).

The lines of a sequence are divided at a random line. In half of the pairs the second part continues
the first; in the others it begins at a random line of another document, drawn in proportion to the
amount of text, and goes on while whole lines fit. Sequences are filled by the same rule, so that
lengths tell nothing. A sequence of one line always has a random second part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from finetune.data import Dataset
from finetune.preprocessing.encodings import Array, FlatSequences
from finetune.preprocessing.masking import keyed_generator
from finetune.preprocessing.subwords import Template
from finetune.types import TokenSequence, UserError, quantity

TRIES = 50
"""Draws of a line of another document that fits, before any of another document is taken."""
PAIRS = 1
"""The first stream of random numbers for pairs; masks have stream 0."""


class _Part(NamedTuple):
    """Subwords [n], and the first of each word, then n."""

    ids: list[int]
    starts: list[int]

    def cut(self, limit: int) -> _Part:
        """Keep the first words with at most ``limit`` subwords; cut a longer word."""
        if len(self.ids) <= limit:
            return self
        last = bisect_right(self.starts, limit) - 1
        starts = self.starts[: last + 1] if last else [0, limit]
        return _Part(self.ids[: starts[-1]], starts)


class _PackedLines:
    """The lines of all packed sequences, whose targets are the first word of each of their
    ``lines``, then the number of words, and the number of their ``document``. Only the lines of a
    step are read."""

    def __init__(self, sequences: FlatSequences) -> None:
        assert sequences.targets is not None
        self.ids, self.words = sequences.ids, sequences.words
        self.lines = sequences.targets["lines"]
        self.document = sequences.targets["document"].values

    def num_lines(self, sequence: int) -> int:
        return int(self.lines.offsets[sequence + 1] - self.lines.offsets[sequence]) - 1

    def part(self, sequence: int, first: int, last: int) -> _Part:
        line = int(self.lines.offsets[sequence])
        begin, end = (int(self.lines.values[line + number]) for number in (first, last))
        offset = int(self.words.offsets[sequence])
        starts = self.words.values[offset + begin : offset + end + 1].tolist()
        offset = int(self.ids.offsets[sequence])
        ids = self.ids.values[offset + starts[0] : offset + starts[-1]].tolist()
        return _Part(ids, [start - starts[0] for start in starts])

    def lines_from(self, sequence: int, line: int) -> Iterator[_Part]:
        document = self.document[sequence]
        while sequence < len(self.document) and self.document[sequence] == document:
            for number in range(line, self.num_lines(sequence)):
                yield self.part(sequence, number, number + 1)
            sequence, line = sequence + 1, 0

    def pair(
        self, row: int, adjacent: bool, room: int, generator: np.random.Generator
    ) -> tuple[_Part, _Part]:
        number = self.num_lines(row)
        split = 1 + int(generator.integers(number - 1)) if number > 1 else 1
        first = self.part(row, 0, split)
        free = room - len(first.ids)
        if adjacent:
            return first, self.part(row, split, number).cut(free)
        sequence, line = self._random_line(self.document[row], free, generator)
        ids, starts = list[int](), [0]
        for part in self.lines_from(sequence, line):
            if len(ids) + len(part.ids) > free:
                break
            starts += [len(ids) + start for start in part.starts[1:]]
            ids += part.ids
        if ids:
            return first, _Part(ids, starts)
        second = self.part(sequence, line, line + 1)
        first = first.cut(max(room // 2, room - len(second.ids)))
        return first, second.cut(room - len(first.ids))

    def _random_line(
        self, document: int, free: int, generator: np.random.Generator
    ) -> tuple[int, int]:
        for _ in range(TRIES):
            sequence = int(generator.integers(len(self.document)))
            line = int(generator.integers(self.num_lines(sequence)))
            if self.document[sequence] != document:
                if len(self.part(sequence, line, line + 1).ids) <= free:
                    return sequence, line
        sequences = (self.document != document).nonzero()[0]
        sequence = int(sequences[generator.integers(len(sequences))])
        return sequence, int(generator.integers(self.num_lines(sequence)))


def sentence_pairs(
    packed: FlatSequences,
    rows: Array,
    template: Template,
    max_length: int,
    seed: int | None = None,
    epoch: int = 0,
) -> FlatSequences:
    """Pair the sequences at ``rows`` with following or random texts, with segments 0 and 1.

    The target ``next`` is 0 if the second text follows the first, and 1 if it is random, as in
    transformers.

    Args:
        packed: All packed sequences of a split, with the targets ``lines``, the first word of each
            line, then the number of words, and ``document``.
        rows: The sequences to pair.
        template: The special tokens around and between two texts.
        max_length: The longest pair in tokens, with special tokens.
        seed: The seed of an epoch; None makes the pairs of scores.
        epoch: The number of the epoch.
    """
    lines, pairs = _PackedLines(packed), []
    prefix, middle, suffix = template.prefix, template.middle, template.suffix
    room = max_length - template.num_special  # of both texts
    for row, example in zip(rows.tolist(), packed.example[rows].tolist(), strict=True):
        generator = keyed_generator(seed, epoch, example, PAIRS + 1)
        chosen_half = keyed_generator(seed, epoch, example, PAIRS).random() < 0.5
        adjacent = chosen_half and lines.num_lines(row) > 1
        first, second = lines.pair(row, adjacent, room, generator)
        before = [*prefix, *first.ids, *middle]
        ids = [*before, *second.ids, *suffix]
        types = [int(position >= len(before)) for position in range(len(ids))]
        starts = [len(prefix) + start for start in first.starts]
        starts += [len(before) + start for start in second.starts]  # those between are a word
        target = {"next": [int(not adjacent)]}
        pairs.append(TokenSequence(example, ids, types, starts, 0, target))
    return FlatSequences.of(pairs)


def pair_notes(data: Dataset) -> list[str]:
    """Count the sequences of a single line in each split, which no second text follows.

    Raises:
        UserError: There is no other document to draw the second text of a pair from, or no text of
            train can follow another.
    """
    notes = []
    for split, examples in data.splits.items():
        documents = examples.column("document")
        first = next(documents)
        if all(document == first for document in documents):
            raise UserError(
                f"--nsp: the {split} split has a single document, and the second text of half of "
                "the pairs is from another one: separate documents by blank lines, or hold out "
                "more (--validation SHARE)."
            )
        single = sum("\n" not in text for text in examples.column("text"))
        if split == "train" and single == len(examples):
            raise UserError(
                "--nsp: every sequence of train is a single line, which nothing follows: write one "
                "sentence a line with blank lines between documents, or leave --nsp out."
            )
        if single:
            notes.append(
                f"{split}: {quantity(single, 'sequence')} of a single line, which nothing follows"
            )
    return notes
