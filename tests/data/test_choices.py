"""Multiple choice in the columns of public data sets, in files and in memory, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from finetune.data import DataError, fingerprint
from finetune.data.choices import CHOICES
from finetune.types import ChoiceQuestion, TextExample
from tests.small_data import write_jsonl

CHOICE = {"text": "x", "label": "1"}
FORMS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "ours": (
        {"id": "q7", "context": "It rains.", "question": "Why?", "choices": ["a", "b"], "label": 1},
        ("It rains.", "Why?", ("a", "b"), 1),
    ),
    "RACE": (
        {"article": "Text.", "answer": "C", "question": "It _ .", "options": ["a", "b", "c"]},
        ("Text.", "It _ .", ("a", "b", "c"), 2),
    ),
    "SWAG": (
        {"sent1": "A man sits.", "sent2": "He", "ending0": "a", "ending1": "b", "label": 1},
        ("A man sits.", "He", ("a", "b"), 1),
    ),
    "HellaSwag": (
        {
            "ctx_a": "A man",
            "ctx_b": "",
            "ctx": "A man",
            "endings": ["jumps", "sings"],
            "label": "1",
        },
        ("A man", None, ("jumps", "sings"), 1),
    ),
    "DREAM": (
        {
            "id": 0,
            "dialogue": ["W: Hello.", "M: Good day."],
            "question": "Who speaks first?",
            "choice": ["the man", "the woman", "nobody"],
            "answer": "the woman",
        },
        ("W: Hello.\nM: Good day.", "Who speaks first?", ("the man", "the woman", "nobody"), 1),
    ),
    "COPA": (
        {
            "premise": "He fell.",
            "choice1": "Ice.",
            "choice2": "Sun.",
            "question": "cause",
            "label": 0,
        },
        ("He fell.", "What was the cause of this?", ("Ice.", "Sun."), 0),
    ),
    "CommonsenseQA": (
        {
            "id": "x",
            "question": "Where is it?",
            "choices": {"label": ["A", "B", "C"], "text": ["here", "there", "gone"]},
            "answerKey": "B",
        },
        ("", "Where is it?", ("here", "there", "gone"), 1),
    ),
    "ARC": (
        {
            "question": {"stem": "Which?", "choices": [CHOICE, CHOICE | {"label": "2"}]},
            "answerKey": "2",
        },
        ("", "Which?", ("x", "x"), 1),
    ),
    "WinoGrande": (
        {"sentence": "Ann, but _ won.", "option1": "Ann", "option2": "Bea", "answer": "2"},
        ("", "Ann, but _ won.", ("Ann", "Bea"), 1),
    ),
    "Social IQa": (
        {
            "context": "She.",
            "question": "Why?",
            "answerA": "a",
            "answerB": "b",
            "answerC": "c",
            "label": "1",
        },
        ("She.", "Why?", ("a", "b", "c"), 0),
    ),
    "numbers": (
        {"question": "1 + 1", "choices": [3, 2, 1], "answer": "2"},
        ("", "1 + 1", ("3", "2", "1"), 1),
    ),
    "number of a choice": (
        {"question": "1 + 1", "choices": [3, 1, 2], "label": "2"},
        ("", "1 + 1", ("3", "1", "2"), 2),
    ),
    **{
        f"no gold: {label!r}": (
            {"question": "Who?", "choices": ["a", "b"], "label": label},
            ("", "Who?", ("a", "b"), None),
        )
        for label in (-1, None, "")
    },
}


def content(example: TextExample) -> tuple[Any, ...]:
    return example.text, example.pair, example.choices, example.label


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_data_sets(name: str, tmp_path: Path) -> None:
    row, expected = FORMS[name]
    (example,) = CHOICES.read(str(write_jsonl(tmp_path / "train.jsonl", [row]))).splits["train"]
    assert content(example) == expected
    assert example.where == f"{tmp_path / 'train.jsonl'}:1"
    assert example.key == (row["id"] if "id" in row else None)
    (streamed,) = CHOICES.stream(tmp_path / "train.jsonl")
    assert content(streamed) == (*expected[:3], None), "prediction reads no gold"
    table = datasets.DatasetDict({"train": datasets.Dataset.from_list([row])})
    for data in ([row], table, {"train": [row]}):
        assert content(CHOICES.read(data).splits["train"][0]) == expected


def test_columns_of_csv(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("q,a,b,c,right\nWho?,me,you,,you\nWhen?,now,then,never,2\n")
    columns = {"question": "q", "choices": "a+b+c", "label": "right"}
    found = CHOICES.read(str(path), columns=columns).splits["train"]
    assert [content(each)[1:] for each in found] == [
        ("Who?", ("me", "you"), 1),
        ("When?", ("now", "then", "never"), 2),
    ]
    for cell in ('[""me"", ""you""]', "['me', 'you']"):
        path.write_text(f'question,choices,label\nWho?,"{cell}",0\n')
        assert content(CHOICES.read(str(path)).splits["train"][0]) == ("", "Who?", ("me", "you"), 0)


ROW = {"question": "Who?", "choices": ["me", "you"], "label": 0}
NAMED = {"text": ["me", "you"], "label": ["A", "B"]}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one choice": ({"choices": ["me"]}, r"one choice \('me'\): a question needs two or more"),
    "no choice": ({"choices": []}, "no choice: a question needs two or more"),
    "a text": ({"choices": "me"}, r"column 'choices' is 'me': write a list of texts"),
    "an empty choice": ({"choices": ["me", None]}, r"choice 1 \(from 0\) is empty"),
    "index": ({"label": 2}, "label 2 is outside of 2 choices: they are counted from 0 to 1"),
    "negative": ({"label": -2}, "label -2 is outside of 2 choices"),
    "text": ({"label": "them"}, r"label 'them' is none of 2 choices \(me, you\)"),
    "letter": ({"label": "C"}, r"label 'C' is none of 2 choices \(me, you\)"),
    "boolean": ({"label": True}, "label True is neither a number nor a text"),
    "repeated": (
        {"choices": ["a", "a"], "label": "a"},
        "label 'a' is the text of 2 choices: write",
    ),
    "name": ({"choices": NAMED, "label": "E"}, "label 'E': the choices are labeled A, B"),
    "no names": ({"choices": {**NAMED, "label": 2}}, r"column 'choices' is {.*: write a list of"),
    "names": ({"choices": {**NAMED, "label": ["A"]}}, "2 choices and 1 label of choices in column"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_file_and_line(name: str, tmp_path: Path) -> None:
    change, message = WRONG[name]
    path = write_jsonl(tmp_path / "train.jsonl", [ROW, {**ROW, **change}])
    with pytest.raises(DataError, match=f"train.jsonl:2: {message}"):
        CHOICES.read(str(path))


def test_missing_columns_are_named(tmp_path: Path) -> None:
    for row, role in (({"question": "Who?", "label": 0}, "choices"), ({"choices": ["a"]}, "quest")):
        path = write_jsonl(tmp_path / "train.jsonl", [row])
        with pytest.raises(DataError, match=f"--columns {role}"):
            CHOICES.read(str(path))
    with pytest.raises(DataError, match=r"'text' is not a role: the roles here are context"):
        CHOICES.read(str(path), columns={"text": "question"})
    told = "example 3: no key holds a list of choices .keys here: .context., .question..: add"
    with pytest.raises(DataError, match=told):
        CHOICES.example(0, {"context": "x", "question": "y"}, "example 3")


def test_choices_are_part_of_the_content() -> None:
    one = ChoiceQuestion(0, "", "Who?", 0, choices=("me", "you"))
    other = ChoiceQuestion(0, "", "Who?", 0, choices=("me", "them"))
    assert one.texts() == ["", "Who?", "me", "you"] != other.texts()
    assert fingerprint({"train": [one]}) != fingerprint({"train": [other]})
