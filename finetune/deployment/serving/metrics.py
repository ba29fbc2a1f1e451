"""Counts of the server in the text format of Prometheus."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from finetune.deployment.serving.models import ServedModel

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper limits of the histogram of response times."""
TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Requests by path and status, and their times. Used by the thread of the event loop only."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.times = [0] * (len(SECONDS) + 1)
        self.total_seconds = 0.0
        self.begin = time.time()

    def count(self, path: str, status: int, seconds: float) -> None:
        """Enter a response (status 499: the client has gone)."""
        self.requests[path, status] += 1
        self.times[bisect_left(SECONDS, seconds)] += 1
        self.total_seconds += seconds

    def text(self, models: Iterable[ServedModel]) -> str:
        """Return all metrics."""
        named = {f'{{model="{model.name}"}}': model.batcher for model in models}
        counts, sums = [], 0
        for limit, number in zip((*SECONDS, "+Inf"), self.times, strict=True):
            sums += number
            counts.append((f'_bucket{{le="{limit}"}}', sums))
        parts: Sequence[tuple[str, str, str, Iterable[tuple[str, float]]]] = (
            (
                "requests_total",
                "counter",
                "Responses by path and status.",
                (
                    (f'{{path="{path}",status="{status}"}}', number)
                    for (path, status), number in sorted(self.requests.items())
                ),
            ),
            (
                "request_seconds",
                "histogram",
                "Seconds from request to response.",
                (*counts, ("_sum", self.total_seconds), ("_count", sums)),
            ),
            (
                "examples_total",
                "counter",
                "Predicted examples.",
                ((model, each.items) for model, each in named.items()),
            ),
            (
                "batches_total",
                "counter",
                "Batches of predicted examples.",
                ((model, each.batches) for model, each in named.items()),
            ),
            (
                "waiting_requests",
                "gauge",
                "Requests that wait for a batch.",
                ((model, each.waiting) for model, each in named.items()),
            ),
            (
                "start_time_seconds",
                "gauge",
                "Start of the server in seconds since 1970.",
                (("", self.begin),),
            ),
        )
        lines = []
        for name, kind, text, values in parts:
            name = f"finetune_{name}"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{label} {value}" for label, value in values]
        return "\n".join(lines) + "\n"
