"""Predictions of large inputs in numbered parts, which the same command continues after a kill.

Each part has the predictions of a fixed number of rows and is predicted apart from the others. So
its content does not depend on the jobs and processes that share the parts, nor on interruptions. A
manifest describes what the predictions depend on, and the names of the parts have its digest.
"""

from __future__ import annotations

import contextlib
import json
import math
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
    Example,
    TextPrediction,
    UserError,
)

PART_ROWS = 65_536
"""Default number of rows of a part."""
MANIFEST = "_predictions.json"
"""The manifest. Arrow, Spark and Hadoop do not take files with an underscore for data."""
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


@dataclass
class Parts:
    """The parts of one shard in a folder.

    Attributes:
        folder: The folder.
        digest: The digest of all that the predictions depend on.
        suffix: The format of the parts.
        part_rows: Number of rows of each part but the last.
        shard: The share of this process.
        about: Number of rows that the input probably has, for the time left; None if unknown.
        num_rows: Number of rows that this process has read.
        num_written: Number of parts that this process has written.
        damaged: Names of the damaged parts that are made again.
        sample: Records whose columns and types all Parquet parts have.
    """

    folder: Path
    digest: str
    suffix: str
    part_rows: int
    shard: Shard
    about: int | None
    num_rows: int = 0
    num_written: int = 0
    damaged: list[str] = field(default_factory=list)
    sample: Sequence[Record] = ()
    _missing: dict[int, bool] = field(default_factory=dict)

    def path(self, number: int) -> Path:
        """Return the file of a part."""
        return self.folder / f"part-{number:06d}-{self.digest}{self.suffix}"

    @property
    def num_parts(self) -> int:
        """The number of parts of all shards, once the input is read."""
        return -(-self.num_rows // self.part_rows)

    @property
    def rows_left(self) -> int | None:
        """The number of rows that are probably left to predict; None if unknown."""
        if self.about is None:
            return None
        starts = range(0, self.about, self.part_rows)
        missing = [start for start in starts if self._is_missing(start // self.part_rows)]
        return sum(min(self.part_rows, self.about - start) for start in missing)

    def wants_row(self, row: int) -> bool:
        """Return whether a row is in a missing part of the shard."""
        self.num_rows = max(self.num_rows, row + 1)
        return self._is_missing(row // self.part_rows)

    def chunks(
        self, examples: Iterable[Example], drop: Callable[[int], object]
    ) -> Iterator[list[Example]]:
        """Yield the examples of missing parts to predict together; ``drop`` gets the other ids."""
        for number, group in groupby(examples, key=self._missing_part):
            if number is not None:
                yield from chunks(group, CHUNK)
            else:
                for example in group:
                    drop(example.id)

    def write(self, records: Iterable[tuple[int, Record]]) -> None:
        """Write records, each with the number of its row; a part appears once it is complete."""
        records = iter(records)
        for first in records:  # each begins a part
            number = first[0] // self.part_rows
            with record_writer(self.path(number), self.sample) as write:
                for _, record in chain([first], islice(records, self.part_rows - 1)):
                    write(record)
            write_text(self._digest_file(number), file_hash(self.path(number)))
            self.num_written += 1

    def _missing_part(self, example: Example) -> int | None:
        return example.id // self.part_rows if self.wants_row(example.id) else None

    def _is_missing(self, number: int) -> bool:
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
        return self.folder / f"_digest-{number:06d}-{self.digest}"


@contextlib.contextmanager
def open_parts(
    folder: Path,
    model: Path,
    files: Sequence[Path],
    settings: Mapping[str, Any],
    *,
    suffix: str = ".parquet",
    part_rows: int = PART_ROWS,
    shard: Shard,
    reporter: Reporter,
) -> Iterator[Parts]:
    """Hold a shard of a folder of predictions, which is begun or continued.

    Args:
        folder: The folder.
        model: The folder of the model.
        files: The files of the input, all of which are read.
        settings: The other settings that change predictions.
        suffix: ``.parquet`` or ``.jsonl``.
        part_rows: Number of rows of a part.
        shard: The parts to predict.
        reporter: Shows the progress.

    Raises:
        UserError: The folder holds predictions of another model, input or settings; a file is
            damaged; another process has this shard.
    """
    read: list[tuple[Path, Content]] = []
    reporter.start("reading the input", len(files), unit="file")
    for path in files:
        read.append((path, read_content(path)))
        reporter.update(len(read))
    reporter.stop()
    content = {
        "finetune": finetune.__version__,
        "model": _digest_of_model(model),
        "part rows": part_rows,
        "format": suffix[1:],
        **{name.replace("_", " "): value for name, value in settings.items()},
        **{f"file {n} {path.name}": found.digest for n, (path, found) in enumerate(read, 1)},
    }
    text = json.dumps(content, indent=2, default=str) + "\n"
    digest = xxhash.xxh3_64_hexdigest(text.encode())[:8]
    with contextlib.ExitStack() as held:
        try:
            name = f"{LOCK}-{shard.index}-of-{shard.count}"
            held.enter_context(lock_folder(folder, name=name))
        except FolderInUse as error:
            given = f"--shard {shard.index}/{shard.count}"
            raise FolderInUse(f"{given}: {error} Each job needs a shard of its own.") from error
        with lock_folder(folder, wait=True):
            _require_same(folder / MANIFEST, json.loads(text))
            for path in sorted(folder.iterdir()):
                if _PART.fullmatch(path.name) and not path.name.endswith(f"-{digest}{suffix}"):
                    raise UserError(
                        f"{path} is of other predictions than {folder / MANIFEST} describes: move "
                        "it away, or name another --out."
                    )
            if not (folder / MANIFEST).exists():
                write_text(folder / MANIFEST, text)
        yield Parts(folder, digest, suffix, part_rows, shard, _about(read))


def _require_same(manifest: Path, content: Mapping[str, Any]) -> None:
    try:
        saved = read_object(manifest) if manifest.exists() else content
    except UserError as error:
        raise UserError(
            f"{manifest}: damaged: delete it. The same command writes it again and keeps the parts "
            "that belong to it."
        ) from error
    for name in {**content, **saved}:
        before, now = saved.get(name), content.get(name)
        if before != now:
            raise UserError(
                f"--out {manifest.parent} holds other predictions: {name} was "
                f"{before!r:.60}, now it is {now!r:.60}. Use what they were begun with, or name "
                "another folder."
            )


def _digest_of_model(folder: Path) -> str:
    digest = xxhash.xxh3_128()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix != ".md" and not path.name.startswith("."):
            digest.update(f"{path.name} {read_content(path).digest}\n".encode())
    return digest.hexdigest()


def about_rows(files: Sequence[Path]) -> int | None:
    """Return about how many rows files have; None if a format does not tell. Reads all of them."""
    if not all(path.is_file() for path in files):
        return None
    return _about([(path, read_content(path)) for path in files])


def _about(files: Sequence[tuple[Path, Content]]) -> int | None:
    rows = [_rows(path, content) for path, content in files]
    known = [each for each in rows if each is not None]
    return sum(known) if len(known) == len(rows) else None


def _rows(path: Path, content: Content) -> int | None:
    format = format_of(path)
    if format == "parquet":
        from pyarrow import parquet

        with contextlib.suppress(ValueError), parquet.ParquetFile(path) as file:
            return int(file.metadata.num_rows)  # the reader reports errors
    header = _ROWS_BY_LINE.get(format or "")
    return None if header is None else content.num_lines - header


def typical(predictions: Iterable[Any]) -> list[Any]:
    """Return predictions with a value in each place that a prediction may leave empty.

    The types of their records are the types of all records of the model. Of a model that withholds
    answers, the second one has them withheld.
    """
    found, *others = predictions
    if isinstance(found, TextPrediction):  # a blank text does not tell the type of labels
        found = next((each for each in (found, *others) if each.filled().label is not None), found)
    full = found.filled()
    if not full.decided:
        return [full]
    known = full.class_probabilities if "set" in full.decided else ()
    filled = {"set": [*known], "distance": 0.5, "unlike": False, "withheld": None}
    decided = {name: filled.get(name, value) for name, value in full.decided.items()}
    given = replace(full, decided=decided)
    return [given, given.withhold(lambda _: math.inf)] if "withheld" in decided else [given]
