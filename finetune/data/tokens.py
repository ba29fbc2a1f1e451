"""Words with tags or spans to TokenExamples: one tag scheme for the data set, nesting kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

from finetune.data.conll import begins_columns, looks_like_conll
from finetune.data.examples import WARNING, Dataset, Examples
from finetune.data.files import UTF_8, DataFile, ReadOptions, Row, open_data
from finetune.data.rows import Gold, Make, NamedColumns, RowReader, Splits
from finetune.data.sources import open_splits, resolve
from finetune.data.spans import chars_to_words, split_offsets, words_to_chars
from finetune.data.tables import MissingColumn, Table, open_text_table, read_file
from finetune.data.tag_conversion import are_nested, to_bio
from finetune.data.tag_schemes import count_tags, scheme_of, spans_to_tags
from finetune.data.token_rows import (
    HEADER_NAMES,
    ROLES,
    WORD_COLUMNS,
    TokenRow,
    token_row,
    word_columns,
)
from finetune.data.word_splitting import split_words
from finetune.types import DataError, TokenExample, quantity

_WITHOUT_GOLD = ((None, None, ()), (None, (), ()))
"""The spans, tags and levels of tags of a row without gold."""


@dataclass(frozen=True)
class TokenReader(RowReader):
    """Reads words with tags or spans.

    Args:
        given_spans: Split the words of a text where its spans begin or end.
        relations: Also read the relations between the spans.
    """

    given_spans: bool = False
    relations: bool = False

    roles = ROLES
    header_names = HEADER_NAMES

    @staticmethod
    def open(file: DataFile, options: ReadOptions) -> Table:
        """Open a file; text, TSV and unknown files are CoNLL columns.

        For prediction they may also hold raw text, or be tables of texts.
        """
        if file.format == "csv" and not options.predicting:
            raise DataError(
                f"{file.name}: CSV rows cannot hold words with tags: write one word and its tag "
                "per line (CoNLL columns), or JSON Lines with tokens and tags."
            )
        if options.predicting and file.format in ("txt", "unknown"):
            columns = not file.live and looks_like_conll(file)
            if not columns and (file.live or file.format == "unknown"):
                columns = begins_columns(file)
            if not columns:
                return open_text_table(file, options)
            file.format = "conll"
        elif file.format in ("txt", "tsv", "unknown"):
            cells = {cell.strip().lower() for cell in file.first_line().split("\t")}
            if not (options.predicting and file.format == "tsv" and cells & HEADER_NAMES):
                file.format = "conll"
        return read_file(file, options)

    def choose(self, table: Table, first: Sequence[Any], named: NamedColumns, gold: Gold) -> Make:
        """Choose the columns of words and gold by their names, and by the values of first rows."""
        kept = gold == "unread"  # rows without words, to align with predictions
        if table.sentences:
            return lambda _, sentence: sentence if sentence.words or kept else None
        chosen = word_columns(table, named, first)
        if not self.relations:
            chosen = {**chosen, "relations": None}
        table.read = chosen
        if chosen["words"] and "text" in table.header:  # the characters of Prodigy's tokens
            table.read = {**table.read, "text": "text"}
        if gold == "required" and chosen["tags"] is None and chosen["spans"] is None:
            raise MissingColumn(table, "tags", "tags or spans", "tags")

        def make(_: int, row: Row) -> TokenRow | None:
            sentence = token_row(row, chosen, table.names, self.given_spans)
            return sentence if sentence.words or kept else None

        return make

    def finished(self, splits: Splits, tables: Mapping[str, Table]) -> tuple[Splits, list[str]]:
        """Convert sentences to examples with tags in BIO and spans, and make notes.

        Raises DataError if no row of train has gold.
        """
        notes = []
        for split, rows in splits.items():
            golds = rows.columns("spans", "tags", "levels")
            if split == "train" and all(gold in _WITHOUT_GOLD for gold in golds):
                raise DataError(
                    f"{tables[split].name}: there are words but no tags: write word<TAB>tag, or a "
                    "list of tags in JSON Lines."
                )
            if empty := tables[split].left_out:
                notes.append(f"{split}: {quantity(empty, 'row')} without words skipped")
        examples, more = to_bio(splits)
        span_notes = _span_notes([*splits.values()])
        return examples, [*notes, *span_notes, *more]

    def predicted(self, index: int, sentence: TokenRow) -> TokenExample:
        """Convert a sentence to an example, with tags in the scheme of the file."""
        tags, spans = sentence.tags, sentence.spans
        misaligned, offsets = sentence.misaligned, sentence.offsets
        if tags is None and spans is not None and not are_nested(spans, misaligned, offsets):
            tags = tuple(spans_to_tags(spans, len(sentence.words), "BIO"))
        return TokenExample(
            index,
            sentence.words,
            spans,
            tags,
            sentence.document,
            sentence.text,
            offsets,
            sentence.where,
            misaligned=misaligned,
            key=sentence.key,
            relations=sentence.relations,
        )


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
    inside a word are kept as ``misaligned``, and counted.

    Args:
        spec: As in ``read_text``.
        columns: Columns of the roles words, tags, spans, text, document and relations if they have
            no usual names: names, or numbers from 0 in column files.
        splits: The splits to read; None reads all.
        encoding: Text encoding of the files.
        relations: Also read relations, and split words as with ``given_spans`` of ``TokenReader``.
        errors: As in ``read_text``.

    Raises:
        DataError: If the data cannot be read; the message names file and line.

    Examples:
        >>> data = read_tokens("examples/data/ner")
        >>> data.splits["train"][0].words[:3]
        ('Nora', 'Nguyen', 'was')
    """
    reader = TokenReader(relations, relations)
    return reader.read(spec, columns=columns, splits=splits, encoding=encoding, errors=errors)


