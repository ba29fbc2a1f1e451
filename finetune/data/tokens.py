"""Words with tags or spans -> TokenExample: one scheme for the whole data set, nesting kept."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal

from finetune.align import (
    convert_tags,
    detect_scheme,
    illegal_transitions,
    spans_to_tags,
    split_words,
    tags_to_spans,
)
from finetune.data.columns import Columns, looks_like_columns, open_columns
from finetune.data.dataset import DataError, Dataset
from finetune.data.files import Opened, open_data
from finetune.data.loading import check_columns, tables_of
from finetune.data.sources import resolve
from finetune.data.tables import Table, open_table
from finetune.data.token_rows import KNOWN, WORDS, Unit, table_units
from finetune.types import Example, Span, TokenExample

ROLES = ("words", "tags", "spans", "text")


def read_tokens(
    spec: str,
    *,
    columns: Mapping[str, str] | None = None,
    splits: Sequence[str] | None = None,
) -> Dataset:
    """Read words with tags or spans into TokenExamples.

    ``spec`` is as for read_text. ``columns`` names the columns of the roles words, tags, spans
    and text where they cannot be guessed: names, or numbers from 0 in column files. Tags of a
    span scheme (IOB1, IO, BIOES, BILOU, BMES) are converted to BIO, and ``spans`` are what they
    spell; tags without a scheme (POS) stay, with ``spans`` None. Spans without tags get BIO tags
    unless some of the data set are nested. Spans over characters of a text are widened to whole
    words. Raises DataError with file and line.
    """
    columns = check_columns(columns, ROLES)
    loaded = tables_of(resolve(spec), splits, lambda file: _opened(file, columns))
    notes = list(loaded.notes)
    units: dict[str, list[Unit]] = {}
    for split, table in loaded.tables.items():
        found = list(_units(table, columns, needed=split == "train"))
        units[split] = [unit for unit in found if unit.words]
        notes += _checked_notes(split, table.name, found, units[split])
    notes += _widened_note(units)
    units, scheme_notes = _in_bio(units)
    examples: dict[str, list[Example]] = {
        split: [_example(index, unit) for index, unit in enumerate(rows)]
        for split, rows in units.items()
    }
    return Dataset(loaded.name, examples, notes=notes + scheme_notes, format=loaded.format)


def read_token_file(
    source: str | Path | IO[Any],
    *,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
) -> Iterator[TokenExample]:
    """Stream the words of one file in order, for prediction, without keeping them.

    ``source`` is a path, ``-`` for standard input, or a file object; the latter two hold JSON
    Lines or, by their first line, raw text. Raw text is split into words with their characters:
    the lines of a .txt file (a blank line is an example without words), or the ``text`` of JSON,
    CSV and TSV. In column files only the column of the words is needed. Gold is kept where there
    is some, tags in the scheme of the file. ``id`` is the row.
    """
    columns = check_columns(columns, ROLES)
    opened = _opened_plain(open_data(source, format), columns)
    for index, unit in enumerate(_units(opened, columns, streaming=True)):
        if len(unit.layers) > 1:
            unit = unit._replace(layers=())
        yield _example(index, _tagged(unit, is_nested(unit.spans or ())))


def kind_of(spec: str) -> Literal["text", "tokens"]:
    """Whether a data set holds words with tags or texts, by its format and its first row."""
    source = resolve(spec)
    if source.files:
        file = open_data(next(iter(source.files.values()))[0])
        if file.format in ("conll", "conllu") or _column_text(file):
            return "tokens"
        if file.format in ("csv", "tsv", "txt", "unknown"):
            return "text"
        table = open_table(file, (), KNOWN)
    else:
        table = next(iter(tables_of(source, None, lambda file: open_table(file, (), ())).tables
                          .values()))  # fmt: skip
    first = table.first()
    names = {name.lower() for name in first.values} if first else set()
    marked = first is not None and any(
        isinstance(value, list) and value and isinstance(value[0], dict | list)
        for value in first.values.values()
    )
    return "tokens" if names & set(WORDS) or marked else "text"


def _column_text(file: Opened) -> bool:
    return file.format in ("txt", "tsv", "unknown") and looks_like_columns(file)


def _opened(file: Opened, columns: Mapping[str, str]) -> Table | Columns:
    if file.format in ("jsonl", "json", "parquet"):
        return open_table(file, columns.values(), KNOWN)
    if file.format == "csv":
        raise DataError(
            f"{file.name}: CSV rows hold no words with tags: write one word and its tag a line "
            "(CoNLL columns), or JSON Lines with tokens and tags."
        )
    return open_columns(file, columns)


def _opened_plain(file: Opened, columns: Mapping[str, str]) -> Table | Columns | Iterator[Unit]:
    """Like _opened, for input without gold: raw text and tables of texts too."""
    if file.format == "txt" and (file.live or not looks_like_columns(file)):
        return _raw_lines(file)
    if file.format in ("jsonl", "json", "parquet", "csv"):
        return open_table(file, columns.values(), KNOWN)
    cells = {cell.strip().lower() for cell in file.first().split("\t")}
    if file.format == "tsv" and cells & KNOWN:
        return open_table(file, columns.values(), KNOWN)
    return open_columns(file, columns, ragged=True)


def _raw_lines(file: Opened) -> Iterator[Unit]:
    for line in file:
        words, offsets = split_words(line.text)
        where = file.where(line.number)
        yield Unit(tuple(words), where, text=line.text, offsets=tuple(offsets))


def _units(
    table: Table | Columns | Iterator[Unit],
    columns: Mapping[str, str],
    *,
    streaming: bool = False,
    needed: bool = False,
) -> Iterator[Unit]:
    if isinstance(table, Table):
        return table_units(table, columns, streaming, needed)
    if isinstance(table, Columns):
        return (Unit(s.words, s.where, s.layers, document=s.document) for s in table.records)
    return table


def _example(index: int, unit: Unit) -> TokenExample:
    tags = unit.layers[0] if unit.layers else None
    return TokenExample(
        index, unit.words, unit.spans, tags, unit.document, unit.text, unit.offsets, unit.where
    )


def _checked_notes(split: str, name: str, found: list[Unit], kept: list[Unit]) -> list[str]:
    """Notes on rows without words or gold; raises DataError where nothing is left to learn from."""
    bare = sum(not unit.layers and unit.spans is None for unit in kept)
    if not kept:
        raise DataError(f"{name}: the {split} split is empty: add sentences or leave it out.")
    if split == "train" and bare == len(kept):
        raise DataError(
            f"{name}: there are words but no tags: training needs a tag for each word "
            "(word<TAB>tag in columns, or a list of tags in JSON Lines)."
        )
    notes = []
    if len(found) > len(kept):
        notes.append(f"{split}: {len(found) - len(kept):,} rows without words skipped")
    if bare:
        notes.append(f"{split}: {bare:,} of {len(kept):,} rows have no tags")
    return notes


def _widened_note(units: Mapping[str, Sequence[Unit]]) -> list[str]:
    total = sum(unit.num_widened for rows in units.values() for unit in rows)
    return [f"{total:,} spans began or ended inside a word: widened to whole words"] * bool(total)


def _in_bio(units: Mapping[str, list[Unit]]) -> tuple[dict[str, list[Unit]], list[str]]:
    """Tags of all splits in BIO with their spans, and notes on what was found and done."""
    everything = [unit for rows in units.values() for unit in rows]
    layers = [layer for unit in everything for layer in unit.layers]
    prefixed = not _bare_types(layers)
    if not prefixed:
        units = {split: [_prefixed(unit) for unit in rows] for split, rows in units.items()}
        layers = [layer for rows in units.values() for unit in rows for layer in unit.layers]
    scheme = detect_scheme(layers)
    if layers and all(tag.isdecimal() for layer in layers for tag in layer):
        return dict(units), ["tags are numbers without names: put names in their place"]
    notes = _scheme_notes(scheme, prefixed) + _repair_notes(scheme, units)
    if scheme is None and any(len(unit.layers) > 1 for unit in everything):
        unit = next(unit for unit in everything if len(unit.layers) > 1)
        raise DataError(
            f"{unit.where}: several columns of tags, but they spell no spans (B-TYPE, I-TYPE, O): "
            "name the one column to read, for instance --columns tags=1."
        )
    if scheme is not None:
        units = {s: [_spelled(unit, scheme) for unit in rows] for s, rows in units.items()}
    nested = any(is_nested(unit.spans or ()) for rows in units.values() for unit in rows)
    if nested:
        notes.append("nested spans: examples have spans, no tags")
    return {split: [_tagged(u, nested) for u in rows] for split, rows in units.items()}, notes


def _bare_types(layers: Iterable[Sequence[str]]) -> bool:
    """Whether tags are O and types without a prefix (Few-NERD): O on at least half of the words.

    The share tells them from part-of-speech sets that have an ``O`` of their own.
    """
    counts = Counter(itertools.chain.from_iterable(layers))
    bare = all("-" not in tag[:2] for tag in counts)
    return bare and len(counts) > 1 and counts["O"] * 2 >= counts.total()


def _prefixed(unit: Unit) -> Unit:
    layers = tuple(tuple(t if t == "O" else f"I-{t}" for t in layer) for layer in unit.layers)
    return unit._replace(layers=layers)


def _scheme_notes(scheme: str | None, prefixed: bool) -> list[str]:
    if not prefixed:
        return ["tags have no B- or I- before the type: read as spans of equal tags, now in BIO"]
    if scheme is None or scheme == "BIO":
        return []
    return [f"tag scheme {scheme} found, converted to BIO"]


def _repair_notes(scheme: str | None, units: Mapping[str, Sequence[Unit]]) -> list[str]:
    """How many tags the conversion to BIO repaired, and where the first of them is."""
    if scheme in (None, "BIO"):
        return []
    everything = (unit for rows in units.values() for unit in rows)
    broken = [(u.where, sum(len(illegal_transitions(layer, scheme)) for layer in u.layers))
              for u in everything]  # fmt: skip
    total = sum(count for _, count in broken)
    first = next((where for where, count in broken if count), "")
    what = "tags stood where they may not and were read as the start of a span"
    return [f"{total:,} {what}, first in {first}"] * bool(total)


def _spelled(unit: Unit, scheme: str) -> Unit:
    """The unit with the spans its tags spell; one layer of tags in BIO."""
    if not unit.layers:
        return unit
    found = {span for layer in unit.layers for span in tags_to_spans(layer, scheme)}
    spans = tuple(sorted(found)) if unit.spans is None else unit.spans
    if len(unit.layers) > 1:
        return unit._replace(layers=(), spans=spans)
    if scheme == "BIO":
        return unit._replace(spans=spans)
    return unit._replace(layers=(tuple(convert_tags(unit.layers[0], scheme, "BIO")),), spans=spans)


def _tagged(unit: Unit, nested: bool) -> Unit:
    if nested or unit.layers or unit.spans is None:
        return unit
    return unit._replace(layers=(tuple(spans_to_tags(unit.spans, len(unit.words), "BIO")),))


def is_nested(spans: Sequence[Span]) -> bool:
    """Whether any two of the spans share a word."""
    return any(right.start < left.end for left, right in pairwise(sorted(spans)))
