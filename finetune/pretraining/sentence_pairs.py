"""Pairs of texts for next sentence prediction (Devlin et al., 2019).

The lines of a sequence are divided at a random line. In half of the pairs the second part continues
the first; in the others it begins at a random line of another document, drawn in proportion to the
amount of text, and goes on while whole lines fit. Sequences are filled by the same rule, so that
lengths tell nothing. A sequence of one line always has a random second part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from finetune.data import Dataset
from finetune.preprocessing.encodings import Array, FlatSequences, Ragged
from finetune.preprocessing.masking import keyed_generator
from finetune.preprocessing.subwords import Template
from finetune.types import UserError, quantity

TRIES = 50
"""Draws of a line of another document that fits, before any of another document is taken."""
PACKED = "text", "starts", "lines", "document"
"""The targets that describe a packed sequence."""
PAIRS = 1
"""The first stream of random numbers for pairs; masks have stream 0."""


class _Part(NamedTuple):
    """Subwords [n], and the first of each word, then n."""

    ids: Array
    starts: Array

    def cut(self, limit: int) -> _Part:
        """Keep the first words with at most ``limit`` subwords; cut a longer word."""
        if len(self.ids) <= limit:
            return self
        last = int(np.searchsorted(self.starts, limit, side="right")) - 1
        starts = self.starts[: last + 1] if last else np.array([0, limit])
        return _Part(self.ids[: starts[-1]], starts)


class _Lines:
    """The lines of all packed sequences in one row, from their targets ``PACKED``: ``text`` without
    special tokens, the first subword of each of its words, then their number (``starts``), and the
    first word of each of its ``lines``, then their number of words."""

    def __init__(self, sequences: FlatSequences) -> None:
        assert sequences.targets is not None
        text, starts, lines, document = (sequences.targets[name] for name in PACKED)
        numbers = np.arange(len(sequences) + 1)
        first_words = starts.offsets - numbers
        self.ids = text.values
        self.words = _without_last(starts, text.offsets, len(self.ids))
        """The first subword of each word, then the number of subwords."""
        self.lines = _without_last(lines, first_words, len(self.words) - 1)
        """The first word of each line, then the number of words."""
        self.first = lines.offsets - numbers
        """The first line of each sequence, then the number of lines."""
        self.document = np.repeat(document.values, np.diff(self.first))
        """The document of each line."""

    def part(self, first: int, last: int) -> _Part:
        starts = self.words[self.lines[first] : self.lines[last] + 1]
        return _Part(self.ids[starts[0] : starts[-1]], starts - starts[0])


def _without_last(rows: Ragged, offsets: Array, number: int) -> Array:
    values = rows.values.astype(np.int64) + np.repeat(offsets[:-1], rows.counts)
    return np.append(np.delete(values, rows.offsets[1:] - 1), number)


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
        packed: All packed sequences of a split.
        rows: The sequences to pair.
        template: The special tokens around and between two texts.
        max_length: The longest pair in tokens, with special tokens.
        seed: The seed of an epoch; None makes the pairs of scores.
        epoch: The number of the epoch.
    """
    lines, chosen = _Lines(packed), packed.take(rows)
    assert chosen.targets is not None
    ids, words, token_type_ids, labels = [], [], [], []
    prefix, middle, suffix = template.prefix, template.middle, template.suffix
    room = max_length - template.num_special  # of both texts
    for row, example in zip(rows.tolist(), chosen.example.tolist(), strict=True):
        generator = keyed_generator(seed, epoch, example, PAIRS + 1)
        chosen_half = keyed_generator(seed, epoch, example, PAIRS).random() < 0.5
        first_line, end = lines.first[row : row + 2].tolist()
        adjacent = chosen_half and end - first_line > 1
        first, second = _pair(lines, first_line, end, adjacent, room, generator)
        labels.append([int(not adjacent)])
        begin = len(prefix) + len(first.ids) + len(middle)
        ids.append(np.concatenate([prefix, first.ids, middle, second.ids, suffix]))
        token_type_ids.append(np.arange(len(ids[-1])) >= begin)
        starts = [first.starts + len(prefix), second.starts + begin]
        words.append(np.concatenate(starts))  # the tokens between the texts are a word
    targets = {name: chosen.targets[name] for name in PACKED} | {"next": Ragged.of(labels)}
    return FlatSequences(
        Ragged.of([array.astype(np.int64) for array in ids]),
        np.concatenate(token_type_ids).astype(np.uint8),
        Ragged.of(words),
        chosen.example,
        chosen.window,
        targets,
    )


def _pair(
    lines: _Lines, begin: int, end: int, adjacent: bool, room: int, generator: np.random.Generator
) -> tuple[_Part, _Part]:
    split = begin + 1
    if end - begin > 1:
        split += int(generator.integers(end - begin - 1))
    first = lines.part(begin, split)
    free = room - len(first.ids)
    if adjacent:
        return first, lines.part(split, end).cut(free)
    line = _random_line(lines, lines.document[begin], free, generator)
    last = line
    while last < len(lines.document) and lines.document[last] == lines.document[line]:
        if len(lines.part(line, last + 1).ids) > free:
            break
        last += 1
    if last > line:
        return first, lines.part(line, last)
    second = lines.part(line, line + 1)
    first = first.cut(max(room // 2, room - len(second.ids)))
    return first, second.cut(room - len(first.ids))


def _random_line(lines: _Lines, document: int, free: int, generator: np.random.Generator) -> int:
    num_sequences = len(lines.first) - 1

    def line_of(sequence: int) -> int:
        begin, end = lines.first[sequence : sequence + 2].tolist()
        return int(begin + generator.integers(end - begin))

    for _ in range(TRIES):
        line = line_of(int(generator.integers(num_sequences)))
        if lines.document[line] != document and len(lines.part(line, line + 1).ids) <= free:
            return line
    others = (lines.document[lines.first[:-1]] != document).nonzero()[0]
    return line_of(int(others[generator.integers(len(others))]))


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
