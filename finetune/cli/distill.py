"""`finetune distill`: a small student that learns from a trained model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from finetune.cli.options import Command, FormatOption
from finetune.cli.output import print_tables, quiet_libraries, show
from finetune.cli.train import resumable, show_run
from finetune.config.options import COMMON, DATA, argument
from finetune.config.tasks import OutputSettings, TrainConfig

if TYPE_CHECKING:
    from finetune.api import DistilledRun


@dataclass(frozen=True, kw_only=True)
class Distill(OutputSettings, FormatOption, Command):
    """Train a small student on the predictions of a trained model, its teacher.

    Examples:
        finetune distill runs/nli --model minilm
        finetune distill runs/nli --layers 4 --unlabeled more.jsonl
    """

    teacher: Annotated[str, argument("TEACHER")]
    """Teacher: run folder or hub id of a model of `classify`, `nli`, `tag`, `ner`, `qa` or
    `choice`. The student has the same task, labels and data, and the same settings except those of
    training."""
    model: Annotated[str | None, COMMON] = None
    """Encoder of the student: a hub id, short name or folder."""
    layers: Annotated[int | None, COMMON] = None
    """Start from N layers of the teacher, with its embeddings and head, instead of --model. The
    layers are evenly spread (2 of 6: layers 3 and 6)."""
    unlabeled: Annotated[str | None, DATA] = None
    """File of unlabeled texts or words that the teacher labels, as for `finetune predict
    --file`."""
    temperature: Annotated[float, COMMON] = 2.0
    """Temperature that divides the logits of both models in the distillation loss."""
    hard_weight: float = 0.2
    """Weight of the loss on gold labels, from 0 to 1; the loss on the teacher's predictions has the
    remaining weight."""
    hidden_weight: float | None = None
    """Weight of the difference between the hidden states of both models. Default: 1, or 0 if they
    cannot be compared (other tokenizers or widths, or texts of a pair that are encoded separately).
    """
    data: Annotated[str | None, DATA] = None
    """Labeled data; default: the data of the teacher."""
    limit: Annotated[int | None, DATA] = None
    """Train on the first N labeled examples; default: as many as the teacher."""
    epochs: Annotated[float | None, COMMON] = None
    """Passes over labeled and unlabeled examples; default: 3, or up to 10 if 3 epochs have fewer
    than 500 steps."""
    steps: int | None = None
    """Number of optimizer steps, instead of --epochs."""
    batch_size: Annotated[int | None, COMMON] = None
    """Examples per optimizer step; default: 32."""
    lr: Annotated[float | None, COMMON] = None
    """Peak learning rate; default: 1.2e-4, or 6e-4 for small encoders (hidden size below 512)."""
    seed: Annotated[int, COMMON] = 1
    """Seed of initial weights, data order and dropout."""
    eval_every: int | None = None
    """Steps between evaluations on the validation split; default: one epoch."""
    max_tokens: int | None = None
    """Tokens per forward pass: affects memory and speed, never results."""

    trains = True

    def run(self) -> None:
        """Train the student, and print the comparison with its teacher."""
        from finetune import api
        from finetune.reporting.environment import command_line, resume_command
        from finetune.runtime.progress import Reporter
        from finetune.training.distillation import Distillation, student_folder

        quiet_libraries()
        reporter, options = Reporter(), vars(self)
        losses = {field.name: options[field.name] for field in fields(Distillation)}
        out = self.out or student_folder(self.teacher, self.resume)
        names = options.keys() & {field.name for field in fields(TrainConfig)}
        settings = {name: options[name] for name in names} | {"out": out}
        with resumable(reporter, lambda: resume_command(out), Path(out)):
            result = api.distill(
                self.teacher,
                layers=self.layers,
                distillation=Distillation(**losses),
                command=command_line(),
                reporter=reporter,
                **settings,
            )
        self._print(result)

    def _print(self, result: DistilledRun) -> None:
        rows = [[name, *measured] for name, measured in result.models.items()]
        columns = ["model", f"{result.split} {result.metric}", "parameters", "MB", "examples/s"]
        if self.format == "table":
            rows = [
                [name, score, size, f"{mb:.1f}", f"{rate:,.0f}"]
                for name, score, size, mb, rate in rows
            ]
        show_run(result.run, f"student, in {result.run.folder}:", "student", error=True)
        if rows:
            print_tables(self.format, ("", columns, rows))
        else:
            show("no split has gold to compare teacher and student on", error=True)
