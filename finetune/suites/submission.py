"""Files for GLUE's server, from the predictions of a suite's runs.

The rules (gluebenchmark.com/faq; file names, labels and formats as in the code of its authors,
nyu-mll/jiant, ``evaluate.py``): one TSV file for each test set with the header ``index`` and
``prediction``, a row for each example in the order of the data, counted from 0. Numbers have three
decimals and are from 0 to 5.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from finetune.cli.output import check_output, show
from finetune.evaluation.runs import RunFolder
from finetune.runtime.files import replace_file
from finetune.suites.definition import Suite, SuiteTask
from finetune.types import Prediction, TextPrediction, UserError, abbreviated, quantity

_NLI = {name: name for name in ("entailment", "neutral", "contradiction")}
_ENTAILED = {name: name for name in ("entailment", "not_entailment")}


class GlueFile(NamedTuple):
    """A test set, and the server's word for each label (none: numbers from 0 to 5)."""

    task: str
    """The task of the suite whose runs predict it."""
    split: str
    rows: int
    labels: Mapping[str, str]
    data: str | None = None
    """The data of the split; None are the data of the task's run."""


GLUE = {
    "CoLA.tsv": GlueFile("cola", "test", 1063, {"unacceptable": "0", "acceptable": "1"}),
    "SST-2.tsv": GlueFile("sst2", "test", 1821, {"negative": "0", "positive": "1"}),
    "MRPC.tsv": GlueFile("mrpc", "test", 1725, {"not_equivalent": "0", "equivalent": "1"}),
    "STS-B.tsv": GlueFile("stsb", "test", 1379, {}),
    "QQP.tsv": GlueFile("qqp", "test", 390_965, {"not_duplicate": "0", "duplicate": "1"}),
    "MNLI-m.tsv": GlueFile("mnli", "test_matched", 9796, _NLI),
    "MNLI-mm.tsv": GlueFile("mnli", "test_mismatched", 9847, _NLI),
    "QNLI.tsv": GlueFile("qnli", "test", 5463, _ENTAILED),
    "RTE.tsv": GlueFile("rte", "test", 3000, _ENTAILED),
    "WNLI.tsv": GlueFile("wnli", "test", 146, {"not_entailment": "0", "entailment": "1"}),
    "AX.tsv": GlueFile("mnli", "test", 1104, _NLI, "nyu-mll/glue:ax"),
}
"""The files of the GLUE server by name."""
_DATE = (1980, 1, 1, 0, 0, 0)
"""Date of the files in the archive: equal predictions give equal archives."""


def submit(suite: Suite, folder: Path, out: str, seed: int | None) -> None:
    """Predict the test splits of a suite, and write the archive once all files are complete.

    The runs have this seed; None takes the run of each task that is best on validation.

    Raises:
        UserError: A run or an example is missing, or a label is not one of the server's.
    """
    check_output(out, folder.glob("*"), (".zip",))
    names = dict.fromkeys(file.task for file in GLUE.values())
    if missing := [name for name in names if name not in suite.tasks]:
        raise UserError(f"--submit: {suite.path} has no {', '.join(missing)}: only glue is sent.")
    runs = {name: _best_run(suite.tasks[name], folder / name, seed) for name in names}
    texts: dict[str, str] = {}
    for name, file in GLUE.items():
        predictions = _predict_split(runs[file.task], name, file)
        texts[name] = glue_text(name, predictions)
        show(f"{name}: {quantity(len(predictions), 'row')}, {runs[file.task].path}", error=True)
    with replace_file(Path(out), follow=True, binary=True) as archive_file:
        with zipfile.ZipFile(archive_file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in texts.items():
                archive.writestr(zipfile.ZipInfo(name, _DATE), text, zipfile.ZIP_DEFLATED)
    show(f"{out}: {quantity(len(texts), 'file')}")


def _best_run(task: SuiteTask, folder: Path, seed: int | None) -> RunFolder:
    paths = sorted(folder.glob("seed-*" if seed is None else f"seed-{seed}"))
    runs = [run for run in map(RunFolder.open, paths) if run.is_finished]
    if not runs:
        raise UserError(f"{folder}: no finished run: train it with the same command.")
    scores = [score for score in task.scores if score.split.startswith("validation")]
    return max(runs, key=lambda run: sum(run.metrics[split][metric] for split, metric in scores))


def _predict_split(run: RunFolder, name: str, file: GlueFile) -> list[Prediction]:
    from finetune.inference.predictor import Predictor
    from finetune.tasks import task_class

    run.require_intact()
    model = Predictor(run.path, decide=False)
    config = model.task.state.config
    source = file.data or run.config.get("data_used") or config.data
    data = task_class(model.task.name).read(config, source)
    if file.split not in data.splits:
        names = abbreviated(data.splits)
        raise UserError(f"{name}: {source} has no split {file.split}, only {names}.")
    return model.predict(data.splits[file.split])


def glue_text(name: str, predictions: Sequence[Prediction]) -> str:
    """Format predictions as a file for the GLUE server.

    Raises UserError for a wrong number of rows, and for a label that the server does not know.
    """
    expected = GLUE[name]
    if len(predictions) != expected.rows:
        raise UserError(
            f"{name}: {quantity(len(predictions), 'prediction')}, and the server expects "
            f"{expected.rows:,} rows: use the whole test split of the benchmark."
        )
    words: dict[Any, str] = {word: word for word in expected.labels.values()}
    words |= expected.labels
    rows = ["index\tprediction"]
    for index, prediction in enumerate(predictions):
        label: Any = prediction.label if isinstance(prediction, TextPrediction) else None
        if not expected.labels and isinstance(label, float):
            words = {label: f"{min(max(label, 0.0), 5.0):.3f}"}
        if label not in words:
            problem = (
                "no prediction: its text is blank" if label is None else f"the label {label!r}"
            )
            legal = f"one of {', '.join(expected.labels)}" if expected.labels else "a number"
            raise UserError(f"{name}: row {index} has {problem}, and the server expects {legal}.")
        rows.append(f"{index}\t{words[label]}")
    return "\n".join(rows) + "\n"
