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
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from finetune.models.recording import (
    Action,
    CudaRecorder,
    GradientBuffers,
    Passes,
    PassKey,
    Recorder,
    require_equal_tensors,
)
from finetune.models.shapes import RowShape, RowShapes, with_fillers
from finetune.types import Batch

if TYPE_CHECKING:
    from finetune.models.encoder import Encoder
    from finetune.models.master_weights import MasterWeights

NUM_SIZES_OF_PREDICTIONS = 3
HALF = torch.bfloat16, torch.float16
"""The types of weights of models whose predictions are replayed."""
FEWEST_STEPS = 100
"""A shorter run takes longer to record passes than it saves."""
SIGHTINGS = 3
"""A shape is recorded when it occurs for this time: a recording takes as long as eight passes."""


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
        self.gradients, self.report, self.reason = gradients or GradientBuffers(), report, ""
        self.trained = encoder.trained_parameters()
        self.read = [*encoder.model.parameters(), *encoder.model.buffers()]
        self.anchor = torch.zeros((), device=self.read[0].device, requires_grad=True)
        self.seen: Counter[PassKey] = Counter()
        self.recordings: dict[PassKey, _Recording] = {}
        self.waiting: weakref.ref[_Waiting] | None = None
        self.predictions: RowShapes | None = None
        self.fillers_are_compared = self.fillers_are_wrong = False

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of an encoder has none

    def __call__(self, batch: Batch, layers: Sequence[int] = ()) -> list[Tensor] | None:
        """Compute the last hidden states [T, H] of a batch, and those of layers.

        None if no shape holds the batch.
        """
        shape = None if self.shapes is None else self.shapes.shape_of(RowShape.of(batch))
        if shape is None or self.fillers_are_wrong:
            return None
        if self.encoder.num_token_types > 1 and batch.token_type_ids is None:
            batch = replace(batch, token_type_ids=torch.zeros_like(batch.input_ids))
        row, num_tokens = with_fillers(batch, shape), len(batch.input_ids)
        recording = self._recording(shape, tuple(layers), batch, row)
        if self.fillers_are_wrong:
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

    def shapes_of_predictions(self, rows: Sequence[RowShape]) -> RowShapes:
        """Choose shapes for the rows of predictions, or keep the last ones if they suit, too."""
        shapes, last = RowShapes.of(rows, num_sizes=NUM_SIZES_OF_PREDICTIONS), self.predictions
        more = 0.05 * sum(row.num_tokens for row in rows)
        if last is not None and last.fillers(rows) <= shapes.fillers(rows) + more:
            return last
        for key in [key for key in self.recordings if not key.training]:
            del self.recordings[key]
        # room for more sequences, and longer ones, in the next call
        num_sequences, longest = (
            1 << (n - 1).bit_length() for n in (shapes.num_sequences, shapes.longest)
        )
        longest = min(longest, self.encoder.max_length or longest)
        self.predictions = RowShapes(shapes.sizes, num_sequences, longest)
        return self.predictions

    def _recording(
        self, shape: RowShape, layers: tuple[int, ...], batch: Batch, row: Batch
    ) -> _Recording | None:
        recorder, device = self.recorder, self.anchor.device.type
        if recorder is None or (self.waiting is not None and self.waiting() is not None):
            return None
        key = PassKey(
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
        state = recorder.random.get_rng_state()
        try:
            recording = self.recordings[key] = self._record(recorder, key, batch, row)
        except Exception as error:  # out of memory is one of them
            self.recorder = recording = None
            self.recordings.clear()
            self.reason = f"{' '.join(str(error).split()):.200}"
            self.report(f"CUDA graphs are not used: {self.reason}")
        finally:
            recorder.random.set_rng_state(state)
        return recording

    def _addresses(self) -> tuple[int, ...]:
        return tuple([tensor.data_ptr() for tensor in self.read])

    def _record(self, recorder: Recorder, key: PassKey, batch: Batch, row: Batch) -> _Recording:
        passes = Passes(self.encoder, key, self.trained)
        row = replace(row.each(torch.clone), lengths=(), targets={}, host=None)
        random_state = recorder.random.get_rng_state()

        def plain() -> tuple[list[Tensor], list[Tensor]]:
            recorder.random.set_rng_state(random_state)
            return passes.forward(row), passes.backward()

        first, second = recorder.warm_up(plain), recorder.warm_up(plain)
        if not self.fillers_are_compared:
            self.fillers_are_wrong = not passes.are_equal_without_fillers(batch, row)
            self.fillers_are_compared = True
        if self.fillers_are_wrong:
            raise RuntimeError("filling sequences change the states of others")
        weights = [self.trained[name] for name in passes.used]
        buffers = [self.gradients.of(weight) for weight in weights]
        before = [buffer.clone() for buffer in buffers]

        def move(add: bool) -> list[Tensor]:
            (torch._foreach_add_ if add else torch._foreach_copy_)(buffers, passes.backward())
            return []

        forward, states = recorder.record(lambda: passes.forward(row))
        ways = (False, True) if key.has_gradients else ()
        backward = {add: recorder.record(partial(move, add))[0] for add in ways}
        passes.live.clear()  # their memory is free for the next recording
        recorder.random.set_rng_state(random_state)
        forward()
        require_equal_tensors(states, first[0], second[0])
        for times, replay in enumerate(backward.values(), 1):
            replay()
            require_equal_tensors(
                buffers, *([g.float() * times for g in outcome[1]] for outcome in (first, second))
            )
        for buffer, values in zip(buffers, before, strict=True):
            buffer.copy_(values)
        addresses = self._addresses()
        return _Recording(row, states, passes.above, forward, backward, weights, addresses)


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
        recording.backward[graphs.gradients.fill(recording.weights)]()
        return None, None, None, None


def _tensors(row: Batch) -> list[Tensor]:
    tensors = [row.input_ids, row.position_ids, row.cu_seqlens]
    return tensors if row.token_type_ids is None else [*tensors, row.token_type_ids]


def reason_to_run_plainly(encoder: Encoder) -> str:
    """Why an encoder in training has no rows of fixed shapes; empty if it has."""
    if encoder.model.device.type != "cuda":
        return "there is no GPU"
    return reason_of_model(encoder)


def reason_to_predict_plainly(encoder: Encoder) -> str:
    """Why predictions have no rows of fixed shapes; empty if they have."""
    if encoder.model.dtype not in HALF:
        # batches of equal lengths differ in both, so that one shape would be mostly padding
        return "attention in single precision pads all sequences to the longest one"
    return reason_to_run_plainly(encoder)


def reason_of_model(encoder: Encoder) -> str:
    """Why the passes of a model are not recorded on any device; empty if they can be."""
    if encoder.padding_reason:
        return "sequences are padded"
    if encoder.family.packing != "interface":
        model_type = encoder.model.config.model_type
        return f"attention of {model_type} models reads lengths on the host"
    if any(layer.gradient_checkpointing for layer in encoder.checkpointable):
        return "--gradient-checkpointing computes activations again"
    return ""


@contextlib.contextmanager
def replayed_predictions(encoder: Encoder, rows: Sequence[RowShape]) -> Iterator[None]:
    """Context in which an encoder computes rows of these sizes without gradients.

    On a GPU their passes are replayed. Recordings stay for later rows of similar sizes.
    """
    graphs = encoder.graphs
    if reason_to_predict_plainly(encoder) or not rows:
        encoder.graphs = None  # shapes of training would not suit
        try:
            yield
        finally:
            encoder.graphs = graphs
        return
    if graphs is None:
        graphs = encoder.graphs = EncoderGraphs(encoder, recorder=new_recorder())
    before, graphs.shapes = graphs.shapes, graphs.shapes_of_predictions(rows)
    try:
        yield
    finally:
        graphs.shapes = before


@contextlib.contextmanager
def replayed_training(
    encoder: Encoder,
    rows: Callable[[], Sequence[RowShape]],
    num_steps: int,
    masters: MasterWeights | None = None,
    report: Callable[[str], object] = print,
) -> Iterator[None]:
    """Context in which an encoder on a GPU trains on rows of fixed shapes, which are replayed.

    Args:
        encoder: The encoder, with adapters, and in the precision of its passes.
        rows: Returns the sizes of rows of the run, or of a sample.
        num_steps: Number of steps; less than ``FEWEST_STEPS`` run plainly.
        masters: The float32 weights of the encoder.
        report: Gets a sentence if graphs cannot be used.
    """
    before = encoder.graphs
    if not reason_to_run_plainly(encoder):
        recorder = new_recorder() if num_steps >= FEWEST_STEPS else None
        shapes, gradients = RowShapes.of(rows()), GradientBuffers(masters)
        encoder.graphs = EncoderGraphs(encoder, shapes, recorder, gradients, report)
    try:
        yield
    finally:
        encoder.graphs = before


def new_recorder() -> Recorder | None:
    """Make a recorder of CUDA graphs; None if the user turned them off."""
    return None if os.environ.get("FINETUNE_CUDA_GRAPHS") == "0" else CudaRecorder()


def use_of_graphs(encoder: Encoder) -> str:
    """How the passes of an encoder in training run, for the metadata of a run."""
    if (graphs := encoder.graphs) is None:
        return f"not used: {reason_to_run_plainly(encoder)}"
    if number := sum(key.has_gradients or key.training for key in graphs.recordings):
        return f"used for {number} shapes"
    return f"not used: {graphs.reason or 'turned off, or too few steps'}"
