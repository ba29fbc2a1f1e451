"""Measure attention, matrix products and training steps on a GPU; print one table.

    python -m tests.gpu.probe                 # on the first CUDA device, at roberta-base's size
    python -m tests.gpu.probe --device cpu    # tiny, and only what exists there

Times are medians, each measured until the device has finished.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from torch.nn import functional as F
from transformers import RobertaConfig, RobertaForSequenceClassification

from finetune.config.tasks import TrainConfig
from finetune.models import attention
from finetune.models.heads.sequence_classification import SequenceClassifier
from finetune.models.packing import PackedLayout
from finetune.preprocessing.batching import pack
from finetune.training.optimizer import make_optimizer
from finetune.training.step import Step
from finetune.types import Batch, Encoding

ABSENT = "not on this device"
Row = tuple[str, str]


class Size:
    """The model and the batches: those of roberta-base on NLI data, or a tiny one."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.large = device, device.type == "cuda"
        self.width, self.layers, self.heads = (768, 12, 12) if self.large else (32, 2, 4)
        self.vocabulary, self.sequences = (50265, 32) if self.large else (100, 4)
        self.repeats = 50 if self.large else 3

    def lengths(self) -> list[int]:
        """Lengths with a mean of about 39 tokens, at most 128."""
        return torch.randn(self.sequences).mul(0.45).add(3.55).exp().clamp(4, 128).int().tolist()

    def config(self) -> RobertaConfig:
        return RobertaConfig(
            vocab_size=self.vocabulary, hidden_size=self.width, num_hidden_layers=self.layers,
            num_attention_heads=self.heads, intermediate_size=4 * self.width,
            max_position_embeddings=514, type_vocab_size=1, num_labels=3,
        )  # fmt: skip

    def batch(self) -> Batch:
        rows = [torch.randint(5, self.vocabulary, (length,)).tolist() for length in self.lengths()]
        label = torch.randint(3, (self.sequences,))
        targets = {"label": label, "share": torch.ones(self.sequences)}
        return pack([Encoding(n, row) for n, row in enumerate(rows)], targets)


def median(action: Callable[[], Any], size: Size) -> float:
    """Median milliseconds of an action, after three runs that do not count."""
    seconds = []
    wait = torch.cuda.synchronize if size.large else (lambda: None)
    for _ in range(size.repeats + 3):
        wait()
        begin = time.perf_counter()
        action()
        wait()
        seconds.append(time.perf_counter() - begin)
    return 1000 * statistics.median(seconds[3:])


def launches(action: Callable[[], Any]) -> int:
    """Kernels that an action launches."""
    with torch.profiler.profile() as profile:
        action()
        torch.cuda.synchronize()
    return sum(e.count for e in profile.key_averages() if "LaunchKernel" in e.key)


def varlen(size: Size) -> Iterator[Row]:
    """(i) Attention over many short sequences, forward and backward, against padding to 128."""
    lengths, heads, each = size.lengths(), size.heads, size.width // size.heads
    kind = torch.bfloat16 if size.large else torch.float32
    bounds = torch.tensor([0, *lengths], device=size.device).cumsum(0).int()
    layout = PackedLayout(bounds, tuple(lengths))
    rows = torch.randn(3, sum(lengths), heads, each, device=size.device, dtype=kind)
    padded = torch.randn(3, len(lengths), heads, 128, each, device=size.device, dtype=kind)

    def both(inner: Callable[..., torch.Tensor], inputs: torch.Tensor) -> Callable[[], Any]:
        inputs = inputs.requires_grad_()
        return lambda: torch.autograd.grad(inner(*inputs).sum(), inputs)

    kernel = both(lambda *qkv: attention._kernel(*qkv, layout, 0.1, None, None), rows)
    yield "attention fwd+bwd, kernel", f"{median(kernel, size):.3f} ms" if size.large else ABSENT
    groups = both(lambda *qkv: attention._grouped(*qkv, layout, 0.1, None, None), rows)
    yield "attention fwd+bwd, groups", f"{median(groups, size):.3f} ms"
    dense = both(lambda *qkv: F.scaled_dot_product_attention(*qkv, dropout_p=0.1), padded)
    yield "attention fwd+bwd, padded to 128", f"{median(dense, size):.3f} ms"


