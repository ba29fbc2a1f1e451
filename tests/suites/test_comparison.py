"""Suites against each other: a test for each data set, Holm, and Wilcoxon over data sets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from scipy.stats import wilcoxon

from finetune.evaluation.significance import holm
from finetune.suites.comparison import signed_ranks
from tests.command import run


@pytest.fixture(scope="module")
def both(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("compared")
    first, second = place / "a", place / "b"
    assert run("run", suite, "--out", first, "--only", "pairs,mood,names").code == 0
    options = ("--only", "pairs,mood", "--steps", "12", "--lr", "3e-3")
    assert run("run", suite, "--out", second, *options).code == 0
    return first, second


def test_each_data_set_has_its_paired_test(both: tuple[Path, Path]):
    outcome = run("compare", *both, "--resamples", "200", "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    rows = [(each["data"], each["split"], each["metric"]) for each in found["data"]]
    assert rows == [
        ("mood", "test", "accuracy"),
        ("pairs", "validation", "accuracy"),
        ("pairs", "test", "accuracy"),
    ]
    for each in found["data"]:
        runs = [f"{folder}/{each['data']}/seed-1" for folder in both]
        options = ("--split", each["split"], "--metric", each["metric"], "--resamples", "200")
        single = json.loads(run("compare", *runs, *options, "--json").out)
        assert each["a"] == single["a"]["value"] and each["b"] == single["b"]["value"]
        assert each["p"] == max(single["p_bootstrap"], single["p_randomization"])
    assert [each["p_holm"] for each in found["data"]] == holm([each["p"] for each in found["data"]])
    assert found["left_out"] == ["follow", "names"]
    differences = [each["a"] - each["b"] for each in found["data"]]
    assert found["p_signed_ranks"] == pytest.approx(
        wilcoxon(differences, zero_method="zsplit").pvalue
    )


def test_the_text(both: tuple[Path, Path]):
    first, second = both
    outcome = run("compare", f"base={first}", f"new={second}", "--resamples", "100")
    assert outcome.code == 0, outcome.err
    assert (
        "A is base, B is new" in outcome.out and "adjusted for 3 tests (Holm, 1979)" in outcome.out
    )
    assert "signed-ranks test (Demšar, 2006); with fewer than 6 data sets it cannot" in outcome.out
    assert "Without finished runs in both suites: follow, names." in outcome.out
    table = run("compare", first, second, "--resamples", "100", "--format", "latex")
    assert table.out.startswith(r"\begin{tabular}") and "Holm" in table.err


def test_what_does_not_apply(both: tuple[Path, Path], tmp_path: Path):
    first, second = both
    outcome = run("compare", first, second, "--metric", "accuracy")
    assert outcome.code == 2 and "--metric: it does not apply to suites" in outcome.err
    outcome = run("compare", first, second, first)
    assert outcome.code == 2 and "suites are compared two at a time" in outcome.err
    (tmp_path / "suite.json").write_text('{"suite": "x", "title": "X", "members": {}}')
    outcome = run("compare", first, tmp_path)
    assert outcome.code == 2 and "share no data set with finished runs" in outcome.err


def test_a_metric_of_a_folder_is_no_file_to_run(both: tuple[Path, Path], tmp_path: Path):
    first, second = both
    other = tmp_path / "other"
    shutil.copytree(first, other)
    (other / "evil.py").write_text(f"open({str(tmp_path / 'RAN')!r}, 'w')\ndef f(*x): return 0\n")
    saved = json.loads((other / "suite.json").read_text("utf-8"))
    for member in saved["members"].values():
        for score in member["scores"]:
            score["metric"] = f"{other / 'evil.py'}:f"
    (other / "suite.json").write_text(json.dumps(saved), "utf-8")
    outcome = run("compare", other, second, "--resamples", "10")
    assert outcome.code == 2 and "evil.py:f" in outcome.err
    assert not (tmp_path / "RAN").exists()


def test_holm_by_hand():
    """Holm (1979): the k smallest of m p-values times m, m - 1, …, never below one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


def test_signed_ranks_by_hand():
    """All of six differences positive: 2 of 2^6 assignments of signs are as extreme."""
    assert signed_ranks([0.2, 0.1, 0.3, 0.05, 0.4, 0.15]) == pytest.approx(2 / 64)
    assert signed_ranks([0.0, 0.0]) == 1.0
    assert signed_ranks([0.1]) is None
