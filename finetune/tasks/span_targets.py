"""Gold spans as classes of candidate spans, and the count of gold that cannot be predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from finetune.preprocessing.encodings import Ragged
from finetune.preprocessing.span_candidates import (
    candidate_index,
    candidates,
    num_candidates,
    predicted_candidates,
)
from finetune.tasks.span_decoding import best_spans
from finetune.types import IGNORED, LabelSet, Span, quantity

Bounds = Sequence[tuple[int, int]]
"""The words (start, end) of each window of a text."""


class SmoothedSpans(NamedTuple):
    """Probabilities of M candidates and classes; all other candidates are no spans."""

    candidate: np.ndarray
    """The candidate among all candidates of the batch [M]."""
    type: np.ndarray
    """The class [M]."""
    mass: np.ndarray
    """The probability [M]."""


class SpanTargets:
    """Targets over the candidates of ``span_candidates``.

    Class 0 is no span, and the span types follow. With ``multi_label`` there is no class for none.
    """

    def __init__(self, labels: LabelSet, max_width: int | None, multi_label: bool) -> None:
        self.labels, self.max_width, self.multi_label = labels, max_width, multi_label
        self.first_class = 0 if multi_label else 1

    def gold(self, spans: Sequence[Span], bounds: Bounds, index: int) -> dict[str, Sequence[float]]:
        """Make the target of window ``index``: ``indices`` and ``classes`` of its gold candidates,
        indices of the ``others``, which another window predicts, ``num_words`` that it predicts as
        candidates, and ``width``, the number of its words."""
        start, end = bounds[index]
        found = [
            (candidate_index(s.start - start, s.end - start, end - start, self.max_width), number)
            for s, number in self._known(spans)
            if start <= s.start and s.end <= end and not self._too_wide(s)
        ]
        others: list[int] = []
        num_words = end - start
        if len(bounds) > 1:
            predicted = predicted_candidates(bounds, index, self.max_width)
            others = np.flatnonzero(~predicted).tolist()
            words = np.arange(end - start)
            single = candidate_index(words, words + 1, end - start, self.max_width)
            num_words = int(predicted[single].sum())
        indices, classes = zip(*found, strict=True) if found else ((), ())
        return {
            "indices": indices,
            "classes": classes,
            "others": others,
            "num_words": [num_words],
            "width": [end - start],
        }

    def _known(self, spans: Sequence[Span]) -> list[tuple[Span, int]]:
        """Return spans of known types with their class; one label: the first of equal bounds."""
        known = [
            (s, self.first_class + self.labels.id(s.label)) for s in spans if s.label in self.labels
        ]
        if self.multi_label:
            return known
        return list({(s.start, s.end): (s, number) for s, number in reversed(known)}.values())

    def _too_wide(self, span: Span) -> bool:
        return self.max_width is not None and span.end - span.start > self.max_width

    def collate(self, rows: Mapping[str, Ragged]) -> np.ndarray:
        """Return the classes of all candidates [S], or 0 and 1 [S, C] with several labels.

        Candidates that another window predicts are ``IGNORED``.
        """
        widths = rows["width"].values.tolist()
        ends = np.cumsum([num_candidates(number, self.max_width) for number in widths])
        begins = np.concatenate(([0], ends[:-1]))
        shape = (ends[-1], len(self.labels)) if self.multi_label else (ends[-1],)
        target = np.zeros(shape, dtype=np.int64)
        gold, others = (
            rows[name].values.astype(np.int64) + np.repeat(begins, rows[name].counts)
            for name in ("indices", "others")
        )
        classes = rows["classes"].values.astype(np.int64)
        if self.multi_label:
            target[gold, classes] = 1
        else:
            target[gold] = classes
        target[others] = IGNORED
        return target

    def smoothed(self, rows: Mapping[str, Ragged], share: float, distance: int) -> SmoothedSpans:
        """Return the probabilities of boundary smoothing (Zhu & Li 2022, section 2.2).

        Each distance d from 1 to D, the sum of the differences of start and end, has the share
        ``share / D`` of a gold span, evenly over its 4d spans. Gold keeps the rest, and the part of
        spans that are no candidates. The parts that a span has of several gold spans, or as gold
        itself, add up; as in the published code, a sum over 1 is divided by itself. The rest of 1
        is the probability of no span. Candidates that another window predicts are left out.
        """
        moves = [
            (first, last, share / (4 * d * distance))
            for d in range(1, distance + 1)
            for first in range(-d, d + 1)
            for last in sorted({d - abs(first), abs(first) - d})
        ]
        steps, parts = np.array([m[:2] for m in moves]), np.array([m[2] for m in moves])  # [K]
        indices, classes, masses, begin = [], [], [], 0
        names = ("indices", "classes", "others", "width")
        for own, types, others, (width,) in zip(
            *(np.split(rows[n].values.astype(np.int64), rows[n].offsets[1:-1]) for n in names),
            strict=True,
        ):
            if len(own):
                spans = candidates(int(width), self.max_width)[own].astype(np.int64)  # [G, 2]
                near = spans[:, None] + steps  # [G, K, 2]
                start, end = near[..., 0], near[..., 1]
                legal = (start >= 0) & (end <= width) & (end > start)
                if self.max_width is not None:
                    legal &= end - start <= self.max_width
                found = candidate_index(start[legal], end[legal], int(width), self.max_width)
                index = np.concatenate([own, np.atleast_1d(found)])
                number = np.concatenate([types, np.repeat(types, legal.sum(1))])
                shares = np.broadcast_to(parts, legal.shape)
                mass = np.concatenate([1 - (legal * shares).sum(1), shares[legal]])
                predicted = ~np.isin(index, others)
                indices.append(index[predicted] + begin)
                classes.append(number[predicted])
                masses.append(mass[predicted])
            begin += num_candidates(int(width), self.max_width)
        return self._summed(indices, classes, masses)

    def _summed(
        self,
        indices: Sequence[np.ndarray],
        classes: Sequence[np.ndarray],
        masses: Sequence[np.ndarray],
    ) -> SmoothedSpans:
        """Add the parts of the same candidate and class, and bound the sums by 1."""
        if not indices:
            return SmoothedSpans(*(np.zeros(0, kind) for kind in (np.int64, np.int64, np.float32)))
        size = len(self.labels) + self.first_class
        keys, places = np.unique(
            np.concatenate(indices) * size + np.concatenate(classes), return_inverse=True
        )
        mass = np.bincount(places, np.concatenate(masses))
        index, number = keys // size, keys % size
        total = mass
        if not self.multi_label:  # the types of a candidate share its probability
            _, rows = np.unique(index, return_inverse=True)
            total = np.bincount(rows, mass)[rows]
        return SmoothedSpans(index, number, (mass / np.maximum(total, 1)).astype(np.float32))

    def unreachable_gold(
        self,
        gold: Sequence[Sequence[Span]],
        bounds: Sequence[Bounds],
        max_length: int,
        decoding: str,
    ) -> list[str]:
        """Return a note that counts the gold spans that no prediction can contain, by reason.

        ``gold`` and ``bounds`` are the gold spans and windows of each text.
        """
        total, numbers = 0, Counter[str]()
        for spans, windows in zip(gold, bounds, strict=True):
            unique = set(spans)
            narrow = {span for span in unique if not self._too_wide(span)}
            held = {s for s in narrow if any(a <= s.start and s.end <= b for a, b in windows)}
            single = held if self.multi_label else {(s.start, s.end): s for s in held}.values()
            kept = best_spans([(span, 0.9) for span in single], decoding, {})
            total += len(unique)
            for reason, before, after in (
                (f"wider than --max-width {self.max_width}", unique, narrow),
                (f"cut by a window of --max-length {max_length}", narrow, held),
                ("a second label of the same words (see --multi-label)", held, single),
                (f"in conflict with another under --decoding {decoding}", single, kept),
            ):
                numbers[reason] += len(before) - len(after)
        reasons = "; ".join(f"{number:,} {what}" for what, number in numbers.items() if number)
        fraction = f"{numbers.total():,} of {quantity(total, 'gold span')}"
        return [f"{fraction} out of reach, counted as missed: {reasons}"] if reasons else []
