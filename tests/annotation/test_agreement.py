"""Agreement between annotators against formulas worked by hand and scikit-learn."""

from __future__ import annotations

import csv
import io
import json
from itertools import permutations

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from finetune.annotation.agreement import fleiss_kappa, krippendorffs_alpha, measure_agreement
from finetune.annotation.annotations import read_annotations
from tests.command import run
from tests.small_data import write_jsonl


def measured(tmp_path, **rows):
    files = {}
    for name, each in rows.items():
        path = tmp_path / f"{name}.jsonl"
        write_jsonl(path, each)
        files[name] = read_annotations(path)
    found = measure_agreement(files, num_resamples=200)
    return {
        title: [dict(zip(columns, row, strict=True)) for row in rows]
        for title, columns, rows in found.tables
    }, found.notes


def labeled(labels):
    return [{"id": n, "text": f"t{n}", "label": label} for n, label in enumerate(labels) if label]


FLEISS = np.array(
    [
        [0, 0, 0, 0, 14],
        [0, 2, 6, 4, 2],
        [0, 0, 3, 5, 6],
        [0, 3, 9, 2, 0],
        [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0],
        [3, 2, 6, 3, 0],
        [2, 5, 3, 2, 2],
        [6, 5, 2, 1, 0],
        [0, 2, 2, 3, 7],
    ]
)
"""A worked example of Fleiss' kappa: 10 subjects, 14 raters, 5 categories."""


def test_fleiss_kappa():
    assert fleiss_kappa(FLEISS) == pytest.approx(0.20993, abs=1e-5)
    assert fleiss_kappa(np.array([[3, 0], [3, 0]])) == 1.0
    random = np.random.default_rng(0).integers(0, 3, size=(40, 4))
    counts = np.stack([(random == c).sum(1) for c in range(3)], 1)
    equal = np.mean([[row[i] == row[j] for i, j in permutations(range(4), 2)] for row in random])
    chance = np.mean([a == b for a in random.ravel() for b in random.ravel()])
    assert fleiss_kappa(counts) == pytest.approx((equal - chance) / (1 - chance))


def test_krippendorffs_alpha():
    """The example of Krippendorff (2011), section C: nominal data, 4 observers, missing values."""
    table = """1 2 3 3 2 1 4 1 2 - - -|1 2 3 3 2 2 4 1 2 5 - 3|- 3 3 3 2 3 4 2 2 5 1 -
               |1 2 3 3 2 4 4 1 2 5 1 -"""
    ratings = [row.split() for row in table.split("|")]
    counts = np.array(
        [[sum(row[i] == str(c) for row in ratings) for c in range(1, 6)] for i in range(12)]
    )
    assert krippendorffs_alpha(counts) == pytest.approx(0.743, abs=5e-4)
    assert krippendorffs_alpha(np.array([[2, 0], [3, 0]])) == 1.0


def test_labels_of_two_annotators(tmp_path):
    first, second = "xxyyzxyzzx", "xyyyzxxzyx"
    tables, notes = measured(tmp_path, ann=labeled(first + "x"), bob=labeled(second))
    (pair,) = tables["pairs"]
    kappa = cohen_kappa_score([*first], [*second])
    expected = {"first": "ann", "second": "bob", "number": 10, "agreement": 0.7}
    assert pair == expected | {"cohens_kappa": pytest.approx(kappa)}
    assert tables["confusions"] == [
        {"one": "x", "other": "y", "number": 2},
        {"one": "y", "other": "z", "number": 1},
    ]
    of_z = cohen_kappa_score([c == "z" for c in first], [c == "z" for c in second])
    assert tables["labels"][2] == {"label": "z", "given": 5, "cohens_kappa": pytest.approx(of_z)}
    assert "all" not in tables
    assert notes == ["1 text of one annotator only, not used"]


def test_labels_of_an_export_with_missing_annotations(tmp_path):
    votes = {"a": "xxx", "b": "yyx", "c": "xy", "d": "yyy", "e": "z"}
    rows = [
        {"text": text, "label": label, "_annotator_id": f"set-{who}", "answer": "accept"}
        for text, labels in votes.items()
        for who, label in enumerate(labels)
    ]
    tables, notes = measured(tmp_path, export=rows)
    (overall,) = tables["all"]
    assert overall["annotators"] == 3
    assert overall["labeled_by_all"] == 3
    assert overall["fleiss_kappa"] == pytest.approx(
        fleiss_kappa(np.array([[3, 0], [1, 2], [0, 3]]))
    )
    assert overall["number"] == 4
    assert len(tables["pairs"]) == 3
    assert notes == ["1 text of one annotator only, not used"]


