"""`finetune report --format` from end to end, against `finetune score` and by hand."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.evaluation.decisions import Decisions
from finetune.evaluation.error_analysis import (
    Analysis,
    analysis_dict,
    analyze_predictions,
    count_categories,
)
from finetune.evaluation.prediction_types import TYPES
from finetune.evaluation.prediction_types.spans import MATCHES as CATEGORIES
from finetune.evaluation.tables import TableRows
from finetune.types import (
    ChoicePrediction,
    ChoiceQuestion,
    Span,
    SpanPrediction,
    TextExample,
    TextPrediction,
    TokenExample,
    TokenPrediction,
)
from tests.command import run
from tests.small_data import write_jsonl

TAGS = ("O", "B-PER", "I-PER", "B-LOC")


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


FILES = ("pred.jsonl", "--gold", "gold.jsonl")


def analysed(*arguments: str | Path) -> dict:
    outcome = run("report", *arguments, "--format", "json")
    assert (outcome.code, outcome.err) == (0, ""), outcome.err
    return json.loads(outcome.out)


def tagged(number: int, seed: int) -> list[dict]:
    rng, rows = random.Random(seed), []
    for size in (rng.randint(1, 15) for _ in range(number)):
        words = [f"w{rng.randint(0, 30)}" for _ in range(size)]
        rows.append({"tokens": words, "tags": [rng.choice(TAGS) for _ in range(size)]})
    return rows


def answers(rows: list[dict]) -> list[dict]:
    rng = random.Random(5)
    return [
        {
            "id": index,
            "words": row["tokens"],
            "tags": [tag if rng.random() > 0.2 else rng.choice(TAGS) for tag in row["tags"]],
            "scores": [round(rng.uniform(0.3, 1), 3) for _ in row["tags"]],
        }
        for index, row in enumerate(rows)
    ]


def total(table: list[dict], *names: str) -> tuple[int, ...]:
    return tuple(sum(row[name] for row in table) for name in names)


def test_entities(workdir: Path):
    gold = tagged(40, 1)
    write_jsonl(workdir / "gold.jsonl", gold)
    write_jsonl(workdir / "train.jsonl", tagged(20, 2))
    write_jsonl(workdir / "pred.jsonl", answers(gold))
    found = analysed(*FILES, "--train", "train.jsonl", "--examples", "3")
    scores = json.loads(run("score", "pred.jsonl", "gold.jsonl", "--format", "json").out)
    exact, partial, macro = (
        found["scores"].pop(f"span_f1_{name}") for name in ("exact", "partial", "macro")
    )
    by_type = [row["f1"] for row in found["tables"]["type"]]
    assert macro == pytest.approx(sum(by_type) / len(by_type))
    assert found["scores"].pop("span_f1_type") >= scores["span_f1_conll"] <= exact <= partial
    assert found["scores"] == scores
    sums = {
        name: total(found["tables"][name], "gold", "found", "predicted", "correct")
        for name in ("length", "sentence length", "in training")
    }
    assert len(set(sums.values())) == 1
    num_gold, right, num_predicted, _ = sums["length"]
    assert 2 * right / (num_gold + num_predicted) == pytest.approx(scores["span_f1_conll"])
    wrong = found["errors"]
    paired = sum(wrong.get(name, 0) for name in ("type", "boundary", "boundary and type"))
    assert right + paired + wrong["miss"] == num_gold
    assert right + paired + wrong["false positive"] == num_predicted
    assert all(len(some) <= 3 for some in found["examples"].values())
    for errors in found["examples"].values():
        sure = [error["confidence"] for error in errors]
        assert sure == sorted(sure, reverse=True)
    bins = found["calibration"]["bins"]
    assert sum(each["number"] for each in bins) == sum(len(row["tags"]) for row in gold)
    share = sum(each["number"] * each["accuracy"] for each in bins)
    assert share / sum(each["number"] for each in bins) == pytest.approx(scores["tag_accuracy"])


def test_text_for_reading_has_no_colors_and_is_of_one_run(workdir: Path):
    write_jsonl(workdir / "gold.jsonl", tagged(12, 12))
    write_jsonl(workdir / "pred.jsonl", answers(tagged(12, 12)))
    shown = run("report", *FILES, "--train", "gold.jsonl", "--format", "table").ok()
    assert "By occurrence in the training data" in shown.out and "\x1b" not in shown.out
    for name in ("seed-1", "seed-2"):
        (workdir / "runs" / name).mkdir(parents=True)
        write_jsonl(workdir / "runs" / name / "predictions.test.jsonl", answers(tagged(12, 12)))
    assert "2 runs" in run("report", "runs", "--format", "table").err


def test_types_of_spans_against_each_other():
    """Mean F1 of types, and who was taken for whom, by hand."""
    gold = [[Span(0, 1, "P"), Span(2, 4, "L")], [Span(0, 2, "P"), Span(3, 4, "O")]]
    predicted = [[Span(0, 1, "P"), Span(2, 3, "O"), Span(5, 6, "L")], [Span(0, 2, "P")]]
    examples = [TokenExample(0, tuple("abcdef"), tuple(spans)) for spans in gold]
    predictions = [SpanPrediction(0, (), tuple(each), (0.5,) * len(each)) for each in predicted]
    found = analyze_predictions(TYPES["spans"].tables_of(examples, predictions))
    assert found.scores["span_f1_macro"] == pytest.approx((1 + 0 + 0) / 3)
    none = "(nothing)"
    assert found.tables["confusion"] == [
        {"gold": "L", "predicted": {"L": 0, "O": 1, "P": 0, none: 0}},
        {"gold": "O", "predicted": {"L": 0, "O": 0, "P": 0, none: 1}},
        {"gold": "P", "predicted": {"L": 0, "O": 0, "P": 2, none: 0}},
        {"gold": none, "predicted": {"L": 1, "O": 0, "P": 0, none: 0}},
    ]


WORDS = ("Ana", "Lima", "saw", "New", "York")
SENTENCE = TokenExample(7, WORDS, where="a.conll:3")
TEXTS = [TextExample(index, f"text {index}", where=f"a:{index}") for index in range(3)]


def analysis_of_spans(gold: list[Span], predicted: list[Span], *scores: float) -> Analysis:
    examples = [replace(SENTENCE, spans=tuple(gold))]
    prediction = SpanPrediction(7, WORDS, tuple(predicted), scores or (0.5,) * len(predicted))
    return analyze_predictions(TYPES["spans"].tables_of(examples, [prediction]))


def word_errors(gold: str, predicted: str, scores=()) -> TableRows:
    examples = [replace(SENTENCE, tags=tuple(gold))]
    prediction = TokenPrediction(7, WORDS, tuple(predicted), scores)
    return analyze_predictions(TYPES["plain tags"].tables_of(examples, [prediction])).errors


def text_errors(form: str, gold: list, predictions: list, texts=TEXTS) -> TableRows:
    examples = [replace(text, label=label) for text, label in zip(texts, gold, strict=False)]
    return analyze_predictions(TYPES[form].tables_of(examples, predictions)).errors


def test_a_boundary_error_with_its_sentence():
    gold = [Span(0, 2, "PER"), Span(3, 5, "LOC")]
    found = analysis_of_spans(gold, [Span(0, 2, "PER"), Span(4, 5, "LOC")], 0.5, 0.75)
    (error,) = analysis_dict(found, 1)["examples"]["boundary"]
    assert error == {
        "category": "boundary",
        "id": 7,
        "where": "a.conll:3",
        "gold": {"start": 3, "end": 5, "label": "LOC", "text": "New York"},
        "predicted": {"start": 4, "end": 5, "label": "LOC", "text": "York"},
        "confidence": 0.75,
        "text": "Ana Lima saw New York",
    }


drawn = st.lists(
    st.builds(
        lambda start, length, label: Span(start, min(5, start + length), label),
        st.integers(0, 4),
        st.integers(1, 3),
        st.sampled_from("AB"),
    ),
    max_size=5,
)


@given(drawn, drawn)
def test_every_wrong_span_is_in_one_error(gold: list[Span], predicted: list[Span]):
    found = analysis_of_spans(gold, predicted).errors
    for side, spans, other in (("gold", gold, predicted), ("predicted", predicted, gold)):
        sides = [error[side] for error in found]
        there = [Span(r["start"], r["end"], r["label"]) for r in sides if r is not None]
        assert sorted(there) == sorted(set(spans) - set(other))
    assert {error["category"] for error in found} <= {*CATEGORIES[1:]}  # all but the right ones
    assert sum(count_categories(found).values()) == len(found)


def test_words():
    found = word_errors("NNVNN", "NVVDV", (0.9, 0.8, 1.0, 0.6, 0.95))
    assert count_categories(found) == {"N taken for V": 2, "N taken for D": 1}
    assert [m["gold"]["text"] for m in found] == ["Lima", "New", "York"]


def test_labels_sets_and_numbers():
    answers = zip("aab", (0.9, 0.6, 0.7), strict=True)
    found = text_errors("label", ["a", "b", "a"], [TextPrediction(0, *each) for each in answers])
    assert [(m["category"], m["example"], m["confidence"]) for m in found] == [
        ("b taken for a", 1, 0.6),
        ("a taken for b", 2, 0.7),
    ]
    answer = TextPrediction(0, ("y", "z"), scores={"x": 0.2, "y": 0.9, "z": 0.6})
    found = text_errors("labels", [("x", "y")], [answer])
    assert [(m["category"], m["gold"], m["predicted"], m["confidence"]) for m in found] == [
        ("miss", "x", None, pytest.approx(0.8)),
        ("false positive", None, "z", 0.6),
    ]
    numbers = [TextPrediction(0, number) for number in (1.5, 0.0, 3.0)]
    found = text_errors("number", [1.0, 2.0, 3.0], numbers)
    assert [m["example"] for m in found] == [1, 0, 2]
    assert [m["confidence"] for m in found] == [None, None, None]


def test_an_answer_that_was_left_out_lowers_no_precision():
    answers = [TextPrediction(0, "a", 0.9), TextPrediction(1, None, 0.3, decided={"withheld": "a"})]
    examples = [replace(text, label=label) for text, label in zip(TEXTS[:2], "ab", strict=True)]
    tables = TYPES["label"].tables_of(examples, answers)
    scores = {name: tables.type.metrics[name].score(tables) for name in ("accuracy", "micro_f1")}
    assert scores == {"accuracy": 0.5, "micro_f1": pytest.approx(2 / 3)}


def test_abstaining_is_a_category_and_a_column_of_confusions():
    answers = [
        TextPrediction(0, "a", 0.9),
        TextPrediction(1, None, 0.3, decided={"withheld": "a"}),
        TextPrediction(2, None),  # of a blank text
    ]
    examples = [replace(text, label=label) for text, label in zip(TEXTS, "aba", strict=True)]
    analysis = analyze_predictions(TYPES["label"].tables_of(examples, answers))
    none = {"(abstained)": 0, "(blank text)": 0}
    assert analysis.tables["confusion"] == [
        {"gold": "a", "predicted": {"a": 1, "b": 0} | none | {"(blank text)": 1}},
        {"gold": "b", "predicted": {"a": 0, "b": 0} | none | {"(abstained)": 1}},
    ]
    assert not analysis.tables["confused"]
    assert [error["category"] for error in analysis.errors] == ["abstained", "blank text"]
    question = ChoiceQuestion(0, "Where?", None, 1, "a:0", choices=("x", "y"))
    choice = ChoicePrediction(0, None, "", (0.6, 0.4), decided={"withheld": 0})
    (error,) = analyze_predictions(TYPES["choice"].tables_of([question], [choice])).errors
    assert error["category"] == "abstained"


@pytest.mark.parametrize(
    ("name", "schemes"), [("plain tags", (None, None)), ("tags", ("BIO",) * 2)]
)
def test_words_keep_their_probabilities_if_the_model_abstains(name: str, schemes: tuple):
    gold, tags = ("B-P", "I-P", "O", "B-L", "O"), ("B-P", "I-P", "O", "O", "B-L")
    spans = (Span(0, 2, "P"), Span(4, 5, "L")) if schemes[0] else None
    answer = TokenPrediction(7, WORDS, tags, (0.9, 0.4, 0.8, 0.7, 0.6), spans=spans)
    answer = replace(answer, span_scores=(0.5, 0.6) if spans else ())
    examples = [replace(SENTENCE, tags=gold)]
    before, after = (
        analyze_predictions(TYPES[name].tables_of(examples, [prediction], schemes=schemes))
        for prediction in (answer, Decisions(confidence=0.65).apply(answer))
    )
    assert before.calibration_error == after.calibration_error
    assert before.scores != after.scores
    if schemes[0] is None:
        assert before.tables["risk"] == after.tables["risk"]
        left_out = [error for error in after.errors if error["category"] == "abstained"]
        assert [(e["predicted"], e["confidence"]) for e in left_out] == [(None, 0.4), (None, 0.6)]
