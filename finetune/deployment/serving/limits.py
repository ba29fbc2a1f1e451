"""Limits of the server, which are options of `finetune serve`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a request and of the queue."""

    max_bytes: int = 1_000_000
    """Largest body of a request, in bytes."""
    max_examples: int = 256
    """Largest number of examples in a request."""
    max_characters: int = 20_000
    """Largest number of characters of an example; a batch holds that many, or one example."""
    max_waiting: int = 512
    """Largest number of waiting requests of a model; further ones get status 503."""
    batch_size: int = 64
    """Largest number of examples to predict together."""

    def __post_init__(self) -> None:
        for field in fields(Limits):
            if (value := getattr(self, field.name)) < 1:
                raise UserError(f"--{field.name.replace('_', '-')} {value}: must be at least 1.")