def test_spans(tmp_path):
    def rows(*spans):
        return [
            {"id": n, "text": "Ann Lee of Rome ran", "spans": each} for n, each in enumerate(spans)
        ]

    first = rows([[0, 7, "PER"], [11, 15, "LOC"]], [[0, 7, "PER"]], [])
    second = rows([[0, 7, "PER"], [11, 15, "ORG"]], [[0, 3, "PER"]], [[11, 15, "LOC"]])
    tables, _ = measured(tmp_path, first=first, second=second)
    (pair,) = tables["pairs"]
    assert (pair["texts"], pair["of_first"], pair["of_second"]) == (3, 3, 4)
    assert pair["f1"] == pytest.approx(2 / 7)
    assert 0 <= pair["low"] < pair["f1"] < pair["high"] <= 1
    f1 = {row["label"]: row["f1"] for row in tables["labels"]}
    assert f1 == {"PER": pytest.approx(0.5), "LOC": 0, "ORG": 0}
    confused = {(row["one"], row["other"]): row["number"] for row in tables["confusions"]}
    assert confused == {
        ("LOC", "ORG"): 1,
        ("PER", "PER with other boundaries"): 1,
        ("nothing", "LOC"): 1,
    }


def test_several_labels_and_tags(tmp_path):
    first, second = [["x", "y"], [], ["x"]], [["x"], ["y"], ["x"]]

    def rows(labels):
        return [{"id": n, "text": f"t{n}", "label": each} for n, each in enumerate(labels)]

    tables, _ = measured(tmp_path, first=rows(first), second=rows(second))
    assert tables["pairs"][0]["f1"] == pytest.approx(2 * 2 / 6)
    assert tables["confusions"] == [{"one": "nothing", "other": "y", "number": 2}]

    def words(tags):
        return [{"tokens": ["a", "b", "c"], "tags": tags.split()}]

    tables, _ = measured(tmp_path, first=words("N V N"), second=words("N V A"))
    expected = cohen_kappa_score(["N", "V", "N"], ["N", "V", "A"])
    assert tables["pairs"][0]["cohens_kappa"] == pytest.approx(expected)


def test_texts_are_resampled_in_the_order_of_the_file(tmp_path):
    """Also texts without ids, whatever the order of their hashes."""
    first, second = (
        [{"text": f"t{n}", "label": [*c]} for n, c in enumerate(each)]
        for each in (["xy", "", "x", "z", "yz", "x"] * 3, ["x", "y", "x"] * 6)
    )
    plain, _ = measured(tmp_path, first=first, second=second)
    known = [[{**row, "id": n} for n, row in enumerate(rows)] for rows in (first, second)]
    assert measured(tmp_path, first=known[0], second=known[1])[0]["pairs"] == plain["pairs"]


def test_command(tmp_path):
    for name, labels in (("ann", "xxyy"), ("bob", "xyyy"), ("eve", "xyyx")):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in labeled(labels))
        )
    files = [tmp_path / f"{name}.jsonl" for name in ("ann", "bob", "eve")]
    outcome = run("agreement", *files, "--format", "json")
    found = json.loads(outcome.out)
    assert [row["second"] for row in found["pairs"]] == ["bob", "eve", "eve"]
    assert {*found} == {"pairs", "all", "labels", "confusions"}
    outcome = run("agreement", *files[:2], "--format", "csv")
    rows = list(csv.reader(io.StringIO(outcome.out.split("\n\n")[0])))
    assert rows[1][:3] == ["ann", "bob", "4"]


def test_a_column_of_each_annotator(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text("text,ann,bob,eve\na,x,x,\nb,x,y,x\nc,y,y,y\n")
    outcome = run("agreement", path, "--columns", "label=ann+bob+eve", "--format", "json")
    pairs = json.loads(outcome.out)["pairs"]
    assert [(row["first"], row["second"], row["number"]) for row in pairs] == [
        ("ann", "bob", 3),
        ("ann", "eve", 2),
        ("bob", "eve", 2),
    ]
