"""JSON of users and of saved files: parsed with the location of errors, checked for its types.

Rows are objects in lines or a list, and files of SQuAD, which has articles with paragraphs, whose
questions have answers:

{"version": "1.1", "data": [{"title": …, "paragraphs": [{"context": …, "qas": [
    {"id": …, "question": …, "answers": [{"text": …, "answer_start": 0}]}]}]}]}
"""

from __future__ import annotations

import ast
import contextlib
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from finetune.config.values import conforms, description
from finetune.data.files import CONVERT_ADVICE, DataFile, ReadOptions, Row, keep_error
from finetune.data.tables import Table
from finetune.types import DataError, UserError

_JSON_ROW = 'one object per line, such as {"text": "Fine film", "label": "positive"}'
_JSON_ADVICE = f": write {_JSON_ROW}."
_RESTORE = ": restore it from its source, or train again."


_NO_LITERAL = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError)
"""The errors of ``ast.literal_eval`` and ``json.dumps``."""


class _RepeatedKey(Exception):
    """A JSON object has this key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise _RepeatedKey(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)  # json.loads makes one at each call


def parse_json(text: str, where: str, advice: str = "", *, surrogates: bool = False) -> Any:
    """Parse a JSON text.

    Raises:
        DataError: If the text is not JSON, nested too deeply, or has a key twice in one object, a
            number of thousands of digits or, unless ``surrogates`` are accepted, half of a
            surrogate pair. ``where`` and ``advice`` begin and end the message.
    """
    try:
        value, end = None, -1
        if text.startswith("{"):  # the usual row, without the search for blanks at its ends
            value, end = _DECODER.raw_decode(text)
        if end != len(text):
            value = _DECODER.decode(text)
        if not surrogates and ("\\ud" in text or "\\uD" in text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except _RepeatedKey as error:
        problem = f"the key {error.args[0]!r:.60} is twice in one object: keep one"
    except json.JSONDecodeError as error:
        problem = f"{error.msg.removesuffix(' at')} at line {error.lineno} column {error.colno}"
    except RecursionError:
        problem = "it is nested too deeply"
    except UnicodeEncodeError:
        problem = "\\ud… is half of a surrogate pair: write both halves"
    except ValueError:
        problem = "a number has too many digits"
    raise DataError(f"{where}: not valid JSON ({problem}){advice or '.'}")


def read_object(path: Path, types: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read a saved JSON object.

    ``types`` are the type hints of its keys; a key may be missing if its hint includes None.

    Raises:
        UserError: If the file is no JSON object, or a value is missing or of another type.
        OSError: If the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: damaged, byte {error.start} is not UTF-8{_RESTORE}") from error
    content = parse_json(text, str(path), _RESTORE, surrogates=True)
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged, it holds no JSON object{_RESTORE}")
    check_types(path, content, types or {})
    return content


def check_types(path: Path, content: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Raise UserError if a value of a saved object is missing or of another type."""
    for key, hint in types.items():
        if not conforms(content.get(key), hint):
            actual = f"not {content[key]!r:.60}" if key in content else "and is missing"
            raise UserError(
                f"{path}: damaged, or of another version of finetune: {key!r} must be "
                f"{description(hint)}, {actual}{_RESTORE}"
            )


def json_cell(value: Any) -> Any:
    """Parse the list or object that a cell of text holds, as JSON or as Python writes it.

    Any other cell is kept.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(DataError):  # a text that begins with a bracket
            return parse_json(value, "")
        with (
            contextlib.suppress(*_NO_LITERAL, DataError),
            warnings.catch_warnings(action="ignore"),  # of escapes in other texts
        ):
            literal = ast.literal_eval(value.strip())
            if repr(literal) == value.strip():  # numpy writes no commas, which joins texts
                return parse_json(json.dumps(literal), "")
    return value


def read_json(file: DataFile, options: ReadOptions, table: Table) -> Iterator[Row]:
    """Read one object per line, or one list of objects if the suffix is ``.json``."""
    first = file.first_line().strip() if file.format == "json" else ""
    if file.format == "json" and (not first.startswith("{") or first == "{"):
        value = parse_json("\n".join(line.text for line in file.lines), file.name, _JSON_ADVICE)
        if is_squad(value):
            yield from squad_rows(value, file.name, options.errors)
        elif isinstance(value, list):
            for number, item in enumerate(value, 1):
                yield from _rows(item, f"{file.name}:item {number}", options)
        else:
            raise DataError(
                f"{file.name}: holds one JSON {_json_type(value)}, not a list of objects: write "
                '[{"text": …, "label": …}, …], or one object per line in a .jsonl file.'
            )
    for number, text, _ in file.lines:
        if not text.strip():
            continue
        where = f"{file.name}:{number}"
        try:
            value = parse_json(text, where, _JSON_ADVICE)
        except DataError as error:
            keep_error(error, options.errors)
            continue
        if type(value) is dict and options.convert_row is None and "data" not in value:
            yield Row(value, where)
        else:
            yield from _rows(value, where, options)


def _rows(value: Any, where: str, options: ReadOptions) -> Iterator[Row]:
    if is_squad(value):
        yield from squad_rows(value, where, options.errors)
        return
    try:
        if options.convert_row is not None:
            yield from options.convert_row(value, where)
        elif isinstance(value, dict):
            yield Row(value, where)
        else:
            raise not_an_object(value, where)
    except DataError as error:
        keep_error(error, options.errors)


def not_an_object(value: Any, where: str) -> DataError:
    """The error for a row that is no JSON object."""
    return DataError(
        f"{where}: a row must be a JSON object, not a {_json_type(value)}: write {_JSON_ROW}; "
        f"{CONVERT_ADVICE}."
    )


def _json_type(value: Any) -> str:
    types = {dict: "object", list: "list", str: "string", type(None): "null", bool: "boolean"}
    return types.get(type(value), "number")


def is_squad(value: Any) -> bool:
    """True if a JSON value is a file of SQuAD."""
    articles = value.get("data") if isinstance(value, dict) else None
    if not isinstance(articles, list) or not articles:
        return False
    return isinstance(articles[0], Mapping) and "paragraphs" in articles[0]


def squad_rows(
    value: Mapping[str, Any], where: str, errors: list[str] | None = None
) -> Iterator[Row]:
    """Yield the questions of a file of SQuAD with their context.

    ``where`` is the location of the value. A question is located by its numbers from 1:
    ``FILE:article 1 (TITLE), paragraph 2, question 3``.
    ``errors`` gets the errors of paragraphs; None raises the first.
    """
    file = where.rpartition(":")[0] or where
    for number, article in enumerate(value["data"], 1):
        inside = f"{file}:article {number}"
        try:
            title, paragraphs = article.get("title") or "", list(article["paragraphs"])
            inside += f" ({title})" if title else ""
        except (AttributeError, KeyError, TypeError):
            keep_error(DataError(f"{inside}: an article of SQuAD has `paragraphs`."), errors)
            continue
        for count, paragraph in enumerate(paragraphs, 1):
            where = f"{inside}, paragraph {count}"
            try:
                context = {"title": title, "context": paragraph["context"]}
                if not isinstance(paragraph["context"], str):
                    raise TypeError
                rows = [{**context, **question} for question in paragraph["qas"]]
            except (KeyError, TypeError):
                problem = "a paragraph of SQuAD has a text, `context`, and a list, `qas`"
                keep_error(DataError(f"{where}: {problem}."), errors)
                continue
            for index, row in enumerate(rows, 1):
                yield Row(row, f"{where}, question {index}")
