"""Texts and pairs of texts with labels: which column is which, and rows to TextExamples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from finetune.data.examples import Dataset, Examples
from finetune.data.files import UTF_8, DataFile, Row
from finetune.data.labels import RawLabel, Votes, convert_labels, read_label, votes_note
from finetune.data.rows import Gold, Make, NamedColumns, RowReader, Splits
from finetune.data.tables import MissingColumn, Table, WordsNotTexts, text_cell
from finetune.types import DataError, TextExample, abbreviated

ROLES = ("text", "pair", "label", "negative")
PAIR_COLUMNS = (
    ("text", "text_pair"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("#1 string", "#2 string"),
    ("anchor", "positive"),
    ("query", "positive"),
    ("question", "answer"),
    ("query", "answer"),
    ("sentence_good", "sentence_bad"),
)
"""Usual columns of pairs: ours, NLI, GLUE and STS, QQP, QNLI, SICK, SetFit, MRPC, of search, and of
BLiMP."""
NEGATIVE_COLUMN = "negative"
"""Usual column of a hard negative, a text that does not belong to the pair."""
TEXT_COLUMNS = tuple(
    "text sentence review content message body comment description tweet post utterance "
    "abstract headline title".split()
)
"""Usual columns of texts; the first one that a table has is read."""
LABEL_COLUMNS = tuple(
    "label labels gold_label entailment_judgment is_duplicate quality coarse_label class "
    "category sentiment score similarity_score relatedness_score stars rating".split()
)
"""Usual columns of labels: of most sets, SNLI and MNLI, SICK, QQP, MRPC, TREC, STS-B, reviews."""
MOST_KNOWN = 10_000
"""Most spellings of labels that are remembered while a file is read."""

_ZERO_OR_ONE = ("0", "1", "0.0", "1.0", "false", "true")

HEADER_NAMES = frozenset(
    {name for pair in PAIR_COLUMNS for name in pair} | {*TEXT_COLUMNS, *LABEL_COLUMNS}
)


@dataclasses.dataclass(frozen=True)
class TextReader(RowReader):
    """Reads texts, or pairs of texts, with their labels.

    Args:
        pair: True requires a second text, None reads it if it exists. False refuses pairs unless
            the user names the column of the text.
        mixed_labels: Whether splits may have labels of different types, such as names and numbers.
        labeled: Whether the training split must have a column of labels.
    """

    pair: bool | None = None
    mixed_labels: bool = False
    labeled: bool = False

    header_names = HEADER_NAMES
    roles = ROLES

    def choose(self, table: Table, first: Sequence[Any], named: NamedColumns, gold: Gold) -> Make:
        """Choose the columns of texts: those that the user names, else those with usual names."""
        by_name = table.by_name
        usual = [first for first, second in PAIR_COLUMNS if {first, second} <= by_name.keys()]
        is_qa = {"context", "question"} <= by_name.keys()  # whose title is the name of an article
        usual += TEXT_COLUMNS[:-1] if is_qa else TEXT_COLUMNS
        text_column = table.find("text", named, usual)
        if text_column is None:
            missing = MissingColumn(table, "text", "a text", "text")
            words = f"{missing} Words with tags or spans are data of `finetune tag` and `ner`."
            raise WordsNotTexts(words) if by_name.keys() & {"tokens", "words"} else missing
        seconds = [second for first, second in PAIR_COLUMNS if first == text_column.lower()]
        pair_column = table.find("pair", named, seconds)
        if self.pair is False and pair_column is not None:
            if "pair" in named or "text" not in named:
                raise DataError(
                    f"{table.name}: {text_column!r} and {pair_column!r} are pairs of texts, and "
                    "single texts are read here: name the column to read, --columns "
                    f"text={text_column}, or remove the other."
                )
            pair_column = None
        if pair_column is None and self.pair:
            raise MissingColumn(table, "pair", "the second text of a pair", "text_pair")
        labels = [n for n in LABEL_COLUMNS if by_name.get(n) not in (text_column, pair_column)]
        label_column = table.find("label", named, labels)
        if self.labeled and gold == "required" and label_column is None:
            flags = [
                name
                for name in table.header
                if {str(row.values.get(name)).lower() for row in first} <= {*_ZERO_OR_ONE}
            ]
            more = f" {abbreviated(flags)} have 0 and 1: write the names of those with 1 as a list"
            more += f', such as "label": ["{flags[0]}"] in JSON Lines.' if flags else ""
            raise MissingColumn(table, "label", "the labels", "label", more if flags else "")
        searched = text_column.lower() in ("anchor", "query")
        negative_column = table.find("negative", named, [NEGATIVE_COLUMN] if searched else [])
        chosen = text_column, pair_column, label_column, negative_column
        table.read = dict(zip(ROLES, chosen, strict=True))
        of_labels = (by_name[name] for name in LABEL_COLUMNS if name in by_name)
        unread = [name for name in of_labels if name not in chosen]
        if unread and "label" not in named:
            advice = f"for {unread[0]!r} write --columns label={unread[0]}"
            table.notes.append(f"labels are from column {label_column!r}; {advice}")
        names = table.names.get(label_column or "")
        if gold == "unread":
            label_column = None
        parsed: dict[str, tuple[RawLabel, Votes | None]] = {}

        def make(index: int, row: Row) -> TextExample:
            text = row.values.get(text_column)
            text = text if type(text) is str else text_cell(row, text_column)
            pair = None if pair_column is None else text_cell(row, pair_column)
            value = None if label_column is None else row.values.get(label_column)
            label, votes = None, None
            if isinstance(value, str) and value in parsed:
                label, votes = parsed[value]
            elif value is not None:
                label, votes = read_label(value, names, row.where)
                if isinstance(value, str) and len(parsed) < MOST_KNOWN:
                    parsed[value] = label, votes
            negative = None if negative_column is None else text_cell(row, negative_column)
            return TextExample(index, text, pair, label, row.where, row.key, negative, votes=votes)

        return make

    def finished(self, splits: Splits, tables: Mapping[str, Table]) -> tuple[Splits, list[str]]:
        """Convert the labels of all splits to one type, and note votes."""
        notes: list[str] = []
        typed = all(table.typed for table in tables.values())
        apart = [{split: rows} for split, rows in splits.items()]
        examples: dict[str, Examples] = {}
        for group in apart if self.mixed_labels else [splits]:
            converted, note = convert_labels(group, typed)
            examples |= converted
            notes += [note] if note and note not in notes else []
        for split, rows in examples.items():
            if any(rows.column("votes")):
                notes.append(votes_note(split, rows.column("votes")))
        return examples, notes

    def predicted(self, index: int, example: TextExample) -> TextExample:
        """Convert the label of an example, if it is a whole number, to a name."""
        number = isinstance(example.label, int)
        return dataclasses.replace(example, label=str(example.label)) if number else example


def read_text(
    spec: Any,
    *,
    columns: Mapping[str, str] | None = None,
    pair: bool | None = None,
    splits: Sequence[str] | None = None,
    encoding: str = UTF_8,
    mixed_labels: bool = False,
    labeled: bool = False,
    errors: list[str] | None = None,
) -> Dataset:
    """Read texts, or pairs of texts, with their labels into TextExamples.

    Rows without a label are kept with label None.

    Args:
        spec: A folder, a file (read as train), ``train=FILE,test=FILE+FILE``, a folder written by
            save_to_disk, or a hub data set; or data in memory: a ``DatasetDict`` or ``Dataset``, a
            data frame, a list of dicts, or a dict of these by split.
        columns: Columns of the roles text, pair and label, if they have no usual names. Numbers
            count from 0 in files without a header.
        pair: As in ``TextReader``.
        splits: The splits to read; None reads all.
        encoding: Text encoding of the files.
        mixed_labels: As in ``TextReader``.
        labeled: As in ``TextReader``.
        errors: Gets the errors of rows that cannot be read, which are left out, as for
            ``finetune check``. Without it, the first one is raised.

    Raises:
        DataError: If the data cannot be read; the message names file and line.

    Examples:
        >>> data = read_text("examples/data/sentiment")
        >>> data.splits["train"][0].label
        'positive'
    """
    reader = TextReader(pair, mixed_labels=mixed_labels, labeled=labeled)
    return reader.read(spec, columns=columns, splits=splits, encoding=encoding, errors=errors)


def read_text_file(
    source: str | Path | IO[Any] | DataFile | Table,
    *,
    pair: bool | None = None,
    labels: bool = True,
    **options: Any,
) -> Iterator[TextExample]:
    """Stream the texts of an input for prediction; ``id`` is the row number from 0.

    In a plain text file each line is a row, blank lines too. ``labels`` False ignores labels, so
    that any column may have their name. ``pair`` is as in ``TextReader``, ``source`` and
    ``options`` as in ``RowReader.stream``.
    """
    return TextReader(pair).stream(source, gold=labels, **options)
