"""`finetune cache` lists and clears the entries of the cache."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from finetune.runtime.cache import (
    cache_entries,
    cache_folder,
    clear_cache,
    remove_unused,
    write_about,
)
from tests.command import run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))
    return cache_folder("encodings")


def entry(name: str, days: float, title: str | None = None) -> Path:
    key = 64 * name
    incomplete = f".{key}-{16 * '0'}.new"
    folder = cache_folder("encodings") / (key if title is not None else incomplete)
    folder.mkdir(parents=True)
    (folder / "ids.npy").write_bytes(bytes(2**20))
    if title is not None:
        write_about(folder, title)
    used = time.time() - days * 86_400
    os.utime(folder, (used, used))
    return folder


def test_entries_are_listed_and_cleared() -> None:
    assert cache_entries() == []
    entry("a", 10, "reviews, train: classify")
    recent = entry("b", 1)
    first, second = cache_entries()
    assert (first.path, first.title, second.title) == (
        recent,
        "(incomplete)",
        "reviews, train: classify",
    )
    assert second.size > 2**20 and round(second.age / 86_400) == 10
    assert len(clear_cache()) == 2 and cache_entries() == []


def test_nothing_is_removed_but_entries(tmp_path: Path) -> None:
    folder, long_ago = cache_folder("encodings"), time.time() - 40 * 86_400
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    own = entry("a", 40, "reviews, train: classify")
    others = [
        tmp_path / "cache" / "encodings" / "mydata",
        folder / "mydata",
        folder / (64 * "b"),  # without the mark
        folder / ".mydata-0123456789abcdef.old",
    ]
    for path in others:
        path.mkdir(parents=True)
        (path / "rows.csv").write_text("text,label")
    others += [folder / (64 * "c"), folder / "notes.txt", folder / ".lock-of-mine"]
    for path in others[4:]:
        path.write_text("mine")
    (folder / (64 * "d")).symlink_to(elsewhere)
    write_about(elsewhere, "a link")
    for path in others:
        os.utime(path, (long_ago, long_ago))
    os.utime(elsewhere, (long_ago, long_ago))
    assert [each.path for each in cache_entries()] == [own]
    remove_unused(folder)
    assert not own.exists()
    assert not clear_cache()
    assert all(path.exists() for path in others) and any(elsewhere.iterdir())


def test_a_disabled_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    entry("a", 10, "reviews")
    monkeypatch.setenv("FINETUNE_CACHE", "off")
    listed = run("cache")
    assert "FINETUNE_CACHE=off" in listed.err and "0 entries" in listed.out and not listed.code


def test_the_command(tmp_path: Path) -> None:
    entry("a", 10, "reviews, train: classify")
    listed = run("cache")
    assert "reviews, train: classify" in listed.out and "1 entry, 1.0 MiB" in listed.out
    cleared = run("cache", "--clear")
    assert "removed 1 entry, 1.0 MiB" in cleared.out
