"""The passes of an encoder on rows of one shape, recorded as CUDA graphs and replayed.

Recorded passes read and write tensors that stay in place. They share one pool of memory, so that
only one of them may wait for its backward pass.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from finetune.models.dropout import same_modes
from finetune.models.shapes import RowShape
from finetune.types import Batch

if TYPE_CHECKING:
    from finetune.models.encoder import Encoder
    from finetune.models.master_weights import MasterWeights

T = TypeVar("T")
Action = Callable[[], None]
WRONG_FILLERS = "filling sequences change the states of others"


class CudaRecorder:
    """Records CUDA graphs on the current device, all in one pool of memory."""

    random: Any = torch.cuda
    """The module with the random state of the device."""
    failure = ""
    """Why recordings cannot be used; empty if they can."""
    waiting: weakref.ref[Any] | None = None
    """The node of autograd of a replayed pass, which waits for its backward pass."""
    num_failures: ClassVar[int] = 0
    """Failures of all recorders: passes recorded before one may draw from a generator of then."""
    lock: ClassVar[threading.Lock] = threading.Lock()
    """Held while a pass is recorded or replayed: several threads may run the same model."""

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
            with contextlib.suppress(RuntimeError):  # and, if CUDA made it invalid, holds the pool
                torch._C._cuda_endAllocateToPool(current.device_index, self.pool)
                torch._C._cuda_releasePool(current.device_index, self.pool)
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


class Recording:
    """The passes of a shape, over new leaves of autograd on the memory of the weights.

    Leaves of other autograd graphs that still live would tie a recording to another stream.

    Args:
        encoder: The encoder.
        key: The key of the passes.
        row: The first row of the shape. Replays write others over a copy of it.
        masters: The weights, whose gradients backward passes overwrite.
    """

    def __init__(
        self, encoder: Encoder, key: PassKey, row: Batch, masters: MasterWeights | None
    ) -> None:
        self.encoder, self.key, self.masters = encoder, key, masters
        self.row = replace(row.each(torch.clone), lengths=(), targets={}, host=None)
        weights = encoder.trained_parameters() if masters and key.has_gradients else {}
        self.leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        self.gradients = [masters.gradients[weight] for weight in weights.values() if masters]
        self.live: list[Tensor] = []
        """The last states, with their autograd graph."""
        self.above: list[Tensor] = []
        """The gradients of the states."""
        self.anchor = torch.zeros((), device=row.input_ids.device, requires_grad=bool(weights))

    def states(self, row: Batch, shape: RowShape | None) -> list[Tensor]:
        """Compute the last hidden states [T, H] of a row, and those of layers.

        The first row is one of the shape.
        """
        device, (enabled, dtype) = row.input_ids.device.type, self.key.autocast
        # a cast that autocast keeps would be memory of the recording
        casting = torch.autocast(device, dtype, enabled=enabled, cache_enabled=False)
        with torch.set_grad_enabled(self.key.has_gradients), casting:
            states = self.encoder.packed_states(
                row, self.key.layers, shape=shape, weights=self.leaves
            )
        self.above = self.above or [torch.randn_like(state.detach()) for state in states]
        return states

    def forward(self) -> list[Tensor]:
        """Compute the states of the row, and keep their autograd graph for ``backward``."""
        self.live = self.states(self.row, self.key.shape)
        return [state.detach() for state in self.live]

    def backward(self) -> list[Tensor]:
        """Compute the gradients of the weights."""
        if not self.leaves:
            return []
        pairs = zip(self.live, self.above, strict=True)
        outputs = [(state, above[: len(state)]) for state, above in pairs if state.requires_grad]
        states, gradients = zip(*outputs, strict=True)
        leaves = list(self.leaves.values())
        return list(torch.autograd.grad(states, leaves, gradients, materialize_grads=True))

    def write_gradients(self) -> list[Tensor]:
        """Write the gradients of the weights over those of the step; there are no other results."""
        if gradients := self.backward():
            torch._foreach_copy_(self.gradients, gradients)
        return []

    def require_equal_without_fillers(self, batch: Batch) -> None:
        """Compare passes without dropout: rounding is all that fillers may change in a batch.

        Raises RuntimeError if they change more.
        """
        results = []
        with same_modes(self.encoder.model):
            self.encoder.model.eval()
            for row, shape in ((self.row, self.key.shape), (batch, None)):
                states = self.states(row, shape)
                self.live = [state[: len(batch.input_ids)] for state in states]
                results.append([state.detach() for state in self.live])
                if shape is not None:
                    self.write_gradients()
            gradients = self.backward()
        self.live.clear()  # else its nodes would tie the recording to the stream of this check
        enabled, dtype = self.key.autocast
        tolerance = 2 * torch.finfo(dtype if enabled else states[0].dtype).eps ** 0.5
        equal = [
            ((new - old).float().norm(dim=1) <= tolerance * old.float().norm(dim=1)).all()
            for new, old in zip(*results, strict=True)
        ]
        if gradients:
            difference = _distances(self.gradients, gradients).norm()
            equal.append(difference <= tolerance * _norms(gradients).norm())
        if not torch.stack(equal).all():
            raise RuntimeError(WRONG_FILLERS)

    def record(self, recorder: CudaRecorder) -> None:
        """Record the passes, and compare them with the plain ones.

        Raises RuntimeError if a replayed pass differs.
        """
        self.recorder, random_state = recorder, recorder.random.get_rng_state()

        def plain() -> list[Tensor]:
            recorder.random.set_rng_state(random_state)
            return self.forward() + self.backward()

        recorder.warm_up(plain)
        self.replay_forward, self.results = recorder.record(self.forward)
        if self.leaves:
            self.replay_backward, _ = recorder.record(self.write_gradients)
        self.live.clear()  # its memory is free for the next recording
        recorder.random.set_rng_state(random_state)
        for tensor in (*self.results, *self.gradients):
            tensor.fill_(torch.nan)  # which a replay overwrites
        self.replay_forward()
        if self.leaves:
            self.replay_backward()
        replayed, first = [*self.results, *self.gradients], recorder.warm_up(plain)
        pairs = zip(replayed, first, strict=True)
        if not all(torch.equal(new, old.to(new.dtype)) for new, old in pairs):
            _require_similar(replayed, first, lambda: recorder.warm_up(plain))
        self.live.clear()

    def replay(self, row: Batch, num_tokens: int) -> list[Tensor]:
        """Compute the states of another row, and cut the fillers off."""
        for tensor, new in zip(_tensors(self.row), _tensors(row), strict=True):
            tensor.copy_(new)
        return list(_Replay.apply(self.anchor, self, num_tokens))  # type: ignore[no-untyped-call]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, anchor: Tensor, recording: Recording, num_tokens: int
    ) -> tuple[Tensor, ...]:
        recording.replay_forward()
        context.recording, recording.recorder.waiting = recording, weakref.ref(context)
        # no caller keeps memory that the next pass overwrites
        return tuple([state[:num_tokens].clone() for state in recording.results])

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[None, None, None]:
        recording, recorder = context.recording, context.recording.recorder
        if recorder.waiting is None or recorder.waiting() is not context:
            raise RuntimeError("a replayed pass has one backward pass, before the next replay")
        recorder.waiting = None
        for above, gradient in zip(recording.above, gradients, strict=True):
            above[: len(gradient)].copy_(gradient)
            above[len(gradient) :].zero_()
        with recording.masters.encoder_gradients(add=True):
            recording.replay_backward()
        return None, None, None


def _tensors(row: Batch) -> list[Tensor]:
    tensors = [row.input_ids, row.position_ids, row.cu_seqlens]
    return tensors if row.token_type_ids is None else [*tensors, row.token_type_ids]


def _norms(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack([tensor.float().norm() for tensor in tensors])


def _distances(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    return _norms(new.float() - old for new, old in zip(tensors, others, strict=True))


def _require_similar(
    replayed: list[Tensor], first: list[Tensor], second_pass: Callable[[], list[Tensor]]
) -> None:
    # plain passes differ if a kernel adds in any order; the replayed one may then differ, too
    errors, norms = _distances(replayed, first), _norms(first)
    # gradients are as large as the weights: no more of them are held than have to be
    torch._foreach_copy_(replayed, first)
    first.clear()
    noise = _distances(second_pass(), replayed)
    # some consist of rounding alone, such as gradients of the biases of keys
    if not (errors <= 4 * noise + 0.01 * norms + 0.001 * norms.median()).all():
        raise RuntimeError("a replayed pass differs from the plain pass")
