"""`finetune predict`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from finetune.cli.options import (
    Command,
    DataOptions,
    InputOptions,
    OutOption,
    ReasonOptions,
    SpeedOptions,
)
from finetune.cli.output import (
    check_output,
    inputs_of,
    open_records,
    print_table,
    quiet_libraries,
    show,
)
from finetune.config.options import DATA, OUTPUT, Help, argument
from finetune.config.tasks import LARGEST
from finetune.data.json_files import read_object
from finetune.registry import PLUGINS
from finetune.runtime.processes import num_processes, process_index
from finetune.runtime.records import (
    GROUP,
    RECORD_SUFFIXES,
    TABLE_SUFFIXES,
    csv_lines,
    json_line,
    with_columns,
)
from finetune.types import UserError, quantity

if TYPE_CHECKING:
    from finetune.inference.loop import PredictionStream
    from finetune.inference.parts import Parts, Shard
    from finetune.inference.predictor import Predictor
    from finetune.runtime.progress import Reporter
    from finetune.types import Example, Prediction

STRONGEST = 12
"""Words that a table of an explanation has."""
PREDICTED = 8
"""Rows that are predicted to see the fields of predictions."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Predict(OutOption, ReasonOptions, SpeedOptions, InputOptions, Command):
    """Predict with a trained model: one line for each input, in input order.

    Examples:
        finetune predict runs/nli --text "A man eats." --pair "Somebody eats." --explain
        finetune predict runs/tag --file new.txt --out predictions.csv
        finetune predict runs/nli --file shards/ --out predictions/ --shard 0/8
    """

    folder: Annotated[str, argument("RUN")]
    """Folder of a run, or hub id of a model (OWNER/NAME, OWNER/NAME@REVISION). Also a classifier,
    tagger or masked language model of transformers: a folder, hub id or short name. A masked
    language model fills [MASK] or <mask> with the five most probable subwords."""
    pair: Annotated[str | None, DATA] = None
    """The second text, for a model of pairs."""
    out: Annotated[str | None, Help("FILE|FOLDER/", common=True)] = None
    """File to write, in the format of its suffix, or FOLDER/ for numbered parts; unset prints.
    Suffixes are .jsonl, .json, .csv, .tsv, .xlsx and .parquet. After a kill, the same command keeps
    the complete parts of a folder and continues."""
    format: Annotated[Literal["jsonl", "csv", "parquet"] | None, OUTPUT] = None
    """Print JSON Lines, or CSV for spreadsheets: lists in a cell are JSON, and a text that begins
    like a formula gets an apostrophe. The suffix of --out overrides it. Parts are parquet or jsonl.
    Unset is jsonl, for parts parquet."""
    shard: Annotated[str | None, Help("I/N", group="output", common=True)] = None
    """Predict the share I, from 0 to N - 1, of the parts in FOLDER/, as one of N jobs."""
    part_rows: Annotated[int | None, Help(group="output")] = None
    """Rows of the input in each part; unset is 65,536."""
    keep_columns: Annotated[bool, OUTPUT] = False
    """Repeat the columns of the input before the prediction, as tables always do. A column with the
    name of a field of the prediction becomes input_NAME."""
    decoding: str | None = None
    """Decode in another way than the model was trained with: greedy or constrained for `tag`;
    flat, nested or overlapping for `ner`."""
    threshold: str | None = None
    """Lowest probability of an answer, in place of the model's: a number, or NAME=P,NAME=P for
    labels of texts and span types. Answers below it are withheld (null); of two labels the other
    one is predicted."""
    costs: Annotated[str | None, Help("FILE")] = None
    """Predict the label with the least expected cost: a file as for `finetune thresholds`."""

    inventory: str | None = None
    """Folder of WordNet's files for a run of `wsd`, where they have moved."""

    @property
    def shares_work(self) -> bool:
        """True for a trained model: all processes predict."""
        return self._predictor is None

    @property
    def _predictor(self) -> Callable[[Predict], None] | None:
        path = Path(self.folder) / "config.json"
        task = str(read_object(path).get("task")) if path.is_file() else ""
        return PLUGINS.get(f"predict {task}")

    def run(self) -> None:
        """Write one line for each input."""
        self.require_input("predict")
        if len(self.text) > 1 and self.pair is not None:
            raise UserError("--pair is the second text of one --text: write pairs to a file.")
        if self.wants_reasons and (self._predictor or self._in_parts):
            raise UserError(
                "--explain and --nearest are for trained models, and for files that are not in "
                "parts: leave them out, or name a file with --out."
            )
        if (predict := self._predictor) is not None:
            if self._in_parts:
                raise UserError(f"--out {self.out}: this run writes a file: name one.")
            predict(self)
        elif self.inventory is not None:
            raise UserError("--inventory is for runs of wsd: leave it out.")
        else:
            self._predict()

    @property
    def _in_parts(self) -> bool:
        out = self.out or ""
        return out.endswith(("/", os.sep)) or (bool(out) and Path(out).is_dir())

    def _predict(self) -> None:
        if self._in_parts:
            return self._predict_parts(Path(self.out or ""))
        if self.shard is not None or self.part_rows is not None or self.format == "parquet":
            raise UserError(
                "--shard, --part-rows and --format parquet are for parts in a folder: write --out "
                "FOLDER/, or leave them out."
            )
        output = None if self.out == "-" else self.out
        file, run = Path(self.file or ""), Path(self.folder)
        if output is not None:
            inputs = [*inputs_of(self.file), *run.glob("*"), *run.glob("best/*")]
            check_output(output, inputs, RECORD_SUFFIXES)
        stream = self.file == "-" or (file.exists() and not (file.is_file() or file.is_dir()))
        if num_processes() > 1 and self.file and stream:
            raise UserError(f"--file {file}: processes cannot share a stream: name a plain file.")
        from finetune.data.sources import input_files
        from finetune.inference.parts import about_rows
        from finetune.runtime.progress import Reporter

        model = self._load()
        tables = TABLE_SUFFIXES if output else (".csv",)
        as_table = Path(output or f"x.{self.format}").suffix.lower() in tables
        predictions, found = self._predictions(model, as_table)
        records = (record for _, record in found)
        if output is None and self.text and self.format is None and self.wants_reasons:
            for record in records:
                _show_reasons(record)
        elif output is None or process_index() > 0:
            for line in csv_lines(records) if as_table else map(json_line, records):
                show(line)
        else:
            predictions.reporter = reporter = Reporter()
            with _naming_parts(output), open_records(output) as write, reporter:
                total = about_rows(input_files(self.file)) if self.file and not stream else None
                reporter.start("predicting", total or len(self.text) or None, unit="row")
                for record in _reporting(records, reporter):
                    write(record)
        if process_index() == 0:
            self._show_notes(model, predictions)
        return None

    def _predict_parts(self, folder: Path) -> None:
        shard = self._check_parts(folder)
        quiet_libraries()
        from finetune.data.sources import input_files
        from finetune.inference.parts import PART_ROWS, open_parts
        from finetune.runtime.launch import make_accelerator
        from finetune.runtime.progress import Reporter
        from finetune.tasks import model_folder

        files = input_files(self.file or "")
        if problem := next((file for file in files if not file.is_file()), None):
            raise UserError(f"--file {problem}: parts need plain files: name some.")
        if any(file.resolve().parent == folder.resolve() for file in files):
            raise UserError(f"--out {folder} holds the input: name another folder.")
        suffix = f".{self.format or 'parquet'}"
        names = ("decoding", "threshold", "keep_columns")
        settings = {name: vars(self)[name] for name in (*names, "encoding")}
        settings |= {} if self.costs is None else {"costs": self._costs}
        opened = open_parts(
            folder,
            model_folder(self.folder),
            files,
            settings | {"columns": self.column_map},
            suffix=suffix,
            part_rows=self.part_rows or PART_ROWS,
            shard=shard.divided(process_index(), num_processes()),
            reporter=(reporter := Reporter()),
        )
        if num_processes() > 1:
            make_accelerator()  # all processes connect, also one that has nothing left to predict
        with reporter, opened as parts:
            model = self._load()
            if suffix in TABLE_SUFFIXES:
                parts.sample = self._sample(model)
            predictions, found = self._predictions(model, suffix in TABLE_SUFFIXES, parts)
            left = parts.rows_left
            for name in parts.damaged:
                show(f"{folder / name} is damaged: predicted again", error=True)
            reporter.start("predicting", left, unit="row")
            predictions.reporter = reporter
            parts.write(_reporting(found, reporter))
            self._show_notes(model, predictions)
            show(
                f"wrote {parts.num_written} of {quantity(parts.num_parts, 'part')} "
                f"({quantity(parts.num_rows, 'row')}): {folder}",
                error=True,
            )

    def _sample(self, model: Predictor) -> list[dict[str, Any]]:
        """Return the first rows of the input with a typical prediction: the columns of all parts.

        They are a function of input and model alone, so that all jobs write the same types.
        """
        from finetune.inference.loop import chunks
        from finetune.inference.parts import typical

        rows: dict[int, Mapping[str, Any]] = {}
        examples: list[Any] = list(islice(self._examples(model.task, rows, None), GROUP))
        if not examples:
            return []
        # another process may have nothing left, so this one does not predict together with it
        found = typical(model.stream(examples[:PREDICTED], chunked=chunks))
        sample = []
        for example, record in product(examples, [each.record() for each in found]):
            own: dict[str, Any] = {"id": example.id if example.key is None else example.key}
            if "words" in record:
                own["words"] = list(example.words)
            sample.append(with_columns(record | own, rows.get(example.id, {})))
        return sample

    def _check_parts(self, folder: Path) -> Shard:
        from finetune.inference.parts import Shard

        if self.text or self.file == "-":
            raise UserError(
                f"--out {folder} is a folder, and parts are for files: name the input with --file, "
                "or a file to write."
            )
        if self.format == "csv":
            raise UserError("--format csv: parts are parquet or jsonl.")
        if self.part_rows is not None and not 1 <= self.part_rows <= LARGEST:
            raise UserError(f"--part-rows must be 1 or more, at most {LARGEST}.")
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {folder}/ is a file: name a folder.")
        return Shard() if self.shard is None else Shard.parse(self.shard)

    @property
    def _costs(self) -> Mapping[str, Mapping[str, float]] | None:
        from finetune.evaluation.costs import read_costs

        return None if self.costs is None else read_costs(self.costs)

    def _load(self) -> Predictor:
        quiet_libraries()
        from finetune.inference.predictor import Predictor

        model = Predictor(
            Path(self.folder),
            decoding=self.decoding,
            threshold=self.threshold,
            costs=self._costs,
            max_tokens=self.max_tokens,
        )
        if self.pair is not None and model.task.description.words:
            raise UserError("--pair needs a model of pairs of texts, and this model tags words.")
        self.reasons(model, [])  # refused before anything is predicted
        return model

    def _predictions(
        self, model: Predictor, as_table: bool, parts: Parts | None = None
    ) -> tuple[PredictionStream, Iterator[tuple[int, dict[str, Any]]]]:
        noted: dict[int, Example] = {}
        rows: dict[int, Mapping[str, Any]] = {}

        def drop(row: int) -> None:
            noted.pop(row, None)
            rows.pop(row, None)

        wanted, chunked = None, None
        if parts is not None:
            chunked = partial(parts.chunks, drop=drop)
            if not model.task.record.context_words:  # else other sentences are read, too
                wanted = parts.wants_row
        keep = self.keep_columns or as_table
        examples = self._examples(model.task, rows if keep else None, wanted)
        predictions = model.stream(_noting(examples, noted), chunked=chunked)

        def record_of(found: Prediction) -> dict[str, Any]:
            example = noted.pop(found.id)
            record = found.record() | {"id": found.id if example.key is None else example.key}
            for name, (reasons,) in self.reasons(model, [example]).items():
                record[name] = [each.record() for each in reasons]
            return with_columns(record, rows.pop(found.id, {}))

        return predictions, ((found.id, record_of(found)) for found in predictions)

    def _show_notes(self, model: Predictor, predictions: PredictionStream) -> None:
        task = model.task
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
            if number:
                show(f"{quantity(number, noun)} {problem}", error=True)

    def _examples(
        self,
        task: Any,
        rows: dict[int, Mapping[str, Any]] | None,
        wanted: Callable[[int], bool] | None,
    ) -> Iterator[Example]:
        if self.text:
            second = {} if self.pair is None else {"text_pair": self.pair}
            for index, text in enumerate(self.text):
                if rows is not None:
                    rows[index] = {"text": text, **second}
                given = text if self.pair is None else (text, self.pair)
                yield task.record.example(index, given, "--text")
        else:
            yield from task.record.read(self.file or "", **self.reading, rows=rows, wanted=wanted)


