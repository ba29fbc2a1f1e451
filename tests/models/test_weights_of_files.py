"""Loading checks that the weights of a file are finite, and that the model uses all of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM

import finetune
from finetune.models.encoder import Encoder
from finetune.models.heads.crf import CrfTagger
from finetune.models.heads.pretrained import SequenceClassifier
from finetune.models.heads.sentence_encoder import CLASSIFIER_FILE, SentenceEncoder
from finetune.models.loading import load_config, load_weights
from finetune.types import UserError
from tests import fixtures as fx
from tests.command import run
from tests.covering import few
from tests.tiny import FAMILIES, save_tiny_checkpoint


def damage(file: Path, ends: str, value: float) -> str:
    """Set one number of a weight, and return the name of the weight."""
    weights = load_file(file)
    name = next(name for name in weights if name.endswith(ends))
    weights[name].view(-1)[-1] = value
    save_file(weights, file, {"format": "pt"})
    return name


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of three tasks, whose weights are damaged for a while."""
    folder = tmp_path_factory.mktemp("weights")
    for task in ("classify", "ner"):
        shutil.copytree(fx.trained(task), folder / task)
    sentence = fx.trained("sentence", data=fx.data("pairs"), objective="softmax")
    shutil.copytree(sentence, folder / "sentence")
    return folder


@pytest.mark.parametrize(
    ("task", "file", "weight", "value"),
    [
        ("classify", "model.safetensors", "embeddings.weight", float("nan")),
        ("classify", "model.safetensors", "classifier.bias", float("inf")),
        ("ner", "model.safetensors", "LayerNorm.bias", -float("inf")),
        ("sentence", CLASSIFIER_FILE, "weight", float("nan")),
    ],
)
def test_weights_that_are_not_finite(
    workdir: Path, task: str, file: str, weight: str, value: float
) -> None:
    path = workdir / task / "best" / file
    content = path.read_bytes()
    name = damage(path, weight, value)
    outcome = run("predict", workdir / task, "--text", "a b", *["--pair=c"] * (task == "sentence"))
    path.write_bytes(content)
    assert outcome.code == 2
    source = path if file == CLASSIFIER_FILE else path.parent
    short = name.rpartition(".")[2]
    assert f"{source}: the weight {short}" in outcome.err.replace(name, short)
    assert "NaN or infinite" in outcome.err


def test_large_weights_are_finite(tmp_path: Path) -> None:
    """Their sum is not."""
    model = save_tiny_checkpoint(tmp_path, "bert")
    weights = load_file(model / "model.safetensors")
    name = next(iter(weights))
    weights[name] = torch.full_like(weights[name], 1e38)
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    encoder = Encoder.from_pretrained(str(model))
    loaded = dict(encoder.model.named_parameters())[name.removeprefix("bert.")]
    assert loaded.isfinite().all() and not loaded.sum().isfinite()


OF_THEIR_OWN = ("bert", "distilbert", "albert", "modernbert", "deberta-v2", "squeezebert")
"""Families whose layers, or their number in the configuration, have names of their own."""


@pytest.mark.parametrize("family", few(FAMILIES, *OF_THEIR_OWN))
def test_a_configuration_with_fewer_layers(family: str, tmp_path: Path) -> None:
    folder = save_tiny_checkpoint(tmp_path, family)
    load_weights(AutoModelForMaskedLM, str(folder), load_config(str(folder)))
    Encoder.from_pretrained(str(folder))  # without the head of the file, which is fine
    path = folder / "config.json"
    config = json.loads(path.read_text())
    setting = next(name for name in ("num_hidden_layers", "n_layers") if name in config)
    config[setting] -= 1
    config.pop("layer_types", None)
    path.write_text(json.dumps(config))
    if family == "albert":  # whose layers share their weights
        return
    for load in (Encoder.from_pretrained, SentenceEncoder.from_pretrained):
        with pytest.raises(UserError, match=rf"of {folder} not used"):
            load(str(folder))
    with pytest.raises(UserError, match="not used"):
        SequenceClassifier.from_pretrained(str(folder), labels=["a", "b"])


@pytest.mark.parametrize("inside", [None, 5, {}, {"model_type": "zzz"}])
def test_a_damaged_configuration_of_a_crf_run(inside: Any, tmp_path: Path) -> None:
    source = str(fx.checkpoint())
    CrfTagger.from_pretrained(source, labels=["O"], scheme="IO").save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | {"tagger": inside}))
    with pytest.raises(UserError, match=r"cannot be loaded"):
        finetune.load(tmp_path)
