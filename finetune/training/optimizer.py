"""Which weights learn, how fast, and when: parameter groups, freezing, schedule, arithmetic."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from finetune.config.tasks import RESULT_FREE, TrainConfig
from finetune.preprocessing.batching import epoch_order
from finetune.types import UserError


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of a run, as a pure function of configuration and number of examples."""

    num_examples: int
    batch_size: int
    steps_per_epoch: int
    num_steps: int
    warmup_steps: int
    eval_every: int
    save_every: int
    seed: int

    @classmethod
    def from_config(cls, config: TrainConfig, num_examples: int) -> Schedule:
        """The plan for a number of training examples."""
        per_epoch = math.ceil(num_examples / config.batch_size)
        epochs = config.epochs or default_epochs(per_epoch)
        num_steps = config.steps or max(1, math.ceil(epochs * per_epoch))
        share = config.warmup < 1
        warmup = math.ceil(config.warmup * num_steps) if share else int(config.warmup)
        eval_every = config.eval_every or per_epoch
        return cls(
            num_examples,
            config.batch_size,
            per_epoch,
            num_steps,
            min(warmup, num_steps),
            eval_every,
            config.save_every or eval_every,
            config.seed,
        )

    def batch(self, step: int) -> list[int]:
        """The training examples of an optimizer step (counted from 0)."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = _order(self.num_examples, self.seed, epoch)
        return order[place * self.batch_size : (place + 1) * self.batch_size]

    def rate(self, step: int) -> float:
        """Factor on the learning rate in a step: linear warm-up from 0, then linear decay to 0."""
        if step < self.warmup_steps:
            return step / self.warmup_steps
        return (self.num_steps - step) / max(1, self.num_steps - self.warmup_steps)


def default_epochs(steps_per_epoch: int) -> int:
    """Epochs where none are given: 3, or as many up to 10 as make 500 steps.

    Small data sets need more steps than 3 epochs have: what looks like instability of fine-tuning
    is mostly training stopped too early (Mosbach et al., 2021; Zhang et al., 2021).
    """
    return min(10, max(3, math.ceil(500 / steps_per_epoch)))


_orders: dict[tuple[int, int, int], list[int]] = {}


def _order(num_examples: int, seed: int, epoch: int) -> list[int]:
    key = (num_examples, seed, epoch)
    if key not in _orders:
        _orders.clear()  # one epoch at a time
        _orders[key] = epoch_order(*key)
    return _orders[key]


def parameter_groups(head: Any, config: TrainConfig) -> list[dict[str, Any]]:
    """AdamW groups: by layer-wise rate and by whether weights decay.

    The rate of depth d (0 = embeddings, L + 1 = head) is lr * layer_decay^(L + 1 - d) in the
    encoder (Clark et al., 2020, ELECTRA, appendix B). In the head it is --head-lr, else lr times
    the head's ``head_lr_factor``; modules in its ``own_learning_rates`` have their own setting (and
    a rate where that is unset) and do not decay. Nor do biases, norms and other vectors.
    """
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    peak = config.lr or default_learning_rate(head.encoder.width)
    top = head.encoder.top_depth
    own: Mapping[str, tuple[str, float]] = head.own_learning_rates
    for name, weight in head.named_parameters():
        if not weight.requires_grad:
            continue
        depth = head.depth_of(name)
        rate = peak * config.layer_decay ** (top - depth)
        if depth == top:
            rate = config.head_lr or peak * head.head_lr_factor
        decay = config.weight_decay if weight.ndim > 1 else 0.0
        part = name.partition(".")[0]
        if part in own:
            setting, unset = own[part]
            rate, decay = getattr(config, setting, None) or unset, 0.0
        group = groups.setdefault((rate, decay), {"params": [], "lr": rate, "weight_decay": decay})
        group["params"].append(weight)
    if not groups:
        raise UserError(f"--freeze {config.freeze} leaves no weight to train.")
    return [{**group, "peak": group["lr"]} for group in groups.values()]


def default_learning_rate(width: int) -> float:
    """The learning rate where none is given: small encoders need, and bear, larger steps."""
    return 2e-5 if width >= 512 else 1e-4


def make_optimizer(head: Any, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter, 2019), fused into one kernel per group."""
    betas = (0.9, config.adam_beta2)
    groups = parameter_groups(head, config)
    return torch.optim.AdamW(groups, betas=betas, eps=config.adam_epsilon, fused=True)


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's learning rate to a factor of its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def result_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings that can change what a run computes."""
    values = dataclasses.asdict(config)
    return {name: value for name, value in values.items() if name not in RESULT_FREE}
