"""Submission files of GLUE (Wang et al. 2018): a table of numbered predictions for each task.

Names and formats are those of the benchmark's sample submission.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from finetune.data import hub_dataset
from finetune.data.nli_labels import canonical_name
from finetune.types import Prediction, TextPrediction, UserError, abbreviated, did_you_mean

AUTO = "auto"
"""Selects the task whose data the model was trained on."""
HUB = "nyu-mll/glue"
"""Hub id of the benchmark's test data."""


@dataclass(frozen=True)
class GlueTask:
    """One file of a submission: its name, and the hub configuration and size of its test data."""

    name: str
    config: str
    rows: int
    classes: Mapping[str, str]
    """The benchmark's name for each label name of a model; empty for numbers."""
    split: str = "test"

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}.tsv"


def _binary(negative: str, positive: str) -> dict[str, str]:
    return {negative: "0", positive: "1", "0": "0", "1": "1"}


_TWO = {name: name for name in ("entailment", "not_entailment")}
_THREE = {name: name for name in ("entailment", "neutral", "contradiction")}
TASKS = {
    task.name: task
    for task in (
        GlueTask("CoLA", "cola", 1063, _binary("unacceptable", "acceptable")),
        GlueTask("SST-2", "sst2", 1821, _binary("negative", "positive")),
        GlueTask("MRPC", "mrpc", 1725, _binary("not_equivalent", "equivalent")),
        GlueTask("QQP", "qqp", 390965, _binary("not_duplicate", "duplicate")),
        GlueTask("STS-B", "stsb", 1379, {}),
        GlueTask("MNLI-m", "mnli", 9796, _THREE, "test_matched"),
        GlueTask("MNLI-mm", "mnli", 9847, _THREE, "test_mismatched"),
        GlueTask("QNLI", "qnli", 5463, _TWO),
        GlueTask("RTE", "rte", 3000, _TWO),
        GlueTask("WNLI", "wnli", 146, _binary("not_entailment", "entailment")),
        GlueTask("AX", "ax", 1104, _THREE),
    )
}
"""The files of a submission, by name. In WNLI 1 is entailment."""


class Part(NamedTuple):
    """A file to write, and the data set of its texts; None for the user's file."""

    task: GlueTask
    data: str | None


def parts_of(name: str, trained_on: str, file: str | None) -> list[Part]:
    """Return the files to write; raise UserError if they cannot be determined.

    ``name`` is a task of the benchmark, or ``AUTO``; ``trained_on`` is the ``--data`` of the model,
    and ``file`` the file to predict, if there is one.
    """
    chosen = hub_dataset(trained_on)
    on_hub = chosen is not None and chosen.id == HUB
    trained_tasks = []
    if Path(trained_on).exists():
        trained_tasks = _tasks_named(Path(trained_on).resolve().name)
    elif chosen is not None and on_hub:
        trained_tasks = _tasks_named(chosen.config or "")
    tasks = trained_tasks if name == AUTO else _tasks_named(name)
    legal = abbreviated(TASKS, 20)
    if not tasks and name != AUTO:
        raise UserError(f"--glue-submission {name}: legal are {legal}.{did_you_mean(name, TASKS)}")
    if not tasks:
        raise UserError(
            f"--glue-submission: the model was trained on {trained_on}, which is not data of the "
            f"benchmark: name a task, --glue-submission RTE (legal are {legal})."
        )
    if file is not None:
        return [Part(_task_of_file(tasks, file), None)]
    configs = {task.config for task in trained_tasks}
    if not on_hub and not {task.config for task in tasks} <= configs:
        raise UserError(
            f"--glue-submission {name}: name the benchmark's test file with --file: the model was "
            f"trained on {trained_on}, which does not have it."
        )
    return [Part(task, f"{HUB}:{task.config}" if on_hub else trained_on) for task in tasks]


def _tasks_named(name: str) -> list[GlueTask]:
    """Return the tasks with a name in any spelling (SST-2, sst2); two for MNLI."""

    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower())

    exact = [task for task in TASKS.values() if plain(task.name) == plain(name)]
    return exact or [task for task in TASKS.values() if task.config == plain(name)]


def _task_of_file(tasks: Sequence[GlueTask], file: str) -> GlueTask:
    """Return the task of a file, by the name of the file if there are two (MNLI)."""
    if len(tasks) == 1:
        return tasks[0]
    names = {"diagnostic": "AX", "mismatched": "MNLI-mm", "matched": "MNLI-m"}
    for word, task in names.items():
        if word in Path(file).name.lower():
            return TASKS[task]
    raise UserError(
        f"--file {file}: is it MNLI's matched or mismatched test file? Write --glue-submission "
        "MNLI-m, MNLI-mm or AX."
    )


def check_labels(task: GlueTask, labels: Sequence[str], problem: str | None) -> None:
    """Raise UserError if the labels of the model are not those of the task."""
    if not task.classes:
        if problem != "regression":
            raise UserError(
                f"{task.name} needs numbers, and this model predicts {abbreviated(labels)}."
            )
        return
    if problem != "single":
        raise UserError(
            f"{task.name} needs one label for each row, and this model predicts {problem}."
        )
    classes = set(task.classes.values())
    if {task.classes.get(canonical_name(name)) for name in labels} != classes:
        raise UserError(
            f"{task.name} needs {' and '.join(sorted(classes))}, and the labels of this model are "
            f"{abbreviated(labels)}."
        )


def lines(
    task: GlueTask, predictions: Iterable[Prediction], numbers: Mapping[int, str]
) -> Iterator[str]:
    """Yield the lines of a file; similarities (STS-B) are cut to 0 to 5.

    ``numbers`` maps ids to row numbers, and may be filled while predictions arrive.
    """
    yield "index\tprediction\n"
    for prediction in predictions:
        assert isinstance(prediction, TextPrediction)
        if task.classes:
            value = task.classes[canonical_name(str(prediction.label))]
        else:
            assert isinstance(prediction.label, float)
            value = f"{min(max(prediction.label, 0.0), 5.0):.3f}"
        yield f"{numbers[prediction.id]}\t{value}\n"


def wrong_number(task: GlueTask, rows: int) -> str | None:
    """Return a warning if a file has another number of rows than the benchmark's test data."""
    if rows == task.rows:
        return None
    return (
        f"{task.file}: {rows:,} rows, but the benchmark's test data of {task.name} have "
        f"{task.rows:,}: it will refuse the file."
    )
