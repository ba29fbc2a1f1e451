"""Read the prediction files of any systems, and align them with the same gold.

Files are JSON Lines, or words in columns of which the last is predicted, or the JSON object of
answers by id that the official script of SQuAD reads.

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
from typing import Any, NamedTuple

from finetune.config.values import conforms, description
from finetune.data import DataError, read_token_file
from finetune.data.examples import normalized_texts
from finetune.data.files import UTF_8, DataFile, uncompressed_name
from finetune.data.formats import format_of, open_data
from finetune.data.json_files import parse_json
from finetune.evaluation.decisions import Costs
from finetune.evaluation.decisions.costs import with_costs
from finetune.evaluation.items import PredictionType, Tables, check_names
from finetune.evaluation.prediction_types import TYPES, type_of_row
from finetune.evaluation.prediction_types.labels import NO_LABEL
from finetune.evaluation.prediction_types.spans import SPANS, with_spelled_spans
from finetune.evaluation.prediction_types.tags import TAGS
from finetune.evaluation.runs import RunFolder
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


class GoldLabels(NamedTuple):
    """Examples with gold, and the name of the file they are from."""

    name: str
    examples: Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class GoldSource:
    """The place of the gold of predictions, and the settings to read it.

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
    """The lines of a prediction file: one JSON object for each example with its ``file:line``."""

    path: Path
    rows: Sequence[_Row]

    def __str__(self) -> str:
        return str(self.path)

    @property
    def type(self) -> PredictionType:
        """The type of the lines; tags, where a line has spans too."""
        types = {type_of_row(row) for _, row in self.rows}
        if len(types) == 1 and (type := types.pop()):
            return TYPES[type]
        raise DataError(
            f"{self.path}: each line must have `label`, or each must have `tags`, or each `spans`, "
            "or each `relations`, or each `choice`, or each `answer`, or each `senses`."
        )

    @property
    def ids(self) -> list[str] | None:
        """The ids of the rows; None without ids."""
        return _ids([(row.get("id"), where) for where, row in self.rows])

    def tables(self, gold: GoldLabels, type: PredictionType) -> tuple[Tables, str]:
        """Return the tables of the predictions with gold, and what aligned them: id or position."""
        if type.without_gold and all(type.gold(each) is None for each in gold.examples):
            raise DataError(f"{gold.name}: {type.without_gold}")
        pairs, by = self._pairs(gold, type)
        if type.without_gold:
            pairs = [pair for pair in pairs if type.gold(pair[1]) is not None]
        predictions = [type.parse(row, where, example) for (where, row), example in pairs]
        examples = [example for _, example in pairs]
        if type.tables_of_file is None:
            return type.tables_of(examples, predictions), by
        return type.tables_of_file(examples, predictions, (str(self), gold.name)), by

    def _pairs(self, gold: GoldLabels, type: PredictionType) -> tuple[list[tuple[_Row, Any]], str]:
        # by id if both sides have ids, else by position; systems may leave out examples without
        # words or gold
        words = [bool(type.asked(each)) for each in gold.examples]
        golds = [type.gold(each) is not None for each in gold.examples]
        needed = [asked and known for asked, known in zip(words, golds, strict=True)]
        keys, own = _ids([(each.key, each.where) for each in gold.examples]), self.ids
        if type.may_leave_out and own is None:
            raise DataError(
                f"{self}: its lines have no ids: write the `id` of each {type.wording.example}."
            )
        if keys is not None and own is not None:
            places = [example.where for example in gold.examples]
            required = [False] * len(keys) if type.may_leave_out else needed
            left_out: _Row | None = ("", {}) if type.may_leave_out else None
            indices = self.indices_of(keys, places, gold.name, required)
            rows = (left_out if index is None else self.rows[index] for index in indices)
            return [(row, e) for row, e in zip(rows, gold.examples, strict=True) if row], "id"
        filters = ([True] * len(golds), words, needed, golds)
        kept = next((some for some in filters if sum(some) == len(self.rows)), None)
        if kept is None:
            raise DataError(
                f"{gold.name}: {quantity(len(gold.examples), 'example')}, but "
                f"{quantity(len(self.rows), 'prediction')} in {self}: "
                f"{_mismatch(gold.examples, len(self.rows))}."
            )
        numbers = [int(id) for id in own or () if id.isdecimal()]
        if numbers != sorted(numbers):
            raise DataError(
                f"{self}: its ids are in another order than rows, and {gold.name} has no ids: sort "
                "the predictions, or write the id of each gold row."
            )
        return list(zip(self.rows, compress(gold.examples, kept), strict=True)), "position"

    def indices_of(
        self, ids: Sequence[str], places: Sequence[str], name: str, needed: Sequence[object] = ()
    ) -> list[int | None]:
        """Return the index of the row of each id; None for missing rows that are not needed."""
        own = self.ids or []
        if own == ids:
            return list(range(len(own)))
        rows, known = dict[str, int](), dict[str, str]()
        for index, (id, (where, _)) in enumerate(zip(own, self.rows, strict=True)):
            if id in rows:
                first = self.rows[rows[id]][0]
                raise DataError(
                    f"{where}: id {id!r:.40} is also in {first}: write one prediction for each id."
                )
            rows[id] = index
        for id, place in zip(ids, places, strict=True):
            if id in known:
                raise DataError(f"{place}: id {id!r:.40} is also in {known[id]}: ids must differ.")
            known[id] = place
        for id, index in rows.items():
            if id not in known:
                raise DataError(
                    f"{self.rows[index][0]}: id {id!r:.40} is not in {name}: the files do not "
                    "belong together; or remove the ids of one of them, to align by position."
                )
        required = needed or [True] * len(ids)
        missing = [id for id, need in zip(ids, required, strict=True) if need and id not in rows]
        if missing:
            raise DataError(
                f"{known[missing[0]]}: id {missing[0]!r:.40} has no prediction in {self} (it lacks "
                f"{len(missing):,} of {quantity(len(ids), 'id')}): it was cut, or is of other data."
            )
        return [rows.get(id) for id in ids]

    def gold(self, type: PredictionType) -> Sequence[Any]:
        """Return the examples with the gold that the file holds, to align predictions of a type."""
        return [type.gold_of_row(index, *row) for index, row in enumerate(self.rows)]


