"""Types of predictions: lines give back what was written, and nobody else asks for a kind."""

from __future__ import annotations

import ast
import copy
import json
import math
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finetune import types
from finetune.evaluation.baselines import degenerate
from finetune.evaluation.metrics import score
from finetune.evaluation.prediction_types import (
    DEFAULT_METRICS,
    KEYS,
    TYPES,
    score_limits,
)
from finetune.evaluation.predictions import tables_of_rows, to_row
from finetune.registry import PREDICTION_TYPES
from finetune.types import Example, Span, TextExample, TokenExample
from tests.small_data import write_jsonl
from tests.test_layers import MODULES, ROOT, tree

PER, LOC = Span(0, 1, "PER"), Span(2, 3, "LOC")
LIVES = types.Relation(PER, LOC, "lives")
WORDS = ("Ana", "in", "Oslo")
SENTENCE = TokenExample(0, WORDS, (PER, LOC), ("B-PER", "O", "B-LOC"), relations=(LIVES,))
TEXT = TextExample(0, "Where?", "In Oslo.", "a")
QUESTION = types.Question(0, "Where?", "In Oslo.", answers=(types.Answer(3, "Oslo"),))
OSLO = types.FoundAnswer(3, 7, "Oslo", 0.75)
MASKED = {"losses": (0.5, 0.25)}
WRITTEN: dict[str, tuple[Example, types.Prediction]] = {
    "label": (TEXT, types.TextPrediction(0, "a", 0.75, {"a": 0.75, "b": 0.25}, "a")),
    "a blank text": (TEXT, types.TextPrediction(0, None)),
    "labels": (
        replace(TEXT, label=("a",)),
        types.TextPrediction(0, ("a", "b"), None, {"a": 1, "b": 1}),
    ),
    "number": (replace(TEXT, label=1.5), types.TextPrediction(0, 2.5)),
    "choice": (
        types.ChoiceQuestion(0, "Where?", "In Oslo.", 0, choices=("x", "y")),
        types.ChoicePrediction(0, 1, "y", (0.25, 0.75)),
    ),
    "tags": (SENTENCE, types.TokenPrediction(0, WORDS, ("O", "O", "B-LOC"), (0.5, 0.25, 1.0))),
    "spans": (SENTENCE, types.SpanPrediction(0, WORDS, (LOC,), (0.5,))),
    "relations": (SENTENCE, types.RelationPrediction(0, WORDS, (PER, LOC), (LIVES,), (0.5,))),
    "answers": (QUESTION, types.AnswerPrediction(0, OSLO, 0.75, 0.25, (OSLO,))),
    "no answer": (QUESTION, types.AnswerPrediction(0, None, 0.75, 0.75, (OSLO,))),
    "subwords": (TEXT, types.MaskedPrediction(0, ("a", "b"), gold=("a", "c"), **MASKED)),
    "next sentences": (
        TEXT,
        types.MaskedPrediction(
            0, ("a",), gold=("b",), losses=(1.0,), boundary_losses=(0.5,), follows_score=0.25
        ),
    ),
}
"""An example and its prediction of each type."""


@pytest.mark.parametrize("name", WRITTEN)
def test_a_line_gives_back_the_prediction_and_its_gold(name: str):
    example, prediction = WRITTEN[name]
    row = json.loads(json.dumps(to_row(prediction, example)))
    type = TYPES[KEYS[next(key for key in KEYS if key in row)]]
    read = type.gold_of_row(0, "p.jsonl:1", row)
    again = type.parse(row, "p.jsonl:1", read)
    if isinstance(prediction, types.RelationPrediction):
        prediction = replace(prediction, spans=())  # which are those of the example
    assert again == prediction
    if not isinstance(prediction, types.MaskedPrediction):
        assert type.gold(read) == type.gold(example) and read.inputs == example.inputs
    if prediction != types.TextPrediction(0, None):
        tables = tables_of_rows(type, [(row, "p.jsonl:1")], [read], files=("p.jsonl",) * 2)
        fields = {"schemes": tables.schemes} if name == "tags" else {"labels": tables.labels}
        expected = tables.type.tables_of([example], [prediction], **fields)
        assert score(tables) == score(expected) and (name == tables.type.name or " " in name)


