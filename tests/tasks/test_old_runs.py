"""Runs that older versions of the toolkit have saved load and predict as those versions did."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import finetune
from finetune import UserError
from tests.command import run
from tests.small_data import read_jsonl

RUNS = sorted((Path(__file__).parents[1] / "old_runs").iterdir())
"""Named by the date of the commit that trained them; `expected.jsonl` has its predictions."""
(CLASSIFY,) = (run for run in RUNS if run.name.endswith("classify"))


def same(row: Any, expected: Any) -> bool:
    """Whether a row has the values that an older version gave; it may have more of them."""
    if isinstance(expected, dict):
        return all(same(row.get(key), expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(row) == len(expected) and all(map(same, row, expected))
    if isinstance(expected, float):
        return row == pytest.approx(expected, abs=2e-5)
    return row == expected


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_old_runs_predict(folder: Path):
    outcome = run("predict", folder, "--file", folder / "inputs.txt").ok()
    found = outcome.rows
    expected = read_jsonl(folder / "expected.jsonl")
    assert len(found) == len(expected) and all(map(same, found, expected))


def changed(folder: Path, **changes: Any) -> Path:
    """A copy of an old run with a changed task file."""
    copy = Path(shutil.copytree(CLASSIFY, folder / "run"))
    path = copy / "best" / "finetune.json"
    content = json.loads(path.read_text())
    content["config"] |= changes.pop("config", {})
    path.write_text(json.dumps(content | changes))
    return copy


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"warp_speed": 9}, "marked_words, overlap, sparse_embeddings"),
        ({"freeze": "all"}, "since this version of finetune refuses one: freeze must be none"),
        ({"tuning": "prefix", "lr": -1.0}, "settings of its training are ignored for prediction"),
    ],
)
def test_settings_and_values_of_training_that_are_gone_are_ignored(
    settings: dict[str, Any], note: str, tmp_path: Path, warnings_logged: list[str]
):
    copy = changed(tmp_path, config=settings)
    (found,) = finetune.load(copy).predict(["a lovely room in Oslo"])
    assert any(note in line for line in warnings_logged)
    assert found == finetune.load(CLASSIFY).predict(["a lovely room in Oslo"])[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"long_text": "sing"}}, "or of another version of finetune"),
        ({"format": 2}, "has format 2, and this version of finetune reads format 1"),
        ({"labels": ["pos", "neg"]}, "its labels .* differ from config.json"),
    ],
)
def test_what_this_version_cannot_read(changes: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message):
        finetune.load(changed(tmp_path, **changes))
