"""The contract of every way of tuning, for every head, and gradient checkpointing."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import finetune
from finetune.config.tasks import TrainConfig
from finetune.models.adapters import (
    adapters,
    load_adapter_state,
    parameter_efficient_tuning,
    plain_layers,
)
from finetune.models.dropout import fast_dropout
from finetune.models.encoder import Encoder, checkpointed_layers
from finetune.models.heads.base import EncoderModel
from finetune.preprocessing.batching import pack
from finetune.training.optimizer import parameter_groups
from finetune.types import UserError
from tests import fixtures as fx
from tests.covering import covering, few
from tests.models.parity import assert_same_gradients, encodings
from tests.tiny import model as tiny_model

INNER = ("Intermediate", "MLP", "FFN")  # layers within a layer of the encoder
SETUPS = ("classify", "bi", "tag windows", "crf", "ner windows", "softmax", "pretrain")
METHODS = ("lora", "bitfit", "head", "mask")


def config_of(setup: str, out: Path, **changes: Any) -> TrainConfig:
    model = fx.checkpoint(dropout=0.1, layers=3)
    settings = {"out": out, "steps": 2, "eval_every": 1, "max_length": 32, **changes}
    return fx.config(setup, **{"model": model, **settings})


def state_of(head: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in head.named_parameters()}


@pytest.mark.parametrize("setup, method", covering(SETUPS, METHODS))
def test_every_head(setup: str, method: str, tmp_path: Path) -> None:
    """Only the chosen weights change."""
    rate = {"lr": 0.05} if method == "mask" else {}
    config = config_of(setup, tmp_path / "whole", tuning=method, **rate)
    task, dataset = fx.load(config)
    torch.manual_seed(1)
    head = task.model()
    before = state_of(head)
    result = finetune.fit(task, dataset, config, model=head)
    after = state_of(head)
    assert list(after) == list(before) and not adapters(head)
    assert all(weight.requires_grad for weight in head.parameters())
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    of_encoder = {name for name in changed if not head.is_head(name)}
    assert changed - of_encoder or setup == "pretrain"
    if method == "head":
        assert not of_encoder
    elif method == "bitfit":
        assert of_encoder and all(name.endswith("bias") for name in of_encoder)
    else:
        assert of_encoder
        if method == "mask":
            assert all(set((after[n] / before[n]).unique().tolist()) == {0, 1} for n in of_encoder)
        assert all(
            name.endswith(("dense.weight", "query.weight", "key.weight", "value.weight"))
            for name in of_encoder
        )
    trained, total = result.weights
    assert 0 < trained < total == sum(weight.numel() for weight in before.values())


@pytest.mark.parametrize("setup", few(SETUPS, "classify", "crf"))
def test_merged_model_equals_the_adapter_in_peft(setup: str, tmp_path: Path) -> None:
    from peft import PeftModel

    config = config_of(setup, tmp_path / "run", tuning="lora", lr=0.05, lora="2")
    task, dataset = fx.load(config)
    finetune.fit(task, dataset, config)
    last = task.model(tmp_path / "run" / "last")
    sequences = list(task.encode(dataset.splits["train"][:3]).sequences)
    batch = pack(sequences, task.collate(sequences) if task.description.reads_targets else {})

    def output(model: Any) -> torch.Tensor:
        with torch.no_grad():
            found = model.eval()(batch)
        return next(part for part in found if part.numel()) if isinstance(found, tuple) else found

    fresh, best = output(task.model()), output(task.model(tmp_path / "run" / "best"))
    with parameter_efficient_tuning(last, config):
        load_adapter_state(last, tmp_path / "run" / "last")
        torch.testing.assert_close(output(last), best, rtol=0, atol=1e-5)
        with plain_layers(last, merged=True):
            assert not adapters(last)
            torch.testing.assert_close(output(last), best, rtol=0, atol=1e-6)
    start = task.model()
    model = start if isinstance(start, EncoderModel) else start.model
    PeftModel.from_pretrained(model, tmp_path / "run" / "adapter")
    assert not torch.allclose(fresh, best, atol=1e-3)
    if setup != "softmax":  # whose classifier is not in the encoder
        torch.testing.assert_close(output(start), best, rtol=0, atol=1e-5)


def test_moments_and_learning_rates(tmp_path: Path) -> None:
    for method, factor in (("full", 1), ("lora", 20), ("bitfit", 50), ("head", 100), ("mask", 5)):
        config = config_of("ner windows", tmp_path, tuning=method)
        head = fx.load(config)[0].model()
        with parameter_efficient_tuning(head, config):
            groups = parameter_groups(head, config)
            numbers = sum(weight.numel() for group in groups for weight in group["params"])
            assert numbers == sum(w.numel() for w in head.parameters() if w.requires_grad)
            given = parameter_groups(head, replace(config, lr=1.0))
            assert max(group["lr"] for group in given) == {"full": 10, "mask": 2}.get(method, 1)
        for group in groups:
            wanted = factor if group["encoder"] else max(10, factor)
            assert group["lr"] == pytest.approx(1e-4 * wanted)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora": "4"}, "lora 4 needs --tuning lora"),
        ({"tuning": "head", "freeze": "1"}, "freeze 1 does not go with --tuning head, which"),
        ({"tuning": "lora", "lora": "8:qery"}, "lora 8:qery: qery: .*query"),
        ({"tuning": "lora", "freeze": "3"}, "--tuning lora: the encoder has no such"),
        ({"gradient_checkpointing": True, "model": "squeezebert"}, "none for squeezebert"),
    ],
)
def test_refusals(settings: dict, message: str, tmp_path: Path) -> None:
    if settings.get("model") == "squeezebert":
        settings = settings | {"model": fx.checkpoint("squeezebert")}
    with pytest.raises(UserError, match=message):
        config = config_of("classify", tmp_path / "run", **settings)
        fx.fit(config)


def test_targets_and_frozen_layers(tmp_path: Path) -> None:
    settings = {"tuning": "lora", "lora": "8:query,output.dense", "freeze": "1"}
    model = fx.checkpoint("roberta", dropout=0.1, layers=3)
    config = config_of("classify", tmp_path, model=model, **settings)
    head = fx.load(config)[0].model()
    with parameter_efficient_tuning(head, config):
        names = [name.partition("layer.")[2] for name in adapters(head)]
    ends = ("attention.self.query", "attention.output.dense", "output.dense")
    assert names == [f"{layer}.{end}" for layer in (1, 2) for end in ends]


def test_peft_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    config = config_of("classify", tmp_path, tuning="lora")
    with pytest.raises(UserError, match="--tuning lora needs peft: pip install"):
        fx.fit(config)


@pytest.mark.parametrize(
    ("family", "batching"),
    [
        *((name, "auto") for name in ("bert", "modernbert", "deberta-v2")),
        *((name, "padded") for name in ("distilbert", "modernbert")),
    ],
)
def test_gradient_checkpointing_is_exact(family: str, batching: Any) -> None:
    """Layers run again, packed, with the dropout of the forward pass."""
    model = tiny_model(family, dropout=0.2).train()
    reference, made = copy.deepcopy(model), encodings(model)
    batch = replace(pack(made), seed=7)
    calls = []
    for each, on in ((model, True), (reference, False)):
        encoder = Encoder(each, batching)
        names = list(each.state_dict())
        with fast_dropout(each), checkpointed_layers(encoder) if on else fast_dropout(each):
            first = next(m for m in each.modules() if type(m).__name__.endswith(INNER))
            hook = first.register_forward_pre_hook(lambda *_, on=on: calls.append(on))
            torch.manual_seed(3)
            weight = torch.linspace(-1, 1, encoder.width)
            (encoder(batch) * weight).square().sum().backward()
            hook.remove()
        assert list(each.state_dict()) == names
        assert not any(getattr(m, "gradient_checkpointing", False) for m in each.modules())
    assert calls.count(True) == 2 * calls.count(False) > 0
    assert_same_gradients(model, reference, 0.0)
