"""Texts and pairs of texts with labels: which column is which, and rows -> TextExample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from finetune.data.dataset import DataError, Dataset
from finetune.data.files import Opened, open_data
from finetune.data.labels import Raw, raw_label, settle
from finetune.data.loading import check_columns, find_column, no_column, tables_of
from finetune.data.sources import resolve
from finetune.data.tables import Record, Table, open_table
from finetune.types import Example, TextExample, shortened

COUPLES = (
    ("text", "text_pair"), ("premise", "hypothesis"), ("sentence1", "sentence2"),
    ("question1", "question2"), ("text_a", "text_b"), ("text1", "text2"),
    ("sentence_a", "sentence_b"), ("#1 string", "#2 string"), ("question", "sentence"),
    ("question", "passage"), ("query", "document"),
)  # fmt: skip
SINGLES = ("text", "sentence", "content", "review", "document", "tweet", "comment", "utterance",
           "question", "premise", "sentence1", "question1", "text_a", "text1", "sentence_a",
           "#1 string", "query", "title")  # fmt: skip
LABELS = ("label", "labels", "gold_label", "class", "category", "sentiment", "target", "emotion",
          "entailment_judgment", "is_duplicate", "quality", "coarse_label", "score", "stars",
          "rating", "similarity", "similarity_score", "relatedness_score")  # fmt: skip
KNOWN = frozenset({name for couple in COUPLES for name in couple} | {*SINGLES, *LABELS})
"""Lower-case column names that tell a header from data."""


class Roles(NamedTuple):
    """The columns that hold text, second text and label; ``spare`` could be the label too."""

    text: str
    pair: str | None
    label: str | None
    spare: tuple[str, ...] = ()


def read_text(
    spec: str,
    *,
    columns: Mapping[str, str] | None = None,
    pair: bool | None = None,
    splits: Sequence[str] | None = None,
) -> Dataset:
    """Read texts, or pairs of texts, with their labels into TextExamples.

    ``spec`` is a folder, a file (which is train), ``train=FILE,test=FILE``, a folder written by
    save_to_disk, or a hub data set. ``columns`` names the columns of the roles text, pair and
    label where they cannot be guessed (numbers count from 0 where there is no header). ``pair``
    True needs a second text, False ignores one, None takes it where it is. Rows without a label
    are kept with label None. Raises DataError with file and line.
    """
    columns = check_columns(columns, ("text", "pair", "label"))
    loaded = tables_of(resolve(spec), splits, lambda file: _table(file, columns))
    notes = list(loaded.notes)
    rows: dict[str, list[tuple[str, str | None, str]]] = {}
    labels: dict[str, list[tuple[Raw, str]]] = {}
    for split, table in loaded.tables.items():
        records = table.all()
        if not records:
            raise DataError(f"{table.name}: the {split} split is empty: add rows or leave it out.")
        roles = choose_roles(table, columns, pair)
        names = table.names.get(roles.label or "")
        rows[split] = [(*_texts(record, roles), record.where) for record in records]
        labels[split] = [(_label(record, roles, names), record.where) for record in records]
        notes += [note for note in _column_notes(table, roles, columns) if note not in notes]
    typed = all(table.typed for table in loaded.tables.values())
    settled, note = settle(labels, typed)
    notes += [note] if note else []
    notes += _missing_notes(settled)
    examples: dict[str, list[Example]] = {
        split: [
            TextExample(index, text, second, label, where)
            for index, ((text, second, where), label) in enumerate(
                zip(rows[split], settled[split], strict=True)
            )
        ]
        for split in rows
    }
    return Dataset(loaded.name, examples, notes=notes, format=loaded.format)


def read_text_file(
    source: str | Path | IO[Any],
    *,
    columns: Mapping[str, str] | None = None,
    pair: bool | None = None,
    format: str | None = None,
    labels: bool = True,
) -> Iterator[TextExample]:
    """Stream the texts of one file for prediction, in order, without keeping them.

    ``source`` is a path, ``-`` for standard input, or a file object; the latter two hold JSON
    Lines or, by their first line, one text per line. Labels are optional, and kept where they
    are; without ``labels`` they are not looked at, so that any column may have their name. ``id``
    is the row, from 0; in a plain text file each line is a row, even a blank one.
    """
    columns = check_columns(columns, ("text", "pair", "label"))
    table = _table(open_data(source, format), columns, plain=True)
    for example, _ in _streamed(table, columns, pair, labels):
        yield example


def read_numbered_texts(
    source: str | Path | IO[Any],
    *,
    columns: Mapping[str, str] | None = None,
    pair: bool | None = None,
) -> Iterator[tuple[TextExample, str]]:
    """Stream the texts of one file as ``read_text_file`` does, each with the number that its row
    has in the file (column index, idx or id), or else the row's place, from 0."""
    columns = check_columns(columns, ("text", "pair", "label"))
    table = _table(open_data(source), columns, plain=True)
    yield from _numbered(table, columns, pair)


def read_numbered_split(
    spec: str, split: str, *, columns: Mapping[str, str] | None = None, pair: bool | None = None
) -> Iterator[tuple[TextExample, str]]:
    """The same of one split of a data set (as ``read_text`` takes it)."""
    columns = check_columns(columns, ("text", "pair", "label"))
    loaded = tables_of(resolve(spec), [split], lambda file: _table(file, columns))
    yield from _numbered(loaded.tables[split], columns, pair)


NUMBERS = ("index", "idx", "id")
"""Usual names of a column that numbers the rows."""


