"""Standoff annotation in the format of brat: NAME.txt and NAME.ann are one example.

A line ``T1<TAB>LABEL START END<TAB>TEXT`` annotates characters. Several ``START END`` separated by
``;`` are the fragments of a discontinuous annotation. A line ``R1<TAB>LABEL Arg1:T1 Arg2:T2`` is a
relation. Other lines (events E, attributes A and M, normalizations N, equivalences
``*``, notes ``#``) are counted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from finetune.annotation.rows import counted
from finetune.data.files import IGNORED_NAMES, read_characters, read_lines
from finetune.data.token_rows import TokenRow, covers, read_relations, with_spans
from finetune.data.word_splitting import split_words
from finetune.types import DataError, Relation, quantity

_TEXT_BOUND = re.compile(r"(T\S*)\t([^\t]+?) (\d+ \d+(?:;\d+ \d+)*) *(?:\t(.*))?")
_RELATION = re.compile(r"R\S*\t(\S+) +[^\s:]+:(T\S*) +[^\s:]+:(T\S*)\s*")
_SKIPPED_PREFIXES = tuple("REAMN*#")


class _Standoff(NamedTuple):
    """The lines of an .ann file: spans by id and their locations, relations with theirs."""

    spans: dict[str, dict[str, Any]]
    locations: list[str]
    relations: list[tuple[str, tuple[str, ...]]]
    num_skipped: int


def document_names(folder: Path) -> list[str]:
    """List the sorted names, without suffix, of the .txt and .ann files of a folder.

    Hidden files and a README.txt without annotation are left out.
    """
    files = [p for p in folder.iterdir() if not p.name.startswith(".") and p.is_file()]
    annotated = {path.stem for path in files if path.suffix == ".ann"}
    texts = {path.stem for path in files if path.suffix == ".txt"}
    return sorted(annotated | {name for name in texts if name.lower() not in IGNORED_NAMES})


def is_document(path: Path) -> bool:
    """Whether a path is a folder of documents, or the .ann file of one."""
    if path.is_dir():
        return bool(document_names(path))
    return path.suffix == ".ann" and path.with_suffix(".txt").is_file()


def read_documents(path: Path, encoding: str) -> tuple[list[TokenRow], list[str]]:
    """Read the documents of a folder by name, or the document of an .ann file, and notes.

    If a document has relations, all have, and words are also split where spans begin or end. A
    document without an .ann file has no gold.
    """
    stems = (
        [path / name for name in document_names(path)] if path.is_dir() else [path.with_suffix("")]
    )
    standoff = {s: _read_standoff(s.parent / f"{s.name}.ann", encoding) for s in stems}
    related = any(lines is not None and lines.relations for lines in standoff.values())
    documents = [_document(stem, encoding, lines, related) for stem, lines in standoff.items()]
    bare = [str(stem) for stem, lines in standoff.items() if lines is None]
    notes = [*counted(bare, "without .ann file", "without gold")]
    if skipped := sum(lines.num_skipped for lines in standoff.values() if lines is not None):
        notes.append(
            f"{quantity(skipped, 'line')} of .ann files not read: events, attributes and notes "
            "annotate no text"
        )
    return documents, notes


def _document(stem: Path, encoding: str, lines: _Standoff | None, related: bool) -> TokenRow:
    text_path, ann_path = (stem.parent / f"{stem.name}{suffix}" for suffix in (".txt", ".ann"))
    if not text_path.is_file():
        raise DataError(f"{ann_path}: the file {text_path.name} is missing in its folder.")
    spans = [] if lines is None else [*lines.spans.values()]
    # Tools differ on byte order marks and CR LF: the covered texts of the annotations decide.
    raw = read_characters(text_path, encoding)
    text = raw.removeprefix("\ufeff")
    candidates = (text, text.replace("\r\n", "\n"), raw, raw.replace("\r\n", "\n"))
    fitting = (
        candidate
        for candidate in candidates
        if all(covers(candidate, span["offsets"], span["text"]) for span in spans)
    )
    text = next(fitting, text)
    words, offsets = split_words(text)
    row = TokenRow(tuple(words), str(text_path), key=stem.name, text=text, offsets=tuple(offsets))
    if lines is None:
        return row
    row = with_spans(row, spans, lines.locations, split=related)
    if not related:
        return row
    indices = {id: number for number, id in enumerate(lines.spans)}
    relations: set[Relation] = set()
    for where, (label, *ids) in lines.relations:
        if unknown := next((id for id in ids if id not in indices), None):
            raise DataError(f"{where}: there is no {unknown} in this file: correct the relation.")
        subject, object = (indices[id] for id in ids)
        relation = {"subject": subject, "object": object, "label": label}
        relations.update(read_relations([relation], where, spans, row))
    return row._replace(relations=tuple(sorted(relations)))


def _read_standoff(path: Path, encoding: str) -> _Standoff | None:
    if not path.is_file():
        return None
    spans: dict[str, dict[str, Any]] = {}
    locations, relations, num_skipped = [], [], 0
    for number, line, _ in read_lines(str(path), path, encoding):
        where = f"{path}:{number}"
        if line.startswith("T"):
            match = _TEXT_BOUND.fullmatch(line)
            if match is None:
                raise DataError(
                    f"{where}: {line!r:.60} is not a text-bound annotation: write "
                    "T1<TAB>LABEL START END<TAB>TEXT (START END;START END if it is discontinuous)."
                )
            id, label, ranges, text = match.groups()
            if id in spans:
                raise DataError(f"{where}: {id} is twice in this file: give each an id.")
            starts_and_ends = (pair.split() for pair in ranges.split(";"))
            fragments = [(int(start), int(end)) for start, end in starts_and_ends]
            spans[id] = {"offsets": fragments, "label": label, "text": text or ""}
            locations.append(where)
        elif match := _RELATION.fullmatch(line):
            relations.append((where, match.groups()))
        elif line.startswith(_SKIPPED_PREFIXES):
            num_skipped += 1
        elif line.strip():
            raise DataError(
                f"{where}: {line!r:.60} is not a line of standoff annotation: lines begin with T "
                f"(for text) or one of {' '.join(_SKIPPED_PREFIXES)}."
            )
    return _Standoff(spans, locations, relations, num_skipped)
