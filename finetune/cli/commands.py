"""What the commands that do not train do, once their arguments are read."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from finetune.tasks import Task
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.cli.arguments import (
        AnalyseCommand,
        CheckCommand,
        CompareCommand,
        PredictCommand,
        ScoreCommand,
    )
    from finetune.config.tasks import TrainConfig
    from finetune.inference.glue_submission import Part
    from finetune.inference.predictor import Predictor
    from finetune.types import Example


def check(command: CheckCommand, of_recipe: TrainConfig | None = None) -> None:
    """The data doctor, and where that is asked for the search for wrong labels."""
    quiet_libraries()
    from finetune.data import Finding, check_data, data_kind, read_text, read_tokens, render

    columns = _columns(command.columns)
    words = command.task in ("tag", "ner") or (
        command.task is None and data_kind(command.data) == "tokens"
    )
    if words:
        data = read_tokens(command.data, columns=columns)
    else:
        data = read_text(
            command.data, columns=columns, pair=True if command.task == "nli" else None
        )
    counter, max_length = None, command.max_length or 512
    seen: Counter[int | None] = Counter()  # piece ids
    if command.model is not None:
        from finetune.models.loading import load_config
        from finetune.preprocessing.tokenizer import SubwordTokenizer
        from finetune.tasks.base import model_limit

        tokenizer = SubwordTokenizer.from_pretrained(command.model, words=words)
        limit = model_limit(load_config(command.model))
        max_length = tokenizer.max_length(limit, command.max_length)

        def counter(items: Sequence[Any]) -> list[Any]:
            if not words:
                made = tokenizer.text_pieces(items)
                seen.update(chain.from_iterable(made))
                return list(map(len, made))
            sentences = tokenizer.raw_word_pieces(items)
            seen.update(piece for s in sentences for pieces in s for piece in pieces)
            return [list(map(len, pieces)) for pieces in sentences]

    findings = check_data(data, count_subwords=counter, max_length=max_length)
    if command.model is not None:
        for line in tokenizer.unreadable(seen[tokenizer.unknown], seen.total()):
            findings.append(Finding("warning", "subwords", line))
    print(render(findings))
    if any(finding.level == "error" for finding in findings):
        sys.exit(1)
    if command.label_errors:
        from finetune.cli.label_check import check_labels, configuration

        train: Sequence[Any] = data.splits.get("train", ())
        nested = words and any(e.tags is None and e.spans for e in train)
        task = command.task or ("ner" if nested else "tag" if words else "classify")
        config = configuration(
            task, command.model, command.data, command.columns, command.max_length,
            command.epochs, of_recipe,
        )  # fmt: skip
        check_labels(task, config, command.folds, command.out, command.examples)


def predict_texts(folder: Path, command: PredictCommand) -> None:
    """Write one JSON line for each input, in input order."""
    quiet_libraries()
    from finetune.inference.loop import predict_stream
    from finetune.inference.predictor import Predictor

    model = Predictor(
        folder,
        decoding=command.decoding,
        batching=command.batching,
        max_tokens=command.max_tokens,
    )
    task = model.task
    if command.pair is not None and task.words:
        raise UserError("--pair goes with models of pairs of texts, and this one tags words.")
    if command.glue_submission is not None:
        _submit(model, command)
        return
    examples = _inputs(task, command)
    answers = predict_stream(task, model.model, examples, accelerator=model.accelerator)
    with _output(command.output) as out:
        for answer in answers:
            out.write(json.dumps(answer.record(), ensure_ascii=False) + "\n")
    if task.num_alone:
        print(
            f"{task.num_alone:,} inputs name no document and were read without the context that "
            "this model was trained with",
            file=sys.stderr,
        )
    if task.num_cut:
        print(
            f"{task.num_cut:,} texts or words were cut to {task.max_length} tokens", file=sys.stderr
        )


def _submit(model: Predictor, command: PredictCommand) -> None:
    """Write the files of a GLUE submission; print which, and whether their size is right."""
    from finetune.inference.glue_submission import check_labels, lines, parts_of, wrong_number
    from finetune.inference.loop import predict_stream

    task, folder = model.task, Path(command.output or ".")
    parts = parts_of(command.glue_submission or "", task.config.data, command.file)
    for part in parts:
        check_labels(part.task, list(task.labels), None if task.words else model.model.problem)
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        numbers: dict[int, str] = {}
        examples = _numbered(task, command, part, numbers)
        answers = predict_stream(task, model.model, examples, accelerator=model.accelerator)
        path = folder / part.task.file
        with _output(str(path)) as out:
            out.writelines(lines(part.task, answers, numbers))
        print(f"{path}: {len(numbers):,} rows")
        if (line := wrong_number(part.task, len(numbers))) is not None:
            print(line, file=sys.stderr)


def _numbered(
    task: Task, command: PredictCommand, part: Part, numbers: dict[int, str]
) -> Iterator[Example]:
    """The texts of a file of the benchmark; their numbers are noted by id."""
    from finetune import data
    from finetune.inference.predictor import fitting

    options: dict[str, Any] = {"columns": _columns(command.columns), "pair": task.pairs}
    if part.data is None:
        rows = data.read_numbered_texts(command.file or "", **options)
    else:
        rows = data.read_numbered_texts(part.data, split=part.task.split, **options)
    for example, number in rows:
        numbers[example.id] = number
        yield fitting(task, example)


def _inputs(task: Task, command: PredictCommand) -> Iterator[Example]:
    from finetune import data
    from finetune.inference.predictor import fitting, to_example

    columns = _columns(command.columns)
    if command.text is not None:
        pair = () if command.pair is None else (command.text, command.pair)
        yield to_example(task, 0, pair or command.text, "--text")
    elif task.words:
        yield from task.in_context(data.read_token_file(command.file or "", columns=columns))
    else:
        rows = data.read_text_file(
            command.file or "", columns=columns, pair=task.pairs, labels=False
        )
        for example in rows:
            yield fitting(task, example)


@contextlib.contextmanager
def _output(path: str | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears when it is complete."""
    if path is None:
        yield sys.stdout
        return
    if Path(path).is_dir() or not Path(path).absolute().parent.is_dir():
        what = "is a folder" if Path(path).is_dir() else "its folder does not exist"
        raise UserError(f"--output {path}: {what}: name a file in a folder that exists.")
    fresh = Path(path + ".new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            yield file
        fresh.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(fresh)):
            raise UserError(f"--output {path}: cannot be written ({error.strerror}).") from error
        raise


