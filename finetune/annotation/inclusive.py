"""Read rows whose spans have inclusive ends: DyGIE++ and PURE, GLiNER.

DyGIE++ and PURE count the words of a document, GLiNER the words of a sentence:

{"doc_key": …, "sentences": [["A", "dog"], …], "ner": [[[1, 1, "Animal"]], …],
 "relations": [[[1, 1, 4, 4, "eats"]], …]}
{"tokenized_text": ["A", "dog"], "ner": [[1, 1, "animal"]]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune.data.files import Row
from finetune.types import DataError, quantity


def sentence_rows(row: Mapping[str, Any], where: str) -> Iterator[Row]:
    """Yield a row for each sentence of a document of DyGIE++.

    Raises:
        DataError: The lists of spans or relations do not fit the sentences, or a relation names
            words that are no span, or are spans of several types.
    """
    number = len(row["sentences"])
    for name in {"ner", "relations"} & row.keys():
        if len(row[name]) != number:
            problem = f"`{name}` has {quantity(len(row[name]), 'list')}"
            raise DataError(f"{where}: {problem} for {quantity(number, 'sentence')}.")
    first = 0
    for number, words in enumerate(row["sentences"]):
        location = f"{where}, sentence {number + 1}"
        values: dict[str, Any] = {"tokens": words, "document": row["doc_key"]}
        if "ner" in row:
            spans = [item[:3] for item in row["ner"][number]]  # a score may follow
            values["spans"] = [
                [_position(s) - first, _position(e) + 1 - first, label] for s, e, label in spans
            ]
            if row.get("relations") is not None:
                ends = [(start, end) for start, end, _ in spans]
                values["relations"] = _relations(row["relations"][number], ends, location)
        first += len(words)
        yield Row(values, location)


def _position(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.40} is no number of a word")
    return value


def _relations(
    items: Sequence[Sequence[Any]], spans: Sequence[tuple[int, int]], where: str
) -> list[dict[str, Any]]:
    relations = []
    for start, end, other_start, other_end, label, *_ in items:
        ends = (_position(start), _position(end)), (_position(other_start), _position(other_end))
        if problems := [pair for pair in ends if spans.count(pair) != 1]:
            raise DataError(
                f"{where}: relation {label!r:.40} names words {problems[0][0]} to {problems[0][1]} "
                "of the document, which are no span in `ner`, or spans of several types: correct "
                "the spans or the relation."
            )
        subject, object = map(spans.index, ends)
        relations.append({"subject": subject, "object": object, "label": label})
    return relations


def gliner_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of GLiNER."""
    values = {key: row[key] for key in row if key not in ("tokenized_text", "ner")}
    values["tokens"] = row["tokenized_text"]
    if "ner" in row:
        values["spans"] = [
            [_position(start), _position(end) + 1, label] for start, end, label in row["ner"]
        ]
    return values
