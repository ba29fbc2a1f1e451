"""One optimizer step: forward and backward over micro-batches, one reduction, one update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from finetune.config.tasks import TrainConfig
from finetune.inference.loop import full_precision
from finetune.models.master_weights import MasterWeights, casting
from finetune.runtime.device import (
    batch_to_device,
    loss_scaler,
    to_device,
)
from finetune.runtime.launch import gather_rows
from finetune.runtime.signals import InterruptHandler
from finetune.tasks.base import Task
from finetune.tasks.multitask import Multitask
from finetune.training.loss import RunLoss
from finetune.training.optimizer import set_learning_rates
from finetune.types import Batch, Sequences


@dataclass(eq=False, kw_only=True)
class Step:
    """Takes optimizer steps of one model (``begin_step``).

    Gradients of the summed loss are added up over micro-batches and processes, and divided by the
    whole count once.
    """

    task: Task | Multitask
    head: Any
    optimizer: torch.optim.Optimizer
    config: TrainConfig
    accelerator: Any
    casting: Any
    """Autocast, for a model whose weights are float32."""
    interrupt: InterruptHandler | None
    """With it, several processes exchange their requests to stop in each step."""
    masters: MasterWeights
    loss: RunLoss
    scaler: Any

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        device: torch.device = self.accelerator.device
        return device

    @property
    def sum_dtype(self) -> torch.dtype:
        """The type of sums of losses: MPS has no float64."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    def __call__(
        self, batches: Sequence[Batch], *, weight: float, lr_factor: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Update the weights, without waiting for the device.

        ``batches`` are the micro-batches of this process. ``weight`` is 0 on a process without
        examples, whose batch has no effect. Returns the mean loss and the gradient norm before
        clipping, [] each, on the device. With fp16 the norm of a skipped step is 0, unless the
        scale fell below 1: the gradients then diverge.
        """
        set_learning_rates(self.optimizer, lr_factor)
        for batch in batches:
            self.head.check_batch(batch)  # on the CPU, where reading ids does not wait
        if not self.head.training:  # `train()` visits all modules, which takes time
            self.head.train()

        # gradients of the summed loss add up over micro-batches
        totals = torch.zeros(2, dtype=self.sum_dtype, device=self.device)
        if (batch_loss := self.task.batch_loss) is not None:
            totals = self._backward_batch(batches, weight, batch_loss)
        else:
            moved, counts = self.loss.begin(batches, self.device)
            loss_weights = None if counts is None else self._loss_weights(counts, weight)
            for batch in moved:
                loss, count = self.loss(self._forward, batch)
                if loss_weights is not None:
                    loss, count = (loss * loss_weights.to(loss.dtype)).sum(), count[0]
                totals += self._backward(loss, count, weight)

        # and over processes
        gradients, (loss, count) = self._sum_over_processes(totals)
        self.scaler.unscale_(self.optimizer)
        count = count.clamp_min(1e-12)

        # the mean of the gradients, clipped as by torch's clip_grad_norm_
        divisor = count.to(gradients[0].dtype)
        norms = torch.stack(torch._foreach_norm(gradients))
        norm = torch.linalg.vector_norm(norms).to(divisor.dtype) / divisor
        scale = (self.config.clip or math.inf) / (norm + 1e-6)
        torch._foreach_mul_(gradients, scale.clamp_max(1.0) / divisor)

        # the update of the float32 weights
        self.masters.prepare(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.masters.finish_step()
        if self.scaler.is_enabled():
            diverging = self.scaler.scale(torch.ones_like(norm)) < 1
            norm = torch.where(norm.isfinite() | diverging, norm, 0.0)
        return loss / count, norm

    def _forward(self, batch: Batch, layers: Sequence[int] = ()) -> tuple[Any, list[torch.Tensor]]:
        if batch.seed is not None:
            torch.manual_seed(batch.seed)
        states: list[torch.Tensor] = []
        with self.casting:
            if layers:
                output, states = self.head.with_states(batch, layers)
            else:
                output = self.head(batch)
        return full_precision(output), states

    def _loss_weights(self, counts: torch.Tensor, weight: float) -> torch.Tensor:
        """Return the weights of several losses [K] by their counts [K] in this process.

        With them, to divide the whole sum by the count of the first loss is to divide the sum of
        each by its own count over all micro-batches and processes.
        """
        total = to_device(counts.to(self.sum_dtype) * weight, self.device)
        if self.accelerator.num_processes > 1:
            torch.distributed.all_reduce(total)
        return total[0] / total.clamp_min(1)

    def _backward(self, loss: torch.Tensor, count: torch.Tensor, weight: float) -> torch.Tensor:
        self.scaler.scale(loss * weight).backward()
        self.masters.add_gradients()
        sums = (loss.detach().to(self.sum_dtype), count.to(self.sum_dtype))
        return torch.stack(sums) * weight

    def _backward_batch(
        self,
        batches: Sequence[Batch],
        weight: float,
        loss: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Add the gradients of a loss that couples all sequences of the optimizer batch.

        Micro-batches run twice (GradCache; Gao et al., 2021): first without a graph for the vectors
        of all sequences, which give the loss and its gradient by each vector; then with the same
        dropout to propagate this gradient. So one micro-batch bounds the memory, and the gradient
        equals the gradient of the whole batch. A single micro-batch runs once.
        """
        batches = [
            replace(batch_to_device(batch, self.device), seed=batch.seed or number)
            for number, batch in enumerate(batches, 1)
        ]
        several = self.accelerator.num_processes > 1
        parts = []
        with torch.set_grad_enabled(len(batches) == 1 and not several):
            for batch in batches:
                parts.append(self._forward(batch)[0].vectors)
        vectors, places, sequences = _collected(batches, parts, weight > 0, several)
        if vectors.requires_grad:
            return self._backward(*loss(self.head, vectors, sequences), 1.0)
        vectors.requires_grad_()
        totals = self._backward(*loss(self.head, vectors, sequences), 1.0)
        assert vectors.grad is not None
        if not self.accelerator.is_main_process:  # which has the whole loss, as all others
            totals = torch.zeros_like(totals)
            torch._foreach_zero_(self.masters.gradients_of_step())
        for batch, rows in zip(batches, places, strict=True):
            output = self._forward(batch)[0].vectors
            if output.requires_grad:  # not if the encoder is frozen
                own = to_device(torch.tensor(rows), self.device)
                own_gradient = vectors.grad.index_select(0, own) if weight else None
                output.backward(torch.zeros_like(output) if own_gradient is None else own_gradient)
                self.masters.add_gradients()
        return totals

    def _sum_over_processes(self, totals: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return gradients, and loss and count [2], summed over the processes.

        The same message counts the processes that received a request to stop.
        """
        gradients = self.masters.gradients_of_step()
        if self.accelerator.num_processes == 1:
            return gradients, totals
        stop = self.interrupt is not None and self.interrupt.caught > 0
        sums = torch.cat([totals, totals.new_full((1,), float(stop))])
        sums = sums.to(gradients[0].dtype)
        flat = _flatten_dense_tensors([*gradients, sums])
        torch.distributed.all_reduce(flat)
        *summed, sums = _unflatten_dense_tensors(flat, [*gradients, sums])
        torch._foreach_copy_(gradients, summed)
        if self.interrupt is not None:
            self.interrupt.receive(sums[-1])
        return gradients, sums[:-1].to(self.sum_dtype)


def _collected(
    batches: Sequence[Batch], parts: Sequence[torch.Tensor], own: bool, several: bool
) -> tuple[torch.Tensor, list[list[int]], Sequences]:
    """Return the vectors of all sequences of the optimizer batch, in a fixed order.

    Args:
        batches: The micro-batches of this process.
        parts: Their vectors.
        own: Whether they belong to this process, and not to another one that has them too.
        several: Whether there are other processes.

    Returns:
        The vectors [N, H], the rows of each micro-batch of this process, and the sequences.
    """
    keys = [key for batch in batches for key in zip(batch.example, batch.window, strict=True)]
    vectors = torch.cat(list(parts))
    targets = {
        name: torch.cat([batch.targets[name] for batch in batches]) for name in batches[0].targets
    }
    first = 0
    if several:
        size = len(keys) if own else 0
        counts = gather_object([size])
        first = sum(counts[: PartialState().process_index])
        keys = gather_object(keys[:size])
        vectors = gather_rows(vectors[:size], counts)
        targets = {name: gather_rows(rows[:size], counts) for name, rows in targets.items()}
    order = sorted(range(len(keys)), key=keys.__getitem__)
    index = to_device(torch.tensor(order), vectors.device)
    targets = {name: rows.index_select(0, index) for name, rows in targets.items()}
    examples, of_examples = zip(*(keys[row] for row in order), strict=True)
    rank = {row: position for position, row in enumerate(order)}
    places = []
    for part in parts if own else []:
        places.append([rank[first + row] for row in range(len(part))])
        first += len(part)
    sequences = Sequences(examples, of_examples, targets)
    return vectors.index_select(0, index), places or [[] for _ in parts], sequences


def begin_step(
    task: Task | Multitask,
    head: Any,
    masters: MasterWeights,
    optimizer: torch.optim.Optimizer,
    config: TrainConfig,
    accelerator: Any,
    interrupt: InterruptHandler | None = None,
    *,
    loss: RunLoss | None = None,
) -> Step:
    """Return the step of a model, which is then in training mode.

    ``masters`` are its weights, in the groups of the optimizer. ``loss`` is by default the loss of
    the settings.
    """
    found = Step(
        task=task,
        head=head,
        optimizer=optimizer,
        config=config,
        accelerator=accelerator,
        casting=casting(head, masters.precision, accelerator.device),
        interrupt=interrupt,
        masters=masters,
        loss=loss or RunLoss(task, config.custom_loss),
        scaler=loss_scaler(masters.precision, accelerator.device),
    )
    head.train()  # a loaded model is in evaluation mode
    return found
