"""The splits that are scored: none for validation, some without the texts of train; and nothing in
validation or test data ends a finished training, which can be scored again."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import finetune
from finetune import Dataset, read_text, train
from finetune.config.tasks import ClassifyConfig, TrainConfig
from finetune.data import DataError
from finetune.runtime import progress
from finetune.runtime.progress import Reporter
from finetune.types import UserError
from tests import fixtures as fx
from tests import small_data
from tests.command import Outcome, run
from tests.covering import few
from tests.small_data import read_jsonl, write_jsonl, write_splits

TASKS = ("classify", "nli", "tag", "ner")


def unvalidated(task: str) -> Path:
    """The data of a task without validation."""

    def copy(out: Path) -> None:
        shutil.copytree(fx.data(task), out, ignore=shutil.ignore_patterns("validation*"))

    return fx.made("unvalidated", task, copy)


def config_of(task: str, **changes) -> TrainConfig:
    settings = {"data": unvalidated(task), "steps": 6, "eval_every": 2, "validation": "none"}
    return fx.config(task, **{"model": fx.checkpoint(dropout=0.0), **settings, **changes})


@pytest.mark.parametrize("task", ["classify", "ner"])
def test_without_validation_all_rows_are_trained_and_the_last_model_is_kept(
    task: str, tmp_path: Path
):
    config = config_of(task, out=str(tmp_path / "a"))
    made, dataset = fx.load(config)
    assert list(dataset.splits) == ["train", "test"]
    result = finetune.fit(made, dataset, config)
    assert next(iter(result.metrics)) == "test" and result.best_step == 6
    best, last = (load_file(tmp_path / "a" / f / "model.safetensors") for f in ("best", "last"))
    assert all(best[name].equal(last[name]) for name in last)
    assert not (tmp_path / "a" / "predictions.validation.jsonl").exists()


@pytest.mark.parametrize("task", TASKS)
def test_test_splits_without_labels_are_predicted_only_on_request(task: str, tmp_path: Path):
    """The test splits of GLUE have no labels."""
    folder = shutil.copytree(unvalidated(task), tmp_path / "data")
    path = next(folder.glob("test.*"))
    rows = read_jsonl(path)
    unlabeled = [{n: row[n] for n in row if n not in ("label", "tags", "spans")} for row in rows]
    write_jsonl(path, unlabeled)
    config = config_of(task, data=str(folder), out=str(tmp_path / "run"))
    _, dataset = fx.load(config)
    assert list(dataset.splits) == ["train"]
    note = f"test: {len(rows)} examples without labels, which are not predicted"
    assert any(line.startswith(note) for line in dataset.notes)


def test_evaluation_shows_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    folders = {"data": fx.data("sentiment"), "out": str(tmp_path / "run")}
    config = config_of("classify", **folders, limit=20, validation="auto")
    task, dataset = fx.load(config)
    assert [len(examples) for examples in dataset.splits.values()] == [20, 12, 12]
    lines = io.StringIO()
    finetune.fit(task, dataset, config, reporter=Reporter(stream=lines))
    assert "validation: batch 1/1" in lines.getvalue()


def test_a_score_of_the_split_that_selected_the_model_is_named(tmp_path: Path):
    """In the terminal, the README of the run, its report and its card."""
    data = shutil.copytree(fx.data("sentiment"), tmp_path / "data")
    (data / "test.jsonl").unlink()
    done = fx.train("classify", tmp_path / "run", data=data).ok()
    note = "which also selected the model"
    texts = [tmp_path / "run" / name for name in ("README.md", "report.html", "best/README.md")]
    assert note in done.out and all(note in path.read_text() for path in texts)
    assert "no influence" not in texts[0].read_text()
    shutil.copy(data / "validation.jsonl", data / "test.jsonl")
    held_out = fx.train("classify", tmp_path / "other", data=data).ok()
    assert note not in held_out.out, held_out.err
    assert "test accuracy" in held_out.out and "95% interval" in held_out.out
    assert "F1 by label (examples): neg " in held_out.out
    assert "rare on test, with scores that say little: neg (" in held_out.out
    path = tmp_path / "other" / "README.md"
    assert "The test split had no influence on it." in path.read_text()


def test_of_equal_scores_the_last_counts_and_few_lines_are_printed(tmp_path: Path):
    folders = {"data": unvalidated("classify"), "out": str(tmp_path / "run")}
    config = config_of("classify", **folders, validation="auto", lr=1e-9)
    lines = io.StringIO()
    fx.fit(config, reporter=Reporter(stream=lines))
    said = [line for line in lines.getvalue().splitlines() if line.startswith(("step", "kept"))]
    assert len(said) == 3 and said[0].endswith("(best so far)"), said
    assert said[1].startswith("step 6: ") and said[1].endswith("(best so far)")
    assert said[2] == "kept: the model of step 6"


def test_a_given_validation_split_is_scored_only_at_the_end(tmp_path: Path):
    config = config_of("classify", data=fx.data("sentiment"), out=str(tmp_path / "run"))
    result = fx.fit(config)
    assert {"validation", "test"} <= result.metrics.keys() and result.best_step == 6
    assert "validation" not in (tmp_path / "run" / "log.jsonl").read_text()


@pytest.mark.parametrize("setting", [{"metric": "macro_f1"}, {"calibrate": "temperature"}])
def test_settings_that_need_validation_are_refused(setting: dict):
    with pytest.raises(UserError, match=r"needs validation data: leave it out"):
        ClassifyConfig(validation="none", **setting)


def test_seeds_and_report_without_validation_and_test(tmp_path: Path):
    rows = [{"text": f"{w} film {i}", "label": w} for i in range(10) for w in ("good", "bad")]
    file = write_jsonl(tmp_path / "train.jsonl", rows)
    outcome = fx.train(
        "classify", tmp_path / "seeds", "--seeds=2", data=file, validation="none"
    ).ok()
    assert "no split with gold labels to score" in outcome.out
    assert (tmp_path / "seeds" / "report.html").is_file()
    assert "comes from the last step, 2." in (tmp_path / "seeds/seed-1/README.md").read_text()
    run("predict", tmp_path / "seeds" / "seed-2", "--text", "good film").ok()


def test_test_is_also_scored_without_the_texts_of_train(tmp_path: Path):
    rows = [{"text": f"{w} film {i}", "label": w} for i in range(10) for w in ("good", "bad")]
    test = [{"text": rows[0]["text"].upper(), "label": "bad"}, *rows[1:3]]
    test += [{"text": "a bad plot", "label": "bad"}, {"text": "a good plot", "label": "good"}]
    data = write_splits(tmp_path / "data", train=rows, validation=test[3:], test=test)
    outcome = fx.train("classify", tmp_path / "run", data=data).ok()
    assert "test: 3 examples (60.0%) also in train; test_without_leaks" in outcome.err
    assert "test_without_leaks: accuracy" in outcome.out
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert list(metrics) == ["validation", "test", "test_without_leaks"]
    predicted = read_jsonl(tmp_path / "run" / "predictions.test.jsonl")
    labels = [row["label"] for row in predicted][3:]
    expected = (labels[0] == "bad") / 2 + (labels[1] == "good") / 2
    assert metrics["test_without_leaks"]["accuracy"] == expected


RELATED: dict[str, Any] = {
    "tokens": ["Ana", "left", "Oslo"],
    "spans": [{"start": 0, "end": 1, "label": "PER"}, {"start": 2, "end": 3, "label": "LOC"}],
    "relations": [{"subject": 0, "object": 1, "label": "left"}],
}
TAGGED = {"tokens": ["Ana", "left"], "tags": ["B-NEW", "O"]}
UNSEEN: dict[str, dict[str, Any]] = {
    "relations": RELATED,
    "softmax": {"text": "a", "text_pair": "b", "label": "other"},
    "tag": TAGGED,
    "ner": TAGGED,
}
"""By kind of run: a row with a label that train lacks."""


def copied_data(setup: str, folder: Path) -> Path:
    data = shutil.copytree(fx.data(fx.SETUPS[setup][1]), folder / "data")
    if not (data / "test.jsonl").exists():
        shutil.copy(data / "validation.jsonl", data / "test.jsonl")
    return data


def train_on(setup: str, data: Path, *more: str) -> Outcome:
    settings = {"data": data, "max_length": None, "batch_size": None}
    return fx.train(setup, data.parent / "run", *more, **settings)


def add_row(folder: Path, split: str, row: dict[str, Any]) -> None:
    path = folder / f"{split}.jsonl"
    write_jsonl(path, [*read_jsonl(path), row])


@pytest.mark.parametrize("setup", few(UNSEEN, "tag"))
def test_labels_that_train_lacks_are_missed(setup: str, tmp_path: Path):
    data = copied_data(setup, tmp_path)
    for split in ("validation", "test"):
        add_row(data, split, UNSEEN[setup])
    train_on(setup, data).ok()
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["validation"] and metrics["test"]


@pytest.mark.slow
def test_the_order_of_splits_does_not_matter(tmp_path: Path):
    """Also not for what is fitted on validation."""
    data = read_text(fx.data("sentiment", (16, 12, 12)))
    metrics = []
    for names in (("train", "validation", "test"), ("test", "train", "validation")):
        turned = Dataset("x", {name: data.splits[name] for name in names})
        settings = {"steps": 2, "calibrate": "temperature", "out": str(tmp_path / names[0])}
        found = train("classify", data=turned, model=str(fx.checkpoint()), quiet=True, **settings)
        metrics.append(found.metrics)
    assert metrics[0] == metrics[1] and "ece" in metrics[0]["test"]


def test_a_finished_run_is_scored_again_on_another_test_split(tmp_path: Path):
    data = copied_data("relations", tmp_path)
    train_on("relations", data).ok()
    before = (tmp_path / "run" / "last" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "metrics.json").unlink()
    add_row(data, "test", RELATED)
    done = train_on("relations", data, "--resume").ok()
    assert "the test split has changed since the run was started" in done.err + done.out
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]
    assert (tmp_path / "run" / "last" / "model.safetensors").read_bytes() == before
    add_row(data, "validation", RELATED)
    train_on("relations", data, "--resume").refused("was started with other data")


def test_a_test_split_that_cannot_be_read_is_refused_before_training(tmp_path: Path):
    data = copied_data("relations", tmp_path)
    long = [{**span, "label": f"{span['label']} " * 80} for span in RELATED["spans"]]
    add_row(data, "test", RELATED | {"spans": long})
    train_on("relations", data, "--max-length", "40").refused("has no room for words")
    assert not (tmp_path / "run" / "last").exists()


@pytest.mark.parametrize("make", [small_data.sentiment, small_data.topics])
def test_a_blank_text_has_no_prediction(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """Training, `predict` and `score` agree; calibration and thresholds leave it out."""
    folder, out = make(tmp_path / "data"), tmp_path / "run"
    for split in ("validation", "test"):
        rows = read_jsonl(folder / f"{split}.jsonl")
        write_jsonl(folder / f"{split}.jsonl", [{**rows[0], "text": " \t"}, *rows[1:]])
    settings = {"calibrate": "temperature", "out": str(out), "steps": 3, "quiet": True}
    trained = train("classify", folder, str(fx.checkpoint()), **settings)
    assert [row["label"] is None for row in read_jsonl(out / "predictions.test.jsonl")][:2] == [
        True,
        False,
    ]
    scored = json.loads(run("score", out, "--data", folder / "test.jsonl", "--json").ok().out)
    assert scored == pytest.approx({name: trained.metrics["test"][name] for name in scored})
    assert trained.metrics["test"]["ece"] <= 1
    run("thresholds", out).ok()
    analysis = json.loads(run("report", out, "--format", "json").ok().out)
    assert analysis["calibration"]["bins"] and analysis["examples"]


def test_a_blank_text_of_a_number_is_refused_before_training(tmp_path: Path) -> None:
    folder = small_data.numbers(tmp_path / "data")
    first, *rows = read_jsonl(folder / "test.jsonl")
    write_jsonl(folder / "test.jsonl", [{**first, "text": "", "text_pair": " "}, *rows])
    settings = {"out": str(tmp_path / "run"), "quiet": True}
    with pytest.raises(
        DataError, match=r"test\.jsonl:1: the text is blank, and so without a number"
    ):
        train("classify", folder, str(fx.checkpoint()), **settings)
