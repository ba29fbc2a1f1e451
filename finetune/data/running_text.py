"""Running text of one or several languages or sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

from finetune.config.recipes import local_path
from finetune.config.tasks import column_map
from finetune.data.files import UTF_8, format_of
from finetune.data.sources import data_files, resolve
from finetune.data.texts import read_text, read_text_file
from finetune.data.tokens import input_type_of, read_token_file
from finetune.types import DataError, TextExample

Unit = tuple[str, str]
"""A text of one or several lines, and its ``file:line``."""


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
        units = chain.from_iterable(texts_of_file(file, (), self.encoding) for file in self.files)
        if self.hub is not None:
            kind = input_type_of(self.hub)
            data = read_text(self.hub, splits=["train"], **text_options(kind))
            units = chain(texts_of_rows(data.splits["train"], kind))
        for text, _ in units:
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


def texts_of_file(path: Path, columns: Sequence[str], encoding: str) -> Iterator[Unit]:
    """Read the texts of the rows of a file; each context of questions once."""
    kind = "text" if format_of(path) == "txt" else input_type_of(str(path), encoding)
    if kind == "tokens":
        sentences = read_token_file(path, encoding=encoding)
        return ((" ".join(sentence.words), sentence.where) for sentence in sentences)
    options = text_options(kind, columns)
    return texts_of_rows(read_text_file(path, labels=False, encoding=encoding, **options), kind)


def texts_of_rows(rows: Iterable[TextExample], kind: str) -> Iterator[Unit]:
    """The texts of rows, both of a pair as one; each context of questions once."""
    units = (("\n".join(row.texts()), row.where) for row in rows)
    if kind != "qa":
        return units
    return (next(same) for _, same in groupby(units, itemgetter(0)))


def text_options(kind: str, columns: Sequence[str] = ()) -> dict[str, Any]:
    """The options of ``read_text`` that read the texts of all columns, or of those named."""
    of_questions = {"text": "context"} if kind == "qa" else {}
    named = of_questions | column_map(columns)
    return {"columns": named, "pair": False if named else None}


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
