"""Data larger than memory: the same examples, notes, splits and weights as from lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from finetune.config.tasks import ClassifyConfig, NerConfig, NliConfig, TagConfig, TrainConfig
from finetune.data import example_store
from finetune.data.example_store import ExampleStore
from finetune.pretraining.settings import PretrainConfig
from finetune.tasks import load_task
from finetune.training import cache as encoding_cache
from finetune.training.trainer import fit
from tests import small_data as data
from tests import tiny

CONFIGS: dict[str, tuple[type[TrainConfig], Any]] = {
    "classify": (ClassifyConfig, data.sentiment),
    "nli": (NliConfig, data.pairs),
    "tag": (TagConfig, data.entities),
    "ner": (NerConfig, data.documents),
    "pretrain": (PretrainConfig, data.running_text),
}


@pytest.fixture(autouse=True)
def small_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))


def on_disk(monkeypatch: pytest.MonkeyPatch, most: int = 5, chunk: int = 4) -> None:
    """Keep only a few examples in memory, in several chunks."""
    monkeypatch.setattr(example_store, "MOST_IN_MEMORY", most)
    monkeypatch.setattr(example_store, "CHUNK", chunk)


def config_of(name: str, place: Path, **settings: Any) -> TrainConfig:
    kind, write = CONFIGS[name]
    folder, model = place / f"data-{name}", place / "bert"
    if not folder.exists():
        write(folder)
    if not model.exists():
        tiny.save_tiny_checkpoint(model, "bert", dropout=0.1)
    return kind(model=str(model), data=str(folder), max_length=24, **settings)


def without_validation(config: TrainConfig) -> None:
    for file in Path(config.data).glob("validation*"):
        file.unlink()


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_weights(
    name: str, held_out: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, facts = [], []
    for run in ("memory", "disk", "cached"):
        if run == "disk":
            on_disk(monkeypatch)
            monkeypatch.setattr(encoding_cache, "MIN_EXAMPLES", 5)
        config = config_of(name, tmp_path, out=str(tmp_path / run), steps=6, batch_size=4)
        if held_out:
            without_validation(config)
        task, loaded = load_task(config, name)
        stored = run != "memory" and name != "pretrain"  # whose blocks are in memory
        assert isinstance(loaded.splits["train"], ExampleStore) == stored
        facts.append(
            (
                {split: list(rows) for split, rows in loaded.splits.items()},
                loaded.notes,
                loaded.fingerprint,
                loaded.training_fingerprint,
                (task.record.labels, task.record.extra_fields()),
            )
        )
        result = fit(task, loaded, config)
        weights.append(load_file(tmp_path / run / "last" / "model.safetensors"))
        facts[-1] += (result.metrics, result.notes)
    assert facts[0] == facts[1] == facts[2]
    for other in weights[1:]:
        assert all((other[key] == value).all() for key, value in weights[0].items())
