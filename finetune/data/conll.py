"""Words in columns: CoNLL files of any width, GermEval, GENIA's levels of tags, and CoNLL-U.

One word a line, its columns separated by tabs or by blanks, a blank line after each sentence.
``-DOCSTART-`` lines (also as the first word of a sentence) and ``# newdoc`` begin documents.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from finetune.data.dataset import DataError
from finetune.data.files import TAG, Line, Opened
from finetune.types import perhaps

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
NAMES = {
    1: ("word",),
    2: ("word", "tag"),
    3: ("word", "pos", "chunk"),
    4: ("word", "pos", "chunk", "ner"),
    5: ("word", "lemma", "pos", "chunk", "ner"),
}
"""Names of the columns by their number: CoNLL-2000 has 3, CoNLL-2003 has 4 (German: 5)."""

_LOOKED_AT = 400  # lines that decide on the layout
_COMMENT = re.compile(r"# *(id|sent_id|text|newdoc|newpar|global)\b.*=|# *new(doc|par)\b")
_NEW_DOCUMENT = re.compile(r"# *newdoc\b(?: *(?:id)? *= *)?(.*)")


class Layout(NamedTuple):
    """Where in a line the word and its tags are.

    ``tags`` has several columns for nested annotation, none where there is only a word.
    ``indexed`` files number their words in column 0; any line that begins with # is a comment.
    """

    num_columns: int
    word: int
    tags: tuple[int, ...]
    tabs: bool = False
    indexed: bool = False
    conllu: bool = False


class Sentence(NamedTuple):
    """The words of a sentence, its tags (one tuple for each tag column), and where it begins."""

    words: tuple[str, ...]
    layers: tuple[tuple[str, ...], ...]
    where: str
    document: str | None


@dataclass
class Columns:
    """An opened file of words in columns."""

    name: str
    layout: Layout
    records: Iterator[Sentence]


def open_columns(file: Opened, columns: Mapping[str, str], ragged: bool = False) -> Columns:
    """The sentences of a file; with ``ragged`` a row needs no more than its word.

    ``columns`` may name the column of the roles words and tags by number (from 0; -1 is the last)
    or by its usual name; tags also as several numbers, ``1,2``, for nested annotation.
    """
    layout = layout_of(file, columns)
    return Columns(file.name, layout, _sentences(file, layout, ragged))


def looks_like_columns(file: Opened) -> bool:
    """Whether a plain text file holds words in columns, not raw text.

    Either every line ends in a span tag, or many lines in sentences have the same few columns.
    """
    ahead = [line.text for line in file.peek(_LOOKED_AT)]
    rows = [_cells(text, "\t" in text) for text in ahead if text.strip() and text[0] != "#"]
    rows = [row for row in rows if not _is_boundary(row)]
    widths = {len(row) for row in rows}
    if len(widths) != 1 or not widths <= {2, 3, 4, 5, 10}:
        return False
    sentences = any(not text.strip() for text in ahead) and len(rows) >= 20
    return sentences or all(TAG.fullmatch(row[-1]) for row in rows)


def layout_of(file: Opened, columns: Mapping[str, str]) -> Layout:
    """Guess the layout from the first lines and the user's ``columns``."""
    lines = [line for line in file.peek(_LOOKED_AT) if line.text.strip()]
    lines = [line for line in lines if not line.text.startswith("#")] or lines
    tabs = "\t" in lines[0].text if lines else False
    rows = [_cells(line.text, tabs) for line in lines]
    rows = [row for row in rows if not _is_boundary(row)]
    if not rows:
        return Layout(1, 0, (), tabs)
    width, rows = _without_empty_end(rows)
    numbered = re.fullmatch(r"\d+([-.]\d+)?", rows[0][0]) is not None
    conllu = file.format == "conllu" or (width == 10 and tabs and numbered)
    if conllu:
        layout = Layout(10, 1, (3,), tabs=True, indexed=True, conllu=True)
    else:
        layout = _plain_layout(rows, width, tabs)
    return _chosen(file, layout, columns)


def _without_empty_end(rows: Sequence[list[str]]) -> tuple[int, list[list[str]]]:
    """The number of columns, and the rows, without last columns that are empty everywhere."""
    whole = width = len(rows[0])
    while width > 1 and not any(cell for row in rows for cell in row[width - 1 :]):
        width -= 1
    return width, [row[:width] if len(row) == whole else row for row in rows]


def _plain_layout(rows: Sequence[Sequence[str]], width: int, tabs: bool) -> Layout:
    """Word first (after its number, if there is one); all columns of tags if nested, else last."""
    starts = [row[0] for row in rows[:2]]
    indexed = tabs and width >= 3 and starts in (["1", "2"], ["0", "1"], ["1", "1"])
    first = 1 if indexed else 0
    rest = range(first + 1, width)
    spelled = all(TAG.fullmatch(row[i]) for row in rows for i in rest if len(row) == width)
    nested = spelled and len(rest) >= (2 if indexed else 3)
    tags = tuple(rest) if nested else tuple(rest[-1:])
    return Layout(width, first, tags, tabs, indexed)


