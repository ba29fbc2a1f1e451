"""`finetune distill`: a small student that learns from a trained model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from finetune.cli.options import Command, FormatOption
from finetune.cli.output import print_tables, quiet_libraries, show
from finetune.cli.train import report_run, resumable, show_run
from finetune.config.options import COMMON, DATA, Help, argument
from finetune.config.tasks import Resume

if TYPE_CHECKING:
    from finetune.api import DistilledRun


@dataclass(frozen=True, kw_only=True)
class Distill(FormatOption, Command):
    """Train a small student on the predictions of a trained model, its teacher.

    Examples:
        finetune distill runs/nli --model minilm
        finetune distill runs/nli --layers 4 --unlabeled more.jsonl --baseline
    """

    teacher: Annotated[str, argument("TEACHER")]
    """Folder of a run of `classify`, `nli`, `tag` or `ner`, or hub id of such a model. The student
    has its task, labels and data, and its settings except the training settings."""
    model: Annotated[str | None, COMMON] = None
    """Encoder of the student: a hub id, short name or folder."""
    layers: Annotated[int | None, COMMON] = None
    """In place of --model: start with the embeddings, the head and N layers of the teacher, evenly
    spread (2 of 6: layers 3 and 6)."""
    unlabeled: Annotated[str | None, DATA] = None
    """File of texts or words without labels, as for `finetune predict --file`. The teacher labels
    them."""
    temperature: Annotated[float, COMMON] = 2.0
    """Divides the logits of both models in the divergence between their predictions."""
    hard_weight: float = 0.2
    """Weight of the gold labels, from 0 to 1; the predictions of the teacher have the rest."""
    hidden_weight: float | None = None
    """Weight of the difference between hidden states. Unset is 1, or 0 if they cannot be compared:
    with different tokenizers, or if texts of a pair are read apart."""
    baseline: Annotated[bool, COMMON] = False
    """Also train the student without its teacher, for the same number of steps from the pretrained
    model, in the folder OUT-without-teacher."""
    data: Annotated[str | None, DATA] = None
    """Labeled data; unset is the data of the teacher."""
    out: Annotated[str | None, Help("FOLDER", "output", common=True)] = None
    """Run folder of the student; unset makes a new one under `runs/`."""
    limit: Annotated[int | None, DATA] = None
    """Train on the first N labeled examples only; unset as the teacher."""
    epochs: Annotated[float | None, COMMON] = None
    """Passes over labeled and unlabeled examples; unset is 3, or up to 10 if 3 passes make fewer
    than 500 steps."""
    steps: int | None = None
    """Optimizer steps, in place of --epochs."""
    batch_size: Annotated[int | None, COMMON] = None
    """Examples per optimizer step; unset is 32."""
    lr: Annotated[float | None, COMMON] = None
    """Peak learning rate; unset is 1.2e-4, and 6e-4 for small encoders (narrower than 512)."""
    seed: Annotated[int, COMMON] = 1
    """Seed of initial weights, data order and dropout."""
    eval_every: int | None = None
    """Steps between evaluations on the validation split; unset is once an epoch."""
    save_every: int | None = None
    """Steps between checkpoints; unset saves at each evaluation."""
    max_tokens: int | None = None
    """Tokens per forward pass: changes memory and speed only."""
    resume: Annotated[Resume, Help("[auto]", "output", common=True)] = False
    """Continue the run in --out from its last checkpoint; `auto` starts a run if there is none."""

    trains = True

    def run(self) -> None:
        """Train the student, and print the comparison with its teacher."""
        from finetune import api
        from finetune.reporting.environment import command_line, resume_command
        from finetune.runtime.progress import Reporter
        from finetune.training.distillation import Distillation, student_folder

        quiet_libraries()
        reporter = Reporter()
        distillation = Distillation(
            temperature=self.temperature,
            hard_weight=self.hard_weight,
            hidden_weight=self.hidden_weight,
            unlabeled=self.unlabeled,
        )
        out = self.out or student_folder(self.teacher, self.resume)
        with resumable(reporter, lambda: resume_command(out), Path(out)):
            result = api.distill(
                self.teacher,
                self.model,
                layers=self.layers,
                data=self.data,
                distillation=distillation,
                baseline=self.baseline,
                command=command_line(),
                reporter=reporter,
                report=report_run,
                out=out,
                limit=self.limit,
                epochs=self.epochs,
                steps=self.steps,
                batch_size=self.batch_size,
                lr=self.lr,
                seed=self.seed,
                eval_every=self.eval_every,
                save_every=self.save_every,
                max_tokens=self.max_tokens,
                resume=self.resume,
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
        trained = {"student": result.run, "student without teacher": result.baseline}
        for name, run in trained.items():
            if run is None:
                continue
            show_run(run, f"{name}, in {run.folder}:", name, error=True)
        if rows:
            print_tables(self.format, ("", columns, rows))
        else:
            show("no split has gold to compare teacher and student on", error=True)
