"""Read the prediction files of any systems, and align them with the same gold.

Files are JSON Lines, or words in columns with the prediction last, or the JSON object of answers by
id that the official script of SQuAD reads.

The files that a run writes (``predictions.<split>.jsonl``) also hold the gold of each example and
the text or words to show, so that nothing has to read the data again:

    {"id": 0, "label": "pos", "score": 0.9, "text": "a good film", "gold": "neg"}
    {"id": 0, "label": "pos", "scores": {…}, "gold": "neg", "votes": {"neg": 3, "pos": 1}}
    {"id": 0, "choice": 1, "score": 0.9, "choices": ["No", "Yes"], "text": "Is it?", "gold": 1}
    {"id": 0, "words": ["Ana", "slept"], "tags": ["B-PER", "O"], "gold": {"tags": ["O", "O"]}}
    {"id": "q7", "answer": "Oslo", "text": "Where?", "text_pair": "…", "gold": [{"text": "Oslo"}]}
    {"id": "d0.s1.t2", "senses": ["bank%1:14:00::"], "gold": ["bank%1:17:01::"]}
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

from finetune.config.values import conforms, description
from finetune.data import DataError, read_token_file
from finetune.data.examples import normalized_texts
from finetune.data.files import UTF_8, DataFile, format_of, open_data
from finetune.data.json_files import parse_json
from finetune.evaluation.decisions import Costs
from finetune.evaluation.decisions.costs import with_costs
from finetune.evaluation.items import PredictionType, Tables, check_names
from finetune.evaluation.prediction_types import KEYS, TYPES, key_of_row
from finetune.evaluation.prediction_types.labels import LABEL, NO_LABEL, unify
from finetune.evaluation.prediction_types.spans import SPANS, with_spelled_spans
from finetune.evaluation.prediction_types.tags import TAGS
from finetune.evaluation.runs import RunFolder, saved_decisions
from finetune.evaluation.training_vocabulary import TrainingVocabulary
from finetune.types import (
    Example,
    MaskedPrediction,
    Prediction,
    UserError,
    abbreviated,
    quantity,
)

_Row = tuple[str, dict[str, Any]]
"""The ``file:line`` of a line of predictions, and its JSON object."""


@dataclass(frozen=True, kw_only=True)
class GoldSource:
    """The file of the gold of predictions, and the settings to read it.

    Attributes:
        gold: A file; None takes the gold in a prediction file, and the vocabulary of its run.
        columns: Columns of these files by role.
        usual_columns: Columns to read if a file has them; the default is the columns of the run.
        train: A file with training data, to tell seen from unseen words.
        positive: The positive class of two labels; the default is the class of the runs, else
            ``positive_label`` chooses.
        costs: The costs of mistakes; the default are the costs of the first run.
        encoding: Encoding of all files except JSON Lines with predictions.
    """

    gold: str | None = None
    columns: Mapping[str, str] | None = None
    usual_columns: Mapping[str, str] | None = None
    train: str | None = None
    positive: str | None = None
    costs: Costs | None = None
    encoding: str = UTF_8

    @property
    def reading(self) -> dict[str, Any]:
        """The arguments of readers."""
        usual = self.usual_columns
        return {"columns": self.columns, "usual_columns": usual, "encoding": self.encoding}


@dataclass(frozen=True)
class PredictionFile:
    """The lines of a prediction file: one JSON object for each example with its ``file:line``.

    ``type`` is the type of the lines; tags, where a line has spans too. ``ids`` are None without.
    """

    name: str
    rows: Sequence[_Row]
    type: PredictionType
    ids: list[str] | None

    @classmethod
    def of(cls, name: str, rows: Sequence[_Row]) -> PredictionFile:
        """Find the type and the ids of the lines."""
        keys = {key_of_row(row) for _, row in rows}
        if len(keys) > 1 or "" in keys:
            raise DataError(
                f"{name}: each line must have `label`, or each must have `tags`, or each `spans`, "
                "or each `relations`, or each `choice`, or each `answer`, or each `senses`."
            )
        ids = _ids([(row.get("id"), where) for where, row in rows])
        return cls(name, rows, TYPES[KEYS[keys.pop()]], ids)

    def gold(self, type: PredictionType) -> GoldExamples:
        """Read the examples and the gold that the file holds, to align predictions of a type."""
        return GoldExamples(
            self.name, [type.gold_of_row(i, *row) for i, row in enumerate(self.rows)]
        )

    def tables(self, gold: GoldExamples, type: PredictionType) -> Tables:
        """Make the tables of the predictions with gold, aligned by id if both have ids."""
        has_gold = [type.gold(example) is not None for example in gold.examples]
        may_lack_gold = bool(type.wording.without_gold)
        if may_lack_gold and not any(has_gold):
            raise DataError(f"{gold.name}: {type.wording.without_gold}")
        rows: Sequence[_Row | None] = self.rows
        if gold.ids is not None and self.ids is not None:
            rows = rows if self.ids == gold.ids else self._rows_of_ids(gold, type)
        elif type.may_leave_out:
            raise DataError(
                f"{self.name}: its lines have no ids: write the `id` of each {type.wording.unit}."
            )
        elif len(rows) != len(has_gold):
            gold = gold.of_rows(self, type)
            has_gold = [type.gold(example) is not None for example in gold.examples]
        kept = [
            (row, example)
            for row, example, known in zip(rows, gold.examples, has_gold, strict=True)
            if row is not None and (known or not may_lack_gold)
        ]
        predictions = [type.parse(row, where, example) for (where, row), example in kept]
        examples = [example for _, example in kept]
        return type.tables_of(examples, predictions, files=(self.name, gold.name))

    def _rows_of_ids(self, gold: GoldExamples, type: PredictionType) -> Sequence[_Row | None]:
        # None for examples without a prediction, which lack words or gold
        ids = gold.ids or []
        rows = _by_id(self.ids or [], self.rows, [where for where, _ in self.rows])
        examples = _by_id(ids, gold.examples, [example.where for example in gold.examples])
        for id, (where, _) in rows.items():
            if id not in examples:
                raise DataError(
                    f"{where}: id {id!r:.40} is not in {gold.ids_from}: the files do not belong "
                    "together; or remove the ids of one of them, to align by position."
                )
        if type.may_leave_out:
            return [rows.get(id, ("", {})) for id in ids]
        missing = [id for id in ids if id not in rows]
        if needed := [id for id in missing if _needs_prediction(examples[id], type)]:
            raise DataError(
                f"{examples[needed[0]].where}: id {needed[0]!r:.40} has no prediction in "
                f"{self.name} (it lacks {len(missing):,} of {quantity(len(ids), 'id')}): it was "
                "cut, or is of other data."
            )
        return [rows.get(id) for id in ids]


class GoldExamples:
    """Examples with gold, the name of their file, and their ids with the name of the file of ids.

    Ids are None if the examples have none in the data.
    """

    def __init__(
        self, name: str, examples: Sequence[Any], ids: list[str] | None = None, ids_from: str = ""
    ) -> None:
        self.name, self.examples, self.ids_from = name, examples, ids_from or name
        self.ids = ids or _ids([(example.key, example.where) for example in examples])

    def of_rows(self, file: PredictionFile, type: PredictionType) -> GoldExamples:
        """Find the examples of the rows of a file by position, and give them the ids of these rows.

        Systems may leave out examples without words or without gold.
        """
        has_words = [bool(example.inputs) for example in self.examples]
        has_gold = [type.gold(example) is not None for example in self.examples]
        needed = [_needs_prediction(example, type) for example in self.examples]
        filters = ([True] * len(has_gold), has_words, needed, has_gold)
        kept = next((some for some in filters if sum(some) == len(file.rows)), None)
        if kept is None:
            raise DataError(
                f"{self.name}: {quantity(len(self.examples), 'example')}, but "
                f"{quantity(len(file.rows), 'prediction')} in {file.name}: "
                f"{_mismatch(self.examples, len(file.rows))}."
            )
        numbers = [int(id) for id in file.ids or () if id.isdecimal()]
        if numbers != sorted(numbers):
            raise DataError(
                f"{file.name}: its ids are in another order than rows, and {self.name} has no ids: "
                "sort the predictions, or write the id of each gold row."
            )
        return GoldExamples(self.name, list(compress(self.examples, kept)), file.ids, file.name)


def _needs_prediction(example: Any, type: PredictionType) -> bool:
    return bool(example.inputs) and type.gold(example) is not None


def _ids(rows: Sequence[tuple[Any, str]]) -> list[str] | None:
    missing = [where for id, where in rows if id is None]
    if len(missing) == len(rows):
        return None
    if missing:
        where = next(where for id, where in rows if id is not None)
        raise DataError(f"{missing[0]}: no id, but {where} has one: give each row an id, or none.")
    return [str(id) for id, _ in rows]


def _by_id(ids: Sequence[str], values: Sequence[Any], locations: Sequence[str]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for id, value, where in zip(ids, values, locations, strict=True):
        if id in rows:
            first = locations[ids.index(id)]
            raise DataError(
                f"{where}: id {id!r:.40} is also in {first}: write one row for each id."
            )
        rows[id] = value
    return rows


def _mismatch(gold: Sequence[Example], number: int) -> str:
    repeated = len(gold) - len({normalized_texts(example) for example in gold})
    if repeated and number == len(gold) - repeated:
        texts = quantity(repeated, "row has the text of another", "rows have the text of another")
        return f"in gold, {texts}: if by several annotators, keep one annotation of each text"
    return "the files do not belong together, or one was cut"


def read_predictions(path: Path, encoding: str = UTF_8) -> PredictionFile:
    """Read a prediction file, whose format is found from its name or its first line."""
    always_utf_8 = str(path) == "-" or format_of(path) in ("jsonl", "json")
    no_lines = DataError(
        f"{path}: predictions are read from JSON Lines: write them with `finetune predict --out "
        "FILE.jsonl`."
    )
    if format_of(path) in ("csv", "xlsx", "parquet"):
        raise no_lines
    opened = open_data(path, encoding=UTF_8 if always_utf_8 else encoding)
    if opened.format == "json" and opened.first_line().lstrip().startswith("["):
        raise no_lines
    if opened.format in ("txt", "tsv", "unknown"):
        is_json = opened.first_line().lstrip().startswith(("{", "["))
        opened.format = "jsonl" if is_json else "conll"
    rows = _answers_by_id(opened) if opened.format == "json" else []
    if opened.format in ("conll", "conllu"):
        rows = _column_rows(opened)
    elif not rows:
        rows = list(_json_rows(opened))
    if not rows:
        raise DataError(f"{path}: there is no prediction in it.")
    return PredictionFile.of(str(path), rows)


def to_row(prediction: Prediction, example: Example) -> dict[str, Any]:
    """Convert a prediction, with the gold of its example, to a JSON object."""
    key = {} if example.key is None else {"id": example.key}
    row = prediction.to_dict() | key | example.to_dict()
    if isinstance(prediction, MaskedPrediction):
        row["gold"] = list(prediction.gold or ())
    return row


def _column_rows(file: DataFile) -> list[_Row]:
    columns = None if file.format == "conllu" else {"tags": "-1"}
    return [
        (
            sentence.where,
            ({} if sentence.key is None else {"id": sentence.key})
            | {"words": list(sentence.words), "tags": list(sentence.tags or ())},
        )
        for sentence in read_token_file(file, columns=columns)
    ]


_TYPES: dict[str, Any] = {
    **dict.fromkeys(("positive_label", "text", "text_pair", "choice_text", "where"), str),
    **dict.fromkeys(("lemma", "pos", "label_separator"), str),
    **dict.fromkeys(("choices", "words", "senses", "subwords", "read_as"), list[str]),
    **dict.fromkeys(("losses", "boundary_losses"), list[float]),
    **dict.fromkeys(("answer", "document"), str | None),
    **dict.fromkeys(("score", "no_answer_score"), float | None),
    "id": int | str | None,
    "withheld": str | int | list[Any] | None,
    "best": list[dict[str, int | float | str | None]],
    "choice": int | None,
    "votes": dict[str, float],
    "offsets": list[list[int]] | None,
    "scores": dict[str, float] | list[float] | None,
    "counts": list[int],
    "follows": bool,
    "follows_score": float,
}
"""The types of the keys of a line, except prediction and gold."""


def _answers_by_id(file: DataFile) -> list[_Row]:
    lines = file.peek(sys.maxsize)
    try:
        texts = parse_json("\n".join(line.text for line in lines), file.name)
    except DataError:
        return []  # JSON Lines, or an error that is reported for its line
    if not isinstance(texts, dict) or {*texts} & {"id", "answer", "label"}:
        return []
    answers = [(f"{file.name}:{id}", {"id": id, "answer": text}) for id, text in texts.items()]
    return answers if all(isinstance(text, str) for text in texts.values()) else []


def _json_rows(file: DataFile) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line, _ in file.lines:
        where = file.where(number)
        row = parse_json(line, where, ": was the file cut?")
        if not isinstance(row, dict):
            raise DataError(f'{where}: a prediction is an object such as {{"label": "x"}}.')
        if row.get("label", "") is None:  # which no gold label agrees with
            if row.get("withheld") is None:  # a blank text
                row = {name: v for name, v in row.items() if name not in ("score", "scores")}
            row["label"] = NO_LABEL
        for key, value in row.items():
            if key in _TYPES and not conforms(value, _TYPES[key]):
                legal = description(_TYPES[key])
                raise DataError(f"{where}: {key} must be {legal}, not {value!r:.60}.")
        for key in ("tags", "label"):
            if key in row:
                check_names(where, key, row[key], tags=key == "tags")
        yield where, row


# --- Alignment ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AlignedRuns:
    """The predictions of several runs for the same examples; ``gold`` is the name of its file."""

    runs: Sequence[Tables]
    gold: str
    aligned_by: str = ""
    """``id`` or ``position``; empty for one file with its gold."""
    positive_note: str = ""


def align_runs(paths: Sequence[Path], source: GoldSource | None = None) -> AlignedRuns:
    """Read prediction files for the same examples and align them with the same gold.

    Predictions are JSON Lines with ``label`` (a name, a list of names, or a number), ``tags``,
    ``relations``, ``answer``, or ``spans`` (in words; in characters where the line has a ``text``
    and no words), or words in columns with the prediction last, or a JSON object of answers
    by id. Predictions and gold are aligned by ``id`` where both have ids, else by position.
    """
    source = source or GoldSource()
    files = [read_predictions(path, source.encoding) for path in paths]
    types = [file.type for file in files]
    if {*types} == {TAGS, SPANS}:
        files, types = list(map(with_spelled_spans, files)), [SPANS] * len(files)
    _check_types(files, types)
    type = types[0]
    if source.usual_columns is None:
        known = RunFolder.open(paths[0].parent).columns if source.gold or source.train else {}
        source = replace(source, usual_columns=known)
    gold, vocabulary = _gold_and_vocabulary(files, type, source)
    by_id = gold.ids is not None and all(file.ids is not None for file in files)
    if gold.ids is None and not type.may_leave_out:
        with_ids = (file for file in files if file.ids is not None)
        gold = gold.of_rows(next(with_ids, files[0]), type)
    runs = [replace(file.tables(gold, type), vocabulary=vocabulary) for file in files]
    note = ""
    if type is LABEL:
        runs, note = unify(runs, source.positive)
    elif source.positive is not None:
        raise UserError(
            f"--positive {source.positive}: it applies to texts with one of two labels."
        )
    _check_types(files, [run.type for run in runs])
    for file, run in zip(files, runs, strict=True):
        if len(run) != len(runs[0]):
            raise DataError(
                f"{file.name}: {quantity(len(run), 'prediction')}, but {len(runs[0]):,} in "
                f"{files[0].name}: the files do not belong together, or one was cut."
            )
    if costs := source.costs or saved_decisions(paths[0].parent).costs:
        runs = [with_costs(run, costs) for run in runs]
    one_file = source.gold is None and len(files) == 1
    aligned_by = "" if one_file else "id" if by_id else "position"
    return AlignedRuns(runs, gold.name, aligned_by, note)


def _gold_and_vocabulary(
    files: Sequence[PredictionFile], type: PredictionType, source: GoldSource
) -> tuple[GoldExamples, TrainingVocabulary | None]:
    vocabulary = None
    if source.gold is not None:
        gold = GoldExamples(source.gold, type.read_gold(source.gold, source))
    elif source.columns and source.train is None:
        role, name = next(iter(source.columns.items()))
        raise UserError(f"--columns {role}={name} is about a file of gold: add --gold FILE.")
    else:
        file = _file_with_gold(files)
        gold = file.gold(type)
        if type.in_words:
            vocabulary = TrainingVocabulary.load(Path(file.name).parent)
    if source.train is not None:
        if not (type.in_words and type.classes and type.classes.confusions):
            raise UserError(
                f"--train {source.train}: it does not apply to {type.name}: leave it out."
            )
        vocabulary = TrainingVocabulary.of(type.read_gold(source.train, source))
    return gold, vocabulary


def _check_types(files: Sequence[PredictionFile], types: Sequence[PredictionType]) -> None:
    for file, type in zip(files, types, strict=True):
        if type is not types[0]:
            raise DataError(
                f"{file.name} predicts {type.wording.predicted}, but {files[0].name} "
                f"{types[0].wording.predicted}: only predictions of one type can be compared."
            )


def _file_with_gold(files: Sequence[PredictionFile]) -> PredictionFile:
    with_gold = [file for file in files if all("gold" in row for _, row in file.rows)]
    if not with_gold:
        raise UserError(
            f"{abbreviated([file.name for file in files], 2)}: no gold in it to compare with: name "
            "a file of gold labels (--gold FILE; of `finetune score` the second file)."
        )
    first, *further = with_gold
    for other in further:
        same_type = other.type is first.type
        contents = _contents(first, same_type)
        if any(
            contents.get(id, content) != content
            for id, content in _contents(other, same_type).items()
        ):
            raise UserError(
                f"{other.name} has other examples, or other gold, than {first.name}: only "
                "predictions for the same examples can be compared."
            )
    return first


def _contents(file: PredictionFile, with_gold: bool) -> dict[Any, tuple[object, ...]]:
    type, gold = file.type, file.gold(file.type)
    contents = ((e.inputs, type.gold(e) if with_gold else None) for e in gold.examples)
    return dict(zip(gold.ids or range(len(gold.examples)), contents, strict=True))
