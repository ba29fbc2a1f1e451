"""Training in bfloat16 with float32 master weights, and predictions in half precision."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from finetune.inference.loop import full_precision
from finetune.models import graphs
from finetune.models.adapters import parameter_efficient_tuning
from finetune.models.encoder import Encoder, checkpointed_layers
from finetune.models.master_weights import MasterWeights, cast_weights, casting
from finetune.preprocessing.batching import pack
from finetune.runtime.device import DTYPES
from finetune.training.data import TrainingData
from finetune.training.optimizer import adamw, parameter_groups
from finetune.types import Batch, TokenSequence
from tests import fixtures as fx
from tests.covering import covering
from tests.training.test_step import first_step

CPU = torch.device("cpu")
SMALL = {"max_tokens": 60, "batch_size": 4}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "micro-batches": ("classify", {"max_tokens": 60}),
    "albert": ("classify", {"model": "albert", "layer_decay": 0.8}),
    "deberta, frozen": ("classify", {"model": "deberta-v2", "freeze": "1"}),
    "modernbert, checkpointed": (
        "classify",
        {"model": "modernbert", "gradient_checkpointing": True},
    ),
    "mpnet": ("classify", {"model": "mpnet"}),
    "lora": ("classify", {"tuning": "lora"}),
    "bitfit": ("classify", {"tuning": "bitfit"}),
    "mask": ("classify", {"tuning": "mask"}),
    "bilstm": ("classify", {"bilstm": True}),
    "pairs": ("bi", {"pair_encoder": "poly"}),
    "crf": ("crf", SMALL),
    "ner": ("ner windows", SMALL),
    "tied": ("pretrain", {"max_tokens": 200}),
}
LIKE_OTHERS = ("albert", "deberta, frozen", "modernbert, checkpointed", "mpnet", "bitfit", "pairs")
LIKE_OTHERS += ("ner",)
FLOAT32 = ("bilstm", "crf.", ".scores")
"""Parts of the names of weights that stay float32."""
NUM_STEPS = 2


@contextlib.contextmanager
def prepared(name: str, precision: str) -> Iterator[tuple[Any, Any, list[list[Batch]]]]:
    """A task, its model without dropout, and the batches of its first steps."""
    setup, settings = CASES[name]
    model = fx.checkpoint(settings.get("model", "bert"), dropout=0.0)
    settings = {"max_length": 48, "lr": 1e-2, "clip": 0.0, "precision": precision, **settings}
    config = fx.config(setup, **{**settings, "model": model})
    task, dataset = fx.load(config)
    torch.manual_seed(3)
    head = task.model()
    with contextlib.ExitStack() as stack:
        stack.enter_context(parameter_efficient_tuning(head, config))
        if config.gradient_checkpointing:
            stack.enter_context(checkpointed_layers(head.encoder))
        data = TrainingData(task, dataset, config, Accelerator(cpu=True), lambda note: None)
        yield task, head, [data.batch(number).micro_batches for number in range(NUM_STEPS)]


def reference(task: Any, head: Any, batches: list[list[Batch]], dtype: torch.dtype) -> None:
    """Train with a list of float32 weights, which the model gets at the end."""
    config, names = task.state.config, {id(weight): n for n, weight in head.named_parameters()}
    groups, pairs = parameter_groups(head, config), []
    for group in groups:
        masters = [weight.detach().clone() for weight in group["params"]]
        pairs += zip(group["params"], masters, strict=True)
        group["params"] = masters
    for weight in head.parameters():
        if not any(part in names[id(weight)] for part in FLOAT32):
            weight.data = weight.data.to(dtype)
    optimizer = adamw(groups, config)
    head.train()
    for micro_batches in batches:
        total = torch.tensor(0.0)
        for batch in micro_batches:
            torch.manual_seed(batch.seed or 0)
            loss, count = task.loss(full_precision(head(batch)), batch)
            loss.backward()
            total += count
            for weight, master in pairs:
                gradient = torch.zeros(()) if weight.grad is None else weight.grad.float()
                master.grad = gradient if master.grad is None else master.grad + gradient
                weight.grad = None
        for _, master in pairs:
            master.grad = master.grad * (1 / total)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for weight, master in pairs:
                weight.copy_(master)
    for weight, master in pairs:
        weight.data = master


@pytest.fixture
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """``flat fp32`` is that of a GPU."""
    name: str = request.param
    monkeypatch.setattr(graphs, "DEVICE", "cpu" if "flat" in name else "cuda")
    return name.removeprefix("flat ")


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "bf16") for name in ("micro-batches", "lora", "mask", "bilstm", "crf", "tied")),
        *(pytest.param(name, "bf16", marks=pytest.mark.slow) for name in LIKE_OTHERS),
        ("tied", "fp32"),
        *((name, "flat fp32") for name in ("tied", "micro-batches", "mask")),
    ],
    indirect=["precision"],
)
def test_weights_are_those_of_a_plain_loop(name: str, precision: str) -> None:
    with prepared(name, precision) as (task, head, batches):
        reference(task, head, batches, DTYPES[precision])
        expected = {name: weight.detach().clone() for name, weight in head.named_parameters()}
    with prepared(name, precision) as (task, head, batches):
        before = {name: weight.detach().clone() for name, weight in head.named_parameters()}
        step = first_step(task, head, precision)
        working = step.masters.gradients.keys()
        assert bool(working) == (precision == "bf16" or graphs.DEVICE == "cpu")
        for micro_batches in batches:
            step(micro_batches, weight=1.0, lr_factor=1.0)
        assert all(weight.grad is None for weight in working)
        assert {weight.dtype for weight in working} <= {DTYPES[precision]}
        with step.masters:
            pass
        assert any(
            not torch.equal(weight, before[name]) for name, weight in head.named_parameters()
        )
        for key, weight in head.named_parameters():
            value = expected[key] if weight.requires_grad else before[key]
            # vectorized loops round the last numbers of a short tensor in another way
            tolerance = 1e-5 if working and weight.requires_grad else 0.0
            torch.testing.assert_close(weight.detach(), value, rtol=0, atol=tolerance, msg=key)


class TwoHeads(nn.Module):
    """Two layers on an encoder; a batch trains one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder.from_pretrained(str(fx.checkpoint(dropout=0.0)))
        sizes = {"one": 3, "two": 70}
        heads = nn.ModuleDict({n: nn.Linear(32, size) for n, size in sizes.items()})
        self.tasks = nn.ModuleDict({"heads": heads})

    def loss(self, head: str) -> Tensor:
        hidden = self.encoder(pack([TokenSequence(0, [2, 7, 8, 9, 3])]))
        output: Tensor = self.tasks["heads"][head](hidden).float().square().sum()
        return output


