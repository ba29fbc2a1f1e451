"""Gold and predictions in pairs, one for each example: the input of metrics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, permutations, repeat
from typing import Any

import numpy as np

from finetune.data.character_spans import words_to_chars
from finetune.data.tag_schemes import strict_spans, tags_to_spans
from finetune.evaluation.kinds import wording
from finetune.types import Relation, Span, TokenExample, UserError, did_you_mean, quantity

CharacterSpans = Sequence[tuple[set[Span], set[Span]]]


@dataclass(frozen=True)
class Pairs:
    """Gold and the predictions of one run, one pair for each example.

    ``kind`` is a key of ``metrics.METRICS``: "label" (a name), "labels" (a collection of names),
    "number", "choice" (the index of a choice), "tags" (a tag for each word, which spell spans),
    "plain tags" (which do not), "spans" (a collection of ``Span``), "relations" (a collection of
    ``Relation``), "subwords" (at masked positions, with ``losses``), "senses" (a collection of
    names for a target; predicting one gold sense is enough), or "answers" (gold answers to a
    question, of which one is enough and none means that there is none; predicted is a text, empty
    for no answer).
    ``names`` are the sorted labels, plain tags or span types of all compared runs,
    ``all_predicted`` their numbers. ``labels`` are the labels of the model, if known.
    ``confidences`` hold for each example the probability and correctness of each prediction.
    ``characters`` are the gold and predicted spans of each text in characters, for gold in
    characters. ``positive`` is the positive class of two labels. ``boundary_losses`` are losses of
    the span boundary objective, ``next_sentences`` gold and prediction of next sentence prediction,
    [0 or 1, 0 or 1] or empty.
    """

    kind: str
    gold: Sequence[Any]
    predicted: Sequence[Any]
    names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    schemes: tuple[str | None, str | None] = (None, None)
    all_predicted: Sequence[float] = ()
    confidences: Sequence[Sequence[tuple[float, bool]]] | None = None
    characters: CharacterSpans = ()
    positive: str | None = None
    losses: Sequence[Sequence[float]] = ()
    boundary_losses: Sequence[Sequence[float]] = ()
    next_sentences: Sequence[Sequence[bool]] = ()

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.gold)


NO_LABEL = ""
"""The prediction for a blank text: no gold label agrees with it, and it is no class."""


def pair(
    kind: str,
    gold: Sequence[Any],
    predicted: Sequence[Any],
    labels: Collection[str] = (),
    schemes: tuple[str | None, str | None] = (None, None),
    characters: CharacterSpans = (),
    positive: str | None = None,
) -> Pairs:
    """Return gold and predictions of one run as ``Pairs``; "tags" without scheme are plain.

    Raises:
        UserError: The numbers of examples or of words differ, or a number is not finite.
    """
    _check_lengths(kind, gold, predicted)
    if kind == "number":
        numbers = [np.array(side, dtype=np.float64) for side in (gold, predicted)]
        for name, side in zip(("gold", "predicted"), numbers, strict=True):
            for index in np.flatnonzero(~np.isfinite(side)):
                raise UserError(
                    f"{name} value {index} is {side[index]}: only finite numbers have a score"
                )
        gold, predicted = (side.tolist() for side in numbers)
        return Pairs(kind, gold, predicted, all_predicted=predicted)
    if kind in ("senses", "answers", "choice"):
        return Pairs(kind, gold, predicted)
    if kind == "label":
        names = {*gold, *predicted} - {NO_LABEL}
        if positive is None and len({*labels} or names) == 2:
            positive = positive_label({*labels} or names, Counter(gold))
    else:
        names = {item for side in (gold, predicted) for items in side for item in items}
    if kind == "tags" and schemes[0] is None:
        kind = "plain tags"
    elif kind == "tags":
        schemes = schemes[0], schemes[1] or schemes[0]
        names = {tag.partition("-")[2] for tag in names if tag != "O"}
    elif kind in ("spans", "relations"):
        names = {item.label for item in names}
    return Pairs(
        kind,
        gold,
        predicted,
        tuple(sorted({*labels, *names})),
        tuple(labels),
        schemes,
        characters=characters,
        positive=positive,
    )


def spans_in_characters(
    examples: Sequence[TokenExample],
    predicted: Iterable[Iterable[Span]],
    unreachable: Iterable[Iterable[Span]] = (),
) -> CharacterSpans:
    """Return the gold and predicted spans of each text in characters, nothing for gold in words.

    ``predicted`` are in words, ``unreachable`` in characters: spans that words cannot represent.
    """
    pairs = []
    others = chain(unreachable, repeat(()))
    for example, spans, more in zip(examples, predicted, others, strict=False):
        if example.offsets is None or example.spans is None:
            return ()
        gold = {*words_to_chars(example.offsets, example.spans), *example.unreachable}
        pairs.append((gold, {*words_to_chars(example.offsets, spans), *more}))
    return pairs


def _check_lengths(kind: str, gold: Sequence[Any], predicted: Sequence[Any]) -> None:
    unit = wording(kind).example
    if len(gold) != len(predicted):
        raise UserError(
            f"{len(gold)} gold and {quantity(len(predicted), f'predicted {unit}')}: every one "
            "needs exactly one prediction"
        )
    for index, tags in enumerate(zip(gold, predicted, strict=True) if kind == "tags" else ()):
        if len(tags[0]) != len(tags[1]):
            raise UserError(
                f"sentence {index} has {len(tags[0])} gold and "
                f"{quantity(len(tags[1]), 'predicted tag')}: every word needs exactly one "
                "prediction"
            )


Items = Sequence[Collection[str | Span | Relation]]


def items_of(pairs: Pairs, strict: bool = False) -> tuple[Items, Items, Items]:
    """Return the correct, predicted and gold labels, tags, spans or relations of each example."""
    gold, predicted = pairs.gold, pairs.predicted
    if pairs.kind == "label":
        correct = [(g,) if g == p else () for g, p in zip(gold, predicted, strict=True)]
        return correct, [() if p == NO_LABEL else (p,) for p in predicted], list(zip(gold))
    if pairs.kind == "plain tags":
        sentences = zip(gold, predicted, strict=True)
        return (
            [[g for g, p in zip(*tags, strict=True) if g == p] for tags in sentences],
            predicted,
            gold,
        )
    sets = sets_of(pairs, strict)
    return [g & p for g, p in sets], [p for _, p in sets], [g for g, _ in sets]


def name_of(item: str | Span | Relation) -> str:
    """Return the label, the tag, or the type of a span or relation."""
    return item if isinstance(item, str) else item.label


def sets_of(pairs: Pairs, strict: bool = False) -> list[tuple[set[Any], set[Any]]]:
    """Return the gold and the predicted spans, relations, or sets of labels, of each example.

    Tags are read tolerantly, as the script conlleval does, or strictly (``data.tag_schemes``).
    """
    sentences = zip(pairs.gold, pairs.predicted, strict=True)
    if pairs.kind in ("spans", "relations", "labels"):
        return [(set(g), set(p)) for g, p in sentences]
    read = strict_spans if strict else tags_to_spans
    source, target = map(str, pairs.schemes)
    return [(set(read(g, source)), set(read(p, target))) for g, p in sentences]


OPPOSITES = frozenset(
    {
        ("yes", "no"),
        ("y", "n"),
        ("true", "false"),
        ("t", "f"),
        ("positive", "negative"),
        ("pos", "neg"),
        ("1", "0"),
        ("label_1", "label_0"),
        ("1", "-1"),
        ("+1", "-1"),
        ("+", "-"),
    }
)
"""Pairs of labels of which the first is positive, in lower case."""


def positive_label(
    labels: Collection[str], counts: Mapping[str, int], given: str | None = None
) -> str:
    """Return the positive class of two labels: the given one, else by name, else the rarer.

    ``counts`` counts the gold labels. If both labels are equally frequent, the alphabetically last
    one is positive.

    >>> positive_label(["spam", "ham"], {"spam": 20, "ham": 80})
    'spam'

    Raises:
        UserError: There are not two labels, or the given one is not among them.
    """
    names = sorted(set(labels))
    if given is not None and given not in names:
        listed = " and ".join(map(repr, names))
        raise UserError(f"--positive {given}: the labels are {listed}.{did_you_mean(given, names)}")
    if len(names) != 2:
        raise UserError(f"a positive class is one of two labels, not of {len(names)}.")
    rarest = min(reversed(names), key=lambda name: counts.get(name, 0))
    return given or named_positive(names) or rarest


def metric_title(name: str, positive: str | None) -> str:
    """Return the name of a metric; ``f1`` of two labels with its class.

    >>> metric_title("f1", "spam")
    'f1 (spam)'
    """
    return f"{name} ({positive})" if name == "f1" and positive is not None else name


def named_positive(labels: Collection[str]) -> str | None:
    """Return the positive class of two labels if their names tell it.

    Of X and its negation (not_X, non-X, unX, no X) it is X: ``equivalent`` of MRPC and
    ``duplicate`` of QQP, as GLUE computes F1 (Wang et al. 2018). Of ``OPPOSITES`` it is the first.

    >>> named_positive(["not_equivalent", "equivalent"])
    'equivalent'
    """
    for label, other in permutations(labels):
        name, negated = label.strip().casefold(), other.strip().casefold()
        negation = rf"(not|non|un|no)[-_ ]*{re.escape(name)}"
        if (name, negated) in OPPOSITES or (name and re.fullmatch(negation, negated)):
            return label
    return None
