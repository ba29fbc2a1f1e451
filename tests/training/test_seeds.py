"""Several seeds: kept, resumed, refused, summed up, judged."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from pathlib import Path

import pytest

from finetune.evaluation.baselines import Baseline, degenerate
from finetune.evaluation.reproduction import summarize
from finetune.training.run_folder import Diverged
from tests import fixtures as fx
from tests import small_data as data
from tests.command import run


def write_recipe(folder: Path, rows: Path | None = None) -> Path:
    """Write a recipe with expected scores, of which a run measures one."""
    (path := folder / "small.yaml").write_text(
        f"task: classify\nmodel: {fx.checkpoint()}\ndata: {rows or fx.data('sentiment')}\n"
        "steps: 3\nbatch_size: 8\nexpected:\n"
        "  - {split: test, metric: accuracy, value: 0.5, tolerance: 0.5, source: a made-up one}\n"
        "  - {split: test, metric: mse, value: 0.5, tolerance: 0.5, source: a made-up one}\n"
    )
    return path


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("seeds"))


def content(folder: Path) -> dict:
    return json.loads((folder / "seeds.json").read_text("utf-8"))


def test_seeds_are_trained_kept_and_resumed(recipe: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = run("run", recipe, "--seeds", "2").ok()
    assert outcome.err.count("data: ") == 1, "what seeds share is said once"
    folder = Path("runs/classify-small-seeds")
    found = content(folder)
    metrics = [json.loads((folder / f"seed-{n}/metrics.json").read_text()) for n in (1, 2)]
    values = [each["test"]["accuracy"] for each in metrics]
    accuracy = found["metrics"]["test"]["accuracy"]
    assert accuracy["mean"] == statistics.fmean(values)
    assert accuracy["standard_deviation"] == statistics.stdev(values)
    assert accuracy["seeds"] == {"1": values[0], "2": values[1]}
    number = len(found["degenerate"])  # three steps may teach nothing
    said = "not reproduced" if number == 2 else "reproduced"
    after = f" ({number} of 2 seeds degenerate)" if number else ""
    verdicts = [each["verdict"] for each in found["verdicts"]]
    assert verdicts == [f"{said}{after}", f"not measured{after}"]
    assert "mean of 2 seeds" in outcome.out and f"{said}{after} (a made-up one)" in outcome.out
    configs = [json.loads((folder / f"seed-{n}/config.json").read_text()) for n in (1, 2)]
    assert [each["seed"] for each in configs] == [1, 2]

    # the same command with one more: two are kept, one is begun, one that was cut off continues
    (folder / "seed-2" / "metrics.json").unlink()
    before = (folder / "seed-1" / "log.jsonl").stat().st_mtime_ns
    outcome = run("run", recipe, "--seeds=3").ok()
    assert "seed-1 is finished: kept" in outcome.out
    assert "seed-2 is finished" not in outcome.out
    assert (folder / "seed-1" / "log.jsonl").stat().st_mtime_ns == before
    again = json.loads((folder / "seed-2" / "metrics.json").read_text())
    assert again == metrics[1]
    assert content(folder)["seeds"] == [1, 2, 3]

    # other settings: not comparable, and not in the same folder
    said = "seed-1: was started with lr = unset, now 0.5: continue with the same"
    run("run", recipe, "--seeds", "2", "--lr", "0.5").refused(said)
    outcome = run("run", recipe, "--seeds", "1", "--steps", "2", "--out", "other")
    assert "not comparable (steps changed)" in outcome.out


def test_a_single_run_that_learnt_nothing_reproduces_nothing(recipe: Path, tmp_path: Path):
    folder = tmp_path / "runs" / "one"
    same = [{"text": "all the same", "label": label} for label in ("pos", "neg")]
    data.write_splits(data.sentiment(tmp_path / "data"), test=same)
    outcome = run("run", write_recipe(tmp_path, tmp_path / "data"), "--out", folder).ok()
    assert "this run is degenerate: " in outcome.out
    assert ". Train longer (--epochs), or with another --lr." in outcome.out
    said = "not reproduced (degenerate) (a made-up one)"
    assert 'test: every prediction is "' in outcome.out and said in outcome.out
    about = json.loads((folder / "environment.json").read_text())
    assert about["recipe"]["verdicts"][0]["verdict"] == "not reproduced (degenerate)"
    assert "the run is degenerate: " in (folder / "report.html").read_text("utf-8")


def test_a_seed_that_diverges_is_flagged_and_the_others_count(
    recipe: Path, tmp_path: Path, monkeypatch
):
    from finetune.cli import train

    real = train.train_once

    def train_once(task, resume_command, config, *others, **options):
        if config.seed == 1:
            raise Diverged("the loss is not finite")
        return real(task, resume_command, config, *others, **options)

    monkeypatch.setattr(train, "train_once", train_once)
    outcome = run("run", recipe, "--seeds", "2", "--out", tmp_path / "out").ok()
    assert "seed 1 is degenerate: the loss is not finite" in outcome.out
    found = content(tmp_path / "out")
    assert found["seeds"] == [2]
    number = len(found["degenerate"])  # three steps may teach the other nothing either
    assert found["verdicts"][0]["verdict"].endswith(f"({number} of 2 seeds degenerate)")


@pytest.mark.slow
def test_an_error_if_no_seed_has_a_model(recipe: Path, tmp_path: Path) -> None:
    arguments = ("--seeds", "2", "--lr", "1e30", "--out", tmp_path / "out")
    for _ in range(2):
        said = f"{tmp_path / 'out'}: no seed has a model: the loss is not finite"
        run("run", recipe, *arguments).refused(said)
    found = content(tmp_path / "out")
    assert found["seeds"] == [] and len(found["degenerate"]) == 2


@pytest.fixture(scope="module")
def finished(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one seed."""
    out = tmp_path_factory.mktemp("finished") / "out"
    run("run", recipe, "--seeds", "1", "--out", out).ok()
    return out


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("best/model.safetensors", "best/model.safetensors: damaged, changed or missing since"),
        ("metrics.json", "metrics.json: changed since the run was finished. The seed is scored"),
    ],
)
def test_a_finished_run_that_has_changed(
    file: str, said: str, recipe: Path, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    command = ("run", recipe, "--seeds", "1", "--out", tmp_path / "out")
    path = tmp_path / "out" / "seed-1" / file
    before = path.read_bytes()
    path.write_bytes(b"{}" if file == "metrics.json" else before[:-2] + b"0" + before[-1:])
    if path.parent.name == "best":
        run(*command).refused(said)
        run("run", recipe, "--out", path.parents[1], "--resume", "auto").refused(said)
    else:
        assert said in run(*command).ok().err
        assert path.read_bytes() == before and "finished: kept" in run(*command).out


def test_summary_by_hand():
    found = summarize(
        {
            1: {"test": {"a": 1.0, "b": 0.5, "c": math.nan}},
            2: {"test": {"a": 2.0, "c": 1.0}},
            5: {"test": {"a": 6.0, "b": 0.5, "c": 1.0}},
        }
    )
    assert found == {
        "test": {
            "a": {
                "mean": 3.0,
                "standard_deviation": pytest.approx(7**0.5),
                "median": 2.0,
                "minimum": 1.0,
                "maximum": 6.0,
                "seeds": {"1": 1.0, "2": 2.0, "5": 6.0},
            }
        }
    }
    assert summarize({1: {"test": {"a": 1.0}}})["test"]["a"]["standard_deviation"] is None


BASE = {"test": Baseline("pos", "accuracy", 0.6)}
SPAN = {"start": 0, "end": 1, "label": "X"}


def line(predicted: dict) -> dict:
    """A line of a prediction file, whose prediction is right."""
    words = ["w"] * len(predicted.get("tags", "w"))
    return {"text": "w", "words": words, "gold": predicted.get("label", predicted)} | predicted


AB = [{"label": "a"}, {"label": "b"}]
NUMBERS = [{"label": 1.5}, {"label": 1.6}]
FOUND = [{"spans": [SPAN]}, {"spans": []}]


@pytest.mark.parametrize(
    ("rows", "metrics", "reason"),
    [
        ([{"label": "a"}] * 2, {"accuracy": 0.9}, 'every prediction is "a"'),
        ([{"label": 1.5}] * 2, {"pearson": 0.0}, "every prediction is 1.5"),
        (
            [{"tags": ["O", "O"], "spans": []}, {"tags": ["O"]}],
            {"f": 0.0},
            'every prediction is "O"',
        ),
        ([{"spans": []}] * 2, {"f": 0.0}, "no spans at all"),
        (AB, {"exact_match": 0.0, "f1": 0.0}, "exact_match 0.0000 is at chance level"),
        (AB, {"accuracy": math.nan}, "accuracy is not finite"),
        (
            AB,
            {"accuracy": 0.6},
            "accuracy 0.6000, not above always predicting 'pos': accuracy 0.6000",
        ),
        (AB, {"accuracy": 0.61}, None),
        (FOUND, {"f": 0.1}, None),
        ([{"tags": ["O"], "spans": []}, {"tags": ["B-X"]}], {"f": 0.1}, None),
        (NUMBERS, {"pearson": -0.03, "mse": 2.0}, "pearson -0.0300 is at chance level"),
        (FOUND, {"span_f1_strict": 0.0}, "span_f1_strict 0.0000 is at chance level"),
        (AB, {"accuracy": 0.61, "matthews": 0.0}, None),
    ],
)
def test_degenerate(tmp_path: Path, rows: list, metrics: dict, reason: str | None):
    data.write_jsonl(tmp_path / "predictions.test.jsonl", map(line, rows))
    base = BASE if "accuracy" in metrics else {}
    found = list(degenerate(tmp_path, {"test": metrics}, base))
    assert found == ([f"test: {reason}"] if reason else [])


def test_the_metric_asked_for_counts(tmp_path: Path):
    data.write_jsonl(tmp_path / "predictions.test.jsonl", [line({"label": x}) for x in "ab"])
    metrics = {"test": {"accuracy": 0.61, "matthews": 0.05}}
    assert list(degenerate(tmp_path, metrics, BASE)) == []
    found = list(degenerate(tmp_path, metrics, BASE, "matthews"))
    assert found == ["test: matthews 0.0500 is at chance level"]


def test_seeds_of_other_data_are_refused_before_they_train(tmp_path: Path):
    rows, out = data.sentiment(tmp_path / "data"), tmp_path / "runs"
    words = fx.words("classify", out, data=rows, steps=1)
    run(*words, "--seeds", "1").ok()
    data.sentiment(tmp_path / "data", (39, 12, 12))
    run(*words, "--seeds", "2").refused("holds seeds with data = ")
    assert not (out / "seed-2").exists()
    data.sentiment(tmp_path / "data")
    run(*words, "--seeds", "2").ok()
