"""The sources that ``--data`` can name: files by split, a folder of save_to_disk, a hub data set.

A path that exists always wins over a hub id of the same name.
"""

from __future__ import annotations

import difflib
import glob
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from finetune.config.recipes import local_path
from finetune.config.values import text_encoding
from finetune.data import examples as holder
from finetune.data.examples import Dataset
from finetune.data.files import (
    COMPRESSIONS,
    IGNORED_NAMES,
    SUFFIXES,
    UTF_8,
    DataFile,
    Row,
    format_of,
    open_data,
    uncompressed_name,
)
from finetune.data.hub import (
    DATASET_ALIASES,
    MANUAL_DOWNLOADS,
    Download,
    HubDataset,
    downloaded,
    hub_dataset,
    saved_tables,
)
from finetune.data.in_memory import memory_tables
from finetune.data.tables import Table, joined
from finetune.types import DataError, abbreviated, did_you_mean, quantity

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys("validation valid val dev devel development trial testa".split(), "validation"),
    **dict.fromkeys(("test", "testb", "testing"), "test"),
}
"""The split for each word of a file name, and for the split names of other data sets."""
SPLIT_ORDER = [
    f"{split}{end}"
    for split in ("train", "validation", "test")
    for end in ("", "_matched", "_mismatched")
]

MAX_REPEATED = 0.5
"""Fraction of the rows of a split that may also be in the splits that it is joined with."""
SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.)")
SAVED_FILES = ("dataset_dict.json", "state.json")


@dataclass(frozen=True)
class Source:
    """The location of a data set: exactly one of files, saved, hub and memory is set."""

    name: str
    files: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    saved: Path | None = None
    hub: HubDataset | None = None
    memory: Any = None
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each split the names of the splits of a hub data set or saved folder to read as it; empty
    reads all by their names."""
    without_test: bool = False
    """Whether test splits are left unread, as if there were none."""
    most_rows: int | None = None
    """The number of rows of the training split after which no row is read; None reads all."""
    unread: tuple[str, ...] = ()
    """The names of further data files in the folder, which are no splits."""


SourceContent = Sequence[Path] | Download | None
"""All files of a data set in order, or a data set of the hub at a commit; None: in memory."""


@dataclass(frozen=True)
class PartOf:
    """Data to read in part: ``spec`` is a ``--data`` value or data in memory."""

    spec: Any
    without_test: bool = False
    most_rows: int | None = None


def resolve(spec: Any) -> Source:
    """Find the source for a ``--data`` value, or for data in memory (``memory_tables``).

    Raises DataError with the nearest legal name.
    """
    if isinstance(spec, PartOf):
        source = resolve(spec.spec)
        if spec.most_rows is not None:
            source = replace(source, most_rows=spec.most_rows)
        if not spec.without_test:
            return source
        files = {split: paths for split, paths in source.files.items() if not is_test(split)}
        return replace(source, files=files or source.files, without_test=True)
    if not isinstance(spec, str | Path):
        return Source("data", memory=spec)
    spec = str(spec)
    if not spec.strip():
        raise DataError("--data is empty: give a folder, a file, or a hub data set such as mnli.")
    path = local_path(spec)
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return Source(path.name.split(".")[0] or path.name, {"train": (path,)})
    if "=" in spec:
        return _parse_named_splits(spec)
    chosen = hub_dataset(spec)
    if (
        spec.startswith(("/", ".", "~", "\\"))
        or spec.endswith("/")
        or spec.partition("@")[0].count("/") > 1
        or path.suffix.lower() in {*SUFFIXES, *COMPRESSIONS}
        or ("/" in spec and "@" not in spec and path.parent.is_dir())
    ):
        raise DataError(f"{spec}: {_missing(path)}")
    if chosen is not None:
        return Source(spec, hub=chosen)
    if (advice := MANUAL_DOWNLOADS.get(spec.lower())) is not None:
        raise DataError(f"{spec}: {advice}; then name them with --data FOLDER.")
    hint = did_you_mean(
        spec.partition(":")[0], [*DATASET_ALIASES, *(e.name for e in Path().iterdir())]
    )
    raise DataError(
        f"{spec}: neither a file or folder nor a known data set. Known short names: "
        f"{', '.join(sorted(DATASET_ALIASES))}; write other hub data sets "
        f"owner/name[:config][@revision].{hint}"
    )


def content_of(source: Source) -> SourceContent:
    """The content that a data set is read from; of a hub data set after a download."""
    if source.hub is not None:
        return downloaded(source.hub)
    if source.saved is not None:
        return sorted(path for path in source.saved.rglob("*") if path.is_file())
    if not source.files:
        return None
    return list(itertools.chain.from_iterable(source.files.values()))


def open_input(
    source: Any,
    open_file: Callable[[DataFile], Table],
    format: str | None = None,
    encoding: str = UTF_8,
) -> Table:
    """Open the input of a prediction as ``open_data`` does, or several files as one.

    ``input_files`` names the files. Each file is opened once the files before it are read.
    """
    is_path = isinstance(source, str | Path) and str(source) != "-"
    inputs = input_files(source) if is_path else [source]
    return joined(open_file(open_data(file, format, encoding)) for file in inputs)


def input_files(source: str | Path) -> list[Path]:
    """List a file, or the data files of a folder or of a pattern such as ``new/*.jsonl``.

    They are in the order of their names.
    Raises DataError if there are none, or files of several formats.
    """
    path = local_path(source)
    if path.is_dir():
        files = data_files(path)
        is_one_format = len({format_of(file) for file in files}) == 1
        pattern = None if is_one_format else _pattern_of_files(path)
        advice = f"write --file {shlex.quote(pattern)}" if pattern else "name a file of data"
        return _of_one_format(files, f"--file {path}: the folder", advice)
    if not path.exists() and glob.has_magic(str(path)):
        paths = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        paths = [file for file in paths if file.is_file()]
        return _of_one_format(paths, f"--file {path}: the pattern", "write another one")
    return [path]


def _pattern_of_files(folder: Path) -> str | None:
    # a pattern that names data files of one format in a folder, or else below it
    suffixes = [f"{suffix}{more}" for suffix in SUFFIXES for more in ("", *COMPRESSIONS)]
    start = glob.escape(str(folder))
    for pattern in (f"{start}/{stem}{suffix}" for stem in ("*", "**/*") for suffix in suffixes):
        if any(Path(name).is_file() for name in glob.iglob(pattern, recursive=True)):
            return pattern
    return None


