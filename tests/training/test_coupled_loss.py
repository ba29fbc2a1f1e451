"""Losses that couple all sequences of an optimizer batch: one gradient, however it is computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from finetune.embeddings.settings import SentenceConfig
from finetune.models.dropout import fast_dropout
from finetune.tasks import load_task
from finetune.training.data import training_data
from finetune.training.step import begin_step
from finetune.training.trainer import fit
from tests.small_data import write_jsonl
from tests.tiny import save_tiny_checkpoint
from tests.training.two_processes import same_weights, train_in_two_processes

TEXTS = [
    "the train from paris was late",
    "anna saw a big red dog in the garden",
    "a man is playing",
    "two children run across the street because it rains",
    "what a great story !",
    "the bank",
    "nothing contradicts what the reporter wrote about the match",
    "this film is good",
    "john smith works for general motors in detroit",
    "a man is playing",
]
OBJECTIVES = ("mirror", "simcse", "prompt", "ranking", "softmax", "cosine")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coupled")
    for family in ("bert", "deberta-v2", "mpnet"):
        save_tiny_checkpoint(folder / family, family, dropout=0.1)
    turned = TEXTS[3:] + TEXTS[:3]
    pairs = [{"text": a, "text_pair": b} for a, b in zip(TEXTS, turned, strict=True)]
    numbers = [{**row, "label": index / 4} for index, row in enumerate(pairs)]
    labels = [{**row, "label": "abc"[index % 3]} for index, row in enumerate(pairs)]
    triples = [
        {"anchor": a, "positive": b, "negative": TEXTS[index % 4]}
        for index, (a, b) in enumerate(zip(TEXTS, turned, strict=True))
    ]
    for name, rows in (("numbers", numbers), ("labels", labels), ("triples", triples)):
        write_jsonl(folder / name / "train.jsonl", rows)
        write_jsonl(folder / name / "validation.jsonl", rows)
    return folder


def config_of(objective: str, place: Path, out: Path, **changes: Any) -> SentenceConfig:
    data = {"softmax": "labels", "ranking": "triples"}.get(objective, "numbers")
    model = str(place / changes.pop("model", "bert"))
    settings: dict[str, Any] = {
        "batch_size": 8,
        "lr": 1e-2,
        "epochs": 3.0,
        "precision": "fp32",
        "max_length": 40,
        "eval_every": 2,
    }
    return SentenceConfig(
        model=model,
        data=str(place / data),
        out=str(out),
        objective=objective,
        **{**settings, **changes},
    )


def gradients(config: SentenceConfig, changed: Any = None) -> tuple[dict, torch.Tensor]:
    """The gradients that one step of SGD applies, in float64, and the loss."""
    task, dataset = load_task(config, "sentence")
    torch.manual_seed(3)
    head = task.head().double()
    accelerator = Accelerator(cpu=True)
    data = training_data(task, dataset, replace(config, validation="none"), accelerator, print)
    optimizer = torch.optim.SGD(head.parameters(), lr=1.0)
    for group in optimizer.param_groups:
        group["peak"] = 1.0
    before = {name: value.detach().clone() for name, value in head.named_parameters()}
    batch = data.batch(0)
    with fast_dropout(head):
        step = begin_step(task, head, optimizer, replace(config, clip=0.0), accelerator, "fp32")
        batches = [changed(each) for each in batch.micro_batches] if changed else None
        loss, _ = step(batches or batch.micro_batches, weight=1.0, lr_factor=1.0)
    found = {name: before[name] - value.detach() for name, value in head.named_parameters()}
    return found, loss


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_gradient_is_that_of_one_large_batch(
    objective: str, place: Path, tmp_path: Path
) -> None:
    config = config_of(objective, place, tmp_path, max_tokens=10_000)
    expected, loss = gradients(config)
    assert float(loss) > 0 and max(float(g.abs().max()) for g in expected.values()) > 1e-3
    for max_tokens in (40, 90):
        found, same = gradients(replace(config, max_tokens=max_tokens))
        torch.testing.assert_close(same, loss, rtol=0, atol=1e-12)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "mpnet"])
def test_dropout_of_torch_is_replayed(family: str, place: Path, tmp_path: Path) -> None:
    """Without a seed torch's generator draws masks: both passes must draw the same.

    Of two equal passes over two micro-batches, the second finds the generator as the first did.
    """
    config = config_of("simcse", place, tmp_path, model=family, max_tokens=40)

    def unseeded(batch: Any) -> Any:
        return replace(batch, seed=None)

    torch.manual_seed(1)
    task, dataset = load_task(config, "sentence")
    head = task.head().double()
    data = training_data(
        task, dataset, replace(config, validation="none"), Accelerator(cpu=True), print
    )
    batches = [unseeded(batch) for batch in data.batch(0).micro_batches]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.0)
    optimizer.param_groups[0]["peak"] = 0.0
    step = begin_step(task, head, optimizer, config, Accelerator(cpu=True), "fp32")
    seen: list[torch.Tensor] = []
    forward = type(head).forward

    def recorded(self: Any, batch: Any) -> Any:
        output = forward(self, batch)
        seen.append(output.vectors.detach().clone())
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(head), "forward", recorded)
        step(batches, weight=1.0, lr_factor=1.0)
    first, second = seen[: len(batches)], seen[len(batches) :]
    assert len(second) == len(batches) > 1
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first[0], forward(head, batches[0]).vectors)


@pytest.mark.slow
def test_two_processes_and_small_passes_change_nothing(place: Path, tmp_path: Path) -> None:
    config = config_of("softmax", place, tmp_path / "one", batch_size=9)  # then 1, for 2 processes
    fit(*load_task(config, "sentence"), config)
    options = "--objective softmax --batch-size 9 --lr 1e-2 --epochs 3 --eval-every 2"
    places = ("--model", config.model, "--data", config.data, "--out", tmp_path / "two")
    more = "--precision fp32 --max-length 40 --max-tokens 40".split()
    train_in_two_processes("sentence", *places, *options.split(), *more)
    same_weights(tmp_path / "one/last", tmp_path / "two/last")
