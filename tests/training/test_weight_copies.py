"""Steps with copies of weights in half precision: the numbers of autocast, with fewer operators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import RobertaConfig, RobertaForSequenceClassification

from finetune.config.tasks import ClassifyConfig, TrainConfig
from finetune.models.adapters import light_tuning
from finetune.models.dropout import fast_dropout
from finetune.models.encoder import checkpointed_layers
from finetune.models.half_precision import WeightCopies
from finetune.models.heads.pretrained import SequenceClassifier
from finetune.models.sparse_embedding import SparseEmbeddings
from finetune.preprocessing.batching import pack
from finetune.training import step as steps
from finetune.training.data import training_data
from finetune.training.optimizer import make_optimizer
from finetune.training.step import Step, begin_step
from finetune.types import Encoding
from tests import laboratory as lab
from tests.operators import CountOperators, paths_of_a_gpu

SMALL = {"max_tokens": 60, "batch_size": 4}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "micro-batches": ("classify", {"max_tokens": 60}),
    "albert, clipping": ("classify", {"model": "albert", "clip": 0.01}),
    "deberta, frozen": ("classify", {"model": "deberta-v2", "freeze": "1"}),
    "modernbert, checkpointed": (
        "classify",
        {"model": "modernbert", "gradient_checkpointing": True},
    ),
    "squeezebert, fp16": ("classify", {"model": "squeezebert", "precision": "fp16"}),
    "lora": ("classify", {"tuning": "lora"}),
    "bitfit": ("classify", {"tuning": "bitfit"}),
    "mask": ("classify", {"tuning": "mask"}),
    "bilstm, sparse": ("classify", {"bilstm": True, "sparse_embeddings": "on"}),
    "crf": ("crf", SMALL),
    "ner": ("ner windows", SMALL),
    "coupled": ("sentence", {"objective": "simcse", **SMALL}),
    "tied": ("spans", {"max_tokens": 200}),
}


def config_of(name: str, **changes: Any) -> TrainConfig:
    kind, settings = CASES[name]
    settings = {"max_length": 48, "lr": 1e-2, "precision": "bf16", **settings, **changes}
    return lab.config(kind, **{**settings, "model": lab.checkpoint(settings.get("model", "bert"))})


@contextlib.contextmanager
def without_copies(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let autocast cast the weights."""
    with patch.context() as inner:
        inner.setattr(steps, "WeightCopies", lambda head, *_: WeightCopies(head, "fp32"))
        yield


def weights_after(name: str) -> tuple[dict[str, Tensor], Step]:
    """Take two steps, and return the weights."""
    config = config_of(name)
    task, dataset = lab.load(config)
    torch.manual_seed(3)
    accelerator = Accelerator(cpu=True)
    batches = training_data(task, dataset, config, accelerator, lambda note: None)
    head = task.head()
    with contextlib.ExitStack() as stack:
        stack.enter_context(light_tuning(head, config))
        if config.gradient_checkpointing:
            stack.enter_context(checkpointed_layers(head.encoder))
        read = [each.sequences.ids.values for each in batches.encoded.values()]
        sparse = SparseEmbeddings(head, config.sparse_embeddings, read)
        stack.enter_context(sparse)
        stack.enter_context(fast_dropout(head))
        optimizer = sparse.attach(make_optimizer(head, config))
        step = begin_step(task, head, optimizer, config, accelerator, config.precision)
        for number in range(2):
            step(batches.batch(number).micro_batches, weight=1.0, lr_factor=1.0)
        assert all("forward" not in vars(each) for each in head.modules())
        found = {n: value.detach().clone() for n, value in head.named_parameters()}
    return found, step


@pytest.mark.parametrize("name", CASES)
def test_all_numbers_are_those_of_autocast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, step = weights_after(name)
    assert step.copies.layers
    with without_copies(monkeypatch):
        expected, plain = weights_after(name)
    assert not plain.copies.layers
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
    assert all(value.dtype == torch.float32 for value in found.values())


