"""`finetune predict --glue-submission` on the benchmark's own kind of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import run
from tests.tiny import save_tiny_checkpoint

SMALL = ("--max-length", "40", "--batch-size", "8", "--precision", "fp32", "--steps", "4")
PEOPLE = ("Ana", "Bruno", "Carla", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jan")
TEST = [f'{name} saw "the river\t{name} saw it' for name in PEOPLE]


def table(path: Path, header: str, rows: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two sentences, trained on files as those of RTE, in a folder of that name."""
    folder = tmp_path_factory.mktemp("submission")
    save_tiny_checkpoint(folder / "bert", "bert")
    header = "index\tsentence1\tsentence2"
    rows = [f"{i}\t{row}\t{('not_' * (i % 2))}entailment" for i, row in enumerate(TEST)]
    for split in ("train", "dev"):
        table(folder / "RTE" / f"{split}.tsv", f"{header}\tlabel", rows)
    # numbers that are no places, to see that they are the file's
    table(folder / "RTE" / "test.tsv", header, [f"{90 - i}\t{row}" for i, row in enumerate(TEST)])
    flags = ("--model", folder / "bert", "--data", folder / "RTE", "--out", folder / "rte")
    outcome = run("nli", *flags, *SMALL)
    assert outcome.code == 0, outcome.err
    return folder


def expected(place: Path) -> str:
    lines = (place / "rte" / "predictions.test.jsonl").read_text("utf-8").splitlines()
    labels = [json.loads(line)["label"] for line in lines]
    rows = [f"{90 - index}\t{label}\n" for index, label in enumerate(labels)]
    return "".join(["index\tprediction\n", *rows])


def test_the_test_split_of_the_training_data(place: Path, tmp_path: Path):
    outcome = run("predict", place / "rte", "--glue-submission", "--output", tmp_path / "new")
    assert outcome.code == 0, outcome.err
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["RTE.tsv"]
    assert (tmp_path / "new" / "RTE.tsv").read_text("utf-8") == expected(place)
    assert outcome.out == f"{tmp_path / 'new' / 'RTE.tsv'}: 10 rows\n"
    assert "have 3,000" in outcome.err


def test_a_file_and_a_named_task(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    test = place / "RTE" / "test.tsv"
    outcome = run("predict", place / "rte", "--file", test, "--glue-submission", "QNLI")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "QNLI.tsv").read_text("utf-8") == expected(place)


def test_rows_without_numbers_count_from_0(place: Path, tmp_path: Path):
    rows = [dict(zip(("text", "text_pair"), row.split("\t"), strict=True)) for row in TEST]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    flags = ("--file", "-", "--glue-submission", "RTE", "--output", tmp_path)
    outcome = run("predict", place / "rte", *flags, stdin=lines)
    assert outcome.code == 0, outcome.err
    written = (tmp_path / "RTE.tsv").read_text("utf-8").splitlines()[1:]
    assert [line.split("\t")[0] for line in written] == [str(i) for i in range(10)]


def test_what_does_not_fit_is_refused_before_anything_is_written(place: Path, tmp_path: Path):
    test = ("--file", place / "RTE" / "test.tsv", "--output", tmp_path / "none")
    for more, message in (
        (("--glue-submission", "MNLI-m", *test), "the labels of this model are"),
        (("--glue-submission", "MNLI", *test), "matched or mismatched"),
        (("--glue-submission", "--text", "a"), "leave --text out"),
        (("--glue-submission", "AX", "--output", tmp_path / "none"), "with --file"),
    ):
        outcome = run("predict", place / "rte", *more)
        assert outcome.code == 2 and message in outcome.err, outcome
    assert not (tmp_path / "none").exists()
