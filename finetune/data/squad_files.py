"""Files of SQuAD as rows: articles with paragraphs, whose questions have answers.

{"version": "1.1", "data": [{"title": …, "paragraphs": [{"context": …, "qas": [
    {"id": …, "question": …, "answers": [{"text": …, "answer_start": 0}]}]}]}]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from finetune.data.dataset import DataError
from finetune.data.files import Record, keep_error


def is_squad(value: Any) -> bool:
    """Return whether a JSON value is a file of SQuAD, or one of its articles."""
    if not isinstance(value, dict):
        return False
    articles = value.get("data")
    if isinstance(articles, list) and articles:
        return isinstance(articles[0], Mapping) and "paragraphs" in articles[0]
    return isinstance(value.get("paragraphs"), list)


def squad_rows(
    value: Mapping[str, Any], where: str, errors: list[str] | None = None
) -> Iterator[Record]:
    """Yield the questions of a file of SQuAD, or of one article, with their context.

    ``where`` is the place of the value. A question is found by its id: ``FILE:question ID``.
    ``errors`` gets the errors of articles, paragraphs and questions; None raises the first.
    """

    def value_of(part: Any, name: str, place: str, missing: Any = None) -> Any:
        """Return a value of a part of the file, None if it is missing."""
        wanted = list if name in ("paragraphs", "qas") else str
        found = part.get(name, missing) if isinstance(part, Mapping) else None
        if isinstance(found, wanted):
            return found
        must = f"{name!r} must be {'a list' if wanted is list else 'a text'}, not {found!r:.60}"
        keep_error(DataError(f"{place}: in a file of SQuAD, {must}."), errors)
        return None

    articles = [value] if value.get("data") is None else value["data"]
    file = where.rpartition(":")[0] or where
    for number, article in enumerate(articles, 1):
        title = value_of(article, "title", f"{file}:article {number}", missing="")
        if title is None:
            continue
        place = f"{file}:article {number}" + (f" ({title})" if title else "")
        for count, paragraph in enumerate(value_of(article, "paragraphs", place) or (), 1):
            inside = f"{place}, paragraph {count}"
            context = value_of(paragraph, "context", inside)
            questions = None if context is None else value_of(paragraph, "qas", inside)
            for index, question in enumerate(questions or (), 1):
                here = f"{inside}, question {index}"
                if value_of(question, "question", here) is None:
                    continue
                id = question.get("id")
                known = f"{file}:question {id}" if id is not None else here
                yield Record({"title": title, "context": context, **question}, known)
