"""What commands that train several models refuse, before they write anything."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fixtures as fx
from tests.command import run
from tests.training.test_seeds import write_recipe

CLASSIFY = "classify --model BERT --data DATA --out new"
REFUSED = {
    f"{CLASSIFY} --sizes": {
        "9 --folds 3": "--folds does not go with --sizes",
        "9 --resume": "--resume does not go with --sizes",
        "9 --seeds 0": "--seeds must be 1 or more",
        "1 99": "2 (the labels) to 40 (the training examples)",
        "9 --data DATA/train.jsonl --validation none": "leaves no split to score",
    },
    CLASSIFY: {
        "--folds 1": "--folds: the folds must be 2 or more",
        "--folds 3x0": "--folds: the repeats must be 1 or more",
        "--folds many": "write N folds, or NxR",
        "--folds 3 --seeds 2": "--seeds does not go with --folds",
        "--folds 3 --test-sets a=b.jsonl": "--test-sets does not go with --folds",
        "--columns text=a text=b": "--columns names 'text' twice",
    },
    "run small.yaml": {
        "--seeds 0": "--seeds must be 1 or more, not 0",
        "--seeds 99999999999": "--seeds must be at most 10,000, not 99,999,999,999",
        "--folds 200x51": "--folds: the folds of all repeats must be at most 10,000",
        "--seeds x": "--seeds must be a whole number",
        "--seeds 2 --resume": "leave --resume out",
        "--seeds 2 --out run": "the folder of a single run",
        "--seeds 2 --out mine": "holds other files (README.md)",
    },
    f"search {CLASSIFY}": {
        "--space lrr=1,2": "--space lrr: not a setting of classify to search over. Perhaps you mea",
        "--space data=a,b": "--space data: not a setting",
        "--space lr": "Write NAME=A,B,C",
        "--space lr=1e-3:1e-5": "`low <= high` must hold",
        "--space lr=-1,1e-3": "--lr must be above 0, not -1.0",
        "--space lr=0:1:log": "--lr must be above 0, not 0.0",
        "--space weight_decay=0:1:log": "`low > 0` must hold",
        "--space lr=1,2 lr=3,4": "names a setting twice",
        "--space batch_size=8,x": "--batch-size must be a whole number, not 'x'",
        "--space tuning=full,half": "--tuning must be one of full, lora",
        "--folds 3": "unknown option '--folds'",
        "--trials 0": "--trials must be 1 or more",
        "--minutes 0": "--minutes must be a number above 0",
        "--validation none": "leaves no score to search by",
    },
    "search": {"classfy": "is no task"},
    "distill run --out new --steps 1": {
        "": "needs either --model SMALL or --layers N",
        "--layers 9": "--layers must be from 1 to the 2 of the teacher, not 9",
        "--layers 1 --temperature 0": "--temperature must be a finite number above 0",
        "--layers 1 --hard-weight 2": "--hard-weight must be a finite number from 0 to",
        f"--layers 1 --unlabeled {os.devnull}": f"--unlabeled {os.devnull}: no such file",
        "--layers 1 --data PAIRS": "is not one of the teacher's",
    },
}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a recipe, a run, and something of the user."""
    folder = tmp_path_factory.mktemp("refusals")
    write_recipe(folder)
    (folder / "run").symlink_to(fx.trained("classify"))
    (folder / "mine").mkdir()
    (folder / "mine" / "README.md").write_text("mine")
    with contextlib.chdir(folder):
        yield folder


@pytest.mark.parametrize(
    ("command", "message"),
    [(f"{name} {more}", said) for name, rows in REFUSED.items() for more, said in rows.items()],
)
def test_refusals(command: str, message: str, workdir: Path) -> None:
    before = sorted(workdir.rglob("*"))
    known = {"BERT": fx.checkpoint(), "DATA": fx.data("sentiment"), "PAIRS": fx.data("pairs")}
    for name, path in known.items():
        command = command.replace(name, str(path))
    run(*command.split()).refused("error: ", message)
    assert sorted(workdir.rglob("*")) == before
