"""Parameter groups, AdamW, and the schedule of steps and learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from finetune.config.tasks import TrainConfig
from finetune.preprocessing.batching import epoch_order
from finetune.types import UserError


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of a run: their batches, learning rates, evaluations and checkpoints."""

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
        """Compute the schedule of a configuration for a number of training examples."""
        per_epoch = math.ceil(num_examples / config.batch_size)
        default = config.schedule
        # Small data sets need more steps: most of what looks like instability of fine-tuning comes
        # from stopping too early (Mosbach et al., 2021; Zhang et al., 2021).
        for_500_steps = max(default.least_epochs, math.ceil(500 / per_epoch))
        epochs = config.epochs or min(default.most_epochs, for_500_steps)
        asked = config.steps or max(1, math.ceil(epochs * per_epoch))
        num_steps = default.num_steps or asked
        warmup = int(config.warmup)
        if config.warmup < 1:  # a share; a single step has no warm-up
            warmup = min(math.ceil(config.warmup * num_steps), num_steps - 1)
        eval_every = config.eval_every or (num_steps if default.once else per_epoch)
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

    def order(self, step: int, copies: torch.Tensor | None = None) -> torch.Tensor:
        """Draw the order of the examples [E] in the epoch of a step (``epoch_order``)."""
        return epoch_order(self.num_examples, self.seed, step // self.steps_per_epoch, copies)

    def batch(self, step: int, order: torch.Tensor) -> list[int]:
        """The indices of the training examples of a step (from 0), in an ``order``."""
        index = step % self.steps_per_epoch
        batch: list[int] = order[index * self.batch_size : (index + 1) * self.batch_size].tolist()
        return batch

    def lr_factor(self, step: int) -> float:
        """Compute the factor on the learning rates: linear warm-up from 0, then linear decay to 0.

        >>> schedule = Schedule.from_config(TrainConfig(steps=10, warmup=2, batch_size=1), 100)
        >>> [schedule.lr_factor(step) for step in (0, 1, 2, 6)]
        [0.0, 0.5, 1.0, 0.5]
        """
        if step < self.warmup_steps:
            return step / self.warmup_steps
        return (self.num_steps - step) / max(1, self.num_steps - self.warmup_steps)


def parameter_groups(model: Any, config: TrainConfig) -> list[dict[str, Any]]:
    """Divide the weights into the groups of AdamW, by learning rate and weight decay.

    The learning rate of depth d (0 = embeddings, L + 1 = head) is lr * layer_decay^(L + 1 - d) in
    the encoder (Clark et al., 2020, ELECTRA, appendix B). In the head it is head_lr, or lr times
    the model's ``head_lr_factor``, as far as --tuning has not raised lr already. Modules in the
    model's ``separate_learning_rates`` have their own. These modules, biases, norms and other
    vectors have no weight decay.
    """
    groups: dict[tuple[float, float, bool], dict[str, Any]] = {}
    factor = max(model.lr_factor, TUNING_FACTORS[config.tuning])
    peak = config.lr or default_learning_rate(model.encoder.width) * factor
    top = model.encoder.top_depth
    module_rates: Mapping[str, float] = model.separate_learning_rates
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        depth = model.depth_of(name)
        lr = peak * config.layer_decay ** (top - depth)
        if depth == top:
            head_factor = max(model.head_lr_factor, 10.0 if ".bilstm." in name else 1.0)
            lr = config.head_lr or peak * max(1.0, head_factor / TUNING_FACTORS[config.tuning])
        decay = config.weight_decay if weight.ndim > 1 else 0.0
        module = name.partition(".")[0]
        is_separate = module in module_rates
        if is_separate:
            lr, decay = module_rates[module], 0.0
        settings = {"params": [], "names": [], "lr": lr, "weight_decay": decay}
        group = groups.setdefault((lr, decay, is_separate), settings)
        group["params"].append(weight)
        group["names"].append(name)
        group["encoder"] = None if is_separate else group.get("encoder", False) or depth < top
    if not groups:
        raise UserError(
            f"--tuning {config.tuning} with freeze {config.freeze} leaves no weight to train: "
            "choose another --tuning, or freeze less."
        )
    return [{**group, "peak": group["lr"]} for group in groups.values()]


TUNING_FACTORS = {"full": 1.0, "lora": 20.0, "bitfit": 50.0, "head": 100.0, "mask": 5.0}
"""Default learning rate of each way of tuning, relative to full tuning."""


def default_learning_rate(width: int) -> float:
    """The default learning rate: small encoders need, and tolerate, larger steps."""
    return 2e-5 if width >= 512 else 1e-4


def each_weight_once(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Keep weights that models share in the first parameter group alone."""
    kept: list[dict[str, Any]] = []
    seen: set[int] = set()
    for group in groups:
        named = zip(group["params"], group["names"], strict=True)
        if new := [(weight, name) for weight, name in named if id(weight) not in seen]:
            weights, names = zip(*new, strict=True)
            seen |= {id(weight) for weight in weights}
            kept.append({**group, "params": list(weights), "names": list(names)})
    return kept


def adamw(groups: list[dict[str, Any]], config: TrainConfig) -> torch.optim.Optimizer:
    """Make AdamW (Loshchilov & Hutter, 2019), fused into one kernel for each parameter group."""
    betas = (0.9, config.adam_beta2)
    return torch.optim.AdamW(groups, betas=betas, eps=config.adam_epsilon, fused=True)


def logged_learning_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The learning rates in the log: `lr` of the top layer, and `head_lr` if it differs.

    Those of modules with a separate learning rate are left out.
    """
    encoder, head = (
        [group["lr"] for group in optimizer.param_groups if group["encoder"] == part]
        for part in (True, False)
    )
    rate = {"lr": max(encoder or head)}
    return {**rate, "head_lr": max(head)} if encoder and head else rate
