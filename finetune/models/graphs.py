"""The encoder's forward and backward passes, recorded once for each shape of rows and replayed.

To start the kernels of a step takes a host several times as long as a GPU takes to run them. A CUDA
graph starts them all at once. Head, loss, clipping and optimizer run plainly.

Recorded passes read and write tensors that stay in place. The backward pass is recorded twice: one
recording overwrites the gradients of a step, the other adds to them. Recorded passes share one pool
of memory, so that only one of them may wait for its backward pass; meanwhile others run plainly.

A recording is compared with the plain passes that it replaces before it is used. If they differ, or
an error occurs, everything runs plainly from then on, in the same shapes and so with the same
random numbers.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from finetune.models.recorders import Action, Recorder
from finetune.models.shapes import RowShapes, Shape, with_fillers
from finetune.types import Batch

if TYPE_CHECKING:
    from finetune.models.encoder import Encoder

SIGHTINGS = 3
"""A shape is recorded when it occurs for this time: a recording takes as long as eight passes."""


class GradientBuffers(Protocol):
    """Buffers of the gradients of weights, which stay in place."""

    def of(self, weights: Sequence[nn.Parameter]) -> list[Tensor]:
        """Return the buffer of each weight."""

    def are_filled(self, weights: Sequence[nn.Parameter]) -> bool:
        """Return whether the buffers hold gradients of this step, to which others are added."""

    def fill(self, weights: Sequence[nn.Parameter]) -> None:
        """Let the contents of the buffers be gradients of this step."""


class OwnGradients:
    """``GradientBuffers`` that become the weights' own gradients, ``weight.grad``."""

    def __init__(self) -> None:
        self._buffers: dict[int, Tensor] = {}

    def of(self, weights: Sequence[nn.Parameter]) -> list[Tensor]:
        """Return the buffer of each weight, made on first use."""
        for weight in weights:
            if id(weight) not in self._buffers:
                self._buffers[id(weight)] = torch.empty_like(weight, requires_grad=False)
        return [self._buffers[id(weight)] for weight in weights]

    def are_filled(self, weights: Sequence[nn.Parameter]) -> bool:
        """Return whether a buffer is the gradient of its weight."""
        return any(weight.grad is self._buffers.get(id(weight), weight) for weight in weights)

    def fill(self, weights: Sequence[nn.Parameter]) -> None:
        """Make the buffers the gradients, with what other passes left at the weights."""
        for weight, buffer in zip(weights, self.of(weights), strict=True):
            if weight.grad is not None and weight.grad is not buffer:
                buffer.add_(weight.grad)
            weight.grad = buffer


class _Key(NamedTuple):
    shape: Shape
    layers: tuple[int, ...]
    has_gradients: bool
    training: bool
    autocast: tuple[bool, torch.dtype]


@dataclass(eq=False)
class _Recording:
    row: Batch
    states: list[Tensor]
    above: list[Tensor]  # the gradients of the states
    forward: Action
    backward: dict[bool, Action]  # by whether gradients are added
    weights: list[nn.Parameter]  # those with a gradient
    addresses: tuple[int, ...]


class _Waiting:
    """Lives as long as the autograd graph of a replayed pass, which waits for its backward pass."""


