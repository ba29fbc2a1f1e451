"""`finetune predict`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from finetune.cli.command import Command
from finetune.cli.options import InputOptions, OutOption, SpeedOptions
from finetune.cli.output import check_output, open_records, quiet_libraries, show
from finetune.config.options import DATA, OUTPUT
from finetune.data.json_files import read_object
from finetune.registry import PREDICTORS, Registry
from finetune.runtime.processes import num_processes, process_index
from finetune.runtime.records import RECORD_SUFFIXES, TABLE_SUFFIXES, csv_lines, json_line
from finetune.types import UserError, quantity

if TYPE_CHECKING:
    from finetune.types import Example


@dataclass(frozen=True, kw_only=True)
class Predict(OutOption, SpeedOptions, InputOptions, Command):
    """Predict with a trained model: one line for each input, in input order.

    Examples:
        finetune predict runs/nli --text "A man eats." --pair "Somebody eats."
        finetune predict runs/tag --file new.txt --out predictions.csv
    """

    folder: Annotated[Positional[str], arg(metavar="RUN")]
    """Folder of a run, or hub id of a model (OWNER/NAME, OWNER/NAME@REVISION). Also a classifier,
    tagger or masked language model of transformers: a folder, hub id or short name. A masked
    language model fills [MASK] or <mask> with the five most probable subwords."""
    pair: Annotated[str | None, DATA] = None
    """The second text, for a model of pairs."""
    format: Annotated[Literal["jsonl", "csv"], OUTPUT] = "jsonl"
    """Print JSON Lines, or CSV for spreadsheets: lists in a cell are JSON, and a text that begins
    like a formula gets an apostrophe. The suffix of --out overrides it."""
    keep_columns: Annotated[bool, OUTPUT] = False
    """Repeat the columns of the input before the prediction, as tables always do. A column with the
    name of a field of the prediction becomes input_NAME."""
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

    inventory: str | None = None
    """Folder of WordNet's files for a run of `wsd`, where they have moved."""

    @property
    def shares_work(self) -> bool:
        """True for a trained model: all processes predict."""
        return self._predictor is None

    @property
    def _predictor(self) -> Callable[[Predict], None] | None:
        """The function that predicts with a run of a wing's command; None for a trained model."""
        path = Path(self.folder) / "config.json"
        task = str(read_object(path).get("task")) if path.is_file() else ""
        return Registry[Callable[[Predict], None]](PREDICTORS).get(task)

    def run(self) -> None:
        """Write one line for each input."""
        self.require_input("predict")
        if len(self.text) > 1 and self.pair is not None:
            raise UserError("--pair is the second text of one --text: write pairs to a file.")
        if (predict := self._predictor) is not None:
            predict(self)
        elif self.inventory is not None:
            raise UserError("--inventory is for runs of wsd: leave it out.")
        else:
            self._predict()

    def _predict(self) -> None:
        """Predict with a trained model."""
        output = None if self.out == "-" else self.out
        file, run = Path(self.file or ""), Path(self.folder)
        if output is not None:
            inputs = [file, *run.glob("*"), *run.glob("best/*")]
            check_output(output, inputs, RECORD_SUFFIXES)
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
        if self.pair is not None and task.description.words:
            raise UserError("--pair needs a model of pairs of texts, and this model tags words.")
        keys: dict[int, str | int] = {}
        tables = TABLE_SUFFIXES if output else (".csv",)
        as_table = Path(output or f"x.{self.format}").suffix.lower() in tables
        keep = self.keep_columns or as_table
        rows: dict[int, Mapping[str, Any]] = {}
        examples = self._examples(task, rows if keep else None)
        predictions = model.stream(_noting_keys(examples, keys))
        records = (
            with_columns(
                prediction.record() | {"id": keys.pop(prediction.id, prediction.id)},
                rows.pop(prediction.id, {}),
            )
            for prediction in predictions
        )
        if output is None or process_index() > 0:
            for line in csv_lines(records) if as_table else map(json_line, records):
                show(line)
        else:
            with open_records(output) as write:
                for record in records:
                    write(record)
        for number, noun, problem in (
            (
                not self.text and predictions.num_without_document,
                "input",
                "without a document, read without context",
            ),
            (predictions.num_blank, "blank text", "not predicted (label null)"),
            (
                predictions.num_cut,
                "word" if task.description.words else "text",
                f"cut to {task.record.max_length} tokens",
            ),
        ):
            if number and process_index() == 0:
                show(f"{quantity(number, noun)} {problem}", error=True)

    def _examples(self, task: Any, rows: dict[int, Mapping[str, Any]] | None) -> Iterator[Example]:
        """Yield the inputs; enter the values of their rows in ``rows``."""
        from finetune.inference.inputs import read_inputs

        if self.text:
            second = {} if self.pair is None else {"text_pair": self.pair}
            for index, text in enumerate(self.text):
                if rows is not None:
                    rows[index] = {"text": text, **second}
                given = text if self.pair is None else (text, self.pair)
                yield task.record.inputs.example(index, given, "--text")
        else:
            yield from read_inputs(task, self.file or "", **self.reading, rows=rows)


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


def _noting_keys(examples: Iterator[Example], keys: dict[int, str | int]) -> Iterator[Example]:
    """Yield the examples and enter the ids in their data, if any, in ``keys``."""
    for example in examples:
        if example.key is not None:
            keys[example.id] = example.key
        yield example
