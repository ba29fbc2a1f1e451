"""Advice for training on a CPU that other programs use."""

from __future__ import annotations

import pytest

from finetune.runtime import contention
from finetune.runtime.contention import ContentionCheck


def advice_after(
    steps: int, seconds: tuple[float, float, float], threads: int, patch: pytest.MonkeyPatch
) -> list[str]:
    """Return all advice of steps that take these seconds of wall, thread and process time."""
    now = [0.0, 0.0, 0.0]
    patch.setattr(contention, "_clocks", lambda: tuple(now))
    check, found = ContentionCheck(threads), []
    for step in range(steps):
        with check:
            slow = 10 if step < contention.SKIPPED else 1  # kernels are loaded
            now = [n + s * f for n, s, f in zip(now, seconds, (slow, 1, 1), strict=True)]
        now[0] += 1.0  # between steps
        found += filter(None, [check.advice()])
    return found


def test_a_shared_processor_is_noticed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = advice_after(20, (0.5, 0.2, 0.33), 2, monkeypatch)
    assert "gets 0.7 of the 2 cores" in line and "OMP_NUM_THREADS=1 is" in line
    (line,) = advice_after(20, (0.5, 0.3, 3.0), 16, monkeypatch)
    assert "gets 6.0 of the 16 cores" in line and "OMP_NUM_THREADS=6 is" in line
    (line,) = advice_after(20, (0.5, 0.3, 1.0), 2, monkeypatch)
    assert "OMP_NUM_THREADS=1 is" in line, "fewer threads than now"


@pytest.mark.parametrize(
    ("steps", "seconds", "threads"),
    [
        (20, (0.5, 0.48, 0.9), 2),
        (20, (0.5, 0.48, 0.6), 16),  # most of the work does not divide, and nobody waits
        (20, (0.5, 0.2, 0.2), 1),  # shared, but fewer threads than one there are not
        (7, (0.5, 0.2, 0.33), 2),  # too short to judge
    ],
)
def test_otherwise_there_is_no_advice(
    steps: int, seconds: tuple[float, float, float], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert advice_after(steps, seconds, threads, monkeypatch) == []
