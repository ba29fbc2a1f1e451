"""Read the prediction files of any systems, and align them with the same gold.

Files are JSON Lines, or words in columns with the prediction last.

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

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

from finetune.config.tasks import column_map
from finetune.config.values import conforms, description
from finetune.data import DataError, read_token_file
from finetune.data.files import SUFFIXES, UTF_8, Row, format_of, open_data, read_lines
from finetune.data.json_files import parse_json, read_object
from finetune.data.tag_schemes import tags_to_spans
from finetune.evaluation.decisions import Costs, Decisions
from finetune.evaluation.decisions.abstaining import abstained_note
from finetune.evaluation.decisions.costs import with_costs
from finetune.evaluation.metrics import name_of
from finetune.evaluation.prediction_types import KEYS, METRICS_OF_VECTORS, TYPES
from finetune.evaluation.prediction_types.labels import (
    all_as_numbers,
    choose_positive,
    unpredicted_note,
)
from finetune.evaluation.prediction_types.spans import (
    ONE_TAG_EACH,
    SPANS,
    are_names,
    predicted_scheme,
)
from finetune.evaluation.prediction_types.tags import TAGS
from finetune.evaluation.runs import RunFolder
from finetune.evaluation.tables import PredictionType, Tables, wrong_value
from finetune.evaluation.training_vocabulary import VOCABULARY_FILE, TrainingVocabulary
from finetune.runtime.memory import without_garbage_collection
from finetune.types import (
    Example,
    MaskedPrediction,
    Prediction,
    TextExample,
    UserError,
    abbreviated,
    quantity,
)


@dataclass(frozen=True, kw_only=True)
class GoldSource:
    """The file of the gold of predictions, and the settings to read it.

    Attributes:
        gold: A file; None takes the gold in a prediction file, and the vocabulary of its run.
        columns: Columns of these files by role.
        train: A file with training data, to tell seen from unseen words.
        positive: The positive class of two labels; the default is the class of the runs, else
            ``positive_label`` chooses.
        costs: The costs of mistakes; the default are the costs of the first run.
        encoding: Encoding of all files except JSON Lines with predictions.
    """

    gold: str | None = None
    columns: Mapping[str, str] | None = None
    train: str | None = None
    positive: str | None = None
    costs: Costs | None = None
    encoding: str = UTF_8


_Row = tuple[Mapping[str, Any], str]
"""A JSON object with a prediction, and its location."""


@dataclass(frozen=True)
class Rows:
    """The rows of a file to align: JSON objects of predictions, or examples with gold.

    ``ids`` are None if the rows have none; ``ids_from`` is the name of the file of ids.
    """

    name: str
    type: PredictionType
    rows: Sequence[Any]
    ids: list[str] | None = None
    ids_from: str = ""

    def with_ids(self) -> Rows:
        """Check that all rows or none have an id: a key that is not None or empty."""
        ids = [None if (key := row.key) in (None, "") else str(key) for row in self.rows]
        if (number := ids.count(None)) == len(ids):
            return replace(self, ids_from=self.name)
        if number:
            pairs = list(zip(self.rows, ids, strict=True))
            without = next(row.where for row, id in pairs if id is None)
            where = next(row.where for row, id in pairs if id is not None)
            raise DataError(f"{without}: no id, but {where} has one: give each row an id, or none.")
        return replace(self, ids=cast(list[str], ids), ids_from=self.name)

    def by_id(self) -> dict[str, Any]:
        """Find the rows by their ids, which must differ."""
        rows: dict[str, Any] = {}
        for id, row in zip(self.ids or (), self.rows, strict=True):
            if (other := rows.setdefault(id, row)) is not row:
                raise DataError(
                    f"{row.where}: id {id!r:.40} is also in {other.where}: write one row for each "
                    "id."
                )
        return rows

    def needed(self, example: Any) -> bool:
        """Whether each system must predict an example: it has words and gold."""
        return bool(example.inputs) and self.type.gold(example) is not None


def _in_order(gold: Rows, file: Rows) -> Rows:
    # the gold of the rows of a file by position, with their ids; systems may leave out examples
    # without words or without gold
    number = len(file.rows)
    filled = [example for example in gold.rows if example.inputs]
    needed = [example for example in gold.rows if gold.needed(example)]
    kept = next((rows for rows in (gold.rows, filled, needed) if len(rows) == number), None)
    if kept is None:
        raise DataError(
            f"{gold.name}: {quantity(len(gold.rows), 'example')}, but "
            f"{quantity(number, 'prediction')} in {file.name}: the files do not belong together, "
            "or one was cut."
        )
    numbers = [int(id) for id in file.ids or () if id.isdecimal()]
    if numbers != sorted(numbers):
        raise DataError(
            f"{file.name}: its ids are in another order than rows, and {gold.name} has no ids: "
            "sort the predictions, or write the id of each gold row."
        )
    for row, example in zip(file.rows, kept, strict=True):
        if not isinstance(example, TextExample) or not example.text:
            continue
        shown = row.values.get("text"), row.values.get("text_pair")
        for text, of_gold in zip(shown, (example.text, example.pair), strict=True):
            if text not in (None, of_gold) and text.split() != (of_gold or "").split():
                raise DataError(
                    f"{row.where}: its text is {text!r:.40}, but {of_gold!r:.40} in "
                    f"{example.where}: the files do not belong together, or their rows are in "
                    "another order: write the same id in both."
                )
    return replace(gold, rows=kept, ids=file.ids, ids_from=file.name)


def _without_gold(name: str, type: PredictionType) -> DataError:
    scores = chain.from_iterable(RunFolder.open(Path(name).parent).metrics.values())
    of_vectors = sorted(METRICS_OF_VECTORS.intersection(scores))
    problem = (
        f"the scores of this run ({', '.join(of_vectors)}) are of vectors, which predictions lack: "
        "`finetune score` and `compare` take pairs with gold, --data FILE."
    )
    return DataError(f"{name}: {problem if of_vectors else type.wording.without_gold}")


def _pair(file: Rows, gold: Rows) -> tuple[Sequence[Row], Sequence[Any]]:
    # the rows of predictions and the example of each: by id if both have ids, else in order
    type = gold.type
    if type.wording.without_gold and all(type.gold(example) is None for example in gold.rows):
        raise _without_gold(gold.name, type)
    if gold.ids is None or file.ids is None:
        if type.may_leave_out:
            raise DataError(
                f"{file.name}: its lines have no ids: write the `id` of each {type.wording.unit}."
            )
        gold = _in_order(gold, file)
    if gold.ids is None or file.ids in (None, gold.ids):
        return file.rows, gold.rows
    rows, examples = file.by_id(), gold.by_id()
    for id, row in rows.items():
        if id not in examples:
            raise DataError(
                f"{row.where}: id {id!r:.40} is not in {gold.ids_from}: the files do not belong "
                "together; or remove the ids of one of them, to align by position."
            )
    missing = [id for id in examples if id not in rows]
    needed = [id for id in missing if gold.needed(examples[id])]
    if needed and not type.may_leave_out:
        raise DataError(
            f"{examples[needed[0]].where}: id {needed[0]!r:.40} has no prediction in {file.name} "
            f"(it lacks {len(missing):,} of {quantity(len(examples), 'id')}): it was cut, or is of "
            "other data."
        )
    if type.may_leave_out:
        rows |= dict.fromkeys(missing, Row({}, ""))
    ids = [id for id in examples if id in rows]
    return [rows[id] for id in ids], [examples[id] for id in ids]


def tables_of_rows(
    type: PredictionType, rows: Sequence[_Row], examples: Sequence[Any], **fields: Any
) -> Tables:
    """Make the tables of predictions and their gold from the row of each example.

    Examples without gold are left out, if the type allows for them. ``fields`` are further fields
    of the tables.
    """
    gold = list(map(type.gold, examples))
    if type.wording.without_gold and None in gold:
        scored = [index for index, value in enumerate(gold) if value is not None]
        if not scored:
            raise _without_gold(fields["files"][1], type)
        rows, examples, gold = ([side[n] for n in scored] for side in (rows, examples, gold))
    predictions = []
    for (row, where), example in zip(rows, examples, strict=True):
        prediction = type.parse(row, where, example)
        if row.get("withheld") is not None:  # the model abstained
            prediction = replace(prediction, decided={"withheld": row["withheld"]})
        predictions.append(prediction)
    fields |= {"gold": gold, "predicted": list(map(type.answer, predictions))}
    return type.tables(Tables(type=type, examples=examples, predictions=predictions, **fields))


def read_predictions(
    path: Path, encoding: str = UTF_8, lines: Iterable[tuple[int, str, Any]] | None = None
) -> tuple[PredictionType, list[_Row]]:
    """Read a prediction file: the type of its predictions, and its rows with their locations.

    It has JSON Lines (``lines`` if it is open), words in columns with the prediction last, or the
    answers to questions by their ids, as the official evaluation of SQuAD reads them.
    """
    name, rows, keys = str(path), list[_Row](), set[str]()
    if lines is None:
        if name != "-" and SUFFIXES.get(path.suffix.lower()) != "jsonl":
            return _read_other(path, encoding)
        lines = read_lines(name, sys.stdin.buffer if name == "-" else path)
    for number, line, _ in lines:
        where = f"{name}:{number}"
        row = parse_json(line, where, ": was the file cut?")
        if not isinstance(row, dict):
            raise DataError(f'{where}: a prediction is an object such as {{"label": "x"}}.')
        for key, value in row.items():
            if key in _TYPES and not conforms(value, _TYPES[key]):
                raise wrong_value(where, key, description(_TYPES[key]), value)
        rows.append((row, where))
        keys.add(next(filter(row.__contains__, KEYS), ""))
    if not rows:
        raise DataError(f"{name}: there is no prediction in it.")
    if len(keys) > 1 or "" in keys:
        raise DataError(
            f"{name}: each line must have `label`, or each must have `tags`, or each `spans`, "
            "or each `relations`, or each `choice`, or each `answer`, or each `senses`."
        )
    return TYPES[KEYS[keys.pop()]], rows


def _read_other(path: Path, encoding: str) -> tuple[PredictionType, list[_Row]]:
    name, format = str(path), format_of(path)
    if format == "jsonl":  # compressed
        return read_predictions(path, lines=read_lines(name, path))
    file = None if format in ("csv", "xlsx", "parquet") else open_data(path, encoding=encoding)
    first = "[" if file is None else file.first_line().lstrip()[:1]
    if file is None or (file.format == "json" and first == "["):
        raise DataError(
            f"{path}: predictions are read from JSON Lines: write them with `finetune predict "
            '--out FILE.jsonl`, or with pandas: frame.to_json("FILE.jsonl", orient="records", '
            "lines=True)."
        )
    if file.format in ("conll", "conllu") or first not in ("{", "["):
        columns = None if file.format == "conllu" else {"tags": "-1"}
        file.format = "conllu" if file.format == "conllu" else "conll"
        rows: list[_Row] = [
            ({"id": e.key, "words": [*e.words], "tags": [*(e.tags or ())]}, e.where)
            for e in read_token_file(file, columns=columns)
        ]
        if not rows:
            raise DataError(f"{name}: there is no prediction in it.")
        return TAGS, rows
    lines = list(file.lines)
    text = "\n".join(line.text for line in lines).strip()
    try:
        content = json.loads(text)
    except ValueError:  # several rows, or a damaged one
        content = None
    is_row = isinstance(content, dict) and not content.keys().isdisjoint(KEYS)
    if not isinstance(content, dict) or (is_row and "\n" not in text):
        return read_predictions(path, lines=lines)
    if is_row or {*map(type, content.values())} != {str}:
        raise DataError(
            f"{name}: the file is one JSON object, but not in the official format of SQuAD, which "
            "has a text for the id of each question: write other predictions as JSON Lines, with "
            "an object in each line."
        )
    answers = content.items()
    rows = [({"id": id, "answer": answer}, f"{name}: {id}") for id, answer in answers]
    return TYPES[KEYS["answer"]], rows


def to_row(prediction: Prediction, example: Example) -> dict[str, Any]:
    """Convert a prediction, with the gold of its example, to a JSON object."""
    key = {} if example.key is None else {"id": example.key}
    row = prediction.to_dict() | key | example.to_dict()
    if isinstance(prediction, MaskedPrediction):
        row["gold"] = list(prediction.gold or ())
    return row


_TYPES: dict[str, Any] = {
    **dict.fromkeys(("positive_label", "text", "text_pair", "choice_text", "where"), str),
    **dict.fromkeys(("lemma", "pos", "label_separator", "similarity"), str),
    **dict.fromkeys(("choices", "senses", "subwords"), list[str]),
    **dict.fromkeys(("losses", "boundary_losses"), list[float]),
    **dict.fromkeys(("answer", "document"), str | None),
    **dict.fromkeys(("score", "no_answer_score"), float | None),
    "id": int | str | None,
    "withheld": str | int | list[Any] | None,
    "best": list[dict[str, int | float | str | None]],
    "choice": int | None,
    "votes": dict[str, float],
    "words": list,  # of names, as readers check
    "offsets": list[list[int]] | None,
    "scores": dict | list | None,  # a value that is no probability is not known
    "follows": bool,
    "follows_score": float,
}
"""The types of the keys of a line, except prediction and gold."""


# --- Alignment ------------------------------------------------------------------------------------


@without_garbage_collection()
def align_runs(paths: Sequence[Path], source: GoldSource | None = None) -> list[Tables]:
    """Read prediction files for the same examples and align them with the same gold.

    Predictions are JSON Lines with ``label`` (a name, a list of names, or a number), ``tags``,
    ``relations``, ``answer``, or ``spans`` (in words; in characters where the line has a ``text``
    and no words), or words in columns with the prediction last. Predictions and gold are aligned by
    ``id`` where both have ids, else by position.
    """
    source, run = source or GoldSource(), paths[0].parent
    files = [read_predictions(path, source.encoding) for path in paths]
    (type, rows), gold, train, aligned_by = files[0], str(paths[0]), source.train, ""
    examples: Sequence[Any]
    if train is not None and not (type.in_words and type.classes and type.classes.confusions):
        raise UserError(f"--train {train}: it does not apply to {type.name}: leave it out.")
    num_ids = sum(row.get("id") not in (None, "") for row, _ in rows)
    has_gold = num_ids in (0, len(rows)) and all("gold" in row for row, _ in rows)
    is_alone = len(files) == 1 and source.gold is None and not source.columns
    if is_alone and has_gold and not type.may_leave_out:
        examples = [type.gold_of_row(n, where, row) for n, (row, where) in enumerate(rows)]
        pairs: Iterable[Any] = [(rows, examples)]
    else:
        of_files = [Rows(str(path), *file) for path, file in zip(paths, files, strict=True)]
        of_gold, pairs, aligned_by = _align(of_files, source, run)
        type, gold, examples = of_gold.type, of_gold.name, of_gold.rows
    golds = map(type.gold, examples) if type.wording.without_gold else ()  # else all have gold
    fields: dict[str, Any] = {"aligned_by": aligned_by, "num_without_gold": [*golds].count(None)}
    folder = Path(gold).parent
    if train is not None:
        fields["vocabulary"] = TrainingVocabulary.of(_read_gold(train, type, source, run))
    elif source.gold is None and type.in_words and (folder / VOCABULARY_FILE).is_file():
        fields["vocabulary"] = TrainingVocabulary.load(folder)
    runs = []
    for path, pair in zip(paths, pairs, strict=True):
        schemes = None, _saved_model(path.parent)["extra"].get("scheme") if type is TAGS else None
        runs.append(tables_of_rows(type, *pair, files=(str(path), gold), schemes=schemes, **fields))
    if len(runs) > 1:
        runs = _comparable(runs)
    if source.positive is not None or len(runs) > 1:
        positive, _ = choose_positive(runs, source.positive)
        runs = [replace(tables, positive=positive) for tables in runs]
    costs = source.costs
    if costs is None and runs[0].type.one_class and type.classes and (run / "best").is_dir():
        costs = Decisions.restored(_saved_model(run)["extra"].get("decisions", {})).costs
    return [with_costs(tables, costs) for tables in runs] if costs else runs


def _align(files: list[Rows], source: GoldSource, run: Path) -> tuple[Rows, Iterable[Any], str]:
    # the examples of gold, the rows and examples of each file, and by what they are aligned
    files = [replace(file, rows=[Row(*row) for row in file.rows]).with_ids() for file in files]
    if {file.type for file in files} == {TAGS, SPANS}:
        files = list(map(_with_spelled_spans, files))
    first, type = files[0], files[0].type
    if other := next((file for file in files if file.type is not type), None):
        raise _other_type((first.name, type), (other.name, other.type))
    if source.gold is None:
        gold = _shared_gold(files, source)
    else:
        examples = _read_gold(source.gold, type, source, run)
        if type is TAGS and source.gold != "-" and any(e.tags is None for e in examples):
            nested = _read_gold(source.gold, SPANS, source, run)
            if any(example.tags is None and example.spans for example in nested):
                files, examples, type = list(map(_with_spelled_spans, files)), nested, SPANS
        gold = Rows(source.gold, type, examples).with_ids()
    with_ids, in_order = [file for file in files if file.ids is not None], gold
    aligned_by = "id" if gold.ids is not None and len(with_ids) == len(files) else "position"
    if source.gold is None and len(files) == 1:
        aligned_by = ""
    if gold.ids is None and not type.may_leave_out:
        in_order = _in_order(gold, (with_ids or files)[0])
    return gold, (_pair(file, in_order) for file in files), aligned_by


def _comparable(runs: list[Tables]) -> list[Tables]:
    # of one type, for equally many examples
    runs = all_as_numbers(runs)
    first = runs[0]
    for tables in runs[1:]:
        if tables.type is not first.type:
            raise _other_type((first.files[0], first.type), (tables.files[0], tables.type))
        if len(tables) != len(first):
            raise DataError(
                f"{tables.files[0]}: {quantity(len(tables), 'prediction')}, but {len(first):,} in "
                f"{first.files[0]}: the files do not belong together, or one was cut."
            )
    return runs


def _other_type(first: tuple[str, PredictionType], other: tuple[str, PredictionType]) -> DataError:
    return DataError(
        f"{other[0]} predicts {other[1].wording.predicted}, but {first[0]} "
        f"{first[1].wording.predicted}: only predictions of one type can be compared."
    )


def _saved_model(run: Path) -> Mapping[str, Any]:
    # what the model of a run was saved with; empty for a folder without a model
    path = run / "best" / "finetune.json"
    types = {"labels": list[str], "config": dict, "extra": dict}
    return read_object(path, types) if path.is_file() else {"labels": [], "config": {}, "extra": {}}


def notes_on(tables: Tables, run: Path) -> list[str]:
    """Say what explains the scores of a run in a folder.

    Its model lacks labels of gold, or predicts none of them, or it abstained.
    """
    notes = [unpredicted_note(tables) or _unknown_note(tables, run), abstained_note(tables)]
    return [note for note in notes if note]


def _unknown_note(tables: Tables, run: Path) -> str:
    names, classes = {*_saved_model(run)["labels"]}, tables.type.classes
    if classes is None or not names:
        return ""
    if classes.column == "type" and "O" in names:  # tags such as B-TYPE
        names = {tag.partition("-")[2] for tag in names}
    counts = Counter(name_of(gold) for gold in tables.items.gold if gold is not None)
    unknown = [f"{name} ({number:,})" for name, number in counts.items() if name not in names]
    listed = abbreviated(sorted(unknown))
    note = f"Gold has {classes.column}s that the model lacks and always misses: {listed}."
    return note if unknown else ""


def _read_gold(file: str, type: PredictionType, source: GoldSource, run: Path) -> list[Any]:
    usual = column_map(_saved_model(run)["config"].get("columns") or ())
    options = {"columns": source.columns, "usual_columns": usual, "encoding": source.encoding}
    return list(type.read_gold(file, **options))


def _with_spelled_spans(file: Rows) -> Rows:
    # the spans that tags spell, for rows without spans
    without = [row for row in file.rows if "spans" not in row.values]
    tags = [row.values["tags"] for row in without]
    for row in without:
        if not are_names(row.values["tags"]):
            raise wrong_value(row.where, "tags", ONE_TAG_EACH, row.values["tags"])
    scheme = predicted_scheme(tags, None)
    if tags and scheme is None:
        raise DataError(
            f"{file.name}: its tags do not spell spans (B-TYPE, I-TYPE, O), so they cannot be "
            "compared with spans."
        )
    spelled = (tags_to_spans(of_row, str(scheme)) for of_row in tags)
    rows = [
        row if "spans" in row.values else Row({**row.values, "spans": next(spelled)}, row.where)
        for row in file.rows
    ]
    return replace(file, rows=rows, type=SPANS)


def _shared_gold(files: Sequence[Rows], source: GoldSource) -> Rows:
    # of the prediction files that hold it, which must agree
    if source.columns and source.train is None:
        role, name = next(iter(source.columns.items()))
        raise UserError(f"--columns {role}={name} is about a file of gold: add --gold FILE.")
    type = files[0].type
    with_gold = [file for file in files if all("gold" in row.values for row in file.rows)]
    if not with_gold:
        some = any("gold" in row.values for file in files for row in file.rows)
        raise UserError(
            f"{abbreviated([file.name for file in files], 2)}: "
            f"{'some lines have no gold' if some else 'no gold in it to compare with'}: name "
            "a file of gold labels (--gold FILE; of `finetune score` the second file)."
        )
    sides = []
    for file in with_gold:
        rows = [type.gold_of_row(n, row.where, row.values) for n, row in enumerate(file.rows)]
        sides.append(replace(file, rows=rows))
    first = sides[0]
    for file, gold in zip(with_gold[1:], sides[1:], strict=True):
        same_type = len({"tags" in side.rows[0].values for side in (with_gold[0], file)}) == 1
        of_first = dict(zip(first.ids or range(len(first.rows)), first.rows, strict=True))
        for id, other in zip(gold.ids or range(len(gold.rows)), gold.rows, strict=True):
            one = of_first.get(id, other)
            if one.inputs != other.inputs or (same_type and type.gold(one) != type.gold(other)):
                raise UserError(
                    f"{gold.name} has other examples, or other gold, than {first.name}: only "
                    "predictions for the same examples can be compared."
                )
    return first
