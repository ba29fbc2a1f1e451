"""Recorders of functions on tensors that stay in place, and their recordings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from finetune.models.shapes import RowShape
from finetune.types import Batch

if TYPE_CHECKING:
    from finetune.models.encoder import Encoder
    from finetune.models.master_weights import MasterWeights

T = TypeVar("T")
Action = Callable[[], None]


class CallAgain:
    """Repeats a function by calling it again, where there are no CUDA graphs."""

    random: Any = torch
    """The module with the random state of the device."""

    def warm_up(self, run: Callable[[], T]) -> T:
        """Call the function where ``record`` does, without recording it."""
        return run()

    def record(self, run: Callable[[], list[Tensor]]) -> tuple[Action, list[Tensor]]:
        """An action that repeats the function, and its results, which it overwrites."""
        results = run()

        def replay() -> None:
            for result, new in zip(results, run(), strict=True):
                result.copy_(new)

        return replay, results


class CudaRecorder:
    """Records CUDA graphs on the current device, all in one pool of memory."""

    random: Any = torch.cuda

    def __init__(self) -> None:
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def warm_up(self, run: Callable[[], T]) -> T:
        """Call the function on the stream of the recordings."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = run()
        current.wait_stream(self.stream)
        return result

    def record(self, run: Callable[[], list[Tensor]]) -> tuple[Action, list[Tensor]]:
        """Capture the function, which computes nothing meanwhile."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        generator = torch.cuda.default_generators[current.device_index]
        before = generator.clone_state()
        try:
            # other threads use the device meanwhile, such as the one that pins the next batch
            with torch.cuda.graph(graph, self.pool, self.stream, "thread_local"):
                results = run()
        except BaseException:  # torch leaves its stream in use, and its generator capturing
            torch.cuda.set_stream(current)
            generator.graphsafe_set_state(before)
            raise
        return graph.replay, results


Recorder = CallAgain | CudaRecorder
"""Records what functions do to tensors that stay in place."""


class GradientBuffers:
    """Buffers that stay in place, where recorded backward passes leave the gradients of weights.

    They are the float32 gradients of ``MasterWeights``. The buffers of other weights become their
    own gradients, ``weight.grad``.
    """

    def __init__(self, masters: MasterWeights | None = None) -> None:
        self.masters = masters
        working = [] if masters is None else masters.working
        self.numbers = {id(weight): number for number, weight in enumerate(working)}
        self.own: dict[int, Tensor] = {}

    def of(self, weight: nn.Parameter) -> Tensor:
        """The buffer of a weight."""
        if self.masters is not None and (number := self.numbers.get(id(weight))) is not None:
            return self.masters.gradients[number]
        if id(weight) not in self.own:
            self.own[id(weight)] = torch.empty_like(weight, requires_grad=False)
        return self.own[id(weight)]

    def fill(self, weights: Sequence[nn.Parameter]) -> bool:
        """Let the buffers be gradients of this step; return whether others must be added to them.

        If only some of them have been gradients of this step, the others become 0.
        """
        empty: list[Tensor] = []
        for weight in weights:
            buffer, number = self.of(weight), self.numbers.get(id(weight))
            if self.masters is not None and number is not None:
                is_empty = not self.masters.filled[number]
                self.masters.filled[number] = True
            else:
                is_empty = weight.grad is None
                if weight.grad is not None and weight.grad is not buffer:
                    buffer.copy_(weight.grad)
                weight.grad = buffer
            empty += [buffer] if is_empty else []
        if 0 < len(empty) < len(weights):
            torch._foreach_zero_(empty)
        return len(empty) < len(weights)


class PassKey(NamedTuple):
    """The key of a recorded pass: everything its kernels depend on besides tensors."""

    shape: RowShape
    layers: tuple[int, ...]
    has_gradients: bool
    training: bool
    autocast: tuple[bool, torch.dtype]


class Passes:
    """The passes of a shape, over new leaves of autograd on the memory of the weights.

    Leaves of other autograd graphs that still live would tie a recording to another stream.
    """

    def __init__(self, encoder: Encoder, key: PassKey, trained: Mapping[str, Tensor]) -> None:
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

    def states(self, row: Batch, shape: RowShape | None) -> list[Tensor]:
        """Compute the last hidden states [T, H] of a row, and those of layers."""
        device, (enabled, dtype) = row.input_ids.device.type, self.key.autocast
        # a cast that autocast keeps would be memory of the recording
        casting = torch.autocast(device, dtype, enabled=enabled, cache_enabled=False)
        with torch.set_grad_enabled(self.key.has_gradients), casting:
            return self.encoder.packed_states(
                row, self.key.layers, shape=shape, weights=self.leaves
            )

    def forward(self, row: Batch) -> list[Tensor]:
        """Compute the states, and keep their autograd graph for ``backward``."""
        self.live[:] = self.states(row, self.key.shape)
        if not self.above:
            self.above = [torch.randn_like(state, requires_grad=False) for state in self.live]
        return [state.detach() for state in self.live]

    def backward(self) -> list[Tensor]:
        """Compute the gradients of the weights in ``used``, given those of the states."""
        return self.gradients(self.live, self.above) if self.key.has_gradients else []

    def gradients(self, states: Sequence[Tensor], above: Sequence[Tensor]) -> list[Tensor]:
        """Compute the gradients of the weights in ``used``, which then leaves out the others."""
        pairs = [pair for pair in zip(states, above, strict=True) if pair[0].requires_grad]
        gradients = torch.autograd.grad(
            [state for state, _ in pairs],
            [self.leaves[name] for name in self.used],
            [gradient for _, gradient in pairs],
            retain_graph=True,
            allow_unused=True,
        )
        gradient_of = {n: g for n, g in zip(self.used, gradients, strict=True) if g is not None}
        self.used = list(gradient_of)
        return list(gradient_of.values())

    def are_equal_without_fillers(self, batch: Batch, row: Batch) -> bool:
        """Compare passes without dropout: rounding is all that fillers may change."""
        model, num_tokens = self.encoder.model, len(batch.input_ids)
        modes = [(module, module.training) for module in model.modules()]
        results = []
        try:
            model.eval()
            for call, shape in ((batch, None), (row, self.key.shape)):
                states = [state[:num_tokens] for state in self.states(call, shape)]
                above = [gradient[:num_tokens] for gradient in self.above]
                gradients = self.gradients(states, above) if self.key.has_gradients else []
                results.append((states, gradients))
        finally:
            for module, mode in modes:
                module.training = mode
        (states, gradients), (filled_states, filled_gradients) = results
        enabled, dtype = self.key.autocast
        tolerance = 2 * torch.finfo(dtype if enabled else states[0].dtype).eps ** 0.5
        equal = [
            ((new - old).float().norm(dim=1) <= tolerance * old.float().norm(dim=1)).all()
            for new, old in zip(filled_states, states, strict=True)
        ]
        if gradients:
            pairs = zip(filled_gradients, gradients, strict=True)
            error = _norm([new.float() - old.float() for new, old in pairs])
            equal.append(error <= tolerance * _norm(gradients))
        return bool(torch.stack(equal).all())


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    norms = torch.stack([tensor.float().norm() for tensor in tensors])
    norm: Tensor = torch.linalg.vector_norm(norms)
    return norm


def require_equal_tensors(
    replayed: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor]
) -> None:
    """Raise RuntimeError unless a replayed pass equals two equal plain ones.

    The plain passes differ if a kernel adds in any order; the replayed one may then differ, too.
    """
    exact = all(map(torch.equal, first, second))
    for new, old, other in zip(replayed, first, second, strict=True):
        if exact:
            equal = torch.equal(new.to(old.dtype), old)
        else:
            noise = 4 * _norm([other.float() - old.float()]) + 0.01 * _norm([old])
            equal = bool(_norm([new.float() - old.float()]) <= noise)
        if not equal:
            raise RuntimeError("a replayed pass differs from the plain pass")
