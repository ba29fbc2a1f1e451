"""`finetune thresholds`, and what `finetune predict` makes of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import finetune
from finetune.evaluation.runs import RunFolder
from tests import fixtures as fx
from tests import small_data
from tests.command import run
from tests.covering import few
from tests.tiny import save_tiny_checkpoint


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("thresholds")
    model = str(save_tiny_checkpoint(folder / "bert", "bert"))
    settings = {"steps": 3, "batch_size": 8, "lr": 1e-3, "quiet": True}
    for name, make in (("topics", small_data.topics), ("sentiment", small_data.sentiment)):
        data = make(folder / f"{name}-data")
        finetune.train("classify", data, model, out=str(folder / name), **settings)
    return folder


def saved(folder: Path) -> dict:
    return json.loads((folder / "best" / "finetune.json").read_text())["extra"]["thresholds"]


def rows_of(folder: Path, split: str) -> list[dict]:
    lines = (folder / f"predictions.{split}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_thresholds_are_saved_with_the_model_and_used(workdir: Path) -> None:
    topics = workdir / "topics"
    run("thresholds", topics, "--metric", "macro_f1", "--dry-run").ok()
    assert saved(topics) == {}
    found = json.loads(run("thresholds", topics, "--metric", "macro_f1", "--json").ok().out)
    assert saved(topics) == found["thresholds"] and found["metric"] == "macro_f1"
    rows = rows_of(topics, "test")
    predictions = finetune.load(topics).predict([row["text"] for row in rows])
    for prediction, row in zip(predictions, rows, strict=True):
        expected = {n for n, p in row["scores"].items() if p >= found["thresholds"][n]}
        assert set(prediction.label) == expected
    (everything,) = run("predict", topics, "--text", "a", "--threshold", "0").ok().rows
    assert everything["label"] == sorted(everything["scores"])
    run("thresholds", topics, "--reset").ok()
    assert saved(topics) == {}


def test_labels_with_other_names_in_nli_and_a_test_split_without_labels(
    workdir: Path, tmp_path: Path
) -> None:
    names = {"neg": "Contradiction", "pos": "Entailment"}
    splits = {
        split: [{"text": e.text, "label": names[e.label]} for e in rows]
        for split, rows in finetune.read_text(workdir / "sentiment-data").splits.items()
    }
    settings = {"model": str(workdir / "bert"), "out": str(tmp_path / "run"), "quiet": True}
    finetune.train("classify", splits, steps=1, **settings)
    command = ("thresholds", tmp_path / "run", "--recall", "1", "--dry-run")
    assert "1.0000" in run(*command).out
    rows = [row | {"gold": None} for row in rows_of(tmp_path / "run", "test")]
    small_data.write_jsonl(tmp_path / "run" / "predictions.test.jsonl", rows)
    assert "1.0000" in run(*command).out


def test_the_threshold_of_two_labels(workdir: Path) -> None:
    sentiment = workdir / "sentiment"
    out = run("thresholds", sentiment, "--recall", "1").ok().out
    assert "precision at a recall of 1, chosen on" in out and "pos" in out
    ((name, threshold),) = saved(sentiment).items()
    assert name == "pos"
    gold = [row for row in rows_of(sentiment, "validation") if row["gold"] == "pos"]
    found = finetune.load(sentiment).predict([row["text"] for row in gold])
    assert {each.label for each in found} == {"pos"}
    assert all(each.score == each.scores["pos"] >= threshold for each in found)
    for value, label in (("1", "neg"), ("pos=0", "pos")):
        (row,) = run("predict", sentiment, "--text", "a", "--threshold", value).ok().rows
        assert row["label"] == label


REFUSED = """
thresholds sentiment --recall 1.5 | --recall must be from 1e-06 to 1, not 1.5
thresholds sentiment --recall 1 --metric f1 | give one goal
thresholds sentiment --metric f2 | --metric f2 does not fit these predictions: choose
thresholds sentiment/best | give the folder of a run
thresholds sentiment --split dev | no predictions.dev.jsonl
thresholds sentiment --risk 1 | --risk must be from 1e-06 to 0.999999
thresholds sentiment --risk 0.01 | needs 299 answers or more
thresholds sentiment --sets 0.99 | where 99 are needed
thresholds topics --sets 0.5 | predictions of one class
thresholds sentiment --reset --risk 0.1 | leave out --risk
thresholds sentiment --costs none.csv | --costs 'none.csv': no such file
thresholds topics --costs costs.csv | models of one label
predict sentiment --text=a --threshold=neg=0.5 | 'neg' is none of pos
predict topics --text=a --threshold=half | write a number from 0 to 1, or for
predict topics --text=a --threshold=2 | --threshold 2: write a number from 0
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_errors(line: str, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workdir)
    Path("costs.csv").write_text("gold,neg,pos\nneg,0,9\npos,1,0\n")
    command, message = line.split(" | ")
    run(*command.split()).refused(message)


