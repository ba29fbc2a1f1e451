"""Several processes stop after the same step and do not wait for the current one."""

from __future__ import annotations

import importlib.util
import signal
from types import SimpleNamespace

import pytest
import torch

from finetune.runtime.signals import InterruptHandler


def interrupt(device: str, num_processes: int) -> InterruptHandler:
    accelerator = SimpleNamespace(device=torch.device(device), num_processes=num_processes)
    return InterruptHandler(accelerator)


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", [False, False, True, True]), ("cuda", [False, False, False, True])],
)
def test_a_request_counts_in_its_step_or_the_next(device: str, expected: list[bool]) -> None:
    stop, found = interrupt(device, 2), []
    for number in (0.0, 0.0, 1.0, 1.0):
        message = torch.tensor([3.0, number])
        stop.receive(message[1])
        message.zero_()  # its memory may be used again
        found.append(stop.should_stop())
    assert found == expected


def test_a_system_without_sighup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGHUP", raising=False)
    spec = importlib.util.find_spec("finetune.runtime.signals")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.SIGNALS == {signal.SIGINT, signal.SIGTERM}
    with module.InterruptHandler(SimpleNamespace()) as handler:
        assert signal.getsignal(signal.SIGTERM) == handler._catch
