"""The sources that ``--data`` can name: files by split, a folder of save_to_disk, a hub data set.

A path that exists always wins over a hub id of the same name.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from finetune.config.recipes import packaged_folder
from finetune.config.values import text_encoding
from finetune.data.brat import document_names
from finetune.data.dataset import DataError
from finetune.data.files import IGNORED_NAMES, UTF_8, DataFile, name_without_gz
from finetune.data.formats import SUFFIXES, format_of, open_data
from finetune.data.hub import (
    ALIASES,
    MANUAL_DOWNLOADS,
    HubDataset,
    hub_dataset,
    hub_tables,
    saved_tables,
)
from finetune.data.in_memory import memory_tables
from finetune.data.tables import Table
from finetune.data.token_records import Sentences, TokenRecord
from finetune.types import abbreviated, did_you_mean

SPLITS = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "devel": "validation", "development": "validation", "trial": "validation",
    "testa": "validation",
    "test": "test", "testb": "test", "testing": "test",
}  # fmt: skip
"""The split for each word of a file name, and for the split names of other data sets."""
SPLIT_ORDER = ["train", "validation", "validation_matched", "validation_mismatched", "test"]

SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.)")
IN_MEMORY = "memory"
"""Name and format of data in memory."""
SAVED_FILES = ("dataset_dict.json", "state.json")


@dataclass(frozen=True)
class Source:
    """The location of a data set: exactly one of the fields besides ``name`` is set."""

    name: str
    files: dict[str, tuple[Path, ...]] = field(default_factory=dict)  # folders: of documents
    saved: Path | None = None
    hub: HubDataset | None = None
    memory: Any = None
    without_test: bool = False
    """Whether test splits are left unread, as if there were none."""


@dataclass(frozen=True)
class WithoutTest:
    """Data to read without their test splits: ``spec`` is a ``--data`` value or data in memory."""

    spec: Any


Opened = TypeVar("Opened", bound=Table | Sentences)


@dataclass
class OpenSource(Generic[Opened]):
    """The opened tables or sentences of the chosen splits, in order, before they are read."""

    name: str
    splits: dict[str, Opened]
    format: str
    notes: list[str] = field(default_factory=list)


def resolve(spec: Any) -> Source:
    """Return the source for a ``--data`` value, or for data in memory (``memory_tables``).

    Raises DataError with the nearest legal name.
    """
    if isinstance(spec, WithoutTest):
        source = resolve(spec.spec)
        files = {split: own for split, own in source.files.items() if not is_test(split)}
        return replace(source, files=files or source.files, without_test=True)
    if not isinstance(spec, str | Path):
        return Source(IN_MEMORY, memory=spec)
    spec = str(spec)
    if not spec.strip():
        raise DataError("--data is empty: give a folder, a file, or a hub data set such as mnli.")
    path = Path(spec).expanduser()
    if path.parts[:2] == ("examples", "data") and not path.exists():
        path = packaged_folder("examples").joinpath(*path.parts[1:])
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return Source(name_without_gz(path).split(".")[0] or path.name, {"train": (path,)})
    if "=" in spec:
        return _named_files(spec)
    if (
        spec.startswith(("/", ".", "~", "\\"))
        or spec.endswith("/")
        or spec.count("/") > 1
        or path.suffix.lower() in {*SUFFIXES, ".gz"}
        or ("/" in spec and path.parent.is_dir())
    ):
        raise DataError(f"--data {spec}: no such file or folder.{_nearest(path)}")
    chosen = hub_dataset(spec)
    if chosen is not None:
        return Source(spec, hub=chosen)
    if (advice := MANUAL_DOWNLOADS.get(spec.lower())) is not None:
        raise DataError(f"--data {spec}: {advice}; then name them with --data FOLDER.")
    hint = did_you_mean(spec.partition(":")[0], [*ALIASES, *(e.name for e in Path().iterdir())])
    raise DataError(
        f"--data {spec}: neither a file or folder nor a known data set. Known short names: "
        f"{', '.join(sorted(ALIASES))}; write other hub data sets owner/name[:config].{hint}"
    )


def open_splits(
    source: Source,
    wanted: Sequence[str] | None,
    open_file: Callable[[DataFile], Opened],
    encoding: str = UTF_8,
) -> OpenSource[Opened | Table]:
    """Open the ``wanted`` splits of a source (None: all); ``open_file`` opens one file."""
    if source.files:
        chosen = _select_splits(list(source.files), wanted, source.name)
        opened: dict[str, Opened | Table] = {
            split: _open_shards(source.files[split], open_file, encoding) for split in chosen
        }
        formats = {format_of(source.files[split][0]) or "plain" for split in chosen}
        return OpenSource(source.name, opened, "+".join(sorted(formats)))
    if text_encoding(encoding) != UTF_8:
        raise DataError(f"{source.name}: --encoding {encoding}: only files have an encoding.")
    if source.hub is not None:
        found, format = hub_tables(source.hub), "hub"
    elif source.saved is None:
        found, format = memory_tables(source.memory), IN_MEMORY
    else:
        found, format = saved_tables(source.saved), "save_to_disk"
    named: dict[str, Opened | Table] = {canonical_split(s) or s: t for s, t in found.items()}
    if source.without_test:
        named = {split: table for split, table in named.items() if not is_test(split)}
    legal = list(named)
    if wanted is None:
        legal = [split for split in named if canonical_split(split)] or legal
    chosen = _select_splits(legal, wanted, source.name)
    left = [split for split in named if split not in chosen]
    notes = [f"splits not read: {', '.join(left)}"] if left and wanted is None else []
    return OpenSource(source.name, {split: named[split] for split in chosen}, format, notes)


def _open_shards(
    paths: Sequence[Path], open_file: Callable[[DataFile], Opened], encoding: str
) -> Opened:
    """Open the file, or all shards, of a split as one."""
    shards = [open_file(open_data(path, encoding=encoding)) for path in paths]
    if len(shards) > 1:
        parts = [_with_unique_documents(shard.records, i) for i, shard in enumerate(shards, 1)]
        shards[0].records = itertools.chain.from_iterable(parts)
    return shards[0]


def _with_unique_documents(records: Iterator[Any], number: int) -> Iterator[Any]:
    """Yield the records of a shard, with its number in the names of documents."""
    for record in records:
        if number > 1 and isinstance(record, TokenRecord) and record.document is not None:
            record = record._replace(document=f"{record.document} in file {number}")
        yield record


def canonical_split(name: str) -> str | None:
    """Return ``train``, ``validation`` or ``test`` (with ``_matched``, …) for a name, or None.

    The first word of the name that means a split decides: ``NER-de-dev`` is validation.
    """
    tokens = [token for token in re.split(r"[._\-\s]+", name.lower()) if token]
    split = next((SPLITS[token] for token in tokens if token in SPLITS), None)
    if split is None:
        return None
    suffix = next((token for token in tokens if token in ("matched", "mismatched")), None)
    return f"{split}_{suffix}" if suffix else split


def is_test(split: str) -> bool:
    """Return whether a split is test data, such as ``test`` or ``test_matched``."""
    return split.split("_")[0] == "test"


def _select_splits(found: Sequence[str], wanted: Sequence[str] | None, name: str) -> list[str]:
    """Return the splits to read in order; raises DataError if a wanted one is missing."""
    order = [*SPLIT_ORDER, *sorted(found)]
    ranked = sorted(found, key=order.index)
    if wanted is None:
        return ranked
    chosen = [canonical_split(split) or split for split in wanted]
    for split in chosen:
        if split not in found:
            hint = did_you_mean(split, found)
            raise DataError(f"{name} has no split {split!r}, only {abbreviated(ranked)}.{hint}")
    return [split for split in ranked if split in chosen]


def _folder(folder: Path) -> Source:
    if any((folder / name).is_file() for name in SAVED_FILES):
        return Source(folder.resolve().name, saved=folder)
    files: dict[str, list[Path]] = {}
    standoff = any(path.suffix == ".ann" for path in folder.iterdir())
    for path in sorted(folder.iterdir()):
        split = None if standoff and path.suffix in (".ann", ".txt") else _split_of(path)
        if split is not None:
            files.setdefault(split, []).append(path)
    files = files or _documents(folder)
    if not files:
        entries = abbreviated(sorted(path.name for path in folder.iterdir()), 6) or "none"
        raise DataError(
            f"{folder} holds no split files (its entries: {entries}): name them train.jsonl, "
            "validation.jsonl and test.jsonl, or write --data train=FILE,validation=FILE."
        )
    chosen = {split: _file_or_shards(folder, split, paths) for split, paths in files.items()}
    return Source(folder.resolve().name, chosen)


def _documents(folder: Path) -> dict[str, list[Path]]:
    """Return the standoff documents of a folder, or of its folders train, dev and test.

    If all documents are named after splits (train.ann, test.ann), each is a split.
    """
    names = document_names(folder)
    annotated = [name for name in names if (folder / f"{name}.ann").is_file()]
    inside: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        split = canonical_split(path.name) if path.is_dir() else None
        if split is not None and document_names(path):
            inside.setdefault(split, []).append(path)
    if not any(next(path.glob("*.ann"), None) for paths in inside.values() for path in paths):
        inside = {}
    if annotated and inside:
        raise DataError(
            f"{folder} has annotated documents ({annotated[0]}.ann) and so has a folder in it "
            f"({next(iter(inside.values()))[0].name}): choose with --data train=FOLDER,test=FOLDER."
        )
    if annotated and all(name.lower() in SPLITS for name in names):
        named: dict[str, list[Path]] = {}
        for name in names:
            named.setdefault(SPLITS[name.lower()], []).append(folder / f"{name}.ann")
        return named
    return {"train": [folder]} if annotated else inside


def _split_of(path: Path) -> str | None:
    """Return the split that a file of a folder holds, None for files without data."""
    name = name_without_gz(path)
    first = re.split(r"[._\-]", name.lower())[0]
    if not path.is_file() or name.startswith(".") or first in IGNORED_NAMES:
        return None
    suffix = Path(name).suffix.lower()
    if suffix and format_of(path) is None and suffix[1:] not in SPLITS:
        return None
    return canonical_split(name)


def _file_or_shards(folder: Path, split: str, paths: list[Path]) -> tuple[Path, ...]:
    """Return the file of a split (FILE before FILE.gz), or several if they are shards."""
    by_name = {name_without_gz(path): path for path in sorted(paths, key=lambda p: -len(p.name))}
    if len(by_name) > 1 and len({SHARD.sub("", name) for name in by_name}) > 1:
        first, second = sorted(path.name for path in by_name.values())[:2]
        raise DataError(
            f"{folder} has two files for the {split} split, {first} and {second}: remove one, or "
            f"choose with --data {split}={folder / first},…"
        )
    return tuple(by_name[name] for name in sorted(by_name))


def _named_files(spec: str) -> Source:
    """Parse ``train=FILE,validation=FILE,test=FILE`` (a comma splits only before ``name=``)."""
    files: dict[str, tuple[Path, ...]] = {}
    for item in re.split(r",(?=\s*\w+=)", spec):
        key, _, value = item.strip().partition("=")
        split = canonical_split(key)
        if split is None or not value:
            problem = f"{key!r} is not a split" if value else "no file is named"
            hint = did_you_mean(key, ("train", "validation", "test")) if split is None else ""
            legal = "train=FILE,validation=FILE,test=FILE"
            raise DataError(f"--data {item.strip()}: {problem}: write {legal}.{hint}")
        if split in files:
            raise DataError(f"--data names the {split} split twice: remove {value}.")
        path = Path(value).expanduser()
        if not path.is_file() and not (path.is_dir() and document_names(path)):
            problem = "is a folder, not a file, and holds no NAME.txt with NAME.ann"
            problem = problem if path.is_dir() else "no such file"
            raise DataError(f"--data {split}={value}: {problem}.{_nearest(path)}")
        files[split] = (path,)
    first = next(iter(files.values()))[0]
    return Source(first.resolve().parent.name, files)


def _nearest(path: Path) -> str:
    """Return a hint: the most similar path next to a missing one, or what its folder holds."""
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        path, parent = parent, parent.parent
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    lowered = {name.lower(): name for name in names}
    if near := difflib.get_close_matches(path.name.lower(), lowered, n=1):
        return f" Perhaps you meant '{parent / lowered[near[0]]}'?"
    visible = sorted(name for name in names if not name.startswith("."))
    return f" {parent} holds {abbreviated(visible, 8)}." if names else ""
