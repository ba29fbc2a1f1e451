"""Standoff annotation in the format of brat: NAME.txt and NAME.ann are one example.

A line ``T1<TAB>LABEL START END<TAB>TEXT`` annotates characters. Several ``START END`` separated by
``;`` are the fragments of a discontinuous annotation. Lines that annotate no text (relations R,
events E, attributes A and M, normalizations N, equivalences ``*``, notes ``#``) are counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from finetune.data.dataset import DataError
from finetune.data.files import IGNORED_NAMES, DataFile, ReadOptions, read_characters, read_lines
from finetune.data.token_records import Sentences, TokenRecord, covers, read_spans
from finetune.data.word_splitting import split_words
from finetune.types import Span

_TEXT_BOUND = re.compile(r"(T\S*)\t([^\t]+?) (\d+ \d+(?:;\d+ \d+)*) *(?:\t(.*))?")
_SKIPPED_PREFIXES = tuple("REAMN*#")


class Annotation(NamedTuple):
    """One text-bound annotation; ``text`` is the copy of the covered text in its line."""

    where: str
    label: str
    fragments: list[tuple[int, int]]
    text: str


def document_names(folder: Path) -> list[str]:
    """Return the sorted names, without suffix, of the .txt and .ann files of a folder.

    Hidden files and a README.txt without annotation are left out.
    """
    files = [p for p in folder.iterdir() if not p.name.startswith(".") and p.is_file()]
    annotated = {path.stem for path in files if path.suffix == ".ann"}
    texts = {path.stem for path in files if path.suffix == ".txt"}
    return sorted(annotated | {name for name in texts if name.lower() not in IGNORED_NAMES})


def read_brat(file: DataFile, options: ReadOptions) -> Sentences:
    """Read the documents of a folder by name, or the document of an .ann file."""
    for role, name in options.columns.items():
        raise DataError(
            f"{file.name}: --columns {role}={name}: standoff annotation has no columns."
        )
    path = Path(file.name)
    names = document_names(path) if path.is_dir() else []
    stems = [path / name for name in names] if path.is_dir() else [path.with_suffix("")]
    return Sentences(file.name, (_document(stem, file.encoding) for stem in stems))


def _document(stem: Path, encoding: str) -> TokenRecord:
    """Return the words of a document and its spans; ``spans`` is None without an .ann file."""
    text_path, ann_path = (stem.parent / f"{stem.name}{suffix}" for suffix in (".txt", ".ann"))
    if not text_path.is_file():
        raise DataError(f"{ann_path}: the file {text_path.name} is missing in its folder.")
    annotated = ann_path.is_file()
    annotations, num_skipped = _annotations(ann_path, encoding) if annotated else ([], 0)
    text = _matching_text(read_characters(text_path, encoding), annotations)
    words, offsets = split_words(text)
    record = TokenRecord(
        tuple(words), str(text_path), document=stem.name, text=text, offsets=tuple(offsets),
        num_skipped_lines=num_skipped, unannotated=not annotated,
    )  # fmt: skip
    if not annotated:
        return record
    found: set[Span] = set()
    outside: set[Span] = set()
    discontinuous: list[str] = []
    for where, label, fragments, covered in annotations:
        item = {"offsets": fragments, "label": label, "text": covered}
        spans, unreachable, gaps = read_spans([item], where, len(words), text, offsets)
        found.update(spans)
        outside.update(unreachable)
        discontinuous += [where] * gaps
    return record._replace(
        spans=tuple(sorted(found)),
        unreachable=tuple(sorted(outside)),
        discontinuous=tuple(discontinuous),
    )


def _annotations(path: Path, encoding: str) -> tuple[list[Annotation], int]:
    """Return the text-bound annotations of a file, and the number of its other lines."""
    annotations, num_skipped = [], 0
    for number, line in read_lines(str(path), path, encoding):
        where = f"{path}:{number}"
        if line.startswith("T"):
            annotations.append(_annotation(line, where))
        elif line.startswith(_SKIPPED_PREFIXES):
            num_skipped += 1
        elif line.strip():
            raise DataError(
                f"{where}: {line!r:.60} is not a line of standoff annotation: lines begin with T "
                f"(for text) or one of {' '.join(_SKIPPED_PREFIXES)}."
            )
    return annotations, num_skipped


def _annotation(line: str, where: str) -> Annotation:
    match = _TEXT_BOUND.fullmatch(line)
    if match is None:
        raise DataError(
            f"{where}: {line!r:.60} is not a text-bound annotation: write "
            "T1<TAB>LABEL START END<TAB>TEXT (START END;START END if it is discontinuous)."
        )
    _, label, ranges, text = match.groups()
    pairs = [pair.split() for pair in ranges.split(";")]
    return Annotation(where, label, [(int(a), int(b)) for a, b in pairs], text or "")


def _matching_text(raw: str, annotations: Sequence[Annotation]) -> str:
    """Return the text with the characters that its annotations count.

    Tools differ on byte order marks and on CR LF. The covered text in the annotations decides.
    """
    text = raw.removeprefix("\ufeff")
    candidates = (text, text.replace("\r\n", "\n"), raw, raw.replace("\r\n", "\n"))
    fitting = (
        candidate for candidate in candidates
        if all(covers(candidate, each.fragments, each.text) for each in annotations)
    )  # fmt: skip
    return next(fitting, text)
