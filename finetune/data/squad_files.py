"""Files of SQuAD as rows: articles with paragraphs, whose questions have answers.

{"version": "1.1", "data": [{"title": …, "paragraphs": [{"context": …, "qas": [
    {"id": …, "question": …, "answers": [{"text": …, "answer_start": 0}]}]}]}]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from finetune.data.dataset import DataError
from finetune.data.files import Record


def is_squad(value: Any) -> bool:
    """Return whether a JSON value is a file of SQuAD, or one of its articles."""
    if not isinstance(value, dict):
        return False
    articles = value.get("data")
    if isinstance(articles, list) and articles:
        return isinstance(articles[0], Mapping) and "paragraphs" in articles[0]
    return isinstance(value.get("paragraphs"), list)


def squad_rows(value: Mapping[str, Any], where: str) -> Iterator[Record]:
    """Yield the questions of a file of SQuAD, or of one article, with their context.

    ``where`` is the place of the value. A question is found by its id: ``FILE:question ID``.
    """
    articles = [value] if value.get("data") is None else value["data"]
    file = where.rpartition(":")[0] or where
    for number, article in enumerate(articles, 1):
        title = _value(article, "title", f"{file}:article {number}", missing="")
        place = f"{file}:article {number}" + (f" ({title})" if title else "")
        paragraphs = _value(article, "paragraphs", place)
        for count, paragraph in enumerate(paragraphs, 1):
            inside = f"{place}, paragraph {count}"
            context = _value(paragraph, "context", inside)
            for index, question in enumerate(_value(paragraph, "qas", inside), 1):
                _value(question, "question", f"{inside}, question {index}")
                id = question.get("id")
                known = f"{file}:question {id}" if id is not None else f"{inside}, question {index}"
                yield Record({"title": title, "context": context, **question}, known)


def _value(part: Any, name: str, where: str, missing: Any = None) -> Any:
    """Return a value of a part of a file of SQuAD; raise DataError if it is missing."""
    wanted = list if name in ("paragraphs", "qas") else str
    value = part.get(name, missing) if isinstance(part, Mapping) else None
    if not isinstance(value, wanted):
        kind = "a list" if wanted is list else "a text"
        raise DataError(f"{where}: in a file of SQuAD, {name!r} must be {kind}, not {value!r:.60}.")
    return value
