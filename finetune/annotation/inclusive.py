"""Read rows whose spans have inclusive ends: DyGIE++ and PURE, GLiNER.

DyGIE++ and PURE count the words of a document, GLiNER the words of a sentence:

{"doc_key": …, "sentences": [["A", "dog"], …], "ner": [[[1, 1, "Animal"]], …],
 "relations": [[[1, 1, 4, 4, "eats"]], …]}
{"tokenized_text": ["A", "dog"], "ner": [[1, 1, "animal"]]}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune.data.dataset import DataError
from finetune.data.files import Row
from finetune.types import quantity


def sentence_rows(row: Mapping[str, Any], where: str) -> Iterator[Row]:
    """Yield a row for each sentence of a document of DyGIE++.

    Raises:
        DataError: The lists of spans or relations do not fit the sentences, or a relation names
            words that are no span, or are spans of several types.
    """
    sentences = row["sentences"]
    for name in ("ner", "relations"):
        if name in row and (not isinstance(row[name], list) or len(row[name]) != len(sentences)):
            lists = quantity(len(row[name]), "list") if isinstance(row[name], list) else "no list"
            raise DataError(
                f"{where}: `{name}` has {lists} for {quantity(len(sentences), 'sentence')}: "
                "write one list for each sentence."
            )
    first = 0
    for number, words in enumerate(sentences):
        location = f"{where}, sentence {number + 1}"
        if not isinstance(words, list):
            raise DataError(f"{location}: {words!r:.60} is not a list of words.")
        values: dict[str, Any] = {"tokens": words, "document": row["doc_key"]}
        if "ner" in row:
            spans = [_numbers(item, 2, location) for item in row["ner"][number]]
            values["spans"] = [[s - first, e + 1 - first, label] for (s, e), label in spans]
            if row.get("relations") is not None:
                pairs = [_numbers(item, 4, location) for item in row["relations"][number]]
                values["relations"] = _relations(pairs, [words for words, _ in spans], location)
        first += len(words)
        yield Row(values, location)


def _numbers(item: Any, count: int, where: str) -> tuple[tuple[int, ...], str]:
    if (
        isinstance(item, list)
        and len(item) > count
        and all(type(number) is int for number in item[:count])
        and isinstance(item[count], str)
    ):
        return tuple(item[:count]), item[count]
    legal = "[first word, last word, label]" if count == 2 else "two pairs of words with a label"
    raise DataError(f"{where}: {item!r:.60} must be as in DyGIE++, {legal}.")


def _relations(
    pairs: Sequence[tuple[tuple[int, ...], str]], spans: Sequence[tuple[int, ...]], where: str
) -> list[dict[str, Any]]:
    relations = []
    types = Counter(spans)
    for numbers, label in pairs:
        ends = numbers[:2], numbers[2:]
        for start, end in ends:
            if types[start, end] != 1:
                problem = "are spans of several types" if types[start, end] else "are no span"
                raise DataError(
                    f"{where}: relation {label!r:.40} names words {start} to {end} of the "
                    f"document, which {problem} in `ner`: correct the spans or the relation."
                )
        subject, object = map(spans.index, ends)
        relations.append({"subject": subject, "object": object, "label": label})
    return relations


def gliner_row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Convert a row of GLiNER."""
    values = {key: row[key] for key in row if key not in ("tokenized_text", "ner")}
    values["tokens"] = row["tokenized_text"]
    if "ner" in row:
        try:
            values["spans"] = [[start, end + 1, label] for start, end, label in row["ner"]]
        except (TypeError, ValueError):
            legal = "a list of [first word, last word, label]"
            raise DataError(f"{where}: `ner` must be as in GLiNER, {legal}.") from None
    return values
