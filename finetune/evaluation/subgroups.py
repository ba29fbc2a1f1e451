"""Scores of the parts of a data set: by length, depth, familiarity and place of what is scored.

A grouping names the group of every span or word. The groups share nothing and leave nothing out, so
their counts add up to those of the whole.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

from finetune.data.tag_schemes import detect_scheme, tags_to_spans
from finetune.types import Example, Span, TokenExample

Spans = Sequence[Collection[Span]]
"""The spans of each sentence."""
Words = Sequence[Sequence[str]]
"""The words of each sentence."""
Naming = Callable[[int, Collection[Span]], Mapping[Span, str]]
"""From the number of a sentence and the spans of one side (gold or predicted) to their groups."""

LENGTHS = (1, 2, 3, 4, 5)
"""Where groups of entity lengths begin, in words."""
SENTENCE_LENGTHS = (1, 11, 21, 41, 81, 161)
"""Where groups of sentence lengths begin, in words."""
PLACES = (1, 2, 11, 51, 101, 201)
"""Where groups of places begin; the first word of a sentence is at 1."""
FAMILIAR = ("seen", "seen as another type", "unseen")
KNOWN = ("seen with one tag", "seen with several tags", "unseen")
VOCABULARY_FILE = "training_vocabulary.json"
"""The file in a run folder with the ``TrainingVocabulary`` of the run."""


@dataclass(frozen=True)
class TrainingVocabulary:
    """The entities or the words of training data, to score seen and unseen ones apart.

    Attributes:
        entity_types: The types that each surface form has in the training data.
        word_tags: The tags that each word has, where tags do not spell entities.
    """

    entity_types: Mapping[str, Collection[str]]
    word_tags: Mapping[str, Collection[str]]

    @classmethod
    def of(cls, examples: Iterable[Example]) -> TrainingVocabulary:
        """Collect the vocabulary of training examples; of texts it is empty."""
        sentences = [example for example in examples if isinstance(example, TokenExample)]
        scheme = detect_scheme(sentence.tags or () for sentence in sentences)
        entity_types: defaultdict[str, set[str]] = defaultdict(set)
        word_tags: defaultdict[str, set[str]] = defaultdict(set)
        for sentence in sentences:
            spans, tags = sentence.spans, sentence.tags or ()
            if spans is None:
                spans = tags_to_spans(tags, scheme) if scheme else ()
            for span in spans:
                entity_types[surface(sentence.words, span)].add(span.label)
            if tags and scheme is None:
                for word, tag in zip(sentence.words, tags, strict=True):
                    word_tags[word].add(tag)
        return cls(dict(entity_types), dict(word_tags))

    @classmethod
    def load(cls, folder: Path) -> TrainingVocabulary | None:
        """Read the vocabulary of a run from its folder; None where it has none."""
        path = folder / VOCABULARY_FILE
        if not path.is_file():
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(content["entity_types"], content["word_tags"])

    def to_json(self) -> str:
        """Return the content of the file that ``load`` reads."""
        content = {
            "entity_types": {form: sorted(types) for form, types in self.entity_types.items()},
            "word_tags": {word: sorted(tags) for word, tags in self.word_tags.items()},
        }
        return json.dumps(content, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class SpanPart:
    """The spans of one group: those in gold and how many of them were found, those predicted and
    how many of them are right.

    ``found`` and ``right`` differ only where the group of a span depends on the spans around it
    (depth), which gold and prediction may have differently.
    """

    name: str
    gold: int
    found: int
    predicted: int
    right: int

    @property
    def precision(self) -> float:
        """Share of the predicted spans that are right."""
        return _ratio(self.right, self.predicted)

    @property
    def recall(self) -> float:
        """Share of the gold spans that were found."""
        return _ratio(self.found, self.gold)

    @property
    def f1(self) -> float:
        """Harmonic mean of the two."""
        if self.found == self.right:
            return _ratio(2 * self.right, self.gold + self.predicted)
        return _ratio(2 * self.precision * self.recall, self.precision + self.recall)


@dataclass(frozen=True)
class Part:
    """The words or texts of one group, and how many of them were answered right."""

    name: str
    number: int
    right: int

    @property
    def accuracy(self) -> float:
        """Share that was answered right."""
        return _ratio(self.right, self.number)


def span_parts(
    gold: Spans, predicted: Spans, naming: Naming, order: Sequence[str]
) -> list[SpanPart]:
    """Scores of each group that occurs, in the given order; a repeated span counts once."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for index, sides in enumerate(zip(gold, predicted, strict=True)):
        for name, more in span_counts(index, *sides, naming).items():
            counts[name] = [sum(both) for both in zip(counts[name], more, strict=True)]
    return [SpanPart(name, *counts[name]) for name in order if name in counts]


