"""Standoff annotation as brat writes it: NAME.txt with NAME.ann beside it, one example for each.

A line ``T1<TAB>LABEL START END<TAB>TEXT`` annotates characters; several ``START END`` separated by
``;`` are the fragments of a discontinuous annotation. Lines that annotate no text (relations R,
events E, attributes A and M, normalizations N, equivalences ``*``, notes ``#``) are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from finetune.data.dataset import DataError
from finetune.data.files import document_names, open_data, whole_text
from finetune.data.span_records import envelope
from finetune.data.units import Unit
from finetune.data.word_splitting import char_spans_to_words, split_words
from finetune.types import Span

_TEXT_BOUND = re.compile(r"(T\S*)\t([^\t]+?) (\d+ \d+(?:;\d+ \d+)*) *(?:\t(.*))?")
_UNREAD = tuple("REAMN*#")


class Annotation(NamedTuple):
    """One text-bound annotation; ``text`` is what its line says that it covers."""

    where: str
    name: str
    label: str
    fragments: list[tuple[int, int]]
    text: str


@dataclass
class Documents:
    """The documents of a folder, or a single one."""

    name: str
    records: Iterator[Unit]


def open_documents(path: Path) -> Documents:
    """The documents of a folder by name, or the one that an .ann file belongs to."""
    if path.is_dir():
        stems = [path / name for name in document_names(path)]
    else:
        stems = [path.with_suffix("")]
    return Documents(str(path), (_document(stem) for stem in stems))


def _document(stem: Path) -> Unit:
    """The words of a document and the spans of its annotations; no spans without an .ann file."""
    text_path, ann_path = (stem.parent / f"{stem.name}{suffix}" for suffix in (".txt", ".ann"))
    if not text_path.is_file():
        raise DataError(
            f"{ann_path}: there is no {text_path.name} beside it: put the annotated text there, or "
            "remove the file."
        )
    annotations, num_unread = _annotations(ann_path) if ann_path.is_file() else ([], 0)
    text = _fitting_text(whole_text(text_path), annotations, text_path)
    words, offsets = split_words(text)
    unit = Unit(
        tuple(words), str(text_path), document=stem.name, text=text, offsets=tuple(offsets),
        num_unread=num_unread, unannotated=not ann_path.is_file(),
    )  # fmt: skip
    return unit if unit.unannotated else _with_spans(unit, annotations, text, offsets)


def _annotations(path: Path) -> tuple[list[Annotation], int]:
    """The text-bound annotations of a file, and the number of its other lines."""
    annotations, num_unread = [], 0
    for number, line in open_data(path, "txt"):
        where = f"{path}:{number}"
        if line.startswith("T"):
            annotations.append(_annotation(line, where))
        elif line.startswith(_UNREAD):
            num_unread += 1
        elif line.strip():
            raise DataError(
                f"{where}: {line!r:.60} is no line of standoff annotation: lines begin with T (for "
                f"text) or one of {' '.join(_UNREAD)}, and a text over several lines is written "
                "on one, with blanks."
            )
    return annotations, num_unread


def _annotation(line: str, where: str) -> Annotation:
    match = _TEXT_BOUND.fullmatch(line)
    if match is None:
        raise DataError(
            f"{where}: {line!r:.60} is no text-bound annotation: write "
            "T1<TAB>LABEL START END<TAB>TEXT, with the fragments of a discontinuous one as "
            "START END;START END."
        )
    name, label, places, text = match.groups()
    pairs = [place.split() for place in places.split(";")]
    return Annotation(where, name, label, [(int(a), int(b)) for a, b in pairs], text or "")


def _fitting_text(raw: str, annotations: Sequence[Annotation], path: Path) -> str:
    """The text as its annotations count it.

    Tools differ on whether a byte order mark is a character and a line end CR LF one or two; what
    the lines say they cover decides. Raises DataError if they fit no way of counting.
    """
    bare = raw.removeprefix("\ufeff")
    readings = [text for whole in (bare, raw) for text in (whole, whole.replace("\r\n", "\n"))]
    for text in dict.fromkeys(readings):
        if all(_fits(annotation, text) for annotation in annotations):
            return text
    raise _misfit(next(each for each in annotations if not _fits(each, bare)), bare, path)


def _fits(annotation: Annotation, text: str) -> bool:
    """Whether an annotation covers what it says; white space may differ, brat writes line ends
    as blanks. A line without a text says nothing."""
    if not all(start < end <= len(text) for start, end in annotation.fragments):
        return False
    covered = "".join(text[start:end] for start, end in annotation.fragments)
    return not annotation.text or _dense(covered) == _dense(annotation.text)


def _dense(text: str) -> str:
    return "".join(text.split())


def _misfit(annotation: Annotation, text: str, path: Path) -> DataError:
    """The error for an annotation that does not cover what it says, with where its text is."""
    where, name, _, fragments, said = annotation
    places = ", ".join(f"{start} to {end}" for start, end in fragments)
    advice = "offsets count characters (not bytes) from 0, end exclusive."
    if not all(start < end <= len(text) for start, end in fragments):
        return DataError(
            f"{where}: {name} covers characters {places}, empty or outside the {len(text)} of "
            f"{path.name}: {advice}"
        )
    covered = " ".join(text[start:end] for start, end in fragments)
    found = [match.start() for match in re.finditer(re.escape(said), text)]
    nearest = min(found, key=lambda start: abs(start - fragments[0][0]), default=None)
    hint = "" if nearest is None else f" It is at {nearest} to {nearest + len(said)}."
    return DataError(
        f"{where}: {name} says {said!r:.60}, but characters {places} of {path.name} are "
        f"{covered!r:.60}: {advice}{hint}"
    )


def _with_spans(
    unit: Unit, annotations: Sequence[Annotation], text: str, offsets: Sequence[tuple[int, int]]
) -> Unit:
    spans, enveloped = [], []
    for annotation in annotations:
        start, end, gaps = envelope(annotation.fragments, text)
        spans.append(Span(start, end, annotation.label))
        enveloped += [annotation.where] * gaps
    try:
        found, num_widened = char_spans_to_words(offsets, spans)
    except ValueError as error:
        where = next(a.where for a, span in zip(annotations, spans, strict=True)
                     if not _touches(span, offsets))  # fmt: skip
        raise DataError(f"{where}: {error}: correct or remove this line.") from error
    return unit._replace(
        spans=tuple(dict.fromkeys(sorted(found))),
        num_widened=num_widened,
        enveloped=tuple(enveloped),
    )


def _touches(span: Span, offsets: Sequence[tuple[int, int]]) -> bool:
    return any(start < span.end and span.start < end for start, end in offsets)
