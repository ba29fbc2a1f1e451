"""Words with tags or spans to TokenExamples: one tag scheme for the data set, nesting kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

from finetune.data.character_spans import chars_to_words, split_offsets, words_to_chars
from finetune.data.collecting import collected_rows, each_chunk, read_rows
from finetune.data.conll import looks_like_conll
from finetune.data.dataset import WARNING, DataError, Dataset
from finetune.data.example_store import ExampleStore, chosen, column, columns
from finetune.data.files import UTF_8, DataFile, ReadOptions, Wanted
from finetune.data.findings import Locations, locations_of
from finetune.data.formats import open_data, read_file
from finetune.data.sources import open_input, open_splits, resolve
from finetune.data.tables import Table, check_columns, column_notes
from finetune.data.tag_conversion import is_nested, to_bio, with_tags
from finetune.data.tag_schemes import (
    Transitions,
    all_transitions,
    count_transitions,
    scheme_of,
    spans_to_tags,
)
from finetune.data.token_records import (
    HEADER_NAMES,
    WORD_COLUMNS,
    Sentences,
    TokenRecord,
    record_reader,
    streamed_records,
    token_example,
)
from finetune.data.word_splitting import split_words
from finetune.types import TokenExample, quantity

ROLES = ("words", "tags", "spans", "text", "document", "relations")


def read_tokens(
    spec: Any,
    *,
    columns: Mapping[str, str] | None = None,
    splits: Sequence[str] | None = None,
    encoding: str = UTF_8,
    relations: bool = False,
    errors: list[str] | None = None,
) -> Dataset:
    """Read words with tags or spans into TokenExamples.

    Tags of a span scheme (IOB1, IO, BIOES, BILOU, BMES) are converted to BIO, and ``spans`` are set
    from them. Tags without a scheme (POS) are unchanged, with ``spans`` None. Spans without tags
    get BIO tags unless some spans of the data set are nested. Spans in characters that begin or end
    inside a word are kept as ``unreachable``, and counted.

    Args:
        spec: As in ``read_text``.
        columns: Columns of the roles words, tags, spans, text, document and relations if they have
            no usual names: names, or numbers from 0 in column files.
        splits: The splits to read; None reads all.
        encoding: Text encoding of the files.
        relations: Also read the relations between the spans. Words of a text are then split where
            its spans begin or end.
        errors: As in ``read_text``.

    Raises:
        DataError: If the data cannot be read; the message names file and line.

    Examples:
        >>> data = read_tokens("examples/data/ner")
        >>> data.splits["train"][0].words[:3]
        ('Nora', 'Nguyen', 'was')
    """
    columns = check_columns(columns, ROLES)
    source = open_splits(
        resolve(spec),
        splits,
        lambda file: _open(file, columns, relations=relations, errors=errors),
        encoding,
    )
    notes = list(source.notes)
    records: dict[str, Sequence[TokenRecord]] = {}
    for split, opened in source.splits.items():
        found = _records(opened, columns, split == "train", relations, errors)
        notes += opened.notes
        records[split], more = _usable_records(split, opened.name, found)
        notes += more
    notes += _span_notes([*records.values()])
    examples, scheme_notes = to_bio(records)
    tables = [opened for opened in source.splits.values() if isinstance(opened, Table)]
    notes += column_notes({s: t for s, t in source.splits.items() if isinstance(t, Table)})
    order = next((order for table in tables if (order := table.label_order)), ())
    return Dataset(
        source.name,
        examples,
        notes=notes + scheme_notes,
        format=source.format,
        label_order=order,
        pinned=source.pinned,
    )


def read_token_file(
    source: str | Path | IO[Any] | DataFile | Table,
    *,
    columns: Mapping[str, str] | None = None,
    usual_columns: Mapping[str, str] | None = None,
    format: str | None = None,
    encoding: str = UTF_8,
    rows: dict[int, Mapping[str, Any]] | None = None,
    wanted: Wanted | None = None,
    relations: bool = False,
) -> Iterator[TokenExample]:
    """Stream the words of an input for prediction; ``id`` is the row number from 0.

    Raw text is split into words with their characters: the lines of a .txt file (a blank line is an
    example without words), the ``text`` of JSON, CSV and TSV, or each .txt file of a folder. In
    column files only the column of the words is needed. Gold is kept if there is any, with tags in
    the scheme of the file. ``source``, ``usual_columns`` and ``wanted`` are as for
    ``read_text_file``. ``rows`` gets the values of each row of a table by ``id``. ``relations`` as
    in ``read_tokens``.
    """
    columns = check_columns(columns, ROLES)
    opened: Table | Sentences
    if isinstance(source, Table):
        opened = source
        opened.usual_columns = usual_columns or {}
    else:
        opened = open_input(
            source,
            lambda file: _open(file, columns, True, relations, usual_columns),
            format,
            encoding,
        )
    found: Iterator[tuple[int, TokenRecord]] = (
        streamed_records(opened, columns, rows, wanted, relations)
        if isinstance(opened, Table)
        else (each for each in enumerate(opened.records) if wanted is None or wanted(each[0]))
    )
    for index, record in found:
        if len(record.layers) > 1:
            record = record._replace(layers=())
        yield token_example(index, with_tags(record, is_nested(record)))


def read_gold(
    source: str | Path | DataFile,
    *,
    columns: Mapping[str, str] | None = None,
    usual_columns: Mapping[str, str] | None = None,
    encoding: str = UTF_8,
    relations: bool = False,
) -> list[TokenExample]:
    """Return all rows of one file, or documents of one folder, with tags and spans in BIO.

    ``relations`` are read on request. Unlike ``read_tokens``, this function keeps rows without
    words or gold, to align with predictions.
    """
    columns = check_columns(columns, ROLES)
    file = open_data(source, encoding=encoding)
    opened = _open(file, columns, relations=relations, usual_columns=usual_columns)
    examples, _ = to_bio({"gold": _records(opened, columns, relations=relations)})
    return list(examples["gold"])


def data_kind(spec: str, encoding: str = UTF_8) -> Literal["text", "tokens"]:
    """Return the kind of a data set, by its format and first row."""
    source = resolve(spec)
    if source.files:
        file = open_data(next(iter(source.files.values()))[0], encoding=encoding)
        if file.format in ("csv", "tsv", "txt", "unknown"):
            return "tokens" if file.format != "csv" and looks_like_conll(file) else "text"
        opened = read_file(file, ReadOptions(errors=[]))
    else:
        opened = next(iter(open_splits(source, None, read_file, encoding).splits.values()))
    if isinstance(opened, Sentences):
        return "tokens"
    first = opened.first()
    values = first.values if first else {}
    if isinstance(values.get("accept"), list):  # choices of Prodigy, with a list of options
        return "text"
    if {name.lower() for name in values} & {*WORD_COLUMNS}:
        return "tokens"
    lists = (value for value in values.values() if isinstance(value, list) and value)
    return "tokens" if any(isinstance(value[0], dict | list) for value in lists) else "text"


def _open(
    file: DataFile,
    columns: Mapping[str, str],
    words_only: bool = False,
    relations: bool = False,
    usual_columns: Mapping[str, str] | None = None,
    errors: list[str] | None = None,
) -> Table | Sentences:
    """Open a file; text, TSV and unknown files are CoNLL columns unless they hold raw text.

    Raw text and tables of texts are only legal for prediction (``words_only``).
    """
    if file.format == "csv" and not words_only:
        raise DataError(
            f"{file.name}: CSV rows cannot hold words with tags: write one word and its tag per "
            "line (CoNLL columns), or JSON Lines with tokens and tags."
        )
    if file.format in ("txt", "tsv", "unknown"):
        raw = words_only and file.format == "txt" and (file.live or not looks_like_conll(file))
        cells = {cell.strip().lower() for cell in file.first_line().split("\t")}
        table = words_only and file.format == "tsv" and cells & HEADER_NAMES
        file.format = file.format if raw or table else "conll"
    usual = usual_columns or {}
    names = HEADER_NAMES | {name.lower() for name in usual.values()}
    opened = read_file(file, ReadOptions(columns, names, words_only, relations, usual, errors))
    if isinstance(opened, Table):
        opened.usual_columns = usual
    return opened


def _records(
    opened: Table | Sentences,
    columns: Mapping[str, str],
    need_gold: bool = False,
    relations: bool = False,
    errors: list[str] | None = None,
) -> Sequence[TokenRecord]:
    if isinstance(opened, Sentences):
        sentences = read_rows(opened.records)
        return collected_rows(sentences, lambda _, row: row, facts=_flags, errors=errors)[0]
    first, rows = opened.rows()
    if not first:
        return []
    read = record_reader(opened, columns, first, need_gold, relations)
    return collected_rows(rows, lambda _, row: read(row), facts=_flags, errors=errors)[0]


def split_at_gold(example: TokenExample) -> TokenExample:
    """Return an example for training: its words are also split where its spans begin or end.

    Words that the data give, instead of a text, are not split.
    """
    text, offsets, spans = example.text, example.offsets, example.spans
    if not example.unreachable or spans is None or text is None or offsets is None:
        return example
    if list(offsets) != split_words(text)[1]:
        return example
    gold = [*words_to_chars(offsets, spans), *example.unreachable]
    pieces = split_offsets(offsets, gold)
    spans = tuple(sorted(chars_to_words(pieces, gold)[0]))
    words = tuple(text[start:end] for start, end in pieces)
    tags = example.tags and tuple(spans_to_tags(spans, len(words), "BIO"))
    return replace(example, words=words, spans=spans, tags=tags, offsets=pieces, unreachable=())


def training_tags(examples: Sequence[TokenExample]) -> Iterator[Sequence[str]]:
    """Yield the tags of each training example, of words that are split as ``split_at_gold`` does.

    An example without tags has none.
    """
    if any(column(examples, "unreachable")):
        return (split_at_gold(example).tags or () for example in examples)
    return (tags or () for tags in column(examples, "tags"))


def tags_and_scheme(examples: Sequence[TokenExample]) -> tuple[set[str], str | None]:
    """Return the different tags of training examples, and their scheme."""

    def count(chunk: Sequence[TokenExample]) -> tuple[set[str], Transitions | None]:
        tags = list(training_tags(chunk))
        return {*chain.from_iterable(tags)}, count_transitions(tags)

    tags, transitions = zip(*each_chunk(examples, count), strict=True)
    return set().union(*tags), scheme_of(all_transitions(transitions))


def _usable_records(
    split: str, name: str, found: Sequence[TokenRecord]
) -> tuple[Sequence[TokenRecord], list[str]]:
    """Return the records with words that no annotator excluded, and notes on the other records.

    Raises DataError if no record is left, or no record of train has gold.
    """
    flags = found.numbers("flags") if isinstance(found, ExampleStore) else _flags(found)["flags"]
    usable = (flags & (_WORDS | _SKIPPED)) == _WORDS
    kept: Sequence[TokenRecord] = found if usable.all() else chosen(found, usable.tolist())
    answers = Counter[str]()
    if (flags & _SKIPPED).any():
        answers.update(filter(None, column(found, "skipped")))
    if not kept:
        why = "every row was rejected or ignored" if answers else "add sentences or leave it out"
        raise DataError(f"{name}: the {split} split is empty: {why}.")
    flags = flags[usable] & (_GOLD | _UNANNOTATED)
    without_gold = locations_of(kept, flags & _GOLD == 0)
    without_file = locations_of(kept, flags == _UNANNOTATED)
    if split == "train" and len(without_gold) == len(kept):
        problem = "there are words but no tags: write word<TAB>tag, or a list of tags in JSON Lines"
        if without_file:
            problem = "no text is annotated: training needs a NAME.ann for each NAME.txt"
        raise DataError(f"{name}: {problem}.")
    notes = []
    if answers:
        counted = ", ".join(f"{answer} {count:,}" for answer, count in answers.most_common())
        notes.append(f"{split}: {quantity(answers.total(), 'row')} left out (answer: {counted})")
    if empty := len(found) - len(kept) - answers.total():
        notes.append(f"{split}: {quantity(empty, 'row')} without words skipped")
    if without_file:
        counted = f"{len(without_file):,} of {quantity(len(kept), 'document')}"
        where = without_file.first[0]
        notes.append(f"{split}: {counted} without .ann file and so without gold, first {where}")
    if without_tags := len(without_gold) - len(without_file):
        notes.append(f"{split}: {without_tags:,} of {quantity(len(kept), 'row')} without tags")
    return kept, notes


_WORDS, _SKIPPED, _GOLD, _UNANNOTATED = 1, 2, 4, 8
"""Flags of a record: it has words, an annotator excluded it, it has gold, it has no .ann file."""


def _flags(records: Sequence[TokenRecord]) -> Mapping[str, Any]:
    """Return the flags of records [N], computed as they are read."""
    import numpy as np

    found = (
        _WORDS * bool(record.words)
        | _SKIPPED * bool(record.skipped)
        | _GOLD * (bool(record.layers) or record.spans is not None)
        | _UNANNOTATED * record.unannotated
        for record in records
    )
    return {"flags": np.fromiter(found, np.uint8, len(records))}


def _span_notes(splits: Sequence[Sequence[TokenRecord]]) -> list[str]:
    notes = []
    number, first = 0, ""
    for rows in splits:
        for where, unreachable in columns(rows, ("where", "unreachable")):
            number, first = number + len(unreachable), first or (where if unreachable else "")
    if number:
        notes.append(
            f"{WARNING}{quantity(number, 'span')} in characters with an end inside a word: words "
            "of train are split there, and in other splits no prediction reaches such a span "
            f"(span_f1_characters counts it as missed); first in {first}"
        )
    every = chain.from_iterable(column(rows, "discontinuous") for rows in splits)
    if locations := Locations(chain.from_iterable(every)):
        notes.append(
            f"{quantity(len(locations), 'discontinuous span')}: read from the first start to the "
            f"last end, with the words between; first in {locations.first[0]}"
        )
    if skipped := sum(sum(column(rows, "num_skipped_lines")) for rows in splits):
        notes.append(
            f"{quantity(skipped, 'line')} of .ann files not used: relations, events, attributes "
            "and notes annotate no text"
        )
    return notes
