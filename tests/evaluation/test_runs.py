"""Scoring any system's predictions against gold: forms, order, schemes, and what is refused."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from finetune.data import DataError, read_tokens
from finetune.evaluation.custom_metrics import CustomMetric
from finetune.evaluation.decisions import SetRule
from finetune.evaluation.decisions.costs import by_cost, with_costs
from finetune.evaluation.decisions.label_thresholds import LabelProbabilities
from finetune.evaluation.decisions.sets import table_of_sets
from finetune.evaluation.metrics import score
from finetune.evaluation.prediction_types import TYPES
from finetune.evaluation.predictions import GoldSource, align_runs, notes_on, to_row
from finetune.types import Span, SpanPrediction, TokenExample, TokenPrediction, UserError
from tests.command import run
from tests.runs import score_predictions
from tests.small_data import write_jsonl


def scored(folder: Path, predictions: list[dict], gold: list[dict], **settings) -> dict[str, float]:
    answers = write_jsonl(folder / "answers.jsonl", predictions)
    return score_predictions(answers, str(write_jsonl(folder / "gold.jsonl", gold)), **settings)


def save_model(folder: Path, names: list[str], **extra) -> None:
    (folder / "best").mkdir()
    saved = {"labels": names, "config": {}, "extra": extra}
    (folder / "best" / "finetune.json").write_text(json.dumps(saved))


def labels(*names) -> list[dict]:
    return [{"label": name} for name in names]


def texts(*names) -> list[dict]:
    return [{"text": "a b", "label": name} for name in names]


ACCURATE: dict[str, tuple[tuple, tuple, float]] = {
    "names": (tuple("abba"), tuple("abaa"), 3 / 4),
    "other names of NLI": (
        ("ENTAILMENT", "Contradictory", "n"),
        ("entailment", "contradiction", "neutral"),
        1,
    ),
    "names of NLI on both sides or on neither": (tuple("nesn"), tuple("neen"), 3 / 4),  # compass
    "names of numbers": (("1", "0"), (1, 0), 1),
    "minus one": (("-1", "0", "1", "0"), (-1, 0, 1, -1), 3 / 4),
    "truth values": ((True, False, True), (True, False, False), 2 / 3),
    "rows without gold": (tuple("aba"), ("a", "b", None), 1),
    "no prediction without gold": (tuple("ab"), ("a", "b", None), 1),
}


@pytest.mark.parametrize("name", ACCURATE)
def test_labels(tmp_path: Path, name: str):
    answers, gold, accuracy = ACCURATE[name]
    scores = scored(tmp_path, labels(*answers), texts(*gold))
    assert scores["accuracy"] == pytest.approx(accuracy) and {"macro_f1", "matthews"} <= {*scores}


def test_a_label_named_none_is_not_a_withheld_answer(tmp_path: Path):
    scores = {"None": 0.25, "a": 0.75}
    row = {"label": None, "withheld": "a", "scores": scores, "gold": "a"}
    rows = [row, {"label": "None", "scores": scores, "gold": "None"}]
    (tables,) = align_runs([write_jsonl(tmp_path / "answers.jsonl", rows)])
    assert math.isnan(tables.items.score[0]) and tables.items.score[1] == 0.25


@pytest.mark.parametrize("answers", [(1, 0, 1, 1), ("1", "0", "1", "1"), (1.0, 0.0, 1.0, 1.0)])
@pytest.mark.parametrize("gold", [(1, 0, 0, 1), ("1", "0", "0", "1")])
def test_whole_numbers_are_classes_as_in_training(tmp_path: Path, answers: tuple, gold: tuple):
    scores = scored(tmp_path, labels(*answers), texts(*gold))
    assert scores == scored(tmp_path, labels(*"1011"), texts(*"1001"))
    assert scores["accuracy"] == 0.75 and scores["f1"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    "gold, answers",
    [
        ((1.5, 2, 3), (1, 2, 3)),  # gold has a decimal point
        ((1, 2, 3), (1, 2.5, 3)),  # an answer has
        ((1.0, 2.0, 3.0), (1, 2, 3)),  # as floats of training data
    ],
)
def test_measures(tmp_path: Path, gold: tuple, answers: tuple):
    assert scored(tmp_path, labels(*answers), texts(*gold))["pearson"] > 0.8


def test_cosines_have_the_names_of_a_sentence_run(tmp_path: Path):
    answers = [{"label": value, "similarity": "cosine"} for value in (0.1, 0.2, 0.3)]
    scores = scored(tmp_path, answers, texts(1.5, 2.5, 4.5))
    assert {*scores} == {"spearman_all", "pearson_all"}


@pytest.mark.parametrize("column, form", [("1.5 2 3", "mse"), ("1 2 3", "accuracy")])
def test_gold_in_tables_is_text(tmp_path: Path, column: str, form: str):
    rows = "".join(f"a\t{value}\n" for value in column.split())
    (tmp_path / "gold.tsv").write_text(f"text\tlabel\n{rows}")
    answers = write_jsonl(tmp_path / "answers.jsonl", labels(1, 2, 3))
    assert form in score_predictions(answers, str(tmp_path / "gold.tsv"))


def test_blank_texts_are_wrong_and_no_class(tmp_path: Path):
    scores = scored(tmp_path, labels("a", "b", None), texts("a", "b", "b"))
    assert scores["accuracy"] == pytest.approx(2 / 3) and "f1" in scores
    assert scores["macro_f1"] == pytest.approx((1 + 2 / 3) / 2)
    with pytest.raises(DataError, match=r"gold\.jsonl:2: the text is blank, and so without a num"):
        scored(tmp_path, labels(1.5, None), texts(1.5, 2.5))


def test_names_of_labels_agree_next_to_texts_without_a_label(tmp_path: Path):
    """Neither a blank text nor one on which the model abstained is a label of another spelling."""
    answers = [*labels("ENTAILMENT", "CONTRADICTION", None, None), {"label": "NEUTRAL"}]
    answers[3]["withheld"] = "NEUTRAL"
    gold = texts("entailment", "contradiction", "neutral", "neutral", "neutral")
    scores = scored(tmp_path, answers, gold)
    assert scores["accuracy"] == 0.6 and scores["macro_f1"] == pytest.approx((1 + 1 + 1 / 2) / 3)


def test_probabilities_have_the_names_of_gold(tmp_path: Path):
    """Custom metrics compare both; thresholds have the names of the model."""
    names = ("ENTAILMENT", "CONTRADICTION")
    rows = [
        {"label": name, "scores": {name: 0.9, other: 0.1}, "text": "a", "gold": other}
        for name, other in (names, names[::-1])
    ]
    file = write_jsonl(tmp_path / "answers.jsonl", rows)
    (tables,) = align_runs([file])
    gold, probabilities = CustomMetric(len, probabilities=True).sides(tables)
    assert gold == ["contradiction", "entailment"]
    assert [row[label] for label, row in zip(gold, probabilities, strict=True)] == [0.1, 0.1]
    assert table_of_sets(tables, SetRule(0.5, 0.95))[0]["coverage"] == 1
    costs = {name: {name: 0.0, other: 1.0} for name, other in (names, names[::-1])}
    assert score(by_cost(with_costs(tables, costs)))["mean_cost"] == 1
    data = LabelProbabilities.of(tables, names, "ENTAILMENT")
    assert data.scores.tolist() == [[0.9], [0.1]] and data.applies.tolist() == [[False], [True]]


def test_several_labels(tmp_path: Path):
    gold = [{"text": "a", "labels": names} for names in (["x", "y"], [], ["y"])]
    answers = [{"label": names} for names in (["y", "x"], [], ["x"])]
    scores = scored(tmp_path, answers, gold)
    assert scores["subset_accuracy"] == pytest.approx(2 / 3)
    assert scores["micro_f1"] == pytest.approx(2 / 3)
    own = [row | {"scores": {"x": 0.5, "y": 0.5, "z": 0.5}} for row in answers]
    found = scored(tmp_path, own, gold)["macro_f1"]  # of all labels of the model, as in training
    assert found == pytest.approx(scores["macro_f1"] * 2 / 3)


def test_columns(tmp_path: Path):
    gold = [{"text": "a", "stars_given": "5"}]
    assert scored(tmp_path, labels("5"), gold, columns={"label": "stars_given"})["accuracy"] == 1.0


def tagged(*tags: list[str]) -> list[dict]:
    return [{"tokens": ["w"] * len(row), "tags": row} for row in tags]


# --- spans -----------------------------------------------------------------------------------

WORDS = ["Ann", "Lee", "of", "Oslo", "City"]
NESTED = [[0, 2, "PER"], [3, 5, "ORG"], [3, 4, "LOC"]]


def spans(*positions, **more) -> dict:
    values = [{"start": a, "end": b, "label": label, "score": 0.9} for a, b, label in positions]
    return {"id": 0, **more, "spans": values}


NESTED_GOLD = [{"tokens": WORDS, "spans": NESTED}]
FLAT_GOLD = tagged(["B-PER", "I-PER", "O", "B-LOC"])
TEXT, JOINED = "Ann  Lee of Oslo", "Paris-based Anns"
IN_BOTH = {"start": 0, "end": 2, "start_char": 0, "end_char": 8, "label": "PER"}
SCORES: list[tuple[list[dict], list[dict], dict[str, float]]] = [
    *(
        ([{"tags": tags.split()}], FLAT_GOLD, dict.fromkeys(("span_f1_strict", "tag_accuracy"), 1))
        for tags in (
            "B-PER I-PER O B-LOC",
            "B-PER E-PER O S-LOC",  # BIOES against BIO
            "B-PER L-PER O U-LOC",
            "I-PER I-PER O I-LOC",  # IO, as of `tag --scheme IO`
        )
    ),
    (  # a lone I- is a span for conlleval and none for the strict count: not taken for IOB1
        [{"tags": ["I-PER", "I-PER", "O", "B-LOC"]}],
        FLAT_GOLD,
        {"span_f1_conll": 1, "span_f1_strict": 2 / 3, "tag_accuracy": 0.75},
    ),
    (  # spans that nest, against spans and against tags
        [spans(*NESTED[1:], words=WORDS), spans((0, 1, "PER"), words=["x"])],
        [*NESTED_GOLD, {"tokens": ["x"], "spans": []}],
        {"span_precision_strict": 2 / 3, "span_f1_strict": 2 / 3, "span_f1_strict:PER": 0},
    ),
    (
        [{"tags": ["B-PER", "I-PER", "O", "B-ORG", "I-ORG"]}],
        NESTED_GOLD,
        {"span_precision_strict": 1, "span_recall_strict": 2 / 3},
    ),
    (  # tags take precedence over spans
        [{"tags": ["O", "O"], "spans": [[0, 1, "PER"]]}],
        tagged(["B-PER", "O"]),
        {"tag_accuracy": 0.5},
    ),
    *(
        ([answer], [{"text": TEXT, "entities": [[0, 8, "PER"]]}], {"span_f1_strict": 1})
        for answer in (
            spans((0, 2, "PER"), words=TEXT.split()),
            {"spans": [[0, 2, "PER"]]},
            {"spans": [{"start_char": 0, "end_char": 8, "label": "PER"}]},
            {"text": TEXT, "spans": [{"start": 0, "end": 8, "label": "PER"}]},
            {"text": TEXT, "spans": [IN_BOTH]},
        )
    ),
    *(  # spans that end inside a word
        (
            [{"text": JOINED, "spans": answer}],
            [{"text": JOINED, "entities": [[0, 5, "LOC"], [12, 15, "PER"]]}],
            {"span_f1_characters": f1, "span_f1_strict": strict},
        )
        for answer, f1, strict in (
            ([[0, 5, "LOC"], [12, 15, "PER"]], 1, 1),
            ([[0, 5, "LOC"]], 2 / 3, 1),
            ([[0, 5, "LOC"], [12, 16, "PER"]], 0.5, 2 / 3),
            ([[0, 4, "LOC"], [12, 15, "PER"]], 0.5, 0),
        )
    ),
]


@pytest.mark.parametrize(("answers", "gold", "expected"), SCORES)
def test_forms_of_spans(
    tmp_path: Path, answers: list[dict], gold: list[dict], expected: dict[str, float]
):
    scores = scored(tmp_path, answers, gold)
    assert {name: scores[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.conll", "Ann I-PER\nLee I-PER\nof O\nOslo I-ORG\nCity I-ORG\n"),
        ("a.conll", "Ann PER\nLee PER\nof O\nOslo O\nCity O\n\n-DOCSTART- O\n"),
        (
            "a.tsv",
            "1\tAnn\tB-PER\tO\n2\tLee\tI-PER\tO\n3\tof\tO\tO\n4\tOslo\tB-ORG\tB-LOC\n"
            "5\tCity\tI-ORG\tO\n",
        ),
    ],
)
def test_spans_against_tags(tmp_path: Path, name: str, content: str):
    (tmp_path / name).write_text(content)
    answers = write_jsonl(tmp_path / "answers.jsonl", [spans(*NESTED[:1], words=WORDS)])
    scores = score_predictions(answers, str(tmp_path / name))
    assert scores["span_precision_strict"] == 1.0


def test_a_run_keeps_unreachable_gold_in_its_predictions(tmp_path: Path):
    example = TokenExample(
        0,
        ("Paris", "-", "based", "Anns"),
        (Span(0, 1, "LOC"),),
        ("B-LOC", "O", "O", "O"),
        text="Paris-based Anns",
        offsets=((0, 5), (5, 6), (6, 11), (12, 16)),
        misaligned=(Span(12, 15, "PER"),),
    )
    words, found = example.words, (example.spans, (1.0,))
    workdir = {"offsets": example.offsets, "text": example.text}
    tags = TokenPrediction(0, words, example.tags, (1.0,) * 4, *found, **workdir)
    spans = SpanPrediction(0, words, *found, **workdir)
    for prediction in (tags, spans):
        path = write_jsonl(tmp_path / "predictions.test.jsonl", [to_row(prediction, example)])
        found = score(align_runs([path])[0])
        assert found["span_f1_strict"] == 1.0
        assert found["span_f1_characters"] == pytest.approx(2 / 3)


def test_rows_that_a_run_leaves_out(tmp_path: Path):
    gold = [
        {"tokens": ["a"], "spans": [[0, 1, "X"]]},
        {"tokens": [], "spans": []},
        {"tokens": ["b"]},
        {"tokens": ["c"], "spans": []},
    ]
    answers = [spans((0, 1, "X"), words=[word]) for word in "abc"]
    everything = [answers[0], spans(words=[]), *answers[1:]]
    for rows in (everything, answers, [answers[0], answers[2]]):
        assert scored(tmp_path, rows, gold)["span_precision_strict"] == 0.5
    with pytest.raises(ValueError, match="4 examples, but 1 prediction"):
        scored(tmp_path, answers[:1], gold)


REFUSED: list[tuple[list[dict], list[dict], str]] = [
    *(
        ([answer], NESTED_GOLD, message)
        for answer, message in (
            (spans((3, 6, "ORG")), r":1: span 3 to 6 \(ORG\) is empty or outside the 5 words"),
            (spans((3, 3, "ORG")), r":1: span 3 to 3 \(ORG\) is empty"),
            ({"spans": [{"start": 0, "end": 1}]}, ":1: .* is not a span: write"),
            ({"spans": [[0, "1", "X"]]}, ":1: .* is not a span"),
            ({"spans": {"start": 0}}, ":1: .* must be a list of spans"),
            ({"spans": None}, ":1: None must be a list of spans"),
            (spans(words=WORDS[1:]), ":1: 4 words for the 5 words of .*gold.jsonl:1"),
            (spans(words=[*WORDS[:4], "Town"]), ":1: word 4 is 'Town', but 'City' in .*gold.jsonl"),
            (spans(words="Ann"), ":1: words must be a list, not 'Ann'"),
            (
                {"spans": [{"start_char": 0, "end_char": 2, "label": "X"}]},
                "in characters, but .*jsonl:1",
            ),
            ({"text": "A", "spans": []}, "in characters, but .*gold.jsonl:1 has words and no text"),
        )
    ),
    ([spans()], tagged(["NN", "VB"]), "no spans to score against: give spans, or tags that spell"),
    (
        [{"text": "Bob", "spans": []}],
        [{"text": "Ann", "spans": []}],
        "the text differs from .*gold.jsonl:1",
    ),
    ([{"label": "a"}, {"tags": ["O"]}], texts("a", "b"), "each line must have `label`"),
    ([{}], texts("a"), "each line must have `label`"),
    (labels("a", "b"), texts("a"), "1 example, but 2 predictions"),
    (labels("a"), texts("a", "b", None), "3 examples, but 1 prediction"),
    (labels("a"), [{"text": "a", "label": None}], "no row has a label"),
    (labels("a", "b"), texts(4.5, 1.0), "labels are numbers, but the predictions are names"),
    (labels("1.5", "2.5"), texts(1.5, 1.0), "names such as '2.5': .* numbers without quotes"),
    (labels(1.0), texts("a"), "labels are not numbers"),
    (labels(0.5, 1), texts("1", "b"), "labels are not numbers"),
    ([{"tags": ["O"]}], tagged(["O", "O"]), ":1: 1 tag for the 2 words of .*:1"),
    ([{"tags": ["O"]}], [{"tokens": ["a"]}], "no gold tags"),
    ([{"tags": "O"}], tagged(["O"]), ":1: tags must be a list"),
    ([{"tags": [None]}], [{"tokens": WORDS, "spans": NESTED}], ":1: tags must be a list"),
    (labels({"a": 1}), texts("a"), ":1: label must be"),
]


@pytest.mark.parametrize(("predictions", "gold", "message"), REFUSED)
def test_refused(tmp_path: Path, predictions: list[dict], gold: list[dict], message: str):
    where = "answers.jsonl" if message.startswith(":") else ""
    with pytest.raises(ValueError, match=where + message):
        scored(tmp_path, predictions, gold)


@pytest.mark.parametrize(
    ("type", "labels", "gold", "unknown"),
    [
        ("label", ["non-toxic", "O"], ["toxic", "O"], "labels that the model lacks .* toxic"),
        ("tags", ["O", "B-X-Y", "I-X-Y"], [["B-X-Y", "B-Y"]], "types that the model lacks .* Y"),
        ("spans", ["B-cell"], [[Span(0, 1, "B-cell"), Span(1, 2, "cell")]], "types .* cell"),
    ],
)
def test_a_part_of_a_name_is_no_label_of_the_model(
    type: str, labels: list[str], gold: list, unknown: str, tmp_path: Path
):
    save_model(tmp_path, labels)
    scheme = {"schemes": ("BIO", "BIO")} if type == "tags" else {}
    tables = TYPES[type].of_values(gold, gold, labels=labels, **scheme)
    (note,) = notes_on(tables, tmp_path)
    assert re.fullmatch(rf"Gold has {unknown} \(1\)\.", note)


def test_every_line_needs_its_gold(tmp_path: Path):
    path = write_jsonl(tmp_path / "p.jsonl", [{"label": "a", "gold": "a"}, {"label": "a"}])
    with pytest.raises(UserError, match="some lines have no gold: name a file of gold"):
        align_runs([path])
    write_jsonl(path, [{"label": "a", "gold": "a"}, {"label": "a", "gold": ""}])
    assert [run.num_without_gold for run in align_runs([path])] == [1]


@pytest.mark.parametrize(("first", "second"), [("I-PER", "I-PER"), ("B-PER", "E-PER")])
def test_gold_in_another_scheme_is_read_as_in_training(tmp_path: Path, first: str, second: str):
    """IO and BMES gold: B B is one tag right of two, as a run that read the gold as BIO says."""
    gold = [{"tokens": ["Ann", "Lee", "ran", "M"], "tags": [first, second, "O", "O"]}]
    if second == "E-PER":
        gold[0] |= {"tags": ["B-PER", "M-PER", "E-PER", "S-PER"]}
        answers, right = [["B-PER", "B-PER", "I-PER", "O"]], 2
    else:
        answers, right = [["B-PER", "B-PER", "O", "O"]], 3
    scores = scored(tmp_path, [{"tags": tags} for tags in answers], gold)
    assert scores["tag_accuracy"] == right / 4


def test_predictions_without_b_have_the_scheme_of_their_model(tmp_path: Path):
    """They look like IO, where an I- begins a span."""
    row = {"words": ["a"], "tags": ["I-X"], "gold": {"tags": ["B-X"]}}
    path = write_jsonl(tmp_path / "p.jsonl", [row])
    assert score(align_runs([path])[0])["span_f1_strict"] == 1
    save_model(tmp_path, [], scheme="BIO")
    assert score(align_runs([path])[0])["span_f1_strict"] == 0


def test_few_functions_lead_from_a_line_to_an_accuracy(tmp_path: Path):
    """Those that docs/development.md names, also for two labels without a positive class."""
    row = {"id": 0, "text": "a", "label": "x", "scores": {"x": 0.75, "y": 0.25}, "gold": "x"}
    path, called = write_jsonl(tmp_path / "p.jsonl", [row, row | {"label": "y"}]), set[Any]()

    def trace(frame: Any, *_: Any) -> None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if re.match(r"finetune\.(data|evaluation|types)", module) and "<" not in name:
            called.add((module, name))

    align_runs([path])  # imports
    sys.setprofile(trace)
    try:
        accuracy = TYPES["label"].metrics["accuracy"].score(align_runs([path])[0])
    finally:
        sys.setprofile(None)
    assert accuracy == 0.5 and len({module for module, _ in called}) <= 5
    assert len(called) <= 18, sorted(called)


# --- Identity, not position ----------------------------------------------------------------------

KEYS = ["q3", "q1", "q2", "q0"]


def with_ids(rows: list[dict], ids: list) -> list[dict]:
    return [{"id": id, **row} for id, row in zip(ids, rows, strict=True)]


@pytest.mark.parametrize("ids", [KEYS, [30, 10, 20, 0]])
def test_predictions_in_another_order_are_aligned_by_id(tmp_path: Path, ids: list):
    gold = with_ids(texts(*"abca"), ids)
    answers = with_ids(labels(*"abca"), ids)[::-1]
    assert scored(tmp_path, answers, gold)["accuracy"] == 1.0
    sentences = [{"tokens": ["w"] * 2, "tags": [tag, "O"]} for tag in ("B-A", "B-B", "O", "O")]
    answers = [{"tags": row["tags"]} for row in sentences]
    answers = with_ids(answers, ids)[::-1]
    assert scored(tmp_path, answers, with_ids(sentences, ids))["span_f1_conll"] == 1.0


def test_row_numbers_in_another_order_are_refused(tmp_path: Path):
    answers = with_ids(labels(*"abca"), [0, 1, 2, 3])
    assert scored(tmp_path, answers, texts(*"abca"))["accuracy"] == 1.0
    with pytest.raises(DataError, match="its ids are in another order than rows"):
        scored(tmp_path, answers[::-1], texts(*"abca"))


@pytest.mark.parametrize(
    "ids, message",
    [
        (["q3", "q1", "q1", "q0"], r"answers.jsonl:3: id 'q1' is also in .*answers.jsonl:2"),
        (["q3", "q1", "q2", "q9"], r"answers.jsonl:4: id 'q9' is not in .*gold.jsonl"),
        (["q3", "q1", "q2"], r"gold.jsonl:4: id 'q0' has no prediction in .*answers.jsonl"),
        (["q3", "q1", None, "q0"], r"answers.jsonl:3: no id, but .*answers.jsonl:1 has one"),
    ],
)
def test_other_ids_are_refused(tmp_path: Path, ids: list, message: str):
    answers = with_ids(labels(*"abca"[: len(ids)]), ids)
    with pytest.raises(UserError, match=message):
        scored(tmp_path, answers, with_ids(texts(*"abca"), KEYS))


def test_repeated_ids_of_gold_are_refused_unless_predictions_repeat_them(tmp_path: Path):
    gold = with_ids(texts(*"abca"), ["d1", "d1", "d2", "d2"])
    same = with_ids(labels(*"abca"), ["d1", "d1", "d2", "d2"])
    assert scored(tmp_path, same, gold)["accuracy"] == 1.0
    with pytest.raises(UserError, match=r"is also in"):
        scored(tmp_path, same[::-1], gold)


def test_rows_without_gold_need_no_prediction(tmp_path: Path):
    gold = with_ids(texts(*"abca"), KEYS)
    gold[1]["label"] = None
    answers = with_ids(labels(*"aca"), ["q3", "q2", "q0"])[::-1]
    assert scored(tmp_path, answers, gold)["accuracy"] == 1.0
    outcome = run("score", tmp_path / "answers.jsonl", tmp_path / "gold.jsonl")
    assert f"Not scored: 1 row of {tmp_path / 'gold.jsonl'} without gold.\n" in outcome.err


def test_runs_in_another_order_are_compared_by_id(tmp_path: Path):
    rows = [row | {"gold": row["label"], "text": "a"} for row in with_ids(labels(*"abca"), KEYS)]
    rows[0]["label"] = "c"
    orders = {"a": rows, "b": rows[::-1]}.items()
    paths = [write_jsonl(tmp_path / f"{name}.jsonl", order) for name, order in orders]
    first, second = align_runs(paths)
    assert first.gold == second.gold and first.predicted == second.predicted
    bare = [row | {"text": "a"} for row in texts(*"abca")]  # without ids: by position of A
    write_jsonl(tmp_path / "gold.jsonl", bare)
    source = GoldSource(gold=str(tmp_path / "gold.jsonl"))
    found = align_runs(paths, source)
    assert found[0].predicted == found[1].predicted and found[0].aligned_by == "position"
    write_jsonl(tmp_path / "gold.jsonl", [*bare[:3], bare[3] | {"text": "another"}])
    with pytest.raises(DataError, match=r"a.jsonl:4: its text is 'a', but 'another' in .*:4: "):
        align_runs(paths, source)


def test_the_output_names_alignment_by_position(tmp_path: Path):
    gold = write_jsonl(tmp_path / "gold.jsonl", with_ids(texts(*"abca"), KEYS))
    answers = write_jsonl(tmp_path / "answers.jsonl", labels(*"abca"))
    outcome = run("score", answers, gold)
    assert outcome.err == "Aligned by position: one of the files has no ids.\n"
    report = ("report", answers, "--gold", gold, "--format")
    assert ", aligned by position\n" in run(*report, "table").out
    write_jsonl(answers, with_ids(labels(*"abca"), KEYS))
    assert run("score", answers, gold).err == ""
    write_jsonl(answers, with_ids(labels(*"bbca"), KEYS))
    assert "q3" in run(*report, "json").out
    write_jsonl(answers, with_ids(labels(*"xxyx"), KEYS))
    save_model(tmp_path, ["x", "y"])
    never = "No gold label is ever predicted: gold has a, b, c; predicted are x, y."
    assert run("score", answers, gold).err == f"{never}\n", "and no second note"


def test_one_of_two_files_holds_the_gold_of_subwords(tmp_path: Path):
    row = {"id": 0, "subwords": ["a"], "gold": ["a"]}
    paths = [write_jsonl(tmp_path / "a.jsonl", [row])]
    row.pop("gold")
    paths.append(write_jsonl(tmp_path / "b.jsonl", [row | {"subwords": ["b"]}]))
    assert [score(run)["mlm_accuracy"] for run in align_runs(paths)] == [1, 0]


# --- Streams are read once -----------------------------------------------------------------------


def piped(path: Path) -> Path:
    """A named pipe with the content of a file."""
    pipe = path.with_name(f"pipe-{path.name}")
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()), daemon=True).start()
    return pipe


def test_standard_input_and_pipes_lose_no_line(tmp_path: Path):
    gold = write_jsonl(tmp_path / "gold.jsonl", texts(*"abca"))
    answers = write_jsonl(tmp_path / "answers.jsonl", labels(*"abca"))
    expected = run("score", answers, gold).out
    assert run("score", "-", gold, stdin=answers.read_bytes()).out == expected
    assert run("score", answers, "-", stdin=gold.read_bytes()).out == expected
    assert run("score", piped(answers), piped(gold)).out == expected


def test_sentence_ids_align_conllu(tmp_path: Path):
    def sentence(name: str, tag: str) -> str:
        return f"# sent_id = {name}\n# text = x\n1\tx\t_\t{tag}" + "\t_" * 6 + "\n\n"

    (gold := tmp_path / "gold.conllu").write_text(sentence("w-1", "NOUN") + sentence("w-2", "VERB"))
    (other := tmp_path / "other.conllu").write_text(sentence("w-2", "VERB") + sentence("w-1", "X"))
    examples = read_tokens(f"train={gold}").splits["train"]
    assert [example.key for example in examples] == ["w-1", "w-2"]
    assert score_predictions(other, str(gold))["accuracy"] == 0.5
    other.write_text(sentence("w-2", "VERB") + sentence("w-3", "X"))
    with pytest.raises(DataError, match="id 'w-3' is not in"):
        score_predictions(other, str(gold))


SPANS: dict = {"words": ["a"], "spans": [], "gold": {"spans": []}}
DAMAGED: list[tuple[dict, str]] = [
    ({"answer": None, "withheld": 3, "gold": [{"text": "a"}]}, "withheld must be an answer, not 3"),
    ({"choice": None, "withheld": "x", "gold": 0}, "withheld must be the number of a choice"),
    (SPANS | {"offsets": [[0]]}, "offsets must be lists of 2 values"),
    (SPANS | {"offsets": []}, "0 offsets for 1 word"),
    (SPANS | {"gold": {"spans": [], "unreachable": [[0, 1]]}}, "unreachable must be lists of 3"),
    (SPANS | {"gold": {"spans": [], "unreachable": 1}}, "unreachable must be lists of 3"),
    ({"words": ["a"], "tags": ["N"], "gold": {"tags": [None]}}, "gold must be a list with one str"),
    ({"senses": ["bank%1:14:00::"], "id": "q", "gold": [1]}, "gold must be a list of names"),
    ({"subwords": ["a"], "gold": 5}, "gold must be a list of names"),
    ({"subwords": ["a"], "gold": ["a", "b"]}, "gold must be a list with one name for each"),
]


@pytest.mark.parametrize(("row", "message"), DAMAGED)
def test_damaged_rows_name_their_line(tmp_path: Path, row: dict, message: str):
    path = write_jsonl(tmp_path / "p.jsonl", [row])
    with pytest.raises(DataError, match=f"p.jsonl:1: .*{message}"):
        align_runs([path])
