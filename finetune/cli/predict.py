"""`finetune predict`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from finetune.cli.output import open_output, quiet_libraries
from finetune.config.tasks import column_map
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.inference.glue_submission import Part
    from finetune.inference.predictor import Predictor
    from finetune.types import Example


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Predict with a trained model: one JSON line for each input, in input order."""

    folder: Annotated[Positional[str], arg(metavar="RUN")]
    """Folder of a run or of a model in it."""
    text: UseAppendAction[tuple[str, ...]] = ()
    """One text. Write --text=TEXT if it begins with a dash."""
    pair: str | None = None
    """The second text, for a model of pairs."""
    file: str | None = None
    """Texts or words: JSON Lines, CSV, TSV, plain lines or CoNLL columns; `-` is standard input."""
    output: str | None = None
    """File to write (with --glue-submission: the folder); unset prints (writes here)."""
    glue_submission: tuple[str, ...] | None = None
    """Write the file that the GLUE benchmark takes (RTE.tsv, …). The task is the one whose data the
    model was trained on, or the one named: CoLA, SST-2, MRPC, QQP, STS-B, MNLI, QNLI, RTE, WNLI,
    AX. Without --file, the test split of that data is predicted."""
    columns: tuple[str, ...] = ()
    """Columns if their names are not recognized, as `role=column`."""
    decoding: str | None = None
    """Decode in another way than the model was trained with: greedy or constrained for `tag`;
    flat, nested or overlapping for `ner`."""
    batching: Literal["auto", "packed", "padded"] = "auto"
    """Pack or pad sequences, as in training: changes speed only."""
    max_tokens: int | None = None
    """Tokens per forward pass: changes memory and speed only. Unset is as in training, and at most
    1024 on a CPU."""

    def run(self) -> None:
        """Write one JSON line for each input, or the files of a GLUE submission."""
        self._check()
        quiet_libraries()
        from finetune.inference.predictor import Predictor

        model = Predictor(
            Path(self.folder),
            decoding=self.decoding,
            batching=self.batching,
            max_tokens=self.max_tokens,
        )
        task = model.task
        if self.pair is not None and task.reads_words:
            raise UserError("--pair needs a model of pairs of texts, and this model tags words.")
        if self.glue_submission is not None:
            self._write_submission(model)
            return
        predictions = model.stream(self._examples(task))
        with open_output(self.output) as out:
            for prediction in predictions:
                out.write(json.dumps(prediction.record(), ensure_ascii=False) + "\n")
        if (number := predictions.num_without_document) and not self.text:
            line = f"{number:,} inputs name no document and were read without the context"
            print(line, file=sys.stderr)
        if number := predictions.num_cut:
            line = f"{number:,} texts or words were cut to {task.record.max_length} tokens"
            print(line, file=sys.stderr)

    def _check(self) -> None:
        """Raise UserError for options that exclude each other."""
        if self.glue_submission is not None:
            if self.text:
                raise UserError("--glue-submission predicts a whole test file: leave --text out.")
            if len(self.glue_submission) > 1:
                raise UserError("--glue-submission takes one task.")
        elif bool(self.text) == (self.file is not None):
            raise UserError("predict needs either --text or --file (- is standard input).")
        if len(self.text) > 1:
            raise UserError("--text is given twice: write several texts to a file, for --file.")

    def _examples(self, task: Any) -> Iterator[Example]:
        """Yield the inputs."""
        from finetune import data
        from finetune.inference.predictor import to_example

        columns = column_map(self.columns)
        if self.text:
            text = self.text[0]
            yield to_example(task, 0, text if self.pair is None else (text, self.pair), "--text")
        elif task.reads_words:
            yield from data.read_token_file(self.file or "", columns=columns)
        else:
            yield from data.read_text_file(
                self.file or "", columns=columns, pair=task.record.pairs, labels=False
            )

    def _write_submission(self, model: Predictor) -> None:
        """Write the files of a GLUE submission; print their paths and sizes."""
        from finetune.inference.glue_submission import (
            AUTO,
            check_labels,
            lines,
            parts_of,
            wrong_number,
        )

        task, folder = model.task, Path(self.output or ".")
        name = next(iter(self.glue_submission or ()), AUTO)
        parts = parts_of(name, task.record.config.data, self.file)
        problem = None if task.reads_words else model.model.problem
        for part in parts:
            check_labels(part.task, list(model.labels), problem)
        folder.mkdir(parents=True, exist_ok=True)
        for part in parts:
            numbers: dict[int, str] = {}
            predictions = model.stream(self._numbered_examples(task, part, numbers))
            path = folder / part.task.file
            with open_output(str(path)) as out:
                out.writelines(lines(part.task, predictions, numbers))
            print(f"{path}: {len(numbers):,} rows")
            if (line := wrong_number(part.task, len(numbers))) is not None:
                print(line, file=sys.stderr)

    def _numbered_examples(
        self, task: Any, part: Part, numbers: dict[int, str]
    ) -> Iterator[Example]:
        """Yield the texts of a file of the benchmark, and note their numbers by id."""
        from finetune import data

        for example, number in data.read_numbered_texts(
            part.data or self.file or "",
            split=part.task.split if part.data else None,
            columns=column_map(self.columns),
            pair=task.record.pairs,
        ):
            numbers[example.id] = number
            yield example