def _of_one_format(files: list[Path], what: str, advice: str) -> list[Path]:
    formats = sorted({format_of(file) or "" for file in files})
    if len(formats) == 1:
        return files
    problem = f"holds files of several formats ({', '.join(formats)})"
    problem = problem if files else "holds no data files"
    raise DataError(f"{what} {problem}: {advice}.")


def open_splits(
    spec: Any,
    wanted: Sequence[str] | None,
    open_file: Callable[[DataFile], Table],
    encoding: str = UTF_8,
) -> tuple[Dataset, dict[str, Table]]:
    """Open the ``wanted`` splits of data (None: all); ``open_file`` opens one file.

    Returns:
        The data set without its examples, and the tables of the splits in order, before they are
        read.
    """
    source = resolve(spec)
    if source.files:
        chosen = sorted(source.files, key=SPLIT_ORDER.index)
        if wanted is not None:
            chosen = _selected(chosen, wanted, source.name)
        tables, formats = dict[str, Table](), set[str]()
        for split in chosen:
            paths = source.files[split]
            parts = (open_file(open_data(path, None, encoding)) for path in paths)
            tables[split] = joined(parts) if len(paths) > 1 else next(parts)
            formats.add(format_of(paths[0]) or "plain")
        notes = [f"files not read: {abbreviated(source.unread)}"] if source.unread else []
        dataset = Dataset(source.name, {}, notes, format="+".join(sorted(formats)))
    elif text_encoding(encoding) != UTF_8:
        raise DataError(f"{source.name}: --encoding {encoding}: only files have an encoding.")
    else:
        dataset, tables = _open_tables(source, wanted)
    if source.most_rows is not None and "train" in tables:
        train = tables["train"]
        train.rows = _first_rows(train, train.rows, source.most_rows)
    return dataset, tables


