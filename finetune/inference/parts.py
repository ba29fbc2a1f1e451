"""Predictions of large inputs in numbered parts, which the same command continues after a kill.

Each part has the predictions of a fixed number of rows and is predicted apart from the others. So
its content does not depend on the jobs and processes that share the parts, nor on interruptions. A
manifest describes what the predictions depend on, and the names of the parts have its digest.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import xxhash

import finetune
from finetune.data.files import Content, read_content
from finetune.data.formats import format_of
from finetune.data.json_files import read_object
from finetune.inference.loop import CHUNK, chunks
from finetune.runtime.cache import file_hash
from finetune.runtime.files import LOCK, FolderInUse, lock_folder, write_text
from finetune.runtime.progress import Reporter
from finetune.runtime.records import Record, record_writer
from finetune.types import (
    AnswerPrediction,
    Example,
    FoundAnswer,
    Relation,
    RelationPrediction,
    Span,
    SpanPrediction,
    TextPrediction,
    TokenPrediction,
    UserError,
    abbreviated,
)

PART_ROWS = 65_536
"""Default number of rows of a part."""
MANIFEST = "_predictions.json"
"""The manifest. Arrow, Spark and Hadoop do not take files with an underscore for data."""
FORMAT = 3
"""Version of the manifest."""
_PART = re.compile(r"part-\d+-(\w+)(\.\w+)")
_ROWS_BY_LINE = {"jsonl": 0, "txt": 0, "csv": 1, "tsv": 1}
"""Formats that have about one row in each line, with the lines of their header."""


@dataclass(frozen=True)
class Shard:
    """The share of one of several jobs: the parts whose number modulo ``count`` is ``index``."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``I/N``; raise UserError for anything else."""
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if found is None or not int(found[1]) < int(found[2]):
            raise UserError(f"--shard {text}: write I/N: the job I, from 0 to N - 1, of N jobs.")
        return cls(int(found[1]), int(found[2]))

    def divided(self, index: int, count: int) -> Shard:
        """Return the share of one of ``count`` processes of this job."""
        return Shard(self.index + self.count * index, self.count * count)

    def __str__(self) -> str:
        """Return ``I/N``."""
        return f"{self.index}/{self.count}"


