"""What `--data` names: files or documents by split, a folder of save_to_disk, or a hub data set.

A path that exists always wins over a hub id of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from finetune.data.dataset import DataError
from finetune.data.files import FORMATS, IGNORED_NAMES, bare_name, document_names, format_of
from finetune.data.hub import ALIASES, TO_FETCH, HubSet, hub_set
from finetune.types import perhaps, shortened

SPLITS = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "devel": "validation", "development": "validation", "trial": "validation",
    "testa": "validation",
    "test": "test", "testb": "test", "testing": "test",
}  # fmt: skip
"""The split that a word of a file name, or a split name of others, stands for."""

SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.)")
SAVED = ("dataset_dict.json", "state.json")


@dataclass(frozen=True)
class Source:
    """Where a data set lies: exactly one of ``files``, ``saved`` and ``hub`` is set.

    Among ``files`` a folder, or an .ann file, stands for documents with standoff annotation.
    """

    name: str
    files: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    saved: Path | None = None
    hub: HubSet | None = None
    ignored: tuple[str, ...] = ()


def resolve(spec: str) -> Source:
    """The source that a ``--data`` value names; raises DataError with the nearest legal name."""
    spec = str(spec)
    if not spec.strip():
        raise DataError(
            "--data is empty: give a folder with train/validation/test files, one file, "
            "train=FILE,test=FILE, or a hub data set such as mnli."
        )
    path = Path(spec).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return Source(bare_name(path).split(".")[0] or path.name, {"train": (path,)})
    if "=" in spec:
        return _named_files(spec)
    if _looks_like_path(spec, path):
        raise DataError(f"--data {spec}: no such file or folder.{_nearest(path)}")
    return _hub(spec)


def canonical_split(name: str) -> str | None:
    """``train``, ``validation`` or ``test`` (with ``_matched``, …) for a split name, or None.

    The first word of the name that means a split decides: ``NER-de-dev`` is validation.
    """
    tokens = [token for token in re.split(r"[._\-\s]+", name.lower()) if token]
    split = next((SPLITS[token] for token in tokens if token in SPLITS), None)
    if split is None:
        return None
    suffix = next((token for token in tokens if token in ("matched", "mismatched")), None)
    return f"{split}_{suffix}" if suffix else split


def select_splits(found: Sequence[str], wanted: Sequence[str] | None, name: str) -> list[str]:
    """The splits to read, in order; raises DataError where a wanted one is not there."""
    order = ["train", "validation", "validation_matched", "validation_mismatched", "test"]
    ranked = sorted(found, key=lambda s: (order.index(s) if s in order else len(order), s))
    if wanted is None:
        return ranked
    chosen = [canonical_split(split) or split for split in wanted]
    missing = [split for split in chosen if split not in found]
    if missing:
        raise DataError(
            f"{name} has no split {missing[0]!r}, only {shortened(ranked)}."
            f"{perhaps(missing[0], found)}"
        )
    return [split for split in ranked if split in chosen]


def _folder(folder: Path) -> Source:
    if any((folder / name).is_file() for name in SAVED):
        return Source(folder.resolve().name, saved=folder)
    files: dict[str, list[Path]] = {}
    ignored = []
    standoff = any(path.suffix == ".ann" for path in folder.iterdir())
    for path in sorted(folder.iterdir()):
        split = None if standoff and path.suffix in (".ann", ".txt") else _split_of(path)
        if split is None:
            ignored.append(path.name)
        else:
            files.setdefault(split, []).append(path)
    if not files:
        files = _documents(folder)
    if not files:
        raise DataError(
            f"{folder} holds no split files (its entries: {shortened(ignored, 6) or 'none'}): name "
            "them train.jsonl, validation.jsonl and test.jsonl, or write "
            "--data train=FILE,validation=FILE."
        )
    chosen = {split: _one_file(folder, split, paths) for split, paths in files.items()}
    return Source(folder.resolve().name, chosen, ignored=tuple(ignored))


def _documents(folder: Path) -> dict[str, list[Path]]:
    """Documents with standoff annotation: those of a folder, or of its folders train, dev, test.

    Documents that are all called after a split (train.ann, test.ann) are one for each split.
    """
    names = document_names(folder)
    here = [name for name in names if (folder / f"{name}.ann").is_file()]
    inside: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        split = canonical_split(path.name) if path.is_dir() else None
        if split is not None and document_names(path):
            inside.setdefault(split, []).append(path)
    annotated = any(next(path.glob("*.ann"), None) for paths in inside.values() for path in paths)
    if here and annotated:
        raise DataError(
            f"{folder} has annotated documents ({here[0]}.ann) and so has a folder in it "
            f"({next(iter(inside.values()))[0].name}): choose with --data train=FOLDER,test=FOLDER."
        )
    if here and all(name.lower() in SPLITS for name in names):
        named: dict[str, list[Path]] = {}
        for name in names:
            named.setdefault(SPLITS[name.lower()], []).append(folder / f"{name}.ann")
        return named
    return {"train": [folder]} if here else inside if annotated else {}


def _split_of(path: Path) -> str | None:
    """The split that a file of a folder holds, None for files that are no data."""
    name = bare_name(path)
    first = re.split(r"[._\-]", name.lower())[0]
    if not path.is_file() or name.startswith(".") or first in IGNORED_NAMES:
        return None
    suffix = Path(name).suffix.lower()
    if suffix and format_of(path) is None and suffix[1:] not in SPLITS:
        return None
    return canonical_split(name)


def _one_file(folder: Path, split: str, paths: list[Path]) -> tuple[Path, ...]:
    """The file of a split: the unpacked one of a pair FILE, FILE.gz; several only for shards."""
    by_name = {bare_name(path): path for path in sorted(paths, key=lambda p: -len(p.name))}
    if len(by_name) > 1 and len({SHARD.sub("", name) for name in by_name}) > 1:
        first, second = sorted(path.name for path in by_name.values())[:2]
        raise DataError(
            f"{folder} has two files for the {split} split, {first} and {second}: remove one, or "
            f"choose with --data {split}={folder / first},…"
        )
    return tuple(by_name[name] for name in sorted(by_name))


def _named_files(spec: str) -> Source:
    """``train=FILE,validation=FILE,test=FILE`` (a comma splits only before ``name=``)."""
    files: dict[str, tuple[Path, ...]] = {}
    for item in re.split(r",(?=\s*\w+=)", spec):
        key, _, value = item.strip().partition("=")
        split = canonical_split(key)
        if split is None or not value:
            what = f"{key!r} is no split" if value else "no file is named"
            hint = perhaps(key, ("train", "validation", "test")) if value else ""
            raise DataError(
                f"--data {item.strip()}: {what}: write train=FILE,validation=FILE,test=FILE.{hint}"
            )
        if split in files:
            raise DataError(f"--data names the {split} split twice: {files[split][0]} and {value}.")
        path = Path(value).expanduser()
        if not path.is_file() and not (path.is_dir() and document_names(path)):
            no_documents = "is a folder, not a file, and holds no NAME.txt with NAME.ann"
            what = no_documents if path.is_dir() else "no such file"
            raise DataError(f"--data {split}={value}: {what}.{_nearest(path)}")
        files[split] = (path,)
    first = next(iter(files.values()))[0]
    return Source(first.resolve().parent.name, files)


def _looks_like_path(spec: str, path: Path) -> bool:
    suffixes = {*FORMATS, ".gz"} - {""}
    return (
        spec.startswith(("/", ".", "~", "\\"))
        or spec.endswith("/")
        or spec.count("/") > 1
        or path.suffix.lower() in suffixes
        or ("/" in spec and path.parent.is_dir())
    )


def _nearest(path: Path) -> str:
    """`` Perhaps you meant …?`` with the most similar name beside a path that does not exist."""
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        path, parent = parent, parent.parent
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    hint = perhaps(path.name, names)
    if hint:
        near = hint.split("'")[1] if "'" in hint else path.name
        return f" Perhaps you meant '{parent / near}'?"
    return f" {parent} holds {_listed(names)}." if names else ""


def _listed(names: Iterable[str]) -> str:
    return shortened(sorted(name for name in names if not name.startswith(".")), 8)


def _hub(spec: str) -> Source:
    chosen = hub_set(spec)
    if chosen is not None:
        return Source(spec, hub=chosen)
    if (advice := TO_FETCH.get(spec.lower())) is not None:
        raise DataError(f"--data {spec}: {advice}; then name them with --data FOLDER.")
    local = [entry.name for entry in Path().iterdir()]
    raise DataError(
        f"--data {spec}: neither a file or folder nor a known data set. Known short names: "
        f"{', '.join(sorted(ALIASES))}; any other hub data set is written owner/name or "
        f"owner/name:config.{perhaps(spec.partition(':')[0], [*ALIASES, *local])}"
    )
