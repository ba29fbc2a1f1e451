"""Questions with their contexts and gold answers, in the columns and the files of SQuAD.

An answer is a text of the context and the character where it starts there. Answers that are
elsewhere than the data say are moved if only one place is possible; others are kept without a
place, so that they can be scored but not learned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune.data.examples import Examples
from finetune.data.files import Row
from finetune.data.json_files import json_cell
from finetune.data.rows import Gold, Make, NamedColumns, RowReader, Splits
from finetune.data.tables import MissingColumn, Table, is_missing, text_cell, whole_number
from finetune.types import Answer, DataError, Question, quantity

USUAL_COLUMNS = {
    "question": ("question", "query", "text"),
    "context": ("context", "passage", "paragraph", "text_pair"),
    "answers": ("answers", "answer"),
}
"""Usual names of columns by role."""
START_COLUMN = "answer_start"
"""The column with the first character of an answer that is a plain text."""
IMPOSSIBLE_COLUMN = "is_impossible"
"""The column of SQuAD 2.0 that is true for questions without an answer."""
MOST_MISPLACED = 0.1
"""Largest fraction of the training questions whose answers may have no place in their contexts."""
MOVED = "moved to the only place of the text in the context, as the offset was wrong"


def locate(text: str, start: int | None, context: str) -> Answer:
    """Find an answer in its context; its ``start`` is None if it is not there, or several times.

    White space may differ from the context's, whose characters the answer then has.

    >>> locate("a  dog", 7, "I see a dog")
    Answer(start=6, text='a dog')
    """
    if start is not None and start >= 0 and context.startswith(text, start):
        return Answer(start, text)
    pattern = r"\s+".join(map(re.escape, text.split()))
    matches = list(re.finditer(pattern, context))
    if start is not None and len(matches) > 1:  # the place before or after white space is meant
        matches = [
            match
            for match in matches
            if not context[min(start, match.start()) : max(start, match.start())].strip()
        ]
    if len(matches) != 1:
        return Answer(None, text)
    return Answer(matches[0].start(), matches[0].group())


def misplaced(questions: Sequence[Question]) -> dict[int, str]:
    """Find questions none of whose answers has a place in the context: the reason by index."""
    reasons = {}
    for index, question in enumerate(questions):
        answers = question.answers or ()
        if not answers or any(answer.start is not None for answer in answers):
            continue
        text = answers[0].text
        problem = "is not in the context"
        if re.search(r"\s+".join(map(re.escape, text.split())), question.pair or ""):
            problem = "is several times in the context, and not at its offset"
        reasons[index] = f"{question.where}: the answer {text!r:.60} {problem}"
    return reasons


def too_many_misplaced(number: int, questions: Examples) -> bool:
    """True if so many training questions with misplaced answers are an error of the data."""
    return number > MOST_MISPLACED * sum(map(bool, questions.column("answers")))


class QuestionReader(RowReader):
    """Reads questions with their contexts and answers.

    >>> data = QUESTIONS.read("examples/data/qa")
    >>> data.splits["train"][0].answers
    (Answer(start=22, text='1873'),)
    """

    roles = tuple(USUAL_COLUMNS)
    header_names = frozenset(name for names in USUAL_COLUMNS.values() for name in names)

    def choose(self, table: Table, first: Sequence[Any], named: NamedColumns, gold: Gold) -> Make:
        """Choose the columns that the user names, else columns with usual names."""
        question, context, answers = (
            table.find(role, named, usual) for role, usual in USUAL_COLUMNS.items()
        )
        if question is None:
            raise MissingColumn(table, "question", "a question", "question")
        if context is None:
            raise MissingColumn(table, "context", "the context of a question", "context")
        if question == context:
            raise DataError(f"{table.name}: the column {question!r} is both question and context.")
        table.read = {"question": question, "context": context, "answers": answers}

        def make(index: int, row: Row) -> Question:
            texts, gold_answers = (text_cell(row, question), text_cell(row, context)), None
            if gold != "unread" and answers is not None:
                gold_answers = _answers(row, answers, texts[1], table.corrected)
            return Question(index, *texts, where=row.where, key=row.key, answers=gold_answers)

        return make

    def finished(self, splits: Splits, tables: Mapping[str, Table]) -> tuple[Splits, list[str]]:
        """Note answers that were moved."""
        notes = [
            f"{table.name}: {quantity(len(moved), 'answer')} {MOVED}; first in {moved[0]}"
            for table in tables.values()
            if (moved := table.corrected)
        ]
        return splits, notes


QUESTIONS = QuestionReader()
"""The reader of questions."""


def _answers(row: Row, column: str, context: str, moved: list[str]) -> tuple[Answer, ...] | None:
    impossible = row.values.get(IMPOSSIBLE_COLUMN)
    impossible = str(impossible).strip().lower() in ("true", "1", "1.0")
    value = json_cell(row.values.get(column))
    if is_missing(value) or (isinstance(value, str) and not value.strip()):
        return () if impossible else None
    pairs = [(text, start) for text, start in _pairs(row, column, value) if text.strip()]
    if impossible and pairs:
        raise DataError(
            f"{row.where}: {IMPOSSIBLE_COLUMN} is true, and there is the answer "
            f"{pairs[0][0]!r:.40}: remove one of them."
        )
    answers = []
    for text, start in pairs:
        answer = locate(text, start, context)
        if start is not None and answer.start not in (None, start):
            moved.append(row.where)
        answers.append(answer)
    return tuple(answers)


def _pairs(row: Row, column: str, value: Any) -> Iterator[tuple[str, int | None]]:
    texts: Sequence[Any]
    starts: Sequence[Any]
    if isinstance(value, str | int | float):
        start = row.values.get(START_COLUMN)
        missing = is_missing(start) or start == ""
        texts, starts = [value], [None if missing else start]
    elif isinstance(value, Mapping):
        cells = (value.get(name) for name in ("text", START_COLUMN))
        texts, starts = (
            cell if isinstance(cell, list | tuple) else [] if cell is None else [cell]
            for cell in cells
        )
    elif not isinstance(value, list | tuple):
        texts, starts = [value], []
    elif all(isinstance(item, Mapping) for item in value):
        texts, starts = ([item.get(name) for item in value] for name in ("text", START_COLUMN))
    else:
        texts, starts = value, []
    starts = starts or [None] * len(texts)
    if len(texts) != len(starts):
        raise DataError(
            f"{row.where}: {column} has {quantity(len(texts), 'text')} and "
            f"{quantity(len(starts), START_COLUMN)}: give each answer its first character."
        )
    for text, start in zip(texts, starts, strict=True):
        if isinstance(text, int | float) and not isinstance(text, bool):
            text = str(text)
        if not isinstance(text, str):
            raise DataError(
                f"{row.where}: {column} must hold texts, such as "
                f'{{"text": ["Oslo"], "{START_COLUMN}": [12]}}, not {value!r:.60}.'
            )
        offset = None if start is None else whole_number(start)
        if offset is None and start is not None:
            raise DataError(
                f"{row.where}: {START_COLUMN} must be the number of a character of the context, "
                f"from 0, not {start!r:.40}."
            )
        yield text, offset