def _open_tables(source: Source, wanted: Sequence[str] | None) -> tuple[Dataset, dict[str, Table]]:
    pinned = None
    if source.hub is not None:
        hub_set = downloaded(source.hub)
        source_tables = hub_set.tables()
        parts = [f"{split}={'+'.join(names)}" for split, names in source.parts.items()]
        format, pinned = "hub", ",".join([str(hub_set.used), *parts])
    elif source.saved is None:
        source_tables, format = memory_tables(source.memory), "memory"
    else:
        source_tables, format = saved_tables(source.saved), "save_to_disk"
    named = {split: list(names) for split, names in source.parts.items()}
    for name in source_tables if not named else ():
        named.setdefault(canonical_split(name) or name, []).append(name)
    for name in itertools.chain.from_iterable(named.values()):
        if name not in source_tables:
            raise DataError(
                f"--data {source.name}: there is no split {name!r}, only "
                f"{abbreviated(source_tables)}.{did_you_mean(name, list(source_tables))}"
            )
    if source.without_test:
        named = {split: names for split, names in named.items() if not is_test(split)}
    legal = list(named)
    if wanted is None:
        legal = [split for split in named if canonical_split(split)] or legal
    legal.sort(key=[*SPLIT_ORDER, *sorted(legal)].index)
    chosen = legal if wanted is None else _selected(legal, wanted, source.name)
    left = [split for split in named if split not in chosen]
    notes = [f"splits not read: {', '.join(left)}"] if left and wanted is None else []
    tables = {}
    for split in chosen:
        of_split = {name: source_tables[name] for name in named[split]}
        if len(of_split) > 1:
            _refuse_repeated(source.name, split, of_split)
            notes.append(f"{split}: joined from {', '.join(of_split)}")
        tables[split] = joined(of_split.values())
    return Dataset(source.name, {}, notes, format, pinned=pinned), tables


def _refuse_repeated(data: str, split: str, parts: Mapping[str, Table]) -> None:
    # training on both would count these rows twice, and only the user knows which table to choose
    contents = {
        name: list(map(_content, table.peek(holder.MOST_IN_MEMORY)))
        for name, table in parts.items()
    }
    for name, rows in contents.items():
        other_rows = {row for other in contents if other != name for row in contents[other]}
        repeated = sum(row in other_rows for row in rows)
        if repeated > MAX_REPEATED * len(rows):
            raise DataError(
                f"{data}: the splits {abbreviated(list(contents))} all mean {split}, and "
                f"{repeated:,} of {quantity(len(rows), 'row')} of {name} are also in the others: "
                f"choose with --data {data},{split}={name} ({split}=A+B for several; in Python, "
                "leave some out)."
            )


def _content(row: Row) -> str:
    values = {
        name: value
        for name, value in row.values.items()
        if name.lower() not in ("idx", "index") and not name.lower().endswith("id")
    }
    return json.dumps(values or dict(row.values), default=str)


def _first_rows(train: Table, rows: Iterator[Any], number: int) -> Iterator[Any]:
    yield from itertools.islice(rows, number)
    if next(rows, None) is not None:
        train.notes.append(f"train: rows after the first {number:,} are not read (--limit)")


def canonical_split(name: str) -> str | None:
    """Convert a name to ``train``, ``validation`` or ``test`` (with ``_matched``, …), or None.

    The first word of the name that means a split decides: ``NER-de-dev`` is validation.
    """
    tokens = [token for token in re.split(r"[._\-\s]+", name.lower()) if token]
    split = next((_SPLITS[token] for token in tokens if token in _SPLITS), None)
    if split is None:
        return None
    suffix = next((token for token in tokens if token in ("matched", "mismatched")), None)
    return f"{split}_{suffix}" if suffix else split


def is_test(split: str) -> bool:
    """True if a split is test data, such as ``test`` or ``test_matched``."""
    return split.split("_")[0] == "test"


def _selected(legal: Sequence[str], wanted: Sequence[str], name: str) -> list[str]:
    chosen = [canonical_split(split) or split for split in wanted]
    for split in chosen:
        if split not in legal:
            hint = did_you_mean(split, legal)
            raise DataError(f"{name} has no split {split!r}, only {abbreviated(legal)}.{hint}")
    return [split for split in legal if split in chosen]


def _folder(folder: Path) -> Source:
    if any((folder / name).is_file() for name in SAVED_FILES):
        return Source(folder.resolve().name, saved=folder)
    files: dict[str, list[Path]] = {}
    entries = _entries(folder)
    for path in entries:
        if (split := _split_of(path)) is not None:
            files.setdefault(split, []).append(path)
    if any(path.suffix == ".ann" for path in entries):
        raise DataError(
            f"{folder} holds documents of brat (.ann): make a file of each split, finetune convert "
            f"{folder} --out train.jsonl"
        )
    if not files:
        names = abbreviated([path.name for path in entries], 6) or "none"
        raise DataError(
            f"{folder} holds no split files (its entries: {names}): name them train.jsonl, "
            "validation.jsonl and test.jsonl, or write --data train=FILE,validation=FILE; "
            f"train=FILE+FILE reads several files, and train={folder} all of the folder."
        )
    chosen = dict[str, tuple[Path, ...]]()
    for split, paths in files.items():
        chosen[split] = _plain_first(paths)
        if len({SHARD.sub("", uncompressed_name(path)) for path in chosen[split]}) > 1:
            first, second = sorted(path.name for path in chosen[split])[:2]
            raise DataError(
                f"{folder} has two files for the {split} split, {first} and {second}: choose with "
                f"--data {split}={folder / first},…, or read both with {split}={folder / first}+"
                f"{folder / second},…"
            )
    unread = [path.name for path in data_files(folder) if _split_of(path) is None]
    return Source(folder.resolve().name, chosen, unread=tuple(unread))


