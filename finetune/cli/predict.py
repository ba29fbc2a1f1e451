"""`finetune predict`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from finetune.cli.output import csv_line, open_output, quiet_libraries, show
from finetune.config.tasks import column_map, marks_words
from finetune.runtime.processes import num_processes, process_index
from finetune.types import UserError, printable, quantity

if TYPE_CHECKING:
    from finetune.types import Example


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Predict with a trained model: one line for each input, in input order."""

    folder: Annotated[Positional[str], arg(metavar="RUN")]
    """Folder of a run or of a model in it."""
    text: UseAppendAction[tuple[str, ...]] = ()
    """A text. Write --text=TEXT if it begins with a dash."""
    pair: str | None = None
    """The second text, for a model of pairs."""
    file: str | None = None
    """Texts or words: JSON Lines, CSV, TSV, plain lines or CoNLL columns; `-` is standard input."""
    output: str | None = None
    """File to write; unset or `-` prints."""
    format: Literal["jsonl", "csv"] | None = None
    """JSON Lines, or CSV for spreadsheets: lists in a cell are JSON, and a text that begins like a
    formula gets an apostrophe. Unset is CSV for an --output named .csv, else JSON Lines."""
    keep_columns: bool = False
    """Repeat the columns of the input before the prediction, as CSV always does; those with a name
    of the prediction become input_NAME."""
    columns: tuple[str, ...] = ()
    """Columns if their names are not recognized, as `role=column`."""
    encoding: str = "utf-8"
    """Text encoding of the file, such as `cp1252`, `utf-16` or `gb18030`."""
    decoding: str | None = None
    """Decode in another way than the model was trained with: greedy or constrained for `tag`;
    flat, nested or overlapping for `ner`."""
    threshold: str | None = None
    """Lowest probability of a predicted label, in place of the model's: a number, or NAME=P,NAME=P.
    It applies to several labels, the positive one of two labels, and span types."""
    labels: str | None = None
    """Labels for zero-shot classification by a model of natural language inference, as in
    `sports,politics`; `NAME=WORDS` gives the words that stand for a label in its hypothesis."""
    template: str | None = None
    """Hypothesis of each of the --labels, `{}` for its words; unset is `This example is {}.`"""
    multi_label: bool = False
    """Predict any number of the --labels, by --threshold."""
    batching: Literal["auto", "packed", "padded"] = "auto"
    """Pack or pad sequences, as in training: changes speed only."""
    max_tokens: int | None = None
    """Tokens per forward pass: changes memory and speed only. Unset is as in training, and at most
    1024 on a CPU."""

    def run(self) -> None:
        """Write one line for each input."""
        if bool(self.text) == (self.file is not None):
            raise UserError("predict needs either --text or --file (- is standard input).")
        if len(self.text) > 1 and self.pair is not None:
            raise UserError("--pair is the second text of one --text: write pairs to a file.")
        file = Path(self.file or "")
        stream = self.file == "-" or (file.exists() and not file.is_file())
        if num_processes() > 1 and self.file and stream:
            raise UserError(f"--file {file}: processes cannot share a stream: name a plain file.")
        quiet_libraries()
        from finetune.inference.predictor import Predictor

        model = Predictor(
            Path(self.folder),
            decoding=self.decoding,
            threshold=self.threshold,
            labels=self.labels,
            template=self.template,
            multi_label=self.multi_label,
            batching=self.batching,
            max_tokens=self.max_tokens,
        )
        task = model.task
        if self.pair is not None and task.reads_words:
            raise UserError("--pair needs a model of pairs of texts, and this model tags words.")
        keys: dict[int, str | int] = {}
        output = None if self.output == "-" else self.output
        as_csv = self.format == "csv" or (
            self.format is None and (output or "").lower().endswith(".csv")
        )
        keep = self.keep_columns or as_csv
        rows: dict[int, Mapping[str, Any]] = {}
        examples = self._examples(task, rows if keep else None)
        predictions = model.stream(_noting_keys(examples, keys))
        run = Path(self.folder)
        inputs = [file, *run.glob("*"), *run.glob("best/*")]
        with open_output(output if process_index() == 0 else None, inputs) as out:
            records = (
                with_columns(
                    prediction.record() | {"id": keys.pop(prediction.id, prediction.id)},
                    rows.pop(prediction.id, {}),
                )
                for prediction in predictions
            )
            for line in _csv_lines(records) if as_csv else map(_json, records):
                out.write((line if output else printable(line)) + "\n")
        for number, noun, problem in (
            (not self.text and predictions.num_without_document,
             "input", "without a document, read without context"),
            (predictions.num_cut, "word" if task.reads_words else "text",
             f"cut to {task.record.max_length} tokens"),
        ):  # fmt: skip
            if number and process_index() == 0:
                show(f"{quantity(number, noun)} {problem}", error=True)

    def _examples(self, task: Any, rows: dict[int, Mapping[str, Any]] | None) -> Iterator[Example]:
        """Yield the inputs; enter the values of their rows in ``rows``."""
        from finetune import data
        from finetune.inference.predictor import to_example

        columns = column_map(self.columns)
        if self.text:
            second = {} if self.pair is None else {"text_pair": self.pair}
            for index, text in enumerate(self.text):
                if rows is not None:
                    rows[index] = {"text": text, **second}
                given = text if self.pair is None else (text, self.pair)
                yield to_example(task, index, given, "--text")
        elif task.reads_words:
            yield from data.read_token_file(
                self.file or "", columns=columns, encoding=self.encoding, rows=rows,
                relations=task.name == "relations",
            )  # fmt: skip
        else:
            yield from data.read_text_file(
                self.file or "",
                columns=columns,
                pair=task.record.pairs,
                labels=False,
                encoding=self.encoding,
                targets=marks_words(task.record.config),
                rows=rows,
            )


def with_columns(record: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the id, the columns of the input, and the prediction."""
    result = {"id": record["id"]}
    for name, value in values.items():
        if name in ("id", "words") and value in (record.get(name), None, ""):
            continue
        while name in record or name in result:
            name = f"input_{name}"
        result[name] = value
    return result | record


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, default=str)


def _csv_lines(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield a header with the columns of the first record, and a line for each record."""
    columns: list[str] = []
    for record in records:
        scores = record.pop("scores", None)
        if isinstance(scores, dict):
            record |= {f"score:{name}": value for name, value in scores.items()}
        elif scores is not None:
            record["scores"] = scores
        if not columns:
            columns = list(record)
            yield csv_line(columns)
        if unknown := [name for name in record if name not in columns]:
            raise UserError(
                f"row {record['id']}: the column {unknown[0]!r} is not in the first row, so not in "
                "the header of the CSV file: write --format jsonl."
            )
        yield csv_line(record.get(name) for name in columns)


def _noting_keys(examples: Iterator[Example], keys: dict[int, str | int]) -> Iterator[Example]:
    """Yield the examples and enter the ids in their data, if any, in ``keys``."""
    for example in examples:
        if example.key is not None:
            keys[example.id] = example.key
        yield example
