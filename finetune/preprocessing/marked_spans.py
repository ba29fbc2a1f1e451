"""Sequences of a sentence with markers around two of its spans.

The markers are punctuation and the name of the type, which most vocabularies have (typed entity
markers of Zhou & Chen 2022, "An Improved Baseline for Sentence-level Relation Extraction"):
``@ * person * Ana @ lives in # ^ city ^ Oslo #``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from finetune.preprocessing.subwords import Subwords
from finetune.types import Span, UserError

MARKS = "@*#^$&%+=~|/_<>!?;:"
"""Punctuation for markers: the first four that the tokenizer tells apart are used."""


class Markers:
    """The subwords of the markers of a tokenizer.

    Attributes:
        subject_id: The last subword of the mark before and after a subject, whose hidden state
            represents it.
    """

    def __init__(self, tokenizer: Subwords) -> None:
        self.tokenizer = tokenizer
        first_marks: dict[int, list[int]] = {}
        for mark in tokenizer.raw_word_subwords([list(MARKS)])[0]:
            if mark and mark[-1] != tokenizer.placeholder:
                first_marks.setdefault(mark[-1], mark)
        if len(first_marks) < 4:
            raise UserError(
                "the vocabulary of the model lacks punctuation to mark spans with (four of "
                f"{' '.join(MARKS)}): choose another model, or train a vocabulary on text with it."
            )
        (self.subject_id, subject), (_, of_type), (_, object), (_, of_other), *_ = (
            first_marks.items()
        )
        self._marks = ((subject, of_type), (object, of_other))
        self._types: dict[str, list[int]] = {}

    def start(self, role: int, label: str) -> tuple[list[int], int]:
        """The subwords before a span, and which of them represents it.

        ``role`` is 0 for a subject and 1 for an object.
        """
        if label not in self._types:
            name = label.replace("_", " ")
            words = (name.lower() if name.isupper() else name).split()
            pieces = self.tokenizer.word_subwords([words])[0]
            self._types[label] = [id for piece in pieces for id in piece]
        mark, of_type = self._marks[role]
        return [*mark, *of_type, *self._types[label], *of_type], len(mark) - 1

    def end(self, role: int) -> list[int]:
        """The subwords after a span."""
        return self._marks[role][0]

    def size(self, *labels: str) -> int:
        """The number of subwords of the markers of a subject and an object."""
        pairs = enumerate(labels)
        return sum(len(self.start(role, label)[0]) + len(self.end(role)) for role, label in pairs)


def mark_pair(
    words: Sequence[Sequence[int]], subject: Span, object: Span, markers: Markers, room: int
) -> tuple[list[int], list[int], int]:
    """Mark a pair in the subwords of a sentence, in at most ``room``.

    A sentence that is too long is cut to the words of the two spans and the words nearest to them.
    Spans may be nested or overlap.

    Returns:
        The subwords; the index of the subword that represents each span, in the order of the text;
        and the number of words left out.
    """
    spare = room - markers.size(subject.label, object.label)
    kept: Sequence[Sequence[int]] = words
    num_cut = 0
    if sum(map(len, words)) > spare:
        near = sorted(range(len(words)), key=lambda word: _distance(word, subject, object))
        sizes = accumulate(len(words[word]) for word in near)
        chosen = {word for word, size in zip(near, sizes, strict=True) if size <= spare}
        kept = [ids if word in chosen else () for word, ids in enumerate(words)]
        num_cut = len(words) - len(chosen)
    # At a word, spans end before others begin; wider spans begin first and end last.
    events: list[tuple[int, int, int, int, list[int], int | None]] = []
    for role, span in enumerate((subject, object)):
        ids, index = markers.start(role, span.label)
        events.append((span.start, 1, -span.end, role, ids, index))
        events.append((span.end, 0, -span.start, -role, markers.end(role), None))
    result: list[int] = []
    represents, begin = [], 0
    for position, _, _, _, ids, at in sorted(events):
        result += [id for word in kept[begin:position] for id in word]
        if at is not None:
            represents.append(len(result) + at)
        result += ids
        begin = position
    result += [id for word in kept[begin:] for id in word]
    return result, represents, num_cut


def _distance(word: int, subject: Span, object: Span) -> tuple[int, int]:
    sides = [
        (max(span.start - word, word - span.end + 1, 0), max(0, word - span.start))
        for span in (subject, object)
    ]
    return min(sides)
