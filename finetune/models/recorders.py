"""Recorders of passes: CUDA graphs, and a stand-in that calls functions again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
Action = Callable[[], None]


class Recorder(Protocol):
    """Records what a function does to tensors that stay in place."""

    def warm_up(self, run: Callable[[], T]) -> T:
        """Call a function where ``record`` calls it, without recording."""

    def record(self, run: Callable[[], list[Tensor]]) -> tuple[Action, list[Tensor]]:
        """Return an action that repeats the function, and its results, which it overwrites."""

    def random_state(self) -> Tensor:
        """Return the state of the generator that functions draw from."""

    def set_random_state(self, state: Tensor) -> None:
        """Restore such a state."""


class CallAgain:
    """Repeats a function by calling it again, where there are no CUDA graphs."""

    def warm_up(self, run: Callable[[], T]) -> T:
        """Call the function."""
        return run()

    def record(self, run: Callable[[], list[Tensor]]) -> tuple[Action, list[Tensor]]:
        """Call the function; the action calls it again and copies its results."""
        results = run()

        def replay() -> None:
            for result, new in zip(results, run(), strict=True):
                result.copy_(new)

        return replay, results

    def random_state(self) -> Tensor:
        """Return the state of the CPU's generator."""
        return torch.get_rng_state()

    def set_random_state(self, state: Tensor) -> None:
        """Restore a state of the CPU's generator."""
        torch.set_rng_state(state)


class CudaRecorder:
    """Records CUDA graphs on the current device, all in one pool of memory."""

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

    def random_state(self) -> Tensor:
        """Return the state of the device's generator."""
        return torch.cuda.get_rng_state()

    def set_random_state(self, state: Tensor) -> None:
        """Restore a state of the device's generator."""
        torch.cuda.set_rng_state(state)
