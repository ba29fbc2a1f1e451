"""What a run must remember between steps, beyond weights, optimizer and random state."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.training import checkpoint
from finetune.types import UserError


@dataclass
class State:
    """Progress of a run, and what it was started with."""

    step: int = 0
    best_score: float | None = None
    best_step: int = 0
    bad_evaluations: int = 0
    finished: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    num_processes: int = 1

    def check_continues(self, last: Path, unset: Mapping[str, Any]) -> None:
        """A checkpoint may only be continued with what its run was started with; a setting that it
        does not know had the value that is ``unset``.

        Raises ValueError that names what differs.
        """
        saved = json.loads((last / checkpoint.STATE).read_text(encoding="utf-8"))
        now = json.loads(json.dumps(dataclasses.asdict(self)))
        for name, value in now["settings"].items():
            before = saved["settings"].get(name, unset.get(name))
            if before != value:
                raise UserError(
                    f"{last.parent}: started with {name} = {before!r}, now {value!r}: continue "
                    "with the same settings, or start anew with another --out."
                )
        for name, what in (("fingerprint", "other data"), ("num_processes", "other processes")):
            if saved[name] != now[name]:
                raise UserError(
                    f"{last.parent}: was started with {what} ({name} {saved[name]!r}, now "
                    f"{now[name]!r}): start anew with --out."
                )
