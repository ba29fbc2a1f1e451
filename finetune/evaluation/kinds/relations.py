"""Relations between spans: all that evaluation knows of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finetune.data.files import DataFile
from finetune.data.spans import chars_to_words, words_to_chars
from finetune.data.token_records import TokenRecord, read_relations
from finetune.data.tokens import read_gold
from finetune.evaluation.kinds.examples import OfSentences, check_words
from finetune.evaluation.kinds.kind import (
    Answer,
    Mistake,
    Scored,
    Wording,
    class_scores,
    decided_in,
    expected_calibration_error,
    known_or_nan,
    rates,
)
from finetune.evaluation.metrics import Metric, class_counts, f1, macro_f1
from finetune.evaluation.training_vocabulary import surface
from finetune.types import Relation, RelationPrediction, Span, TokenExample

if TYPE_CHECKING:
    from finetune.evaluation.predictions import GoldSource


def boundary_counts(scored: Scored) -> np.ndarray:
    """Return correct, predicted and gold relations without the types of their spans [N, 3]."""
    gold, predicted = (
        [{(*r.subject[:2], *r.object[:2], r.label) for r in relations} for relations in side]
        for side in (scored.gold, scored.predicted)
    )
    rows = [(len(g & p), len(p), len(g)) for g, p in zip(gold, predicted, strict=True)]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


class Relations(OfSentences):
    """Directed relations between spans; a repeated relation counts once.

    A relation is correct in ``relation_f1_strict`` if its label and both spans are, with their
    types ("Rel+" of Bekoulis et al. 2018), and in ``relation_f1`` if its label and the boundaries
    of both spans are. ``relation_f1_strict:LABEL`` is the F1 of a label, and ``relation_f1_macro``
    the mean over the labels that occur: the official score of SemEval-2010 task 8 if each sentence
    has one pair (Hendrickx et al. 2010).
    """

    name = key = "relations"
    wording = Wording("relations", "sentence", "predicted relations")
    metrics: ClassVar = {
        **rates("relation_{}_strict"),
        "relation_f1": Metric(boundary_counts, f1),
        "relation_f1_macro": Metric(class_counts, macro_f1, by_class=True),
        "ece": expected_calibration_error(),
    }
    default = "relation_f1_strict"
    named = (("relation_{}_strict", False),)
    classes = "relation"
    without_gold = "no `relations` to score against."
    nothing = "no relations at all"

    def gold(self, example: TokenExample) -> tuple[Relation, ...] | None:
        """Return the gold relations."""
        return example.relations

    def value(self, prediction: RelationPrediction) -> tuple[Relation, ...]:
        """Return the predicted relations."""
        return prediction.relations

    def read_gold(self, file: str | DataFile, source: GoldSource) -> list[TokenExample]:
        """Return the sentences of a file with their relations."""
        return read_gold(file, relations=True, **source.reading)

    def parse(
        self, row: Mapping[str, Any], where: str, example: TokenExample
    ) -> RelationPrediction:
        """Return predicted relations in words of the gold example.

        Gold may have more words, because words of a text are split where gold spans begin or end.
        """
        words = row.get("words", row.get("tokens"))
        texts = isinstance(words, list) and all(isinstance(word, str) for word in words)
        if not texts or "".join(words) != "".join(example.words):
            check_words(where, words, example)
        record, spans = TokenRecord(tuple(words), where), row.get("spans") or ()
        read_relations(row["relations"], where, spans, record)  # all of them, for its messages
        known = dict[Relation, float]()
        for each in row["relations"]:
            (relation,) = read_relations([each], where, spans, record)
            if words != [*example.words]:
                relation = _in_words_of_gold(relation, words, where, example)
            known[relation] = known_or_nan(each.get("score"))
        found = sorted(known)
        scores = tuple(known[relation] for relation in found)
        decided = decided_in(row)
        return RelationPrediction(
            example.id, example.words, (), tuple(found), scores, decided=decided
        )

    def rated(self, scored: Scored) -> list[list[Answer]]:
        """Return the predicted relations of each sentence."""
        found = []
        for gold, prediction in zip(scored.gold, scored.predictions, strict=False):
            scores = dict(zip(prediction.relations, prediction.scores, strict=True))
            found.append([Answer(p, each in gold, each.label) for each, p in scores.items()])
        return found

    def further_scores(self, scored: Scored) -> dict[str, float]:
        """Return the F1 of each label."""
        scores = class_scores(scored).items()
        return {f"relation_f1_strict:{name}": row["f1"] for name, row in scores}

    def mistakes(self, scored: Scored) -> Iterator[tuple[int, Mistake]]:
        """Yield every relation that was missed or is a false positive.

        The category tells if the other side has a relation that differs in the label, the direction
        or the type of a span only.
        """
        for number, (gold, predicted) in enumerate(scored.sides):
            known = _probabilities(scored.predictions[number])
            for own, other in ((gold, predicted), (predicted, gold)):
                near = {(*r.subject[:2], *r.object[:2]): r for r in other}
                for relation in sorted({*own} - {*other}):
                    category = "miss" if own is gold else "false positive"
                    one, two = relation.subject[:2], relation.object[:2]
                    same, turned = near.get((*one, *two)), near.get((*two, *one))
                    if same is not None and same.label == relation.label:
                        category = "type of a span"
                    elif same is not None:
                        pair = (relation, same) if own is gold else (same, relation)
                        category = f"{pair[0].label} taken for {pair[1].label}"
                    elif turned is not None and turned.label == relation.label:
                        category = "direction"
                    shown = _shown(scored.examples[number].words, relation)
                    right, found = (shown, None) if own is gold else (None, shown)
                    place = shown["start"], shown["end"]
                    yield number, Mistake(category, right, found, known.get(relation), place)

    def repeatable(self, prediction: RelationPrediction) -> Collection[Any] | None:
        """Return nothing: relations of all examples are never the same."""
        return None if prediction.relations else ()


def _in_words_of_gold(
    relation: Relation, words: Sequence[str], where: str, example: TokenExample
) -> Relation:
    own, gold = (
        list(pairwise(accumulate(map(len, side), initial=0))) for side in (words, example.words)
    )
    reached, unreachable = chars_to_words(gold, words_to_chars(own, relation[:2]))
    if unreachable:
        check_words(where, words, example)
    return Relation(reached[0], reached[1], relation.label)


def _probabilities(prediction: RelationPrediction) -> dict[Relation, float]:
    pairs = zip(prediction.relations, prediction.scores, strict=True)
    return {relation: score for relation, score in pairs if not math.isnan(score)}


def _shown(words: Sequence[str], relation: Relation) -> dict[str, Any]:
    start = min(relation.subject.start, relation.object.start)
    end = max(relation.subject.end, relation.object.end)
    names = [f"{surface(words, span)} ({span.label})" for span in relation[:2]]
    return Span(start, end, relation.label)._asdict() | {"text": " → ".join(names)}


RELATIONS = Relations()