def _chosen(file: Opened, layout: Layout, columns: Mapping[str, str]) -> Layout:
    if "document" in columns:
        raise DataError(
            f"{file.name}: --columns document={columns['document']}: words in columns name their "
            "documents in -DOCSTART- or # newdoc lines: leave it out."
        )
    names = CONLLU if layout.conllu else NAMES.get(layout.num_columns, ())
    if layout.indexed and not layout.conllu:
        names = ("id", *NAMES.get(layout.num_columns - 1, ()))
    if "words" in columns:
        layout = layout._replace(word=_column(file, "words", columns["words"], layout, names))
    if "tags" in columns:
        wanted = columns["tags"].split(",")
        found = tuple(_column(file, "tags", name.strip(), layout, names) for name in wanted)
        layout = layout._replace(tags=found)
    return layout


def _column(file: Opened, role: str, name: str, layout: Layout, names: Sequence[str]) -> int:
    width = layout.num_columns
    aliases = {"tags": "tag", "words": "word", "pos_tags": "pos", "chunk_tags": "chunk",
               "ner_tags": "ner", "word": "form"}  # fmt: skip
    for candidate in (name.lower(), aliases.get(name.lower(), "")):
        if candidate in names:
            return names.index(candidate)
    if re.fullmatch(r"-?\d+", name) and -width <= int(name) < width:
        return int(name) % width
    called = f", named {', '.join(names)}" if names else ""
    raise DataError(
        f"{file.name}: no column {name!r} (--columns {role}={name}): the file has {width} columns, "
        f"0 to {width - 1}{called}.{perhaps(name, names)}"
    )


def _cells(text: str, tabs: bool) -> list[str]:
    """The columns of a line; only blanks and tabs separate, other white space can be a word."""
    return text.split("\t") if tabs else re.split(r"[ \t]+", text.strip(" \t"))


def _is_boundary(row: Sequence[str]) -> bool:
    return any(cell.startswith("-DOCSTART") for cell in row[:2])


def _is_comment(text: str, cells: Sequence[str], layout: Layout, first: bool) -> bool:
    """Whether a line is no word; before the ``first`` word also any remark of other columns."""
    if not text.startswith("#"):
        return False
    if layout.indexed or _COMMENT.match(text):
        return True
    if layout.tabs:
        return text[1:2] == " " and "\t" not in text
    return first and len(cells) not in (1, layout.num_columns)


def _sentences(file: Opened, layout: Layout, ragged: bool) -> Iterator[Sentence]:
    """Sentences with their document; yields none for runs of blank lines."""
    rows: list[list[str]] = []
    begin, document, count = 0, None, itertools.count(1)
    for line in itertools.chain(file, [Line(0, "")]):
        cells = _cells(line.text, layout.tabs)
        comment = _is_comment(line.text, cells, layout, first=not rows)
        boundary = not comment and _is_boundary(cells)
        if rows and (boundary or not line.text.strip()):
            yield _sentence(rows, layout, file.where(begin), document)
            rows = []
        if boundary:
            document = str(next(count))
        elif comment:
            document = _document(line.text, document, count)
        elif line.text.strip():
            begin = begin if rows else line.number
            if row := _row(file, line, cells, layout, ragged):
                rows.append(row)


def _document(comment: str, document: str | None, count: Iterator[int]) -> str | None:
    """The document after a comment line: a new one after ``# newdoc id = …``, else the same."""
    new = _NEW_DOCUMENT.match(comment)
    return document if new is None else new[1].strip() or str(next(count))


def _row(
    file: Opened, line: Line, cells: list[str], layout: Layout, ragged: bool
) -> list[str] | None:
    """The columns of a word, None for CoNLL-U lines that are no words (ranges, empty nodes)."""
    while len(cells) > layout.num_columns and not cells[-1]:
        cells = cells[:-1]  # GermEval has a line that ends in a tab
    enough = len(cells) > layout.word if ragged else len(cells) == layout.num_columns
    if not enough:
        separator = "tabs" if layout.tabs else "blanks"
        raise DataError(
            f"{file.where(line.number)}: {len(cells)} columns where {layout.num_columns} are "
            f"expected (separated by {separator}, as in the first line): every word needs the "
            "same columns, and a blank line ends a sentence."
        )
    if layout.conllu and not cells[0].isdecimal():
        return None
    if any(cells[column] == "" for column in layout.tags if column < len(cells)) and not ragged:
        raise DataError(
            f"{file.where(line.number)}: the word {cells[layout.word]!r:.60} has no tag in column "
            f"{layout.tags[-1]}: write one for every word, or name another column, for instance "
            "--columns tags=1."
        )
    return cells


def _sentence(
    rows: Sequence[Sequence[str]], layout: Layout, where: str, document: str | None
) -> Sentence:
    words = tuple(row[layout.word] for row in rows)
    width = min(len(row) for row in rows)
    layers = tuple(tuple(row[i] for row in rows) for i in layout.tags if i < width)
    return Sentence(words, layers, where, document)
