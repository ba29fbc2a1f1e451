"""One optimizer step: forward and backward over micro-batches, one reduction, one update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from finetune.config.tasks import TrainConfig
from finetune.inference.loop import full_precision
from finetune.models.master_weights import MasterWeights, casting
from finetune.runtime.device import batch_to_device, loss_scaler, to_device
from finetune.runtime.launch import gather_rows
from finetune.runtime.signals import InterruptHandler
from finetune.tasks.base import Task
from finetune.tasks.multitask import Multitask
from finetune.training.loss import RunLoss
from finetune.types import Batch


class Step:
    """Takes optimizer steps of one model.

    Gradients of the summed loss are added up over micro-batches and processes, and divided by the
    whole count once. With ``interrupt``, several processes exchange their requests to stop in each
    step. ``loss`` is by default that of the settings.
    """

    def __init__(
        self,
        task: Task | Multitask,
        model: Any,
        masters: MasterWeights,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        accelerator: Any,
        interrupt: InterruptHandler | None = None,
        *,
        loss: RunLoss | None = None,
    ) -> None:
        self.model, self.masters, self.optimizer = model, masters, optimizer
        self.config, self.accelerator, self.interrupt = config, accelerator, interrupt
        self.loss = loss or RunLoss(task, config.custom_loss)
        self.batch_loss = task.batch_loss
        self.device: torch.device = accelerator.device
        self.sum_dtype = torch.float32 if self.device.type == "mps" else torch.float64
        self.casting = casting(model, masters.precision, self.device)
        self.scaler = loss_scaler(masters.precision, self.device)
        model.train()  # a loaded model is in evaluation mode

    def __call__(
        self, batches: Sequence[Batch], *, weight: float, lr_factor: float
    ) -> tuple[Tensor, Tensor]:
        """Update the weights, without waiting for the device.

        ``batches`` are the micro-batches of this process. ``weight`` is 0 on a process without
        examples, whose batch has no effect. Returns the mean loss and the gradient norm before
        clipping, [] each, on the device. With fp16 the norm of a skipped step is 0, unless the
        scale fell below 1: the gradients then diverge.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * lr_factor
        if not self.model.training:  # `train()` visits all modules, which takes time
            self.model.train()

        # gradients of the summed loss add up over micro-batches
        if self.batch_loss is not None:
            totals = self._backward_batch(batches, weight)
        else:
            totals = torch.zeros(2, dtype=self.sum_dtype, device=self.device)
            moved, counts = self.loss.to_device(batches, self.device)
            if counts is not None:  # of several losses [K], each divided by its own count
                counts = to_device(counts.to(self.sum_dtype) * weight, self.device)
                if self.accelerator.num_processes > 1:
                    torch.distributed.all_reduce(counts)
                loss_weights = counts[0] / counts.clamp_min(1)
            for batch in moved:
                loss, count = self.loss(self._forward, batch)
                if counts is not None:
                    loss, count = (loss * loss_weights.to(loss.dtype)).sum(), count[0]
                totals += self._backward(loss, count, weight)

        # and over processes
        gradients, (loss, count) = self._sum_over_processes(totals, batches[0].task)
        self.scaler.unscale_(self.optimizer)
        count = count.clamp_min(1e-12)

        # the mean of the gradients, clipped as by torch's clip_grad_norm_
        divisor = count.to(gradients[0].dtype)
        norms = torch.stack(torch._foreach_norm(gradients))
        norm = torch.linalg.vector_norm(norms).to(divisor.dtype) / divisor
        scale = (self.config.clip or math.inf) / (norm + 1e-6)
        torch._foreach_mul_(gradients, scale.clamp_max(1.0) / divisor)

        # the update of the float32 weights
        self.scaler.step(self.optimizer)
        self.masters.end_step()
        self.scaler.update()
        if self.scaler.is_enabled():
            diverging = self.scaler.scale(torch.ones_like(norm)) < 1
            norm = torch.where(norm.isfinite() | diverging, norm, 0.0)
        return loss / count, norm

    def _forward(self, batch: Batch, layers: Sequence[int] = ()) -> tuple[Any, list[Tensor]]:
        if batch.seed is not None:
            on_cpu = batch.input_ids.device.type == "cpu"
            # torch.manual_seed formats a traceback for each kind of device that is not there
            seed = torch.default_generator.manual_seed if on_cpu else torch.manual_seed
            seed(batch.seed)
        with self.casting:
            output, states = self.model.with_states(batch, layers)
        return full_precision(output), states

    def _backward(self, loss: Tensor, count: Tensor, weight: float) -> Tensor:
        self.scaler.scale(loss * weight).backward()
        self.masters.add_gradients()
        sums = (loss.detach().to(self.sum_dtype), count.to(self.sum_dtype))
        return torch.stack(sums) * weight

    def _backward_batch(self, batches: Sequence[Batch], weight: float) -> Tensor:
        """Add the gradients of a loss that couples all sequences of the optimizer batch.

        Micro-batches run twice (GradCache; Gao et al., 2021): without a graph for the vectors, the
        loss and its gradient by each vector; then with the same dropout to propagate the gradient.
        """
        assert self.batch_loss is not None
        batches = [
            replace(batch_to_device(batch, self.device), seed=batch.seed or number)
            for number, batch in enumerate(batches, 1)
        ]
        keys = [key for batch in batches for key in zip(batch.example, batch.window, strict=True)]
        several, first = self.accelerator.num_processes > 1, 0
        with torch.set_grad_enabled(len(batches) == 1 and not several):
            vectors = torch.cat([self._forward(batch)[0].vectors for batch in batches])
        names = batches[0].targets
        targets = {name: torch.cat([batch.targets[name] for batch in batches]) for name in names}
        if several:
            size = len(keys) if weight else 0  # else another process has them
            counts = gather_object([size])
            first = sum(counts[: self.accelerator.process_index])
            keys = gather_object(keys[:size])
            vectors = gather_rows(vectors[:size], counts)
            targets = {name: gather_rows(rows[:size], counts) for name, rows in targets.items()}

        # the loss of the whole batch, in an order that does not depend on the processes
        order = sorted(range(len(keys)), key=keys.__getitem__)
        index = to_device(torch.tensor(order), self.device)
        targets = {name: rows.index_select(0, index) for name, rows in targets.items()}
        runs_once = vectors.requires_grad
        if not runs_once:
            vectors.requires_grad_()
        loss, count = self.batch_loss(
            self.model, vectors.index_select(0, index), [keys[row] for row in order], targets
        )
        totals = self._backward(loss, count, 1.0)
        if runs_once:
            return totals
        if not self.accelerator.is_main_process:  # which has the whole loss, as all others
            totals = torch.zeros_like(totals)
            for gradient in self.masters.gradients_of_step():
                gradient.zero_()

        # and its gradient by the vectors of each micro-batch
        assert vectors.grad is not None
        for batch in batches:
            output = self._forward(batch)[0].vectors
            gradient = vectors.grad[first : first + len(output)]
            first += len(output)
            if output.requires_grad:  # not if the encoder is frozen
                output.backward(gradient if weight else torch.zeros_like(output))
                self.masters.add_gradients()
        return totals

    def _sum_over_processes(self, totals: Tensor, task: str) -> tuple[list[Tensor], Tensor]:
        """Sum gradients, and loss and count [2]; the same message counts the requests to stop."""
        if self.accelerator.num_processes == 1:
            return self.masters.gradients_of_step(), totals
        gradients = self.masters.gradients_of_step(f"{task}/" if task else "")
        stop = self.interrupt is not None and self.interrupt.caught > 0
        sums = torch.cat([totals, totals.new_full((1,), float(stop))]).to(gradients[0].dtype)
        flat = _flatten_dense_tensors([*gradients, sums])
        torch.distributed.all_reduce(flat)
        *summed, sums = _unflatten_dense_tensors(flat, [*gradients, sums])
        torch._foreach_copy_(gradients, summed)
        if self.interrupt is not None:
            self.interrupt.receive(sums[-1])
        return gradients, sums[:-1].to(self.sum_dtype)
