"""`finetune bench`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from finetune.cli.options import Command
from finetune.cli.output import show
from finetune.config.options import argument
from finetune.config.tasks import flag
from finetune.types import UserError, did_you_mean

PHASES = ("train", "predict", "pretrain", "onnx")
"""The phases of the benchmark, each with its own comparison."""


@dataclass(frozen=True, kw_only=True)
class Bench(Command):
    """Measure speed and memory against transformers' Trainer and pipelines.

    Examples:
        finetune bench
        finetune bench --shape roberta-base --phases train,predict --size large
    """

    model: str = "minilm"
    """Encoder: a hub id, a short name, a local folder, or `minilm` (extra `offline`)."""
    shape: Literal["minilm", "roberta-base", "deberta-v3-small"] | None = None
    """Use random weights of this shape, which need no download, in place of --model."""
    task: Literal["classify", "nli", "tag"] = "classify"
    """Task to train and predict; without --data, on random texts with the lengths of SST-2
    (classify), MNLI (nli) or CoNLL-2003 (tag)."""
    data: str = ""
    """Texts to measure on in place of random ones, as in training."""
    columns: tuple[str, ...] = ()
    """Columns of --data if their names are not recognized, as `role=column`."""
    phases: str = "train,predict"
    """Phases to measure, separated by commas: train, predict, pretrain, and onnx, which
    compares torch, the exported graph and int8 on the CPU."""
    folder: Annotated[str | None, argument("RUN")] = None
    """Trained run for `--phases onnx`, in place of --model and --task. It is measured on texts of
    the validation split of --data, or of its own."""
    size: Literal["small", "default", "large"] | None = None
    """Amount of work: `default` suits two processor cores, `large` a GPU, `small` only checks that
    everything works; unset depends on the device."""
    batch_size: int | None = None
    """Examples per training step; unset is 32, or 4 with `--size small`."""
    rounds: int | None = None
    """Turns of each arm; the report has their median. Unset depends on the size."""
    threads: int | None = None
    """Threads of one operation; unset is torch's default."""
    format: Literal["table", "json"] = "table"
    """Print tables, or one JSON object."""

    def __post_init__(self) -> None:
        """Raise UserError for a number out of range, an unknown phase and unused columns."""
        for name in ("batch_size", "rounds", "threads"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise UserError(f"{flag(name)} must be 1 or more, not {number}.")
        for name in self.chosen_phases:
            if name not in PHASES:
                raise UserError(
                    f"--phases {self.phases!r}: {name!r} is not one of {', '.join(PHASES)}."
                    f"{did_you_mean(name, PHASES)}"
                )
        if self.folder is not None and self.chosen_phases != ["onnx"]:
            raise UserError(
                f"{self.folder}: a run is measured with --phases onnx alone: write that, or leave "
                "the run out."
            )
        if self.columns and not self.data:
            raise UserError("--columns needs --data: add --data, or leave --columns out.")

    @property
    def chosen_phases(self) -> list[str]:
        """The names of the phases in the given order, each once."""
        return list(dict.fromkeys(name.strip() for name in self.phases.split(",")))

    @property
    def single_process(self) -> str:
        """One process is measured."""
        return "bench"

    def run(self) -> None:
        """Measure the phases; print a table for each case, or one JSON object."""
        import torch

        from finetune.benchmark.measure import environment, measure, peak_memory, table
        from finetune.benchmark.subject import cases_of
        from finetune.runtime.launch import make_accelerator
        from finetune.runtime.memory import memory_returned

        before, rows = torch.get_num_threads(), []
        torch.set_num_threads(self.threads or before)
        device = make_accelerator().device
        try:
            for case, rounds in cases_of(self, device):
                show(f"{case.phase}: {case.name}: {len(case.arms)} arms", error=True)
                case.arms[0].heaviest()  # the first call fills shared caches
                with memory_returned():  # memory first, which also warms up
                    most = [peak_memory(arm.heaviest, device) for arm in case.arms]
                found = measure(case, rounds, most)
                rows += found
                if self.format == "table":
                    show(table(found))
        finally:
            machine = environment(device)
            torch.set_num_threads(before)
        if self.format == "json":
            show(json.dumps({"rows": [asdict(row) for row in rows], "environment": machine}))
        else:
            show("; ".join(f"{name}: {value}" for name, value in machine.items()))
