"""The encoder's forward and backward passes, recorded once for each shape of rows and replayed.

To start the kernels of a step takes a host several times as long as a GPU takes to run them. A CUDA
graph starts them all at once. Head, loss, clipping and optimizer run plainly.

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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from finetune.models.packing import TooMuchPadding
from finetune.models.recording import WRONG_FILLERS, CudaRecorder, PassKey, Recording
from finetune.models.shapes import RowShape, RowShapes, with_fillers
from finetune.types import Batch

if TYPE_CHECKING:
    from finetune.models.encoder import Encoder
    from finetune.models.master_weights import MasterWeights

DEVICE = "cuda"
NUM_PREDICTED_SIZES = 3
HALF = torch.bfloat16, torch.float16
"""The types of weights of models whose predictions are replayed."""
FEWEST_STEPS = 100
"""A shorter run takes longer to record passes than it saves."""
SIGHTINGS, PREDICTED_SIGHTINGS = 3, 20
"""A shape is recorded when it occurs for this time in training, and in predictions, whose shapes
may serve no later rows: a recording takes as long as five passes."""


class EncoderGraphs:
    """Runs the passes of an encoder on packed rows in fixed shapes, and replays recorded ones.

    Args:
        encoder: The encoder, on its device. No weight is added from now on.
        shapes: The shapes of rows.
        recorder: Records passes; None runs all plainly.
        masters: The weights of a training. Without them only passes without gradients are recorded.
        report: Gets one sentence if recordings cannot be used.
    """

    def __init__(
        self,
        encoder: Encoder,
        shapes: RowShapes,
        recorder: CudaRecorder | None = None,
        masters: MasterWeights | None = None,
        report: Callable[[str], object] = print,
    ) -> None:
        # the encoder refers to this: a cycle would keep the memory of both until Python finds it
        self.encoder: Any = weakref.proxy(encoder)
        self.shapes, self.recorder, self.report = shapes, recorder, report
        self.masters, self.is_trained = masters, bool(encoder.trained_parameters())
        self.read = [*encoder.model.parameters(), *encoder.model.buffers()]
        self.recorded_for: tuple[list[int], int] = [], 0
        """The addresses of the weights, and the number of failures, when passes were recorded."""
        self.seen: Counter[PassKey] = Counter()
        self.recordings: dict[PassKey, Recording] = {}

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of an encoder has none

    def __call__(self, batch: Batch, layers: Sequence[int] = ()) -> list[Tensor] | None:
        """Compute the last hidden states [T, H] of a batch, and those of layers.

        None if no shape holds the batch.
        """
        if (shape := self.shapes.shape_of(RowShape.of(batch))) is None:
            return None
        if self.encoder.num_token_types > 1 and batch.token_type_ids is None:
            batch = replace(batch, token_type_ids=torch.zeros_like(batch.input_ids))
        row, num_tokens = with_fillers(batch, shape), len(batch.input_ids)
        if recorder := self.recorder:
            device, mode = batch.input_ids.device.type, self.encoder.model.training
            autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
            has_gradients = torch.is_grad_enabled() and self.is_trained
            key = PassKey(shape, tuple(layers), has_gradients, mode, autocast)
            with recorder.lock:
                if recording := self._recording(recorder, key, batch, row):
                    return recording.replay(row, num_tokens)
            if recorder.failure == WRONG_FILLERS:
                return None
        states = self.encoder.packed_states(row, layers, shape=shape)
        return [state[:num_tokens] for state in states]

    def _recording(
        self, recorder: CudaRecorder, key: PassKey, batch: Batch, row: Batch
    ) -> Recording | None:
        now = [tensor.data_ptr() for tensor in self.read], CudaRecorder.num_failures
        if now != self.recorded_for:  # recordings read other weights, or another generator
            self.recorded_for = now
            self.seen.clear()
            self.recordings.clear()
        waits = recorder.waiting is not None and recorder.waiting() is not None
        if recorder.failure or waits or (key.has_gradients and self.masters is None):
            return None
        if key not in self.recordings:
            self._sight(recorder, key, batch, row)
        return self.recordings.get(key)

    def _sight(self, recorder: CudaRecorder, key: PassKey, batch: Batch, row: Batch) -> None:
        self.seen[key] += 1
        if self.seen[key] != (SIGHTINGS if key.training else PREDICTED_SIGHTINGS):
            return
        random_state, masters = recorder.random.get_rng_state(), self.masters
        try:
            kept = masters.encoder_gradients(add=False) if masters else contextlib.nullcontext()
            with torch.inference_mode(False), kept:  # whose tensors nothing else may change
                recording = Recording(self.encoder, key, row, masters)
                if not self.recordings:
                    recording.require_equal_without_fillers(batch)
                recording.record(recorder)
            self.recordings[key] = recording
        except TooMuchPadding:
            pass  # attention would be mostly padding: this shape runs plainly
        except Exception as error:  # out of memory is one of them
            self.recordings.clear()
            message = " ".join(str(error).split()) or type(error).__name__
            recorder.failure = f"{message:.200}"
            CudaRecorder.num_failures += 1
            self.report(f"CUDA graphs are not used: {recorder.failure}")
        finally:
            recorder.random.set_rng_state(random_state)


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
def replayed_passes(
    encoder: Encoder,
    rows: Callable[[], Sequence[RowShape]],
    num_steps: int | None = None,
    masters: MasterWeights | None = None,
    report: Callable[[str], object] = print,
) -> Iterator[None]:
    """Context in which an encoder on a GPU computes rows of fixed shapes, which are replayed.

    Args:
        encoder: The encoder, with adapters, and in the precision of its passes.
        rows: Returns the sizes of all rows, or of a sample.
        num_steps: Number of steps of a training; less than ``FEWEST_STEPS`` run plainly. None for
            predictions, whose recordings stay for later rows of similar sizes.
        masters: The weights of the training.
        report: Gets a sentence if graphs cannot be used.
    """
    before, predicting = encoder.graphs, num_steps is None
    if reason_to_run_plainly(encoder, predicting=predicting) or not (sizes := rows()):
        encoder.graphs = None  # shapes of training would not suit predictions
    elif num_steps is None:
        encoder.graphs, best = encoder.prediction_graphs, RowShapes.of(sizes, NUM_PREDICTED_SIZES)
        if encoder.graphs is None or not encoder.graphs.shapes.suits(sizes, best):
            recorder = new_recorder() if before is None else before.recorder
            shapes = best.with_room(encoder.max_length)
            encoder.graphs = EncoderGraphs(encoder, shapes, recorder, None, report)
            encoder.prediction_graphs = encoder.graphs
    else:
        recorder = new_recorder() if num_steps >= FEWEST_STEPS else None
        encoder.graphs = EncoderGraphs(encoder, RowShapes.of(sizes), recorder, masters, report)
        encoder.prediction_graphs = None  # there are adapters now
    try:
        yield
    finally:
        encoder.graphs = before
        if not predicting:
            encoder.prediction_graphs = None  # which would keep the memory of training


def new_recorder() -> CudaRecorder | None:
    """Make a recorder of CUDA graphs; None if the user turned them off."""
    return None if os.environ.get("FINETUNE_CUDA_GRAPHS") == "0" else CudaRecorder()


def use_of_graphs(encoder: Encoder) -> str:
    """How the passes of an encoder in training run, for the metadata of a run."""
    if (graphs := encoder.graphs) is None:
        reason = reason_to_run_plainly(encoder)
    elif graphs.recordings:
        return f"used for {len(graphs.recordings)} shapes"
    elif graphs.recorder is None:
        reason = "turned off, or too few steps"
    else:
        reason = graphs.recorder.failure or "attention would mostly compute padding"
    return f"not used: {reason}"
