"""Schedule and parameter groups, by hand and against the schedule of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from finetune.config.tasks import NerConfig, TrainConfig, affects_results
from finetune.models.heads.crf import CrfTagger
from finetune.models.heads.pretrained import SequenceClassifier, TokenClassifier
from finetune.models.heads.span_classifier import SpanClassifier
from finetune.runtime import device as device_module
from finetune.runtime.device import resolve_precision
from finetune.training.optimizer import (
    Schedule,
    adamw,
    default_learning_rate,
    logged_learning_rates,
    parameter_groups,
)
from tests import fixtures as fx
from tests import tiny


def config(**settings) -> TrainConfig:
    return TrainConfig(**({"batch_size": 8, "epochs": 3.0} | settings))


@pytest.mark.parametrize(
    ("settings", "num_examples", "steps", "warmup", "evaluation"),
    [
        ({}, 20, 9, 1, 3),  # 3 epochs of 3 steps, the last step of each short
        ({"epochs": 1.5}, 20, 5, 1, 3),  # 4.5 steps
        ({"epochs": 0.01}, 20, 1, 0, 3),  # a single step has no warm-up
        ({"steps": 7}, 20, 7, 1, 3),
        ({"steps": 7, "epochs": 100.0}, 20, 7, 1, 3),
        ({"warmup": 0.5}, 16, 6, 3, 2),
        ({"warmup": 0.0}, 16, 6, 0, 2),
        ({"warmup": 1.0}, 16, 6, 1, 2),  # from 1 on a number of steps
        ({"warmup": 4.0}, 16, 6, 4, 2),
        ({"warmup": 400.0}, 16, 6, 6, 2),
        ({"eval_every": 5}, 16, 6, 1, 5),
    ],
)
def test_number_of_steps(settings, num_examples, steps, warmup, evaluation) -> None:
    schedule = Schedule.from_config(config(**settings), num_examples)
    assert (schedule.num_steps, schedule.warmup_steps, schedule.eval_every) == (
        steps,
        warmup,
        evaluation,
    )
    assert schedule.save_every == evaluation
    assert Schedule.from_config(config(**settings, save_every=4), num_examples).save_every == 4


@pytest.mark.parametrize(
    ("per_epoch", "epochs"), [(1, 10), (50, 10), (56, 9), (100, 5), (166, 4), (167, 3), (9999, 3)]
)
def test_default_epochs(per_epoch: int, epochs: int) -> None:
    """Up to 10 epochs to reach 500 steps, and 3 at least."""
    schedule = Schedule.from_config(config(epochs=None, batch_size=1), per_epoch)
    assert schedule.num_steps == epochs * per_epoch
    assert Schedule.from_config(config(epochs=None, steps=7), per_epoch).num_steps == 7


@pytest.mark.parametrize(("num_examples", "batch_size"), [(20, 8), (16, 8), (1, 8), (9, 1)])
def test_batches_cover_each_epoch_once(num_examples: int, batch_size: int) -> None:
    schedule = Schedule.from_config(config(batch_size=batch_size), num_examples)
    epochs = []
    for epoch in range(3):
        first = epoch * schedule.steps_per_epoch
        order = schedule.order(first)
        steps = range(first, first + schedule.steps_per_epoch)
        batches = [schedule.batch(step, order) for step in steps]
        assert {len(batch) for batch in batches[:-1]} <= {batch_size}
        order = [index for batch in batches for index in batch]
        assert sorted(order) == list(range(num_examples))
        epochs.append(order)
    assert num_examples == 1 or epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.34, 1.0, 5.0, 12.0, 99.0])
def test_learning_rate_equals_that_of_transformers(warmup: float) -> None:
    schedule = Schedule.from_config(config(steps=12, warmup=warmup), 40)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    expected = get_linear_schedule_with_warmup(optimizer, schedule.warmup_steps, 12)
    for step in range(12):
        assert schedule.lr_factor(step) == pytest.approx(expected.get_last_lr()[0], abs=1e-15)
        optimizer.step()
        expected.step()


def head(family: str = "bert", setup=TokenClassifier):
    auto = setup.auto_class
    return setup(tiny.model(family, auto, layers=3, num_labels=3))


def names_of(model, groups) -> list[dict]:
    """The groups with parameter names in the place of parameters."""
    by_id = {id(weight): name for name, weight in model.named_parameters()}
    return [{**group, "params": [by_id[id(w)] for w in group["params"]]} for group in groups]


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("setup", [SequenceClassifier, TokenClassifier])
def test_every_trainable_parameter_once(family: str, setup) -> None:
    model = head(family, setup)
    model.encoder.freeze("1")
    groups = names_of(model, parameter_groups(model, config(layer_decay=0.9, head_lr=1e-3)))
    grouped = [name for group in groups for name in group["params"]]
    assert sorted(grouped) == sorted(n for n, w in model.named_parameters() if w.requires_grad)
    sizes = dict(model.named_parameters())
    norms = {n for n, module in model.named_modules() if "Norm" in type(module).__name__[-9:]}
    for group in groups:
        assert group["peak"] == group["lr"]
        for name in group["params"]:
            assert group["weight_decay"] == (0.01 if sizes[name].ndim > 1 else 0.0), name
            if name.endswith("bias") or name.rpartition(".")[0] in norms:
                assert group["weight_decay"] == 0.0, name


def rates(**settings) -> dict[str, float]:
    model = head()
    groups = names_of(model, parameter_groups(model, config(lr=1e-3, **settings)))
    return {name: group["lr"] for group in groups for name in group["params"]}


def optimizer_of(model: Any, config: TrainConfig) -> torch.optim.Optimizer:
    return adamw(parameter_groups(model, config), config)


def test_the_log_has_the_learning_rates_of_encoder_and_head() -> None:
    optimizer = optimizer_of(head(), config(lr=1e-3))
    assert logged_learning_rates(optimizer) == {"lr": 1e-3}
    tagger = CrfTagger.from_pretrained(
        str(fx.checkpoint("bert")), labels=["O", "B-X", "I-X"], scheme="BIO"
    )
    optimizer = optimizer_of(tagger, config(lr=1e-3))
    assert logged_learning_rates(optimizer) == {"lr": 1e-3}, "without that of the transitions"
    (rate,) = tagger.separate_learning_rates.values()
    tagger.encoder.freeze("all")
    optimizer = optimizer_of(tagger, config(lr=1e-3, head_lr=rate, weight_decay=0))
    assert logged_learning_rates(optimizer) == {"lr": rate}
    optimizer = optimizer_of(head(), config(lr=1e-3, head_lr=1e-2))
    assert logged_learning_rates(optimizer) == {"lr": 1e-3, "head_lr": 1e-2}
    frozen = head()
    frozen.encoder.freeze("all")
    optimizer = optimizer_of(frozen, config(lr=1e-3, head_lr=1e-2))
    assert logged_learning_rates(optimizer) == {"lr": 1e-2}


def test_layer_decay_by_hand() -> None:
    """Three layers: the head has depth 4, so the embeddings are scaled four times."""
    found = rates(layer_decay=0.5)
    expected = {
        "model.classifier.weight": 1e-3,
        "model.bert.encoder.layer.2.output.dense.weight": 5e-4,
        "model.bert.encoder.layer.1.output.dense.bias": 2.5e-4,
        "model.bert.encoder.layer.0.attention.self.query.weight": 1.25e-4,
        "model.bert.embeddings.word_embeddings.weight": 6.25e-5,
        "model.bert.embeddings.LayerNorm.weight": 6.25e-5,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    assert set(rates().values()) == {1e-3}


def test_head_rate_is_for_the_head_only() -> None:
    found = rates(head_lr=0.5, layer_decay=0.5)
    changed = {name for name, rate in found.items() if rate == 0.5}
    assert changed == {"model.classifier.weight", "model.classifier.bias"}
    plain = rates(layer_decay=0.5)
    assert all(found[name] == plain[name] for name in found.keys() - changed)


def test_rate_by_width() -> None:
    assert [default_learning_rate(width) for width in (384, 512, 768)] == [1e-4, 2e-5, 2e-5]
    assert {g["lr"] for g in parameter_groups(head(), config())} == {1e-4}


def test_nothing_to_train_is_an_error() -> None:
    model = head()
    model.requires_grad_(False)
    with pytest.raises(
        ValueError, match="--tuning head with freeze none leaves no weight to train"
    ):
        parameter_groups(model, config(tuning="head"))


def test_settings_of_adam() -> None:
    defaults = optimizer_of(head(), config()).defaults
    assert (defaults["betas"], defaults["eps"]) == ((0.9, 0.999), 1e-8)
    own = optimizer_of(head(), config(adam_beta2=0.98, adam_epsilon=1e-6)).defaults
    assert (own["betas"], own["eps"]) == ((0.9, 0.98), 1e-6)
    assert affects_results("adam_beta2") and affects_results("adam_epsilon")


def test_precision(monkeypatch) -> None:
    cpu = torch.device("cpu")
    for has, expected in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(device_module, "supports_bf16", lambda device, has=has: has)
        for precision in ("auto", "fp32", "bf16"):
            wanted = expected if precision == "auto" else precision
            assert resolve_precision(config(precision=precision), cpu) == wanted
    monkeypatch.undo()
    assert not device_module.supports_bf16(torch.device("meta"))


def test_heads_say_their_own_rates():
    folder = str(fx.checkpoint())
    spans = SpanClassifier.from_pretrained(folder, labels=["PER"], max_width=3)
    rates = {group["lr"] for group in parameter_groups(spans, NerConfig(lr=1e-4))}
    assert rates == {1e-4, 1e-3}
    rates = {group["lr"] for group in parameter_groups(spans, NerConfig(lr=1e-4, head_lr=5e-4))}
    assert rates == {1e-4, 5e-4}
