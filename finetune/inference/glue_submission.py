"""Submission files of the GLUE benchmark: a table with numbered predictions for each task.

Wang et al. 2018, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding". Names and formats are those of the benchmark's sample submission.
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
MOST = 5.0
"""The highest similarity of STS-B; 0 is the lowest."""


@dataclass(frozen=True)
class GlueTask:
    """One file of a submission.

    ``answers`` is what the benchmark writes for each label name of a model; empty where answers
    are numbers. ``config`` and ``split`` say where its test data are on the hub, ``rows`` how many
    there are.
    """

    name: str
    config: str
    rows: int
    answers: Mapping[str, str]
    split: str = "test"

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}.tsv"


def _binary(no: str, yes: str) -> dict[str, str]:
    return {no: "0", yes: "1", "0": "0", "1": "1"}


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_TWO = _same("entailment", "not_entailment")
_THREE = _same("entailment", "neutral", "contradiction")
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


def parts_of(asked: str, trained_on: str, file: str | None) -> list[Part]:
    """Return the files to write; raise UserError if they cannot be determined.

    ``asked`` is a name of the benchmark, or ``AUTO``; ``trained_on`` is the ``--data`` of the
    model, ``file`` the file to answer, if one is named.
    """
    own = _named(_glue_config(trained_on) or "")
    tasks = own if asked == AUTO else _named(asked)
    if not tasks:
        raise UserError(_unknown(asked, trained_on))
    if file is not None:
        return [Part(_of_file(tasks, file), None)]
    on_hub = (chosen := hub_dataset(trained_on)) is not None and chosen.id == HUB
    if not on_hub and not {task.config for task in tasks} <= {task.config for task in own}:
        raise UserError(
            f"--glue-submission {asked}: name the benchmark's test file with --file: the model was "
            f"trained on {trained_on}, which does not have it."
        )
    return [Part(task, f"{HUB}:{task.config}" if on_hub else trained_on) for task in tasks]


def _glue_config(data: str) -> str | None:
    """The hub configuration that ``--data`` names, on the hub or as the name of a folder."""
    if Path(data).exists():
        return Path(data).resolve().name
    chosen = hub_dataset(data)
    return chosen.config if chosen is not None and chosen.id == HUB else None


def _named(name: str) -> list[GlueTask]:
    """The tasks with a name in any spelling (SST-2, sst2); two for MNLI."""
    plain = _plain(name)
    exact = [task for task in TASKS.values() if _plain(task.name) == plain]
    return exact or [task for task in TASKS.values() if task.config == plain]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _unknown(asked: str, trained_on: str) -> str:
    legal = abbreviated(TASKS, 20)
    if asked != AUTO:
        return f"--glue-submission {asked}: legal are {legal}.{did_you_mean(asked, TASKS)}"
    return (
        f"--glue-submission: the model was trained on {trained_on}, which is none of the "
        f"benchmark's data: say which task it answers, --glue-submission RTE (legal are {legal})."
    )


def _of_file(tasks: Sequence[GlueTask], file: str) -> GlueTask:
    """The task of a file, by the name of the file if there are two (MNLI)."""
    name = Path(file).name.lower()
    if len(tasks) == 1:
        return tasks[0]
    if "diagnostic" in name:
        return TASKS["AX"]
    for word, task in (("mismatched", "MNLI-mm"), ("matched", "MNLI-m")):
        if word in name:
            return TASKS[task]
    raise UserError(
        f"--file {file}: is it MNLI's matched or mismatched test file? Write --glue-submission "
        "MNLI-m, MNLI-mm or AX."
    )


def check_labels(task: GlueTask, labels: Sequence[str], problem: str | None) -> None:
    """Raise UserError if the labels of the model are not those of the task."""
    if not task.answers:
        if problem != "regression":
            raise UserError(
                f"{task.name} needs numbers, and this model predicts {abbreviated(labels)}."
            )
        return
    if problem != "single":
        raise UserError(
            f"{task.name} needs one label for each row, and this model predicts {problem}."
        )
    names = {canonical_name(name) for name in labels}
    unknown = sorted(names - set(task.answers))
    if unknown or len({task.answers[name] for name in names}) < len(set(task.answers.values())):
        raise UserError(
            f"{task.name} needs {' and '.join(sorted(set(task.answers.values())))}, and the labels "
            f"of this model are {abbreviated(labels)}: they do not fit."
        )


def lines(
    task: GlueTask, answers: Iterable[Prediction], numbers: Mapping[int, str]
) -> Iterator[str]:
    """Yield the lines of a file.

    ``numbers`` maps ids to row numbers, and has that of a prediction when the prediction arrives.
    """
    yield "index\tprediction\n"
    for answer in answers:
        assert isinstance(answer, TextPrediction)
        yield f"{numbers[answer.id]}\t{answer_of(task, answer)}\n"


def answer_of(task: GlueTask, answer: TextPrediction) -> str:
    """A prediction as the benchmark writes it; similarities from 0 to 5 with three decimals."""
    if not task.answers:
        return f"{min(max(float(answer.label), 0.0), MOST):.3f}"  # type: ignore[arg-type]
    return task.answers[canonical_name(str(answer.label))]


def wrong_number(task: GlueTask, rows: int) -> str | None:
    """A warning if a file has another number of rows than the benchmark's test data."""
    if rows == task.rows:
        return None
    return (
        f"{task.file}: {rows:,} rows, but the benchmark's test data of {task.name} have "
        f"{task.rows:,}: it will refuse the file."
    )