def read_token_file(
    source: str | Path | IO[Any] | DataFile | Table, *, given_spans: bool = False, **options: Any
) -> Iterator[TokenExample]:
    """Stream the words of an input for prediction; ``id`` is the row number from 0.

    Raw text is split into words with their characters: the lines of a .txt file (a blank line is an
    example without words), or the ``text`` of JSON, CSV and TSV. In column files only the column of
    the words is needed. Gold is kept if there is any, with tags in the scheme of the file.
    ``given_spans`` is as in ``TokenReader``, ``source`` and ``options`` as in ``RowReader.stream``.
    """
    return TokenReader(given_spans).stream(source, **options)


def read_gold(
    source: str | Path | DataFile, *, relations: bool = False, encoding: str = UTF_8, **options: Any
) -> list[TokenExample]:
    """Read all rows of one file, with tags and spans in BIO.

    ``relations`` are read on request; ``options`` are as in ``RowReader.stream``. Unlike
    ``read_tokens``, this function keeps rows without words or gold, to align with predictions.
    """
    file = open_data(source, encoding=encoding)
    rows = TokenReader(relations, relations).stream(file, predicting=False, **options)
    examples, _ = to_bio({"gold": list(rows)})
    return list(examples["gold"])


def input_type_of(spec: str, encoding: str = UTF_8) -> Literal["text", "tokens", "qa", "choice"]:
    """Detect whether a data set holds texts, words, or questions of ``qa`` or ``choice``.

    Its format and its first row tell.
    """
    source = resolve(spec)
    if source.files:
        file = open_data(next(iter(source.files.values()))[0], encoding=encoding)
        if file.format in ("csv", "tsv", "txt", "unknown"):
            return "tokens" if file.format != "csv" and looks_like_conll(file) else "text"
        opened = read_file(file, ReadOptions(errors=[]))
    else:
        _, tables = open_splits(spec, None, read_file, encoding)
        opened = next(iter(tables.values()))
    first = opened.peek(1)
    if opened.sentences:
        return "tokens"
    values: Mapping[str, Any] = first[0].values if first else {}
    names = {name.lower() for name in values}
    if names >= {"question", "context", "answers"}:
        return "qa"
    if names & {"choices", "options", "endings"}:
        return "choice"
    if names & {*WORD_COLUMNS}:
        return "tokens"
    lists = (value for value in values.values() if isinstance(value, list) and value)
    return "tokens" if any(isinstance(value[0], dict | list) for value in lists) else "text"


def split_at_gold(example: TokenExample) -> TokenExample:
    """Split the words of an example for training where its spans begin or end, too.

    Words that the data give, instead of a text, are not split.
    """
    text, offsets, spans = example.text, example.offsets, example.spans
    if not example.misaligned or spans is None or text is None or offsets is None:
        return example
    if list(offsets) != split_words(text)[1]:
        return example
    gold = [*words_to_chars(offsets, spans), *example.misaligned]
    pieces = split_offsets(offsets, gold)
    spans = tuple(sorted(chars_to_words(pieces, gold)[0]))
    words = tuple(text[start:end] for start, end in pieces)
    tags = example.tags and tuple(spans_to_tags(spans, len(words), "BIO"))
    return replace(example, words=words, spans=spans, tags=tags, offsets=pieces, misaligned=())


def training_tags(examples: Examples) -> Iterator[Sequence[str]]:
    """Yield the tags of each training example, of words that are split as ``split_at_gold`` does.

    An example without tags has none.
    """
    if any(examples.column("misaligned")):
        return (split_at_gold(example).tags or () for example in examples)
    return (tags or () for tags in examples.column("tags"))


def tags_and_scheme(examples: Examples) -> tuple[set[str], str | None]:
    """Collect the different tags of training examples, and their scheme."""
    transitions, counts = count_tags(training_tags(examples))
    return {*counts}, scheme_of(transitions)


def _span_notes(splits: Sequence[Examples]) -> list[str]:
    notes = []
    kept = (rows.keep(map(bool, rows.column("misaligned"))) for rows in splits)
    misaligned = [rows for rows in kept if rows]
    if misaligned:
        spans = chain.from_iterable(rows.column("misaligned") for rows in misaligned)
        counted = quantity(sum(map(len, spans)), "span")
        notes.append(
            f"{WARNING}{counted} in characters with an end inside a word: words of train are split "
            "there, and in other splits no prediction reaches such a span (span_f1_characters "
            f"counts it as missed); first in {misaligned[0].locations([0])[0]}"
        )
    kept = (rows.keep(map(bool, rows.column("num_discontinuous"))) for rows in splits)
    if discontinuous := [rows for rows in kept if rows]:
        number = sum(sum(rows.column("num_discontinuous")) for rows in discontinuous)
        notes.append(
            f"{quantity(number, 'discontinuous span')}: read from the first start to the last end, "
            f"with the words between; first in {discontinuous[0].locations([0])[0]}"
        )
    return notes
