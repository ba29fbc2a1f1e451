"""`finetune predict`."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from finetune.cli.options import (
    Command,
    DataOptions,
    ExplainOption,
    InputOptions,
    OutOption,
    SpeedOptions,
)
from finetune.cli.output import check_output, inputs_of, quiet_libraries, show
from finetune.cli.readable import prediction_line, show_explanations
from finetune.config.options import DATA, OUTPUT, argument
from finetune.data.json_files import read_object
from finetune.evaluation.runs import RunFolder
from finetune.registry import PLUGINS
from finetune.runtime.files import SaveError
from finetune.runtime.processes import num_processes, process_index
from finetune.runtime.row_files import (
    ROW_SUFFIXES,
    TABLE_SUFFIXES,
    json_line,
    row_writer,
    with_columns,
)
from finetune.types import UserError, noun_of, quantity

if TYPE_CHECKING:
    from finetune.inference.predictor import Predictor
    from finetune.runtime.progress import Reporter
    from finetune.types import Example


@dataclass(frozen=True, kw_only=True)
class Predict(OutOption, ExplainOption, SpeedOptions, InputOptions, Command):
    """Predict with a trained model: one line for each input, in input order.

    Examples:
        finetune predict runs/nli --text "A man eats." --pair "Somebody eats." --explain
        finetune predict runs/tag --file new.txt --out predictions.csv
        finetune predict runs/nli --file shards/ --out predictions.jsonl --resume
    """

    folder: Annotated[str, argument("RUN")]
    """Run folder, or hub id of a model (OWNER/NAME, OWNER/NAME@REVISION). It may also be a
    classifier, tagger or masked language model of transformers: a folder, hub id or short name. A
    masked language model fills [MASK] or <mask> with the five most probable subwords."""
    pair: Annotated[str | None, DATA] = None
    """Second text, for models of text pairs."""
    resume: Annotated[bool, OUTPUT] = False
    """Continue --out FILE.jsonl of an interrupted command with the same model, input and settings.
    If there is no such file, it is started."""
    keep_columns: Annotated[bool, OUTPUT] = False
    """Copy the columns of the input to the output, before the prediction. CSV and other tables
    always have them. A gold label or choice becomes `gold`, and another column that has the name of
    a field of predictions becomes input_NAME."""
    threshold: str | None = None
    """Probability threshold of answers, instead of the model's: a number, or NAME=P,NAME=P for
    labels of texts and span types. Below it, the model abstains (null), or predicts the other label
    if there are two."""

    @property
    def shares_work(self) -> bool:
        """True for a trained model: all processes predict."""
        return self._predictor is None

    @property
    def _predictor(self) -> Any:
        path = Path(self.folder) / "config.json"
        task = str(read_object(path).get("task")) if path.is_file() else ""
        return PLUGINS.get(f"predict {task}")

    reports_output: ClassVar[bool] = True

    def run(self) -> None:
        """Write one line for each input."""
        self.require_input("predict")
        if len(self.text) > 1 and self.pair is not None:
            raise UserError("--pair is the second text of one --text: write pairs to a file.")
        if (predict := self._predictor) is not None:
            if self.explain:
                raise UserError("--explain is for trained models: leave it out.")
            return predict(self)  # type: ignore[no-any-return]
        return self._predict()

    @property
    def _can_resume(self) -> bool:
        out = Path(self.out or "")
        is_file = out.is_file() or not out.exists()
        plain = self.file is not None and not self.is_stream
        return plain and is_file and out.suffix.lower() == ".jsonl"

    def _predict(self) -> None:
        output = None if self.out == "-" else self.out
        run = Path(self.folder)
        if output is not None:
            inputs = [*inputs_of(self.file), *run.glob("*"), *run.glob("best/*")]
            check_output(output, inputs, ROW_SUFFIXES)
        if num_processes() > 1 and self.file and self.is_stream:
            raise UserError(
                f"--file {self.file}: processes cannot share a stream: name a plain file."
            )
        if self.resume and not self._can_resume:
            raise UserError("--resume continues --out FILE.jsonl, from --file with plain files.")
        model, counts = self._load(), Counter[str]()
        if output is None:
            self._print(model, counts)
        else:
            self._write(model, counts, output)
        if process_index() == 0:
            self._show_notes(model, counts)

    def _print(self, model: Predictor, counts: Counter[str]) -> None:
        for_people = bool(self.text) and sys.stdout.isatty()
        for row in self._predictions(model, counts, as_table=False):
            explanations = row.pop("explanation", ()) if for_people else ()
            show(prediction_line(row) if for_people else json_line(row))
            show_explanations(explanations)

    def _write(self, model: Predictor, counts: Counter[str], output: str) -> None:
        from finetune.data.files import open_data, read_content
        from finetune.data.sources import input_files
        from finetune.data.tables import separator
        from finetune.inference.loop import CHUNK
        from finetune.inference.resume import about_rows, content_of, settings_path, start_lines
        from finetune.runtime.launch import on_main_process
        from finetune.runtime.progress import Reporter

        files = input_files(self.file) if self.file and not self.is_stream else []
        contents = [read_content(file) for file in files if file.is_file()]
        mark = ","
        if files and files[0].is_file():
            file = open_data(files[0], encoding=self.encoding)
            mark = separator(file) if file.format == "csv" else ","
        skip = 0
        if self._can_resume:
            names = ("threshold", "keep_columns", "encoding", "columns", "explain")
            settings = {name: vars(self)[name] for name in names}
            content = content_of(model.folder, [content.digest for content in contents], settings)
            multiple = CHUNK * num_processes()
            skip = on_main_process(
                lambda: start_lines(Path(output), content, resume=self.resume, multiple=multiple)
            )
        as_table = Path(output).suffix.lower() in TABLE_SUFFIXES
        reporter = Reporter() if process_index() == 0 else None
        rows = self._predictions(model, counts, as_table, skip, reporter)
        if reporter is None:
            for _ in rows:
                pass
            return
        number = abstained = 0
        writer = row_writer(output, separator=mark, append=self._can_resume)
        with _reporting_what_is_kept(output, self._can_resume), writer as write, reporter:
            total = len(self.text) or about_rows(files, contents)
            reporter.start("predicting", total and max(0, total - skip), unit="row")
            for row in rows:
                write(row)
                number += 1
                answers = row.get("withheld")
                abstained += len(answers) if isinstance(answers, list) else answers is not None
                reporter.update(number)
        if self._can_resume:
            settings_path(Path(output).resolve()).unlink(missing_ok=True)
        kept = f" after the {skip:,} that were there" if skip else ""
        left_out = f", abstained from {quantity(abstained, 'answer')}" if abstained else ""
        if self.reports_output:
            show(f"wrote {quantity(number, 'row')}{kept}{left_out}: {output}", error=True)

    def _load(self) -> Predictor:
        quiet_libraries()
        from finetune.tasks import model_folder

        folder = model_folder(self.folder)  # a wrong name is told before torch is imported
        from finetune.inference.explanation import require_explained
        from finetune.inference.predictor import Predictor

        model = Predictor(folder, threshold=self.threshold, max_tokens=self.max_tokens)
        if self.pair is not None and model.task.description.words:
            raise UserError("--pair needs a model of pairs of texts, and this model tags words.")
        if self.explain:
            require_explained(model.task)  # refused before anything is predicted
        try:
            RunFolder.open(model.folder.parent).require_intact(model_only=True)
        except UserError as error:
            show(f"warning: {error}", error=True)
        return model

    def _predictions(
        self,
        model: Predictor,
        counts: Counter[str],
        as_table: bool,
        skip: int = 0,
        reporter: Reporter | None = None,
    ) -> Iterator[dict[str, Any]]:
        noted: dict[int, Example] = {}
        columns: dict[int, Mapping[str, Any]] = {}

        def examples() -> Iterator[Example]:
            keeps_columns = self.keep_columns or as_table
            read = self._examples(model.task, columns if keeps_columns else None)
            for number, example in enumerate(read):
                if number >= skip:
                    noted[example.id] = example
                else:
                    columns.pop(example.id, None)
                yield example

        predictions = model.stream(examples(), skip=skip, counts=counts, reporter=reporter)
        has_uncertainty = self.out is not None and not as_table
        for prediction in predictions:
            example = noted.pop(prediction.id)
            counts[noun_of(example)] += 1
            id = example.id if example.key is None else example.key
            row = prediction.to_dict() | {"id": id}
            if has_uncertainty and (value := prediction.uncertainty) is not None:
                row["uncertainty"] = round(value, 6)
            if self.explain:
                (explanations,) = model.explain([example])
                row["explanation"] = [label.to_dict() for label in explanations]
            kept = columns.pop(prediction.id, {})
            counts["without columns"] += self.keep_columns and not kept
            yield with_columns(row, kept)

    def _show_notes(self, model: Predictor, counts: Counter[str]) -> None:
        task = model.task
        for number, noun, problem in (
            (
                not self.text and counts["without document"],
                "input",
                "without a document, read without context",
            ),
            (
                counts["without columns"],
                "sentence",
                "of CoNLL files, of which --keep-columns keeps no column",
            ),
            (counts["blank"], "blank text", "not predicted (label null)"),
            (
                counts["cut"],
                next((noun for noun in ("word", "pair") if counts[noun]), "text"),
                f"cut to {task.state.max_length} tokens",
            ),
        ):
            if number:
                show(f"{quantity(number, noun)} {problem}", error=True)

    def _examples(self, task: Any, rows: dict[int, Mapping[str, Any]] | None) -> Iterator[Example]:
        if self.text:
            second = {} if self.pair is None else {"text_pair": self.pair}
            for index, text in enumerate(self.text):
                if rows is not None:
                    rows[index] = {"text": text, **second}
                text_or_pair = text if self.pair is None else (text, self.pair)
                yield task.state.example(index, text_or_pair, "--text")
        else:
            yield from task.state.read(self.file or "", **self.reading, rows=rows)


class _PredictForOthers(Predict):
    reports_output = False

    def _examples(self, task: Any, rows: dict[int, Mapping[str, Any]] | None) -> Iterator[Example]:
        return task.state.read_scored(self.file or "", **self.reading)  # type: ignore[no-any-return]


@contextlib.contextmanager
def predicted(model: str, file: str, options: DataOptions) -> Iterator[Path]:
    """Context with the predictions of a model for a file, as a file in a folder like a run's.

    The messages of errors in this context name the model in place of the file.
    """
    from finetune.tasks import find_saved_model

    with TemporaryDirectory(prefix="finetune-") as folder:
        out = Path(folder) / "predictions.jsonl"
        columns, encoding = options.columns, options.encoding
        _PredictForOthers(
            folder=model, file=file, out=str(out), columns=columns, encoding=encoding
        ).run()
        if saved := find_saved_model(model):  # its labels, columns and costs
            (Path(folder) / "best").symlink_to(saved.resolve())
        try:
            yield out
        except UserError as error:
            named = str(error).replace(str(out), f"the predictions of {model}")
            raise type(error)(named) from error


@contextlib.contextmanager
def _reporting_what_is_kept(output: str, resumable: bool) -> Iterator[None]:
    from finetune.inference.resume import settings_path

    try:
        yield
    except UserError as error:
        if not isinstance(error, SaveError):  # a full disk keeps the rows so far
            settings_path(Path(output).resolve()).unlink(missing_ok=True)
        raise
    except KeyboardInterrupt:
        if Path(output).exists() and not Path(output).is_file():  # a pipe, written directly
            raise
        kept = "the rows so far are kept, and the same command with --resume continues."
        lost = f"nothing was written to {output}. With --out FILE.jsonl, --resume would continue."
        show(f"interrupted: {kept if resumable else lost}", error=True)
        sys.exit(130)
