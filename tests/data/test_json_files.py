"""JSON from users and from saved files: every problem names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.data.json_files import parse_json, read_object
from finetune.types import UserError


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value at line 1 column 1"),
        ('{"a": ', "Expecting value at line 1 column 7"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' * 100_000, "nested too deeply"),
        ("9" * 5000, "a number has too many digits"),
        ('"\\ud800"', "half of a surrogate pair"),
    ],
)
def test_problems_have_a_place(text: str, problem: str):
    with pytest.raises(UserError, match=f"^f:3: not valid JSON .*{problem}.*: fix it$"):
        parse_json(text, "f:3", ": fix it")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[]", "no JSON object"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b"{}", "'n' must be a whole number, and is missing"),
        (b'{"n": true}', "'n' must be a whole number, not True"),
        (b'{"n": 1, "names": ["a", 2]}', "'names' must be a list, not"),
    ],
)
def test_saved_objects(content: bytes, problem: str, tmp_path: Path):
    (path := tmp_path / "saved.json").write_bytes(content)
    with pytest.raises(UserError, match=f"saved.json: damaged.*{problem}"):
        read_object(path, {"n": int, "names": list[str] | None})
    path.write_bytes(b'{"n": 1, "more": 2}')
    assert read_object(path, {"n": int, "names": list[str] | None}) == {"n": 1, "more": 2}
