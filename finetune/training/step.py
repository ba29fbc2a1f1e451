"""One optimizer step: forward and backward over micro-batches, one reduction, one update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from finetune.config.tasks import TrainConfig
from finetune.inference.loop import full_precision
from finetune.runtime.precision import autocast
from finetune.runtime.signals import InterruptHandler
from finetune.runtime.transfer import batch_to_device
from finetune.tasks import Task
from finetune.training.optimizer import set_learning_rates
from finetune.types import Batch


class Step:
    """Runs optimizer steps of one model.

    Gradients are those of the summed loss; they are added up over micro-batches and processes and
    divided by the whole count once, so how the batch is cut cannot matter.
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
        """``interrupt`` is told by each of several processes which of them was to stop."""
        self.task, self.head, self.optimizer, self.config = task, head, optimizer, config
        self.accelerator, self.device, self.precision = accelerator, accelerator.device, precision
        self.interrupt = interrupt
        # sums of losses are kept in double where the device has it
        self.sums = torch.float32 if self.device.type == "mps" else torch.float64
        head.train()  # a loaded model is not, inside

    def __call__(
        self, batches: Sequence[Batch], *, weight: float, rate: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Update the weights; returns the mean loss and the gradient norm before clipping, both
        on the device. This waits for nothing there, unless model or loss do.

        ``batches`` with their targets, on the CPU or the device, are this process's share of the
        optimizer batch, cut into forward passes. A process without a share gives any sequence with
        ``weight`` 0, so that it takes part without effect. ``rate`` is the factor on the learning
        rates.
        """
        set_learning_rates(self.optimizer, rate)
        for batch in batches:
            self.head.encoder.check(batch)  # on the CPU, where looking at ids costs no wait
        if not self.head.training:  # going through all modules takes half a millisecond
            self.head.train()
        totals = torch.zeros(2, dtype=self.sums, device=self.device)
        for batch in batches:
            batch = batch_to_device(batch, self.device)
            with autocast(self.precision, self.device):
                logits = self.head(batch)
            loss, count = self.task.loss(full_precision(logits), batch)
            (loss * weight).backward()
            parts = (loss.detach().to(self.sums), count.to(self.sums))
            totals += torch.stack(parts) * weight
        gradients, (loss, count) = self._summed(totals)
        count = count.clamp_min(1e-12)
        norm = self._clip(gradients, count)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss / count, norm

    def _summed(self, totals: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The gradients, and loss and count [2], summed over processes: in one message, which says
        too how many of them were asked to stop."""
        groups = self.optimizer.param_groups
        weights = [w for group in groups for w in group["params"] if w.grad is not None]
        gradients = [weight.grad for weight in weights]
        if self.accelerator.num_processes == 1:
            return gradients, totals
        asked = self.interrupt is not None and self.interrupt.caught > 0
        more = torch.cat([totals, totals.new_full((1,), float(asked))]).to(gradients[0].dtype)
        flat = _flatten_dense_tensors([*gradients, more])
        torch.distributed.all_reduce(flat)
        *whole, more = _unflatten_dense_tensors(flat, [*gradients, more])
        torch._foreach_copy_(gradients, whole)
        if self.interrupt is not None:
            self.interrupt.receive(more[2])
        return gradients, more[:2].to(self.sums)

    def _clip(self, gradients: list[torch.Tensor], count: torch.Tensor) -> torch.Tensor:
        """Divide gradients by the count and clip them; returns the norm before."""
        count = count.to(gradients[0].dtype)
        norm = torch.nn.utils.get_total_norm(gradients) / count
        limit = (self.config.clip or math.inf) / (norm + 1e-6)  # as torch's clip_grad_norm_
        torch._foreach_mul_(gradients, limit.clamp_max(1.0) / count)
        return norm
