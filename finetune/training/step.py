"""One optimizer step: forward and backward over micro-batches, one reduction, one update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from finetune.config.tasks import TrainConfig
from finetune.inference.loop import full_precision
from finetune.runtime.precision import autocast, loss_scaler
from finetune.runtime.signals import InterruptHandler
from finetune.runtime.transfer import batch_to_device
from finetune.tasks.base import Task
from finetune.training.optimizer import set_learning_rates
from finetune.types import Batch


class Step:
    """Takes optimizer steps of one model.

    Gradients of the summed loss are added up over micro-batches and processes, and divided by the
    whole count once.
    """

    def __init__(
        self,
        task: Task,
        head: Any,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        accelerator: Any,
        precision: str,
        interrupt: InterruptHandler | None = None,
    ) -> None:
        """With ``interrupt``, several processes exchange their requests to stop in each step."""
        self.task, self.head, self.optimizer, self.config = task, head, optimizer, config
        self.accelerator, self.device, self.precision = accelerator, accelerator.device, precision
        self.interrupt = interrupt
        self.scaler = loss_scaler(precision, self.device)
        # MPS has no float64
        self.sum_dtype = torch.float32 if self.device.type == "mps" else torch.float64
        head.train()  # a loaded model is in evaluation mode

    def __call__(
        self, batches: Sequence[Batch], *, weight: float, lr_factor: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Update the weights, without waiting for the device.

        ``batches`` are the micro-batches of this process. ``weight`` is 0 on a process without
        examples, whose batch has no effect. Returns the mean loss and the gradient norm before
        clipping, [] each, on the device. With fp16 the norm of a skipped step
        is 0, unless the scale fell below 1: the gradients then diverge.
        """
        set_learning_rates(self.optimizer, lr_factor)
        for batch in batches:
            self.head.encoder.check(batch)  # on the CPU, where reading ids does not wait
        if not self.head.training:  # `train()` visits all modules, which takes time
            self.head.train()
        totals = torch.zeros(2, dtype=self.sum_dtype, device=self.device)
        for batch in batches:
            batch = batch_to_device(batch, self.device)
            with autocast(self.precision, self.device):
                logits = self.head(batch)
            loss, count = self.task.loss(full_precision(logits), batch)
            self.scaler.scale(loss * weight).backward()
            sums = (loss.detach().to(self.sum_dtype), count.to(self.sum_dtype))
            totals += torch.stack(sums) * weight
        gradients, (loss, count) = self._sum_over_processes(totals)
        self.scaler.unscale_(self.optimizer)
        count = count.clamp_min(1e-12)
        # the mean of the gradients, clipped as by torch's clip_grad_norm_
        divisor = count.to(gradients[0].dtype)
        norm = torch.nn.utils.get_total_norm(gradients) / divisor
        scale = (self.config.clip or math.inf) / (norm + 1e-6)
        torch._foreach_mul_(gradients, scale.clamp_max(1.0) / divisor)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scaler.is_enabled():
            diverging = self.scaler.scale(torch.ones_like(norm)) < 1
            norm = torch.where(norm.isfinite() | diverging, norm, 0.0)
        return loss / count, norm

    def _sum_over_processes(self, totals: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return gradients, and loss and count [2], summed over the processes.

        The same message counts the processes that received a request to stop.
        """
        groups = self.optimizer.param_groups
        weights = [w for group in groups for w in group["params"] if w.grad is not None]
        gradients = [weight.grad for weight in weights]
        if self.accelerator.num_processes == 1:
            return gradients, totals
        stop = self.interrupt is not None and self.interrupt.caught > 0
        numbers = torch.cat([totals, totals.new_full((1,), float(stop))]).to(gradients[0].dtype)
        flat = _flatten_dense_tensors([*gradients, numbers])
        torch.distributed.all_reduce(flat)
        *summed, numbers = _unflatten_dense_tensors(flat, [*gradients, numbers])
        torch._foreach_copy_(gradients, summed)
        if self.interrupt is not None:
            self.interrupt.receive(numbers[2])
        return gradients, numbers[:2].to(self.sum_dtype)
