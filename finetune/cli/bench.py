"""`finetune bench`."""

from __future__ import annotations

from dataclasses import dataclass

from finetune.benchmark.settings import BenchSettings


@dataclass(frozen=True, kw_only=True)
class Bench(BenchSettings):
    """Measure speed and memory against transformers' Trainer and pipelines."""

    def run(self) -> None:
        """Measure the phases and print them."""
        from finetune.benchmark.command import run

        run(self)
