"""Suites run in order, keep what is finished, survive a failure, and end with one table."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest

from finetune.runtime.signals import Interrupted
from finetune.suites import running
from tests.command import Outcome, folder_in_use, run

FILES = ("suite.json", "suite.md")


@pytest.fixture(scope="module")
def finished(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    out = tmp_path_factory.mktemp("runs") / "tiny"
    outcome = run("run", suite, "--seeds", "2", "--out", out).ok()
    return out, outcome


def content_of(folder: Path, name: str = "suite.json") -> Any:
    return json.loads((folder / name).read_text("utf-8"))


def metrics(folder: Path, task: str, seed: int) -> Any:
    return content_of(folder / task / f"seed-{seed}", "metrics.json")


def test_the_table_and_its_average(finished: tuple[Path, Outcome]):
    folder, outcome = finished
    lines = outcome.out.splitlines()
    lines = lines[lines.index(next(line for line in lines if line.strip() == "Tiny")) :]
    names = ["Tiny", "data set", "follow", "follow", "mood", "pairs", "pairs", "names", "average"]
    assert [line.split("  ")[0] for line in lines[:9]] == names
    values = [metrics(folder, "pairs", seed)["test"]["accuracy"] for seed in (1, 2)]
    mean, deviation = 100 * statistics.fmean(values), 100 * statistics.stdev(values)
    (row,) = [line for line in lines if line.startswith("pairs") and "test" in line]
    assert f"{mean:.2f} ± {deviation:.2f}" in row
    (row,) = [line for line in lines if line.startswith("mood")]
    assert "50.00 [1]" in row and "reproduced" in row and "[1] a made-up paper" in outcome.out
    assert "Left out of the average: names: tags are scored in another way." in outcome.out
    scores = content_of(folder)["scores"]
    assert scores[4]["seeds"] == {"1": values[0], "2": values[1]}
    assert f"| pairs | test | accuracy | {mean:.2f} ± {deviation:.2f} | 2 |" in " ".join(
        (folder / "suite.md").read_text("utf-8").split()
    )
    by_seed = []  # the mean over tasks of their means
    for seed in (1, 2):
        follow, mood, pairs = (metrics(folder, each, seed) for each in ("follow", "mood", "pairs"))
        means = [
            (follow["test"]["accuracy"] + follow["test"]["macro_f1"]) / 2,
            mood["test"]["accuracy"],
            (pairs["validation"]["accuracy"] + pairs["test"]["accuracy"]) / 2,
        ]
        by_seed.append(statistics.fmean(means))
    assert list(content_of(folder)["average"].values()) == pytest.approx(by_seed)


def test_tasks_start_from_the_run_of_the_same_seed(finished: tuple[Path, Outcome]):
    folder, outcome = finished
    for seed in (1, 2):
        saved = content_of(folder / f"follow/seed-{seed}", "config.json")
        assert saved["init_from"] == str(folder / "pairs" / f"seed-{seed}")
    starts = re.findall(r"^seed \d: .*/(\w+/seed-\d)$", outcome.err, re.MULTILINE)
    assert starts[:3] == ["pairs/seed-1", "pairs/seed-2", "follow/seed-1"]


def test_the_same_command_continues_and_other_settings_are_refused(
    suite: Path, finished: tuple[Path, Outcome]
):
    folder, _ = finished
    before = {name: (folder / name).read_bytes() for name in FILES}
    shutil.rmtree(folder / "mood" / "seed-2")
    (folder / "follow" / "seed-1" / "README.md").unlink()
    problem = "pairs, follow, mood, names: seed-1: was started with lr = 0.001, now 0.5"
    run("run", suite, "--seeds", "2", "--out", folder, "--lr", "0.5").refused(problem)
    assert not (folder / "mood" / "seed-2").exists()
    other = suite.with_name("other.yaml")
    other.write_text(suite.read_text("utf-8"), "utf-8")
    run("run", other, "--out", folder).refused(f"holds runs of {suite}, not of other.yaml")
    elsewhere = suite.parent / ".." / suite.parent.name / suite.name
    outcome = run("run", elsewhere, "--seeds", "2", "--out", folder).ok()
    assert outcome.err.count("finished: kept") == 6
    run("run", suite, "--seeds", "2", "--out", folder).ok()
    assert {name: (folder / name).read_bytes() for name in FILES} == before


def test_options_apply_to_all_tasks(suite: Path, tmp_path: Path):
    out = tmp_path / "out"
    words = ("--only", "follow,mood", "--limit", "20", "--max-length", "32", "--out", out)
    outcome = run("run", suite, *words, "--format", "latex").ok()
    for name in ("pairs", "follow", "mood"):
        saved = content_of(out / name / "seed-1", "config.json")
        assert (saved["steps"], saved["limit"], saved["max_length"]) == (2, 20, 32)
    assert not (out / "names").exists()
    rows = [
        line.split(" &")[0].strip() for line in outcome.out.splitlines() if line.endswith(r"\\")
    ]
    assert rows == ["data set", "follow", "follow", "mood", "pairs", "pairs", "average"]
    assert "changed" in next(s["verdict"] for s in content_of(out)["scores"] if s["task"] == "mood")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--folds", "3"), "--folds does not apply to a suite"),
        (("--data", "mod=x"), "with a name of follow, mood, pairs, names. Perhaps you meant 'mo"),
        (("--data", "mood=none.csv"), "mood: none.csv: no such file"),
        (("--model", "none"), "error: pairs, follow, mood, names: model 'none'"),
    ],
)
def test_wrong_options(suite: Path, tmp_path: Path, arguments: tuple[str, ...], message: str):
    out = tmp_path / "out"
    run("run", suite, "--out", out, *arguments).refused(message)
    assert not (out / "pairs").exists()


def test_the_plan(suite: Path, tmp_path: Path):
    outcome = run("run", suite, "--seeds", "3", "--dry-run", "--out", tmp_path / "out").ok()
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines] == ["task", "pairs", "follow", "mood", "names"]
    assert lines[2].split()[1] == "nli-follow" and " pairs " in lines[2]
    assert all(line.endswith("2  0 of 3 runs") for line in lines[1:])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_failure_loses_no_other_task(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    train = running.plan_seeds

    def failing(task: str, config: Any, *rest: Any, **options: Any) -> Any:
        if config.data.endswith("pairs"):
            raise OSError(28, "No space left on device", str(tmp_path))
        return train(task, config, *rest, **options)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(running, "plan_seeds", failing)
        outcome = run("run", suite, "--limit", "20", "--out", out)
    outcome.refused("error: 2 of 4 data sets failed (pairs, follow)")
    assert f"pairs failed: {tmp_path}: No space left on device." in outcome.out
    assert "follow failed: not run, because pairs failed" in outcome.out
    assert "Average: none yet, as there are no scores of follow, pairs." in outcome.out
    outcome = run("run", suite, "--limit", "20", "--out", out).ok()
    assert outcome.err.count("finished: kept") == 2 and content_of(out)["average"]


def test_an_interrupt_ends_the_suite(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise Interrupted("stopped at step 2 of 4")

    monkeypatch.setattr(running, "plan_seeds", interrupted)
    outcome = run("run", suite, "--out", tmp_path / "out")
    assert outcome.code == 130 and outcome.err.count("stopped at step 2 of 4") == 1
    assert f"Continue with: finetune run {suite} --out {tmp_path / 'out'}" in outcome.err


def test_folders_in_use_and_of_others_are_left_alone(suite: Path, tmp_path: Path):
    with folder_in_use(tmp_path / "out") as holder:
        run("run", suite, "--out", tmp_path / "out").refused(f"in use by process {holder.pid}")
    (tmp_path / "thesis.txt").write_text("mine")
    run("run", suite, "--out", tmp_path).refused("holds other files (thesis.txt)")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