@contextlib.contextmanager
def predicted(model: str, file: str, options: DataOptions) -> Iterator[Path]:
    """Context with the predictions of a model for a file, read with the options, as a file."""
    with TemporaryDirectory(prefix="finetune-") as folder:
        out = Path(folder) / "predictions.jsonl"
        columns, encoding = options.columns, options.encoding
        Predict(folder=model, file=file, out=str(out), columns=columns, encoding=encoding).run()
        yield out


def _reporting(records: Iterable[T], reporter: Reporter) -> Iterator[T]:
    for number, record in enumerate(records, 1):
        yield record
        reporter.update(number)


@contextlib.contextmanager
def _naming_parts(output: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if Path(output).exists() and not Path(output).is_file():  # a pipe, written directly
            raise
        folder = Path(output).with_suffix("")
        show(
            f"interrupted: nothing was written to {output}. The same command starts again; with "
            f"--out {folder}/ it would write parts, which it continues.",
            error=True,
        )
        sys.exit(130)


def _show_reasons(record: Mapping[str, Any]) -> None:
    show(json_line({k: v for k, v in record.items() if k not in ("explanation", "nearest")}))
    for each in record.get("explanation", ()):
        words, scores = ([*each[k], *each.get(f"pair_{k}", ())] for k in ("words", "scores"))
        rows = sorted(zip(words, scores, strict=True), key=lambda row: -abs(row[1]))[:STRONGEST]
        about = f" ({' '.join(words[each['start'] : each['end']])})" if "start" in each else ""
        print_table(("word", each["unit"]), rows, f"{each['label']}{about}")
    if near := record.get("nearest"):
        texts = [each.get("text") or " ".join(each.get("words", ())) for each in near]
        columns = ("similarity", "gold", "text", "place")
        values = [
            [each["similarity"], each["gold"], text, each.get("where", "")]
            for each, text in zip(near, texts, strict=True)
        ]
        print_table(columns, values, "nearest training examples")


def _noting(examples: Iterator[Example], noted: dict[int, Example]) -> Iterator[Example]:
    for example in examples:
        noted[example.id] = example
        yield example
