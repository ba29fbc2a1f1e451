"""Scores of subgroups of a data set: by length, depth, position, and occurrence in training data.

A grouping assigns every span or word to one subgroup. The subgroups do not overlap, so their counts
sum to the counts of the whole data set.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from finetune.data.collecting import each_chunk
from finetune.data.dataset import UNANSWERABLE
from finetune.data.example_store import columns
from finetune.data.json_files import read_object
from finetune.data.tag_schemes import spell_spans, tags_to_spans
from finetune.data.tokens import tags_and_scheme
from finetune.evaluation.metrics import subgroup_f1
from finetune.runtime.files import replace_file
from finetune.types import Example, SenseTarget, Span, TextExample, TokenExample

Table = list[dict[str, Any]]
"""Rows with the same columns; the first column names the row."""
Spans = Sequence[Collection[Span]]  # of each sentence
Words = Sequence[Sequence[str]]  # of each sentence, or their tags, or their subgroups
SpanGrouping = Callable[[int, Collection[Span]], Mapping[Span, str]]
"""Maps the index of a sentence and its gold or its predicted spans to their subgroups."""
Vocabulary = Mapping[str, Collection[str]]
"""The types of each surface form, or the tags of each word, in training data."""
FormSets = dict[str, frozenset[str]]
"""Such a vocabulary as it is made: millions of forms share a few sets."""

# The first value of each subgroup: lengths are in words, the first word of a sentence is at 1.
SPAN_LENGTHS = (1, 2, 3, 4, 5)
SENTENCE_LENGTHS = (1, 11, 21, 41, 81, 161)
TEXT_LENGTHS = (1, 11, 26, 51, 101, 201)
ANSWER_LENGTHS = (1, 2, 3, 4, 6, 11)
QUESTION_WORDS = ("what", "who", "whom", "whose", "when", "where", "which", "why", "how")
OTHER_QUESTIONS = "other"
POSITIONS = (1, 2, 11, 51, 101, 201)
SUBWORD_COUNTS = (0, 1, 10, 100, 1000, 10_000)
DEPTHS = ("outermost", "within 1", "within 2", "within 3+")
SEEN_ENTITIES = ("seen", "seen as another type", "unseen")
SEEN_WORDS = ("seen with one tag", "seen with several tags", "unseen")
VOCABULARY_FILE = "training_vocabulary.json"


@dataclass(frozen=True)
class TrainingVocabulary:
    """The types of each entity's surface form in training data, or the tags of each word.

    A word has tags where tags do not spell entities.
    """

    entity_types: Vocabulary
    word_tags: Vocabulary

    @classmethod
    def of(cls, examples: Sequence[Example | SenseTarget]) -> TrainingVocabulary:
        """Collect the vocabulary of training examples; of texts it is empty."""
        if not examples or not isinstance(examples[0], TokenExample):
            return cls({}, {})
        sentences = cast("Sequence[TokenExample]", examples)
        all_tags, lack_spans = set[str](), False

        def forms() -> Iterator[FormSets]:
            nonlocal lack_spans
            for tags, lacking, more in each_chunk(sentences, _forms_of_spans):
                all_tags.update(tags)
                lack_spans |= lacking
                yield more

        entity_types, word_tags = _joined(forms()), dict[str, frozenset[str]]()
        if all_tags and not spell_spans(all_tags):
            word_tags = _joined(each_chunk(sentences, _tags_of_words))
        elif all_tags and lack_spans:
            _, scheme = tags_and_scheme(sentences)
            found = each_chunk(sentences, partial(_forms_of_spans, scheme=scheme))
            entity_types = _joined(more for *_, more in found)
        return cls(entity_types, word_tags)

    @classmethod
    def load(cls, folder: Path) -> TrainingVocabulary | None:
        """Read the vocabulary of a run from its folder; None if there is no vocabulary."""
        path = folder / VOCABULARY_FILE
        if not path.is_file():
            return None
        table = dict[str, list[str]]
        content = read_object(path, {"entity_types": table, "word_tags": table})
        return cls(content["entity_types"], content["word_tags"])

    def save(self, folder: Path) -> None:
        """Write the file that ``load`` reads, form by form: there may be millions."""
        with replace_file(folder / VOCABULARY_FILE) as file:
            file.writelines(self._json())

    def _json(self) -> Iterator[str]:
        before_table = "{"
        written = cache(lambda kinds: _encode(sorted(kinds)))  # forms share a few sets
        for name, table in vars(self).items():
            yield f'{before_table}"{name}": {{'
            before_table, before = ", ", ""
            for form, kinds in table.items():
                yield f"{before}{_encode(form)}: {written(frozenset(kinds))}"
                before = ", "
            yield "}"
        yield "}\n"


_encode = json.JSONEncoder(ensure_ascii=False).encode


def _forms_of_spans(
    examples: Sequence[TokenExample], scheme: str | None = None
) -> tuple[set[str], bool, FormSets]:
    """Return the tags, whether a sentence has tags and no spans, and the types of surface forms.

    With a ``scheme``, the spans of such a sentence are those that its tags spell.
    """
    all_tags, lack_spans, types = set[str](), False, defaultdict[str, set[str]](set)
    for words, spans, tags in columns(examples, ("words", "spans", "tags")):
        all_tags.update(tags or ())
        if spans is None and tags:
            lack_spans = True
            spans = tags_to_spans(tags, scheme) if scheme else None
        for span in spans or ():
            types[surface(words, span)].add(span.label)
    return all_tags, lack_spans, _frozen(types)


def _tags_of_words(examples: Sequence[TokenExample]) -> FormSets:
    found = defaultdict[str, set[str]](set)
    for words, tags in columns(examples, ("words", "tags")):
        for word, tag in zip(words, tags or (), strict=bool(tags)):
            found[word].add(tag)
    return _frozen(found)


def _joined(parts: Iterable[FormSets]) -> FormSets:
    """Return the union of the sets of each form."""
    table, known = FormSets(), dict[frozenset[str], frozenset[str]]()
    for part in parts:
        for form, kinds in part.items():
            kinds |= table.get(form, kinds)
            table[form] = known.setdefault(kinds, kinds)
    return table


def _frozen(table: Mapping[str, set[str]]) -> FormSets:
    known = dict[frozenset[str], frozenset[str]]()
    sets = map(frozenset, table.values())
    return {form: known.setdefault(own, own) for form, own in zip(table, sets, strict=True)}


def span_subgroups(
    words: Words, gold: Spans, predicted: Spans, entity_types: Vocabulary | None = None
) -> dict[str, Table]:
    """Score spans in each subgroup of ``span_groupings``; by depth only if spans nest.

    ``found`` counts the gold spans that were predicted, ``correct`` the predicted spans that are in
    gold. They differ if the subgroup of a span depends on the spans around it (depth).
    """
    tables = {}
    for name, (grouping, order) in span_groupings(words, entity_types).items():
        counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for index, sides in enumerate(zip(gold, predicted, strict=True)):
            for group, more in span_counts(index, *sides, grouping).items():
                counts[group] = [a + b for a, b in zip(counts[group], more, strict=True)]
        tables[name] = [
            {name: group} | span_subgroup_row(*counts[group]) for group in order if group in counts
        ]
    if len(tables["depth"]) < 2:
        del tables["depth"]
    return tables


def span_subgroup_row(gold: int, found: int, predicted: int, correct: int) -> dict[str, float]:
    """Return the scores of a subgroup of spans with their counts."""
    return {
        "precision": correct / max(1, predicted),
        "recall": found / max(1, gold),
        "f1": float(subgroup_f1(np.array([gold, found, predicted, correct]))),
        "gold": gold,
        "found": found,
        "predicted": predicted,
        "correct": correct,
    }


def span_counts(
    index: int, gold: Collection[Span], predicted: Collection[Span], grouping: SpanGrouping
) -> dict[str, list[int]]:
    """Return the four counts of each subgroup in sentence ``index``; repeated spans count once."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    sides = set(gold), set(predicted)
    for first, (side, other) in ((0, sides), (2, sides[::-1])):
        for span, name in grouping(index, side).items():
            counts[name][first] += 1
            counts[name][first + 1] += span in other
    return dict(counts)


