"""The packaged suite glue on a small copy of GLUE on a hub, and the files for its server."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path

import datasets
import pytest

from finetune.data.labels import NLI_LABELS
from finetune.suites import submission
from finetune.suites.submission import GLUE, glue_text
from finetune.types import (
    TextPrediction,
    UserError,
)
from tests.command import Outcome, run
from tests.hub.server import Hub
from tests.hub.test_datasets import publish
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
            own = (key for key, f in GLUE.items() if f.data is None and f[:2] == split)
            file = next(own, "AX.tsv")
            splits[f"test{part}"] = rows(name, ROWS.get(file, 8), blind=True)
        configs[name] = splits
    publish(hub, "nyu-mll/glue", configs, features)


def small_server(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {name: file._replace(rows=ROWS.get(name, 8)) for name, file in GLUE.items()}
    monkeypatch.setattr(submission, "GLUE", small)


def submit(*arguments: str | Path) -> Outcome:
    return run("run", "glue", *arguments)


@pytest.mark.slow
def test_glue_from_the_hub_to_its_server(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    copy_of_glue(hub)
    save_tiny_checkpoint(hub.model("lab/tiny"), "roberta")
    monkeypatch.chdir(tmp_path)
    small_server(monkeypatch)
    run("run", "glue", *"--model lab/tiny --max-length 32 --steps 2 --limit 60".split()).ok()
    folder = Path("runs/glue-tiny")
    content = json.loads((folder / "suite.json").read_text("utf-8"))
    by_name: dict[str, list[float]] = {}
    for each in content["scores"]:
        by_name.setdefault(each["task"], []).append(each["seeds"]["1"])
    assert list(by_name) == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
    (rte,) = [each for each in content["scores"] if each["task"] == "rte"]
    assert "init_from" in rte["verdict"] and "| 78.70 " in (folder / "suite.md").read_text("utf-8")
    means = [sum(own) / len(own) for name, own in by_name.items() if name != "wnli"]
    assert content["average"] == {"1": pytest.approx(sum(means) / 8)}
    start = json.loads((folder / "rte/seed-1/config.json").read_text("utf-8"))["init_from"]
    assert start == str(folder / "mnli" / "seed-1")

    outcome = submit("--out", folder, "--submit", "glue.zip").ok()
    assert f"AX.tsv: 3 rows, {folder / 'mnli' / 'seed-1'}" in outcome.err
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
    words = ("--out", folder, "--submit", "short.zip")
    (folder / "wnli/seed-1/README.md").unlink()
    submit(*words).refused(f"{folder / 'wnli'}: no finished run")
    submit(*words, "--seed", "4").refused(f"{folder / 'cola'}: no finished run")
    submit(*words[:-1], "glue.tar").refused("the suffix names the format: one of .zip")
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
