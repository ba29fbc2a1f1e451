"""Multiple choice: a context, a question, its choices, and which of them is right.

Usual columns are read from RACE, SWAG, HellaSwag, DREAM, COPA, CommonsenseQA, ARC, OpenBookQA,
CosmosQA, PIQA, Social IQa and WinoGrande as they are on the hub, and from JSON Lines:

    {"context": "M: It rains. W: Then stay.", "question": "Why does he stay?",
     "choices": ["It rains.", "He is ill."], "label": 0}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from finetune.data.files import Row
from finetune.data.json_files import json_cell
from finetune.data.labels import MISSING
from finetune.data.rows import Gold, Make, NamedColumns, RowReader
from finetune.data.tables import Columns, MissingColumn, Table, is_missing, text_cell
from finetune.types import ChoiceQuestion, DataError, abbreviated, quantity

_ROLES = ("context", "question", "choices", "label")
CONTEXT_COLUMNS = tuple("context article passage dialogue premise sent1 ctx_a text".split())
"""Usual columns of the context: RACE has an article, DREAM a dialogue, COPA a premise, SWAG sent1,
HellaSwag ctx_a."""
QUESTION_COLUMNS = ("question", "question_stem", "sent2", "ctx_b", "query", "goal", "sentence")
"""Usual columns of the question, or of the beginning of all choices: OpenBookQA has a
question_stem, SWAG sent2, HellaSwag ctx_b, PIQA a goal, WinoGrande a sentence."""
CHOICES_COLUMNS = ("choices", "options", "choice", "endings")
"""Usual columns of a list of choices: RACE has options, DREAM choice, HellaSwag endings."""
_LABEL_COLUMNS = ("label", "answer", "answerkey", "answer_key", "gold_label")
"""Usual columns of the right choice: RACE and DREAM have an answer, CommonsenseQA an answerKey."""
NUMBERED = re.compile(r"(?P<stem>ending|choice|option|answer|solution|sol)[ _]?(?P<number>\d+)")
"""Usual columns of one choice each: SWAG has ending0, COPA choice1, CosmosQA answer0, PIQA sol1."""
LETTERED = ("answera", "answerb", "answerc")
"""Columns of one choice each in Social IQa, whose labels count from 1."""
COPA_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
"""The questions of COPA (Roemmele et al., 2011), whose data name their type."""


class Choices(NamedTuple):
    """The choices of a question.

    ``names`` are the labels that the data give them, such as letters; empty without any.
    """

    texts: tuple[str, ...]
    names: tuple[str, ...] = ()


def _column_numbers(several: Sequence[str], label: str | None) -> tuple[str, ...]:
    # WinoGrande and Social IQa number their columns
    if tuple(name.lower() for name in several) == LETTERED:
        return ("1", "2", "3")
    if label is None or label.lower() == "label":
        return ()
    matches = [NUMBERED.fullmatch(name.lower()) for name in several]
    return tuple(match["number"] for match in matches if match) if all(matches) else ()


class ChoiceReader(RowReader):
    """Reads questions with their choices."""

    roles = _ROLES
    header_names = frozenset(
        {*CONTEXT_COLUMNS, *QUESTION_COLUMNS, *CHOICES_COLUMNS, *_LABEL_COLUMNS}
    )

    def choose(self, table: Table, first: Sequence[Any], named: NamedColumns, gold: Gold) -> Make:
        """Choose the columns that the user names, else columns with usual names."""
        context = table.find("context", named, CONTEXT_COLUMNS)
        question = table.find("question", named, QUESTION_COLUMNS)
        choices, several, joined = None, tuple[str, ...](), named.get("choices", "")
        if "+" in joined and joined not in table.header:
            parts = (table.find("choices", {"choices": name}) for name in joined.split("+"))
            several = tuple(filter(None, parts))
        else:
            choices = table.find("choices", named, CHOICES_COLUMNS)
            several = () if choices else _numbered_columns(table.by_name)
        value = None if question is None else first[0].values.get(question)
        in_question = isinstance(value, Mapping) and "choices" in value
        if choices is None and not several and not in_question:
            more = " Of several columns: --columns choices=A+B+C."
            raise MissingColumn(table, "choices", "a list of choices", "choices", more)
        if context is None and question is None:
            raise MissingColumn(table, "question", "a question or a context", "question")
        label = None if gold == "unread" else table.find("label", named, _LABEL_COLUMNS)
        texts = choices or "+".join(several) or None
        table.read = {"context": context, "question": question, "choices": texts, "label": label}
        names = _column_numbers(several, label)
        return lambda index, row: _example(index, row, table.read, several, names)


def _numbered_columns(by_name: Mapping[str, str]) -> tuple[str, ...]:
    if by_name.keys() >= {*LETTERED}:
        return tuple(by_name[name] for name in LETTERED)
    by_stem: dict[str, list[tuple[int, str]]] = {}
    for lowered, name in by_name.items():
        if match := NUMBERED.fullmatch(lowered):
            by_stem.setdefault(match["stem"], []).append((int(match["number"]), name))
    for columns in by_stem.values():
        numbers = sorted(number for number, _ in columns)
        if len(columns) > 1 and numbers == [*range(numbers[0], numbers[0] + len(numbers))]:
            return tuple(name for _, name in sorted(columns))
    return ()


def _example(
    index: int, row: Row, columns: Columns, several: Sequence[str], names: Sequence[str]
) -> ChoiceQuestion:
    where, label_column = row.where, columns["label"]
    context = "" if columns["context"] is None else _context(row, columns["context"])
    question, stated = _question(row, columns)
    if several:
        cells = [row.values.get(name) for name in several]
        while cells and (is_missing(cells[-1]) or cells[-1] == ""):
            cells.pop()  # a question of fewer choices
        texts = _texts(cells, where)
        choices = Choices(texts, tuple(names[: len(texts)]))
    elif (column := columns["choices"]) is not None:
        choices = _choices(row.values.get(column), column, where)
    else:
        choices = _choices(stated, f"{columns['question']}.choices", where)
    texts = choices.texts
    if len(texts) < 2:
        problem = f"one choice ({texts[0]!r:.40})" if texts else "no choice"
        raise DataError(f"{where}: {problem}: a question needs two or more.")
    label = None
    if label_column is not None:
        is_index = label_column.lower() == "label"
        label = label_index(row.values.get(label_column), choices, where, is_index)
    return ChoiceQuestion(index, context, question, label, where, row.key, choices=texts)


def _context(row: Row, column: str) -> str:
    value = row.values.get(column)
    if isinstance(value, list) and all(isinstance(turn, str) for turn in value):
        return "\n".join(value)
    return "" if is_missing(value) else text_cell(row, column)


def _question(row: Row, columns: Columns) -> tuple[str | None, Any]:
    if (column := columns["question"]) is None:
        return None, None
    value, stated = row.values.get(column), None
    if isinstance(value, Mapping):
        stated, value = value.get("choices"), value.get("stem")
        row = row._replace(values={column: value})
    if is_missing(value):
        return None, stated
    text = text_cell(row, column)
    if (columns["context"] or "").lower() == "premise":
        text = COPA_QUESTIONS.get(text, text)
    return (text if text.strip() else None), stated


def _choices(value: Any, column: str, where: str) -> Choices:
    cell, names = json_cell(value), list[Any]()
    if isinstance(cell, Mapping):  # CommonsenseQA
        names, value = cell.get("label") or [], cell.get("text")
    elif isinstance(cell, list) and cell and all(isinstance(choice, Mapping) for choice in cell):
        names = [choice["label"] for choice in cell if "label" in choice]
        value = [choice.get("text") for choice in cell]
    else:
        value = cell
    if not isinstance(value, list) or not isinstance(names, list):
        problem = "is empty" if is_missing(cell) else f"is {cell!r:.40}"
        raise DataError(
            f'{where}: column {column!r} {problem}: write a list of texts, such as ["yes", "no"].'
        )
    texts = _texts(value, where)
    if names and len(names) != len(texts):
        raise DataError(
            f"{where}: {quantity(len(texts), 'choice')} and {quantity(len(names), 'label')} of "
            f"choices in column {column!r}: label each choice, or none."
        )
    return Choices(texts, tuple(map(str, names)))


def _texts(values: Sequence[Any], where: str) -> tuple[str, ...]:
    texts = []
    for number, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, str | int | float) or is_missing(value):
            problem = "is empty" if is_missing(value) else f"is {value!r:.40}"
            raise DataError(f"{where}: choice {number} (from 0) {problem}: write a text.")
        texts.append(str(value))
    return tuple(texts)


def label_index(value: Any, choices: Choices, where: str, is_index: bool) -> int | None:
    """The index of the right choice, None without gold.

    A label is the name of a choice in the data, a letter (A is the first), a number from 0, or the
    text of a choice. A text of digits is a number first with ``is_index``, else a text first.

    Raises:
        DataError: The label is outside the choices, or several choices have its text.
    """
    texts, names = choices
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of a data frame with gaps
    if is_missing(value) or value == -1:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise DataError(f"{where}: label {value!r:.40} is neither a number nor a text.")
    text = str(value).strip()
    if text.lower() in {*MISSING, "-1"} and text not in texts:
        return None
    if names:
        if names.count(text) == 1:
            return names.index(text)
        legal = f"the choices are labeled {abbreviated(names)}"
        raise DataError(f"{where}: label {text!r:.40}: {legal}.")
    number = int(text) if re.fullmatch(r"\d{1,9}", text) else None
    same = [index for index, choice in enumerate(texts) if choice.strip() == text]
    if isinstance(value, int) or (number is not None and (is_index or not same)):
        if number is not None and number < len(texts):
            return number
        last = len(texts) - 1
        raise DataError(
            f"{where}: label {text:.40} is outside of {len(texts)} choices: they are counted "
            f"from 0 to {last}."
        )
    if len(text) == 1 and "A" <= text <= "Z" and ord(text) - ord("A") < len(texts):
        return ord(text) - ord("A")
    if len(same) > 1:
        raise DataError(
            f"{where}: label {text!r:.40} is the text of {len(same)} choices: write its number, "
            "from 0."
        )
    if not same:
        raise DataError(
            f"{where}: label {text!r:.40} is none of {len(texts)} choices "
            f"({abbreviated(f'{choice:.30}' for choice in texts)}): write its number from 0, its "
            "letter or its text."
        )
    return same[0]


CHOICES = ChoiceReader()
"""The reader of multiple choice."""