def test_layers_that_are_not_copied() -> None:
    table, plain, own = nn.Embedding(5, 8), nn.Linear(8, 8), nn.Linear(8, 8)
    tied, double = nn.Linear(8, 5), nn.Linear(8, 8).double()
    tied.weight = table.weight
    own.forward = own.forward  # type: ignore[method-assign]
    model = nn.ModuleList([table, plain, own, tied, double])
    assert [layer for layer, _ in WeightCopies(model, "bf16").layers] == [plain]
    assert not WeightCopies(model, "fp32").layers


def test_a_frozen_weight_is_copied_again_when_it_changes() -> None:
    layer = nn.Linear(4, 4).requires_grad_(False)
    copies, vectors = WeightCopies(layer, "bf16"), torch.randn(3, 4)
    for factor in (1.0, 1.0, 2.0):
        with torch.no_grad():
            if factor != 1:
                layer.weight.mul_(factor)
        with torch.autocast("cpu", torch.bfloat16):
            expected = layer(vectors)
            with copies:
                assert torch.equal(layer(vectors), expected)
        with copies:
            assert layer(vectors).dtype == torch.float32, "outside of autocast"


MOST_OPERATORS = 780
"""A step of roberta-base's shape took 1,091 before weights were copied by one operator."""


def test_the_number_of_operators_of_a_step() -> None:
    torch.manual_seed(0)
    sizes = RobertaConfig(
        vocab_size=50,
        hidden_size=24,
        num_attention_heads=2,
        num_hidden_layers=12,
        intermediate_size=48,
        type_vocab_size=1,
        num_labels=3,
    )
    rows = [Encoding(number, [0, *range(5, 5 + number), 2]) for number in range(8)]
    targets = {"label": torch.arange(8) % 3, "weight": torch.ones(8)}
    config = ClassifyConfig(data="none", model="none", batch_size=8, lr=1e-5)
    head = SequenceClassifier(RobertaForSequenceClassification(sizes))
    step = begin_step(
        _Classify(),
        head,
        make_optimizer(head, config),
        config,  # type: ignore[arg-type]
        Accelerator(cpu=True),
        "bf16",
    )
    for _ in range(2):
        with paths_of_a_gpu(), CountOperators() as count:
            step([pack(rows, targets)], weight=1.0, lr_factor=1.0)
    assert count.total <= MOST_OPERATORS, count.counts.most_common()
    assert count.counts["_foreach_norm"] == count.counts["_foreach_mul_"] == 1
    assert count.counts["_foreach_copy_"] == 2, "the weights, and their gradients"


class _Classify:
    """The loss of one label."""

    coupled_loss = loss_counts = None

    def loss(self, logits: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        losses = nn.functional.cross_entropy(logits, batch.targets["label"], reduction="none")
        return (losses * batch.targets["weight"]).sum(), batch.targets["weight"].sum()


def test_tasks_on_one_encoder_share_the_copies_of_its_weights() -> None:
    shared, one, two = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)
    first = WeightCopies(nn.Sequential(shared, one), "bf16")
    second = WeightCopies(nn.Sequential(shared, two), "bf16", first)
    assert second.trained[0][1] is first.trained[0][1]
    assert [weight for weight, _ in second.trained] == [*shared.parameters(), *two.parameters()]
    for copies, layer in ((first, one), (second, two)):
        vectors = torch.randn(2, 4)
        with torch.autocast("cpu", torch.bfloat16):
            nn.Sequential(shared, layer)(vectors).sum().backward()
            expected = [weight.grad for weight, _ in copies.trained]
            shared.zero_grad(), layer.zero_grad()
            with copies:
                nn.Sequential(shared, layer)(vectors).sum().backward()
                copies.add_gradients()
        for (weight, _), gradient in zip(copies.trained, expected, strict=True):
            assert weight.grad is not None and gradient is not None
            assert torch.equal(weight.grad, gradient)
        shared.zero_grad(), layer.zero_grad()
