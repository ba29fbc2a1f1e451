"""`finetune predict`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from finetune.cli.output import open_output, quiet_libraries, show
from finetune.config.tasks import column_map, marks_words
from finetune.runtime.processes import num_processes, process_index
from finetune.types import UserError, printable, quantity

if TYPE_CHECKING:
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
    """File to write; unset prints."""
    columns: tuple[str, ...] = ()
    """Columns if their names are not recognized, as `role=column`."""
    encoding: str = "utf-8"
    """Text encoding of the file, such as `cp1252`, `utf-16` or `gb18030`."""
    decoding: str | None = None
    """Decode in another way than the model was trained with: greedy or constrained for `tag`;
    flat, nested or overlapping for `ner`."""
    batching: Literal["auto", "packed", "padded"] = "auto"
    """Pack or pad sequences, as in training: changes speed only."""
    max_tokens: int | None = None
    """Tokens per forward pass: changes memory and speed only. Unset is as in training, and at most
    1024 on a CPU."""

    def run(self) -> None:
        """Write one JSON line for each input."""
        if bool(self.text) == (self.file is not None):
            raise UserError("predict needs either --text or --file (- is standard input).")
        if len(self.text) > 1:
            raise UserError("--text is given twice: write several texts to a file, for --file.")
        file = Path(self.file or "")
        stream = self.file == "-" or (file.exists() and not file.is_file())
        if num_processes() > 1 and self.file and stream:
            raise UserError(f"--file {file}: processes cannot share a stream: name a plain file.")
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
        keys: dict[int, str | int] = {}
        predictions = model.stream(_noting_keys(self._examples(task), keys))
        run = Path(self.folder)
        inputs = [file, *run.glob("*"), *run.glob("best/*")]
        with open_output(self.output if process_index() == 0 else None, inputs) as out:
            for prediction in predictions:
                record = prediction.record()
                record["id"] = keys.pop(prediction.id, prediction.id)
                line = json.dumps(record, ensure_ascii=False)
                out.write((line if self.output else printable(line)) + "\n")
        for number, noun, problem in (
            (not self.text and predictions.num_without_document,
             "input", "without a document, read without context"),
            (predictions.num_cut, "word" if task.reads_words else "text",
             f"cut to {task.record.max_length} tokens"),
        ):  # fmt: skip
            if number and process_index() == 0:
                show(f"{quantity(number, noun)} {problem}", error=True)

    def _examples(self, task: Any) -> Iterator[Example]:
        """Yield the inputs."""
        from finetune import data
        from finetune.inference.predictor import to_example

        columns = column_map(self.columns)
        if self.text:
            text = self.text[0]
            yield to_example(task, 0, text if self.pair is None else (text, self.pair), "--text")
        elif task.reads_words:
            yield from data.read_token_file(
                self.file or "", columns=columns, encoding=self.encoding
            )
        else:
            yield from data.read_text_file(
                self.file or "",
                columns=columns,
                pair=task.record.pairs,
                labels=False,
                encoding=self.encoding,
                targets=marks_words(task.record.config),
            )


def _noting_keys(examples: Iterator[Example], keys: dict[int, str | int]) -> Iterator[Example]:
    """Yield the examples and enter the ids in their data, if any, in ``keys``."""
    for example in examples:
        if example.key is not None:
            keys[example.id] = example.key
        yield example
