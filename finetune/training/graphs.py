"""Whole optimizer steps as CUDA graphs: recorded once for each shape of batch, then replayed.

A step of a small batch is some thousand kernels that each take less time than their launch. A
replay launches all of them at once: forward, loss, backward, clipping and AdamW, with the learning
rates in a tensor that is written before it. The host waits for the device nowhere.

What a recording needs is proven before it is trusted. A shape's first steps run unrecorded, the
last of them with every wait for the device an error. Then one step is computed both ways from the
same weights and random state, and loss, gradient norm and update must agree. Whatever fails ends
the use of graphs, not the run, with weights as if nothing had been tried.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from finetune.runtime.transfer import staged
from finetune.training.optimizer import set_rate
from finetune.training.recording import Action, CudaRecorder, Recorder
from finetune.training.static_batch import Buffers, Shape, padded
from finetune.training.step import Step
from finetune.types import Batch, UserError

WARM_UP = 2
"""Steps of a shape before it is recorded: kernels are chosen and loaded in the first."""
MOST_GRAPHS = 24
"""Recorded shapes; steps of others run unrecorded."""
TOLERANCE = 0.02
"""How far a replay may be from the computation it records, relatively: the order of sums differs
from run to run where kernels add atomically, and bf16 has 8 bits."""


@dataclass
class _Recording:
    """A shape's buffers, how often it was used, and what replays its step once there is such."""

    buffers: Buffers
    uses: int = 0
    replay: Action | None = None


