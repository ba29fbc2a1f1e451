"""Check and measure attention, and measure training steps on a GPU; print rows of a table.

    python -m tests.gpu.probe                 # on the first CUDA device, at roberta-base's size
    python -m tests.gpu.probe --device cpu    # tiny, and only what exists there

Times are medians, each measured until the device has finished.
"""

from __future__ import annotations

import argparse
import contextlib
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
from finetune.models.graphs import FEWEST_STEPS, replayed_passes, use_of_graphs
from finetune.models.heads.pretrained import SequenceClassifier
from finetune.models.master_weights import MasterWeights
from finetune.models.packing import PackedCall, PackedLayout
from finetune.models.shapes import RowShape
from finetune.preprocessing.batching import pack
from finetune.training.optimizer import adamw, parameter_groups
from finetune.training.step import Step
from finetune.types import Batch, TokenSequence

ABSENT = "not on this device"
Row = tuple[str, str]


class Size:
    """The model and the batches: those of roberta-base on NLI data, or a tiny one."""

    def __init__(self, device: torch.device, sequences: int = 32) -> None:
        self.device, self.large = device, device.type == "cuda"
        self.width, self.layers, self.heads = (768, 12, 12) if self.large else (32, 2, 4)
        self.vocabulary, self.sequences = (50265 if self.large else 100), sequences
        self.repeats = 50 if self.large else 3

    def lengths(self) -> list[int]:
        """Lengths with a mean of about 39 tokens, at most 128."""
        return torch.randn(self.sequences).mul(0.45).add(3.55).exp().clamp(4, 128).int().tolist()

    def config(self) -> RobertaConfig:
        return RobertaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.width,
            max_position_embeddings=514,
            type_vocab_size=1,
            num_labels=3,
        )

    def batch(self) -> Batch:
        rows = [torch.randint(5, self.vocabulary, (length,)).tolist() for length in self.lengths()]
        label = torch.randint(3, (self.sequences,))
        targets = {"label": label, "share": torch.ones(self.sequences)}
        return pack([TokenSequence(n, row) for n, row in enumerate(rows)], targets)


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


WAITS = ("cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaStreamSynchronize")
"""Calls of the CUDA runtime during which the host waits for the device."""


def launches_and_waits(action: Callable[[], Any]) -> tuple[int, int]:
    """The kernels that an action launches, and the times that it waits for the device."""
    torch.cuda.synchronize()
    with torch.profiler.profile() as profile:
        action()
    calls = profile.key_averages()
    launched = sum(each.count for each in calls if "LaunchKernel" in each.key)
    # the profiler itself waits once, at its end
    waited = sum(each.count for each in calls if each.key in WAITS)
    return launched, max(0, waited - 1)


def parity(size: Size) -> Iterator[Row]:
    """The kernel of packed attention against a product over each sequence in float64.

    Values are unit vectors, so that the output of a head is the row of its weights. With dropout a
    weight is 0 or scaled, and values and gradients are those of the same mask.
    """
    lengths, heads, each, p = [64, 1, 7, 33, 64, 20], size.heads, 64, 0.1
    dtype = torch.bfloat16 if size.large else torch.float32
    bounds = torch.tensor([0, *lengths], device=size.device).cumsum(0).int()
    layout = PackedLayout(bounds, tuple(lengths))
    total = sum(lengths)
    query, key, other, above = (
        torch.randn(total, heads, each, device=size.device, dtype=dtype) for _ in range(4)
    )
    positions = torch.cat([torch.arange(length) for length in lengths]).to(size.device)
    units = torch.eye(each, device=size.device, dtype=dtype)[positions][:, None].expand_as(query)
    compute = attention._flash if size.large else attention._by_products

    def run(value: torch.Tensor, dropout: float, seed: int = 0) -> torch.Tensor:
        torch.manual_seed(seed)
        return compute(query, key, value.contiguous(), PackedCall(layout, dropout))

    expected = torch.zeros(total, heads, each, dtype=torch.float64, device=size.device)
    for start, length in zip(bounds.tolist(), lengths, strict=False):
        rows = slice(start, start + length)
        scores = torch.einsum("iad,jad->iaj", query[rows].double(), key[rows].double())
        expected[rows, :, :length] = (scores / each**0.5).softmax(-1)
    weights, dropped = run(units, 0.0).double(), run(units, p).double()
    yield "attention: largest error of a weight", f"{float((weights - expected).abs().max()):.1e}"
    seen = expected > 1e-3
    kept = seen & (dropped != 0)
    share = 1 - float(kept.sum() / seen.sum())
    yield "dropout 0.1: share of weights dropped", f"{share:.4f} of {int(seen.sum())}"
    error = (dropped * (1 - p) - expected)[kept].abs().max()
    yield "dropout: largest error of a kept weight", f"{float(error):.1e}"
    same, another = run(units, p).equal(run(units, p)), run(units, p).equal(run(units, p, 1))
    yield "dropout: equal seeds, other seeds", f"{same}, {another}"
    value = other.clone().requires_grad_()
    found = run(value, p)
    (gradient,) = torch.autograd.grad(found, value, above)
    errors = []
    for start, length in zip(bounds.tolist(), lengths, strict=False):
        rows, mask = slice(start, start + length), dropped[start : start + length, :, :length]
        forward = torch.einsum("iaj,jad->iad", mask, other[rows].double())
        backward = torch.einsum("iaj,iad->jad", mask, above[rows].double())
        errors += [(found[rows] - forward).abs().max(), (gradient[rows] - backward).abs().max()]
    worst = [f"{float(torch.stack(errors[part::2]).detach().max()):.1e}" for part in (0, 1)]
    yield "dropout: largest error of output, of gradient of values", ", ".join(worst)


