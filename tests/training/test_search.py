"""Search: trials, pruning, failures, kills, two processes, the unread test split, the recipe."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import finetune
from finetune.config.search_space import parse_space
from finetune.config.tasks import CONFIGS
from finetune.data.json_files import read_object
from finetune.runtime.progress import Reporter
from finetune.training.callbacks import EvaluationEvent
from finetune.training.optimizer import Schedule
from finetune.training.run_folder import Diverged
from finetune.training.search import (
    Search,
    Trial,
    default_space,
    failure,
    open_search,
    quiet_optuna,
)
from finetune.types import UserError
from tests import laboratory as lab
from tests import small_data
from tests.command import run
from tests.training.stopping import Killed

SPACE = ["lr=1e-5:1e-2:log", "batch_size=8,16,32", "warmup=0:0.3"]


class Planned(Search):
    """A search whose trials have planned scores and files, and take 20 s an epoch."""

    scores = (0.5, 0.9, 0.4, 0.8, 0.95, 0.6, 0.92)
    clock = 0.0
    kill_at = -1.0

    def _train(self, number: int, values: Mapping[str, Any], watch: Any) -> float:
        watch.schedule = Schedule.from_config(CONFIGS["classify"](epochs=3, batch_size=10), 100)
        for name in ("config.json", "log.jsonl", "report.html", "best/weights", "last/weights"):
            path = self._folder(number) / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(name)
        for epoch in (1, 2, 3):
            Planned.clock += 20
            if Planned.clock == Planned.kill_at:
                raise Killed
            metrics = {"accuracy": self.scores[number] * epoch / 3}
            watch.on_evaluation(EvaluationEvent(epoch * 10, "validation", metrics, True, (), ()))
        return self.scores[number]


def opened(folder: Path) -> Planned:
    config = lab.config("classify", out=folder, steps=None, batch_size=None)
    return Planned(**vars(open_search("classify", config, SPACE, reporter=Reporter(quiet=True))))


def planned(folder: Path, trials: int, minutes: float | None = None) -> list[Trial]:
    with quiet_optuna():
        search = opened(folder)
        search.run(trials, minutes)
        return search.trials()


def test_pruning_and_the_files_that_trials_keep(tmp_path: Path):
    trials = planned(tmp_path, 7)
    pruned = [5]  # the first after four finished ones that is below their median, 0.8
    assert [each.number for each in trials if each.state == "pruned"] == pruned
    assert all(each.epochs == (1 if each.number in pruned else 3) for each in trials)
    for trial in trials:
        files = {"config.json", "log.jsonl"}
        if trial.score == 0.95:  # the best
            files |= {"best", "last", "report.html"}
        folder = tmp_path / f"trial-{trial.number:03d}"
        assert {path.name for path in folder.iterdir()} - {".lock"} == files


def test_minutes_count_all_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("finetune.training.search.time.monotonic", lambda: Planned.clock)
    monkeypatch.setattr(Planned, "clock", 0.0)
    assert len(planned(tmp_path, 7, 1)) == 1  # 60 s are a minute
    assert len(planned(tmp_path, 7, 1)) == 1
    monkeypatch.setattr(Planned, "kill_at", 100.0)
    with pytest.raises(Killed):  # 40 s into trial 1, whose end then is at 160 s of training
        planned(tmp_path, 7, 2.5)
    trials = planned(tmp_path, 7, 2.5)
    assert [each.seconds for each in trials] == [60, 100]
    assert [each.state for each in trials] == ["finished"] * 2
    assert len(planned(tmp_path, 3, 60)) == 3  # whichever comes first


def test_a_trial_of_another_process_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Planned, "clock", 0.0)
    monkeypatch.setattr(Planned, "kill_at", 100.0)
    with pytest.raises(Killed):
        planned(tmp_path, 3)
    with quiet_optuna():
        search = opened(tmp_path)
        with FileLock(tmp_path / "trial-001" / ".lock"):  # as another process does
            assert not search.run(3)
            states = [trial.state for trial in search.trials()]
            assert states[1] == "running" and "running" not in (states[0], states[2])
        assert search.run(3) and search.trials()[1].state != "running"


def test_a_search_from_the_command_line_to_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    test = small_data.sentiment(tmp_path / "data") / "test.jsonl"
    rows = test.read_bytes()
    test.write_text("{this is no JSON")  # the test split: nobody may read it until the end
    space = "--space lr=1e-3,1e30 batch_size=8,16 --space freeze=none,all"
    options = f"--data data --epochs 1 --out found {space}".split()
    command = ["search", "classify", "--model", str(lab.checkpoint()), *options]
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
    assert not (best / "last").exists()
    assert (best / "predictions.test.jsonl").is_file()
    others = [path for path in Path("found").glob("trial-*") if path != best]
    left = {each.name for path in others for each in path.iterdir()}
    assert left <= {"config.json", "log.jsonl", "metrics.json"}
    failed = [each for each in found["trials"] if each["state"] == "failed"]
    assert failed and all("the loss is not finite" in each["error"] for each in failed)
    page = Path("found/search.html").read_text("utf-8")
    assert "the loss is not finite" in page and "https://" not in page and "src=" not in page

    outcome = run("run", "found/best.yaml", "--out", "again").ok()
    assert outcome.out.count("reproduced (") == 2, outcome.out
    again = read_object(Path("again/metrics.json"))
    assert again["test"] == found["metrics"]["test"]
    score = found["trials"][found["best"]]["score"]
    assert again["validation"]["accuracy"] == score

    run(*command, "--trials", "5", "--lr", "1e-3").refused(
        "holds a search with lr = None, now 0.001"
    )
    (best / "last").mkdir()  # as a process leaves it that is killed while it removes the folder
    (best / "last" / "random.safetensors").write_bytes(b"")
    run(*command, "--trials", "5").ok()
    assert not (best / "last").exists()
    run(*command, "--trials", "7").ok()  # more trials continue it
    assert len(read_object(Path("found/search.json"))["trials"]) == 7


def test_which_errors_end_a_trial_alone():
    assert failure(MemoryError()) == "out of memory"
    assert failure(Diverged("the loss is not finite")) == "the loss is not finite"
    assert failure(ValueError("a mistake")) is None


def test_spaces_are_typed_and_conditional_values_legal():
    base = CONFIGS["tag"]()
    space = parse_space("tag", base, ["tuning=full,lora", "lora=4,8", "crf=true,false"])
    assert space["lora"].examples() == ["4", "8"] and space["crf"].examples() == [True, False]
    space = parse_space("tag", base, {"lr": "1e-5:1e-3:log", "epochs": [2, 2.5]})
    assert str(space["lr"]) == "1e-05:0.001:log" and space["epochs"].examples() == [2.0, 2.5]


@pytest.mark.parametrize("task", CONFIGS)
def test_default_spaces(task: str):
    config = CONFIGS[task](model=str(lab.checkpoint()), batch_size=4)
    space = parse_space(task, config, default_space(config))
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
        str(lab.checkpoint()),
        space={"lr": [1e-3, 1e-2]},
        trials=2,
        minutes=60,
        epochs=1,
        metrics={"cost": finetune.CustomMetric(lambda gold, predicted: 0.5, lower_is_better=True)},
        metric="cost",
        out=str(tmp_path / "found"),
        quiet=True,
    )
    assert found.result.best.number == 0 and found.result.lower_is_better
    assert (tmp_path / "found" / "trial-000" / "best" / "model.safetensors").is_file()
    assert found.run.metrics["test"]["cost"] == 0.5 and found.run.predictor.predict(["good film"])
    with pytest.raises(UserError, match="no setting 'spaces'"):
        finetune.search("classify", rows, spaces=3)


def command_line(out: Path, trials: int) -> list[str]:
    words = lab.words("classify", out, steps=None, batch_size=None, epochs=2, trials=trials)
    space = "--space lr=1e-4:1e-2:log batch_size=4,8".split()
    return [sys.executable, "-m", "finetune", "search", *words, *space]


@pytest.mark.slow
def test_two_processes_share_a_search(tmp_path: Path):
    commands = [subprocess.Popen(command_line(tmp_path / "both", 10)) for _ in range(2)]
    assert [process.wait() for process in commands] == [0, 0]
    found = read_object(tmp_path / "both" / "search.json")
    assert [trial["number"] for trial in found["trials"]] == list(range(10))
    assert all(trial["state"] in ("finished", "pruned") for trial in found["trials"])
    assert (tmp_path / "both" / "best.yaml").is_file() and found["metrics"]["test"]


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
