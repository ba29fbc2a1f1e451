"""What to label next: measures of uncertainty, choice of diverse examples, the command."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from finetune.annotation.suggestion import Suggester, central
from finetune.evaluation.kinds import KINDS
from finetune.types import (
    Span,
    SpanPrediction,
    TextExample,
    TextPrediction,
    TokenPrediction,
    UserError,
)
from tests import laboratory as lab
from tests import small_data
from tests.command import run
from tests.small_data import read_jsonl


def test_uncertainty():
    single = TextPrediction(0, "a", 0.6, {"a": 0.6, "b": 0.3, "c": 0.1})
    assert KINDS["label"].uncertainty(single) == pytest.approx(0.7)
    several = TextPrediction(0, ("a",), None, {"a": 0.5, "b": 1.0})
    assert KINDS["labels"].uncertainty(several) == pytest.approx(0.5)
    assert KINDS["number"].uncertainty(TextPrediction(0, 3.5)) is None
    of_tags = KINDS["plain tags"].uncertainty
    tags = [TokenPrediction(0, ("x",) * n, ("O",) * n, (0.5,) * n) for n in (1, 9)]
    assert list(map(of_tags, tags)) == pytest.approx([0.5, 0.5])  # not for length
    assert of_tags(TokenPrediction(0, ("x",), ("O",), (0.0,))) == pytest.approx(1)
    candidates = ((Span(0, 1, "X"), 0.5), (Span(0, 2, "X"), 0.25))
    spans = SpanPrediction(0, ("a", "b"), (), (), candidates=candidates)
    entropy = 1 + -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    assert KINDS["spans"].uncertainty(spans) == pytest.approx(entropy / 2)
    assert KINDS["spans"].uncertainty(SpanPrediction(0, ("a",), (), ())) == 0


def test_central_examples_of_clusters():
    random = np.random.default_rng(0)
    centers = np.eye(3)
    vectors = np.concatenate([centers[[i]].repeat(20, 0) for i in range(3)])
    vectors += random.normal(scale=0.05, size=vectors.shape)
    weights = [1.0] * 20 + [3.0] * 20 + [2.0] * 20
    chosen = central(vectors, weights, 3)
    assert [index // 20 for index in chosen] == [1, 2, 0]  # the heaviest cluster first
    for cluster, index in zip((1, 2, 0), chosen, strict=True):
        own = vectors[cluster * 20 : cluster * 20 + 20]
        mean = own.mean(0)
        assert index % 20 == np.linalg.norm(own - mean, axis=1).argmin()
    assert central(vectors, weights, 3) == chosen
    same = central(np.ones((5, 3)), [1.0] * 5, 3)
    assert len({*same}) == 3


@pytest.mark.parametrize("by", ["both", "uncertainty", "diversity", "random"])
def test_choice(by: str):
    texts = [f"a film number {n % 40}" for n in range(60)] + ["", "  "]
    examples = [TextExample(number, text) for number, text in enumerate(texts)]
    suggester = Suggester(str(lab.trained("classify")))
    rows = {each.id: {"text": each.text} for each in examples}
    found = suggester.suggest(iter(examples), 3, by, seed=3, rows=rows)
    ids = [each.example.id for each in found]
    assert len({*ids}) == 3 and max(ids) < 40  # of equal texts the first
    assert (suggester.num_read, suggester.num_repeated, suggester.num_empty) == (62, 20, 2)
    again = Suggester(str(lab.trained("classify"))).suggest(examples, 3, by, seed=3)
    assert [each.example.id for each in again] == ids
    if by == "uncertainty":
        every = suggester.suggest(examples, 40, by)
        values = [each.uncertainty for each in every]
        assert values == sorted(values, reverse=True)
        assert {*ids} == {each.example.id for each in every[:3]}
        assert {*ids} <= {*rows} and len(rows) < 62  # the values of others are dropped
    if by == "random":
        other = suggester.suggest(examples, 3, by, seed=4)
        assert [each.example.id for each in other] != ids
    assert len(suggester.suggest(examples[:2], 3, by)) == 2


@pytest.mark.parametrize(
    ("kind", "data"),  # softmax is a sentence encoder with a classifier of pairs
    [("nli", "pairs"), ("tag", "entities"), ("ner", "entities"), ("softmax", "related")],
)
def test_command(kind: str, data: str, tmp_path):
    data = lab.data(data) / "train.jsonl"
    output = tmp_path / "next.jsonl"
    arguments = ["suggest", lab.trained(kind), "--file", data, "--number", "4"]
    run(*arguments, "--out", output).ok()
    rows = read_jsonl(output)
    assert len(rows) == 4
    assert all(0 <= row["uncertainty"] for row in rows)
    assert run(*arguments).out == output.read_text("utf-8")
    converted = tmp_path / "tasks.json"
    run("convert", output, "--to", "label-studio", "--out", converted).ok()
    tasks = json.loads(converted.read_text("utf-8"))
    assert all(each["predictions"] and not each["annotations"] for each in tasks)
    assert tasks[0]["data"]["uncertainty"] == rows[0]["uncertainty"]


def test_errors(tmp_path):
    folder = lab.trained("classify", data=lab.data("numbers"))
    suggester = Suggester(str(folder))
    examples = [TextExample(number, f"text {number}", "other") for number in range(5)]
    with pytest.raises(UserError, match="--by both needs labels with probabilities"):
        suggester.suggest(examples, 2)
    assert len(suggester.suggest(examples, 2, "diversity")) == 2
    outcome = run("suggest", folder, "--file", "x", "--number", "0")
    assert "--number must be 1 or more, not 0" in outcome.err


def test_columns_of_other_names_reach_the_page(tmp_path):
    """`suggest` writes roles; predictions keep the names of the file, which `review` takes."""
    model = lab.checkpoint()
    rows = [
        {"Nr": n, "Ticket": f"a {w} room {n}", "text": "long", "Team": w}
        for n, w in enumerate(["bright", "dull"] * 6)
    ]
    data = small_data.write_jsonl(tmp_path / "tickets.jsonl", rows)
    sentence = "Anna saw Oslo, and then Bob."
    spans = [{"start": 0, "end": 4, "label": "PER"}]
    words = [{"Sentence": f"{sentence} {n}", "spans": spans} for n in range(12)]
    texts = small_data.write_jsonl(tmp_path / "sentences.jsonl", words)
    page = tmp_path / "page.html"
    for task, file, name, more in (
        ("classify", data, "Ticket", "label=Team"),
        ("ner", texts, "Sentence", "spans=spans"),
    ):
        out = tmp_path / task
        columns = ["--columns", f"text={name}", more]
        run(task, "--model", model, "--data", file, *columns, "--steps=1", "--out", out).ok()
        chosen, known = tmp_path / f"{task}.jsonl", json.loads(file.read_text().splitlines()[0])
        run("suggest", out, "--file", file, "--number=3", "--out", chosen).ok()
        for row in map(json.loads, chosen.read_text().splitlines()):
            assert name not in row and row["text"].startswith(known[name][:2])
            assert task == "ner" or (row["input_text"] == "long" and row["Nr"] in range(12))
        run("review", chosen, "--out", page).ok()

        kept = tmp_path / f"kept-{task}.jsonl"
        run("predict", out, "--file", file, "--keep-columns", "--out", kept)
        lines = [{**json.loads(line)} for line in kept.read_text().splitlines()]
        for line in lines:
            line.pop("text", None)
        small_data.write_jsonl(kept, lines)
        outcome = run("review", kept, "--out", page)
        assert outcome.code == 2 and ("--columns text=NAME" in outcome.err or task == "ner")
        run("review", kept, "--out", page, "--columns", f"text={name}").ok()
        run("review", kept, "--out", page, "--columns", "text=Tiket").refused(
            "kept-", "no column 'Tiket'"
        )
