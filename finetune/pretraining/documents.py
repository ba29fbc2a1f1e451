"""The documents of running text of one or several languages or sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, dropwhile, groupby, repeat
from pathlib import Path
from typing import Any

from finetune.data.examples import Dataset, Examples, collected
from finetune.data.files import UTF_8, Line, format_of, read_lines, uncompressed_name
from finetune.data.running_text import (
    TextSource,
    Unit,
    text_options,
    text_sources,
    texts_of_file,
    texts_of_rows,
)
from finetune.data.sources import SPLIT_ORDER, PartOf, canonical_split, is_test
from finetune.data.texts import read_text
from finetune.data.tokens import input_type_of
from finetune.types import DataError, TextExample, quantity


def read_running_text(
    spec: str, *, columns: Sequence[str] = (), encoding: str = UTF_8, without_test: bool = False
) -> Dataset:
    """Read the documents of running text, one TextExample for each; its ``key`` is the source.

    A plain text file has one sentence, or another unit that is not cut, in each line, and blank
    lines between documents; without blank lines each line is a document. In other files each row
    is a document, with one unit in each of its lines. If a hub data set has blank rows between
    documents, its rows are read as lines.

    Args:
        spec: A file, a folder, ``train=PATH,validation=PATH``, a hub data set, or sources such as
            ``en=PATH,de=PATH``. If files of a folder are named after splits (train.txt, test.txt),
            only these are read; else all files of the folder are training text.
        columns: The column of the text if it has no usual name, as ``text=column``. Without it,
            both texts of pairs are read.
        encoding: Text encoding of the files.
        without_test: Whether to leave test splits unread.

    Raises:
        DataError: If the text cannot be read, or a file has none.
    """
    sources = {source.name: source for source in text_sources(spec, encoding)}
    named = bool(re.match(r"[^,=]+=", spec)) and not Path(spec).exists()
    splits = {name: canonical_split(name) if named else None for name in sources}
    if any(splits.values()) and not all(splits.values()):
        stray = next(name for name, split in splits.items() if split is None)
        raise DataError(
            f"--data {spec}: {stray!r} is not a split and the others are: name splits, or sources "
            "whose folders hold files train and validation."
        )
    parts: dict[str, list[Iterator[tuple[str | None, Unit]]]] = {}
    notes: list[str] = []
    pinned = []
    for name, source in sources.items():
        by_split: Any
        if source.hub is None:
            by_split = _of_files(source, splits[name], columns, without_test, notes)
        else:
            part, only = PartOf(source.hub, without_test), ["train"] if splits[name] else None
            kind = input_type_of(source.hub)
            data = read_text(part, splits=only, **text_options(kind, columns))
            notes += [note for note in data.notes if "label" not in note]
            pinned.append(f"{name}={data.pinned}" if named else str(data.pinned))
            by_split = []
            for split, rows in data.splits.items():
                has_blank = not all(map(str.strip, rows.column("text")))
                documents = _documents(texts_of_rows(rows, kind), separated=has_blank)
                by_split.append((splits[name] or split, documents))
        key = name if len(sources) > 1 and not splits[name] else None
        for split, documents in by_split:
            parts.setdefault(split, []).append(zip(repeat(key), documents))
    ordered: dict[str, Examples] = {}
    for split in [split for split in SPLIT_ORDER if split in parts]:
        rows = collected(
            TextExample(number, text, where=where, key=key)
            for number, (key, (text, where)) in enumerate(chain(*parts[split]))
        )
        if not rows:
            continue
        ordered[split] = rows
        lines = sum(text.count("\n") + 1 for text in rows.column("text"))
        notes.append(f"{split}: {quantity(len(rows), 'document')}, {quantity(lines, 'line')}")
    title = ",".join(sources) if len(sources) > 1 else next(iter(sources))
    format = "hub" if pinned else "running text"
    return Dataset(title, ordered, notes=notes, format=format, pinned=",".join(pinned) or None)


def _of_files(
    source: TextSource,
    split: str | None,
    columns: Sequence[str],
    without_test: bool,
    notes: list[str],
) -> Iterator[tuple[str, Iterator[Unit]]]:
    by_split: dict[str, list[Path]] = {split or "train": list(source.files)}
    file_splits = [canonical_split(uncompressed_name(file)) for file in source.files]
    if split is None and "train" in file_splits and len(source.files) > 1:
        by_split = {}
        for file, file_split in zip(source.files, file_splits, strict=True):
            if file_split is None:
                notes.append(f"not read, as others in its folder are named by split: {file}")
            else:
                by_split.setdefault(file_split, []).append(file)
    for name, files in by_split.items():
        if not (without_test and is_test(name)):
            documents = (_of_file(file, columns, source.encoding) for file in files)
            yield name, chain.from_iterable(documents)


def _of_file(path: Path, columns: Sequence[str], encoding: str) -> Iterator[Unit]:
    # a file of lines is read twice, in bounded memory; a pipe once
    if format_of(path) not in ("txt", None):
        documents = _documents(texts_of_file(path, columns, encoding))
    else:
        lines: Iterable[Line] = read_lines(str(path), path, encoding)
        if not path.is_file():
            lines = list(lines)
        again = read_lines(str(path), path, encoding) if path.is_file() else lines
        units = ((line.text, f"{path}:{line.number}") for line in lines)
        after_blank = dropwhile(bool, (line.text.strip() for line in again))
        documents = _documents(units, separated=any(after_blank))
    first = next(documents, None)
    if first is None:
        raise DataError(f"{path}: there is no text in it: remove it.")
    yield first
    yield from documents


def _documents(units: Iterable[tuple[str, str]], separated: bool = False) -> Iterator[Unit]:
    for filled, group in groupby(units, lambda unit: bool(unit[0].strip())):
        texts = (("\n".join(filter(str.strip, text.split("\n"))), at) for text, at in group)
        if filled and separated:
            parts = list(texts)
            yield "\n".join(text for text, _ in parts), parts[0][1]
        elif filled:
            yield from texts
