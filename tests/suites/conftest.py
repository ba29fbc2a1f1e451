"""A suite of three tiny tasks, of which one starts from another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import small_data as data
from tests.tiny import save_tiny_checkpoint

RECIPE = """task: {task}
model: {folder}/model
data: {folder}/{data}
steps: 2
batch_size: 8
max_length: 48
lr: 1e-3
precision: fp32
{more}"""
EXPECTED = """expected:
  - {split: test, metric: accuracy, value: 0.5, tolerance: 0.5, source: a made-up paper}
"""
SUITE = """title: Tiny
source: "a made-up benchmark"
tasks:
  follow:
    recipe: follow.yaml
    from: pairs
    scores: [test accuracy, test macro_f1]
  mood:
    recipe: mood.yaml
  pairs:
    recipe: pairs.yaml
    scores: [validation accuracy, test accuracy]
  names:
    recipe: names.yaml
    scores: [test span_f1_conll]
    left_out: tags are scored in another way
"""


def write_suite(folder: Path) -> Path:
    """Write a suite with its recipes, data and encoder; return its file."""
    save_tiny_checkpoint(folder / "model", "bert", dropout=0.1, layers=3)
    for name in ("pairs", "follow"):
        data.pairs(folder / name)
    data.sentiment(folder / "mood")
    data.entities(folder / "names")
    for name, task, more in (
        ("pairs", "nli", ""),
        ("follow", "nli", ""),
        ("mood", "classify", EXPECTED),
        ("names", "tag", ""),
    ):
        text = RECIPE.format(task=task, folder=folder, data=name, more=more)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    (path := folder / "tiny.yaml").write_text(SUITE, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite"))
