"""Large data are tokenized once, and cached sequences equal new ones."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finetune.config.tasks import ClassifyConfig, NerConfig, TagConfig, TrainConfig
from finetune.runtime.cache import cache_folder
from finetune.tasks import load_task
from finetune.tasks.base import Task
from finetune.training import cache as encoding_cache
from finetune.training.cache import encoding_key
from finetune.training.trainer import fit
from tests import small_data as data
from tests import tiny

CONFIGS: dict[str, tuple[type[TrainConfig], dict[str, Any]]] = {
    "classify": (ClassifyConfig, {}),
    "tag": (TagConfig, {"crf": True}),
    "ner": (NerConfig, {}),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encoding_cache, "MIN_EXAMPLES", 10)
    return cache_folder("encodings")


def config_of(task: str, place: Path, **settings: Any) -> TrainConfig:
    kind, own = CONFIGS[task]
    folder = place / f"data-{task}"
    if not folder.exists():
        (data.sentiment if task == "classify" else data.entities)(folder)
    model = place / "bert"
    if not model.exists():
        tiny.save_tiny_checkpoint(model, "bert")
    return kind(model=str(model), data=str(folder), max_length=14, **(own | settings))


def listed(encoded: Any) -> list[Any]:
    return [list(windows) for windows in encoded]


def refuse_to_tokenize(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("tokenized again")

    monkeypatch.setattr(Task, "encode", refuse)


@pytest.mark.parametrize("name", CONFIGS)
def test_found_again_as_it_was(
    name: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, dataset = load_task(config_of(name, tmp_path), name)
    examples = dataset.splits["train"]
    made = listed(task.encode(examples))
    first = encoding_cache.encode(task, examples)
    assert listed(first) == made
    assert len(list(cache.iterdir())) == 1
    refuse_to_tokenize(monkeypatch)
    found = encoding_cache.encode(task, examples)
    assert listed(found) == made
    assert (found.num_cut, found.notes) == (first.num_cut, first.notes)
    taken, plain = found.sequences[3:7], [e for windows in made for e in windows][3:7]
    assert list(taken) == plain


def test_few_examples_and_off_keep_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, dataset = load_task(config_of("classify", tmp_path), "classify")
    encoding_cache.encode(task, dataset.splits["train"][:9])
    monkeypatch.setenv("FINETUNE_CACHE", "off")
    encoding_cache.encode(task, dataset.splits["train"])
    assert not cache.exists()


def test_the_key_tells_apart_what_differs(tmp_path: Path) -> None:
    config = config_of("tag", tmp_path)
    task, dataset = load_task(config, "tag")
    examples = dataset.splits["train"]
    keys = {encoding_key(task, examples), encoding_key(task, examples[1:])}
    keys.add(encoding_key(task, [replace(examples[0], tags=None), *examples[1:]]))
    for changed in ({"max_length": 12}, {"overlap": 3}, {"crf": False}, {"scheme": "BIOES"}):
        keys.add(encoding_key(load_task(replace(config, **changed), "tag")[0], examples))
    tiny.save_tiny_checkpoint(tmp_path / "roberta", "roberta")
    other = replace(config, model=str(tmp_path / "roberta"))
    keys.add(encoding_key(load_task(other, "tag")[0], examples))
    assert len(keys) == 8
    same, _ = load_task(replace(config, lr=0.5, seed=3), "tag")
    assert encoding_key(same, examples) in keys


def test_damaged_and_unused_entries(tmp_path: Path, cache: Path) -> None:
    task, dataset = load_task(config_of("classify", tmp_path), "classify")
    examples = dataset.splits["train"]
    made = listed(encoding_cache.encode(task, examples))
    (entry,) = cache.iterdir()
    (entry / "ids.values.bin").write_bytes(b"no array")
    assert listed(encoding_cache.encode(task, examples)) == made
    assert listed(encoding_cache.encode(task, examples)) == made
    long_ago = time.time() - 40 * 86_400
    left = cache / f".lock-{'0' * 64}"  # of a killed process
    left.write_text("")
    for path in (entry, left):
        os.utime(path, (long_ago, long_ago))
    encoding_cache.encode(task, examples[5:])
    assert not entry.exists() and not left.exists(), "a month unused"
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    "about",
    [
        "[]",
        "null",
        "7",
        "[" * 100_000,
        '{"title": "reviews", "hashes": {}}',
        '{"title": "reviews", "hashes": 7}',
        '{"title": "reviews"}',
        '{"title": "reviews", "hashes": {"../x": "y"}}',
    ],
)
def test_a_damaged_description_of_an_entry(about: str, tmp_path: Path, cache: Path) -> None:
    task, dataset = load_task(config_of("classify", tmp_path), "classify")
    examples = dataset.splits["train"]
    made = listed(encoding_cache.encode(task, examples))
    (entry,) = cache.iterdir()
    before = (entry / "about.json").read_bytes()
    (entry / "about.json").write_text(about)
    (entry / "ids.values.bin").write_bytes(b"no array")
    assert listed(encoding_cache.encode(task, examples)) == made
    assert (entry / "about.json").read_bytes() == before, "made again"


@pytest.mark.parametrize("name", CONFIGS)
def test_training_is_the_same_from_mapped_files(name: str, tmp_path: Path, cache: Path) -> None:
    results = []
    for run in ("made", "found"):
        config = config_of(name, tmp_path, out=str(tmp_path / run), steps=3, batch_size=8)
        results.append(fit(*load_task(config, name), config).metrics)
    assert cache.exists()
    assert results[0] == results[1]
    first, second = (tmp_path / run / "best" / "model.safetensors" for run in ("made", "found"))
    assert first.read_bytes() == second.read_bytes()