def train_heads(precision: str, turns: str, saved_after: int | None = None) -> dict[str, Tensor]:
    """Train heads in turn with AdamW and large weight decay; save and load the state between."""

    def begin() -> tuple[TwoHeads, MasterWeights, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = TwoHeads()
        names, weights = zip(*model.named_parameters(), strict=True)
        groups = [{"names": names, "params": weights}]
        masters = MasterWeights(model, groups, precision)
        return model, masters, torch.optim.AdamW(masters.groups, 1e-2, weight_decay=0.5, fused=True)

    model, masters, optimizer = begin()
    for number, head in enumerate(turns):
        if number == saved_after:
            moments = copy.deepcopy(masters.moments(optimizer))
            with masters.float32():
                state = copy.deepcopy(model.state_dict())
            model, masters, optimizer = begin()
            with masters.float32():
                model.load_state_dict(state)
            masters.load_moments(optimizer, moments)
        model.loss({"1": "one", "2": "two"}[head]).backward()
        masters.add_gradients()
        gradients = masters.gradients_of_step()
        torch._foreach_mul_(gradients, 1 / torch.stack(torch._foreach_norm(gradients)).norm())
        optimizer.step()
        masters.end_step()
    found = {f"{n}/{k}": v for n, s in masters.moments(optimizer).items() for k, v in s.items()}
    with masters.float32():
        return found | {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("precision", ["fp32", "flat fp32", "bf16"], indirect=True)
def test_a_weight_without_a_gradient_is_not_updated(precision: str) -> None:
    start, one, other = (train_heads(precision, turns) for turns in ("", "11", "2"))
    for name in ("weight", "bias"):
        assert torch.equal(start[f"tasks.heads.two.{name}"], one[f"tasks.heads.two.{name}"])
        assert torch.equal(start[f"tasks.heads.one.{name}"], other[f"tasks.heads.one.{name}"])
        assert not torch.equal(one[f"tasks.heads.one.{name}"], other[f"tasks.heads.one.{name}"])
    assert "tasks.heads.two.weight/step" not in one and one["tasks.heads.one.weight/step"] == 2
    both = train_heads(precision, "1221")
    assert both["tasks.heads.one.weight/step"] == both["tasks.heads.two.weight/step"] == 2
    assert both["encoder.model.embeddings.word_embeddings.weight/step"] == 4


@pytest.mark.parametrize(
    ("turns", "precision"),
    covering(["1221", "1112", "2111"], ["fp32", "flat fp32", "bf16"]),
    indirect=["precision"],
)
def test_saved_moments_continue_bit_equal(precision: str, turns: str) -> None:
    expected = train_heads(precision, turns)
    for saved_after in (1, 3):
        found = train_heads(precision, turns, saved_after)
        assert found.keys() == expected.keys()
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def test_families_that_need_autocast_keep_float32_weights() -> None:
    config = fx.config("classify", model=fx.checkpoint("deberta"), precision="bf16")
    task, _ = fx.load(config)
    step = first_step(task, task.model(), "bf16")
    assert not step.masters.gradients
    with step.casting:
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16 and torch.is_autocast_enabled(
            "cpu"
        )


def test_a_model_predicts_in_half_precision() -> None:
    """Its weights are half precision if it is cast, and its operations if it is not."""
    model = Encoder.from_pretrained(str(fx.checkpoint()))
    batch = pack([TokenSequence(0, [2, 7, 8, 9, 3])])
    cast = copy.deepcopy(model)
    cast_weights(cast, "bf16")
    outputs = {}
    with torch.no_grad():
        for name, each, precision in (
            ("cast", cast, "bf16"),
            ("autocast", model, "bf16"),
            ("single", model, "fp32"),
        ):
            with casting(each, precision, CPU):
                assert torch.is_autocast_enabled("cpu") == (name == "autocast")
                outputs[name] = each(batch)
    assert outputs["cast"].dtype == torch.bfloat16 and outputs["single"].dtype == torch.float32
    for name in ("cast", "autocast"):
        torch.testing.assert_close(outputs[name].float(), outputs["single"], rtol=0, atol=0.05)