def span_groupings(
    words: Words, entity_types: Vocabulary | None = None
) -> dict[str, tuple[SpanGrouping, Sequence[str]]]:
    """Return the groupings of spans by name, each with its subgroups in order."""

    def by(name: Callable[[int, Span], str]) -> SpanGrouping:
        return lambda index, spans: {span: name(index, span) for span in spans}

    def by_bucket(value: Callable[[int, Span], int], starts: Sequence[int]) -> Any:
        return by(lambda index, span: bucket(value(index, span), starts)), buckets(starts)

    groupings: dict[str, tuple[SpanGrouping, Sequence[str]]] = {
        "length": by_bucket(lambda _, span: span.end - span.start, SPAN_LENGTHS),
        "depth": (
            lambda _, spans: {each: DEPTHS[min(n, 3)] for each, n in depths(spans).items()},
            DEPTHS,
        ),
        "sentence length": by_bucket(lambda index, _: len(words[index]), SENTENCE_LENGTHS),
        "first word": by_bucket(lambda _, span: span.start + 1, POSITIONS),
    }
    if entity_types is not None:

        def occurrence(index: int, span: Span) -> str:
            types = entity_types.get(surface(words[index], span), ())
            return SEEN_ENTITIES[0 if span.label in types else 1 if types else 2]

        groupings["in training"] = (by(occurrence), SEEN_ENTITIES)
    return groupings


