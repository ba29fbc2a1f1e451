"""Files for the servers of benchmarks, from the predictions of a suite's runs.

The rules of the GLUE server (gluebenchmark.com/faq; file names, labels and formats as in the code
of its authors, nyu-mll/jiant, ``evaluate.py``): one TSV file for each test set with the header
``index`` and ``prediction``, a row for each example in the order of the data, counted from 0.
Numbers have three decimals and are from 0 to 5.

For SQuAD, a JSON object with the answer to each question by its id, empty for no answer, as the
official scripts read it (rajpurkar.github.io/SQuAD-explorer); for models that know no answer a
second one with its probability (``--na-prob-file`` of evaluate-v2.0.py).
"""

from __future__ import annotations

import json
import math
import statistics
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from finetune.cli.output import check_output, show
from finetune.data import Dataset
from finetune.evaluation.runs import RunFolder
from finetune.runtime.files import replace_file
from finetune.suites.definition import SubmissionFile
from finetune.suites.results import SavedSuite, open_suite
from finetune.types import (
    AnswerPrediction,
    Example,
    Prediction,
    TextPrediction,
    UserError,
    abbreviated,
    quantity,
)

_NLI = {name: name for name in ("entailment", "neutral", "contradiction")}
_ENTAILED = {name: name for name in ("entailment", "not_entailment")}


class GlueFile(NamedTuple):
    """A file that the GLUE server expects."""

    rows: int
    """Examples of the test set."""
    labels: Mapping[str, str]
    """The word of the server for each label of the data; empty for numbers from 0 to 5."""


GLUE = {
    "CoLA.tsv": GlueFile(1063, {"unacceptable": "0", "acceptable": "1"}),
    "SST-2.tsv": GlueFile(1821, {"negative": "0", "positive": "1"}),
    "MRPC.tsv": GlueFile(1725, {"not_equivalent": "0", "equivalent": "1"}),
    "STS-B.tsv": GlueFile(1379, {}),
    "QQP.tsv": GlueFile(390_965, {"not_duplicate": "0", "duplicate": "1"}),
    "MNLI-m.tsv": GlueFile(9796, _NLI),
    "MNLI-mm.tsv": GlueFile(9847, _NLI),
    "QNLI.tsv": GlueFile(5463, _ENTAILED),
    "RTE.tsv": GlueFile(3000, _ENTAILED),
    "WNLI.tsv": GlueFile(146, {"not_entailment": "0", "entailment": "1"}),
    "AX.tsv": GlueFile(1104, _NLI),
}
"""The files of the GLUE server by name."""
HEADER = "index\tprediction"
LOWEST, HIGHEST = 0.0, 5.0
"""The range of the scores of STS-B."""
_DATE = (1980, 1, 1, 0, 0, 0)
"""Date of the files in the archive: equal predictions give equal archives."""


def choose_run(suite: SavedSuite, member: str, seed: int | None) -> tuple[int, str]:
    """Return the seed of a member with the best validation score, or the given one, and why.

    The validation score is the mean of the member's scores on validation splits. Raises UserError
    if there is no finished run, or none of the seed.
    """
    finished = suite.runs(member)
    if not finished:
        raise UserError(f"{member} has no finished run")
    if seed is not None:
        if seed not in finished:
            raise UserError(f"{member} has no finished run of seed {seed}")
        return seed, f"seed {seed}"
    if len(finished) == 1:
        return finished[0], f"seed {finished[0]}, the only one"
    scores = [score for score in suite.scores[member] if score.split.startswith("validation")]
    if not scores:
        raise UserError(
            f"{member} has {quantity(len(finished), 'seed')} and no score on a validation split "
            "that chooses one (name it with --seed)"
        )

    def value(seed: int) -> float:
        metrics = RunFolder.open(suite.run(member, seed)).metrics
        return statistics.fmean(
            metrics.get(score.split, {}).get(score.metric, -math.inf) for score in scores
        )

    best = max(finished, key=value)
    names = " and ".join(dict.fromkeys(score.metric for score in scores))
    reason = f"seed {best}, the best {names} of {len(finished)} on validation: {value(best):.4f}"
    return best, reason


