"""Suites run in order, keep what is finished, survive a failure, and end with one table."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from finetune import api
from finetune.runtime.signals import Interrupted
from finetune.suites import running
from finetune.training.run_folder import Diverged
from tests.command import Outcome, folder_in_use, run

FILES = ("suite.html", "suite.json", "suite.md", "suite.tex")


@pytest.fixture(scope="module")
def finished(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    out = tmp_path_factory.mktemp("runs") / "tiny"
    outcome = run("run", suite, "--seeds", "2", "--out", out).ok()
    return out, outcome


@contextlib.contextmanager
def moved(folder: Path, tmp_path: Path) -> Iterator[Path]:
    """Yield a copy of a folder that is elsewhere in the meantime, as if it had been moved."""
    hidden = shutil.move(folder, tmp_path / "hidden")
    try:
        yield Path(shutil.copytree(hidden, tmp_path / "copy"))
    finally:
        shutil.move(hidden, folder)


def record(folder: Path) -> dict:
    return json.loads((folder / "suite.json").read_text("utf-8"))


def metrics(folder: Path, member: str, seed: int) -> dict:
    return json.loads((folder / member / f"seed-{seed}" / "metrics.json").read_text("utf-8"))


def test_the_table(finished: tuple[Path, Outcome]):
    folder, outcome = finished
    rows = {line.split("  ")[0]: line for line in outcome.out.splitlines()}
    assert list(rows)[:7] == ["Tiny", "data set", "follow", "mood", "pairs", "names", "average"]
    found = record(folder)
    values = [metrics(folder, "pairs", seed)["test"]["accuracy"] for seed in (1, 2)]
    _, score = found["members"]["pairs"]["scores"]
    assert score["mean"] == statistics.fmean(values)
    assert score["standard_deviation"] == statistics.stdev(values)
    assert score["seeds"] == {"1": values[0], "2": values[1]}
    (mood,) = found["members"]["mood"]["scores"]
    assert mood["published"]["value"] == 0.5 and mood["published"]["source"] == "a made-up paper"
    assert mood["verdict"].startswith(("reproduced", "not reproduced"))
    assert "50.00 [1]" in rows["mood"] and "[1] a made-up paper" in outcome.out
    for name in FILES:
        text = (folder / name).read_text("utf-8")
        assert "Tiny" in text and f"{100 * values[0]:.2f}"[:2] in text, name
    assert "Left out of the average: names: tags are scored in another way." in outcome.out


def test_the_average_is_the_mean_over_members_of_their_means(finished: tuple[Path, Outcome]):
    folder, _ = finished
    by_seed = []
    for seed in (1, 2):
        follow, mood, pairs = (metrics(folder, each, seed) for each in ("follow", "mood", "pairs"))
        means = [
            (follow["test"]["accuracy"] + follow["test"]["macro_f1"]) / 2,
            mood["test"]["accuracy"],
            (pairs["validation"]["accuracy"] + pairs["test"]["accuracy"]) / 2,
        ]
        by_seed.append(statistics.fmean(means))
    average = record(folder)["average"]
    assert list(average["seeds"].values()) == pytest.approx(by_seed)
    assert average["mean"] == pytest.approx(statistics.fmean(by_seed))
    assert average["standard_deviation"] == pytest.approx(statistics.stdev(by_seed))
    assert average["left_out"] == {"names": "tags are scored in another way"}
    assert average["published"] is None, "not all scores have a published one"


def test_members_start_from_the_run_of_the_same_seed(finished: tuple[Path, Outcome]):
    folder, outcome = finished
    for seed in (1, 2):
        saved = json.loads((folder / f"follow/seed-{seed}/config.json").read_text("utf-8"))
        assert saved["init_from"] == str(folder / "pairs" / f"seed-{seed}")
        assert saved["seed"] == seed
    order = [line.split()[1] for line in outcome.err.splitlines() if line.endswith("started")]
    assert order[:1] == ["pairs"]


def test_progress_has_one_line_for_each_start_and_end(finished: tuple[Path, Outcome]):
    _, outcome = finished
    lines = [line for line in outcome.err.splitlines() if line.startswith("[")]
    assert len(lines) == 16
    assert lines[0] == "[1/8] pairs seed 1: started"
    assert lines[1].startswith("[1/8] pairs seed 1: validation accuracy ")
    assert lines[2].startswith("[2/8] pairs seed 2: started (0:") and "for 7 runs)" in lines[2]
    assert "left" not in lines[-1]


def test_finished_runs_are_kept_and_missing_ones_trained(
    suite: Path, finished: tuple[Path, Outcome], tmp_path: Path
):
    folder, _ = finished
    with moved(folder, tmp_path) as copy:
        shutil.rmtree(copy / "mood" / "seed-2")
        (copy / "follow" / "seed-1" / "README.md").unlink()
        for name in FILES[:1] + FILES[2:]:
            (copy / name).unlink()
        outcome = run("run", suite, "--seeds", "2", "--out", copy)
    assert outcome.code == 0, outcome.err
    kept = [line for line in outcome.err.splitlines() if line.endswith("finished: kept")]
    assert len(kept) == 6
    assert "mood seed 2: started" in outcome.err and "follow seed 1: continued" in outcome.err
    assert record(copy) == record(folder)
    for name in FILES[1:]:
        assert (copy / name).read_bytes() == (folder / name).read_bytes()


def test_changed_settings_are_refused_before_any_run(
    suite: Path, finished: tuple[Path, Outcome], tmp_path: Path
):
    folder, _ = finished
    other = suite.with_name("other.yaml")
    other.write_text(suite.read_text("utf-8"), "utf-8")
    with moved(folder, tmp_path) as copy:
        shutil.rmtree(copy / "pairs" / "seed-2")
        outcome = run("run", suite, "--seeds", "2", "--out", copy, "--lr", "0.5").refused(
            "4 members of the suite cannot run: "
        )
        assert "seed-1: was started with lr = 0.001, now 0.5" in outcome.err
        assert not (copy / "pairs" / "seed-2").exists()
        run("run", other, "--out", copy).refused("holds runs of the suite tiny, not other")
        run("run", suite, "--out", copy / "mood").refused("holds another run: use another --out")


def test_options_apply_to_all_members(suite: Path, tmp_path: Path):
    out = tmp_path / "out"
    outcome = run(
        "run", suite, "--only", "follow,mood", "--smoke", "--max-length", "32", "--out", out
    ).ok()
    assert "pairs is trained too: follow starts from it" in outcome.err
    for name in ("pairs", "follow", "mood"):
        saved = json.loads((out / name / "seed-1/config.json").read_text("utf-8"))
        assert (saved["steps"], saved["limit"], saved["max_length"]) == (2, 20, 32)
    assert not (out / "names").exists()
    (score,) = record(out)["members"]["mood"]["scores"]
    assert "steps, max_length, limit" in score["verdict"] or "changed" in score["verdict"]
    assert record(out)["average"]["missing"] == []
    for name in FILES:
        if name != "suite.json":
            assert "test span_f1" not in (out / name).read_text("utf-8")
    assert record(out)["members"]["names"]["scores"][0]["mean"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seeds", "0"), "--seeds must be 1 or more, not 0"),
        (("--seeds", "99999999999"), "--seeds must be at most 10,000"),
        (("--folds", "3"), "--folds does not apply to a suite"),
        (("--resume",), "--resume does not apply to a suite"),
        (("--init-from", "x"), "--init-from does not apply to a suite"),
        (("--data", "x"), "--data x: for a suite write NAME=DATA"),
        (("--data", "mod=x"), "with a name of follow, mood, pairs, names. Perhaps you meant 'mo"),
        (("--data", "mood=none.csv"), "mood: --data none.csv: no such file"),
        (("--lr", "-1"), "follow: --lr must be"),
        (("--only", "x"), "--only x: tiny has"),
    ],
)
def test_wrong_options(suite: Path, tmp_path: Path, arguments: tuple[str, ...], message: str):
    out = tmp_path / "out"
    run("run", suite, "--out", out, *arguments).refused(message.replace("follow: --lr", "--lr"))
    assert not out.exists()


def test_the_plan(suite: Path, tmp_path: Path):
    outcome = run("run", suite, "--seeds", "3", "--dry-run", "--out", tmp_path / "out").ok()
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines] == ["member", "pairs", "follow", "mood", "names"]
    assert lines[2].split()[1] == "nli-follow" and " pairs " in lines[2]
    assert all(line.endswith("4  0 of 3 runs") for line in lines[1:])
    assert not (tmp_path / "out").exists()


def test_a_failure_loses_no_other_member(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    train = running.train_seeds

    def failing(task: str, config, *rest, **options):
        if config.data.endswith("pairs"):
            raise OSError(28, "No space left on device", str(tmp_path))
        return train(task, config, *rest, **options)

    monkeypatch.setattr(running, "train_seeds", failing)
    out = tmp_path / "out"
    outcome = run("run", suite, "--out", out)
    outcome.refused("error: 2 of 4 data sets failed (pairs, follow)")
    assert f"pairs failed: {tmp_path}: No space left on device." in outcome.out
    assert "follow failed: not run, because pairs failed" in outcome.out
    assert "No average: follow, pairs have no scores yet." in outcome.out
    assert record(out)["members"]["mood"]["scores"][0]["mean"] is not None
    monkeypatch.setattr(running, "train_seeds", train)
    outcome = run("run", suite, "--out", out).ok()
    assert outcome.err.count("finished: kept") == 2
    assert record(out)["average"]["mean"] is not None
    assert record(out)["members"]["pairs"]["failure"] is None


def test_members_without_a_model_have_failed(suite: Path, tmp_path: Path):
    out, path = tmp_path / "out", suite.with_name("pairs.yaml")
    before = path.read_text("utf-8")
    try:
        path.write_text(before.replace("lr: 1e-3", "lr: 1e30\nclip: 0"), "utf-8")
        outcome = run("run", suite, "--out", out, "--only", "follow,mood")
    finally:
        path.write_text(before, "utf-8")
    outcome.refused("error: 2 of 3 data sets failed (pairs, follow)")
    assert f"pairs failed: {out / 'pairs'}: no seed has a model: the loss is not" in outcome.out
    assert "follow failed: not run, because pairs failed" in outcome.out


def test_a_seed_without_a_model_is_no_start(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    train = api.train_once

    def diverging(task: str, config, *rest, **options):
        if config.data.endswith("pairs") and config.seed == 2:
            raise Diverged("the loss is not finite.")
        return train(task, config, *rest, **options)

    monkeypatch.setattr(api, "train_once", diverging)
    out = tmp_path / "out"
    run("run", suite, "--out", out, "--only", "follow", "--seeds", "2").ok()
    found = record(out)["members"]["follow"]
    reason = f"not run, because {out / 'pairs' / 'seed-2'} has no model."
    assert found["degenerate"]["2"] == [reason] and found["scores"][0]["seeds"].keys() == {"1"}


def test_an_interrupt_ends_the_suite(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*arguments, **options):
        raise Interrupted("stopped at step 2 of 4")

    monkeypatch.setattr(running, "train_seeds", interrupted)
    outcome = run("run", suite, "--out", tmp_path / "out")
    assert outcome.code == 130 and outcome.err.count("stopped at step 2 of 4") == 1
    assert f"Continue with: finetune run {suite} --out {tmp_path / 'out'}" in outcome.err


def test_the_time_left(monkeypatch: pytest.MonkeyPatch):
    """All runs go on at the mean rate of the steps that were trained here."""
    now = [100.0]
    monkeypatch.setattr(running.time, "monotonic", lambda: now[0])
    timer = running.TimeLeft({("a", 1): 10, ("a", 2): 10, ("b", 1): 50})
    assert timer.text() == ""
    timer.start()
    timer.advance(4, first=True)
    assert timer.text() == "", "steps before this start have no time"
    now[0] += 20
    timer.advance(8)
    assert timer.text() == "5:10 left for 3 runs", "5 seconds for each of 62 steps"
    timer.advance(10)
    now[0] += 10  # the scores of the run
    assert timer.stop("a", 1) == 30 and timer.text() == "5:00 left for 2 runs"
    timer.stop("a")
    assert timer.text() == "4:10 left for 1 run"


def test_a_table_of_some_members(suite: Path, tmp_path: Path):
    out = tmp_path / "out"
    outcome = run("run", suite, "--only", "mood", "--smoke", "--out", out, "--format", "latex").ok()
    rows = [line for line in outcome.out.splitlines() if line.endswith(r"\\")]
    assert [row.split(" &")[0].strip() for row in rows] == ["data set", "mood"]
    assert "No average: follow, pairs have no scores yet." in outcome.out + outcome.err
    outcome = run("run", suite, "--only", "names", "--smoke", "--out", out)
    assert "mood" in outcome.out and "names" in outcome.out


def test_a_second_process_says_so_at_its_start(suite: Path, tmp_path: Path):
    with folder_in_use(tmp_path / "out") as holder:
        outcome = run("run", suite, "--out", tmp_path / "out").refused(
            f"in use by process {holder.pid}"
        )
        assert "seed 1" not in outcome.err


def test_no_bar_of_a_run_stays(tmp_path: Path):
    (timer := running.TimeLeft({})).start()
    reporter = running.SuiteReporter("mood", timer, quiet=False)
    reporter.console = Console(file=(stream := io.StringIO()), force_terminal=True, width=120)
    with reporter:
        reporter.start("training", 3)
        reporter._stages[0].begin -= 3600.0
        reporter.update(3)
    assert reporter._progress is None and stream.getvalue().endswith("\x1b[2K")


def test_a_foreign_folder_is_left_alone(suite: Path, tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("mine")
    run("run", suite, "--out", tmp_path).refused("holds other files (thesis.txt)")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