def export_model(folder: Path, output: str) -> None:
    """Write a model as an ONNX graph; say how far it is from torch, how large and how fast."""
    quiet_libraries()
    from finetune.inference.onnx import export_onnx

    print("\n".join(export_onnx(folder, output).lines()))


def score_files(predictions: Path, gold: str, command: ScoreCommand) -> None:
    """Print the metrics of a predictions file as JSON."""
    from finetune.evaluation.scoring import score_predictions

    print(json.dumps(score_predictions(predictions, gold, _columns(command.columns)), indent=2))


def analyse_file(predictions: str, gold: str | None, command: AnalyseCommand) -> None:
    """Print what there is to say about one system's answers."""
    from finetune.cli.analysis_text import print_analysis

    print_analysis(predictions, gold, command, _columns(command.columns))


def compare_files(first: str, second: str, command: CompareCommand) -> None:
    """Print whether two systems differ."""
    from finetune.cli.comparison_text import print_comparison

    print_comparison(first, second, command, _columns(command.columns))


def _columns(items: Sequence[str]) -> dict[str, str]:
    """`role=column` items as a mapping; ValueError for one of another form."""
    for item in items:
        if "=" not in item:
            raise UserError(
                f"--columns must be role=column, for instance text=sentence, not {item!r}."
            )
    return dict(item.split("=", 1) for item in items)


def quiet_libraries() -> None:
    """No progress bars and advice of other libraries between our lines."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
