"""Further test sets of a run: --test-sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finetune.config.tasks import NliConfig, named_test_sets
from finetune.data import DataError, Dataset, with_test_sets
from finetune.types import TextExample, UserError
from tests import small_data as data
from tests.command import run
from tests.tiny import save_tiny_checkpoint


def rows(number: int) -> list[TextExample]:
    return [TextExample(index, f"text {index}", None, "a") for index in range(number)]


def test_test_sets_are_splits():
    own = Dataset("own", {"train": rows(3), "test": rows(2)}, notes=["own note"])
    whole = Dataset("german", {"train": rows(9), "test": rows(4)}, notes=["read"])
    single = Dataset("file", {"train": rows(1)}, notes=["train: votes"])
    found = with_test_sets(own, {"test_de": whole, "test_x": single})
    sizes = {name: len(examples) for name, examples in found.splits.items()}
    assert sizes == {"train": 3, "test": 2, "test_de": 4, "test_x": 1}
    assert found.notes[:3] == ["own note", "test_de: 4 examples of german", "test_de: read"]
    assert found.notes[-1] == "test_x: votes"
    assert found.fingerprint != own.fingerprint
    assert found.training_fingerprint == own.training_fingerprint
    assert with_test_sets(own, {}) is own
    without = Dataset("fr", {"train": rows(1), "validation": rows(1)})
    with pytest.raises(DataError, match="--test-sets fr: fr has no test split, only train, valid"):
        with_test_sets(own, {"test_fr": without})
    with pytest.raises(DataError, match="--test-sets de: own has a split test_de already"):
        with_test_sets(found, {"test_de": whole})


def test_the_option():
    items = ("de=xnli:de,test=test", "a-b=x=y.csv")
    expected = {"test_de": "xnli:de,test=test", "test_a-b": "x=y.csv"}
    assert named_test_sets(items) == expected
    for wrong in ("de", "=x", "a b=x", "de="):
        with pytest.raises(UserError, match="--test-sets must be NAME=DATA"):
            NliConfig(test_sets=(wrong,))
    with pytest.raises(UserError, match="--test-sets names 'de' twice"):
        NliConfig(test_sets=("de=x", "de=y"))


def test_a_run_scores_each_test_set(tmp_path: Path):
    save_tiny_checkpoint(tmp_path / "model", "bert")
    data.pairs(tmp_path / "data")
    data.pairs(tmp_path / "other", (5, 5, 7))
    (tmp_path / "r.yaml").write_text(
        "task: nli\nmodel: model\ndata: data\ntest_sets: [de=other, fr=other/validation.jsonl]\n"
        "steps: 2\nmax_length: 48\nexpected:\n"
        "  - {split: test_fr, metric: accuracy, value: 0.5, tolerance: 0.5, source: a paper}\n"
    )
    out = tmp_path / "run"
    arguments = ("run", tmp_path / "r.yaml", "--model", tmp_path / "model", "--out", out)
    outcome = run(*arguments)
    assert outcome.code == 0, outcome.err
    metrics = json.loads((out / "metrics.json").read_text())
    scored = [name for name in metrics if "leaks" not in name]
    assert scored == ["validation", "test", "test_de", "test_fr"]
    assert "test_fr accuracy: expected 0.5 ± 0.5" in outcome.out
    assert len((out / "predictions.test_de.jsonl").read_text().splitlines()) == 7
    assert "test_de: 7 examples of other" in outcome.err
    assert run("compare", out, out, "--split", "test_de", "--resamples", "10").code == 0
    again = run(*arguments, "--resume", "--test-sets", f"de={tmp_path / 'other'}")
    assert again.code == 2 and "was started with test_sets" in again.err
    seeds = tmp_path / "seeds"
    outcome = run(*arguments[:-1], seeds, "--seeds", "1")
    assert outcome.code == 0, outcome.err
    assert "test_fr" in json.loads((seeds / "seeds.json").read_text())["metrics"]
