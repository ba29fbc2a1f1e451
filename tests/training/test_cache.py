"""Large data are tokenized once, and cached sequences equal new ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finetune.config.tasks import TrainConfig
from finetune.runtime.cache import cache_folder
from finetune.tasks.base import Task
from finetune.training import cache as encoding_cache
from finetune.training.cache import encoding_key
from tests import fixtures as fx

CONFIGS: dict[str, dict[str, Any]] = {"classify": {}, "tag": {"crf": True}, "ner": {}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encoding_cache, "MIN_EXAMPLES", 10)
    return cache_folder("encodings")


def config_of(task: str) -> TrainConfig:
    return fx.config(task, max_length=14, **CONFIGS[task])


def listed(encoded: Any) -> list[Any]:
    return [list(windows) for windows in encoded]


def encoded() -> tuple[Any, Any, list[Any]]:
    """A task, its training examples, and their encodings, which the cache then has."""
    task, dataset = fx.load(config_of("classify"))
    examples = dataset.splits["train"]
    return task, examples, listed(encoding_cache.encode(task, examples))


@pytest.mark.parametrize("name", CONFIGS)
def test_found_again_as_it_was(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, dataset = fx.load(config_of(name))
    examples = dataset.splits["train"]
    made = listed(task.encode(examples))
    first = encoding_cache.encode(task, examples)
    assert listed(first) == made
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(Task, "encode", None)  # nothing is tokenized again
    found = encoding_cache.encode(task, examples)
    assert listed(found) == made
    assert (found.num_cut, found.notes) == (first.num_cut, first.notes)
    taken, plain = found.sequences[3:7], [e for windows in made for e in windows][3:7]
    assert list(taken) == plain


def test_few_examples_and_off_keep_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, dataset = fx.load(config_of("classify"))
    encoding_cache.encode(task, dataset.splits["train"][:9])
    monkeypatch.setenv("FINETUNE_CACHE", "off")
    encoding_cache.encode(task, dataset.splits["train"])
    assert not cache.exists()


def test_the_key_tells_apart_what_differs() -> None:
    config = config_of("tag")
    task, dataset = fx.load(config)
    examples = dataset.splits["train"]
    keys = {encoding_key(task, examples), encoding_key(task, examples[1:])}
    keys.add(encoding_key(task, [replace(examples[0], tags=None), *examples[1:]]))
    for changed in ({"max_length": 12}, {"crf": False}, {"scheme": "BIOES"}):
        keys.add(encoding_key(fx.load(replace(config, **changed))[0], examples))
    other = replace(config, model=str(fx.checkpoint("roberta")))
    keys.add(encoding_key(fx.load(other)[0], examples))
    assert len(keys) == 7
    same, _ = fx.load(replace(config, lr=0.5, seed=3))
    assert encoding_key(same, examples) in keys


@pytest.mark.parametrize("about", ["[]", "null", "7", "{}", '{"../x": "y"}'])
def test_a_damaged_description_of_an_entry(about: str, cache: Path) -> None:
    task, examples, made = encoded()
    (entry,) = cache.iterdir()
    before = (entry / "about.json").read_bytes()
    (entry / "about.json").write_text(about)
    (entry / "ids").write_bytes(b"no array")
    assert listed(encoding_cache.encode(task, examples)) == made
    assert (entry / "about.json").read_bytes() == before, "made again"
