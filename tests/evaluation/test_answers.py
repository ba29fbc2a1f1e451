"""Scores of answers against the definition of SQuAD's official evaluation, version 2.0."""

from __future__ import annotations

import collections
import json
import random
import re
import string
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from finetune.data import DataError
from finetune.evaluation.prediction_types import scores_of
from finetune.evaluation.prediction_types.answers import best_no_answer_threshold
from finetune.evaluation.predictions import read_predictions
from tests.command import run
from tests.runs import score_predictions
from tests.small_data import write_jsonl

WORDS = ["the", "a", "An", "Oslo", "oslo", "river", "1873", "co-op", "U.S.", "—", "Ås", "...", ""]


def normalize(text: str) -> str:
    kept = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def f1(gold: str, found: str) -> float:
    one, other = normalize(gold).split(), normalize(found).split()
    same = sum((collections.Counter(one) & collections.Counter(other)).values())
    if not one or not other:
        return float(one == other)
    if same == 0:
        return 0.0
    precision, recall = same / len(other), same / len(one)
    return 2 * precision * recall / (precision + recall)


def official(
    gold: Sequence[Sequence[str]], best: Sequence[str], none: Sequence[float], line: float
) -> dict[str, float]:
    """The scores with a threshold of no answer, and the best ones."""
    exact, words = {}, {}
    for index, (answers, text) in enumerate(zip(gold, best, strict=True)):
        real = [answer for answer in answers if normalize(answer)] or [""]
        exact[index] = max(float(normalize(answer) == normalize(text)) for answer in real)
        words[index] = max(f1(answer, text) for answer in real)
    found = {}
    for name, raw in (("exact", exact), ("f1", words)):
        applied = {k: float(not gold[k]) if none[k] > line else score for k, score in raw.items()}
        for part, keep in (("hasans", True), ("noans", False)):
            own = [score for k, score in applied.items() if bool(gold[k]) == keep]
            found[f"{part}_{name}"] = sum(own) / len(own)
        found["exact_match" if name == "exact" else name] = sum(applied.values()) / len(gold)
        if name == "f1":
            found["best_f1"] = best_f1(raw, gold, best, none)
    return found


def best_f1(raw: Mapping[int, float], gold, best, none) -> float:
    current = highest = float(sum(not answers for answers in gold))
    for index in sorted(raw, key=lambda k: none[k]):
        current += raw[index] if gold[index] else -1.0 if best[index] else 0.0
        highest = max(highest, current)
    return highest / len(gold)


answer_scores = partial(scores_of, "answers")


def texts(chance: random.Random, most: int) -> str:
    """Return words, at least one of which ``normalize`` keeps."""
    words = [*chance.choices(WORDS, k=chance.randint(0, most - 1)), chance.choice(WORDS[3:9])]
    chance.shuffle(words)
    return " ".join(words)


@pytest.mark.parametrize("seed", range(20))
def test_official_evaluation(seed: int) -> None:
    chance = random.Random(seed)
    gold = [[texts(chance, 3) for _ in range(chance.choice([0, 1, 3]))] for _ in range(60)]
    gold[:2] = [[], ["Oslo"]]
    best = [chance.choice([*answers, texts(chance, 3)]) for answers in gold]
    none = [round(chance.random(), 6) for _ in gold]
    predicted = ["" if score > 0.5 else text for text, score in zip(best, none, strict=True)]
    found = answer_scores(gold, predicted)
    expected = official(gold, best, none, 0.5)
    highest = expected.pop("best_f1")
    assert found == pytest.approx(expected, abs=1e-12)
    line = best_no_answer_threshold(gold, best, none)
    decided = ["" if score >= line else text for text, score in zip(best, none, strict=True)]
    assert answer_scores(gold, decided)["f1"] == pytest.approx(highest, abs=1e-12)


@pytest.mark.parametrize(
    ("gold", "none"),
    [
        ([["Oslo"], ["Rome"], []], [1.0, 0.2, 1.0]),
        ([["Oslo"], ["Rome"], ["Bonn"]], [1.0, 1.0, 1.0]),
        ([[], [], ["Rome"]], [0.0, 0.0, 0.0]),
        ([[], ["Oslo"], []], [0.0, 0.0, 1.0]),
    ],
)
def test_threshold_of_certain_probabilities(gold: list[list[str]], none: list[float]) -> None:
    """The threshold reaches the best F1 that any threshold from 0 to 1 reaches."""
    best = ["Oslo" if not answers else answers[0] for answers in gold]

    def f1_at(threshold: float) -> float:
        pairs = zip(best, none, strict=True)
        return answer_scores(gold, ["" if p >= threshold else text for text, p in pairs])["f1"]

    reached = f1_at(best_no_answer_threshold(gold, best, none))
    assert reached == max(map(f1_at, (0.0, *none, *(min(1.0, p + 1e-6) for p in none))))


@pytest.mark.parametrize("indent", [None, 4])
def test_answers_in_the_official_format(indent: int | None, tmp_path: Path) -> None:
    question = {"question": "Where?", "context": "Ana is in Oslo."}
    gold = [
        {"id": "q1", **question, "answers": {"text": ["Oslo"], "answer_start": [10]}},
        {"id": "q2", **question, "answers": {"text": [], "answer_start": []}},
    ]
    path = tmp_path / "answers.json"
    path.write_text(json.dumps({"q2": "Ana", "q1": "Oslo"}, indent=indent))
    scores = score_predictions(path, str(write_jsonl(tmp_path / "gold.jsonl", gold)))
    assert scores["hasans_exact"] == 1.0 and scores["noans_exact"] == 0.0
    path.write_text(json.dumps({"id": "q1", "answer": "Oslo"}, indent=None))
    assert read_predictions(path)[1][0][0]["id"] == "q1", "one row of JSON Lines"
    row = {"answer": "Rome", "start": "", "gold": [{"text": "Oslo"}]}  # an empty cell
    report = run("report", write_jsonl(tmp_path / "row.jsonl", [row]), "--format", "json").ok()
    assert '"start": null' in report.out


@pytest.mark.parametrize(
    "content", [{"q1": ["Oslo"]}, {"version": "1.1", "data": []}, {"label": "a"}, {}]
)
def test_an_object_that_is_no_file_of_answers(content: dict, tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(content, indent=4))
    with pytest.raises(DataError, match="one JSON object, but not in the official format of SQuAD"):
        read_predictions(path)


@pytest.mark.parametrize("name", ["empty.json", "empty.jsonl", "empty.txt"])
def test_a_file_without_predictions(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(DataError, match="there is no prediction in it"):
        read_predictions(tmp_path / name)
