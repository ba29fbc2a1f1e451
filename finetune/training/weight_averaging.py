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
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
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


class WeightAverage(ABC):
    """An average of the trained weights of a model.

    With sparse embeddings, all untrained rows of the table are multiplied by the same factors of
    weight decay. Their average is thus the rows themselves times one number, the rest scale.
    """

    def __init__(self, head: Any) -> None:
        trained = {name: each for name, each in head.named_parameters() if each.requires_grad}
        self.names, self.weights = list(trained), list(trained.values())
        tables = (each for each in head.modules() if isinstance(each, CompactEmbedding))
        self.table = next(tables, None)

    @property
    def factor(self) -> float:
        """The factor of weight decay of the untrained embeddings in the last step."""
        return 1.0 if self.table is None else self.table.last_factor

    @abstractmethod
    def after_step(self, step: int) -> None:
        """Take the weights after an optimizer step; ``step`` counts from 1."""

    @abstractmethod
    def at_evaluation(self) -> bool:
        """Take the weights at an evaluation; return whether the average differs from them."""

    @abstractmethod
    def mean(self) -> tuple[Sequence[Tensor], float]:
        """Return the averaged weights, on any device, and the rest scale.

        ``applied`` writes to the tensors and restores their content.
        """

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint, on the CPU."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the tensors of a checkpoint."""

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights within a ``with`` block."""
        averaged, scale = self.mean()
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
        for weight, other in zip(self.weights, averaged, strict=True):
            before = weight.clone()
            weight.copy_(other)
            other.copy_(before)


class ExponentialAverage(WeightAverage):
    """The exponential moving average over all steps, a_t = d_t a_(t-1) + (1 - d_t) w_t.

    d_t = min(decay, (1 + t) / (10 + t)), as ``num_updates`` of TensorFlow's
    ``tf.train.ExponentialMovingAverage``, so that the first weights have no part in the average of
    a short run. It takes the memory of one copy of the trained weights.
    """

    def __init__(self, head: Any, decay: float) -> None:
        super().__init__(head)
        self.decay, self.rest_scale = decay, 1.0
        self.averaged = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Move the average towards the weights."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.averaged, self.weights, 1 - decay)
        self.rest_scale = decay * self.rest_scale / self.factor + 1 - decay

    def at_evaluation(self) -> bool:
        """Return True."""
        return True

    def mean(self) -> tuple[Sequence[Tensor], float]:
        """Return the average."""
        return self.averaged, self.rest_scale

    def state(self) -> dict[str, Tensor]:
        """Return the average by the names of the weights."""
        named = zip(self.names, self.averaged, strict=True)
        found = {name: value.cpu().contiguous() for name, value in named}
        return found | {REST: torch.tensor([self.rest_scale], dtype=torch.float64)}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the average."""
        for name, value in zip(self.names, self.averaged, strict=True):
            value.copy_(state[name])
        self.rest_scale = float(state[REST])


class TailAverage(WeightAverage):
    """The mean of the weights at the last evaluations, the newest included.

    It keeps one copy of the trained weights for each of them, in the memory of the CPU.
    """

    def __init__(self, head: Any, number: int) -> None:
        super().__init__(head)
        self.kept: deque[list[Tensor]] = deque(maxlen=number)
        self.scales: deque[float] = deque(maxlen=number)

    def after_step(self, step: int) -> None:
        """Follow the weight decay of untrained embeddings."""
        for index in range(len(self.scales)):
            self.scales[index] /= self.factor

    def at_evaluation(self) -> bool:
        """Keep a copy of the weights; return whether there are others."""
        self.kept.append([weight.detach().cpu().clone() for weight in self.weights])
        self.scales.append(1.0)
        return len(self.kept) > 1

    def mean(self) -> tuple[Sequence[Tensor], float]:
        """Return the mean."""
        total = [value.clone() for value in self.kept[0]]
        for other in list(self.kept)[1:]:
            torch._foreach_add_(total, other)
        torch._foreach_div_(total, float(len(self.kept)))
        return total, sum(self.scales) / len(self.scales)

    def state(self) -> dict[str, Tensor]:
        """Return the weights of each evaluation, as ``INDEX.NAME``."""
        found = {
            f"{index}.{name}": value
            for index, values in enumerate(self.kept)
            for name, value in zip(self.names, values, strict=True)
        }
        return found | {REST: torch.tensor(list(self.scales), dtype=torch.float64)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the weights of each evaluation."""
        scales = state[REST].tolist()
        self.kept.clear()
        self.scales.clear()
        self.scales.extend(scales)
        for index in range(len(scales)):
            self.kept.append([state[f"{index}.{name}"].clone() for name in self.names])


def weight_average(head: Any, config: TrainConfig) -> WeightAverage | None:
    """Return the average that ``--average`` names; None for ``none``."""
    name, number = named_strength(config.average)
    if name == "ema":
        return ExponentialAverage(head, number or DECAY)
    return TailAverage(head, int(number or LAST)) if name == "tail" else None
