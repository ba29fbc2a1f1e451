"""Relations between spans: markers, candidates, decoding, metrics, data and the way from spans."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.config.tasks import NerConfig, RelationsConfig
from finetune.data import DataError, read_tokens
from finetune.data.tokens import read_gold
from finetune.evaluation.prediction_types import scores_of
from finetune.inference.loop import predict
from finetune.inference.predictor import Predictor
from finetune.preprocessing import marked_spans
from finetune.preprocessing.marked_spans import Markers, mark_pair
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.tasks import load_task
from finetune.training.trainer import fit
from finetune.types import Relation, Span, TokenExample, UserError, WindowOutput
from tests import fixtures as fx
from tests.command import run
from tests.small_data import read_jsonl, write_jsonl

ROW: dict[str, Any] = {
    "tokens": "Ana lives in New York and works for IBM".split(),
    "spans": [
        {"start": 0, "end": 1, "label": "PER"},
        {"start": 3, "end": 5, "label": "LOC"},
        {"start": 8, "end": 9, "label": "ORG"},
    ],
    "relations": [
        {"subject": 0, "object": 1, "label": "lives_in"},
        {"subject": 0, "object": 2, "label": "works_for"},
    ],
}
PERSON, CITY, FIRM = Span(0, 1, "PER"), Span(3, 5, "LOC"), Span(8, 9, "ORG")


def config_of(data: Path, **changes: Any) -> RelationsConfig:
    given = {
        "model": str(fx.checkpoint(dropout=0.0)),
        "data": str(data),
        "validation": "none",
        "precision": "fp32",
        "out": str(data.parent / "run"),
    }
    return RelationsConfig(**{**given, **changes})


def task_of(tmp_path: Path, rows: list[dict], **changes: Any):
    write_jsonl(tmp_path / "data" / "train.jsonl", rows)
    return load_task(config_of(tmp_path / "data", **changes), "relations")


# Markers


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize(
    ("subject", "object", "expected"),
    [
        (Span(0, 1, "PER"), Span(3, 5, "LOC"), "@*per* a @ b c #^loc^ d e # f"),
        (Span(3, 5, "LOC"), Span(0, 1, "PER"), "#^per^ a # b c @*loc* d e @ f"),
        (Span(1, 5, "ORG"), Span(3, 5, "LOC"), "a @*org* b c #^loc^ d e # @ f"),
        (Span(1, 2, "LOC"), Span(1, 4, "ORG"), "a #^org^ @*loc* b @ c d # e f"),
        (Span(0, 3, "ORG"), Span(2, 5, "LOC"), "@*org* a b #^loc^ c @ d e # f"),
        (Span(5, 6, "LOC"), Span(5, 6, "ORG"), "a b c d e @*loc* #^org^ f # @"),
        (Span(0, 1, "A_b"), Span(1, 2, "LOC"), "@*A b* a @ #^loc^ b # c d e f"),
    ],
)
def test_markers_surround_the_spans(family: str, subject, object, expected: str):
    """Nested, overlapping and equal spans too; the marks before them represent them."""
    tokenizer = SubwordTokenizer.from_pretrained(fx.checkpoint(family, dropout=0.0), words=True)
    markers = Markers(tokenizer)
    words = tokenizer.word_subwords([["a", "b", "c", "d", "e", "f"]])[0]
    ids, represents, num_cut = mark_pair(words, subject, object, markers, 99)
    decoded = tokenizer.backend.decode(ids, skip_special_tokens=False)
    assert "".join(decoded.split()).lower() == "".join(expected.split()).lower()
    marks = [tokenizer.backend.id_to_token(ids[row]).strip("Ġ▁") for row in represents]
    order = ["@", "#"] if expected.index("@*") < expected.index("#^") else ["#", "@"]
    assert (marks, num_cut) == (order, 0)
    assert [ids[row] == markers.subject_id for row in represents] == [m == "@" for m in order]


def test_long_sentences_keep_the_words_near_the_pair():
    """Both spans are read whatever is between them, and all that is left out is counted."""
    tokenizer = SubwordTokenizer.from_pretrained(fx.checkpoint(dropout=0.0), words=True)
    markers = Markers(tokenizer)
    words = [[5000 + number] for number in range(300)]
    subject, object = Span(20, 22, "PER"), Span(250, 251, "LOC")
    room = markers.size("PER", "LOC") + 9
    ids, represents, num_cut = mark_pair(words, subject, object, markers, room)
    assert len(ids) == room
    assert {5020, 5021, 5250} <= {*ids}
    kept = [id - 5000 for id in ids if id >= 5000]
    assert kept == sorted(kept)
    assert max(min(abs(w - 20), abs(w - 21), abs(w - 250)) for w in kept) <= 3
    assert num_cut == 300 - 9
    wide = Span(0, 300, "PER")
    ids, represents, num_cut = mark_pair(words, wide, object, markers, room)
    assert len(ids) <= room and len(represents) == 2


def test_no_pair_is_dropped_and_max_length_holds(tmp_path: Path):
    far = {
        **ROW,
        "tokens": [*ROW["tokens"][:6], *["so"] * 80, *ROW["tokens"][6:]],
        "spans": [*ROW["spans"][:2], {"start": 88, "end": 89, "label": "ORG"}],
    }
    task, data = task_of(tmp_path, [far], max_length=40)
    encoded = task.encode(data.splits["train"])
    assert [len(row) for row in encoded] == [2]
    assert max(encoded.sequences.lengths) <= 40
    assert encoded.num_cut > 50
    tight, data = task_of(tmp_path, [far], max_length=12)
    with pytest.raises(UserError, match=r"train\.jsonl:1: --max-length 12 has no room"):
        tight.encode(data.splits["train"])


def test_context_is_read_around_the_sentence(tmp_path: Path):
    rows = [
        {"tokens": ["so", "dog"], "spans": [], "relations": [], "document": "d"},
        {**ROW, "document": "d"},
        {"tokens": ["dog", "so"], "spans": [], "relations": [], "document": "d"},
    ]
    task, data = task_of(tmp_path, rows, context="1")
    (example,) = data.splits["train"]
    plain, _ = task_of(tmp_path, rows)
    ((first, _),), ((alone, _),) = task.encode([example]), plain.encode([example])
    words = task.tokenizer.word_subwords([["dog", "dog"]])[0]
    assert [len(word) for word in words] == [1, 1]
    start, *inside, end = alone.input_ids
    assert first.input_ids == [start, *words[0], *inside, *words[1], end]
    marks = [[one.input_ids[row] for row in one.word_starts[:2]] for one in (first, alone)]
    assert marks[0] == marks[1] and marks[0][0] == task.model().config.subject_id


# Candidates and decoding


def test_pairs_of_types_that_are_never_related_are_not_classified(tmp_path: Path):
    unrelated = {**ROW, "spans": ROW["spans"][:1], "relations": []}
    task, data = task_of(tmp_path, [ROW, unrelated])
    assert "1 sentence of train without a pair to classify left out" in data.notes
    assert "train: 2 of 6 ordered pairs of spans classified" in data.notes
    assert task.state.related == {"LOC": [], "ORG": [], "PER": ["LOC", "ORG"]}
    every, _ = task_of(tmp_path, [ROW, unrelated], pairs="all")
    other = TokenExample(0, tuple(ROW["tokens"]), (PERSON, Span(3, 5, "NEW")), where="f:1")
    for made, example, expected in (
        (task, data.splits["train"][0], 2),
        (every, data.splits["train"][0], 6),
        (task, other, 2),
    ):
        assert [len(row) for row in made.encode([example])] == [expected]


def test_two_spans_are_related_in_the_more_probable_direction(tmp_path: Path):
    mutual = [*ROW["relations"], {"subject": 1, "object": 0, "label": "lives_in"}]
    one, data = task_of(tmp_path, [ROW], pairs="all")
    both, _ = task_of(tmp_path, [{**ROW, "relations": mutual}], pairs="all")
    assert (one.state.both, both.state.both) == (False, True)
    example = data.splits["train"][0]
    pairs = [(s, o) for s in example.spans for o in example.spans if s != o]
    values = {
        pairs.index((PERSON, CITY)): (0.1, 0.7, 0.2),
        pairs.index((CITY, PERSON)): (0, 0.8, 0.2),
    }

    outputs = [WindowOutput(n, np.array(values.get(n, (0.9, 0.05, 0.05)))) for n in range(6)]
    assert one.postprocess(example, outputs).relations == (Relation(CITY, PERSON, "lives_in"),)
    assert len(both.postprocess(example, outputs).relations) == 2


def test_sentences_without_pairs_have_a_prediction(tmp_path: Path):
    task, data = task_of(tmp_path, [ROW])
    words = tuple(ROW["tokens"])
    examples = [
        TokenExample(5, words, ()),
        replace(data.splits["train"][0], id=3),
        TokenExample(4, words, (PERSON,)),
        TokenExample(9, (), ()),
    ]
    found = predict(task, task.model().eval(), examples)
    assert [(each.id, each.words) for each in found] == [(e.id, e.words) for e in examples]
    assert [each.spans for each in found] == [e.spans for e in examples]
    assert not any(each.relations for each in predict(task, task.model(), examples[::2]))
    with pytest.raises(UserError, match="x:7: there are no `spans`"):
        task.encode([TokenExample(0, words, where="x:7")])


# Metrics


def test_metrics_are_those_of_counting_by_hand():
    chance = random.Random(3)
    spans = [Span(s, s + w, label) for s in range(3) for w in (1, 2) for label in "AB"]

    def drawn() -> tuple[Relation, ...]:
        return tuple(
            Relation(*chance.sample(spans, 2), chance.choice("xyz"))
            for _ in range(chance.randint(0, 9))
        )

    gold = [drawn() for _ in range(40)]
    predicted = [tuple(r for r in g if chance.random() < 0.5) + drawn() for g in gold]
    found = scores_of("relations", gold, predicted)

    def f1(key, label=None) -> float:
        right = total = 0
        for g, p in zip(gold, predicted, strict=True):
            sides = [{key(r) for r in side if label in (None, r.label)} for side in (g, p)]
            right += 2 * sum(item in sides[1] for item in sides[0])
            total += len(sides[0]) + len(sides[1])
        return right / total

    assert found["relation_f1_strict"] == pytest.approx(f1(lambda r: r))
    loose = f1(lambda r: (r.subject[:2], r.object[:2], r.label))
    assert found["relation_f1"] == pytest.approx(loose)
    assert loose > found["relation_f1_strict"]
    by_label = {name: f1(lambda r: r, name) for name in "xyz"}
    assert {name: found[f"relation_f1_strict:{name}"] for name in "xyz"} == pytest.approx(by_label)
    assert found["relation_f1_macro"] == pytest.approx(sum(by_label.values()) / 3)
    assert scores_of("relations", [()], [()])["relation_f1_strict"] == 0.0


# Data


def test_relations_of_words_and_of_characters(tmp_path: Path):
    """Also in the form of SpERT; words of a text are split where its spans end."""
    text = "anti-CD3 binds CD3-beta"
    rows = [
        {
            "text": text,
            "spans": [
                {"start": 5, "end": 8, "label": "GENE"},
                {"start": 15, "end": 18, "label": "GENE"},
            ],
            "relations": [{"subject": 1, "object": 0, "label": "same"}],
        },
        {
            "tokens": ["a", "b"],
            "entities": [{"start": 1, "end": 2, "type": "X"}, {"start": 0, "end": 1, "type": "Y"}],
            "relations": [{"head": 0, "tail": 1, "type": "r"}],
        },
    ]
    for number, row in enumerate(rows):
        write_jsonl(tmp_path / f"{number}" / "train.jsonl", [row])
    (one,) = read_tokens(tmp_path / "0", relations=True).splits["train"]
    ((subject, object, label),) = one.relations
    chars = [text[one.offsets[s.start][0] : one.offsets[s.end - 1][1]] for s in (subject, object)]
    assert (chars, label, one.misaligned) == (["CD3", "CD3"], "same", ())
    assert subject.start > object.start and {subject, object} == {*one.spans}
    (two,) = read_tokens(tmp_path / "1", relations=True).splits["train"]
    assert two.relations == (Relation(Span(1, 2, "X"), Span(0, 1, "Y"), "r"),)
    assert read_tokens(tmp_path / "1").splits["train"][0].relations is None


@pytest.mark.parametrize(
    ("relations", "message"),
    [
        ([{"subject": 0, "object": 3, "label": "r"}], "names span 3, but the row has 3 spans"),
        ([{"subject": -1, "object": 1, "label": "r"}], "names span -1"),
        ([{"subject": 1, "object": 1, "label": "r"}], "is from span 1 to itself"),
        ([{"subject": 0, "object": 1}], "is not a relation: write"),
        ([{"subject": "0", "object": 1, "label": "r"}], "is not a relation"),
        ([[0, 1, "r"]], "is not a relation"),
        ("none", "must be a list of relations"),
    ],
)
def test_bad_relations_name_their_line(tmp_path: Path, relations: Any, message: str):
    write_jsonl(tmp_path / "train.jsonl", [ROW, {**ROW, "relations": relations}])
    with pytest.raises(DataError, match=rf"train\.jsonl:2: .*{message}"):
        read_tokens(tmp_path, relations=True)


def test_data_without_relations_are_refused(tmp_path: Path):
    for rows, message in (
        ([{**ROW, "relations": []}], "the training data have no relation"),
        ([{**ROW, "relations": None}], "no sentence of train has relations"),
    ):
        with pytest.raises(UserError, match=message):
            task_of(tmp_path, rows)
    twice = [*ROW["relations"], {"subject": 0, "object": 1, "label": "born_in"}]
    task, data = task_of(tmp_path, [{**ROW, "relations": twice}])
    assert any("several relations of one pair" in note for note in data.notes)
    labels = [
        task.state.labels[row.target["label"][0] - 1]
        for row in task.encode(data.splits["train"])[0]
    ]
    assert labels == ["born_in", "works_for"]


# The way from text to relations


def test_entities_of_a_model_then_their_relations(tmp_path: Path):
    """Two commands; a missed entity counts its relations as missed."""
    common = {
        "model": str(fx.checkpoint(dropout=0.0)),
        "data": str(fx.data("relations")),
        "precision": "fp32",
    }
    settings = {**common, "steps": 2, "eval_every": 2, "batch_size": 10, "lr": 5e-3}
    entities, relations = tmp_path / "entities", tmp_path / "relations"
    fit(*load_task(config := NerConfig(**settings, out=str(entities)), "ner"), config)
    config = RelationsConfig(**settings, out=str(relations))
    scores = fit(*load_task(config, "relations"), config).metrics["test"]
    gold = fx.data("relations") / "test.jsonl"
    run("predict", entities, "--file", gold, "--out", tmp_path / "spans.jsonl").ok()
    kept = ("--keep-columns", "--out", tmp_path / "kept.jsonl")  # with the relations of gold
    run("predict", entities, "--file", gold, *kept).ok()
    for source, output in (
        ("spans.jsonl", "found.jsonl"),
        ("kept.jsonl", "same.jsonl"),
        (gold, "given.jsonl"),
    ):
        run("predict", relations, "--file", tmp_path / source, "--out", tmp_path / output).ok()
    found, same = (read_jsonl(tmp_path / f"{name}.jsonl") for name in ("found", "same"))
    assert [row["relations"] for row in found] == [row["relations"] for row in same]
    given = json.loads(run("score", tmp_path / "given.jsonl", gold, "--format", "json").out)
    assert given["relation_f1_strict"] == scores["relation_f1_strict"]
    rows = read_jsonl(gold)
    lost = [row | {"spans": row["spans"][:1], "relations": []} for row in rows]
    write_jsonl(tmp_path / "lost.jsonl", lost[:3] + rows[3:])
    missed = json.loads(run("score", tmp_path / "lost.jsonl", gold, "--format", "json").out)
    rates = [missed[f"relation_{rate}_strict"] for rate in ("precision", "recall")]
    assert rates == pytest.approx([1.0, 6 / 9])
    assert "By relation" in run("report", relations, "--format", "table").out
    spans = Predictor(entities).predict(["Ana lives in Oslo and saw Quito"])
    (found,) = Predictor(relations).predict(spans)
    assert found.text == "Ana lives in Oslo and saw Quito" and found.spans == spans[0].spans
    assert [e.spans for e in read_gold(tmp_path / "found.jsonl")]
    for command in (
        ["export", relations, "--out", tmp_path / "onnx"],
        ["serve", relations],
        ["distill", relations, "--model", "minilm"],
    ):
        refused = run(*command)
        assert refused.code == 2 and "relations" in refused.err and refused.err.count("\n") == 1


def test_words_of_predictions_may_be_fewer_than_those_of_gold(tmp_path: Path):
    """Gold words are split where gold spans end, those of predicted spans are not."""
    gold = {
        "text": "Ana of anti-CD3 and Oslo",
        "relations": [],
        "spans": [
            {"start": 7, "end": 11, "label": "X"},
            {"start": 0, "end": 3, "label": "X"},
            {"start": 20, "end": 24, "label": "Y"},
            {"start": 13, "end": 15, "label": "Y"},
        ],
    }
    gold["relations"] = [{"subject": 1, "object": 2, "label": "r"}]
    write_jsonl(tmp_path / "gold.jsonl", [gold])
    words = ["Ana", "of", "anti", "-", "CD3", "and", "Oslo"]
    spans = [
        {"start": 0, "end": 1, "label": "X"},
        {"start": 6, "end": 7, "label": "Y"},
        {"start": 2, "end": 5, "label": "Y"},
    ]
    related = [{"subject": 0, "object": o, "label": "r", "score": 0.9 - o / 10} for o in (1, 2)]
    found = {"words": words, "spans": spans, "relations": related}
    write_jsonl(tmp_path / "found.jsonl", [found])
    scored = run("score", tmp_path / "found.jsonl", tmp_path / "gold.jsonl", "--json")
    scores = json.loads(scored.out)
    assert (scores["relation_precision_strict"], scores["relation_recall_strict"]) == (0.5, 1.0)
    shown = run(
        "report", tmp_path / "found.jsonl", "--gold", tmp_path / "gold.jsonl", "--format", "json"
    ).out
    assert "Ana (X) → anti - C D3 (Y)" in shown
    write_jsonl(tmp_path / "found.jsonl", [found | {"words": [*words[:-1], "Osli"]}])
    outcome = run("score", tmp_path / "found.jsonl", tmp_path / "gold.jsonl")
    assert "7 words for the 8 words" in outcome.err


def test_a_vocabulary_without_punctuation_has_no_markers(monkeypatch: pytest.MonkeyPatch):
    """As one that `finetune vocabulary` trains on normalized text."""
    tokenizer = SubwordTokenizer.from_pretrained(fx.checkpoint(dropout=0.0), words=True)
    monkeypatch.setattr(marked_spans, "MARKS", "@#*")
    with pytest.raises(UserError, match=r"lacks punctuation .* \(four of @ # \*\): choose another"):
        Markers(tokenizer)