def _ids(rows: Sequence[tuple[Any, str]]) -> list[str] | None:
    missing = [where for id, where in rows if id is None]
    if len(missing) == len(rows):
        return None
    if missing:
        where = next(where for id, where in rows if id is not None)
        raise DataError(f"{missing[0]}: no id, but {where} has one: give each row an id, or none.")
    return [str(id) for id, _ in rows]


def _mismatch(gold: Sequence[Example], number: int) -> str:
    repeated = len(gold) - len({normalized_texts(example) for example in gold})
    if repeated and number == len(gold) - repeated:
        texts = quantity(repeated, "row has the text of another", "rows have the text of another")
        return f"in gold, {texts}: if by several annotators, keep one annotation of each text"
    return "the files do not belong together, or one was cut"


def read_predictions(path: Path, encoding: str = UTF_8) -> PredictionFile:
    """Read a prediction file, whose format is found from its name or its first line."""
    always_utf_8 = str(path) == "-" or format_of(path) in ("jsonl", "json")
    if format_of(path) in ("csv", "xlsx", "parquet"):
        raise DataError(
            f"{path}: predictions are read from JSON Lines: write them with `finetune predict "
            "--out FILE.jsonl`."
        )
    opened = open_data(path, encoding=UTF_8 if always_utf_8 else encoding)
    format = opened.format if opened.format in ("conll", "conllu") else "jsonl"
    if opened.format in ("txt", "tsv", "unknown"):
        format = "jsonl" if opened.first_line().lstrip().startswith(("{", "[")) else "conll"
    opened.format = format
    lines = format == "jsonl"
    rows = (_answers_by_id(opened) or list(_json_rows(opened))) if lines else _column_rows(opened)
    if not rows:
        raise DataError(f"{path}: there is no prediction in it.")
    return PredictionFile(path, rows)


def to_row(prediction: Prediction, example: Example) -> dict[str, Any]:
    """Return the JSON object of a prediction with the gold of its example."""
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
    if not uncompressed_name(Path(file.name)).endswith(".json"):
        return []
    lines = file.peek(sys.maxsize)
    try:
        found = parse_json("\n".join(line.text for line in lines), file.name)
    except DataError:
        return []  # JSON Lines, or an error that is reported for its line
    if not isinstance(found, dict) or {*found} & {"id", "answer", "label"}:
        return []
    answers = [(f"{file.name}:{id}", {"id": id, "answer": text}) for id, text in found.items()]
    return answers if all(isinstance(text, str) for text in found.values()) else []


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
    vocabulary: TrainingVocabulary | None
    aligned_by: str = ""
    """``id`` or ``position``; empty for one file with its gold."""
    positive_note: str = ""


