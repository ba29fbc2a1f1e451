"""The passes of an encoder on rows of one shape, and CUDA graphs of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from finetune.models.dropout import same_modes
from finetune.models.shapes import RowShape
from finetune.types import Batch

if TYPE_CHECKING:
    from finetune.models.encoder import Encoder

T = TypeVar("T")
Action = Callable[[], None]


class CudaRecorder:
    """Records CUDA graphs on the current device, all in one pool of memory."""

    random: Any = torch.cuda
    """The module with the random state of the device."""

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
        """An action that repeats the function, and its results, which the action overwrites.

        The function computes nothing while it is recorded.
        """
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


class PassKey(NamedTuple):
    """The key of a recorded pass: everything its kernels depend on besides tensors."""

    shape: RowShape
    layers: tuple[int, ...]
    has_gradients: bool
    training: bool
    autocast: tuple[bool, torch.dtype]


class WrongFillersError(RuntimeError):
    """Filling sequences change the states of others."""


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
        self.used = dict(self.leaves)
        """The leaves with a gradient."""
        self.live: list[Tensor] = []
        """The last states, with their autograd graph."""
        self.above: list[Tensor] = []
        """The gradients of the states."""

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
        outputs, outer = zip(*pairs, strict=True)
        leaves = list(self.used.values())
        gradients = torch.autograd.grad(
            outputs, leaves, outer, retain_graph=True, allow_unused=True
        )
        named = zip(self.used.items(), gradients, strict=True)
        self.used = {name: leaf for (name, leaf), gradient in named if gradient is not None}
        return [gradient for gradient in gradients if gradient is not None]

    def require_equal_without_fillers(self, batch: Batch, row: Batch) -> None:
        """Compare passes without dropout: rounding is all that fillers may change.

        Raises WrongFillersError if they change more.
        """
        model, num_tokens = self.encoder.model, len(batch.input_ids)
        results = []
        with same_modes(model):
            model.eval()
            for call, shape in ((batch, None), (row, self.key.shape)):
                states = [state[:num_tokens] for state in self.states(call, shape)]
                above = [gradient[:num_tokens] for gradient in self.above]
                gradients = self.gradients(states, above) if self.key.has_gradients else []
                results.append((states, gradients))
        (states, gradients), (filled_states, filled_gradients) = results
        enabled, dtype = self.key.autocast
        tolerance = 2 * torch.finfo(dtype if enabled else states[0].dtype).eps ** 0.5
        equal = [
            ((new - old).float().norm(dim=1) <= tolerance * old.float().norm(dim=1)).all()
            for new, old in zip(filled_states, states, strict=True)
        ]
        if gradients:
            equal.append(_distance(filled_gradients, gradients) <= tolerance * _norm(gradients))
        if not torch.stack(equal).all():
            raise WrongFillersError("filling sequences change the states of others")


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    norms = torch.stack([tensor.float().norm() for tensor in tensors])
    norm: Tensor = torch.linalg.vector_norm(norms)
    return norm


def _distance(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    return _norm([new.float() - old.float() for new, old in zip(tensors, others, strict=True)])


def require_equal_tensors(
    replayed: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor]
) -> None:
    """Raise RuntimeError unless a replayed pass equals two equal plain ones.

    The plain passes differ if a kernel adds in any order; the replayed one may then differ, too.
    """
    if all(map(torch.equal, first, second)):
        equal = all(map(torch.equal, replayed, first))
    else:
        equal = all(
            _distance([new], [old]) <= 4 * _distance([other], [old]) + 0.01 * _norm([old])
            for new, old, other in zip(replayed, first, second, strict=True)
        )
    if not equal:
        raise RuntimeError("a replayed pass differs from the plain pass")
