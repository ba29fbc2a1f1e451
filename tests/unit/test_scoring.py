"""Scoring any system's predictions against gold: forms, order, schemes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.scoring import score_predictions
from tests.data import write_jsonl


def scored(folder: Path, predictions: list[dict], gold: list[dict], **settings) -> dict[str, float]:
    answers = write_jsonl(folder / "answers.jsonl", predictions)
    return score_predictions(answers, str(write_jsonl(folder / "gold.jsonl", gold)), **settings)


def labels(*names) -> list[dict]:
    return [{"label": name} for name in names]


def texts(*names) -> list[dict]:
    return [{"text": "a b", "label": name} for name in names]


def test_names(tmp_path: Path):
    scores = scored(tmp_path, labels("a", "b", "b", "a"), texts("a", "b", "a", "a"))
    assert scores["accuracy"] == 0.75 and {"macro_f1", "matthews"} <= set(scores)


def test_nli_names_of_other_systems(tmp_path: Path):
    answers = labels("ENTAILMENT", "Contradictory", "n")
    gold = texts("entailment", "contradiction", "neutral")
    assert scored(tmp_path, answers, gold)["accuracy"] == 1.0


def test_classes_that_are_numbers_by_name(tmp_path: Path):
    assert scored(tmp_path, labels("1", "0"), texts(1, 0))["accuracy"] == 1.0


def test_numbers(tmp_path: Path):
    scores = scored(tmp_path, labels(1, 2.5, 4), texts(2.0, 3.5, 5.0))
    assert scores["pearson"] > 0.99 and scores["mse"] == pytest.approx(1.0)


def test_several_labels(tmp_path: Path):
    gold = [{"text": "a", "labels": names} for names in (["x", "y"], [], ["y"])]
    answers = [{"label": names} for names in (["y", "x"], [], ["x"])]
    scores = scored(tmp_path, answers, gold)
    assert scores["subset_accuracy"] == pytest.approx(2 / 3)
    assert scores["micro_f1"] == pytest.approx(2 / 3)


def test_rows_without_gold_are_left_out(tmp_path: Path):
    gold = [*texts("a", "b"), {"text": "c", "label": None}]
    assert scored(tmp_path, labels("a", "b", "a"), gold)["accuracy"] == 1.0
    assert scored(tmp_path, labels("a", "b"), gold)["accuracy"] == 1.0
    with pytest.raises(ValueError, match="3 examples, but 1 predictions"):
        scored(tmp_path, labels("a"), gold)


def test_columns(tmp_path: Path):
    gold = [{"text": "a", "stars_given": "5"}]
    assert scored(tmp_path, labels("5"), gold, columns={"label": "stars_given"})["accuracy"] == 1.0


def tagged(*tags: list[str]) -> list[dict]:
    return [{"tokens": ["w"] * len(row), "tags": row} for row in tags]


@pytest.mark.parametrize("answer", [
    ["B-PER", "I-PER", "O", "B-LOC"],
    ["B-PER", "E-PER", "O", "S-LOC"],  # BIOES against BIO
    ["B-PER", "L-PER", "O", "U-LOC"],
])  # fmt: skip
def test_schemes_of_other_systems(tmp_path: Path, answer: list[str]):
    scores = scored(tmp_path, [{"tags": answer}], tagged(["B-PER", "I-PER", "O", "B-LOC"]))
    assert scores["span_f1_strict"] == scores["span_f1_conll"] == scores["tag_accuracy"] == 1.0


def test_ill_formed_answers_stay_ill_formed(tmp_path: Path):
    """A lone I- is a span for conlleval and none for the strict count: not taken for IOB1."""
    answers = [{"tags": ["I-PER", "I-PER", "O", "I-LOC"]}]
    scores = scored(tmp_path, answers, tagged(["B-PER", "I-PER", "O", "B-LOC"]))
    assert (scores["span_f1_conll"], scores["span_f1_strict"]) == (1.0, 0.0)
    assert scores["tag_accuracy"] == 0.5


def test_plain_tags(tmp_path: Path):
    scores = scored(tmp_path, [{"tags": ["DET", "VERB"]}], tagged(["DET", "NOUN"]))
    assert scores == {"accuracy": 0.5, "macro_f1": pytest.approx(1 / 3)}


@pytest.mark.parametrize(("predictions", "gold", "message"), [
    ([{"label": "a"}, {"tags": ["O"]}], texts("a", "b"), "each line must have `label`"),
    ([{}], texts("a"), "each line must have `label`"),
    (labels("a", "b"), texts("a"), "1 examples, but 2 predictions"),
    (labels("a"), [{"text": "a", "label": None}], "no row has a label"),
    (labels(1.0), texts("a"), "labels are no numbers"),
    ([{"tags": ["O"]}], tagged(["O", "O"]), r"answers.jsonl:1: 1 tags for the 2 words of .*:1"),
    ([{"tags": ["O"]}], [{"tokens": ["a"]}], "no tags"),
    ([{"tags": "O"}], tagged(["O"]), r"answers.jsonl:1: tags must be a list"),
    (labels(None), texts("a"), r"answers.jsonl:1: label must be"),
])  # fmt: skip
def test_refused(tmp_path: Path, predictions: list[dict], gold: list[dict], message: str):
    with pytest.raises(ValueError, match=message):
        scored(tmp_path, predictions, gold)