def align_runs(paths: Sequence[Path], source: GoldSource | None = None) -> AlignedRuns:
    """Read prediction files for the same examples and align them with the same gold.

    Predictions are JSON Lines with ``label`` (a name, a list of names, or a number), ``tags``,
    ``relations``, ``answer``, or ``spans`` (in words; in characters where the line has a ``text``
    and no words), or words in columns of which the last is predicted, or a JSON object of answers
    by id. Predictions and gold are aligned by ``id`` where both have ids, else by position.
    """
    source = source or GoldSource()
    files = [read_predictions(path, source.encoding) for path in paths]
    types = [file.type for file in files]
    if {*types} == {TAGS, SPANS}:
        files, types = list(map(with_spelled_spans, files)), [SPANS] * len(files)
    _check_types(files, types)
    type = types[0]
    if not type.may_leave_out:
        files = _in_one_order(files)
    if source.usual_columns is None:
        known = RunFolder.open(paths[0].parent).columns if source.gold or source.train else {}
        source = replace(source, usual_columns=known)
    vocabulary = None
    if source.gold is not None:
        gold = GoldLabels(source.gold, type.read_gold(source.gold, source))
    else:
        if source.columns and source.train is None:
            role, name = next(iter(source.columns.items()))
            raise UserError(f"--columns {role}={name} is about a file of gold: add --gold FILE.")
        file = _file_with_gold(files)
        gold = GoldLabels(str(file), file.gold(type))
        vocabulary = TrainingVocabulary.load(file.path.parent)
    if source.train is not None:
        if not (type.in_words and type.has_confusions):
            raise UserError(
                f"--train {source.train}: it does not apply to {type.name}: leave it out."
            )
        vocabulary = TrainingVocabulary.of(type.read_gold(source.train, source))
    aligned = [file.tables(gold, type) for file in files]
    runs, note = type.together([run for run, _ in aligned], source.positive)
    _check_types(files, [run.type for run in runs])
    costs = source.costs or RunFolder.open(paths[0].parent).decisions.costs
    if costs:
        runs = [with_costs(run, costs) for run in runs]
    by = {by for _, by in aligned}
    one_file = source.gold is None and len(files) == 1
    aligned_by = "" if one_file else "position" if "position" in by else "id"
    return AlignedRuns(runs, gold.name, vocabulary, aligned_by, note)


def _in_one_order(files: Sequence[PredictionFile]) -> list[PredictionFile]:
    ids = [file.ids for file in files]
    first = next((f for f, own in zip(files, ids, strict=True) if own is not None), files[0])
    found = []
    for file, own in zip(files, ids, strict=True):
        if first.ids is not None and own is not None:
            order = file.indices_of(first.ids, [where for where, _ in first.rows], str(first))
            file = replace(file, rows=[file.rows[index or 0] for index in order])
        elif len(file.rows) != len(first.rows):
            raise DataError(
                f"{file}: {quantity(len(file.rows), 'prediction')}, but {len(first.rows):,} in "
                f"{first}: the files do not belong together, or one was cut."
            )
        found.append(file)
    return found


def _check_types(files: Sequence[PredictionFile], types: Sequence[PredictionType]) -> None:
    for file, type in zip(files, types, strict=True):
        if type is not types[0]:
            raise DataError(
                f"{file} predicts {type.wording.predicted}, but {files[0]} "
                f"{types[0].wording.predicted}: only predictions of one kind can be compared."
            )


def _file_with_gold(files: Sequence[PredictionFile]) -> PredictionFile:
    with_gold = [file for file in files if all("gold" in row for _, row in file.rows)]
    if not with_gold:
        raise UserError(
            f"{abbreviated(list(map(str, files)), 2)}: no gold in it to compare with: name a file "
            "of gold labels (--gold FILE; of `finetune score` the second file)."
        )
    first, *others = with_gold
    for other in others:
        same_type = other.type is first.type
        if _contents(first, same_type) != _contents(other, same_type):
            raise UserError(
                f"{other} has other examples, or other gold, than {first}: only predictions for "
                "the same examples can be compared."
            )
    return first


def _contents(file: PredictionFile, with_gold: bool) -> list[tuple[object, ...]]:
    type = file.type
    examples = file.gold(type)
    return [(type.asked(each), type.gold(each) if with_gold else None) for each in examples]
