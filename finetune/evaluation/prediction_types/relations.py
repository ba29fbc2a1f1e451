"""Directed relations between spans; a repeated relation counts once.

A relation is correct in ``relation_f1_strict`` if its label and both spans are, with their types
("Rel+" of Bekoulis et al. 2018), and in ``relation_f1`` if its label and the boundaries of both
spans are. ``relation_f1_strict:LABEL`` is the F1 of a label, and ``relation_f1_macro`` the mean
over the labels that occur: the official score of SemEval-2010 task 8 if each sentence has one pair
(Hendrickx et al. 2010).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any

import numpy as np

from finetune.data.spans import chars_to_words, words_to_chars
from finetune.data.token_rows import TokenRow, read_relations
from finetune.data.tokens import read_gold
from finetune.evaluation import metrics
from finetune.evaluation.metrics import ECE, Metric, item_names, probability, set_items
from finetune.evaluation.prediction_types.spans import (
    are_names,
    check_words,
    sentence_of_row,
    sides_in_words,
)
from finetune.evaluation.tables import Classes, PredictionType, Tables, Wording
from finetune.types import Relation, RelationPrediction, TokenExample


def _with_items(tables: Tables) -> Tables:
    scores_by_relation = [dict(zip(p.relations, p.scores, strict=True)) for p in tables.predictions]
    items = set_items(tables.gold, tables.predicted, scores_by_relation)
    # the other side may have a relation that differs in label, direction or type of a span only
    near = [
        [{(*r.subject[:2], *r.object[:2]): r for r in relations} for relations in side]
        for side in (tables.gold, tables.predicted)
    ]
    categories = []
    for index, right, answer in zip(items.example, items.gold, items.predicted, strict=True):
        relation, other = (answer, near[0]) if right is None else (right, near[1])
        one, two = relation.subject[:2], relation.object[:2]
        same, turned = other[index].get((*one, *two)), other[index].get((*two, *one))
        category = "false positive" if right is None else "miss"
        if same is not None and same.label == relation.label:
            category = "type of a span"
        elif same is not None:
            pair = (relation, same) if answer is None else (same, relation)
            category = f"{pair[0].label} taken for {pair[1].label}"
        elif turned is not None and turned.label == relation.label:
            category = "direction"
        categories.append(category)
    columns = {"category": np.array(categories, object)}
    items = replace(items, columns=columns)
    return replace(tables, items=items, names=item_names(items, tables.labels))


def _untyped_counts(tables: Tables) -> np.ndarray:
    def untyped(relations: Collection[Relation]) -> set[Any]:
        return {(*r.subject[:2], *r.object[:2], r.label) for r in relations}

    return metrics.set_counts(tables.gold, tables.predicted, untyped)


def _parse(row: Mapping[str, Any], where: str, example: TokenExample) -> RelationPrediction:
    # gold may have more words: those of a text are split where gold spans begin or end
    words = row.get("words", row.get("tokens"))
    if not are_names(words) or "".join(words) != "".join(example.words):
        check_words(where, words, example)
    sentence, spans = TokenRow(tuple(words), where), row.get("spans") or ()
    read_relations(row["relations"], where, spans, sentence)  # all of them, for its messages
    of_row, of_gold = (
        list(pairwise(accumulate(map(len, side), initial=0))) for side in (words, example.words)
    )
    score_of = dict[Relation, float]()
    for values in row["relations"]:
        (relation,) = read_relations([values], where, spans, sentence)
        if words != [*example.words]:
            reached, misaligned = chars_to_words(of_gold, words_to_chars(of_row, relation[:2]))
            if misaligned:
                check_words(where, words, example)
            relation = Relation(reached[0], reached[1], relation.label)
        score_of[relation] = probability(values.get("score"))
    relations = sorted(score_of)
    scores = tuple(score_of[relation] for relation in relations)
    return RelationPrediction(example.id, example.words, (), tuple(relations), scores)


RELATIONS = PredictionType(
    name="relations",
    wording=Wording(
        "relations", "sentence", "predicted relations", "no `relations` to score against."
    ),
    metrics={
        **metrics.rates("relation_{}_strict"),
        "relation_f1": Metric(_untyped_counts, metrics.f1),
        "relation_f1_macro": Metric(metrics.class_counts, metrics.macro_f1),
        **ECE,
    },
    default="relation_f1_strict",
    gold=attrgetter("relations"),
    answer=attrgetter("relations"),
    parse=_parse,
    tables=_with_items,
    read_gold=partial(read_gold, relations=True),
    gold_of_row=sentence_of_row,
    sides=sides_in_words,
    classes=Classes("relation", {"relation_{}_strict": metrics.item_counts}, scored=True),
    in_words=True,
)
