"""Prepared data in the cache: equal to data that are read, and never old, cut or damaged."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finetune.config.tasks import ClassifyConfig
from finetune.data import examples as holder
from finetune.preprocessing import preparation
from finetune.runtime.cache import cache_folder
from finetune.runtime.files import SaveError
from finetune.tasks import load_task
from finetune.training.trainer import fit
from tests import small_data as data
from tests import tiny
from tests.forks import in_two_forks


@pytest.fixture(autouse=True)
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(preparation, "MIN_BYTES", 0)
    data.keep_on_disk(monkeypatch)  # tests/training have workers


@pytest.fixture
def config(tmp_path: Path) -> ClassifyConfig:
    data.sentiment(tmp_path / "reviews")
    tiny.save_tiny_checkpoint(tmp_path / "bert", "bert")
    return ClassifyConfig(
        model=str(tmp_path / "bert"), data=str(tmp_path / "reviews"), max_length=24, batch_size=4
    )


def cache_entries() -> list[Path]:
    return [*cache_folder("examples").glob("*")]


def reads(config: ClassifyConfig, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Load the data; return whether rows were read."""
    called = []

    def read(*arguments: Any) -> Any:
        called.append(True)
        return read_data(*arguments)

    read_data = preparation.read_data
    with monkeypatch.context() as patched:
        patched.setattr(preparation, "read_data", read)
        load_task(config, "classify")
    return bool(called)


def content_of(config: ClassifyConfig) -> Any:
    task, loaded = load_task(config, "classify")
    assert loaded.splits["train"].is_large
    rows = {split: list(own) for split, own in loaded.splits.items()}
    train = loaded.splits["train"]
    stats = {name: train.stats(name).tolist() for name in ("text", "words", "flags")}
    fingerprints = loaded.fingerprint, loaded.training_fingerprint
    return rows, stats, loaded.notes, fingerprints, loaded.label_order, task.state


def test_equal_to_what_is_read(config: ClassifyConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in Path(config.data).glob("validation*"):
        file.unlink()  # so that train and validation are parts of one file
    with monkeypatch.context() as off:
        off.setenv("FINETUNE_CACHE", "off")
        read = content_of(config)
    assert content_of(config) == read
    assert not reads(config, monkeypatch)
    assert content_of(config) == read
    assert len(cache_entries()) == 1


def test_small_data_have_none(config: ClassifyConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, "MOST_IN_MEMORY", 10_000)
    load_task(config, "classify")
    monkeypatch.setattr(preparation, "MIN_BYTES", 10**6)
    monkeypatch.setattr(holder, "MOST_IN_MEMORY", 5)
    load_task(config, "classify")
    assert not cache_entries()


def test_whatever_changes_the_data_is_read(
    config: ClassifyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reads(config, monkeypatch)
    other_run = replace(config, lr=0.5, out="elsewhere", steps=3, freeze="embeddings")
    assert not reads(other_run, monkeypatch)
    for changed in ({"test_sets": (f"more={config.data}",)}, {"columns": ("text=text",)}):
        assert reads(replace(config, **changed), monkeypatch), changed
        assert not reads(replace(config, **changed), monkeypatch), changed
    train = Path(config.data) / "train.jsonl"
    before = train.stat()
    train.write_bytes(train.read_bytes().replace(b"room", b"ruom", 1))
    os.utime(train, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert reads(config, monkeypatch), "size and time are the same"
    monkeypatch.setattr(preparation, "VERSION", preparation.VERSION + 1)
    assert reads(config, monkeypatch)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("train.arrow", lambda content: content[: len(content) // 2]),
        ("train.arrow", None),
        ("description.json", lambda content: content[: len(content) // 2]),
        ("about.json", None),
    ],
)
def test_damaged_is_made_again(
    file: str, damage: Any, config: ClassifyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = content_of(config)
    (entry,) = cache_entries()
    content = (entry / file).read_bytes()
    (entry / file).unlink()
    if damage is not None:
        (entry / file).write_bytes(damage(content))
    assert content_of(config) == made
    assert (entry / file).read_bytes() == content
    assert not reads(config, monkeypatch)


def test_data_that_change_while_they_are_read(
    config: ClassifyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*arguments: Any) -> Any:
        found = read_data(*arguments)
        with (Path(config.data) / "train.jsonl").open("a") as file:
            file.write(json.dumps({"text": "late", "label": "pos"}) + "\n")
        return found

    read_data = preparation.read_data
    with monkeypatch.context() as patched:
        patched.setattr(preparation, "read_data", read)
        load_task(config, "classify")
    assert not cache_entries()


@pytest.mark.parametrize("labels", ["as the data", "in another order"])
def test_a_resumed_run(
    labels: str, config: ClassifyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(config, out=str(tmp_path / "whole"), steps=4)
    fit(*load_task(whole, "classify"), whole)
    saved = json.loads((tmp_path / "whole" / "last" / "finetune.json").read_text())
    resumed = replace(whole, resume=True)
    if labels == "as the data":
        assert not reads(resumed, monkeypatch)
        return
    saved["labels"] = saved["labels"][::-1]
    (tmp_path / "whole" / "last" / "finetune.json").write_text(json.dumps(saved))
    assert reads(resumed, monkeypatch)
    assert list(load_task(resumed, "classify")[0].state.labels) == saved["labels"]
    assert list(load_task(whole, "classify")[0].state.labels) == saved["labels"][::-1]


def test_a_full_disk_and_a_folder_that_cannot_be_written(
    config: ClassifyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*arguments: Any) -> Any:
        raise SaveError("no room")

    made = content_of(config)
    (entry,) = cache_entries()
    (entry / "about.json").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(holder.Examples, "load", write)
        assert content_of(config) == made
        assert cache_entries() == [entry]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "file"))
    assert reads(config, monkeypatch)
    assert content_of(config) == made


@pytest.mark.slow
def test_one_of_two_processes_reads(config: ClassifyConfig, tmp_path: Path) -> None:
    program = f"""
import os, sys
from finetune.data import examples as holder
from finetune.preprocessing import preparation
from finetune.training import cache
holder.MOST_IN_MEMORY, holder.CHUNK = 5, 4
preparation.MIN_BYTES, cache.MIN_EXAMPLES = 0, 5
read_data = preparation.read_data
def read(*arguments):
    open({str(tmp_path / "read-by-")!r} + os.environ["RANK"], "w").close()
    return read_data(*arguments)
preparation.read_data = read
from finetune.cli.main import main
main(sys.argv[1:])
"""
    settings = ["--model", config.model, "--data", config.data, "--steps", "1"]
    settings += ["--batch-size", "4", "--max-length", "24", "--precision", "fp32"]
    words = [sys.executable, "-c", program, "classify", *settings, "--out", str(tmp_path / "two")]
    processes = in_two_forks(words)
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert len(list(tmp_path.glob("read-by-*"))) == 1
