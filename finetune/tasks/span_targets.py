"""Gold spans as classes of candidate spans, and the count of gold that cannot be predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from finetune.preprocessing.encodings import Ragged
from finetune.preprocessing.span_candidates import (
    candidate_index,
    num_candidates,
    predicted_candidates,
)
from finetune.tasks.span_decoding import best_spans
from finetune.types import IGNORED, LabelSet, Span, quantity

Bounds = Sequence[tuple[int, int]]
"""The words (start, end) of each window of a text."""


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
