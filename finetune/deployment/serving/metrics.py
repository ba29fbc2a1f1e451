"""Counts of the server in the text format of Prometheus."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from finetune.deployment.serving.batcher import BATCHES, ITEMS, WAITING
from finetune.deployment.serving.counts import SharedCounts
from finetune.deployment.serving.models import ServedModel

STATUSES = range(100, 600)
"""Statuses that are counted."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper limits of the histogram of response times."""
OTHER = "other"
"""The path of requests without a route."""
PREFIX = "finetune_"
"""The beginning of the names of all metrics."""
WAITING_REQUESTS = "waiting_requests"
"""The metric to scale by."""
TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Requests by path and status, and their times: sums over all workers.

    The thread of the event loop counts in the rows of its worker.
    """

    def __init__(self, paths: Iterable[str], workers: int = 1) -> None:
        """Set all counts to 0.

        Args:
            paths: Paths of the routes. All other requests are counted together.
            workers: Number of processes that will count, after a fork.
        """
        self.paths = (*paths, OTHER)
        self.requests = SharedCounts(len(self.paths) * len(STATUSES), workers)
        self.times = SharedCounts(len(SECONDS) + 2, workers)
        """Responses by time, and the sum of the times."""
        self.begin = time.time()

    def use_row(self, worker: int) -> None:
        """Let this process count for a worker."""
        self.requests.use_row(worker)
        self.times.use_row(worker)

    def count(self, path: str, status: int, seconds: float) -> None:
        """Enter a response (status 499: the client has gone)."""
        row = self.paths.index(path if path in self.paths else OTHER)
        self.requests.own[row * len(STATUSES) + STATUSES.index(status)] += 1
        self.times.own[bisect_left(SECONDS, seconds)] += 1
        self.times.own[-1] += seconds

    def text(self, models: Iterable[ServedModel]) -> str:
        """Return all metrics."""
        named = {f'{{model="{model.name}"}}': model.batcher.counts.total() for model in models}
        requests = self.requests.total().reshape(len(self.paths), len(STATUSES))
        *times, total_seconds = self.times.total()
        counts, sums = [], 0
        for limit, number in zip((*SECONDS, "+Inf"), times, strict=True):
            sums += int(number)
            counts.append((f'_bucket{{le="{limit}"}}', sums))
        parts: Sequence[tuple[str, str, str, Iterable[tuple[str, float]]]] = (
            (
                "requests_total",
                "counter",
                "Responses by path and status.",
                (
                    (f'{{path="{path}",status="{status}"}}', int(number))
                    for path, numbers in sorted(zip(self.paths, requests, strict=True))
                    for status, number in zip(STATUSES, numbers, strict=True)
                    if number
                ),
            ),
            (
                "request_seconds",
                "histogram",
                "Seconds from request to response.",
                (*counts, ("_sum", float(total_seconds)), ("_count", sums)),
            ),
            (
                "examples_total",
                "counter",
                "Predicted examples.",
                ((model, int(each[ITEMS])) for model, each in named.items()),
            ),
            (
                "batches_total",
                "counter",
                "Batches of predicted examples.",
                ((model, int(each[BATCHES])) for model, each in named.items()),
            ),
            (
                WAITING_REQUESTS,
                "gauge",
                "Requests that wait for a batch.",
                ((model, int(each[WAITING])) for model, each in named.items()),
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
            name = f"{PREFIX}{name}"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{label} {value}" for label, value in values]
        return "\n".join(lines) + "\n"