class EncoderGraphs:
    """Runs the passes of an encoder on packed rows in fixed shapes, and replays recorded ones.

    Args:
        encoder: The encoder, on its device. No weight is added or exchanged from now on.
        shapes: The shapes of rows; None leaves all passes alone.
        recorder: Records passes; None runs all plainly.
        gradients: Where recorded backward passes leave gradients.
        report: Gets one sentence if recordings cannot be used.

    Attributes:
        reason: Why passes run plainly; empty if they are replayed.
    """

    def __init__(
        self,
        encoder: Encoder,
        shapes: RowShapes | None = None,
        recorder: Recorder | None = None,
        gradients: GradientBuffers | None = None,
        report: Callable[[str], object] = print,
    ) -> None:
        self.encoder, self.shapes, self.recorder = encoder, shapes, recorder
        self.gradients, self.report, self.reason = gradients or OwnGradients(), report, ""
        self.trained = encoder.trained_parameters()
        self.read = [*encoder.model.parameters(), *encoder.model.buffers()]
        self.anchor = torch.zeros((), device=self.read[0].device, requires_grad=True)
        self.seen: Counter[_Key] = Counter()
        self.recordings: dict[_Key, _Recording] = {}
        self.waiting: weakref.ref[_Waiting] | None = None
        self.fillers_are_right: bool | None = None  # None: not compared yet

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of an encoder has none

    def __call__(self, batch: Batch, layers: Sequence[int] = ()) -> list[Tensor] | None:
        """Return the last hidden states [T, H] of a batch, and those of layers.

        None if no shape holds the batch.
        """
        shape = None if self.shapes is None else self.shapes.shape_of(batch)
        if shape is None or self.fillers_are_right is False:
            return None
        if self.encoder.num_segments > 1 and batch.segment_ids is None:
            batch = replace(batch, segment_ids=torch.zeros_like(batch.input_ids))
        row, num_tokens = with_fillers(batch, shape), len(batch.input_ids)
        recording = self._recording(shape, tuple(layers), batch, row)
        if recording is None and self.fillers_are_right is False:
            return None
        if recording is None:
            states = self.encoder.packed_states(row, layers, shape=shape)
            return [state[:num_tokens] for state in states]
        for tensor, new in zip(_tensors(recording.row), _tensors(row), strict=True):
            tensor.copy_(new)
        if recording.backward:
            return list(_Replay.apply(self.anchor, self, recording, num_tokens))  # type: ignore[no-untyped-call]
        recording.forward()
        return [state[:num_tokens].clone() for state in recording.states]

    @contextlib.contextmanager
    def shaped(self, shapes: RowShapes | None) -> Iterator[None]:
        """Context in which rows have other shapes."""
        before, self.shapes = self.shapes, shapes
        try:
            yield
        finally:
            self.shapes = before

    def _recording(
        self, shape: Shape, layers: tuple[int, ...], batch: Batch, row: Batch
    ) -> _Recording | None:
        recorder, device = self.recorder, self.anchor.device.type
        if recorder is None or (self.waiting is not None and self.waiting() is not None):
            return None
        key = _Key(
            shape,
            layers,
            torch.is_grad_enabled() and bool(self.trained),
            self.encoder.model.training,
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)),
        )
        recording = self.recordings.get(key)
        if recording is not None and recording.addresses == self._addresses():
            return recording
        self.seen[key] += 1
        if self.seen[key] < SIGHTINGS:
            return None
        state = recorder.random_state()
        try:
            recording = self.recordings[key] = self._record(recorder, key, batch, row)
        except Exception as error:  # out of memory is one of them
            self.recorder = recording = None
            self.recordings.clear()
            self.reason = f"{' '.join(str(error).split()):.200}"
            self.report(f"CUDA graphs are not used: {self.reason}")
        finally:
            recorder.set_random_state(state)
        return recording

    def _addresses(self) -> tuple[int, ...]:
        return tuple([tensor.data_ptr() for tensor in self.read])

    def _record(self, recorder: Recorder, key: _Key, batch: Batch, row: Batch) -> _Recording:
        passes = _Passes(self.encoder, key, self.trained)
        row = replace(row.each(torch.clone), lengths=(), targets={}, host=None)
        random_state = recorder.random_state()

        def plain() -> tuple[list[Tensor], list[Tensor]]:
            recorder.set_random_state(random_state)
            return passes.forward(row), passes.backward()

        first, second = recorder.warm_up(plain), recorder.warm_up(plain)
        if self.fillers_are_right is None:
            self.fillers_are_right = passes.are_equal_without_fillers(batch, row)
        if not self.fillers_are_right:
            raise RuntimeError("filling sequences change the states of others")
        weights = [self.trained[name] for name in passes.used]
        buffers = self.gradients.of(weights)
        before = (
            [buffer.clone() for buffer in buffers] if self.gradients.are_filled(weights) else []
        )

        def move(add: bool) -> list[Tensor]:
            (torch._foreach_add_ if add else torch._foreach_copy_)(buffers, passes.backward())
            return []

        forward, states = recorder.record(lambda: passes.forward(row))
        kinds = (False, True) if key.has_gradients else ()
        backward = {add: recorder.record(partial(move, add))[0] for add in kinds}
        passes.live.clear()  # their memory is free for the next recording
        recorder.set_random_state(random_state)
        forward()
        _require_equal(states, first[0], second[0])
        for times, replay in enumerate(backward.values(), 1):
            replay()
            _require_equal(
                buffers, *([g.float() * times for g in each[1]] for each in (first, second))
            )
        if before:
            torch._foreach_copy_(buffers, before)
        addresses = self._addresses()
        return _Recording(row, states, passes.above, forward, backward, weights, addresses)


