"""What the types of predictions of words share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finetune.data import DataError
from finetune.data.token_records import TokenRecord, read_relations, read_spans
from finetune.evaluation.items import check_names
from finetune.types import Span, TokenExample, quantity

# The first value of each subgroup: lengths are in words, the first word of a sentence is at 1.
SENTENCE_LENGTHS = (1, 11, 21, 41, 81, 161)
POSITIONS = (1, 2, 11, 51, 101, 201)


def sentence_of_row(index: int, where: str, row: Mapping[str, Any]) -> TokenExample:
    """Return the sentence of a row with its gold."""
    gold, words = row["gold"] or {}, row.get("words")
    if not isinstance(gold, Mapping) or not isinstance(words, list):
        raise DataError(
            f'{where}: next to `words`, `gold` must be an object such as {{"tags": ["B-PER", "O"]}}'
            f' or {{"spans": [[0, 2, "PER"]]}}, not {gold!r:.60}; or name a file with --gold FILE.'
        )
    tags, spans = gold.get("tags"), gold.get("spans")
    if tags is not None:
        check_names(where, "gold", tags, tags=True)
        if len(tags) != len(words):
            raise DataError(
                f"{where}: {quantity(len(tags), 'gold tag')} for {quantity(len(words), 'word')}."
            )
    offsets, relations = row.get("offsets"), gold.get("relations")
    if relations is not None:
        record = TokenRecord(tuple(words), where)
        relations = read_relations(relations, where, spans or (), record)
    return TokenExample(
        index,
        tuple(words),
        spans if spans is None else read_spans(spans, where, len(words)).spans,
        tags if tags is None else tuple(tags),
        row.get("document"),
        row.get("text"),
        offsets if offsets is None else tuple((start, end) for start, end in offsets),
        row.get("where", where),
        unreachable=tuple(Span(*span) for span in gold.get("unreachable", ())),
        key=row.get("id"),
        relations=relations,
    )


def check_words(where: str, words: Any, example: TokenExample) -> None:
    """Raise DataError if a prediction has other words than the gold example."""
    if not isinstance(words, list) or len(words) != len(example.words):
        found = quantity(len(words), "word") if isinstance(words, list) else f"{words!r:.60}"
        raise DataError(
            f"{where}: {found} for the {quantity(len(example.words), 'word')} of {example.where}: "
            "the files do not belong together."
        )
    for index, (word, gold) in enumerate(zip(words, example.words, strict=True)):
        if word != gold:
            raise DataError(
                f"{where}: word {index} is {word!r:.40}, but {gold!r:.40} in {example.where}: "
                "the files do not belong together."
            )


OF_WORDS: dict[str, Any] = {
    "gold_of_row": sentence_of_row,
    "asked": lambda example: example.words,
    "document": lambda example: example.document,
    "in_words": True,
}
"""What the types of predictions of words share."""
