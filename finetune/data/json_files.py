"""JSON of users and of saved files: parsed with the place of errors, checked for its types."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune.config.values import conforms, description
from finetune.data.dataset import DataError
from finetune.types import UserError

_RESTORE = ": restore it from its source, or train again."


class _RepeatedKey(Exception):
    """A JSON object has this key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RepeatedKey(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)  # json.loads makes one at each call


def _value(text: str) -> Any:
    if text.startswith("{"):  # the usual row, without the search for blanks at its ends
        value, end = _DECODER.raw_decode(text)
        if end == len(text):
            return value
    return _DECODER.decode(text)


def parse_json(text: str, where: str, advice: str = "", *, surrogates: bool = False) -> Any:
    """Return the value of a JSON text.

    Raises:
        DataError: If the text is not JSON, nested too deeply, or has a key twice in one object, a
            number of thousands of digits or, unless ``surrogates`` are accepted, half of a
            surrogate pair. ``where`` and ``advice`` begin and end the message.
    """
    try:
        value = _value(text)
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
            got = f"not {content[key]!r:.60}" if key in content else "and is missing"
            raise UserError(
                f"{path}: damaged, or of another version of finetune: {key!r} must be "
                f"{description(hint)}, {got}{_RESTORE}"
            )
