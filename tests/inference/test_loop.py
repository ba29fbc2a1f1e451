"""Prediction: every example answered once, streams in bounded pieces."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.overrides import TorchFunctionMode

from finetune.inference.loop import predict
from finetune.tasks import load_task
from finetune.tasks.base import Task
from tests import fixtures as fx
from tests.small_data import close

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("classify", {"long_text": "window"}),
    ("tag", {}),
    ("tag", {"crf": True}),
    ("ner", {}),
]


@pytest.fixture(params=SETTINGS, ids=str, scope="module")
def asked(request: pytest.FixtureRequest) -> tuple[Task, Any, list[Any]]:
    """A task, a model, and examples of which each occurs three times; long ones have windows."""
    name, settings = request.param
    config = fx.config(name, max_length=14, **settings)
    task, dataset = load_task(config, name)
    several = 3 * list(dataset.splits["test"])
    return task, task.model(), [replace(e, id=index) for index, e in enumerate(several)]


@pytest.fixture(scope="module")
def alone(asked: tuple[Task, Any, list[Any]]) -> list[dict[str, Any]]:
    """The prediction of each example by itself; the same three times."""
    task, head, examples = asked
    once = examples[: len(examples) // 3]
    rows = [predict(task, head, [example])[0].to_dict() for example in once]
    return [{**row, "id": index} for index, row in enumerate(3 * rows)]


def test_an_accelerator_of_the_caller_changes_nothing(asked: Any, alone: list[Any]) -> None:
    task, head, examples = asked
    AcceleratorState._reset_state()
    try:
        Accelerator(mixed_precision="bf16")
        assert_alike(predict(task, head, examples), alone)
    finally:
        AcceleratorState._reset_state()


def assert_alike(found: list[Any], expected: list[dict[str, Any]]) -> None:
    assert close([prediction.to_dict() for prediction in found], expected, 1e-5)


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_a_stream_is_answered_piece_by_piece(
    asked: tuple[Task, Any, list[Any]], alone: list[dict[str, Any]], chunk: int
) -> None:
    task, head, examples = asked
    taken = 0

    def stream() -> Iterator[Any]:
        nonlocal taken
        for example in examples:
            taken += 1
            yield example

    answers = fx.stream(task, head, stream(), chunk=chunk)
    first = next(answers)
    assert taken <= 3 * chunk, "what is computed, what is encoded, and what is read for the next"
    assert_alike([first, *answers], alone)


class _Brought(TorchFunctionMode):
    """Refuses double precision for all tensors but those that were brought to the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.brought: list[torch.Tensor] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), named: Any = None
    ) -> Any:
        if function is torch.Tensor.double:
            assert any(args[0] is tensor for tensor in self.brought), "double precision on a device"
        found = function(*args, **(named or {}))
        if function is torch.Tensor.cpu:
            self.brought.append(found)
        return found


def test_devices_without_double_precision_answer(asked: tuple[Task, Any, list[Any]]) -> None:
    task, head, examples = asked
    with _Brought():
        assert len(predict(task, head, examples)) == len(examples)


def test_nothing_is_nothing(asked: tuple[Task, Any, list[Any]]) -> None:
    task, head, _ = asked
    assert predict(task, head, []) == []
    assert list(fx.stream(task, head, iter([]))) == []


def test_a_stream_that_is_left_ends_its_thread() -> None:
    task, dataset = load_task(fx.config("classify"), "classify")
    examples = [replace(e, id=n) for n, e in enumerate(3 * list(dataset.splits["test"]))]
    stream = fx.stream(task, task.model(), examples, chunk=2)
    next(stream)
    assert any(thread.name == "ahead" for thread in threading.enumerate())
    stream.close()
    assert not any(thread.name == "ahead" for thread in threading.enumerate())


def test_a_model_trained_in_float16_predicts_in_float32_on_a_cpu(
    asked: tuple[Task, Any, list[Any]],
) -> None:
    task, head, examples = asked
    config = replace(task.state.config, precision="fp16")
    half = replace(task, state=replace(task.state, config=config))
    assert predict(half, head, examples) == predict(task, head, examples, precision="fp32")