def decisions(folder: Path) -> dict:
    extra = json.loads((folder / "best" / "finetune.json").read_text())["extra"]
    return extra.get("decisions", {})


def test_answers_are_withheld_below_the_chosen_confidence(workdir: Path) -> None:
    sentiment = workdir / "sentiment"
    said = run("thresholds", sentiment, "--coverage", "0.5").ok().out
    assert "validation also chose the epoch of the model" in said
    rows = rows_of(sentiment, "validation")
    found = finetune.load(sentiment).predict([row["text"] for row in rows])
    sure = [each for each in found if each.label is not None]
    assert len(sure) == len(rows) // 2  # all that are as probable as the last one
    assert min(each.score for each in sure) >= decisions(sentiment)["confidence"]
    for each, row in zip(found, rows, strict=True):
        assert each.label in (row["label"], None)
        assert each.to_dict()["withheld"] == (None if each.label else row["label"])
    pairs = list(zip(found, rows, strict=True))
    scored = [each.to_dict() | {"gold": row["gold"]} for each, row in pairs]
    file = small_data.write_jsonl(workdir / "withheld.jsonl", scored)
    right = sum(each.label == row["gold"] for each, row in pairs)
    analysis = json.loads(run("report", file, "--format", "json").ok().out)
    assert analysis["scores"]["accuracy"] == right / len(rows), "one that is withheld is not right"
    run("thresholds", sentiment, "--reset").ok()
    assert decisions(sentiment) == {}


def test_sets_distances_and_costs_are_saved_together(workdir: Path, tmp_path: Path) -> None:
    sentiment, costs = workdir / "sentiment", tmp_path / "costs.csv"
    costs.write_text("gold,neg,pos\nneg,0,9\npos,1,0\n")
    said = ""
    for goal in (("--sets", "0.6"), ("--ood", "0.2"), ("--costs", costs)):
        said += run("thresholds", sentiment, *goal).ok().out
    assert decisions(sentiment).keys() == {"sets", "distance", "costs"}
    assert "sets on validation" in said and "error rate" not in said
    for format in ("table", "json", "csv"):
        printed = run("thresholds", sentiment, "--sets", "0.1", "--dry-run", "--format", format)
        notes = printed.out if format == "table" else printed.err
        assert "for an error rate of 0.1 write --sets 0.9" in notes
    texts = [row["text"] for row in rows_of(sentiment, "test")]
    model = finetune.load(sentiment)
    for found in (model.predict(texts), list(model.stream(texts))):
        for each in found:
            row = each.to_dict()
            cost = min(9 * each.scores["neg"], each.scores["pos"])
            assert row["cost"] == pytest.approx(cost, 1e-4)
            assert {*row["set"]} <= {"neg", "pos"} and row["ood"] == (row["withheld"] is not None)
    row = finetune.load(sentiment, threshold=0.5).predict(texts[:1])[0].to_dict()
    assert "set" in row and "cost" not in row, "the threshold of a call replaces the saved costs"
    analysis = json.loads(run("report", sentiment, "--format", "json").ok().out)
    assert "risk" in analysis["tables"] and analysis["scores"]["mean_cost"] > 0
    again = shutil.copy(sentiment / "predictions.test.jsonl", tmp_path / "again.jsonl")
    run("compare", sentiment, again, "--metric", "mean_cost", "--resamples", "50").ok()
    run("thresholds", sentiment, "--reset").ok()
    assert not (sentiment / "best" / "distance.safetensors").exists()
    assert RunFolder.open(sentiment).require_intact() is None