class GraphStep:
    """``Step`` with the same call and the same results, which records what it can.

    ``reason`` says why it no longer does, and is empty while it does. Steps of several
    micro-batches are never recorded.
    """

    def __init__(
        self,
        step: Step,
        recorder: Recorder,
        *,
        stepped: Callable[[torch.optim.Optimizer], object],
        say: Callable[[str], object],
        required: bool = False,
    ) -> None:
        """``stepped`` is called after each step in place of the optimizer's own hooks, which no
        replay calls; ``say`` gets a line for the user; ``required`` raises ValueError instead of
        going on without graphs."""
        self.step, self.recorder, self.optimizer = step, recorder, step.optimizer
        self.stepped, self.say, self.required = stepped, say, required
        self.device, self.reason = step.device, ""
        self.recordings: dict[Shape, _Recording] = {}
        self._said: set[str] = set()
        groups = self.optimizer.param_groups
        self.weights: list[Tensor] = [weight for group in groups for weight in group["params"]]
        # the fused kernel reads rates of a GPU as float32; on the CPU they are numbers as ever
        kind = torch.float32 if self.device.type == "cuda" else torch.float64
        self.rates = torch.zeros(len(groups), dtype=kind, device=self.device)
        self.loss = torch.zeros((), dtype=step.sums, device=self.device)
        self.norm = torch.zeros((), dtype=self.weights[0].dtype, device=self.device)

    def __call__(
        self, batches: Sequence[Batch], *, weight: float, rate: float
    ) -> tuple[Tensor, Tensor]:
        """As ``Step.__call__``; the batches are on the CPU."""
        if not self.reason and len(batches) > 1:
            self._say_once(
                "CUDA graphs: steps of more than --max-tokens "
                f"{self.step.config.tokens_on(self.device.type)} tokens run without"
            )
        if self.reason or len(batches) > 1 or weight != 1:
            return self.step(batches, weight=weight, rate=rate)
        recording = self._load(batches[0], rate)
        if recording.replay is not None:
            recording.replay()
        else:
            random = self.recorder.random_state()
            try:
                self._advance(recording)
            except (RuntimeError, ValueError) as error:
                self._give_up(error, random)
                return self.step(batches, weight=weight, rate=rate)
        self.stepped(self.optimizer)
        return self.loss.clone(), self.norm.clone()

    def _load(self, batch: Batch, rate: float) -> _Recording:
        """Put a batch and the learning rates where the recording of its shape reads them."""
        encoder, task = self.step.head.encoder, self.step.task
        encoder.check(batch)
        shape = Shape.of(batch, self.step.config.batch_size, encoder.max_length)
        batch = padded(
            batch, shape, pad_id=encoder.pad_id, padding=task.padding, of_words=task.words
        )
        if shape in self.recordings:
            self.recordings[shape].buffers.load(batch)
        else:
            self.recordings[shape] = _Recording(Buffers(batch, self.device))
        set_rate(self.optimizer, rate)
        rates = torch.tensor([g["lr"] for g in self.optimizer.param_groups], dtype=self.rates.dtype)
        self.rates.copy_(staged(rates, self.device), non_blocking=True)
        return self.recordings[shape]

    def _advance(self, recording: _Recording) -> None:
        """Take a step without a recording, or make one and take the step with it."""
        recording.uses += 1
        if recording.uses <= WARM_UP:
            strict = recording.uses == WARM_UP
            self.recorder.run(lambda: self._compute(recording), strict=strict)
        elif sum(known.replay is not None for known in self.recordings.values()) < MOST_GRAPHS:
            recording.replay = self._recorded(lambda: self._compute(recording))
        else:
            self._say_once(f"CUDA graphs: there are {MOST_GRAPHS}; steps of other shapes run as is")
            self.recorder.run(lambda: self._compute(recording))

    def _compute(self, recording: _Recording) -> None:
        """The step itself, from buffers to ``loss`` and ``norm``."""
        with torch.enable_grad(), self._rates_on_device():
            loss, norm = self.step.compute([recording.buffers.batch])
        self.loss.copy_(loss)
        self.norm.copy_(norm)

    @contextlib.contextmanager
    def _rates_on_device(self) -> Iterator[None]:
        """Within, the optimizer reads its rates from the device; else they are numbers, which logs
        and checkpoints take."""
        groups = self.optimizer.param_groups
        before = [(group["lr"], group["capturable"]) for group in groups]
        capturing = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        for group, rate in zip(groups, self.rates.unbind(), strict=True):
            group["lr"], group["capturable"] = rate, capturing
        try:
            yield
        finally:
            for group, (rate, capturable) in zip(groups, before, strict=True):
                group["lr"], group["capturable"] = rate, capturable

    @torch.no_grad()
    def _recorded(self, action: Action) -> Action:
        """Record a step, take it by a replay, and hold that against the computation itself."""
        state = self._state()
        kept, random = [value.clone() for value in state], self.recorder.random_state()

        def restore() -> None:
            for value, before in zip(state, kept, strict=True):
                value.copy_(before)
            self.recorder.set_random_state(random)

        try:
            self.recorder.run(action)
            expected = self._measures(kept)
            restore()
            replay = self.recorder.record(action)
            replay()
            found = self._measures(kept)
            if not all(map(_close, found, expected)):
                raise RuntimeError(
                    "a replay gave loss, gradient norm and update "
                    f"{_shown(found)}, and the computation that it records {_shown(expected)}"
                )
        except (RuntimeError, ValueError):
            restore()
            raise
        return replay

    def _state(self) -> list[Tensor]:
        """All that a step changes: the weights, and what the optimizer keeps for them."""
        kept = (self.optimizer.state.get(weight, {}) for weight in self.weights)
        return [weight.detach() for weight in self.weights] + [
            value for values in kept for value in values.values()
        ]

    def _measures(self, before: list[Tensor]) -> list[float]:
        """Loss, gradient norm, and the norm of the difference that the step made to weights."""
        moves = [torch.dist(w, old) for w, old in zip(self.weights, before, strict=False)]
        update = torch.stack(moves).norm()
        return [float(value) for value in (self.loss, self.norm, update)]

    def _give_up(self, error: Exception, random: Tensor) -> None:
        """Use no graphs any more, and leave everything as it was before the failed step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.recorder.set_random_state(random)
        self.recordings.clear()
        first: BaseException = error
        while first.__context__ is not None:  # ending a broken capture is an error of its own
            first = first.__context__
        self.reason = f"{type(first).__name__}: {' '.join(str(first).split()):.300}"
        if self.required:
            raise UserError(
                f"--cuda-graphs on: steps cannot be captured ({self.reason}): write auto or off."
            ) from error
        self._say_once(f"CUDA graphs: steps run without from here on ({self.reason})")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.say(line)


def _close(one: float, other: float) -> bool:
    both_nan = math.isnan(one) and math.isnan(other)
    return both_nan or one == other or math.isclose(one, other, rel_tol=TOLERANCE)


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def choose_step(
    step: Step,
    setting: str,
    stepped: Callable[[torch.optim.Optimizer], object],
    say: Callable[[str], object],
) -> Any:
    """The step that the setting (``off``, ``auto`` or ``on``) asks for; ``say`` gets the reason
    why ``auto`` is the plain one.

    Raises ValueError where the setting is on and steps cannot be captured.
    """
    if setting == "off":
        return step
    reason = why_no_graph(step)
    if not reason:
        recorder = CudaRecorder(step.device)
        return GraphStep(step, recorder, stepped=stepped, say=say, required=setting == "on")
    if setting == "on":
        raise UserError(f"--cuda-graphs on: {reason}: write auto or off.")
    say(f"CUDA graphs: steps run without ({reason})")
    return step


def why_no_graph(step: Step) -> str:
    """Why the steps of a run cannot be captured; empty where nothing speaks against it."""
    encoder = step.head.encoder
    if step.task.why_no_graph:
        return step.task.why_no_graph
    if not encoder.packed:
        return f"the model is padded: {encoder.reason}"
    if encoder.family.packs != "interface":
        return f"{encoder.model.config.model_type} models attend in groups of like lengths"
    if step.accelerator.num_processes > 1:
        return "several processes share each batch"
    if step.device.type != "cuda":
        return f"the device is {step.device.type}, not cuda"
    if step.precision != "bf16":
        return "the variable-length attention kernel computes in bf16, and the precision is fp32"
    if torch.cuda.get_device_capability(step.device) < (8, 0):
        return "the variable-length attention kernel needs compute capability 8.0"
    return ""