def depths(spans: Iterable[Span]) -> dict[Span, int]:
    """Return the number of spans around each span, each within the next wider one; 0: outermost.

    Spans with the same start and end count once.
    """
    found: dict[Span, int] = {}
    open_spans: list[Span] = []
    for span in sorted(set(spans), key=lambda span: (span.start, -span.end)):
        open_spans = [outer for outer in open_spans if outer.end > span.start]
        around = [
            found[outer] for outer in open_spans if outer.end >= span.end and outer[:2] != span[:2]
        ]
        found[span] = max(around, default=-1) + 1
        open_spans.append(span)
    return found


def surface(words: Sequence[str], span: Span) -> str:
    """Return the words of a span as one text."""
    return " ".join(words[span.start : span.end])


def count_subgroups(
    groupings: Mapping[str, tuple[Words, Sequence[str]]], right: Sequence[bool], unit: str
) -> dict[str, Table]:
    """Count the ``right`` predictions in each subgroup of words or texts (``unit``) that occurs."""
    tables = {}
    for name, (groups, order) in groupings.items():
        number, correct = Counter[str](), Counter[str]()
        for group, is_right in zip(chain.from_iterable(groups), right, strict=True):
            number[group] += 1
            correct[group] += is_right
        tables[name] = [
            {
                name: each,
                unit: number[each],
                "correct": correct[each],
                "accuracy": correct[each] / number[each],
            }
            for each in order
            if number[each]
        ]
    return tables


def word_groupings(
    words: Words, word_tags: Vocabulary | None = None
) -> dict[str, tuple[Words, Sequence[str]]]:
    """Return the groupings of words by name: the subgroup of each word, and all in order."""
    groupings: dict[str, tuple[Words, Sequence[str]]] = {
        "sentence length": (
            [[bucket(len(sentence), SENTENCE_LENGTHS)] * len(sentence) for sentence in words],
            buckets(SENTENCE_LENGTHS),
        ),
        "position": (
            [[bucket(index + 1, POSITIONS) for index in range(len(each))] for each in words],
            buckets(POSITIONS),
        ),
    }
    if word_tags is not None:
        numbers = [[len(word_tags.get(word, ())) for word in sentence] for sentence in words]
        names = [[SEEN_WORDS[(2, 0, 1)[min(n, 2)]] for n in sentence] for sentence in numbers]
        groupings["in training"] = (names, SEEN_WORDS)
    return groupings


