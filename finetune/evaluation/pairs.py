"""Gold and predictions in pairs, one for each example: the input of metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np

from finetune.data.tag_schemes import strict_spans, tags_to_spans
from finetune.data.word_splitting import words_to_chars
from finetune.types import Span, TokenExample, UserError

CharacterSpans = Sequence[tuple[set[Span], set[Span]]]


@dataclass(frozen=True)
class Pairs:
    """Gold and the predictions of one run, one pair for each example.

    ``kind`` is a key of ``metrics.METRICS``: "label" (a name), "labels" (a collection of names),
    "number", "tags" (a tag for each word, which spell spans), "plain tags" (which do not), or
    "spans" (a collection of ``Span``). ``names`` are the sorted labels, plain tags or span types of
    all compared runs, ``all_predicted`` their numbers. ``labels`` are those of the model, if known.
    ``confidences`` hold for each example the probability and correctness of each prediction.
    ``characters`` are the gold and predicted spans of each text in characters, for gold in
    characters.
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

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.gold)


def pair(
    kind: str,
    gold: Sequence[Any],
    predicted: Sequence[Any],
    labels: Collection[str] = (),
    schemes: tuple[str | None, str | None] = (None, None),
    characters: CharacterSpans = (),
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
    if kind == "label":
        names = {*gold, *predicted}
    else:
        names = {item for side in (gold, predicted) for items in side for item in items}
    if kind == "tags" and schemes[0] is None:
        kind = "plain tags"
    elif kind == "tags":
        schemes = schemes[0], schemes[1] or schemes[0]
        names = {tag.partition("-")[2] for tag in names if tag != "O"}
    elif kind == "spans":
        names = {span.label for span in names}
    return Pairs(
        kind, gold, predicted, tuple(sorted({*labels, *names})), tuple(labels), schemes,
        characters=characters,
    )  # fmt: skip


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
    unit = "sentences" if kind in ("tags", "spans") else "examples"
    if len(gold) != len(predicted):
        raise UserError(
            f"{len(gold)} gold and {len(predicted)} predicted {unit}: every one needs exactly one "
            "prediction"
        )
    for index, tags in enumerate(zip(gold, predicted, strict=True) if kind == "tags" else ()):
        if len(tags[0]) != len(tags[1]):
            raise UserError(
                f"sentence {index} has {len(tags[0])} gold and {len(tags[1])} predicted tags: "
                "every word needs exactly one prediction"
            )


Items = Sequence[Collection[str | Span]]


def items_of(pairs: Pairs, strict: bool = False) -> tuple[Items, Items, Items]:
    """Return the correct, the predicted and the gold labels, tags or spans of each example."""
    gold, predicted = pairs.gold, pairs.predicted
    if pairs.kind == "label":
        correct = [(g,) if g == p else () for g, p in zip(gold, predicted, strict=True)]
        return correct, list(zip(predicted)), list(zip(gold))
    if pairs.kind == "plain tags":
        sentences = zip(gold, predicted, strict=True)
        return (
            [[g for g, p in zip(*tags, strict=True) if g == p] for tags in sentences],
            predicted,
            gold,
        )
    sets = sets_of(pairs, strict)
    return [g & p for g, p in sets], [p for _, p in sets], [g for g, _ in sets]


def name_of(item: str | Span) -> str:
    """Return the label, the tag, or the type of a span."""
    return item if isinstance(item, str) else item.label


def sets_of(pairs: Pairs, strict: bool = False) -> list[tuple[set[Any], set[Any]]]:
    """Return the gold and the predicted spans, or sets of labels, of each example.

    Tags are read tolerantly, as the script conlleval does, or strictly (``data.tag_schemes``).
    """
    sentences = zip(pairs.gold, pairs.predicted, strict=True)
    if pairs.kind in ("spans", "labels"):
        return [(set(g), set(p)) for g, p in sentences]
    read = strict_spans if strict else tags_to_spans
    source, target = map(str, pairs.schemes)
    return [(set(read(g, source)), set(read(p, target))) for g, p in sentences]
