"""Pairs of texts for next sentence prediction (Devlin et al., 2019).

The lines of a block are divided at a random line. In half of the pairs the second part continues
the first; in the others it begins at a random line of another document, drawn in proportion to the
amount of text, and goes on while whole lines fit. Blocks are filled by the same rule, so that
lengths tell nothing. A block of one line always has a random second part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from finetune.data import Dataset
from finetune.preprocessing.encodings import Array, FlatSequences, Ragged
from finetune.preprocessing.masking import keyed_generator
from finetune.preprocessing.subwords import Template
from finetune.types import UserError, quantity

TRIES = 50
"""Draws of a line of another document that fits, before any of another document is taken."""
MOST_COUNTED = 10_000
"""Number of pairs of which the log tells the share that follows."""
BLOCK = "text", "starts", "lines", "document"
"""The targets that describe a block."""
PAIRS = 1
"""The first stream of random numbers for pairs; masks have stream 0."""


def follows(seed: int | None, epoch: int, sequence: int) -> bool:
    """Whether the second text of a pair follows the first, if the document has several lines."""
    return bool(keyed_generator(seed, epoch, sequence, PAIRS).random() < 0.5)


class _Part(NamedTuple):
    """Subwords [n], and the first of each word, then n."""

    ids: Array
    starts: Array

    def cut(self, limit: int) -> _Part:
        """Cut a text to its first words with at most ``limit`` subwords; a longer word is cut
        too."""
        if len(self.ids) <= limit:
            return self
        last = int(np.searchsorted(self.starts, limit, side="right")) - 1
        starts = self.starts[: last + 1] if last else np.array([0, limit])
        return _Part(self.ids[: starts[-1]], starts)


class _Blocks:
    """The lines of all blocks, from the targets of their sequences: ``text`` without special
    tokens, the first subword of each of its words, then their number (``starts``), and the first
    word of each of its ``lines``."""

    def __init__(self, sequences: FlatSequences) -> None:
        assert sequences.targets is not None
        self.text, self.starts, self.lines, document = (sequences.targets[name] for name in BLOCK)
        self.document = document.values

    def num_lines(self, block: int) -> int:
        return int(self.lines.offsets[block + 1] - self.lines.offsets[block]) - 1

    def part(self, block: int, first: int, last: int) -> _Part:
        """Cut lines ``first .. last - 1`` from a block."""
        begin, end = (int(self.lines.values[self.lines.offsets[block] + i]) for i in (first, last))
        offset = int(self.starts.offsets[block])
        starts = self.starts.values[offset + begin : offset + end + 1].astype(np.int64)
        offset = int(self.text.offsets[block])
        ids = self.text.values[offset + starts[0] : offset + starts[-1]]
        return _Part(ids, starts - starts[0])

    def lines_from(self, block: int, line: int) -> Iterator[_Part]:
        """Yield the lines of a document from a line on, through its next blocks."""
        document = self.document[block]
        while block < len(self.document) and self.document[block] == document:
            for number in range(line, self.num_lines(block)):
                yield self.part(block, number, number + 1)
            block, line = block + 1, 0


@dataclass(frozen=True)
class SentencePairs:
    """The rule by which pairs are made.

    Attributes:
        template: The special tokens around and between two texts.
        max_length: The longest pair in tokens, with special tokens.
    """

    template: Template
    max_length: int

    @property
    def room(self) -> int:
        """The most subwords of both texts."""
        return self.max_length - self.template.num_special

    def apply(
        self, blocks: FlatSequences, rows: Array, seed: int | None = None, epoch: int = 0
    ) -> FlatSequences:
        """Pair the blocks at ``rows`` with following or random texts, with token type ids 0 and 1.

        Without a seed, the pairs are for scoring, not for an epoch. The target ``next`` is 0 if the
        second text follows the first, and 1 if it is random, as in transformers.
        """
        pairs, own = _Blocks(blocks), blocks.take(rows)
        assert own.targets is not None
        ids, words, segments, labels = [], [], [], []
        for row, example in zip(rows.tolist(), own.example.tolist(), strict=True):
            generator = keyed_generator(seed, epoch, example, PAIRS + 1)
            adjacent = follows(seed, epoch, example) and pairs.num_lines(row) > 1
            first, second = self._pair(pairs, row, adjacent, generator)
            labels.append([int(not adjacent)])
            prefix, middle = self.template.prefix, self.template.middle
            begin = len(prefix) + len(first.ids)
            ids.append(
                np.concatenate([prefix, first.ids, middle, second.ids, self.template.suffix])
            )
            segments.append(np.arange(len(ids[-1])) >= begin + len(middle))
            starts = [first.starts + len(prefix), second.starts + begin + len(middle)]
            words.append(np.concatenate(starts))  # the tokens between the texts are a word
        targets = {name: own.targets[name] for name in BLOCK} | {"next": Ragged.of(labels)}
        return FlatSequences(
            Ragged.of([array.astype(np.int64) for array in ids]),
            np.concatenate(segments).astype(np.uint8),
            Ragged.of(words),
            own.example,
            own.window,
            targets,
        )

    def _pair(
        self, blocks: _Blocks, row: int, adjacent: bool, generator: np.random.Generator
    ) -> tuple[_Part, _Part]:
        number = blocks.num_lines(row)
        split = 1 + int(generator.integers(number - 1)) if number > 1 else 1
        first = blocks.part(row, 0, split)
        if adjacent:
            return first, blocks.part(row, split, number).cut(self.room - len(first.ids))
        free = self.room - len(first.ids)
        block, line = self._random_line(blocks, row, free, generator)
        texts: list[_Part] = []
        for part in blocks.lines_from(block, line):
            if len(part.ids) > free:
                break
            texts.append(part)
            free -= len(part.ids)
        if not texts:
            second = blocks.part(block, line, line + 1)
            first = first.cut(max(self.room // 2, self.room - len(second.ids)))
            return first, second.cut(self.room - len(first.ids))
        ends = np.cumsum([0, *(len(part.ids) for part in texts)])
        starts = [part.starts[:-1] + end for part, end in zip(texts, ends[:-1], strict=True)]
        ids = np.concatenate([part.ids for part in texts])
        return first, _Part(ids, np.concatenate([*starts, ends[-1:]]))

    def _random_line(
        self, blocks: _Blocks, row: int, free: int, generator: np.random.Generator
    ) -> tuple[int, int]:
        document = blocks.document[row]
        for _ in range(TRIES):
            block = int(generator.integers(len(blocks.document)))
            line = int(generator.integers(blocks.num_lines(block)))
            if blocks.document[block] != document:
                if len(blocks.part(block, line, line + 1).ids) <= free:
                    return block, line
        other_blocks = (blocks.document != document).nonzero()[0]
        block = int(other_blocks[generator.integers(len(other_blocks))])
        return block, int(generator.integers(blocks.num_lines(block)))


def pair_notes(data: Dataset, seed: int) -> list[str]:
    """Describe the pairs of each split; for train, those of the first epoch.

    Raises UserError if there is no other document to draw the second text of a pair from, or if no
    text of train can follow another.
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
        several = np.fromiter(("\n" in text for text in examples.column("text")), bool)
        ids = np.fromiter(examples.column("id"), np.int64)[several]
        single = len(several) - len(ids)
        if split == "train" and not len(ids):
            raise UserError(
                "--nsp: every sequence of train is a single line, which nothing follows: write one "
                "sentence a line with blank lines between documents, or leave --nsp out."
            )
        key = seed if split == "train" else None
        drawn = ids[:: len(ids) // MOST_COUNTED + 1].tolist()
        following = sum(follows(key, 0, id) for id in drawn) / max(1, len(drawn))
        about = "about " if len(drawn) < len(ids) else ""
        share = f"{about}{following * len(ids) / len(several):.1%}"
        note = f"{split}: the second text of {share} of the pairs follows"
        if single:
            note += f", of none of the {quantity(single, 'sequence')} of a single line"
        notes.append(note)
    return notes
