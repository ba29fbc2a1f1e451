"""The packaged suite glue on a small copy of GLUE on a hub, and the files for its server."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path

import datasets
import pytest

from finetune.config.recipes import packaged_path
from finetune.data.labels import NLI_LABELS
from finetune.suites import submission
from finetune.suites.definition import load_suite
from finetune.suites.submission import GLUE, GlueFile, glue_text, squad_texts
from finetune.types import (
    AnswerPrediction,
    FoundAnswer,
    TextExample,
    TextPrediction,
    UserError,
)
from tests.command import Outcome, run
from tests.hub.server import Hub
from tests.hub.test_datasets import publish
from tests.small_data import read_jsonl
from tests.tiny import save_tiny_checkpoint

COLUMNS = {
    "cola": ("sentence", None, ("unacceptable", "acceptable")),
    "sst2": ("sentence", None, ("negative", "positive")),
    "mrpc": ("sentence1", "sentence2", ("not_equivalent", "equivalent")),
    "stsb": ("sentence1", "sentence2", None),
    "qqp": ("question1", "question2", ("not_duplicate", "duplicate")),
    "mnli": ("premise", "hypothesis", NLI_LABELS),
    "qnli": ("question", "sentence", ("entailment", "not_entailment")),
    "rte": ("sentence1", "sentence2", ("entailment", "not_entailment")),
    "wnli": ("sentence1", "sentence2", ("not_entailment", "entailment")),
    "ax": ("premise", "hypothesis", NLI_LABELS),
}
"""Columns and class names of nyu-mll/glue by configuration."""
ROWS = {"CoLA.tsv": 7, "STS-B.tsv": 5, "MNLI-m.tsv": 6, "MNLI-mm.tsv": 4, "AX.tsv": 3}
"""Rows of small test sets; 8 of all others."""


def copy_of_glue(hub: Hub) -> None:
    drawn = random.Random(0)
    words = "a big red dog saw the old house in berlin and the garden was late".split()

    def row(name: str, index: int, blind: bool) -> dict:
        first, second, labels = COLUMNS[name]
        found = {first: " ".join(drawn.choices(words, k=5)), "idx": index}
        if second is not None:
            found[second] = " ".join(drawn.choices(words, k=5))
        own = drawn.uniform(0, 5) if labels is None else index % len(labels)
        return found | {"label": -1 if blind else own}

    def rows(name: str, number: int, blind: bool = False) -> list[dict]:
        return [row(name, index, blind) for index in range(number)]

    configs, features = {}, {}
    for name, (first, second, labels) in COLUMNS.items():
        text = datasets.Value("string")
        label = datasets.Value("float32") if labels is None else datasets.ClassLabel(names=labels)
        own = {first: text, second: text, "label": label, "idx": datasets.Value("int32")}
        features[name] = datasets.Features({k: v for k, v in own.items() if k})
        parts = ("_matched", "_mismatched") if name == "mnli" else ("",)
        splits = {} if name == "ax" else {"train": rows(name, 30)}
        for part in parts if name != "ax" else ():
            splits[f"validation{part}"] = rows(name, 9)
        for part in parts:
            split = name, f"test{part}"
            file = next((f.name for f in FILES if (f.member, f.split) == split), "AX.tsv")
            splits[f"test{part}"] = rows(name, ROWS.get(file, 8), blind=True)
        configs[name] = splits
    publish(hub, "nyu-mll/glue", configs, features_of=features)


VALIDATION = packaged_path("examples") / "data" / "qa" / "validation.jsonl"


FILES = load_suite("glue").files


def small_server(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {name: GlueFile(ROWS.get(name, 8), file.labels) for name, file in GLUE.items()}
    monkeypatch.setattr(submission, "GLUE", small)


def submit(*arguments: str | Path) -> Outcome:
    return run("run", *("--submit" if each == "--out" else each for each in arguments))


def test_glue_from_the_hub_to_its_server(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    copy_of_glue(hub)
    save_tiny_checkpoint(hub.model("lab/tiny"), "roberta")
    monkeypatch.chdir(tmp_path)
    small_server(monkeypatch)
    run("run", "glue", "--smoke", *"--model lab/tiny --max-length 32 --steps 2".split()).ok()
    folder = Path("runs/glue-tiny-smoke")
    record = json.loads((folder / "suite.json").read_text("utf-8"))
    by_name = {
        name: {f"{each['split']} {each['metric']}": each for each in member["scores"]}
        for name, member in record["members"].items()
    }
    assert list(by_name) == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
    assert list(by_name["mnli"]) == [
        "validation_matched accuracy",
        "validation_mismatched accuracy",
    ]
    rte = by_name["rte"]["validation accuracy"]
    assert rte["published"]["value"] == 0.787 and "init_from" in rte["verdict"]
    assert list(record["average"]["left_out"]) == ["wnli"]
    means = [
        sum(each["mean"] for each in scores.values()) / len(scores)
        for name, scores in by_name.items()
        if name != "wnli"
    ]
    assert record["average"]["mean"] == pytest.approx(sum(means) / 8)
    start = json.loads((folder / "rte/seed-1/config.json").read_text("utf-8"))["init_from"]
    assert start == str(folder / "mnli" / "seed-1")

    outcome = submit(folder, "--out", "glue.zip").ok()
    assert "AX.tsv: 3 rows, mnli seed 1, the only one" in outcome.err
    assert outcome.out == "glue.zip: 11 files\n"
    with zipfile.ZipFile("glue.zip") as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert sorted(texts) == sorted(GLUE)
    for name, text in texts.items():
        head, *lines = text.splitlines()
        assert head == "index\tprediction"
        index, values = zip(*(line.split("\t") for line in lines), strict=True)
        assert list(index) == [str(number) for number in range(ROWS.get(name, 8))]
        legal = GLUE[name].labels.values()
        assert {*values} <= {*legal} if legal else all(0 <= float(each) <= 5 for each in values)
    before = Path("glue.zip").read_bytes()
    submit(folder, "--out", "again.zip")
    assert Path("again.zip").read_bytes() == before, "equal predictions give equal archives"

    monkeypatch.setitem(submission.GLUE, "WNLI.tsv", GlueFile(9, GLUE["WNLI.tsv"].labels))
    said = "WNLI.tsv: 8 predictions, and the server expects 9 rows"
    submit(folder, "--out", "short.zip").refused(said)
    (folder / "wnli/seed-1/README.md").unlink()
    outcome = submit(folder, "--out", "short.zip")
    assert "wnli has no finished run. The server takes all files or none" in outcome.err
    outcome = submit(folder, "--out", "short.zip", "--seed", "4")
    assert "cola has no finished run of seed 4; sst2 has no" in outcome.err
    assert not Path("short.zip").exists() and not list(Path().glob(".short*"))


def predictions(labels: list) -> list[TextPrediction]:
    return [TextPrediction(index, label) for index, label in enumerate(labels)]


def test_the_words_and_numbers_of_the_server():
    text = glue_text("CoLA.tsv", predictions(["acceptable", "unacceptable", "1"] * 354 + ["0"]))
    lines = text.split("\n")
    assert lines[:4] == ["index\tprediction", "0\t1", "1\t0", "2\t1"]
    assert lines[1063:] == ["1062\t0", ""] and len(lines) == 1065
    scores = [-0.2, 0.0, 2.34567, 5.0, 7.5, *[1.0] * 1374]
    lines = glue_text("STS-B.tsv", predictions(scores)).split("\n")
    assert lines[1:6] == ["0\t0.000", "1\t0.000", "2\t2.346", "3\t5.000", "4\t5.000"]
    lines = glue_text("WNLI.tsv", predictions(["entailment", "not_entailment"] * 73)).split("\n")
    assert lines[1:3] == ["0\t1", "1\t0"]
    lines = glue_text("RTE.tsv", predictions(["entailment", "not_entailment"] * 1500)).split("\n")
    assert lines[1:3] == ["0\tentailment", "1\tnot_entailment"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["entailment"] * 145, "145 predictions, and the server expects 146 rows"),
        (["entailment"] * 145 + ["neutral"], "row 145 has the label 'neutral', .* one of not_ent"),
        ([None, *["entailment"] * 145], "row 0 has no prediction: its text is blank"),
        ([0.5] * 146, "row 0 has the label 0.5"),
    ],
)
def test_a_wrong_row_is_refused(labels: list, message: str):
    with pytest.raises(UserError, match=f"WNLI.tsv: {message}"):
        glue_text("WNLI.tsv", predictions(labels))


def test_answers_by_the_ids_of_questions(tmp_path: Path):
    def example(key: str | None) -> TextExample:
        return TextExample(0, "who?", "Ana did.", None, key=key, where="q.json:3")

    found = AnswerPrediction(0, FoundAnswer(0, 3, "Ana", 0.9), 0.9, 0.1)
    none = AnswerPrediction(1, None, 0.7, 0.7)
    texts = squad_texts("v2.json", [example("a"), example("b")], [found, none])
    assert json.loads(texts["v2.json"]) == {"a": "Ana", "b": ""}
    assert json.loads(texts["v2-na-prob.json"]) == {"a": 0.1, "b": 0.7}
    always = AnswerPrediction(0, found.answer, 0.9)
    assert list(squad_texts("v1.json", [example("a")], [always])) == ["v1.json"]
    with pytest.raises(UserError, match=r"v1.json: q.json:3: the question has the id 'a' again"):
        squad_texts("v1.json", [example("a"), example("a")], [always, always])
    with pytest.raises(UserError, match="the question has no id"):
        squad_texts("v1.json", [example(None)], [always])


def test_questions_of_a_suite_are_answered(tmp_path: Path):
    save_tiny_checkpoint(tmp_path / "model", "bert", max_position_embeddings=256)
    recipe = f"task: qa\nmodel: {tmp_path / 'model'}\ndata: examples/data/qa\nsteps: 2\n"
    (tmp_path / "r.yaml").write_text(recipe + "limit: 20\nmax_length: 128\noverlap: 32\n")
    (tmp_path / "own.yaml").write_text(
        "title: Own\nmembers:\n  q: {recipe: r.yaml, scores: [validation f1]}\n"
        "submission:\n  format: squad\n  files: {q.json: {member: q, split: validation}}\n"
    )
    run("run", tmp_path / "own.yaml", "--out", tmp_path / "out").ok()
    submit(tmp_path / "out", "--out", tmp_path / "q.zip").ok()
    rows = read_jsonl(VALIDATION)
    with zipfile.ZipFile(tmp_path / "q.zip") as archive:
        answers = json.loads(archive.read("q.json"))
    assert list(answers) == [row["id"] for row in rows]
    assert all(answers[row["id"]] in row["context"] for row in rows)


def test_other_folders_are_refused(tmp_path: Path):
    submit(tmp_path, "--out", tmp_path / "glue.zip").refused("no such recipe file")
    (tmp_path / "suite.json").write_text('{"suite": "x", "title": "X", "members": {"a": {}}}')
    submit(tmp_path, "--out", tmp_path / "glue.tar").refused(
        "the suffix names the format: one of .zip"
    )
    run("run", tmp_path).refused("name the suite to continue it")
    submit(tmp_path, "--out", tmp_path / "glue.zip").refused("suite.json")
