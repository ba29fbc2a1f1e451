"""Types of values of saved files and settings, and their descriptions."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from finetune.config.values import conforms, description, numbers_by_label


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, float, True),
        (True, float, False),
        (True, bool, True),
        ("1", int, False),
        (None, int | None, True),
        ({"a": {"b": 1}}, dict[str, dict[str, float]], True),
        ({"a": {"b": "1"}}, dict[str, dict[str, float]], False),
        ((), tuple[str, ...], True),
        ("on", Literal["on", "off"], True),
        ("no", Literal["on", "off"], False),
        ([["x"]], list[list[Any]], True),
        (True, Any, True),
        ([], dict, False),
    ],
)
def test_types(value: object, hint: Any, expected: bool):
    assert conforms(value, hint) is expected


def test_labels_may_hold_commas():
    labels = ["neutral, so-so", "a=b", "top, new"]
    setting = "neutral, so-so=2,a=b=0.5, top, new=1."
    expected = dict(zip(labels, [2.0, 0.5, 1.0], strict=True))
    assert numbers_by_label("--class-weights", setting, labels) == expected


def test_descriptions():
    assert description(float | None) == "a number"
    assert description(int | str) == "a whole number or text"
    assert description(Literal["a", "b"] | None) == "one of a, b"
