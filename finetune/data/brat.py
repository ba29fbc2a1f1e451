"""Standoff annotation in the format of brat: NAME.txt and NAME.ann are one example.

A line ``T1<TAB>LABEL START END<TAB>TEXT`` annotates characters. Several ``START END`` separated by
``;`` are the fragments of a discontinuous annotation. A line ``R1<TAB>LABEL Arg1:T1 Arg2:T2`` is a
relation, read on request. Other lines (events E, attributes A and M, normalizations N, equivalences
``*``, notes ``#``) are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from finetune.data.dataset import DataError
from finetune.data.files import (
    IGNORED_NAMES,
    DataFile,
    ReadOptions,
    Rows,
    keep_error,
    read_characters,
    read_lines,
)
from finetune.data.tables import Table
from finetune.data.token_records import (
    TokenRecord,
    covers,
    read_relations,
    with_spans,
)
from finetune.data.word_splitting import split_words
from finetune.types import Relation

_TEXT_BOUND = re.compile(r"(T\S*)\t([^\t]+?) (\d+ \d+(?:;\d+ \d+)*) *(?:\t(.*))?")
_RELATION = re.compile(r"R\S*\t(\S+) +[^\s:]+:(T\S*) +[^\s:]+:(T\S*)\s*")
_SKIPPED_PREFIXES = tuple("REAMN*#")


class Annotation(NamedTuple):
    """One text-bound annotation; ``text`` is the copy of the covered text in its line."""

    where: str
    label: str
    fragments: list[tuple[int, int]]
    text: str
    id: str


class _Relation(NamedTuple):
    where: str
    label: str
    subject: str
    object: str


def document_names(folder: Path) -> list[str]:
    """Return the sorted names, without suffix, of the .txt and .ann files of a folder.

    Hidden files and a README.txt without annotation are left out.
    """
    files = [p for p in folder.iterdir() if not p.name.startswith(".") and p.is_file()]
    annotated = {path.stem for path in files if path.suffix == ".ann"}
    texts = {path.stem for path in files if path.suffix == ".txt"}
    return sorted(annotated | {name for name in texts if name.lower() not in IGNORED_NAMES})


def read_brat(file: DataFile, options: ReadOptions) -> Table:
    """Read the documents of a folder by name, or the document of an .ann file."""
    for role, name in options.columns.items():
        raise DataError(
            f"{file.name}: --columns {role}={name}: standoff annotation has no columns."
        )
    path = Path(file.name)
    names = document_names(path) if path.is_dir() else []
    stems = [path / name for name in names] if path.is_dir() else [path.with_suffix("")]

    def documents() -> Iterator[TokenRecord]:
        for stem in stems:
            try:
                yield _document(stem, file.encoding, options.relations)
            except DataError as error:
                keep_error(error, options.errors)

    return Table(file.name, [], Rows(documents()), sentences=True)


def _document(stem: Path, encoding: str, relations: bool) -> TokenRecord:
    """Return the words of a document and its spans; ``spans`` is None without an .ann file.

    With ``relations``, words are also split where spans begin or end.
    """
    text_path, ann_path = (stem.parent / f"{stem.name}{suffix}" for suffix in (".txt", ".ann"))
    if not text_path.is_file():
        raise DataError(f"{ann_path}: the file {text_path.name} is missing in its folder.")
    annotated = ann_path.is_file()
    annotations, related, num_skipped = (
        _annotations(ann_path, encoding) if annotated else ([], [], 0)
    )
    text = _matching_text(read_characters(text_path, encoding), annotations)
    words, offsets = split_words(text)
    record = TokenRecord(
        tuple(words),
        str(text_path),
        document=stem.name,
        text=text,
        offsets=tuple(offsets),
        num_skipped_lines=num_skipped + len(() if relations else related),
        unannotated=not annotated,
    )
    if not annotated:
        return record
    items: dict[str, Any] = {}
    for each in annotations:
        if each.id in items:
            raise DataError(f"{each.where}: {each.id} is twice in this file: give each an id.")
        items[each.id] = {"offsets": each.fragments, "label": each.label, "text": each.text}
    spans, places = list(items.values()), [each.where for each in annotations]
    record = with_spans(record, spans, places, split=relations)
    if not relations:
        return record
    indices = {id: number for number, id in enumerate(items)}
    between: set[Relation] = set()
    for where, label, *ids in related:
        for id in ids:
            if id not in indices:
                raise DataError(f"{where}: there is no {id} in this file: correct the relation.")
        pair = {"subject": indices[ids[0]], "object": indices[ids[1]]}
        one = [{**pair, "label": label}]
        between.update(read_relations(one, where, spans, record))
    return record._replace(relations=tuple(sorted(between)))


def _annotations(path: Path, encoding: str) -> tuple[list[Annotation], list[_Relation], int]:
    annotations, related, num_skipped = [], [], 0
    for number, line in read_lines(str(path), path, encoding):
        where = f"{path}:{number}"
        if line.startswith("T"):
            annotations.append(_annotation(line, where))
        elif match := _RELATION.fullmatch(line):
            related.append(_Relation(where, *match.groups()))
        elif line.startswith(_SKIPPED_PREFIXES):
            num_skipped += 1
        elif line.strip():
            raise DataError(
                f"{where}: {line!r:.60} is not a line of standoff annotation: lines begin with T "
                f"(for text) or one of {' '.join(_SKIPPED_PREFIXES)}."
            )
    return annotations, related, num_skipped


def _annotation(line: str, where: str) -> Annotation:
    match = _TEXT_BOUND.fullmatch(line)
    if match is None:
        raise DataError(
            f"{where}: {line!r:.60} is not a text-bound annotation: write "
            "T1<TAB>LABEL START END<TAB>TEXT (START END;START END if it is discontinuous)."
        )
    id, label, ranges, text = match.groups()
    pairs = [pair.split() for pair in ranges.split(";")]
    return Annotation(where, label, [(int(a), int(b)) for a, b in pairs], text or "", id)


def _matching_text(raw: str, annotations: Sequence[Annotation]) -> str:
    """Return the text with the characters that its annotations count.

    Tools differ on byte order marks and on CR LF. The covered text in the annotations decides.
    """
    text = raw.removeprefix("\ufeff")
    candidates = (text, text.replace("\r\n", "\n"), raw, raw.replace("\r\n", "\n"))
    fitting = (
        candidate
        for candidate in candidates
        if all(covers(candidate, each.fragments, each.text) for each in annotations)
    )
    return next(fitting, text)