class _Passes:
    """The passes of a shape, over new leaves of autograd on the memory of the weights.

    Leaves of other autograd graphs that still live would tie a recording to another stream.
    """

    def __init__(self, encoder: Encoder, key: _Key, trained: Mapping[str, Tensor]) -> None:
        self.encoder, self.key = encoder, key
        self.leaves = {
            name: weight.detach().requires_grad_()
            for name, weight in (trained.items() if key.has_gradients else ())
        }
        self.used = list(self.leaves)
        """The names of the weights with a gradient."""
        self.live: list[Tensor] = []
        """The last states, with their autograd graph."""
        self.above: list[Tensor] = []

    def states(self, row: Batch, shape: Shape | None) -> list[Tensor]:
        device, (enabled, dtype) = row.input_ids.device.type, self.key.autocast
        # a cast that autocast keeps would be memory of the recording
        casting = torch.autocast(device, dtype, enabled=enabled, cache_enabled=False)
        with torch.set_grad_enabled(self.key.has_gradients), casting:
            return self.encoder.packed_states(
                row, self.key.layers, shape=shape, weights=self.leaves
            )

    def forward(self, row: Batch) -> list[Tensor]:
        self.live[:] = self.states(row, self.key.shape)
        if not self.above:
            self.above = [torch.randn_like(state, requires_grad=False) for state in self.live]
        return [state.detach() for state in self.live]

    def backward(self) -> list[Tensor]:
        return self.gradients(self.live, self.above) if self.key.has_gradients else []

    def gradients(self, states: Sequence[Tensor], above: Sequence[Tensor]) -> list[Tensor]:
        pairs = [pair for pair in zip(states, above, strict=True) if pair[0].requires_grad]
        gradients = torch.autograd.grad(
            [state for state, _ in pairs],
            [self.leaves[name] for name in self.used],
            [gradient for _, gradient in pairs],
            retain_graph=True,
            allow_unused=True,
        )
        known = {n: g for n, g in zip(self.used, gradients, strict=True) if g is not None}
        self.used = list(known)
        return list(known.values())

    def are_equal_without_fillers(self, batch: Batch, row: Batch) -> bool:
        """Compare passes without dropout: rounding is all that fillers may change."""
        model, num_tokens = self.encoder.model, len(batch.input_ids)
        modes = [(module, module.training) for module in model.modules()]
        results = []
        try:
            model.eval()
            for each, shape in ((batch, None), (row, self.key.shape)):
                states = [state[:num_tokens] for state in self.states(each, shape)]
                above = [gradient[:num_tokens] for gradient in self.above]
                gradients = self.gradients(states, above) if self.key.has_gradients else []
                results.append((states, gradients))
        finally:
            for module, mode in modes:
                module.training = mode
        (states, gradients), (filled_states, filled_gradients) = results
        enabled, dtype = self.key.autocast
        tolerance = 2 * torch.finfo(dtype if enabled else states[0].dtype).eps ** 0.5
        errors = [
            ((new - old).float().norm(dim=1) / old.float().norm(dim=1)).max()
            for new, old in zip(filled_states, states, strict=True)
        ]
        if gradients:
            error = _norm(
                [a.float() - b.float() for a, b in zip(filled_gradients, gradients, strict=True)]
            )
            errors.append(error / _norm(gradients))
        return bool(torch.stack(errors).max() <= tolerance)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, anchor: Tensor, graphs: EncoderGraphs, recording: _Recording, num_tokens: int
    ) -> tuple[Tensor, ...]:
        recording.forward()
        context.graphs, context.recording, context.waiting = graphs, recording, _Waiting()
        graphs.waiting = weakref.ref(context.waiting)
        # no caller keeps memory that the next pass overwrites
        return tuple([state[:num_tokens].clone() for state in recording.states])

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[None, ...]:
        graphs, recording = context.graphs, context.recording
        if graphs.waiting is None or graphs.waiting() is not context.waiting:
            raise RuntimeError("a replayed pass has one backward pass, before the next replay")
        graphs.waiting = None
        for above, gradient in zip(recording.above, gradients, strict=True):
            above[: len(gradient)].copy_(gradient)
            above[len(gradient) :].zero_()
        recording.backward[graphs.gradients.are_filled(recording.weights)]()
        graphs.gradients.fill(recording.weights)
        return None, None, None, None


def _tensors(row: Batch) -> list[Tensor]:
    tensors = [row.input_ids, row.position_ids, row.cu_seqlens]
    return tensors if row.segment_ids is None else [*tensors, row.segment_ids]


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.float().norm() for tensor in tensors]).norm()


def _require_equal(
    replayed: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor]
) -> None:
    """Compare with two equal plain passes, which differ if a kernel adds in any order."""
    exact = all(map(torch.equal, first, second))
    for new, old, other in zip(replayed, first, second, strict=True):
        if exact:
            equal = torch.equal(new.to(old.dtype), old)
        else:
            noise = 4 * _norm([other.float() - old.float()]) + 0.01 * _norm([old])
            equal = bool(_norm([new.float() - old.float()]) <= noise)
        if not equal:
            raise RuntimeError("a replayed pass differs from the plain pass")