def _numbered(
    table: Table, columns: Mapping[str, str], pair: bool | None
) -> Iterator[tuple[TextExample, str]]:
    for example, record in _streamed(table, columns, pair, labels=False):
        by_name = {str(name).lower(): value for name, value in record.values.items()}
        named = [str(by_name[name]).strip() for name in NUMBERS if name in by_name]
        yield example, next((number for number in named if number.isdecimal()), str(example.id))


def _streamed(
    table: Table, columns: Mapping[str, str], pair: bool | None, labels: bool
) -> Iterator[tuple[TextExample, Record]]:
    """Each row as an example, as it is read."""
    if table.first() is None:
        return
    if table.headless is not None and len(table.header) == 1:
        columns = {"text": "0", **columns}
    roles = choose_roles(table, columns, pair)
    roles = roles if labels else roles._replace(label=None)
    names = table.names.get(roles.label or "")
    for index, record in enumerate(table.records):
        text, second = _texts(record, roles)
        label = _label(record, roles, names)
        label = str(label) if isinstance(label, int) else label
        yield TextExample(index, text, second, label, record.where), record


def choose_roles(table: Table, columns: Mapping[str, str], pair: bool | None) -> Roles:
    """The columns of text, pair and label: those the user names, else by their usual names."""
    by_name = {name.lower(): name for name in reversed(table.header)}
    given = {role: find_column(table, role, name) for role, name in columns.items()}
    text, second = given.get("text"), given.get("pair")
    couple = next((c for c in COUPLES if c[0] in by_name and c[1] in by_name), None)
    if text is None:
        usual = couple[0] if couple else next((n for n in SINGLES if n in by_name), None)
        if usual is None:
            raise no_column(table, "text", "a text", "text")
        text = by_name[usual]
    if second is None and pair is not False:
        second = _usual_pair(by_name, text)
    if second is None and pair:
        raise no_column(table, "pair", "the second text of a pair", "text_pair")
    usual_labels = [by_name[n] for n in LABELS if n in by_name and by_name[n] not in (text, second)]
    label = given.get("label") or next(iter(usual_labels), None)
    spare = () if "label" in given else tuple(usual_labels[1:])
    return Roles(text, second, label, spare)


def _usual_pair(by_name: Mapping[str, str], text: str) -> str | None:
    return next((by_name[b] for a, b in COUPLES if a == text.lower() and b in by_name), None)


def _table(file: Opened, columns: Mapping[str, str], plain: bool = False) -> Table:
    """The table of a file; plain text is a table of one column, ``text``.

    ``plain`` takes a text file with tabs for a table only if its first line names columns.
    """
    if file.format in ("txt", "unknown"):
        first = file.first()
        tabs, commas = ({c.strip().lower() for c in first.split(mark)} for mark in "\t,")
        table = len(tabs) > 1 and (not plain or columns or tabs & KNOWN)
        csv = file.format == "unknown" and len(commas) > 1 and commas & KNOWN
        file.format = "tsv" if table else "csv" if csv else "txt"
    if file.format == "txt":
        rows = (Record({"text": line.text}, file.where(line.number)) for line in file)
        return Table(file.name, ["text"], rows, typed=False)
    if file.format in ("conll", "conllu"):
        raise DataError(
            f"{file.name}: a file of words in columns has no texts with a label: use it for "
            "tagging (finetune tag, finetune ner), or give JSON Lines, CSV or TSV."
        )
    if file.format == "standoff":
        what = "holds" if file.name.endswith(".ann") else "is a folder, not a file, perhaps of"
        raise DataError(
            f"{file.name} {what} standoff annotation, which is for finetune ner and finetune tag: "
            "texts with a label each are read from JSON Lines, CSV or TSV."
        )
    return open_table(file, columns.values(), KNOWN)


def _texts(record: Record, roles: Roles) -> tuple[str, str | None]:
    return _text(record, roles.text), None if roles.pair is None else _text(record, roles.pair)


def _text(record: Record, column: str) -> str:
    value = record.values.get(column)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and value == value:
        return str(value)
    if value is None or value != value:
        what = "is empty" if column in record.values else "is missing"
        raise DataError(
            f"{record.where}: column {column!r} {what} in this row (columns here: "
            f"{', '.join(record.values)}): write a text, or take the row out."
        )
    raise DataError(
        f"{record.where}: column {column!r} holds {type(value).__name__}, not a text: join words "
        "by spaces, or read the file with a tagging task."
    )


def _label(record: Record, roles: Roles, names: Sequence[str] | None) -> Raw:
    if roles.label is None:
        return None
    return raw_label(record.values.get(roles.label), names, record.where)


def _column_notes(table: Table, roles: Roles, columns: Mapping[str, str]) -> Iterator[str]:
    """What was chosen among columns: another that could be the label, and those that nobody reads
    where the column of the text was guessed."""
    if roles.spare:
        yield (
            f"labels are from column {roles.label!r}; for {roles.spare[0]!r} write "
            f"--columns label={roles.spare[0]}"
        )
    read = {roles.text, roles.pair, roles.label}
    known = (*LABELS, *NUMBERS, "")
    left = [n for n in table.header if n not in read and n.lower() not in known]
    left = [name for name in left if not name.lower().endswith("id")]
    if left and "text" not in columns:
        yield f"texts are from column {roles.text!r}; not read: {shortened(left)}"


def _missing_notes(labels: Mapping[str, Sequence[Any]]) -> list[str]:
    notes = []
    for split, values in labels.items():
        missing = sum(value is None for value in values)
        if missing:
            counted = f"{missing:,} of {len(values):,} rows"
            notes.append(f"{split}: {counted} have no label (empty, '-', NaN or -1)")
    return notes
