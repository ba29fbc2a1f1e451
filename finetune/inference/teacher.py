"""Outputs of a teacher for distillation: logits and hidden states of sequences, in files.

They are computed once and written at once, so that memory holds one forward pass, and training maps
the files. Shapes: C classes, T tokens, H width.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from finetune.inference.loop import forward_passes
from finetune.models.heads.crf import CrfScores
from finetune.preprocessing.batching import pack
from finetune.preprocessing.encodings import Array, Encodings, Ragged
from finetune.runtime.files import replace_folder
from finetune.runtime.progress import Reporter
from finetune.tasks.base import Task
from finetune.types import Batch

LOGITS, STATES, EDGES, SIZES = "logits.bin", "states.bin", "edges.safetensors", "sizes.json"


@dataclass(frozen=True, slots=True)
class TeacherOutputs:
    """The outputs for N sequences, in their order.

    Attributes:
        logits: For each sequence the rows of its logits, float32 [*, C].
        states: For each sequence the chosen hidden states of its tokens side by side, float16
            [T, layers * H]; None without.
        edges: The start, end and transition scores of a CRF.
    """

    logits: Ragged
    states: Ragged | None
    edges: Mapping[str, torch.Tensor]


def write_outputs(
    folder: Path,
    task: Task,
    head: Any,
    sequences: Encodings,
    *,
    layers: Sequence[int] = (),
    device: torch.device,
    precision: str,
    reporter: Reporter,
    check_stop: Callable[[], object] = lambda: None,
) -> None:
    """Write the outputs of a teacher to a folder, whole or not at all.

    Args:
        folder: The folder, which is replaced.
        task: The task of the teacher.
        head: The teacher, on the device. It predicts without dropout.
        sequences: What it reads.
        layers: Numbers of the layers whose hidden states are written.
        device: See ``head``.
        precision: ``bf16``, ``fp16`` or ``fp32``.
        reporter: Shows the progress.
        check_stop: Called after each forward pass; an error that it raises ends the work.
    """
    starts = _begins(task.num_logits(sequences)), _begins(sequences.lengths)
    sizes = [0, 0]
    with (
        replace_folder(folder) as fresh,
        (fresh / LOGITS).open("wb") as logits_file,
        (fresh / STATES).open("wb") as states_file,
    ):

        def forward(batch: Batch) -> _Output:
            output, states = head.with_states(batch, layers)
            none = torch.empty(len(batch.input_ids), 0, device=device)
            return _Output(output, torch.cat([none, *states], 1))

        passes = forward_passes(
            head,
            sequences.lengths,
            lambda rows: pack(sequences.take(rows)),
            lambda output, batch: output.arrays(),
            forward=forward,
            device=device,
            precision=precision,
            max_tokens=task.record.config.max_tokens,
            reporter=reporter,
            title="teacher",
        )
        with contextlib.closing(passes):
            for group, (logits, hidden, edges) in passes:
                if edges and not (fresh / EDGES).exists():
                    save_file(edges, str(fresh / EDGES))
                sizes = [logits.shape[1], hidden.shape[1]]
                _write_rows(logits_file, logits, starts[0], group)
                _write_rows(states_file, hidden, starts[1], group)
                check_stop()
        (fresh / SIZES).write_text(json.dumps(sizes), encoding="utf-8")


class _Output(NamedTuple):
    """The logits (or scores of a CRF) of a batch, and the chosen states [T, layers * H]."""

    logits: Any
    states: torch.Tensor

    def arrays(self) -> tuple[Array, Array, dict[str, torch.Tensor]]:
        """Return logits, states and the edges of a CRF on the CPU."""
        logits, edges = self.logits, {}
        if isinstance(logits, CrfScores):
            edges = {name: value.cpu().contiguous() for name, value in logits._asdict().items()}
            logits = edges.pop("emissions")
        return logits.cpu().numpy(), self.states.half().cpu().numpy(), edges


def read_outputs(folder: Path, task: Task, sequences: Encodings) -> TeacherOutputs:
    """Map the outputs for these sequences into memory."""
    sizes = json.loads((folder / SIZES).read_text(encoding="utf-8"))
    states = None
    if sizes[1]:
        states = _mapped(folder / STATES, np.float16, sizes[1], sequences.lengths)
    edges = load_file(str(folder / EDGES)) if (folder / EDGES).is_file() else {}
    logits = _mapped(folder / LOGITS, np.float32, sizes[0], task.num_logits(sequences))
    return TeacherOutputs(logits, states, edges)


def _begins(counts: Array) -> Array:
    return np.concatenate(([0], np.cumsum(counts)))


def _write_rows(file: Any, rows: Array, starts: Array, group: Array) -> None:
    place = 0
    for number in group:
        count = int(starts[number + 1] - starts[number])
        file.seek(int(starts[number]) * rows.shape[1] * rows.itemsize)
        file.write(rows[place : place + count].tobytes())
        place += count
    if place != len(rows):
        raise RuntimeError(f"{len(rows)} rows of logits or states for {place}")


def _mapped(path: Path, kind: Any, columns: int, counts: Array) -> Ragged:
    values = np.memmap(path, kind, mode="r", shape=(int(counts.sum()), columns))
    return Ragged.of_counts(values.view(np.ndarray), counts)