def submit(folder: Path, out: str, seed: int | None) -> None:
    """Predict the test splits of a suite, and write the archive once all files are complete.

    Args:
        folder: The folder of the suite.
        out: The archive.
        seed: The seed of the runs; None takes the run with the best validation score of each
            member.

    Raises:
        UserError: A run or an example is missing, or a label is not one of the server's.
    """
    check_output(out, folder.glob("*"), (".zip",))
    suite = open_suite(folder)
    if suite.submission is None:
        raise UserError(f"{suite.name} has no `submission`: its predictions go to no server.")
    chosen: dict[str, tuple[int, str]] = {}
    problems: dict[str, str] = {}
    for member in dict.fromkeys(file.member for file in suite.files):
        try:
            chosen[member] = choose_run(suite, member, seed)
        except UserError as error:
            problems[member] = str(error)
    if suite.submission == "glue":
        names = [file.name for file in suite.files]
        if missing := [name for name in GLUE if name not in names]:
            raise UserError(f"{folder}: the submission lacks {abbreviated(missing)}.")
        if unknown := [name for name in names if name not in GLUE]:
            raise UserError(f"{folder}: the server knows no file {abbreviated(unknown)}.")
    if problems:
        raise UserError(
            f"{'; '.join(problems.values())}. The server takes all files or none: run the suite "
            "again with the same command, which trains what is missing."
        )
    texts: dict[str, str] = {}
    for file in suite.files:
        best, reason = chosen[file.member]
        examples, predictions = predict_split(suite.run(file.member, best), file)
        if suite.submission == "glue":
            texts[file.name] = glue_text(file.name, predictions)
        else:
            texts |= squad_texts(file.name, examples, predictions)
        rows = quantity(len(predictions), "row")
        show(f"{file.name}: {rows}, {file.member} {reason}", error=True)
    with replace_file(Path(out), follow=True, binary=True) as archive_file:
        with zipfile.ZipFile(archive_file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in texts.items():
                archive.writestr(zipfile.ZipInfo(name, _DATE), text, zipfile.ZIP_DEFLATED)
    show(f"{out}: {quantity(len(texts), 'file')}")


def predict_split(folder: Path, file: SubmissionFile) -> tuple[Sequence[Example], list[Prediction]]:
    """Return the examples of a split and the predictions of a run for them, in order."""
    from finetune.inference.predictor import Predictor
    from finetune.tasks import task_class

    run = RunFolder.open(folder)
    run.require_intact()
    model = Predictor(folder, decide=False)
    config = model.task.record.config
    source = file.data or run.config.get("data_used") or config.data
    data: Dataset = task_class(model.task.name).read(config, source)
    if file.split not in data.splits:
        raise UserError(
            f"{file.name}: {source} has no split {file.split}, only {abbreviated(data.splits)}."
        )
    examples = data.splits[file.split]
    return examples, model.predict(examples)


def glue_text(name: str, predictions: Sequence[Prediction]) -> str:
    """Return the content of a file for the GLUE server.

    Raises UserError for a wrong number of rows, and for a label that the server does not know.
    """
    expected = GLUE[name]
    if len(predictions) != expected.rows:
        raise UserError(
            f"{name}: {quantity(len(predictions), 'prediction')}, and the server expects "
            f"{expected.rows:,} rows: use the whole test split of the benchmark."
        )
    return "\n".join([HEADER, *_glue_rows(name, expected, predictions)]) + "\n"


def _glue_rows(name: str, expected: GlueFile, predictions: Sequence[Any]) -> Iterator[str]:
    words = dict(expected.labels) | {word: word for word in expected.labels.values()}
    for index, prediction in enumerate(predictions):
        label = prediction.label if isinstance(prediction, TextPrediction) else None
        if expected.labels and isinstance(label, str) and label in words:
            yield f"{index}\t{words[label]}"
        elif not expected.labels and isinstance(label, float):
            yield f"{index}\t{min(max(label, LOWEST), HIGHEST):.3f}"
        else:
            wanted = f"one of {', '.join(expected.labels)}" if expected.labels else "a number"
            found = "no prediction: its text is blank" if label is None else f"the label {label!r}"
            raise UserError(f"{name}: row {index} has {found}, and the server expects {wanted}.")


def squad_texts(
    name: str, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> dict[str, str]:
    """Return the files for the official script of SQuAD by name.

    Raises UserError for a question without an id, or with the id of another one.
    """
    answers: dict[str, str] = {}
    without: dict[str, float] = {}
    for example, prediction in zip(examples, predictions, strict=True):
        if example.key is None or str(example.key) in answers:
            problem = "has no id" if example.key is None else f"has the id {example.key!r} again"
            raise UserError(f"{name}: {example.where}: the question {problem}.")
        if not isinstance(prediction, AnswerPrediction):
            raise UserError(f"{name}: the model answers no questions.")
        found = prediction.answer
        answers[str(example.key)] = "" if found is None else found.text
        if prediction.no_answer_score is not None:
            without[str(example.key)] = prediction.no_answer_score
    path = Path(name)
    texts = {name: json.dumps(answers, ensure_ascii=False) + "\n"}
    if without:
        texts[f"{path.stem}-na-prob{path.suffix}"] = json.dumps(without) + "\n"
    return texts
