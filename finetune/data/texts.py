"""Texts and pairs of texts with labels: which column is which, and rows to TextExamples."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from finetune.data.annotation_tools import SKIPPED_ANSWERS
from finetune.data.collecting import collected_rows
from finetune.data.dataset import DataError, Dataset, WordsNotTexts
from finetune.data.example_store import column
from finetune.data.files import UTF_8, DataFile, ReadOptions, Record, Wanted
from finetune.data.formats import read_file
from finetune.data.labels import convert_labels, raw_label
from finetune.data.sources import open_input, open_splits, resolve
from finetune.data.tables import (
    Table,
    check_columns,
    column_notes,
    empty_split,
    find_column,
    missing_column,
    numbered_rows,
    text_cell,
    whole_number,
)
from finetune.data.token_records import Sentences
from finetune.types import TextExample, quantity

ROLES = ("text", "pair", "label", "negative")
WORD_ROLES = ("index", "index_pair")
CHARACTER_ROLES = ("start", "end", "start_pair", "end_pair")
TARGET_ROLES = (*CHARACTER_ROLES, *WORD_ROLES)
"""Columns that name the compared word in each text: by its characters, or by its number among the
words between white space, from 0."""
PAIR_COLUMNS = (
    ("text", "text_pair"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence_a", "sentence_b"),
    ("#1 string", "#2 string"),
    ("anchor", "positive"),
    ("query", "positive"),
)
"""Usual columns of pairs: ours, NLI, GLUE and STS, QQP, QNLI, SICK, MRPC, and of search."""
NEGATIVE_COLUMN = "negative"
"""Usual column of a hard negative, a text that does not belong to the pair."""
TEXT_COLUMNS = (
    "text",
    "sentence",
    "review",
    "content",
    "message",
    "body",
    "comment",
    "description",
    "tweet",
    "post",
    "utterance",
    "abstract",
    "headline",
    "title",
)
"""Usual columns of texts; the first one that a table has is read."""
LABEL_COLUMNS = (
    "label",
    "labels",
    "gold_label",
    "entailment_judgment",
    "is_duplicate",
    "quality",
    "coarse_label",
    "class",
    "category",
    "sentiment",
    "score",
    "similarity_score",
    "relatedness_score",
    "stars",
    "rating",
)
"""Usual columns of labels: of most sets, SNLI and MNLI, SICK, QQP, MRPC, TREC, STS-B, reviews."""
Characters = tuple[int, int]
"""The characters ``start`` to ``end - 1`` of a text."""

HEADER_NAMES = frozenset(
    {name for pair in PAIR_COLUMNS for name in pair} | {*TEXT_COLUMNS, *LABEL_COLUMNS}
)


class TextColumns(NamedTuple):
    """The columns by role; ``other_labels`` could hold the label too.

    ``targets`` name the compared words, see ``target_columns``.
    """

    text: str
    pair: str | None
    label: str | None
    other_labels: tuple[str, ...] = ()
    negative: str | None = None
    targets: tuple[str, ...] = ()


def read_text(
    spec: Any,
    *,
    columns: Mapping[str, str] | None = None,
    pair: bool | None = None,
    splits: Sequence[str] | None = None,
    encoding: str = UTF_8,
    mixed_labels: bool = False,
    targets: bool = False,
    errors: list[str] | None = None,
) -> Dataset:
    """Read texts, or pairs of texts, with their labels into TextExamples.

    Rows without a label are kept with label None.

    Args:
        spec: A folder, a file (read as train), ``train=FILE,test=FILE+FILE``, a folder written by
            save_to_disk, or a hub data set; or data in memory: a ``DatasetDict`` or ``Dataset``, a
            data frame, a list of dicts, or a dict of these by split.
        columns: Columns of the roles text, pair and label, and of ``TARGET_ROLES``, if they have no
            usual names. Numbers count from 0 in files without a header.
        pair: True requires a second text, False ignores one, None reads it if it exists.
        splits: The splits to read; None reads all.
        encoding: Text encoding of the files.
        mixed_labels: Whether splits may have labels of different kinds, such as names and numbers.
        targets: Whether to read the compared words of each pair (``TextExample.targets``).
        errors: Gets the errors of rows that cannot be read, which are left out, as for
            ``finetune check``. Without it, the first one is raised.

    Raises:
        DataError: If the data cannot be read; the message names file and line.

    Examples:
        >>> data = read_text("examples/data/sentiment")
        >>> data.splits["train"][0].label
        'positive'
    """
    columns = check_columns(columns, (*ROLES, *TARGET_ROLES) if targets else ROLES)
    source = open_splits(
        resolve(spec),
        splits,
        lambda file: open_text_table(file, columns, errors=errors),
        encoding,
    )
    notes = list(source.notes)
    raw: dict[str, Sequence[TextExample]] = {}
    for split, table in source.splits.items():
        first, every = table.rows()
        if not first:
            raise empty_split(table, split)
        chosen = _chosen_columns(table, columns, pair, targets)
        table.label_column = chosen.label
        known = len(table.notes)
        notes += table.notes
        keep = partial(_is_kept, answers="answer" not in chosen[:3])
        raw[split], skipped = collected_rows(
            every, partial(text_example, columns=chosen, table=table), keep, errors=errors
        )
        if not raw[split]:
            raise empty_split(table, split)
        notes += table.notes[known:]
        if skipped:
            notes.append(f"{split}: {quantity(skipped, 'row')} rejected or ignored")
        if chosen.other_labels:
            other = chosen.other_labels[0]
            advice = f"for {other!r} write --columns label={other}"
            found = f"labels are from column {chosen.label!r}; {advice}"
            notes += [] if found in notes else [found]
    notes += column_notes(source.splits)
    typed = all(table.typed for table in source.splits.values())
    examples: dict[str, Sequence[TextExample]] = {}
    for group in [{split: rows} for split, rows in raw.items()] if mixed_labels else [raw]:
        converted, note = convert_labels(group, typed)
        examples |= converted
        notes += [note] if note and note not in notes else []
    for split, rows in examples.items():
        if missing := sum(label is None for label in column(rows, "label")):
            counted = f"{missing:,} of {quantity(len(rows), 'row')}"
            notes.append(f"{split}: {counted} without label (empty, '-', NaN or -1)")
    order = next((order for table in source.splits.values() if (order := table.label_order)), ())
    return Dataset(
        source.name,
        examples,
        notes=notes,
        format=source.format,
        label_order=order,
        pinned=source.pinned,
    )


def _is_kept(record: Record, answers: bool) -> bool:
    """Return whether no annotator excluded a row; ``answers`` tells if they can."""
    return not answers or record.values.get("answer") not in SKIPPED_ANSWERS


def read_text_file(
    source: str | Path | IO[Any] | DataFile | Table,
    *,
    columns: Mapping[str, str] | None = None,
    usual_columns: Mapping[str, str] | None = None,
    pair: bool | None = None,
    format: str | None = None,
    labels: bool = True,
    encoding: str = UTF_8,
    targets: bool = False,
    rows: dict[int, Mapping[str, Any]] | None = None,
    wanted: Wanted | None = None,
) -> Iterator[TextExample]:
    """Stream the texts of an input for prediction; ``id`` is the row number from 0.

    ``source`` is a path, a folder or pattern of several files (``input_files``), ``-`` for standard
    input, a file object, or a table in memory (``input_table``). Standard input and file objects
    hold JSON Lines or, by their first line, one text per line. ``usual_columns`` are read if the
    file has them and ``columns`` names none. In a plain text file each line is a row, blank lines
    too. ``labels`` False ignores labels, so that any column may have their name. ``targets`` is as
    for ``read_text``. ``rows`` gets the values of each row by ``id``, and ``wanted`` tells which
    rows to read.
    """
    columns = check_columns(columns, (*ROLES, *TARGET_ROLES) if targets else ROLES)
    if isinstance(source, Table):
        table = source
        table.usual_columns = usual_columns or {}
    else:
        given = columns
        table = open_input(
            source,
            lambda file: open_text_table(file, given, True, usual_columns),
            format,
            encoding,
        )
    if table.first() is None:
        return
    if table.headless is not None and len(table.header) == 1:
        columns = {"text": "0", **columns}
    chosen = _chosen_columns(table, columns, pair, targets)
    chosen = chosen if labels else chosen._replace(label=None)
    for index, record in numbered_rows(table.records, rows, wanted):
        example = text_example(index, record, chosen, table)
        if isinstance(example.label, int):
            example = dataclasses.replace(example, label=str(example.label))
        yield example


def _chosen_columns(
    table: Table, columns: Mapping[str, str], pair: bool | None, targets: bool
) -> TextColumns:
    """Return the columns of texts and, if needed, the columns of targets."""
    of_texts = {role: name for role, name in columns.items() if role in ROLES}
    chosen = guess_columns(table, of_texts, pair)
    named = {"text": chosen.text, "pair": chosen.pair, "label": chosen.label}
    table.choose(**named, negative=chosen.negative)
    if not targets:
        return chosen
    chosen = chosen._replace(targets=target_columns(table, columns))
    if not chosen.targets:
        raise DataError(
            f"{table.name}: no column names the word of each text: write index and index_pair "
            "(words between blanks, from 0), or start, end, start_pair, end_pair (characters)."
        )
    size = len(chosen.targets)
    roles = CHARACTER_ROLES if size == len(CHARACTER_ROLES) else WORD_ROLES
    table.choose(**table.read, **dict(zip(roles, chosen.targets, strict=True)))
    return chosen


def guess_columns(table: Table, columns: Mapping[str, str], pair: bool | None) -> TextColumns:
    """Return the columns that the user names, else columns with usual names."""
    by_name = {name.lower(): name for name in reversed(table.header)}
    columns = table.columns(columns, ROLES)
    given = {role: find_column(table, role, name) for role, name in columns.items()}
    text, second = given.get("text"), given.get("pair")
    if text is None:
        usual = [a for a, b in PAIR_COLUMNS if a in by_name and b in by_name]
        usual += [name for name in TEXT_COLUMNS if name in by_name]
        if not usual:
            missing = missing_column(table, "text", "a text", "text")
            raise WordsNotTexts(str(missing)) if by_name.keys() & {"tokens", "words"} else missing
        text = by_name[usual[0]]
    if second is None and pair is not False:
        partners = (b for a, b in PAIR_COLUMNS if a == text.lower() and b in by_name)
        second = next((by_name[name] for name in partners), None)
    if second is None and pair:
        raise missing_column(table, "pair", "the second text of a pair", "text_pair")
    labels = [
        by_name[name]
        for name in LABEL_COLUMNS
        if name in by_name and by_name[name] not in (text, second)
    ]
    negative = given.get("negative")
    if negative is None and text.lower() in ("anchor", "query"):
        negative = by_name.get(NEGATIVE_COLUMN)
    if "label" in given:
        return TextColumns(text, second, given["label"], negative=negative)
    return TextColumns(text, second, next(iter(labels), None), tuple(labels[1:]), negative)


def open_text_table(
    file: DataFile,
    columns: Mapping[str, str],
    streaming: bool = False,
    usual_columns: Mapping[str, str] | None = None,
    header_names: frozenset[str] = HEADER_NAMES,
    errors: list[str] | None = None,
) -> Table:
    """Open a file as a table; streamed text has columns only if its first line names some.

    ``header_names`` are usual names of columns in lower case, which tell a header from data.
    """
    usual_columns = usual_columns or {}
    header_names |= {name.lower() for name in usual_columns.values()}
    if file.format in ("txt", "unknown"):
        first = file.first_line()
        tabs, commas = ({c.strip().lower() for c in first.split(mark)} for mark in "\t,")
        tsv = len(tabs) > 1 and (not streaming or columns or tabs & header_names)
        csv = file.format == "unknown" and len(commas) > 1 and commas & header_names
        file.format = "tsv" if tsv else "csv" if csv else "txt"
    table = read_file(file, ReadOptions(columns, header_names, errors=errors))
    if isinstance(table, Sentences):
        raise WordsNotTexts(
            f"{file.name} has the format {file.format}, words and spans instead of texts with a "
            "label: use finetune tag or finetune ner, or give JSON Lines, CSV or TSV."
        )
    table.usual_columns = usual_columns
    return table


def text_example(index: int, record: Record, columns: TextColumns, table: Table) -> TextExample:
    """Return a row as an example, its label as in the file."""
    text, label = text_cell(record, columns.text), None
    pair = None if columns.pair is None else text_cell(record, columns.pair)
    if columns.label is not None:
        value = record.values.get(columns.label)
        label = raw_label(value, table.names.get(columns.label), record.where)
    negative = None if columns.negative is None else text_cell(record, columns.negative)
    targets = None
    if columns.targets:
        values = [_whole_number(record, name) for name in columns.targets]
        size = len(values) // 2
        locate: Any = _characters_of_word if size == 1 else _characters
        sides = (text, values[:size]), (pair or "", values[size:])
        targets = tuple(locate(side, record.where, *numbers) for side, numbers in sides)
    return TextExample(index, text, pair, label, record.where, record.key, negative, targets)


def target_columns(table: Table, columns: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that name the compared words: two or four, none without any."""
    columns = table.columns(columns, TARGET_ROLES)
    by_name = {name.lower(): name for name in reversed(table.header)}
    for roles in (CHARACTER_ROLES, WORD_ROLES):
        found = {
            role: find_column(table, role, columns[role]) if role in columns else by_name.get(role)
            for role in roles
        }
        if not all(found.values()) and any(role in columns for role in roles):
            missing = next(role for role, name in found.items() if name is None)
            raise DataError(
                f"{table.name}: words in context need the columns {', '.join(roles)}, and "
                f"{missing!r} is missing: name it, --columns {missing}=NAME."
            )
        if all(found.values()):
            return tuple(name for name in found.values() if name is not None)
    return ()


def _whole_number(record: Record, column: str) -> int:
    value = record.values.get(column)
    found = whole_number(value)
    if found is None or found < 0:
        raise DataError(
            f"{record.where}: {column} must be a whole number from 0, not {value!r:.40}."
        )
    return found


def _characters(text: str, where: str, start: int, end: int) -> Characters:
    if not start < end <= len(text) or not text[start:end].strip():
        raise DataError(
            f"{where}: characters {start} to {end} hold no word of a text of {len(text)} "
            "characters: correct the offsets (from 0, the end excluded)."
        )
    return start, end


def _characters_of_word(text: str, where: str, index: int) -> Characters:
    words = list(re.finditer(r"\S+", text))
    if index >= len(words):
        raise DataError(
            f"{where}: there is no word {index} among {quantity(len(words), 'word')} between "
            "white space (the first is 0)."
        )
    return words[index].span()
