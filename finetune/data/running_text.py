"""Running text of one or several languages or sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from finetune.config.recipes import packaged_folder
from finetune.config.tasks import column_map
from finetune.data.dataset import DataError, Dataset
from finetune.data.files import UTF_8, name_without_gz, read_lines
from finetune.data.formats import format_of
from finetune.data.sources import SPLIT_ORDER, canonical_split, is_test
from finetune.data.texts import read_text_file
from finetune.data.tokens import data_kind, read_token_file
from finetune.types import TextExample, UserError, quantity


def sampling_probabilities(sizes: Sequence[float], alpha: float) -> list[float]:
    """Return the probability of each language or source in a sample (Jurafsky & Martin, 11.7).

    q_i = p_i^α / Σ p_j^α for p_i = n_i / Σ n_k: an exponent α below 1 raises small sources
    (Conneau et al. 2020, XLM-R: 0.3), 1 keeps their proportions, 0 makes all equal.

    Args:
        sizes: n, the amount of text of each source, in any unit.
        alpha: α, from 0 to 1.

    Raises:
        UserError: α is outside this range, or a source has no text.

    >>> [round(q, 3) for q in sampling_probabilities([1000, 10], 0.3)]
    [0.799, 0.201]
    """
    if not 0 <= alpha <= 1:
        raise UserError(f"--alpha must be from 0 to 1, not {alpha}.")
    if not sizes or min(sizes) <= 0:
        raise UserError(f"every source needs text, but their sizes are {list(sizes)}.")
    weights = [(size / sum(sizes)) ** alpha for size in sizes]
    return [weight / sum(weights) for weight in weights]


@dataclass(frozen=True)
class TextSource:
    """The running text of one language or source: the files of ``name``."""

    name: str
    files: tuple[Path, ...]
    encoding: str = UTF_8

    def lines(self) -> Iterator[str]:
        """Yield all lines of text that are not blank; words of tagged data are joined by spaces."""
        for file in self.files:
            for text in _texts(file, self.encoding):
                yield from filter(str.strip, text.split("\n"))


def text_sources(spec: str, encoding: str = UTF_8) -> list[TextSource]:
    """Return the sources of a file, of a folder of files, or of ``en=FILE,de=FOLDER``.

    Files are plain text, JSON Lines, CSV, TSV or Parquet with a column of texts, or tagged words.

    Raises:
        DataError: A file or folder does not exist, or there is nothing in it.
    """
    if not spec.strip():
        raise DataError("there is no text: name a file, a folder, or en=FILE,de=FILE.")
    if "=" not in spec or Path(spec).exists():
        return [TextSource(Path(spec).name.split(".")[0], _files(spec), encoding)]
    named: dict[str, TextSource] = {}
    for part in spec.split(","):
        name, _, path = (each.strip() for each in part.partition("="))
        if not name or not path or name in named:
            problem = f"source {name!r} is named twice" if name in named else f"{part!r} is no pair"
            raise DataError(f"{spec}: {problem}: write en=FILE,de=FILE.")
        named[name] = TextSource(name, _files(path), encoding)
    return list(named.values())


def _files(path: str) -> tuple[Path, ...]:
    """Return a file, or the data files in a folder in the order of their names."""
    found = Path(path).expanduser()
    if found.parts[:2] == ("examples", "data") and not found.exists():
        found = packaged_folder("examples").joinpath(*found.parts[1:])
    if not found.exists():
        raise DataError(f"{path}: no such file or folder of text.")
    if not found.is_dir():
        return (found,)
    files = sorted(file for file in found.iterdir() if file.is_file() and format_of(file))
    if not files:
        raise DataError(f"{path}: no data files (such as .txt, .jsonl or .txt.gz) in this folder.")
    return tuple(files)


def _texts(path: Path, encoding: str) -> Iterator[str]:
    """Yield the texts of a file, or its sentences of words."""
    if format_of(path) != "txt" and data_kind(str(path), encoding) == "tokens":
        yield from (" ".join(each.words) for each in read_token_file(path, encoding=encoding))
    else:
        texts = read_text_file(path, pair=False, labels=False, encoding=encoding)
        yield from (each.text for each in texts)


def sample_lines(lines: Iterable[str], most: int, seed: int = 0) -> list[str]:
    """Return at most ``most`` lines of a stream, each equally likely, in their order.

    Reservoir sampling (Vitter 1985, algorithm R): memory does not grow with the stream.
    """
    random = Random(seed)
    chosen: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        if number < most:
            chosen.append((number, line))
        elif (place := random.randrange(number + 1)) < most:
            chosen[place] = number, line
    return [line for _, line in sorted(chosen)]


def read_running_text(
    spec: str, *, columns: Sequence[str] = (), encoding: str = UTF_8, without_test: bool = False
) -> Dataset:
    """Read the documents of running text, one TextExample for each; its ``key`` is the source.

    A plain text file has one sentence, or any other unit that is not cut, in each line, and blank
    lines between documents; without blank lines each line is a document. In other files each row
    is a document, whose line ends divide it in the same way.

    Args:
        spec: A file, a folder, ``train=PATH,validation=PATH``, or sources such as
            ``en=PATH,de=PATH``. Of a folder with files that are named after splits (train.txt,
            test.txt) these are read, of another all files are training text.
        columns: The column of the text if it has no usual name, as ``text=column``.
        encoding: Text encoding of the files.
        without_test: Whether to leave test splits unread.

    Raises:
        DataError: If the text cannot be read, or a file has none.
    """
    sources = {source.name: source.files for source in text_sources(spec)}
    named = "=" in spec and not Path(spec).exists()
    splits = {name: canonical_split(name) if named else None for name in sources}
    if any(splits.values()) and not all(splits.values()):
        other = next(name for name, split in splits.items() if split is None)
        raise DataError(
            f"--data {spec}: {other!r} is not a split and the others are: name splits, or sources "
            "whose folders hold files train and validation."
        )
    documents: dict[str, list[TextExample]] = {}
    notes = []
    for name, files in sources.items():
        by_split = {splits[name] or "train": list(files)}
        found = [canonical_split(name_without_gz(file)) for file in files]
        if splits[name] is None and "train" in found and len(files) > 1:
            by_split = {}
            for file, split in zip(files, found, strict=True):
                if split is None:
                    notes.append(f"not read, as others in its folder are named by split: {file}")
                else:
                    by_split.setdefault(split, []).append(file)
        for split, own in by_split.items():
            if without_test and is_test(split):
                continue
            rows = documents.setdefault(split, [])
            for file in own:
                before = len(rows)
                for text, where in _documents(file, columns, encoding):
                    key = name if len(sources) > 1 and not splits[name] else None
                    rows.append(TextExample(len(rows), text, where=where, key=key))
                if len(rows) == before:
                    raise DataError(f"{file}: there is no text in it: remove it.")
    order = [split for split in SPLIT_ORDER if split in documents]
    ordered = {split: documents[split] for split in order}
    for split, rows in ordered.items():
        lines = sum(document.text.count("\n") + 1 for document in rows)
        notes.append(f"{split}: {quantity(len(rows), 'document')}, {quantity(lines, 'line')}")
    name = ",".join(sources) if len(sources) > 1 else next(iter(sources))
    return Dataset(name, ordered, notes=notes, format="running text")


def _documents(path: Path, columns: Sequence[str], encoding: str) -> Iterator[tuple[str, str]]:
    """Yield the text of each document of a file, with its ``file:line``; no line is blank."""
    if format_of(path) not in ("txt", None):
        if data_kind(str(path), encoding=encoding) == "tokens":
            texts = ((" ".join(row.words), row.where) for row in read_token_file(path))
        else:
            rows = read_text_file(
                path, columns=column_map(columns), pair=False, labels=False, encoding=encoding
            )
            texts = ((row.text, row.where) for row in rows)
        for text, where in texts:
            if kept := "\n".join(filter(str.strip, text.split("\n"))):
                yield kept, where
        return
    lines = list(read_lines(str(path), path, encoding))
    while lines and not lines[-1].text.strip():
        del lines[-1]
    single = all(line.text.strip() for line in lines)
    document: list[str] = []
    first = 0
    for number, text in lines:
        if not document:
            first = number
        if text.strip():
            document.append(text)
        if document and (single or not text.strip()):
            yield "\n".join(document), f"{path}:{first}"
            document = []
    if document:
        yield "\n".join(document), f"{path}:{first}"
