"""One optimizer step: one gradient, however it is computed; tests/gpu uses the same tasks.

No step of any task and objective waits for a GPU; the meta device stands for one. Families that
cannot run packed do wait: transformers reads the mask of padded rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from finetune.config.tasks import TrainConfig
from finetune.data import Dataset
from finetune.models.dropout import fast_dropout
from finetune.models.master_weights import MasterWeights
from finetune.preprocessing.batching import pack
from finetune.runtime.device import loss_scaler
from finetune.training import run_folder
from finetune.training.data import TrainingData
from finetune.training.optimizer import adamw, parameter_groups
from finetune.training.step import Step
from finetune.types import Batch
from tests import fixtures as fx
from tests.covering import few
from tests.operators import DEVICE, finding_waits
from tests.small_data import write_splits
from tests.tasks.cases import CASES, SLOW

TINY: dict[str, Any] = {"dropout": 0.0, "max_position_embeddings": 512}


def config_of(setup: str, family: str = "bert", **changes: Any) -> TrainConfig:
    """A configuration to classify (``single``) or to tag (``tag``)."""
    settings = {"batch_size": 7, "lr": 1e-2, "steps": None, **changes}
    if setup == "single":
        setup, settings["data"] = "classify", fx.data("sentiment", (60, 12, 12))
    return fx.config(setup, **{"model": fx.checkpoint(family, **TINY), **settings})


def batches_of(
    task: Any, dataset: Dataset, sizes: tuple[int, ...] = (7, 7, 3, 7, 1)
) -> list[Batch]:
    """Batches of the first training examples."""
    encoded, batches, start = task.encode(dataset.splits["train"]), [], 0
    for size in sizes:
        members = [e for windows in encoded[start : start + size] for e in windows]
        batches.append(pack(members, task.collate(members)))
        start += size
    return batches


def first_step(task: Any, head: Any, precision: str = "fp32") -> Step:
    config = task.state.config
    masters = MasterWeights(head, parameter_groups(head, config), precision)
    return Step(task, head, masters, adamw(masters.groups, config), config, Accelerator(cpu=True))


def test_a_step_puts_every_module_in_training_mode() -> None:
    task, dataset = fx.load(config_of("single"))
    head = task.model()
    step = first_step(task, head)
    assert all(module.training for module in head.modules()), "from_pretrained leaves eval mode"
    head.eval()  # as prediction leaves it
    step(batches_of(task, dataset, (7,)), weight=1.0, lr_factor=1.0)
    assert all(module.training for module in head.modules())


def test_loss_scaling_changes_no_gradient_and_skips_steps_that_overflow() -> None:
    task, dataset = fx.load(config_of("single"))
    batches, weights, norms = batches_of(task, dataset), {}, {}
    for precision in ("fp32", "fp16"):
        torch.manual_seed(0)
        head = task.model()
        step = first_step(task, head)
        step.scaler = loss_scaler(precision, torch.device("cpu"))
        norms[precision] = [step([b], weight=1.0, lr_factor=0.1)[1] for b in batches]
        weights[precision] = [w.detach().clone() for w in head.parameters()]
    assert norms["fp16"] == norms["fp32"], "powers of two round nothing"
    assert all(map(torch.equal, weights["fp16"], weights["fp32"]))

    scaler = step.scaler
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**127})
    _, norm = step(batches[:1], weight=1.0, lr_factor=0.1)
    assert norm == 0 and scaler.get_scale() == 2.0**126
    assert all(map(torch.equal, weights["fp16"], head.parameters())), "the step is skipped"
    scaler.load_state_dict({**scaler.state_dict(), "scale": 0.25})
    next(iter(head.parameters())).data[:] = float("inf")
    assert not step(batches[:1], weight=1.0, lr_factor=0.1)[1].isfinite(), "no scale helps"


SENTENCES = ("mirror", "simcse", "prompt", "cosine", "cmlm", "softmax", "ranking")
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    **{each: (each, {}) for each in (*SENTENCES, "spans", "nsp")},
    "few-shot": ("classify", {"few_shot": True}),
    "bilstm": ("classify", {"bilstm": True, "max_length": 12}),
    "class weights": ("classify", {"class_weights": "auto"}),
    "focal": ("classify", {"loss": "focal"}),
    "logit-adjusted": ("classify", {"loss": "logit-adjusted"}),
    "several labels of spans": ("ner", {"multi_label": True}),
    "deberta": ("classify", {"model": "deberta-v2"}),
    "pretrain on lines": ("pretrain", {}),
}


LIKE_OTHERS = {"windows", "nli 3", "pos", "ranking", "poly", "bilstm", "class weights", *SLOW}
LIKE_OTHERS |= {"logit-adjusted", "several labels of spans", "mirror", "cosine", "prompt", "simcse"}
LIKE_OTHERS |= {"few-shot", "nsp", "softmax", "pretrain on lines"}
"""Cases whose steps run what others do: they differ in their data, or decode otherwise."""


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", few((*CASES, *OTHERS), *({*CASES, *OTHERS} - LIKE_OTHERS)))
def test_a_step_waits_for_nothing(
    name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in CASES:
        setup, settings = CASES[name].task, CASES[name].settings
        rows = write_splits(tmp_path / "data", train=CASES[name].rows, validation=CASES[name].rows)
        settings = {**settings, "data": rows}
    else:
        setup, settings = OTHERS[name]
        settings = {"limit": 16, **settings}
    settings = {"max_length": 48, **settings}
    family = settings.pop("model", "bert")
    config = fx.config(setup, **settings, model=fx.checkpoint(family, num_hidden_layers=1))
    task, dataset = fx.load(config)
    plain = replace(config, max_tokens=100)
    batches = TrainingData(task, dataset, plain, Accelerator(cpu=True), print).batch(0)
    head = task.model().to(DEVICE)
    masters = MasterWeights(head, parameter_groups(head, config), precision)
    optimizer = torch.optim.SGD(masters.groups, lr=0.1, foreach=True)
    accelerator: Any = SimpleNamespace(
        device=DEVICE, num_processes=1, process_index=0, is_main_process=True
    )
    step = Step(task, head, masters, optimizer, config, accelerator)
    monkeypatch.setattr(run_folder, "READ_EVERY", math.inf)
    log = run_folder.RunLog(tmp_path / "log.jsonl", accelerator, 0)
    with fast_dropout(head), finding_waits() as waits:
        log.add(*step(batches.micro_batches, weight=1.0, lr_factor=1.0), 7)
        log.flush(1, optimizer, wait=False)
    assert not waits, "\n".join(waits)


# Losses that couple all sequences of an optimizer batch

COUPLED = {"lr": 1e-2, "epochs": 3.0, "steps": None}


def prepared(config: TrainConfig) -> tuple[Any, Any, list[Batch]]:
    """A task, its head in float64, and the micro-batches of the first step."""
    task, dataset = fx.load(config)
    head, accelerator = task.model().double(), Accelerator(cpu=True)
    data = TrainingData(task, dataset, replace(config, validation="none"), accelerator, print)
    return task, head, data.batch(0).micro_batches


def step_of_sgd(config: TrainConfig, task: Any, head: Any, batches: list[Batch], lr: float) -> Any:
    """The loss of a step of SGD."""
    names, params = zip(*head.named_parameters(), strict=True)
    masters = MasterWeights(head, [{"names": names, "params": params, "peak": lr}], "fp32")
    optimizer = torch.optim.SGD(masters.groups, lr=lr)
    step = Step(task, head, masters, optimizer, config, Accelerator(cpu=True))
    return step(batches, weight=1.0, lr_factor=1.0)[0]


def gradients(config: TrainConfig) -> tuple[dict, torch.Tensor]:
    """The gradients that one step of SGD applies, and the loss."""
    torch.manual_seed(3)
    task, head, batches = prepared(config)
    before = {name: value.detach().clone() for name, value in head.named_parameters()}
    with fast_dropout(head):
        loss = step_of_sgd(replace(config, clip=0.0), task, head, batches, 1.0)
    found = {name: before[name] - value.detach() for name, value in head.named_parameters()}
    return found, loss


@pytest.mark.parametrize("objective", SENTENCES)
def test_the_gradient_is_that_of_one_large_batch(objective: str) -> None:
    model = fx.checkpoint(dropout=0.0)
    config = fx.config(objective, **COUPLED, model=model, max_tokens=10_000)
    expected, loss = gradients(config)
    assert float(loss) > 0 and max(float(g.abs().max()) for g in expected.values()) > 1e-3
    for max_tokens in (40, 90):
        found, same = gradients(replace(config, max_tokens=max_tokens))
        torch.testing.assert_close(same, loss, rtol=0, atol=1e-12)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "squeezebert"])
def test_dropout_is_the_same_in_both_passes(family: str) -> None:
    config = fx.config("simcse", **COUPLED, model=fx.checkpoint(family), max_tokens=40)
    torch.manual_seed(1)
    task, head, batches = prepared(config)
    seen: list[torch.Tensor] = []
    forward = type(head).forward

    def recorded(self: Any, batch: Any) -> Any:
        output = forward(self, batch)
        seen.append(output.vectors.detach().clone())
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(head), "forward", recorded)
        step_of_sgd(config, task, head, batches, 0.0)
    first, second = seen[: len(batches)], seen[len(batches) :]
    assert len(second) == len(batches) > 1
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first[0], forward(head, batches[0]).vectors)
