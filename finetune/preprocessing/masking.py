"""Masks of masked language modeling: the subwords to predict, and their replacements.

Devlin et al. (2019): 15 % of the subwords are chosen, and the model predicts all of them. It reads
80 % of them as the mask token, 10 % as a random subword and 10 % unchanged. Single subwords, whole
words, or spans of words (Joshi et al., 2020, SpanBERT) are chosen.

The mask of a sequence comes from a counter-based generator whose key is the seed, the epoch and the
sequence, so it does not depend on batches, processes or interruptions. The number of chosen
subwords is exact, round(0.15 n) of n and at least 1, which has less variance than a draw for each
subword. Special and unknown subwords are never chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from finetune.preprocessing.encodings import Array, FlatSequences, Ragged

MaskUnit = Literal["subwords", "words", "spans"]

MASKED, RANDOM, KEPT = range(3)
"""Input at a chosen position: the mask token, a random subword, or the subword itself."""
SHARES = 0.8, 0.1
"""Fractions of the chosen subwords: masked, and random."""
LONGEST_SPAN = 10
"""Longest span in words."""
SPAN_PROBABILITY = 0.2
"""Parameter p of the geometric distribution of span lengths, p (1 - p)^(l - 1)."""
SPAN_LENGTHS = SPAN_PROBABILITY * (1 - SPAN_PROBABILITY) ** np.arange(LONGEST_SPAN)
SPAN_LENGTHS /= SPAN_LENGTHS.sum()
"""Probabilities of the lengths 1 to 10: 3.80 words on average."""
_CUMULATIVE = np.cumsum(SPAN_LENGTHS[:-1])


class Mask(NamedTuple):
    """The M chosen positions of a sequence, in order."""

    position: Array
    """[M]"""
    replacement: Array
    """``MASKED``, ``RANDOM`` or ``KEPT`` [M], one for each unit."""
    unit: Array
    """The unit of each position [M]: the subword, the word, or the span, numbered from 0. Spans
    that touch are one unit."""


@dataclass(eq=False)
class Masking:
    """The rule by which masks are drawn.

    Attributes:
        special: True for the subwords of the vocabulary that are never chosen or drawn [V].
        mask_id: The mask token.
        unit: Mask single subwords, whole words, or spans of words.
        probability: The fraction of subwords to choose.
        explore: Divide the words or subwords into 1 / ``probability`` random parts, rounded, and
            choose each part in turn, one an epoch (Zheng et al., 2020, "fully-explored").
        frequency: Counts of the subwords of the training data [V], by which random subwords are
            drawn; None draws uniformly.
        separator: True for the special tokens around and between texts [V]; if it is given, masks
            have the targets of the span boundary objective.
    """

    special: Array
    mask_id: int
    unit: MaskUnit = "subwords"
    probability: float = 0.15
    explore: bool = False
    frequency: Array | None = None
    separator: Array | None = None
    _pool: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Prepare the cumulative weights of random subwords."""
        weights = np.ones(len(self.special)) if self.frequency is None else self.frequency
        self._pool = np.cumsum(np.where(self.special, 0, weights))

    def apply(
        self, sequences: FlatSequences, seed: int | None = None, epoch: int = 0
    ) -> FlatSequences:
        """Apply the masks of an epoch to sequences; without a seed, masks for scoring.

        ``word_starts`` of the sequences begin the words. The targets ``position``, ``token``,
        ``replacement`` and ``unit`` describe a mask. With
        ``separator`` there are also ``left`` and ``right``, the positions beside the unit of each
        target: -1 for a special token, as at the ends of a text.
        """
        ids, offsets = sequences.ids
        ids = ids.copy()
        names = ["position", "token", "replacement", "unit"]
        names += [] if self.separator is None else ["left", "right"]
        words, targets = sequences.words, list[list[Array]]()
        for row, (start, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
            sequence_ids = ids[start:end]
            starts = words.values[words.offsets[row] : words.offsets[row + 1]]
            example = int(sequences.example[row])
            generator, part = keyed_generator(seed, epoch, example), None
            if self.explore and seed is not None:
                cycle, turn = divmod(epoch, round(1 / self.probability))
                part = turn, keyed_generator(seed, cycle, example)
            mask = self.draw(sequence_ids, starts, generator, part)
            position, replacement, unit = mask
            targets.append([position, sequence_ids[position], replacement, unit])
            if self.separator is not None:
                targets[-1] += _neighbors(mask, self.separator[sequence_ids])
            sequence_ids[position[replacement == MASKED]] = self.mask_id
            random = position[replacement == RANDOM]
            drawn = generator.random(len(random)) * self._pool[-1]
            sequence_ids[random] = np.searchsorted(self._pool, drawn, side="right")
        columns = list(zip(*targets, strict=True)) or [()] * len(names)
        rows = {name: Ragged.of(values) for name, values in zip(names, columns, strict=True)}
        rows = {**(sequences.targets or {}), **rows}
        return replace(sequences, ids=Ragged(ids, offsets), targets=rows)

    def draw(
        self,
        ids: Array,
        starts: Array,
        generator: np.random.Generator,
        part: tuple[int, np.random.Generator] | None = None,
    ) -> Mask:
        """Draw the mask of one sequence.

        Args:
            ids: The subwords of the sequence [n].
            starts: The first position of each word, then the end of the last one.
            generator: Draws the mask.
            part: Choose this one of the parts that another generator draws; None draws a mask.
        """
        free = ~self.special[ids]
        count = max(1, round(self.probability * int(free.sum())))
        if self.unit == "subwords":
            begins = free.nonzero()[0]
            ends = begins + 1
        else:
            begins, ends = _words(free, starts)
        if not len(begins):
            return Mask(*(np.zeros(0, np.int64),) * 3)
        if part is not None:
            chosen = _part(begins, ends, round(1 / self.probability), *part)
        elif self.unit == "subwords":
            chosen = generator.permutation(len(begins))[:count]
        elif self.unit == "words":
            chosen = _draw_words(ends - begins, count, generator)
        if self.unit == "spans":
            position, unit = _spans(begins, ends, count, generator)
        else:
            chosen.sort()
            lengths = (ends - begins)[chosen]
            unit = np.repeat(np.arange(len(chosen)), lengths)
            position = np.arange(len(unit)) + np.repeat(
                begins[chosen] - np.cumsum(lengths) + lengths, lengths
            )
        draws = generator.random(int(unit[-1]) + 1)
        replacement = (draws >= SHARES[0]).astype(np.int64) + (draws >= sum(SHARES))
        return Mask(position, replacement[unit], unit)


def special_subwords(tokenizer: Any) -> Array:
    """Which subwords of the vocabulary are special [V]."""
    special = np.zeros(len(tokenizer), dtype=bool)
    special[[id for id in tokenizer.all_special_ids if id < len(special)]] = True
    return special


def _neighbors(mask: Mask, separator: Array) -> tuple[Array, Array]:
    """Positions beside the unit of each choice [M]; both -1 if one is outside or a separator."""
    left = mask.position[np.searchsorted(mask.unit, mask.unit)] - 1
    right = mask.position[np.searchsorted(mask.unit, mask.unit, side="right") - 1] + 1
    outside = np.pad(separator, (0, 1), constant_values=True)  # -1 and the length are outside
    lacking = outside[left] | outside[right]
    return np.where(lacking, -1, left), np.where(lacking, -1, right)


def keyed_generator(
    seed: int | None, epoch: int, sequence: int, stream: int = 0
) -> np.random.Generator:
    """The generator of a sequence; without a seed, it is the same in all epochs and runs."""
    first = 2**64 - 1 if seed is None else seed << 32 | epoch
    key = np.array([first, sequence], dtype=np.uint64)
    counter = np.array([0, 0, 0, stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def _words(free: Array, starts: Array) -> tuple[Array, Array]:
    before = np.concatenate(([0], np.cumsum(free)))
    begins, ends = starts[:-1].astype(np.int64), starts[1:].astype(np.int64)
    is_whole = (before[ends] - before[begins] == ends - begins) & (ends > begins)
    return begins[is_whole], ends[is_whole]


def _draw_words(lengths: Array, count: int, generator: np.random.Generator) -> Array:
    order = generator.permutation(len(lengths))
    chosen, room, skipped = [], count, []
    for word, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if length <= room:
            chosen.append(word)
            room -= length
            if not room:
                break
        else:
            skipped.append(word)
    if room and skipped and (not chosen or generator.random() < room / lengths[skipped[0]]):
        chosen.append(skipped[0])
    return np.array(chosen, dtype=np.int64)


def _part(
    begins: Array, ends: Array, parts: int, turn: int, generator: np.random.Generator
) -> Array:
    order = generator.permutation(len(begins))
    before = np.cumsum((ends - begins)[order]) - 1
    chosen: Array = order[before * parts // (before[-1] + 1) == turn]
    return chosen if len(chosen) else order[turn % len(order)][None]


def _spans(
    begins: Array, ends: Array, count: int, generator: np.random.Generator
) -> tuple[Array, Array]:
    """Positions and their spans, of geometric length in words; the last is cut at ``count``."""
    owners = np.repeat(np.arange(len(begins)), ends - begins)
    gap = np.append(begins[1:] != ends[:-1], True)  # after a word; also after the last
    chosen = np.zeros(int(ends[-1]), dtype=bool)
    room = min(count, len(owners))
    for anchor in generator.permutation(len(owners)).tolist():
        first = int(owners[anchor])
        if chosen[begins[first]]:
            continue
        last = first
        length = int(np.searchsorted(_CUMULATIVE, generator.random(), side="right")) + 1
        while last + 1 < first + length and not gap[last]:
            last += 1
        new = begins[first] + (~chosen[begins[first] : ends[last]]).nonzero()[0][:room]
        chosen[new] = True
        room -= len(new)
        if not room:
            break
    position = chosen.nonzero()[0]
    return position, np.cumsum(np.diff(position, prepend=position[0]) > 1)