@pytest.mark.parametrize("name", WRITTEN)
def test_examples_and_predictions_are_values(name: str):
    for value in WRITTEN[name]:
        again = pickle.loads(pickle.dumps(value))
        assert again == copy.deepcopy(value) == value and len({value, again}) == 1
        assert replace(value, id=1) not in {value}


def test_a_run_whose_predictions_are_all_the_same_is_degenerate(tmp_path: Path):
    said = {
        "label": 'every prediction is "a"',
        "a blank text": "every prediction is null",
        "labels": 'every prediction is ["a", "b"]',
        "number": "every prediction is 2.5",
        "choice": "every prediction is 1",
        "answers": 'every prediction is "Oslo"',
        "no answer": 'every prediction is "no answer"',
        "next sentences": 'every prediction is "a"',
    }
    nothing = {"spans": "no spans at all", "relations": "no relations at all"}
    for name, (example, prediction) in WRITTEN.items():
        path = tmp_path / "predictions.test.jsonl"
        write_jsonl(path, [to_row(prediction, example)] * 3)
        found = list(degenerate(tmp_path, {"test": {}}, {}))
        assert found == ([f"test: {said[name]}"] if name in said else []), name
        if name in nothing:
            empty = {"spans": (), "scores": ()} | ({"relations": ()} if name == "relations" else {})
            write_jsonl(path, [to_row(replace(prediction, **empty), example)] * 3)
            assert list(degenerate(tmp_path, {"test": {}}, {})) == [f"test: {nothing[name]}"]


def test_limits_of_scores():
    for metric in ("accuracy", "accuracy_level:1", "span_f1_length:5+", "f1:a", "ece_uncalibrated"):
        assert score_limits(metric) == (0, 1), metric
    for metric in ("mse", "perplexity"):
        assert score_limits(metric) == (0, math.inf), metric
    assert score_limits("custom") == (-math.inf, math.inf)


def test_kinds_say_their_metrics_as_the_registry_does():
    for name, type in TYPES.items():
        assert type.name == name and DEFAULT_METRICS[name] == type.default in type.metrics
        if name in PREDICTION_TYPES:
            assert (*type.metrics,) == PREDICTION_TYPES[name].metrics
            assert KEYS[name] == name


# --- Nobody else asks for a type ------------------------------------------------------------------

NAMES = {*TYPES, "answer"}
PREDICTIONS = {each.__name__ for each in map(type, (p for _, p in WRITTEN.values()))}
REASONS = {
    "annotation/": "kinds of labels of people, of items of the page and of formats of tools",
    "cli/readable.py": "lines for people",
    "deployment/onnx.py": "whether a model can predict the gold of a file",
    "embeddings/rank.py": "whether a model has a number for a pair of texts",
    "evaluation/predictions.py": "masked subwords hold their own gold",
    "inference/": "forms of predictions in Python and for pipelines of transformers",
    "reporting/analysis.py": "the answers that a page ranks",
    "tasks/soft_losses.py": "a loss for each form of outputs",
}
"""Files and folders that may ask, and why."""


def branches(module: str) -> Iterator[tuple[int, str]]:
    """Comparisons of a prediction type with its name, keys of lines, and classes of predictions."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            constants = {
                each.value
                for side in sides
                for each in ast.walk(side)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            }
            names = {ast.unparse(side).split(".")[-1] for side in sides}
            if names & {"prediction_type", "row"} and constants & NAMES:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            if set(re.findall(r"\w+", ast.unparse(node.args[1]))) & PREDICTIONS:
                yield node.lineno, ast.unparse(node)


def test_only_prediction_types_ask_for_one():
    found: dict[str, list[Any]] = {}
    for module, path in MODULES.items():
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith("evaluation/prediction_types/") and (
            asked := list(branches(module))
        ):
            found[name] = asked
    allowed = tuple(REASONS)
    assert {name: asked for name, asked in found.items() if not name.startswith(allowed)} == {}