def span_counts(
    index: int, gold: Collection[Span], predicted: Collection[Span], naming: Naming
) -> dict[str, list[int]]:
    """The counts of a ``SpanPart`` of each group that occurs in sentence ``index``."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    right, answers = set(gold), set(predicted)
    for place, (side, other) in enumerate(((right, answers), (answers, right))):
        for span, name in naming(index, side).items():
            counts[name][2 * place] += 1
            counts[name][2 * place + 1] += span in other
    return dict(counts)


def parts(names: Iterable[str], right: Iterable[bool], order: Sequence[str]) -> list[Part]:
    """Accuracy of each group that occurs, in the given order, from the group of each item."""
    number, correct = Counter[str](), Counter[str]()
    for name, is_right in zip(names, right, strict=True):
        number[name] += 1
        correct[name] += is_right
    return [Part(name, number[name], correct[name]) for name in order if name in number]


def bucket(value: int, starts: Sequence[int]) -> str:
    """The group of a number, groups beginning at ``starts``: ``1``, ``2-10``, ``11+``.

    >>> bucket(7, (1, 2, 11))
    '2-10'
    """
    return next(
        name
        for start, name in zip(reversed(starts), reversed(buckets(starts)), strict=True)
        if value >= start or start == starts[0]
    )


def buckets(starts: Sequence[int]) -> list[str]:
    """The names of the groups that ``bucket`` makes, in order."""
    closed = [
        str(start) if start + 1 == after else f"{start}-{after - 1}"
        for start, after in pairwise(starts)
    ]
    return [*closed, f"{starts[-1]}+"]


def depths(spans: Iterable[Span]) -> dict[Span, int]:
    """How many extents, each within the next wider one, lie around each span; 0 is outermost."""
    spans = sorted(set(spans), key=lambda span: (span.start, -span.end))
    found: dict[Span, int] = {}
    open_spans: list[Span] = []
    for span in spans:
        open_spans = [outer for outer in open_spans if outer.end > span.start]
        around = [
            found[outer] for outer in open_spans if outer.end >= span.end and outer[:2] != span[:2]
        ]
        found[span] = max(around, default=-1) + 1
        open_spans.append(span)
    return found


def span_breakdowns(
    words: Words, gold: Spans, predicted: Spans, train: Mapping[str, Collection[str]] | None = None
) -> dict[str, list[SpanPart]]:
    """Scores of the groups of each of the ``span_groupings``; depth only where spans nest."""
    groupings = span_groupings(words, train)
    found = {name: span_parts(gold, predicted, *how) for name, how in groupings.items()}
    if len(found["depth"]) < 2:
        del found["depth"]
    return found


def span_groupings(
    words: Words, train: Mapping[str, Collection[str]] | None = None
) -> dict[str, tuple[Naming, Sequence[str]]]:
    """Ways to group spans, with the groups in order: length, depth, sentence length and place.

    With ``train``, the types that each surface form has there (``surface_forms``), also by whether
    a span's words were an entity in training.
    """

    def by(name: Callable[[int, Span], str]) -> Naming:
        return lambda index, spans: {span: name(index, span) for span in spans}

    groupings: dict[str, tuple[Naming, Sequence[str]]] = {
        "length": (by(lambda _, s: bucket(s.end - s.start, LENGTHS)), buckets(LENGTHS)),
        "depth": (_by_depth, ("outermost", "within 1", "within 2", "within 3+")),
        "sentence length": (
            by(lambda index, _: bucket(len(words[index]), SENTENCE_LENGTHS)),
            buckets(SENTENCE_LENGTHS),
        ),
        "first word": (by(lambda _, s: bucket(s.start + 1, PLACES)), buckets(PLACES)),
    }
    if train is not None:
        known = train
        groupings["in training"] = (
            by(lambda index, s: familiarity(surface(words[index], s), s.label, known)),
            FAMILIAR,
        )
    return groupings


def _by_depth(index: int, spans: Collection[Span]) -> dict[Span, str]:
    return {
        span: "outermost" if depth == 0 else f"within {min(depth, 3)}{'+' * (depth > 2)}"
        for span, depth in depths(spans).items()
    }


def surface(words: Sequence[str], span: Span) -> str:
    """The words of a span as one text."""
    return " ".join(words[span.start : span.end])


def familiarity(form: str, label: str, train: Mapping[str, Collection[str]]) -> str:
    """Whether a surface form was an entity of this type in training, of another, or none."""
    types = train.get(form, ())
    return FAMILIAR[0] if label in types else FAMILIAR[1] if types else FAMILIAR[2]


def word_breakdowns(
    words: Words, gold: Words, predicted: Words, train: Mapping[str, Collection[str]] | None = None
) -> dict[str, list[Part]]:
    """Accuracy of tags in the groups of each of the ``word_groupings``."""
    right = [
        answer == tag
        for sides in zip(gold, predicted, strict=True)
        for tag, answer in zip(*sides, strict=True)
    ]
    return {
        name: parts(chain.from_iterable(groups), right, order)
        for name, (groups, order) in word_groupings(words, train).items()
    }


def word_groupings(
    words: Words, train: Mapping[str, Collection[str]] | None = None
) -> dict[str, tuple[Words, Sequence[str]]]:
    """Ways to group words: the group of each word of each sentence, and all groups in order.

    By sentence length and place, and with ``train``, the tags that words have there
    (``tags_of_words``), by whether the word is known from training.
    """
    groupings: dict[str, tuple[Words, Sequence[str]]] = {
        "sentence length": (
            [[bucket(len(sentence), SENTENCE_LENGTHS)] * len(sentence) for sentence in words],
            buckets(SENTENCE_LENGTHS),
        ),
        "place": (
            [[bucket(place + 1, PLACES) for place in range(len(sentence))] for sentence in words],
            buckets(PLACES),
        ),
    }
    if train is not None:
        names = [[_known(train.get(word, ())) for word in sentence] for sentence in words]
        groupings["in training"] = (names, KNOWN)
    return groupings


def _known(tags: Collection[str]) -> str:
    return KNOWN[2] if not tags else KNOWN[0] if len(tags) == 1 else KNOWN[1]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