def gemms(size: Size) -> Iterator[Row]:
    """(ii) Matrix products at the sizes of small batches."""
    kind = torch.bfloat16 if size.large else torch.float32
    wide = 1 if size.large else 16
    shapes = ((768, 768), (768, 2304), (768, 3072), (3072, 768))
    for rows, (inner, outer) in itertools.product((1024, 2048, 4096), shapes):
        m, k, n = rows // wide, inner // wide, outer // wide
        one = torch.randn(m, k, device=size.device, dtype=kind)
        other = torch.randn(n, k, device=size.device, dtype=kind)

        def action(one: torch.Tensor = one, other: torch.Tensor = other) -> None:
            for _ in range(20):
                F.linear(one, other)

        seconds = median(action, size) / 1000 / 20
        yield f"product {m} x {k} x {n}", f"{2 * m * k * n / seconds / 1e12:.2f} TFLOP/s"


def model_of(size: Size) -> Any:
    return RobertaForSequenceClassification(size.config()).to(size.device)


def plain_step(size: Size) -> Iterator[Row]:
    """(iii) A step as training loops of transformers take it, padded to 128; AdamW alone."""
    model = model_of(size).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(5, size.vocabulary, (size.sequences, 128), device=size.device)
    mask, labels = torch.ones_like(ids), torch.zeros_like(ids[:, 0])

    def step() -> None:
        with torch.autocast(size.device.type, dtype=torch.bfloat16):
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    yield "transformers, padded: step", f"{median(step, size):.2f} ms"
    yield "transformers, padded: launches", str(launches(step)) if size.large else ABSENT
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    yield "AdamW alone", f"{median(optimizer.step, size):.3f} ms"


def task_of(config: TrainConfig) -> Any:
    """The least of a task: cross entropy of whole texts."""

    def loss(logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        share = batch.targets["share"]
        losses = F.cross_entropy(logits, batch.targets["label"], reduction="none")
        return (losses * share).sum(), share.sum()

    return SimpleNamespace(loss=loss, config=config)


def own_steps(size: Size) -> Iterator[Row]:
    """(iv) The trainer's step on packed batches of different lengths."""
    config = TrainConfig(batch_size=size.sequences, lr=1e-5)
    head = SequenceClassifier(model_of(size))
    accelerator = Accelerator(cpu=not size.large)
    optimizer = make_optimizer(head, config)
    precision = "bf16" if size.large else "fp32"
    step = Step(task_of(config), head, optimizer, config, accelerator, precision)
    batches = [size.batch() for _ in range(64)]
    stream = iter(batches * 1000)

    def take(batch: Batch) -> None:
        step([batch], weight=1.0, lr_factor=1.0)

    yield "packed: step", f"{median(lambda: take(next(stream)), size):.2f} ms"
    if not size.large:
        return
    yield "packed: launches", str(launches(lambda: take(batches[0])))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for batch in batches * 4:
        take(batch)
    handed = 1000 * (time.perf_counter() - begin) / 256
    torch.cuda.synchronize()
    took = 1000 * (time.perf_counter() - begin) / 256
    yield "packed: step in a row", f"{took:.2f} ms (host {handed:.2f} ms)"
    yield "memory reserved", f"{torch.cuda.memory_reserved(size.device) / 2**30:.2f} GiB"


def main() -> None:
    """Measure everything that the device has, one line at a time."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.probe", description=main.__doc__)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(f"| {name}, torch {torch.__version__} | |\n|---|---|")
    torch.manual_seed(0)
    for part in (varlen, gemms, plain_step, own_steps):
        try:
            for what, value in part(Size(device)):
                print(f"| {what} | {value} |", flush=True)
        except (RuntimeError, ValueError) as error:
            print(f"| {part.__name__} | FAILED: {' '.join(str(error).split()):.200} |", flush=True)


if __name__ == "__main__":
    main()
