"""Recording what a device does, to do it again: CUDA graphs behind a small interface.

``finetune.training.graphs`` says what is recorded and proves the recordings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Action = Callable[[], None]


class Recorder(Protocol):
    """Runs and records computations on a device."""

    def run(self, action: Action, *, strict: bool = False) -> None:
        """Run it as it will be recorded; ``strict`` makes waiting for the device an error."""

    def record(self, action: Action) -> Action:
        """Record it without computing anything; returns what replays it."""

    def random_state(self) -> Tensor:
        """The state of the device's random numbers."""

    def set_random_state(self, state: Tensor) -> None:
        """Bring that state back."""


class CudaRecorder:
    """Recordings as CUDA graphs that share one pool of memory, as never two run at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def run(self, action: Action, *, strict: bool = False) -> None:
        """Run on the stream of the recordings, where libraries then have their workspaces."""
        outer = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(outer)
        before = torch.cuda.get_sync_debug_mode()
        try:
            with torch.cuda.stream(self.stream):
                torch.cuda.set_sync_debug_mode("error" if strict else before)
                action()
        finally:
            torch.cuda.set_sync_debug_mode(before)
            outer.wait_stream(self.stream)

    def record(self, action: Action) -> Action:
        """Capture a graph; the action's tensors of before and after must stay where they are."""
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        generator = torch.cuda.default_generators[index]
        random, outer = generator.clone_state(), torch.cuda.current_stream(self.device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                action()
        except BaseException:
            # a capture that broke off leaves a generator that refuses to work (its copy does
            # not), and its own stream as the current one
            generator.graphsafe_set_state(random)
            torch.cuda.set_stream(outer)
            raise
        return graph.replay

    def random_state(self) -> Tensor:
        """The state of the device's generator, which lives on the host."""
        return torch.cuda.get_rng_state(self.device)

    def set_random_state(self, state: Tensor) -> None:
        """Bring that state back."""
        torch.cuda.set_rng_state(state, self.device)