def subword_groupings(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Words, Sequence[str]]]:
    """Return the groupings of masked subwords, from the lines of a prediction file."""
    read_as = [row.get("read_as", ()) for row in rows]
    groupings: dict[str, tuple[Words, Sequence[str]]] = {}
    if all(map(len, read_as)):
        groupings["read as"] = read_as, ("masked", "random", "kept")
    counts = [row.get("counts", ()) for row in rows]
    if all(map(len, counts)):
        names = [[bucket(number, SUBWORD_COUNTS) for number in each] for each in counts]
        groupings["in training text"] = names, buckets(SUBWORD_COUNTS)
    return groupings


def text_groupings(examples: Iterable[Example]) -> dict[str, tuple[Words, Sequence[str]]]:
    """Return the grouping of texts, or of pairs of texts, by length, as ``word_groupings`` does."""
    lengths = [[bucket(num_words(example), TEXT_LENGTHS)] for example in examples]
    return {"text length": (lengths, buckets(TEXT_LENGTHS))}


def question_groupings(
    examples: Iterable[TextExample],
) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """Return the groupings of questions: their subgroups, and the names in order.

    They are by the first English question word, by the length of the first gold answer, and by the
    length of question and context.
    """
    words, answers, lengths = [], [], []
    for example in examples:
        found = (
            word for word in re.findall(r"\w+", example.text.lower()) if word in QUESTION_WORDS
        )
        words.append(next(found, OTHER_QUESTIONS))
        gold = example.answers or ()
        size = len(gold[0].text.split()) if gold else 0
        answers.append(bucket(size, ANSWER_LENGTHS) if gold else UNANSWERABLE)
        lengths.append(bucket(num_words(example), TEXT_LENGTHS))
    groupings: dict[str, tuple[Sequence[str], Sequence[str]]] = {
        "answer length": (answers, [UNANSWERABLE, *buckets(ANSWER_LENGTHS)]),
        "text length": (lengths, buckets(TEXT_LENGTHS)),
    }
    if {*words} != {OTHER_QUESTIONS}:
        groupings["question word"] = words, (*QUESTION_WORDS, OTHER_QUESTIONS)
    return groupings


def choice_groupings(examples: Sequence[Any]) -> dict[str, tuple[Words, Sequence[str]]]:
    """Return the groupings of questions of multiple choice.

    They are grouped by length, by the number of choices, and by the index of the right choice.
    """
    numbers = [len(example.choices) for example in examples]
    indices = [example.label for example in examples]
    return {
        **text_groupings(examples),
        "number of choices": ([[str(n)] for n in numbers], [str(n) for n in sorted({*numbers})]),
        "right choice": ([[str(n)] for n in indices], [str(n) for n in sorted({*indices})]),
    }


def target_groupings(targets: Iterable[SenseTarget]) -> dict[str, tuple[Sequence[str], list[str]]]:
    """Return the grouping of targets by part of speech: their subgroups, and the names in order."""
    names = [target.pos for target in targets]
    return {"pos": (names, sorted({*names} - {""}))}


def num_words(example: Example) -> int:
    """Return the length of a sentence, a text or both texts of a pair in words."""
    if isinstance(example, TextExample):
        return len(example.text.split()) + len((example.pair or "").split())
    return len(example.words)


def bucket(value: int, starts: Sequence[int]) -> str:
    """Return the subgroup of a number, where subgroups begin at ``starts``.

    >>> bucket(7, (1, 2, 11))
    '2-10'
    """
    return buckets(starts)[max(0, bisect_right(starts, value) - 1)]


def buckets(starts: Sequence[int]) -> list[str]:
    """Return the names of the subgroups of ``bucket`` in order: ``1``, ``2-10``, ``11+``."""
    ranges = [(start, after - 1) for start, after in pairwise(starts)]
    closed = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return [*closed, f"{starts[-1]}+"]
