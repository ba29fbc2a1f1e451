"""Averages of the weights of a run, which validation compares with the weights themselves.

Exponential moving average: Polyak & Juditsky 1992, "Acceleration of Stochastic Approximation by
Averaging"; Tarvainen & Valpola 2017, "Mean Teachers Are Better Role Models". Mean of the last
evaluations: the averaged checkpoints of Vaswani et al. 2017, "Attention Is All You Need", section
6.1; Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better Generalization".

An average does not change the training. It covers the trained weights only; of LoRA, these are the
two factors of each product. All processes compute the same average of the same weights.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from finetune.config.tasks import TrainConfig, named_strength
from finetune.training.sparse_embedding import CompactEmbedding

DECAY = 0.999
"""Default decay of the exponential moving average."""
LAST = 3
"""Default number of evaluations whose weights are averaged."""
REST = "rest_scale"
"""Key of the scales of untrained embeddings in ``state``; no weight has this name."""


@dataclass
class WeightAverage:
    """An average of the trained weights of a model.

    With a ``decay`` it is the exponential moving average over all steps,
    a_t = d_t a_(t-1) + (1 - d_t) w_t, on the device of the weights. d_t is
    min(decay, (1 + t) / (10 + t)), as ``num_updates`` of TensorFlow's
    ``tf.train.ExponentialMovingAverage``, so that the first weights have no part in the average of
    a short run. Without, it is the mean of the weights at the last evaluations, the newest
    included, whose copies are in the memory of the CPU.

    With sparse embeddings, all untrained rows of the table are multiplied by the same factors of
    weight decay. Their average is thus the rows themselves times one number, the rest scale.
    """

    weights: Mapping[str, torch.nn.Parameter]
    """The trained weights by name."""
    table: CompactEmbedding | None
    decay: float | None
    kept: deque[list[Tensor]] = field(default_factory=deque)
    """The average, or the weights of each evaluation."""
    scales: deque[float] = field(default_factory=deque)
    """The rest scale of each of them."""

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Take the weights after an optimizer step; ``step`` counts from 1."""
        factor = 1.0 if self.table is None else self.table.last_factor
        if self.decay is not None:
            decay = min(self.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(self.kept[0], list(self.weights.values()), 1 - decay)
            self.scales[0] = decay * self.scales[0] / factor + 1 - decay
            return
        for index in range(len(self.scales)):
            self.scales[index] /= factor

    def at_evaluation(self) -> bool:
        """Take the weights at an evaluation; return whether the average differs from them."""
        if self.decay is not None:
            return True
        self.kept.append([weight.detach().cpu().clone() for weight in self.weights.values()])
        self.scales.append(1.0)
        return len(self.kept) > 1

    def _mean(self) -> tuple[list[Tensor], float]:
        """Return the averaged weights, whose content ``applied`` restores, and the rest scale."""
        if self.decay is not None:
            return self.kept[0], self.scales[0]
        total = [value.clone() for value in self.kept[0]]
        for other in list(self.kept)[1:]:
            torch._foreach_add_(total, other)
        torch._foreach_div_(total, float(len(self.kept)))
        return total, sum(self.scales) / len(self.scales)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint, on the CPU: of evaluations as ``INDEX.NAME``."""
        found = {
            self._key(index, name): value.cpu().contiguous()
            for index, values in enumerate(self.kept)
            for name, value in zip(self.weights, values, strict=True)
        }
        return found | {REST: torch.tensor(list(self.scales), dtype=torch.float64)}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the tensors of a checkpoint."""
        scales = state[REST].tolist()
        self.scales.clear()
        self.scales.extend(scales)
        if self.decay is None:
            self.kept.extend([torch.empty(0)] * len(self.weights) for _ in scales)
        for index, values in enumerate(self.kept):
            for number, name in enumerate(self.weights):
                saved = state[self._key(index, name)]
                values[number] = saved.to(values[number].device, copy=True)

    def _key(self, index: int, name: str) -> str:
        return name if self.decay is not None else f"{index}.{name}"

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights within a ``with`` block."""
        averaged, scale = self._mean()
        self._exchange(averaged)
        if self.table is not None:
            self.table.rest_scale = scale
        try:
            yield
        finally:
            if self.table is not None:
                self.table.rest_scale = 1.0
            self._exchange(averaged)

    @torch.no_grad()
    def _exchange(self, averaged: Sequence[Tensor]) -> None:
        """Exchange weights and average in place, one tensor after the other, to save memory."""
        for weight, other in zip(self.weights.values(), averaged, strict=True):
            before = weight.clone()
            weight.copy_(other)
            other.copy_(before)


def weight_average(head: Any, config: TrainConfig) -> WeightAverage | None:
    """Return the average that ``--average`` names; None for ``none``."""
    kind, number = named_strength(config.average)
    if kind == "none":
        return None
    weights = {name: each for name, each in head.named_parameters() if each.requires_grad}
    tables = (each for each in head.modules() if isinstance(each, CompactEmbedding))
    average = WeightAverage(
        weights, next(tables, None), (number or DECAY) if kind == "ema" else None
    )
    if kind == "ema":
        average.kept.append([weight.detach().clone() for weight in weights.values()])
        average.scales.append(1.0)
    else:
        last = int(number or LAST)
        average.kept, average.scales = deque(maxlen=last), deque(maxlen=last)
    return average