def data_files(folder: Path) -> list[Path]:
    """List the data files of a folder in the order of their names (FILE before FILE.gz)."""
    paths = [path for path in _entries(folder) if _may_hold_data(path) and format_of(path)]
    return list(_plain_first(paths))


def _entries(folder: Path) -> list[Path]:
    entries = sorted(folder.iterdir())
    if {"config.json", "metrics.json"} <= {path.name for path in entries}:
        raise DataError(
            f"{folder} is a run folder, and its predictions are no data: give the data of the run, "
            f"which {folder / 'config.json'} names."
        )
    return entries


def _plain_first(paths: Iterable[Path]) -> tuple[Path, ...]:
    by_name = {uncompressed_name(path): path for path in sorted(paths, key=lambda p: -len(p.name))}
    return tuple(by_name[name] for name in sorted(by_name))


def _may_hold_data(path: Path) -> bool:
    name = uncompressed_name(path).lower()
    return (
        path.is_file()
        and name[:1] not in (".", "_")  # hidden, as in Hadoop and Arrow
        and re.split(r"[._\-]", name)[0] not in IGNORED_NAMES
    )


def _split_of(path: Path) -> str | None:
    name = uncompressed_name(path)
    suffix = Path(name).suffix.lower()
    if suffix and format_of(path) is None and suffix[1:] not in _SPLITS:
        return None
    return canonical_split(name) if _may_hold_data(path) else None


def _parse_named_splits(spec: str) -> Source:
    first, *items = re.split(r",(?=\s*\w+=)", spec)
    if not items or re.match(r"\s*\w+=", first):
        named = _split_items([first, *items], "FILE")
        files = {split: _files_of(split, value) for split, value in named.items()}
        return Source(next(iter(files.values()))[0].resolve().parent.name, files)
    source = resolve(first)
    if source.hub is None and source.saved is None:
        raise DataError(
            f"--data {spec}: {first} has no named splits to choose from: write "
            "train=FILE,test=FILE."
        )
    return replace(
        source,
        parts={
            split: tuple(value.split("+")) for split, value in _split_items(items, "SPLIT").items()
        },
    )


def _split_items(items: Sequence[str], what: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for item in items:
        key, _, value = item.strip().partition("=")
        split = canonical_split(key)
        if split is None or not value:
            problem = f"{key!r} is not a split" if value else f"no {what.lower()} is named"
            hint = did_you_mean(key, ("train", "validation", "test")) if split is None else ""
            legal = f"train={what},validation={what},test={what}"
            raise DataError(f"--data {item.strip()}: {problem}: write {legal}.{hint}")
        if split in values:
            raise DataError(
                f"--data names the {split} split twice: write {split}={values[split]}+{value} to "
                "read both."
            )
        values[split] = value
    return values


def _files_of(split: str, value: str) -> tuple[Path, ...]:
    files: list[Path] = []
    names = [value] if Path(value).expanduser().exists() else value.split("+")
    for name in names:
        path = Path(name).expanduser()
        if path.is_file():
            files.append(path)
        elif path.is_dir():
            advice = f"name the files, {split}=A.jsonl+B.jsonl"
            what = f"--data {split}={name}: the folder"
            files += _of_one_format(data_files(path), what, advice)
        else:
            raise DataError(f"--data {split}={name}: {_missing(path)}")
    return tuple(files)


def _missing(path: Path) -> str:
    if path.exists():
        return "a pipe, and data are read more than once: write it to a file, and name the file."
    problem, parent = "no such file or folder.", path.parent
    while not parent.is_dir() and parent != parent.parent:
        path, parent = parent, parent.parent
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    lowered = {name.lower(): name for name in names}
    if near := difflib.get_close_matches(path.name.lower(), lowered, n=1):
        return f"{problem} Perhaps you meant '{parent / lowered[near[0]]}'?"
    visible = sorted(name for name in names if not name.startswith("."))
    if not names:
        return problem
    return f"{problem} The folder {parent} holds {abbreviated(visible, 8)}."
