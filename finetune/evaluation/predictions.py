"""Prediction files of any system: JSON Lines, or words in columns of which the last is predicted,
or the JSON object of answers by id that the official script of SQuAD reads.

The files that a run writes (``predictions.<split>.jsonl``) also hold the gold of each example and
the text or words to show, so that nothing has to read the data again:

    {"id": 0, "label": "pos", "score": 0.9, "text": "a good film", "gold": "neg"}
    {"id": 0, "choice": 1, "score": 0.9, "choices": ["No", "Yes"], "text": "Is it?", "gold": 1}
    {"id": 0, "words": ["Ana", "slept"], "tags": ["B-PER", "O"], "gold": {"tags": ["O", "O"]}}
    {"id": "q7", "answer": "Oslo", "text": "Where?", "text_pair": "…", "gold": [{"text": "Oslo"}]}
    {"id": "d0.s1.t2", "senses": ["bank%1:14:00::"], "gold": ["bank%1:17:01::"]}
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.config.values import conforms, description
from finetune.data import DataError, read_gold, read_text_file, read_token_file
from finetune.data.choices import CHOICES
from finetune.data.conll import find_layout
from finetune.data.files import UTF_8, DataFile, Line, uncompressed_name
from finetune.data.formats import format_of, open_data
from finetune.data.json_files import parse_json
from finetune.data.labels import convert_labels
from finetune.data.questions import QUESTIONS
from finetune.data.token_records import TokenRecord, read_relations, read_spans
from finetune.evaluation.kinds import KINDS
from finetune.evaluation.pairs import NO_LABEL
from finetune.registry import PREDICTION_KINDS
from finetune.types import (
    Answer,
    Example,
    MaskedPrediction,
    Prediction,
    SenseTarget,
    Span,
    TextExample,
    TokenExample,
    quantity,
    relation_records,
)

Row = tuple[str, dict[str, Any]]
"""The ``file:line`` of a line of predictions, and its JSON object."""


@dataclass(frozen=True)
class PredictionFile:
    """The lines of a prediction file: one JSON object for each example with its ``file:line``.

    ``lines`` are the lines of a file in columns, which may hold gold.
    """

    path: Path
    rows: Sequence[Row]
    format: str
    has_gold: bool
    lines: Sequence[Line] = ()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def kind(self) -> str:
        """The key of the lines with the prediction; ``tags`` where a line has spans too."""
        names = ("relations", "tags", "spans", "choice", "label", "answer", "subwords", *KINDS)
        kinds = {next((name for name in names if name in row), "") for _, row in self.rows}
        if len(kinds) == 1 and (kind := kinds.pop()):
            return kind
        raise DataError(
            f"{self.path}: each line must have `label`, or each must have `tags`, or each `spans`, "
            "or each `relations`, or each `choice`, or each `answer`, or each `senses`."
        )

    @property
    def ids(self) -> list[str] | None:
        """The ids of the rows; None without ids."""
        return ids_of([(row.get("id"), where) for where, row in self.rows])

    def gold(self, kind: str) -> Sequence[Example | SenseTarget]:
        """Return the examples with the gold that the file holds, to align predictions of a kind."""
        if self.format == "conll":
            opened = DataFile(str(self.path), "conll", self.lines)
            return read_gold_file(opened, {"tags": "-2"}, kind)
        if kind in KINDS:
            return [KINDS[kind].gold_of(where, row) for where, row in self.rows]
        readers = {"answer": _gold_question}
        readers |= dict.fromkeys(("label", "choice", "subwords"), _gold_text)
        read = readers.get(kind, _gold_sentence)
        return [read(index, where, row) for index, (where, row) in enumerate(self.rows)]


def read_predictions(path: Path, encoding: str = UTF_8) -> PredictionFile:
    """Read a prediction file, whose format is found from its name or its first line.

    JSON Lines (by suffix) and standard input are UTF-8; ``encoding`` applies to other files.
    """
    always_utf_8 = str(path) == "-" or format_of(path) in ("jsonl", "json")
    opened = open_data(path, encoding=UTF_8 if always_utf_8 else encoding)
    format = opened.format if opened.format in ("conll", "conllu") else "jsonl"
    if opened.format in ("txt", "tsv", "unknown"):
        format = "jsonl" if opened.first_line().lstrip().startswith(("{", "[")) else "conll"
        for kind, paths in PREDICTION_KINDS.items():
            if re.fullmatch(paths.first_line, opened.first_line()):
                return PredictionFile(path, KINDS[kind].read(opened), kind, False)
    opened.format = format
    has_gold = format == "conll" and find_layout(opened, {}).num_columns >= 3
    lines = opened.peek(sys.maxsize) if has_gold else []
    if format == "jsonl" and (answers := _answers_by_id(opened)):
        return PredictionFile(path, answers, format, False)
    rows = list(_json_rows(opened) if format == "jsonl" else _column_rows(opened))
    if not rows:
        raise DataError(f"{path}: there is no prediction in it.")
    has_gold = has_gold or all("gold" in row for _, row in rows)
    return PredictionFile(path, rows, format, has_gold, lines)


def ids_of(rows: Sequence[tuple[Any, str]]) -> list[str] | None:
    """Return the ids of rows, given with their ``file:line``, as text; None without ids."""
    missing = [where for id, where in rows if id is None]
    if len(missing) == len(rows):
        return None
    if missing:
        where = next(where for id, where in rows if id is not None)
        raise DataError(f"{missing[0]}: no id, but {where} has one: give each row an id, or none.")
    return [str(id) for id, _ in rows]


def read_gold_file(
    path: str | DataFile,
    columns: Mapping[str, str] | None,
    kind: str,
    encoding: str = UTF_8,
    usual_columns: Mapping[str, str] | None = None,
) -> Sequence[Example | SenseTarget]:
    """Read the examples of a file, or a folder of standoff, with gold for predictions of a kind.

    ``usual_columns`` are read if the file has them and ``columns`` names none.
    """
    options: Any = {"columns": columns, "usual_columns": usual_columns, "encoding": encoding}
    if kind == "subwords":
        raise DataError(
            "predictions of masked subwords hold their gold, which depends on the masks: use "
            "`finetune report --format table` or `compare` without a file of gold."
        )
    if kind in KINDS:
        return KINDS[kind].read_gold(path, encoding)
    if kind == "answer":
        return list(QUESTIONS.stream(path, gold=True, **options))
    if kind == "label":
        examples = list(read_text_file(path, **options))
        return convert_labels({"gold": examples}, typed=False)[0]["gold"]
    if kind == "choice":
        return list(CHOICES.stream(path, gold=True, **options))
    if kind == "tags":
        return list(read_token_file(path, **options))
    return read_gold(path, relations=kind == "relations", **options)


def to_row(prediction: Prediction, example: Example) -> dict[str, Any]:
    """Return the JSON object of a prediction with the gold of its example."""
    key = {} if example.key is None else {"id": example.key}
    row = prediction.record() | key | gold_record(example)
    if isinstance(prediction, MaskedPrediction):
        row["gold"] = list(prediction.gold or ())
    return row


def gold_record(example: Example) -> dict[str, Any]:
    """Return the gold of an example, and the fields needed to show it, as JSON values.

    ``gold`` of words is an object with ``tags`` or ``spans`` or both, and perhaps ``relations``.
    """
    shown: dict[str, Any] = {"text": example.text, "where": example.where or None}
    gold: Any
    if isinstance(example, TextExample):
        shown |= {"text_pair": example.pair, "choices": list(example.choices) or None}
        gold = list(example.label) if isinstance(example.label, tuple) else example.label
        if example.answers is not None:
            gold = [answer._asdict() for answer in example.answers]
    else:
        shown["document"] = example.document
        spans = None if example.spans is None else [span._asdict() for span in example.spans]
        unreachable = example.unreachable or None  # in characters
        known = {"tags": example.tags, "spans": spans, "unreachable": unreachable}
        if example.relations is not None:
            known["relations"] = relation_records(example.spans or (), example.relations)
        gold = {name: value for name, value in known.items() if value is not None} or None
    return {name: value for name, value in shown.items() if value is not None} | {"gold": gold}


def _gold_text(index: int, where: str, row: Mapping[str, Any]) -> TextExample:
    gold = row["gold"]
    if gold is not None:
        _check(where, "gold", gold)
    if gold is not None and "choice" in row:
        last = len(row.get("choices", ())) - 1
        if type(gold) is not int or gold < 0 or 0 <= last < gold:
            legal = f"from 0 to {last}" if last >= 0 else "from 0"
            raise DataError(
                f"{where}: next to `choice`, `gold` must be the number of the right choice, "
                f"{legal}, not {gold!r:.60}; or name a file with --gold FILE."
            )
    label = tuple(gold) if isinstance(gold, list) else gold
    text, pair = row.get("text", ""), row.get("text_pair")
    where, choices = row.get("where", where), tuple(row.get("choices", ()))
    return TextExample(index, text, pair, label, where, row.get("id"), choices=choices)


def _gold_question(index: int, where: str, row: Mapping[str, Any]) -> TextExample:
    gold, answers = row["gold"], None
    if gold is not None:
        if not conforms(gold, list[dict[str, int | str | None]]) or not all(
            isinstance(each.get("text"), str) for each in gold
        ):
            raise DataError(
                f'{where}: next to `answer`, `gold` must be a list such as [{{"text": "Oslo", '
                f'"start": 12}}], not {gold!r:.60}; or name a file with --gold FILE.'
            )
        answers = tuple(Answer(each.get("start"), each["text"]) for each in gold)
    return TextExample(
        index,
        row.get("text", ""),
        row.get("text_pair"),
        where=row.get("where", where),
        key=row.get("id"),
        answers=answers,
    )


def _gold_sentence(index: int, where: str, row: Mapping[str, Any]) -> TokenExample:
    gold, words = row["gold"] or {}, row.get("words")
    if not isinstance(gold, Mapping) or not isinstance(words, list):
        raise DataError(
            f'{where}: next to `words`, `gold` must be an object such as {{"tags": ["B-PER", "O"]}}'
            f' or {{"spans": [[0, 2, "PER"]]}}, not {gold!r:.60}; or name a file with --gold FILE.'
        )
    tags, spans = gold.get("tags"), gold.get("spans")
    if tags is not None:
        _check(where, "gold", tags, tags=True)
        if len(tags) != len(words):
            raise DataError(
                f"{where}: {quantity(len(tags), 'gold tag')} for {quantity(len(words), 'word')}."
            )
    offsets, relations = row.get("offsets"), gold.get("relations")
    if relations is not None:
        record = TokenRecord(tuple(words), where)
        relations = read_relations(relations, where, spans or (), record)
    return TokenExample(
        index,
        tuple(words),
        spans if spans is None else read_spans(spans, where, len(words)).spans,
        tags if tags is None else tuple(tags),
        row.get("document"),
        row.get("text"),
        offsets if offsets is None else tuple((start, end) for start, end in offsets),
        row.get("where", where),
        unreachable=tuple(Span(*span) for span in gold.get("unreachable", ())),
        key=row.get("id"),
        relations=relations,
    )


def _column_rows(file: DataFile) -> Iterator[tuple[str, dict[str, Any]]]:
    columns = None if file.format == "conllu" else {"tags": "-1"}
    for sentence in read_token_file(file, columns=columns):
        key = {} if sentence.key is None else {"id": sentence.key}
        row = {"words": list(sentence.words), "tags": list(sentence.tags or ())}
        yield sentence.where, key | row


_TYPES = {
    "id": int | str | None,
    "positive_label": str,
    "answer": str,
    "no_answer_score": float | None,
    "best": list[dict[str, int | float | str | None]],
    "text": str,
    "text_pair": str,
    "choice": int,
    "choice_text": str,
    "choices": list[str],
    "where": str,
    "words": list[str],
    "senses": list[str],
    "lemma": str,
    "pos": str,
    "document": str | None,
    "offsets": list[list[int]] | None,
    "score": float | None,
    "scores": dict[str, float] | list[float] | None,
    "subwords": list[str],
    "losses": list[float],
    "read_as": list[str],
    "counts": list[int],
    "boundary_losses": list[float],
    "follows": bool,
    "follows_score": float,
}
"""The types of the keys of a line, except prediction and gold."""


def _answers_by_id(file: DataFile) -> list[Row]:
    """Return the rows of one object of answers by id, as for SQuAD; empty for another file."""
    if not uncompressed_name(Path(file.name)).endswith(".json"):
        return []
    lines = file.peek(sys.maxsize)
    try:
        found = parse_json("\n".join(line.text for line in lines), file.name)
    except DataError:
        return []  # JSON Lines, or an error that is reported for its line
    if not isinstance(found, dict) or {*found} & {"id", "answer", "label"}:
        return []
    if not found or not all(isinstance(answer, str) for answer in found.values()):
        return []
    return [(f"{file.name}:{id}", {"id": id, "answer": text}) for id, text in found.items()]


def _json_rows(file: DataFile) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in file:
        where = file.where(number)
        row = parse_json(line, where, ": was the file cut?")
        if not isinstance(row, dict):
            raise DataError(f'{where}: a prediction is an object such as {{"label": "x"}}.')
        if row.get("label", "") is None:  # a blank text, which no gold label agrees with
            row = {name: v for name, v in row.items() if name not in ("score", "scores")}
            row["label"] = NO_LABEL
        for key, hint in _TYPES.items():
            if key in row and not conforms(row[key], hint):
                raise DataError(
                    f"{where}: {key} must be {description(hint)}, not {row[key]!r:.60}."
                )
        for key in ("tags", "label"):
            if key in row:
                _check(where, key, row[key], tags=key == "tags")
        yield where, row


def _check(where: str, key: str, value: Any, tags: bool = False) -> None:
    names = value if isinstance(value, list) else [value]
    if tags and not (isinstance(value, list) and all(isinstance(tag, str) for tag in value)):
        legal = "a list with one string for each word"
    elif not all(isinstance(name, str | float | int) for name in names):
        legal = "a name, a list of names or a number"
    else:
        return
    raise DataError(f"{where}: {key} must be {legal}, not {value!r:.60}.")
