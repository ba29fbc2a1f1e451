"""Data larger than memory: the same examples, notes, splits and weights as from lists."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import finetune
from finetune.config.tasks import TrainConfig
from finetune.data import columns
from finetune.evaluation.training_vocabulary import VOCABULARY_FILE
from finetune.preprocessing import preparation
from finetune.pretraining.task import PretrainingTask
from finetune.runtime.cache import cache_folder
from finetune.training import cache as encoding_cache
from finetune.types import UserError
from tests import fixtures as fx
from tests import small_data as data

TRAINED = ("classify", "tag")
"""Tasks whose weights are compared; of others with the same settings, what they are trained on."""
LIKE_OTHERS = [
    (name, False, {}) for name in ("nli", "tag", "pretrain", "qa", "choice", "relations")
]
LIKE_OTHERS += [("pretrain", False, {"nsp": True, "max_length": 64})]


@pytest.fixture(autouse=True)
def small_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))


def config_of(setup: str, folder: Path, **settings: Any) -> TrainConfig:
    """The configuration of a run on a copy of its data; those of ner are documents."""
    data = folder / f"data-{setup}"
    if not data.exists():
        shutil.copytree(fx.data("documents" if setup == "ner" else setup), data)
    return fx.config(setup, data=data, **{"max_length": 24, **settings})


def without_validation(config: TrainConfig) -> None:
    for file in Path(config.data).glob("validation*"):
        file.unlink()


def ways(monkeypatch: pytest.MonkeyPatch, processes: int = 1) -> Iterator[str]:
    """Keep rows in memory, then on disk, and then read those that are there."""
    yield "memory"
    data.keep_on_disk(monkeypatch, processes=processes)
    monkeypatch.setattr(encoding_cache, "MIN_EXAMPLES", 5)
    monkeypatch.setattr(preparation, "MIN_BYTES", 0)
    yield "disk"
    monkeypatch.setattr(preparation, "making", None)  # nothing is made again
    yield "cached"


@pytest.mark.parametrize(
    ("name", "held_out", "settings"),
    [
        ("classify", False, {}),
        ("ner", False, {}),
        ("pretrain", True, {}),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in LIKE_OTHERS),
    ],
)
def test_the_same_weights(
    name: str, held_out: bool, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_trained = held_out or bool(settings) or name in TRAINED
    settings = {"steps": 3, "batch_size": 4} | settings
    weights, runs = [], []
    for run in ways(monkeypatch, processes=2 if held_out else 1):
        config = config_of(name, tmp_path, out=str(tmp_path / run), **settings)
        if held_out:
            without_validation(config)
        task, loaded = fx.load(config)
        assert loaded.splits["train"].is_large == (run != "memory")
        runs.append(
            (
                {split: list(rows) for split, rows in loaded.splits.items()},
                loaded.notes,
                loaded.fingerprint,
                loaded.training_fingerprint,
                (task.state.labels, task.state.extra_fields()),
            )
        )
        if not is_trained:
            continue
        result = finetune.fit(task, loaded, config)
        weights.append(load_file(tmp_path / run / "last" / "model.safetensors"))
        vocabulary = tmp_path / run / VOCABULARY_FILE
        runs[-1] += (result.metrics, result.notes, vocabulary.exists() and vocabulary.read_text())
    assert runs[0] == runs[1] == runs[2]
    for other in weights[1:]:
        assert all((other[key] == value).all() for key, value in weights[0].items())
    assert len(weights) == 3 * is_trained


@pytest.mark.parametrize("packing", ["doc-sentences", "full-sentences"])
def test_sources_of_running_text(
    packing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("en", 30), ("de", 8)):
        data.running_text(tmp_path / name, (size, 9, 0))
        (tmp_path / name / "test.txt").unlink()
    sources = f"en={tmp_path / 'en'},de={tmp_path / 'de'}"
    settings = {"max_length": 24, "alpha": 0.3, "packing": packing}
    config = fx.config("pretrain", data=sources, **settings)
    found = []
    for _ in ways(monkeypatch):
        task, loaded = fx.load(config)
        assert isinstance(task, PretrainingTask) and len(task._frequency)
        rows = {split: list(own) for split, own in loaded.splits.items()}
        fingerprints = loaded.fingerprint, loaded.training_fingerprint
        found.append((rows, loaded.notes, fingerprints, task._frequency.tolist()))
    assert found[0] == found[1] == found[2]
    assert any("times each" in note for note in found[0][1])


@pytest.mark.parametrize("name", ["classify", "nli", "tag", "ner", "qa", "choice"])
def test_limit_bounds_the_rows_that_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(name, tmp_path, limit=4)
    with Path(config.data, "train.jsonl").open("a") as file:
        file.write("no row\n")
    with pytest.raises(UserError, match="not valid JSON"):
        fx.load(config)
    data.keep_on_disk(monkeypatch)
    monkeypatch.setattr(preparation, "MIN_BYTES", 0)
    _, loaded = fx.load(config)
    assert len(loaded.splits["train"]) == 4
    assert "train: rows after the first 8 are not read (--limit)" in loaded.notes
    assert any(cache_folder("examples").iterdir())
    with pytest.raises(UserError, match="not valid JSON"):  # the part stands for no other data
        fx.load(replace(config, limit=None))


def test_a_full_disk_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data.keep_on_disk(monkeypatch)
    config = config_of("classify", tmp_path)
    monkeypatch.setattr(columns, "unnamed_file", lambda: open("/dev/full", "w+b"))
    with pytest.raises(UserError, match=r"no room.*FINETUNE_CACHE"):
        fx.load(config)
