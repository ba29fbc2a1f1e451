"""New labels for a trained model, with examples of its old data (``--replay``)."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import finetune
from finetune.data import Dataset, read_text
from finetune.preprocessing.replay import with_replay
from finetune.types import TextExample
from tests import fixtures as fx
from tests.command import Outcome
from tests.command import run as command
from tests.small_data import keep_on_disk, write_jsonl, write_splits
from tests.training.stopping import interrupted


def rows(labels: str, number: int, name: str) -> list[dict]:
    return [
        {"id": i, "text": f"{labels[i % len(labels)]} {name} {i}", "label": labels[i % len(labels)]}
        for i in range(number)
    ]


def trained(folder: Path, out: Path, **changes: Any) -> Outcome:
    return fx.train("classify", out, data=folder, **changes)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Old data with the labels a and b, a model of them, and new data with b and c."""
    workdir = tmp_path_factory.mktemp("replay")
    for name, labels, size in (("old", "ab", 40), ("new", "bc", 20)):
        sizes = {"train": size, "validation": 10, "test": 10}
        found = {split: rows(labels, size, f"{name} {split}") for split, size in sizes.items()}
        write_splits(workdir / name, **found)
    trained(workdir / "old", workdir / "before").ok()
    (workdir / "tagged").symlink_to(fx.trained("tag"))
    return workdir


def test_a_model_learns_a_new_label_and_keeps_the_old_ones(workdir: Path, tmp_path: Path) -> None:
    new, before, after = workdir / "new", workdir / "before", tmp_path / "after"
    found = trained(new, after, model=None, init_from=before, replay=f"{before}:0.5").ok()
    said = found.out + found.err
    assert "classes by name: a, b; new: c" in said
    assert "of old 10 of 40 train examples, 5 of 10 validation examples, test_old is" in said
    scores = json.loads((after / "metrics.json").read_text())
    assert {"validation", "test", "test_old"} <= {*scores}
    file = (after / "predictions.test_old.jsonl").read_text()
    assert {json.loads(line)["gold"] for line in file.splitlines()} == {"a", "b"}
    again = tmp_path / "chain"
    trained(new, again, replay=after, steps=1).ok()


def test_the_old_columns_are_known_and_a_kill_loses_no_line(
    workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new data have the columns that training of the old run named."""
    for name in ("old", "new"):
        for split in ("train", "validation", "test"):
            lines = (workdir / name / f"{split}.jsonl").read_text()
            lines = lines.replace('"text"', '"Ticket"').replace('"label"', '"Team"')
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{split}.jsonl").write_text(lines)
    columns, run = ("text=Ticket", "label=Team"), tmp_path / "before"
    trained(tmp_path / "old", run, columns=columns).ok()
    config = fx.config(
        "classify",
        data=tmp_path / "new",
        model=None,
        init_from=run,
        replay=f"{run}:0.5",
        save_every=1,
        out=tmp_path / "after",
    )
    with interrupted(2):
        finetune.train(config, quiet=True)
    finetune.train(replace(config, resume=True), quiet=True)
    # elsewhere, the old data are not found
    monkeypatch.chdir(tmp_path)
    shutil.move(tmp_path / "old", tmp_path / "moved")
    moved = command("run", run, "--out", tmp_path / "again")
    moved.refused("before: was trained on", "or name them with --data")


def test_where_rows_are_does_not_matter(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = fx.config("classify", data=workdir / "new", replay=workdir / "before")
    in_memory = fx.load(config)[1]
    keep_on_disk(monkeypatch)
    on_disk = fx.load(config)[1]
    assert on_disk.is_large and on_disk.splits == in_memory.splits
    assert on_disk.fingerprint == in_memory.fingerprint


def test_every_old_label_is_drawn() -> None:
    new = Dataset("new", {"train": [TextExample(i, f"n{i}", None, "x") for i in range(4)]})
    labels = [*"a" * 60, "b", "c"]
    old = Dataset(
        "old", {"train": [TextExample(i, f"o{i}", None, n) for i, n in enumerate(labels)]}
    )
    for share, number in ((0.01, 3), (1.0, 4), (5.0, 20), (100.0, 62)):
        mixed = with_replay(new, old, share).splits["train"]
        drawn = [each for each in mixed if each.label != "x"]
        assert {each.label for each in drawn} == {*"abc"} and len(drawn) == number
    first, again = (with_replay(new, old, 1.0).splits["train"] for _ in range(2))
    assert first == again


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"replay": "none"}, "--replay none: name the folder of a finished run of finetune classi"),
        ({"replay": "before:0"}, "perhaps with a share above 0"),
        ({"replay": "tagged"}, "name the folder of a finished run of finetune classify"),
        ({"problem": "multi"}, "--replay: old has another type of labels than new"),
        ({"test_sets": ["old=new"]}, "--replay: new has a split test_old already"),
    ],
    ids=["no run", "no share", "other task", "kind", "name"],
)
def test_refusals(
    changes: dict[str, Any], problem: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workdir)
    trained(Path("new"), Path("after"), **{"replay": "before", **changes}).refused(problem)
    assert not Path("after").exists()


def test_all_seeds_have_the_same_data(workdir: Path, tmp_path: Path) -> None:
    out = tmp_path / "seeds"
    trained(workdir / "new", out, replay=workdir / "before", seeds=2, steps=1).ok()
    reported = command("report", out, "--out", tmp_path / "report.html").ok()
    assert "differ" not in reported.out + reported.err


def test_data_that_have_changed_are_not_replayed(workdir: Path) -> None:
    file, after = workdir / "old" / "train.jsonl", workdir / "after"
    before = file.read_bytes()
    write_jsonl(file, rows("ab", 39, "old train"))
    refused = trained(workdir / "new", after, replay=workdir / "before")
    file.write_bytes(before)
    refused.refused("changed since the training of")
    assert not after.exists()


def test_data_in_memory_cannot_be_replayed(workdir: Path, tmp_path: Path) -> None:
    data = {name: rows("ab", 20, name) for name in ("train", "validation")}
    settings = fx.settings_of("classify", data=data, out=str(tmp_path / "before"), quiet=True)
    finetune.train("classify", **settings)
    found = trained(workdir / "new", tmp_path / "after", replay=tmp_path / "before")
    assert "was trained on data in memory" in found.err


def test_read_again(tmp_path: Path) -> None:
    """The old data have votes or labels alike."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x", "label": {"a": 2, "b": 1}}])
    data = read_text(str(path))
    assert with_replay(data, data, 1.0).splits["train"][1].votes == (("a", 2), ("b", 1))


def test_a_limit_keeps_the_share() -> None:
    """Old and new examples take turns."""
    sides = [Dataset(n, {"train": [TextExample(i, n, None, n) for i in range(40)]}) for n in "ab"]
    for share in (1.0, 0.5):
        half = with_replay(*sides, share).splits["train"][: 20 + round(20 * share)]
        assert abs(sum(each.label == "b" for each in half) - 20 * share) <= 1