@dataclass
class Parts:
    """The parts of one shard in a folder.

    Attributes:
        folder: The folder.
        digest: The digest of all that the predictions depend on.
        suffix: The format of the parts.
        part_rows: Number of rows of each part but the last.
        shard: The share of this process.
        num_rows: Number of rows of the input; None until a process has read all of them.
        about: Number of rows that the input probably has, for the time left; None if unknown.
        num_written: Number of parts that this process has written.
        damaged: Names of the damaged parts that are made again.
        sample: Records whose columns and types all Parquet parts have.
    """

    folder: Path
    digest: str
    suffix: str
    part_rows: int
    shard: Shard
    num_rows: int | None = None
    about: int | None = None
    num_written: int = 0
    damaged: list[str] = field(default_factory=list)
    sample: Sequence[Record] = ()
    _missing: dict[int, bool] = field(default_factory=dict)
    _num_read: int = 0

    def path(self, number: int) -> Path:
        """Return the file of a part."""
        return self.folder / f"part-{number:06d}-{self.digest}{self.suffix}"

    @property
    def num_parts(self) -> int:
        """The number of parts of all shards, once the number of rows is known."""
        return -(-(self.num_rows or 0) // self.part_rows)

    @property
    def finished(self) -> bool:
        """True if all rows are known to be predicted."""
        return self.num_rows is not None and not self._numbers_missing(self.num_rows)

    @property
    def rows_left(self) -> int | None:
        """The number of rows that are probably left to predict; None if unknown."""
        total = self.about if self.num_rows is None else self.num_rows
        if total is None:
            return None
        missing = self._numbers_missing(total)
        return sum(min(self.part_rows, total - number * self.part_rows) for number in missing)

    def wants_row(self, row: int) -> bool:
        """Return whether a row is in a missing part of the shard."""
        self._num_read = row + 1
        return self._is_missing(row // self.part_rows)

    def chunks(
        self, examples: Iterable[Example], drop: Callable[[int], object]
    ) -> Iterator[list[Example]]:
        """Yield the examples of missing parts to predict together; ``drop`` gets the other ids."""
        last = None
        if self.num_rows is not None:
            last = max(self._numbers_missing(self.num_rows), default=-1)
        for number, group in groupby(examples, key=lambda each: each.id // self.part_rows):
            if self._is_missing(number):
                yield from chunks(group, CHUNK)
            else:
                for example in group:
                    self._num_read = max(self._num_read, example.id + 1)
                    drop(example.id)
            if number == last:
                return

    def write(self, records: Iterable[tuple[int, Record]]) -> None:
        """Write records, each with the number of its row; a part appears once it is complete."""
        records = iter(records)
        for first in records:  # each begins a part
            path = self.path(first[0] // self.part_rows)
            with record_writer(path, self.sample) as write:
                for row, record in chain([first], islice(records, self.part_rows - 1)):
                    write(record)
                    self._num_read = max(self._num_read, row + 1)
            write_text(self._digest_file(first[0] // self.part_rows), file_hash(path))
            self.num_written += 1
        if self.num_rows is None:  # the whole input was read
            self.num_rows = self._num_read
            with lock_folder(self.folder, wait=True):
                manifest = self.folder / MANIFEST
                _write_manifest(manifest, _read_manifest(manifest) | {"num_rows": self.num_rows})

    def _numbers_missing(self, num_rows: int) -> list[int]:
        """Return the numbers of the missing parts of the shard."""
        numbers = range(self.shard.index, -(-num_rows // self.part_rows), self.shard.count)
        return [number for number in numbers if self._is_missing(number)]

    def _is_missing(self, number: int) -> bool:
        """Return whether the shard has a part that is not there, or not as it was written."""
        if number % self.shard.count != self.shard.index:
            return False
        if number not in self._missing:
            self._missing[number] = self._find_missing(number)
        return self._missing[number]

    def _find_missing(self, number: int) -> bool:
        path, saved = self.path(number), self._digest_file(number)
        if not path.exists():
            return True
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if saved.read_text("utf-8") == file_hash(path):
                return False
        self.damaged.append(path.name)
        return True

    def _digest_file(self, number: int) -> Path:
        """Return the file with the digest of a part, which tells that it is as it was written."""
        return self.folder / f"_digest-{number:06d}-{self.digest}"


def typical(predictions: Iterable[Any]) -> Any:
    """Return a prediction with a value in each place that a prediction may leave empty.

    The types of its record are the types of all records of the model.
    """
    found, *others = predictions
    span, words, place = Span(0, 1, ""), ("",), ((0, 0),)
    if isinstance(found, TextPrediction):
        found = next((each for each in (found, *others) if each.label is not None), found)
        return replace(found, label=("",)) if found.label == () else found
    if isinstance(found, AnswerPrediction):
        answer = FoundAnswer(0, 0, "", 0.5)
        return replace(found, answer=answer, best=(answer,))
    if isinstance(found, TokenPrediction | SpanPrediction | RelationPrediction):
        found = replace(found, words=words, offsets=None if found.offsets is None else place)
    if isinstance(found, TokenPrediction):
        spans: Any = {} if found.spans is None else {"spans": (span,), "span_scores": (0.5,)}
        return replace(found, tags=("",), scores=(0.5,), **spans)
    if isinstance(found, SpanPrediction):
        return replace(found, spans=(span,), scores=(0.5,))
    if isinstance(found, RelationPrediction):
        relations = (Relation(span, span, ""),)
        return replace(found, spans=(span,), relations=relations, scores=(0.5,))
    return found


@contextlib.contextmanager
def open_parts(
    folder: Path,
    model: Path,
    files: Sequence[Path],
    settings: Mapping[str, Any],
    *,
    suffix: str = ".parquet",
    part_rows: int = PART_ROWS,
    shard: Shard | None = None,
    reporter: Reporter | None = None,
) -> Iterator[Parts]:
    """Hold a shard of a folder of predictions, which is begun or continued.

    All files are read, unless they have the size and the time of an earlier start. No process waits
    for another one, except to read or write the manifest.

    Args:
        folder: The folder.
        model: The folder of the model.
        files: The files of the input.
        settings: The other settings that change predictions.
        suffix: ``.parquet`` or ``.jsonl``.
        part_rows: Number of rows of a part.
        shard: The parts to predict; None is all.
        reporter: Shows the progress.

    Raises:
        UserError: The folder holds predictions of another model, input or settings; a file is
            damaged; another process has this shard.
    """
    shard = shard or Shard()
    with contextlib.ExitStack() as held:
        try:
            name = f"{LOCK}-{shard.index}-of-{shard.count}"
            held.enter_context(lock_folder(folder, name=name))
        except FolderInUse as error:
            raise FolderInUse(
                f"--shard {shard}: {error} Each job needs a shard of its own."
            ) from error
        manifest = folder / MANIFEST
        with lock_folder(folder, wait=True):
            saved = _read_manifest(manifest) if manifest.exists() else {}
            described = {
                "format": FORMAT,
                "finetune": finetune.__version__,
                "model": _digest_of_model(model),
                "settings": dict(settings),
                "part_rows": part_rows,
                "suffix": suffix,
                "input": _described(files, saved.get("input", []), reporter),
            }
            content = json.loads(json.dumps(described, default=str))
            _require_same(folder, saved, content)
            digest = _digest(content)
            _refuse_foreign_parts(folder, f"-{digest}{suffix}")
            content["num_rows"] = saved.get("num_rows")
            if content != saved:
                _write_manifest(manifest, content)
        num_rows, about = content["num_rows"], _about(content)
        yield Parts(folder, digest, suffix, part_rows, shard, num_rows, about)


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the content of a manifest; UserError if it is not as it was written."""
    try:
        content = read_object(path)
    except UserError:
        content = {}
    if content.pop("digest", None) != _digest_of(content):
        raise UserError(
            f"{path}: damaged, or of another version of finetune: delete it. The same command "
            "writes it again and keeps the parts that belong to it."
        )
    return content


def _write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps({**content, "digest": _digest_of(content)}, indent=2)
    write_text(path, text + "\n")


def _digest_of(content: Any) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(content, sort_keys=True).encode())


def _described(
    files: Sequence[Path], saved: Sequence[Mapping[str, Any]], reporter: Reporter | None
) -> list[dict[str, Any]]:
    """Return name, size, time, digest and rows of each file; unchanged ones are not read again."""
    found = []
    if reporter:
        reporter.start("reading the input", len(files), unit="file")
    for number, path in enumerate(files):
        known = saved[number] if number < len(saved) else {}
        status = path.stat()
        file = {"name": path.name, "bytes": status.st_size, "modified": status.st_mtime_ns}
        if file.items() <= known.items():
            found.append(dict(known))
        else:
            content = read_content(path)
            found.append(file | {"digest": content.digest, "rows": _rows(path, content)})
        if reporter:
            reporter.update(number + 1)
    if reporter:
        reporter.stop()
    return found


def _rows(path: Path, content: Content) -> int | None:
    """Return about how many rows a file has, None if its format does not tell."""
    format = format_of(path)
    if format == "parquet":
        from pyarrow import parquet

        with contextlib.suppress(ValueError), parquet.ParquetFile(path) as file:
            return int(file.metadata.num_rows)  # the reader reports errors
    header = _ROWS_BY_LINE.get(format or "")
    return None if header is None else content.num_lines - header


def about_rows(files: Sequence[Path]) -> int | None:
    """Return about how many rows files have; None if a format does not tell. Reads all of them."""
    rows = [_rows(path, read_content(path)) if path.is_file() else None for path in files]
    known = [each for each in rows if each is not None]
    return sum(known) if len(known) == len(rows) else None


def _about(content: Mapping[str, Any]) -> int | None:
    """Return about how many rows the input has."""
    rows = [each["rows"] for each in content["input"]]
    return None if None in rows else sum(rows)


def _digest_of_model(folder: Path) -> str:
    """Return a digest of the files of a model, without its card."""
    digest = xxhash.xxh3_128()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix != ".md" and not path.name.startswith("."):
            digest.update(f"{path.name} {read_content(path).digest}\n".encode())
    return digest.hexdigest()


def _digest(content: Mapping[str, Any]) -> str:
    """Return the digest of a manifest, without the times and places of files."""
    inputs = [(each["name"], each["digest"]) for each in content["input"]]
    return _digest_of({**content, "input": inputs})[:8]


def _require_same(folder: Path, saved: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Raise UserError if a folder holds predictions that depend on something else."""
    if not saved:
        return
    settings = {**saved["settings"], **content["settings"]}
    problems = {
        "format": "another version of finetune wrote it",
        "finetune": f"finetune {saved.get('finetune')} wrote it, and this is {content['finetune']}",
        "model": "they are of another model, or the model has changed",
        "part_rows": f"a part has {saved.get('part_rows'):,} rows there (--part-rows), not "
        f"{content['part_rows']:,}",
        "suffix": f"the parts are {saved.get('suffix')} files (--format), not {content['suffix']}",
    }
    found = [text for key, text in problems.items() if saved.get(key) != content[key]]
    for name in settings:
        old, new = saved["settings"].get(name), content["settings"].get(name)
        if old != new:
            found.append(f"{name.replace('_', ' ')} was {old!r:.60}, now it is {new!r:.60}")
    old, new = ([(each["name"], each["digest"]) for each in x["input"]] for x in (saved, content))
    if old != new:
        changed = sorted({name for name, _ in {*old} ^ {*new}} or {name for name, _ in new})
        found.append(f"the input has changed ({abbreviated(changed, 3)})")
    if found:
        raise UserError(
            f"--out {folder} holds other predictions: {found[0]}. Use what they were begun with, "
            "or name another folder."
        )


def _refuse_foreign_parts(folder: Path, end: str) -> None:
    """Raise UserError if a folder holds a part whose name ends otherwise."""
    for path in sorted(folder.iterdir()):
        if _PART.fullmatch(path.name) and not path.name.endswith(end):
            raise UserError(
                f"{path} is of other predictions than {folder / MANIFEST} describes: move it away, "
                "or name another --out."
            )