def test_one_of_several_classes_has_no_threshold() -> None:
    nli = fx.trained("nli")
    for goal in ([], ["--precision", "0.5"], ["--metric", "macro_f1"]):
        run("thresholds", nli, *goal).refused("Give --risk or --coverage to abstain")
    with pytest.raises(ValueError, match="write a number from 0 to 1"):
        finetune.load(nli, threshold={"neutral": 1.0})


def test_predict_takes_costs_and_thresholds_of_any_task(workdir: Path, tmp_path: Path) -> None:
    costs = {"neg": {"neg": 0.0, "pos": 1e6}, "pos": {"neg": 1.0, "pos": 0.0}}
    model = finetune.load(workdir / "sentiment", costs=costs)
    assert model.predict(["a"])[0].label == "neg"
    tag, settings = tmp_path / "tag", {"steps": 1, "model": str(workdir / "bert"), "quiet": True}
    finetune.train("tag", small_data.speech(tmp_path / "d"), out=str(tag), **settings)
    (row,) = run("predict", tag, "--text", "a b", "--threshold", "1").ok().rows
    assert row["tags"] == [None, None] and len(row["withheld"]) == 2
    refused = run("predict", tag, "--text", "a b", "--threshold", "N=1")
    refused.refused("write a number from 0 to 1")
    run("thresholds", tag, "--coverage", "0.1").ok()
    assert "withheld" in finetune.load(tag).predict(["a b"])[0].to_dict()


def without_floats(value: Any) -> Any:
    """What is decided: no probabilities, nor `best`, whose order they decide up to rounding."""
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name not in ("id", "best")}
        return {name: without_floats(each) for name, each in kept.items()}
    if isinstance(value, list):
        return [without_floats(each) for each in value]
    return "" if isinstance(value, float) else value


@pytest.mark.parametrize(
    "setup",
    few([*(k for k in fx.DATA if k != "nli"), "several labels"], "classify", "ner", "sentence"),
)
def test_decisions_of_every_task_do_not_depend_on_other_texts(setup: str, tmp_path: Path) -> None:
    own = shutil.copytree(fx.trained(setup), tmp_path / "run")
    chosen = run("thresholds", own, "--coverage", "0.5")
    if setup in ("sentence", "pretrain"):
        for refused in (chosen, run("thresholds", own)):
            assert refused.code == 2 and "only a model with probabilities" in refused.err
        assert run("predict", own, "--text", "a", "--threshold", "1").code == 2
        return
    found = run("thresholds", own, "--ood", "0.5")
    assert (chosen.code, found.code) == (0, 0) or "no answers with a probability" in chosen.err
    if setup in ("classify", "nli", "choice"):
        run("thresholds", own, "--sets", "0.6").ok()
    model = finetune.load(own)
    file = next(fx.data(fx.SETUPS[setup][1]).glob("test.*"))
    examples = list(model.task.state.read(str(file)))
    rows = [each.to_dict() for each in model.stream(examples)]
    alone = [one for each in examples for one in model.stream([replace(each, id=0)])]
    for others in (alone, list(model.stream(examples[::-1]))[::-1]):
        assert without_floats(rows) == without_floats([each.to_dict() for each in others])
    plain = [each.to_dict() for each in finetune.load(own, decide=False).stream(examples)]
    has_answers = setup != "ner" or any(row["spans"] for row in plain)
    assert any(row["withheld"] for row in rows) == has_answers
    for row, before in zip(rows, plain, strict=True):
        assert "distance" in row and row.get("scores") == before.get("scores")
        if not row["withheld"] and row["withheld"] != "":
            assert {name: row[name] for name in before} == before


def test_a_number_stays_out_of_distribution(tmp_path: Path) -> None:
    own = shutil.copytree(fx.trained("numbers"), tmp_path / "run")
    assert "and their numbers stay" in run("thresholds", own, "--ood", "0.5").ok().out
    (answer,) = finetune.load(own).predict([("zebra " * 30, "a zebra")])
    row = answer.to_dict()
    assert isinstance(row["label"], float) and row["withheld"] is None and "ood" in row
