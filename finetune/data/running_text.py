"""Running text of one or several languages or sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, dropwhile, groupby, repeat
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

from finetune.config.recipes import local_path
from finetune.config.tasks import column_map
from finetune.data.dataset import DataError, Dataset
from finetune.data.examples import Examples, collected
from finetune.data.files import UTF_8, Line, format_of, read_lines, uncompressed_name
from finetune.data.sources import SPLIT_ORDER, PartOf, canonical_split, data_files, is_test, resolve
from finetune.data.texts import read_text, read_text_file
from finetune.data.tokens import input_type_of, read_token_file
from finetune.types import TextExample, quantity

_Document = tuple[str, str]
"""The text of a document, without blank lines, and its ``file:line``."""


@dataclass(frozen=True)
class TextSource:
    """The running text of one language or source: the files, or the hub data set, of ``name``."""

    name: str
    files: tuple[Path, ...] = ()
    encoding: str = UTF_8
    hub: str | None = None

    def lines(self) -> Iterator[str]:
        """Yield all lines of text that are not blank; words of tagged data are joined by spaces.

        A hub data set gives its training split.
        """
        if self.hub is not None:
            options = _text_options(input_type_of(self.hub))
            for example in read_text(self.hub, splits=["train"], **options).splits["train"]:
                yield from filter(str.strip, "\n".join(example.texts()).split("\n"))
        for file in self.files:
            for text, _ in _texts(file, (), self.encoding):
                yield from filter(str.strip, text.split("\n"))


def text_sources(spec: str, encoding: str = UTF_8) -> list[TextSource]:
    """The source of a file, folder or hub data set, or the sources of ``en=FILE,de=FOLDER``.

    Files are plain text, JSON Lines, CSV, TSV or Parquet with a column of texts, or tagged words.

    Raises:
        DataError: A file or folder does not exist, or there is nothing in it.
    """
    if not spec.strip():
        raise DataError("there is no text: name a file, a folder, or en=FILE,de=FILE.")
    if Path(spec).exists() or not ({"=", ","} & {*spec}):
        return [_source(Path(spec).name.split(".")[0], spec, encoding)]
    named: dict[str, TextSource] = {}
    for part in spec.split(","):
        name, _, path = (field.strip() for field in part.partition("="))
        if not name or not path or name in named:
            problem = f"source {name!r} is named twice" if name in named else f"{part!r} is no pair"
            raise DataError(f"{spec}: {problem}: write en=FILE,de=FILE.")
        named[name] = _source(name, path, encoding)
    return list(named.values())


def _source(name: str, path: str, encoding: str) -> TextSource:
    entry = local_path(path)
    if not entry.exists() and resolve(path).hub is not None:
        return TextSource(name, encoding=encoding, hub=path)
    if not entry.is_dir():
        return TextSource(name, (entry,), encoding)
    if not (files := data_files(entry)):
        raise DataError(f"{path}: no data files (such as .txt, .jsonl or .txt.gz) in this folder.")
    return TextSource(name, tuple(files), encoding)


def _texts(path: Path, columns: Sequence[str], encoding: str) -> Iterator[tuple[str, str]]:
    kind = "text" if format_of(path) == "txt" else input_type_of(str(path), encoding)
    if kind == "tokens":
        for sentence in read_token_file(path, encoding=encoding):
            yield " ".join(sentence.words), sentence.where
        return
    options = _text_options(kind, columns)
    rows = read_text_file(path, labels=False, encoding=encoding, **options)
    units = (("\n".join(row.texts()), row.where) for row in rows)
    yield from _distinct_contexts(units) if kind == "qa" else units


def _text_options(kind: str, columns: Sequence[str] = ()) -> dict[str, Any]:
    of_questions = {"text": "context"} if kind == "qa" else {}
    named = of_questions | column_map(columns)
    return {"columns": named, "pair": False if named else None}


def _distinct_contexts(units: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return (next(group) for _, group in groupby(units, itemgetter(0)))


def sample_lines(lines: Iterable[str], most: int, seed: int = 0) -> list[str]:
    """Sample at most ``most`` lines of a stream, each equally likely, in their order.

    Reservoir sampling (Vitter 1985, algorithm R): memory does not grow with the stream.
    """
    random = Random(seed)
    chosen: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        if number < most:
            chosen.append((number, line))
        elif (slot := random.randrange(number + 1)) < most:
            chosen[slot] = number, line
    return [line for _, line in sorted(chosen)]


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
    parts: dict[str, list[Iterator[tuple[str | None, _Document]]]] = {}
    notes: list[str] = []
    pinned = []
    for name, source in sources.items():
        by_split: Iterable[tuple[str, Iterator[_Document]]]
        if source.hub is None:
            by_split = _of_files(source, splits[name], columns, without_test, notes)
        else:
            part, only = PartOf(source.hub, without_test), ["train"] if splits[name] else None
            kind = input_type_of(source.hub)
            data = read_text(part, splits=only, **_text_options(kind, columns))
            notes += [note for note in data.notes if "label" not in note]
            pinned.append(f"{name}={data.pinned}" if named else str(data.pinned))
            by_split = [
                (splits[name] or s, _of_rows(rows, kind == "qa")) for s, rows in data.splits.items()
            ]
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


def _of_rows(rows: Examples, are_questions: bool) -> Iterator[_Document]:
    has_blank = not all(map(str.strip, rows.column("text")))
    units = rows.columns("text", "pair", "where")
    texts = ((f"{text}\n{pair}" if pair else text, where) for text, pair, where in units)
    return _documents(_distinct_contexts(texts) if are_questions else texts, separated=has_blank)


def _of_files(
    source: TextSource,
    split: str | None,
    columns: Sequence[str],
    without_test: bool,
    notes: list[str],
) -> Iterator[tuple[str, Iterator[_Document]]]:
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


def _of_file(path: Path, columns: Sequence[str], encoding: str) -> Iterator[_Document]:
    # a file of lines is read twice, in bounded memory; a pipe once
    if format_of(path) not in ("txt", None):
        documents = _documents(_texts(path, columns, encoding))
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


def _documents(units: Iterable[tuple[str, str]], separated: bool = False) -> Iterator[_Document]:
    """Yield each text with its location; if separated, join the texts between blank ones."""
    for filled, group in groupby(units, lambda unit: bool(unit[0].strip())):
        texts = (("\n".join(filter(str.strip, text.split("\n"))), at) for text, at in group)
        if filled and separated:
            parts = list(texts)
            yield "\n".join(text for text, _ in parts), parts[0][1]
        elif filled:
            yield from texts