def varlen(size: Size) -> Iterator[Row]:
    """Attention over many short sequences, forward and backward, against padding to 128."""
    lengths, heads, each = size.lengths(), size.heads, size.width // size.heads
    dtype = torch.bfloat16 if size.large else torch.float32
    bounds = torch.tensor([0, *lengths], device=size.device).cumsum(0).int()
    layout = PackedLayout(bounds, tuple(lengths))
    rows = torch.randn(3, sum(lengths), heads, each, device=size.device, dtype=dtype)
    padded = torch.randn(3, len(lengths), heads, 128, each, device=size.device, dtype=dtype)

    def both(inner: Callable[..., torch.Tensor], inputs: torch.Tensor) -> Callable[[], Any]:
        inputs = inputs.requires_grad_()
        return lambda: torch.autograd.grad(inner(*inputs).sum(), inputs)

    kernel = both(lambda *qkv: attention._flash(*qkv, PackedCall(layout, 0.1)), rows)
    yield "attention fwd+bwd, kernel", f"{median(kernel, size):.3f} ms" if size.large else ABSENT
    module, heads_first = torch.nn.Identity(), rows.detach().float().transpose(1, 2)[:, None]
    fp32 = both(
        lambda *qkv: attention.attend(module, *qkv, None, 0.1, layout=layout)[0], heads_first
    )
    yield "attention fwd+bwd in fp32", f"{median(fp32, size):.3f} ms"
    dense = both(lambda *qkv: F.scaled_dot_product_attention(*qkv, dropout_p=0.1), padded)
    yield "attention fwd+bwd, padded to 128", f"{median(dense, size):.3f} ms"


def model_of(size: Size) -> Any:
    return RobertaForSequenceClassification(size.config()).to(size.device)


def plain_step(size: Size) -> Iterator[Row]:
    """A step as training loops of transformers take it, padded to 128; AdamW alone."""
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
    if size.large:
        launched, waited = launches_and_waits(step)
        yield "transformers, padded: launches, waits", f"{launched}, {waited}"
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    yield "AdamW alone", f"{median(optimizer.step, size):.3f} ms"


def task_of(config: TrainConfig) -> Any:
    """The least of a task: cross entropy of whole texts."""

    def loss(logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        share = batch.targets["share"]
        losses = F.cross_entropy(logits, batch.targets["label"], reduction="none")
        return (losses * share).sum(), share.sum()

    return SimpleNamespace(loss=loss, config=config, batch_loss=None, loss_counts=None)


def own_steps(size: Size, replayed: bool = False) -> Iterator[Row]:
    """The trainer's step on packed batches of different lengths."""
    if size.large:  # the memory of other parts does not count
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    config = TrainConfig(batch_size=size.sequences, lr=1e-5)
    head = SequenceClassifier(model_of(size))
    accelerator = Accelerator(cpu=not size.large)
    precision = "bf16" if size.large else "fp32"
    masters = MasterWeights(head, parameter_groups(head, config), precision)
    optimizer = adamw(masters.groups, config)
    step = Step(task_of(config), head, masters, optimizer, config, accelerator)
    batches = [size.batch() for _ in range(64)]
    stream = iter(batches * 1000)
    name = f"{'replayed' if replayed else 'packed'}, batch {size.sequences}"

    def take(batch: Batch) -> None:
        step([batch], weight=1.0, lr_factor=1.0)

    sizes = [RowShape.of(batch) for batch in batches]
    shapes = replayed_passes(head.encoder, lambda: sizes, FEWEST_STEPS, masters)
    with shapes if replayed else contextlib.nullcontext():
        if replayed:
            for batch in batches * 2:
                take(batch)  # records all shapes
            yield f"{name}: CUDA graphs", use_of_graphs(head.encoder)
        yield f"{name}: step", f"{median(lambda: take(next(stream)), size):.2f} ms"
        if not size.large:
            return
        launched, waited = launches_and_waits(lambda: take(batches[0]))
        yield f"{name}: launches, waits", f"{launched}, {waited}"
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for batch in batches * 4:
            take(batch)
        handed = 1000 * (time.perf_counter() - begin) / 256
        torch.cuda.synchronize()
        took = 1000 * (time.perf_counter() - begin) / 256
        yield f"{name}: step in a row", f"{took:.2f} ms (host {handed:.2f} ms)"
        memory = torch.cuda.max_memory_reserved(size.device) / 2**30
        yield f"{name}: memory reserved", f"{memory:.2f} GiB"


def replayed_steps(size: Size) -> Iterator[Row]:
    """The same with the encoder's passes replayed from CUDA graphs."""
    return own_steps(size, replayed=True)


def main() -> None:
    """Measure everything that the device has, one line at a time."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.probe", description=main.__doc__)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(f"| {name}, torch {torch.__version__} | |\n| --- | --- |")
    torch.manual_seed(0)
    few, many = (32, 128) if device.type == "cuda" else (4, 8)
    parts = [(parity, few), (varlen, few), (plain_step, few)]
    parts += [(part, size) for size in (few, many) for part in (own_steps, replayed_steps)]
    for part, sequences in parts:
        try:
            for what, value in part(Size(device, sequences)):
                print(f"| {what} | {value} |", flush=True)
        except (RuntimeError, ValueError) as error:
            print(f"| {part.__name__} | FAILED: {' '.join(str(error).split()):.200} |", flush=True)


if __name__ == "__main__":
    main()
