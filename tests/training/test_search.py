"""Search: trials, pruning, failures, kills, the unread test split, the recipe."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

import finetune
from finetune.config.tasks import CONFIGS
from finetune.data.json_files import read_object
from finetune.runtime.progress import Reporter
from finetune.training.callbacks import EvaluationEvent
from finetune.training.run_folder import Diverged
from finetune.training.search import Search, _Prune, default_space, failure, parse_space
from finetune.types import UserError
from tests import fixtures as fx
from tests import small_data
from tests.command import run
from tests.covering import few
from tests.training.stopping import Killed

SPACE = {"lr": "1e-5:1e-2:log", "batch_size": "8,16,32", "warmup": "0:0.3"}


class Planned(Search):
    """A search whose trials have planned scores and files."""

    scores = (0.5, 0.9, 0.4, 0.8, 0.95, 0.6, 0.92)
    kill = -1
    """The trial that is killed after its first epoch."""

    def _train(self, trial: Any) -> float:
        for name in ("config.json", "log.jsonl", "report.html", "best/weights", "last/weights"):
            path = self._folder(trial.number) / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(name)
        prune = _Prune(trial, self.metric)
        for epoch in (1, 2, 3):
            metrics = {"accuracy": self.scores[trial.number] * epoch / 3}
            prune.on_evaluation(
                EvaluationEvent(epoch * 10, 30, "validation", metrics, True, (), ())
            )
            if trial.number == self.kill:
                raise Killed
        return self.scores[trial.number]


def planned(
    folder: Path, trials: int, minutes: float | None = None, kill: int = -1
) -> list[FrozenTrial]:
    config = fx.config("classify", out=folder, steps=None, batch_size=None)
    folder.mkdir(exist_ok=True)
    search = Planned(folder, "classify", config, SPACE, reporter=Reporter(quiet=True))
    with mock.patch.object(Planned, "kill", kill):
        search.run(trials, minutes, lambda: None)
    return sorted(search.trials, key=lambda trial: trial.number)


def test_pruning_and_the_files_that_trials_keep(tmp_path: Path):
    trials = planned(tmp_path, 7)
    pruned = [5]  # the first after four finished ones that is below their median, 0.8
    assert [trial.number for trial in trials if trial.state is TrialState.PRUNED] == pruned
    for trial in trials:
        folder = tmp_path / f"trial-{trial.number:03d}"
        assert folder.exists() == (trial.value == 0.95), "the best alone keeps its folder"
    assert planned(tmp_path, 9, minutes=1e-9) == trials


@pytest.mark.parametrize("number", few([0, 2], 2))
def test_a_killed_search_goes_on(number: int, tmp_path: Path):
    with pytest.raises(Killed):
        planned(tmp_path, 4, kill=number)
    trials = planned(tmp_path, 4)
    assert [trial.number for trial in trials] == [n for n in range(5) if n != number]
    assert not trials[0].params and all(trial.params for trial in trials[1:])
    assert not (tmp_path / f"trial-{number:03d}").exists()
    whole = planned(tmp_path / "whole", 4)
    again = next(trial for trial in trials if trial.number > number)
    assert again.params == whole[number].params, "it has the settings of the killed trial"
    assert len({str(trial.params) for trial in trials}) == 4, "no setting is drawn again"


def test_a_search_from_the_command_line_to_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    test = small_data.sentiment(tmp_path / "data") / "test.jsonl"
    rows = test.read_bytes()
    test.write_text("{this is no JSON")  # the test split: nobody may read it until the end
    space = "--space lr=1e-3,1e30 batch_size=8,16"
    options = f"--data data --epochs 1 --out found {space}".split()
    command = ["search", "classify", "--model", str(fx.checkpoint()), *options]
    # a mistake that the next call corrects
    run(*command, "--metric", "quality").refused("--metric 'quality' cannot select a model")
    run(*command, "--trials", "5").refused("test.jsonl:1")
    before = read_object(Path("found/search.json"))
    assert len(before["trials"]) == 5 and before["metrics"] is None
    test.write_bytes(rows)
    outcome = run(*command, "--trials", "5", "--format", "csv").ok()
    found = read_object(Path("found/search.json"))
    assert found["trials"] == before["trials"] and "trial 1:" not in outcome.err
    best = Path("found") / f"trial-{found['best']:03d}"
    assert (best / "best").is_dir() and (best / "report.html").is_file()
    for name in ("score", "report"):
        run(name, "found").refused("found: holds a search, in search.json: give")
    assert not (best / "last").exists()
    assert (best / "predictions.test.jsonl").is_file()
    assert "test split has changed" not in (best / "README.md").read_text("utf-8")
    assert list(Path("found").glob("trial-*")) == [best]
    failed = [each for each in found["trials"] if each["state"] == "fail"]
    assert failed and all("finite" in trial["error"] for trial in failed)

    outcome = run("run", "found/best.yaml", "--out", "again").ok()
    again = read_object(Path("again/metrics.json"))
    assert again["test"] == found["metrics"]["test"]
    score = found["trials"][0]["score"]
    assert again["validation"]["accuracy"] == score

    run(*command, "--trials", "5", "--lr", "1e-3").refused("search with --lr None, now 0.001")
    other = [*command[:-1], "batch_size=8"]
    said = "--space lr=0.001,1e+30 batch_size=8,16, now lr=0.001,1e+30 batch_size=8: continue"
    run(*other, "--trials", "5").refused(said)
    (best / "last").mkdir()  # as a process leaves it that is killed while it removes the folder
    (best / "last" / "optimizer.safetensors").write_bytes(b"")
    weights = best / "best" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    run(*command, "--trials", "5").ok()
    assert not (best / "last").exists()
    assert weights.stat().st_mtime_ns == written, "the best trial is not trained again"
    rows_of_json = json.loads(run(*command, "--trials", "7", "--json").ok().out)
    trials = read_object(Path("found/search.json"))["trials"]
    assert len(trials) == 7  # more trials continue it
    assert [row["lr"] for row in rows_of_json] == [t["settings"].get("lr") for t in trials]


def test_which_errors_end_a_trial_alone():
    assert failure(MemoryError()) == "out of memory"
    assert failure(Diverged("the loss is not finite")) == "the loss is not finite"
    assert failure(ValueError("a mistake")) is None


def test_spaces_are_typed():
    space = parse_space("tag", {"tuning": "full,lora", "lora": "4,8", "crf": "true,false"})
    assert space["lora"] == CategoricalDistribution(["4", "8"])
    assert space["crf"] == CategoricalDistribution([True, False])
    assert parse_space("tag", {"lr": 1e-4}) == parse_space("tag", {"lr": "1e-4"})
    assert parse_space("tag", {"learning_rate": 1e-4}).keys() == {"lr"}
    space = parse_space("tag", {"lr": "1e-5:1e-3:log", "epochs": [2, 2.5], "batch_size": "4:8"})
    assert space["lr"] == FloatDistribution(1e-5, 1e-3, log=True)
    assert space["batch_size"] == IntDistribution(4, 8)
    assert space["epochs"] == CategoricalDistribution([2.0, 2.5])
    with pytest.raises(UserError, match="label_smoothing: not a setting of ner"):
        parse_space("ner", {"label_smoothing": [0.0, 0.1]})


def test_several_processes_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="search runs in one process"):
        finetune.search("classify", "none", out=str(tmp_path / "found"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("task", CONFIGS)
def test_default_spaces(task: str):
    config = CONFIGS[task](model=str(fx.checkpoint()), batch_size=4)
    space = parse_space(task, default_space(config))
    assert "lr" in space and "batch_size" not in space and ("head_lr" in space) == (task == "ner")


def test_a_search_from_python_with_data_in_memory_and_an_own_metric(tmp_path: Path):
    rows = [
        {"text": f"{word} film {n}", "label": label}
        for n in range(8)
        for word, label in (("good", "pos"), ("bad", "neg"))
    ]
    found = finetune.search(
        "classify",
        {"train": rows, "validation": rows[:6], "test": rows[6:10]},
        str(fx.checkpoint()),
        space={"lr": [4e-5, 5e-5]},
        trials=2,
        minutes=60,
        epochs=1,
        metrics={"cost": finetune.CustomMetric(lambda gold, predicted: 0.5, lower_is_better=True)},
        metric="cost",
        out=str(tmp_path / "found"),
        quiet=True,
    )
    assert found.search.best.number == 0
    assert (tmp_path / "found" / "trial-000" / "best" / "model.safetensors").is_file()
    assert found.run.metrics["test"]["cost"] == 0.5 and found.run.predictor.predict(["good film"])
    with pytest.raises(UserError, match="no setting 'spaces'"):
        finetune.search("classify", rows, spaces=3)
    space = {"label_smoothing": [0.1, 0.2], "few_shot": [True]}
    with pytest.raises(UserError, match="no combination of these values is legal, such as"):
        finetune.search("classify", rows, space=space, out=str(tmp_path / "none"))


def command_line(out: Path, trials: int) -> list[str]:
    words = fx.words("classify", out, steps=None, batch_size=None, epochs=2, trials=trials)
    space = "--space lr=1e-4:1e-2:log batch_size=4,8".split()
    return [sys.executable, "-m", "finetune", "search", *words, *space]


@pytest.mark.slow
def test_an_interrupted_search_says_how_to_continue(tmp_path: Path):
    process = subprocess.Popen(
        command_line(tmp_path / "found", 50), stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "found" / "search.json").exists():
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate()
    assert process.returncode == 130 and "Continue with: " in messages
    assert json.loads((tmp_path / "found" / "search.json").read_text("utf-8"))["trials"]
