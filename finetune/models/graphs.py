"""The encoder's forward and backward passes, recorded once for each shape of rows and replayed.

To start the kernels of a step takes a host several times as long as a GPU takes to run them. A CUDA
graph starts them all at once. Head, loss, clipping and optimizer run plainly.

Recorded passes read and write tensors that stay in place. They share one pool of memory, so that
only one of them may wait for its backward pass; meanwhile others run plainly.

A recording is compared with the plain passes that it replaces before it is used. If they differ, or
an error occurs, everything runs plainly from then on, in the same shapes and so with the same
random numbers.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from finetune.models.recording import (
    Action,
    CudaRecorder,
    Passes,
    PassKey,
    WrongFillersError,
    require_equal_tensors,
)
from finetune.models.shapes import RowShape, RowShapes, with_fillers
from finetune.types import Batch

if TYPE_CHECKING:
    from finetune.models.encoder import Encoder

DEVICE = "cuda"
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
    backward: Action
    gradients: dict[nn.Parameter, Tensor]  # of each weight that has one
    addresses: tuple[int, ...]


class EncoderGraphs:
    """Runs the passes of an encoder on packed rows in fixed shapes, and replays recorded ones.

    Args:
        encoder: The encoder, on its device. No weight is added or exchanged from now on.
        shapes: The shapes of rows; None leaves all passes alone.
        recorder: Records passes; None runs all plainly.
        report: Gets one sentence if recordings cannot be used.

    Attributes:
        reason: Why passes run plainly; empty if they are replayed.
    """

    def __init__(
        self,
        encoder: Encoder,
        shapes: RowShapes | None = None,
        recorder: CudaRecorder | None = None,
        report: Callable[[str], object] = print,
    ) -> None:
        self.encoder, self.shapes, self.recorder = encoder, shapes, recorder
        self.report, self.reason = report, ""
        self.trained = encoder.trained_parameters()
        self.gradients: dict[str, Tensor] = {}
        """The tensors that hold the gradients of all recordings, by the names of weights."""
        self.read = [*encoder.model.parameters(), *encoder.model.buffers()]
        self.anchor = torch.zeros((), device=self.read[0].device, requires_grad=True)
        self.seen: Counter[PassKey] = Counter()
        self.recordings: dict[PassKey, _Recording] = {}
        self.waiting: weakref.ref[Any] | None = None
        """The node of autograd of a replayed pass, which waits for its backward pass."""
        self.predictions: RowShapes | None = None
        self.fillers_fit: bool | None = None  # not compared yet

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of an encoder has none

    def __call__(self, batch: Batch, layers: Sequence[int] = ()) -> list[Tensor] | None:
        """Compute the last hidden states [T, H] of a batch, and those of layers.

        None if no shape holds the batch.
        """
        shape = None if self.shapes is None else self.shapes.shape_of(RowShape.of(batch))
        if shape is None:
            return None
        if self.encoder.num_token_types > 1 and batch.token_type_ids is None:
            batch = replace(batch, token_type_ids=torch.zeros_like(batch.input_ids))
        row, num_tokens = with_fillers(batch, shape), len(batch.input_ids)
        recording = self._recording(shape, tuple(layers), batch, row)
        if self.fillers_fit is False:
            return None
        if recording is None:
            states = self.encoder.packed_states(row, layers, shape=shape)
            return [state[:num_tokens] for state in states]
        for tensor, new in zip(_tensors(recording.row), _tensors(row), strict=True):
            tensor.copy_(new)
        if recording.gradients:
            return list(_Replay.apply(self.anchor, self, recording, num_tokens))  # type: ignore[no-untyped-call]
        recording.forward()
        return [state[:num_tokens].clone() for state in recording.states]

    def shapes_of_predictions(self, rows: Sequence[RowShape]) -> RowShapes:
        """Choose shapes for the rows of predictions, or keep the last ones if they suit, too."""
        shapes = RowShapes.of(rows, NUM_SIZES_OF_PREDICTIONS)
        if self.predictions is None or not self.predictions.suits(rows, shapes):
            for key in [key for key in self.seen if not key.training]:
                del self.seen[key]
                self.recordings.pop(key, None)
            self.predictions = shapes.with_room(self.encoder.max_length)
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
        addresses = tuple([tensor.data_ptr() for tensor in self.read])
        recording = self.recordings.get(key)
        if recording is not None and recording.addresses == addresses:
            return recording
        self.seen[key] += 1
        if self.seen[key] < SIGHTINGS:
            return None
        state = recorder.random.get_rng_state()
        try:
            recording = self._record(recorder, key, batch, row, addresses)
            self.recordings[key] = recording
        except Exception as error:  # out of memory is one of them
            self.recorder = recording = None
            self.recordings.clear()
            self.fillers_fit = not isinstance(error, WrongFillersError)
            self.reason = f"{' '.join(str(error).split()):.200}"
            self.report(f"CUDA graphs are not used: {self.reason}")
        finally:
            recorder.random.set_rng_state(state)
        return recording

    def _record(
        self,
        recorder: CudaRecorder,
        key: PassKey,
        batch: Batch,
        row: Batch,
        addresses: tuple[int, ...],
    ) -> _Recording:
        passes = Passes(self.encoder, key, self.trained)
        row = replace(row.each(torch.clone), lengths=(), targets={}, host=None)
        random_state = recorder.random.get_rng_state()

        def plain() -> list[Tensor]:
            recorder.random.set_rng_state(random_state)
            return passes.forward(row) + passes.backward()

        first, second = recorder.warm_up(plain), recorder.warm_up(plain)
        if self.fillers_fit is None:
            passes.require_equal_without_fillers(batch, row)
            self.fillers_fit = True
        gradients = {
            self.trained[name]: self.gradients.setdefault(name, torch.empty_like(leaf))
            for name, leaf in passes.used.items()
        }
        buffers = list(gradients.values())
        _keep_gradients(gradients)

        def backward() -> list[Tensor]:
            torch._foreach_copy_(buffers, passes.backward())
            return []

        forward, states = recorder.record(lambda: passes.forward(row))
        actions = [forward, *([recorder.record(backward)[0]] if gradients else [])]
        passes.live.clear()  # their memory is free for the next recording
        recorder.random.set_rng_state(random_state)
        for replay in actions:
            replay()
        require_equal_tensors([*states, *buffers], first, second)
        return _Recording(row, states, passes.above, forward, actions[-1], gradients, addresses)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, anchor: Tensor, graphs: EncoderGraphs, recording: _Recording, num_tokens: int
    ) -> tuple[Tensor, ...]:
        recording.forward()
        context.graphs, context.recording = graphs, recording
        graphs.waiting = weakref.ref(context)
        # no caller keeps memory that the next pass overwrites
        return tuple([state[:num_tokens].clone() for state in recording.states])

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[None, ...]:
        graphs, recording = context.graphs, context.recording
        if graphs.waiting is None or graphs.waiting() is not context:
            raise RuntimeError("a replayed pass has one backward pass, before the next replay")
        graphs.waiting = None
        for above, gradient in zip(recording.above, gradients, strict=True):
            above[: len(gradient)].copy_(gradient)
            above[len(gradient) :].zero_()
        _keep_gradients(recording.gradients)
        recording.backward()
        if earlier := [weight for weight in recording.gradients if weight.grad is not None]:
            buffers = [recording.gradients[weight] for weight in earlier]
            torch._foreach_add_(buffers, [weight.grad for weight in earlier])
        for weight, buffer in recording.gradients.items():
            weight.grad = buffer
        return None, None, None, None


def _keep_gradients(gradients: Mapping[nn.Parameter, Tensor]) -> None:
    # gradients of earlier passes, which the next replay would overwrite
    for weight, buffer in gradients.items():
        if weight.grad is buffer:
            weight.grad = buffer.clone()


def _tensors(row: Batch) -> list[Tensor]:
    tensors = [row.input_ids, row.position_ids, row.cu_seqlens]
    return tensors if row.token_type_ids is None else [*tensors, row.token_type_ids]


def reason_to_run_plainly(encoder: Encoder, *, predicting: bool = False) -> str:
    """Why an encoder has no rows of fixed shapes; empty if it has."""
    if encoder.model.device.type != DEVICE:
        return "there is no GPU"
    if predicting and encoder.model.dtype not in HALF:
        # batches of equal lengths differ in both, so that one shape would be mostly padding
        return "attention in single precision pads all sequences to the longest one"
    if encoder.padding_reason:
        return "sequences are padded"
    if encoder.family.packing != "interface":
        model_type = encoder.model.config.model_type
        return f"attention of {model_type} models reads lengths on the host"
    if any(layer.gradient_checkpointing for layer in encoder.checkpointable):
        return "--gradient-checkpointing computes activations again"
    return ""


@contextlib.contextmanager
def replayed_predictions(
    encoder: Encoder, rows: Callable[[], Sequence[RowShape]]
) -> Iterator[None]:
    """Context in which an encoder computes rows of these sizes without gradients.

    On a GPU their passes are replayed. Recordings stay for later rows of similar sizes.
    """
    graphs = encoder.graphs
    if reason_to_run_plainly(encoder, predicting=True) or not (sizes := rows()):
        encoder.graphs = None  # shapes of training would not suit
        try:
            yield
        finally:
            encoder.graphs = graphs
        return
    if graphs is None:
        graphs = encoder.graphs = EncoderGraphs(encoder, recorder=new_recorder())
    before, graphs.shapes = graphs.shapes, graphs.shapes_of_predictions(sizes)
    try:
        yield
    finally:
        graphs.shapes = before


@contextlib.contextmanager
def replayed_training(
    encoder: Encoder,
    rows: Callable[[], Sequence[RowShape]],
    num_steps: int,
    report: Callable[[str], object] = print,
) -> Iterator[None]:
    """Context in which an encoder on a GPU trains on rows of fixed shapes, which are replayed.

    Args:
        encoder: The encoder, with adapters, and in the precision of its passes.
        rows: Returns the sizes of rows of the run, or of a sample.
        num_steps: Number of steps; less than ``FEWEST_STEPS`` run plainly.
        report: Gets a sentence if graphs cannot be used.
    """
    before = encoder.graphs
    if not reason_to_run_plainly(encoder):
        recorder = new_recorder() if num_steps >= FEWEST_STEPS else None
        encoder.graphs = EncoderGraphs(encoder, RowShapes.of(rows()), recorder, report)
    try:
        yield
    finally:
        encoder.graphs = before


def new_recorder() -> CudaRecorder | None:
    """Make a recorder of CUDA graphs; None if the user turned them off."""
    return None if os.environ.get("FINETUNE_CUDA_GRAPHS") == "0" else CudaRecorder()


def use_of_graphs(encoder: Encoder) -> str:
    """How the passes of an encoder in training run, for the metadata of a run."""
    if (graphs := encoder.graphs) is None:
        return f"not used: {reason_to_run_plainly(encoder)}"
    if number := sum(key.has_gradients or key.training for key in graphs.recordings):
        return f"used for {number} shapes"
    return f"not used: {graphs.reason or 'turned off, or too few steps'}"
