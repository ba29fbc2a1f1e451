"""Words in columns: CoNLL files of any width, GermEval, GENIA's levels of tags, and CoNLL-U.

One word per line, its columns separated by tabs or by blanks, and a blank line after each sentence.
``-DOCSTART-`` lines (also as the first word of a sentence) and ``# newdoc`` begin documents, and
``# sent_id = ID`` names the next sentence.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from finetune.data.files import DataFile, Line, ReadOptions, keep_error
from finetune.data.tables import Table
from finetune.data.tag_schemes import SPAN_TAG
from finetune.data.token_rows import TokenRow
from finetune.types import DataError, did_you_mean, quantity

CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
COLUMN_NAMES = {
    1: ("word",),
    2: ("word", "tag"),
    3: ("word", "pos", "chunk"),
    4: ("word", "pos", "chunk", "ner"),
    5: ("word", "lemma", "pos", "chunk", "ner"),
}
"""Names of the columns by their number: CoNLL-2000 has 3, CoNLL-2003 has 4 (German: 5)."""
_OTHER_NAMES = {
    "tags": "tag",
    "words": "word",
    "pos_tags": "pos",
    "chunk_tags": "chunk",
    "ner_tags": "ner",
    "word": "form",
}

_NUM_LAYOUT_LINES = 400  # lines that decide on the layout
_COMMENT = re.compile(r"# *(id|sent_id|text|newdoc|newpar|global)\b.*=|# *new(doc|par)\b")
_SENTENCE_ID = re.compile(r"# *sent_id *= *(.*\S)")
_NEW_DOCUMENT = re.compile(r"# *newdoc\b(?: *(?:id)? *= *)?(.*)")


class Layout(NamedTuple):
    """The columns of a file."""

    num_columns: int
    word: int  # index of the column of words
    tags: tuple[int, ...]  # of the tag columns: several for nested annotation
    tabs: bool = False  # tabs separate columns, not blanks
    indexed: bool = False  # column 0 numbers the words; then every line with # is a comment
    conllu: bool = False


def read_conll(file: DataFile, options: ReadOptions, table: Table) -> Iterator[TokenRow]:
    """Read the sentences of a file; with ``options.predicting`` a line needs only its word.

    The user may name the columns of the roles words and tags by number (from 0; -1 is the last) or
    by their usual names; tags also as several numbers, ``1,2``, for nested annotation.
    """
    table.sentences = True
    layout = _find_layout(file, options)
    rows: list[list[str]] = []
    begin, key = 0, None
    document: str | None = None
    num_unnamed = 0
    for line in itertools.chain(file.lines, [Line(0, "")]):
        text = line.text
        cells = _cells(text, layout.tabs)
        comment = text.startswith("#") and _is_comment(text, cells, layout, first=not rows)
        blank, new = not text.strip(), None  # the name of a new document, which may be empty
        if comment:
            new = match[1].strip() if (match := _NEW_DOCUMENT.match(text)) else None
        elif "-DOCSTART" in text and _begins_document(cells):
            new = ""
        if rows and (blank or (new is not None and not comment)):
            columns = list(zip(*rows, strict=False))  # as many as the shortest row has
            levels = tuple(columns[i] for i in layout.tags if i < len(columns))
            tags, levels = (levels[0], ()) if len(levels) == 1 else (None, levels)
            where, words = file.where(begin), columns[layout.word]
            yield TokenRow(words, where, tags, levels, document=document, key=key)
            rows, key = [], None
        if new is not None:
            num_unnamed += not new
            document = new or str(num_unnamed)
        elif comment:
            if (named := _SENTENCE_ID.match(text)) is not None:
                key = named[1]
        elif not blank:
            begin = begin if rows else line.number
            try:
                row = _row(file, line, cells, layout, options.predicting)
            except DataError as error:
                keep_error(error, options.errors)
            else:
                rows += [row] if row else []


def begins_columns(file: DataFile) -> bool:
    """True if the first lines of a file can only be of columns.

    The first line marks a document, or has cells between tabs with a span tag at the end or the ten
    columns of CoNLL-U; or a line with tabs follows comments of CoNLL-U or GermEval.
    """
    line = file.first_line()
    if line.startswith("#\t") or _COMMENT.match(line):
        following = (line.text for line in file.peek(_NUM_LAYOUT_LINES))
        return "\t" in next((text for text in following if text.strip() and text[0] != "#"), "")
    cells = line.rstrip().split("\t")
    tagged = len(cells) > 1 and SPAN_TAG.fullmatch(cells[-1]) is not None
    numbered = len(cells) == len(CONLLU_COLUMNS) and cells[0].partition("-")[0] == "1"
    return line.startswith("-DOCSTART-") or tagged or numbered


def looks_like_conll(file: DataFile) -> bool:
    """True if a plain text file holds words in columns instead of raw text.

    Either every line ends in a span tag, or many lines in sentences have the same few columns.
    """
    ahead = [line.text for line in file.peek(_NUM_LAYOUT_LINES)]
    while ahead and not ahead[-1].strip():  # the end of the file
        ahead.pop()
    rows = [_cells(text, "\t" in text) for text in ahead if text.strip() and text[0] != "#"]
    rows = [row for row in rows if not _begins_document(row)]
    widths = {len(row) for row in rows}
    if len(widths) != 1 or not widths <= {2, 3, 4, 5, 10}:
        return False
    sentences = any(not text.strip() for text in ahead) and len(rows) >= 20
    return sentences or all(SPAN_TAG.fullmatch(row[-1]) for row in rows)


def _find_layout(file: DataFile, options: ReadOptions) -> Layout:
    lines = [line for line in file.peek(_NUM_LAYOUT_LINES) if line.text.strip()]
    lines = [line for line in lines if not line.text.startswith("#")] or lines
    tabs = "\t" in lines[0].text if lines else False
    rows = [_cells(line.text, tabs) for line in lines]
    rows = [row for row in rows if not _begins_document(row)]
    if not rows:
        return Layout(1, 0, (), tabs)
    num_cells = width = len(rows[0])
    while width > 1 and not any(cell for row in rows for cell in row[width - 1 :]):
        width -= 1  # last columns that are always empty
    rows = [row[:width] if len(row) == num_cells else row for row in rows]
    numbered = re.fullmatch(r"\d+([-.]\d+)?", rows[0][0]) is not None
    if file.format == "conllu" or (width == 10 and tabs and numbered):
        layout = Layout(10, 1, (3,), tabs=True, indexed=True, conllu=True)
    else:
        layout = _guessed_layout(rows, width, tabs)
    return _with_named_columns(file, layout, options.columns, options.usual_columns)


def _guessed_layout(rows: Sequence[Sequence[str]], width: int, tabs: bool) -> Layout:
    starts = [row[0] for row in rows[:2]]
    indexed = tabs and width >= 3 and starts in (["1", "2"], ["0", "1"], ["1", "1"])
    word = 1 if indexed else 0
    tags = range(word + 1, width)
    spans = all(SPAN_TAG.fullmatch(row[i]) for row in rows for i in tags if len(row) == width)
    nested = spans and len(tags) >= (2 if indexed else 3)
    return Layout(width, word, tuple(tags) if nested else tuple(tags[-1:]), tabs, indexed)


def _with_named_columns(
    file: DataFile, layout: Layout, columns: Mapping[str, str], usual: Mapping[str, str]
) -> Layout:
    if "document" in columns:
        raise DataError(
            f"{file.name}: --columns document={columns['document']}: leave it out: CoNLL files "
            "mark documents by -DOCSTART- or # newdoc lines."
        )
    names = CONLLU_COLUMNS if layout.conllu else COLUMN_NAMES.get(layout.num_columns, ())
    if layout.indexed and not layout.conllu:
        names = ("id", *COLUMN_NAMES.get(layout.num_columns - 1, ()))
    usual = {
        role: name
        for role, name in usual.items()
        if all(_index(column.strip(), layout, names) is not None for column in name.split(","))
    }
    columns = {**usual, **columns}
    if "words" in columns:
        layout = layout._replace(word=_column(file, "words", columns["words"], layout, names))
    if "tags" in columns:
        tag_columns = columns["tags"].split(",")
        tags = tuple(_column(file, "tags", name.strip(), layout, names) for name in tag_columns)
        layout = layout._replace(tags=tags)
    return layout


def _column(file: DataFile, role: str, name: str, layout: Layout, names: Sequence[str]) -> int:
    if (number := _index(name, layout, names)) is not None:
        return number
    width = layout.num_columns
    called = f", named {', '.join(names)}" if names else ""
    raise DataError(
        f"{file.name}: no column {name!r} (--columns {role}={name}): the file has "
        f"{quantity(width, 'column')}, 0 to {width - 1}{called}.{did_you_mean(name, names)}"
    )


def _index(name: str, layout: Layout, names: Sequence[str]) -> int | None:
    width = layout.num_columns
    for candidate in (name.lower(), _OTHER_NAMES.get(name.lower(), "")):
        if candidate in names:
            return names.index(candidate)
    in_range = re.fullmatch(r"-?\d{1,9}", name) and -width <= int(name) < width
    return int(name) % width if in_range else None


def _cells(text: str, tabs: bool) -> list[str]:
    if tabs:
        return text.split("\t")
    if "\t" in text or "  " in text:
        return re.split(r"[ \t]+", text.strip(" \t"))
    return text.strip(" ").split(" ")


def _begins_document(row: Sequence[str]) -> bool:
    return any(cell.startswith("-DOCSTART") for cell in row[:2])


def _is_comment(text: str, cells: Sequence[str], layout: Layout, first: bool = True) -> bool:
    if layout.indexed or _COMMENT.match(text):
        return True
    if layout.tabs:
        return text[1:2] == " " and "\t" not in text
    return first and len(cells) not in (1, layout.num_columns)


def _row(
    file: DataFile, line: Line, cells: list[str], layout: Layout, words_only: bool
) -> list[str] | None:
    while len(cells) > layout.num_columns and not cells[-1]:
        cells = cells[:-1]  # GermEval has a line that ends in a tab
    enough = len(cells) > layout.word if words_only else len(cells) == layout.num_columns
    if not enough:
        separator = "tabs" if layout.tabs else "blanks"
        raise DataError(
            f"{file.where(line.number)}: {quantity(len(cells), 'column')} where "
            f"{layout.num_columns} are expected (separated by {separator}, as in the first line); "
            "blank lines end sentences."
        )
    if layout.conllu and not cells[0].isdecimal():
        return None
    if not words_only and "" in cells and any(cells[column] == "" for column in layout.tags):
        raise DataError(
            f"{file.where(line.number)}: the word {cells[layout.word]!r:.60} has no tag in column "
            f"{layout.tags[-1]}: write one for every word, or name another: --columns tags=1."
        )
    return cells
