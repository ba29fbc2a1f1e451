"""Files as the GLUE benchmark takes them, against expectations written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.data import read_numbered_texts
from finetune.inference.glue_submission import TASKS, check_labels, lines, parts_of, wrong_number
from finetune.types import TextPrediction

NAMES = ["CoLA", "SST-2", "MRPC", "QQP", "STS-B", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX"]
LABELS = {
    "CoLA": ("unacceptable", "acceptable"),
    "SST-2": ("negative", "positive"),
    "MRPC": ("not_equivalent", "equivalent"),
    "QQP": ("not_duplicate", "duplicate"),
    "WNLI": ("not_entailment", "entailment"),
}
"""The label names of the hub's data, 0 and 1 in the benchmark."""


def written(name: str, labels: list, numbers: list[str]) -> str:
    answers = [TextPrediction(index, label) for index, label in enumerate(labels)]
    return "".join(lines(TASKS[name], answers, dict(enumerate(numbers))))


def test_every_file_of_the_benchmark_has_its_name():
    assert [task.file for task in TASKS.values()] == [f"{name}.tsv" for name in NAMES]


@pytest.mark.parametrize("name", LABELS)
def test_two_classes_are_0_and_1(name: str):
    no, yes = LABELS[name]
    assert written(name, [yes, no], ["7", "8"]) == "index\tprediction\n7\t1\n8\t0\n"
    check_labels(TASKS[name], [no, yes], "single")


@pytest.mark.parametrize("name", ["RTE", "QNLI"])
def test_entailment_has_its_name(name: str):
    text = "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    assert written(name, ["not_entailment", "entailment"], ["0", "1"]) == text
    assert written(name, ["not entailment", "entailed"], ["0", "1"]) == text


@pytest.mark.parametrize("name", ["MNLI-m", "MNLI-mm", "AX"])
def test_three_classes_have_their_names(name: str):
    text = written(name, ["neutral", "contradiction", "entailment"], ["2", "0", "1"])
    assert text == "index\tprediction\n2\tneutral\n0\tcontradiction\n1\tentailment\n"


def test_similarities_have_three_decimals_between_0_and_5():
    text = written("STS-B", [3.14159, 5.2, -0.1, 4.0], list("0123"))
    assert text == "index\tprediction\n0\t3.142\n1\t5.000\n2\t0.000\n3\t4.000\n"


def names(asked: str, data: str, file: str | None = None) -> list[tuple[str, str | None]]:
    return [(part.task.name, part.data) for part in parts_of(asked, data, file)]


def test_the_task_is_that_of_the_training_data():
    assert names("auto", "rte") == [("RTE", "nyu-mll/glue:rte")]
    assert names("auto", "glue:stsb", "x.tsv") == [("STS-B", None)]
    assert names("auto", "nyu-mll/glue:sst2", "test.tsv") == [("SST-2", None)]
    both = [("MNLI-m", "nyu-mll/glue:mnli"), ("MNLI-mm", "nyu-mll/glue:mnli")]
    assert names("auto", "mnli") == both
    assert names("AX", "mnli") == [("AX", "nyu-mll/glue:ax")]
    assert names("sst2", "mine.csv", "test.tsv") == [("SST-2", None)]


def test_the_task_is_that_of_a_folder_by_its_name(tmp_path: Path):
    folder = tmp_path / "glue_data" / "SST-2"
    folder.mkdir(parents=True)
    assert names("auto", str(folder)) == [("SST-2", str(folder))]


def test_the_halves_of_mnli_are_told_apart_by_the_file():
    assert names("auto", "mnli", "MNLI/test_matched.tsv") == [("MNLI-m", None)]
    assert names("MNLI", "snli", "test_mismatched.tsv") == [("MNLI-mm", None)]
    assert names("auto", "mnli", "diagnostic.tsv") == [("AX", None)]
    with pytest.raises(ValueError, match="MNLI-m, MNLI-mm or AX"):
        names("auto", "mnli", "test.tsv")


def test_what_cannot_be_known_is_refused():
    with pytest.raises(ValueError, match=r"trained on imdb, .* name a task"):
        names("auto", "imdb", "x.tsv")
    with pytest.raises(ValueError, match=r"legal are CoLA, .* Perhaps you meant 'SST-2'"):
        names("SST-3", "imdb", "x.tsv")
    with pytest.raises(ValueError, match="--file"):
        names("RTE", "imdb")


@pytest.mark.parametrize(
    ("name", "labels", "problem"),
    [
        ("RTE", ["entailment", "neutral", "contradiction"], "single"),
        ("AX", ["entailment", "not_entailment"], "single"),
        ("QNLI", ["0", "1"], "single"),
        ("STS-B", ["0", "1"], "single"),
        ("CoLA", ["score"], "regression"),
        ("SST-2", ["negative", "positive"], "multi"),
    ],
)
def test_labels_that_do_not_fit_are_refused(name: str, labels: list[str], problem: str):
    with pytest.raises(ValueError, match=f"{name} needs"):
        check_labels(TASKS[name], labels, problem)


def test_a_wrong_number_of_rows_is_told():
    assert wrong_number(TASKS["RTE"], 3000) is None
    assert "3 rows" in (wrong_number(TASKS["RTE"], 3) or "")


@pytest.mark.parametrize(
    ("header", "row", "read"),
    [
        ("index\tsentence", '7\tA "quote', ('A "quote', None)),
        ("index\t#1 ID\t#2 ID\t#1 String\t#2 String", "7\t1\t2\ta\tb", ("a", "b")),
        ("id\tquestion1\tquestion2", "7\ta\tb", ("a", "b")),
        ("index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
         "7\tg\tf\t2017\t3\ts\tt\ta\tb", ("a", "b")),
        ("index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence1\tsentence2",
         "7\t3\t3a\tg\t( a )\ta\tb", ("a", "b")),
        ("index\tquestion\tsentence", "7\ta\tb", ("a", "b")),
        ("index\tsentence1\tsentence2", "7\ta\tb", ("a", "b")),
    ],
    ids=["CoLA and SST-2", "MRPC", "QQP", "STS-B", "MNLI", "QNLI", "RTE, WNLI and AX"],
)  # fmt: skip
def test_the_benchmarks_own_files_are_read(
    tmp_path: Path, header: str, row: str, read: tuple[str, str | None]
):
    path = tmp_path / "test.tsv"
    path.write_text(f"{header}\n{row}\n", encoding="utf-8")
    ((example, number),) = read_numbered_texts(path)
    assert number == "7" and (example.text, example.pair) == read
