"""Scores of subgroups: they sum to the whole and agree with other scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.data.spans import inner_spans
from finetune.evaluation.prediction_types import TYPES, scores_of
from finetune.evaluation.prediction_types.spans import SEEN_ENTITIES, depths
from finetune.evaluation.prediction_types.tags import SEEN_WORDS
from finetune.evaluation.significance import count_metric
from finetune.evaluation.tables import buckets
from finetune.evaluation.training_vocabulary import VOCABULARY_FILE, TrainingVocabulary
from finetune.types import Span, TextExample, TokenExample

SIZE = 12
drawn = st.lists(
    st.builds(
        lambda start, length, label: Span(start, start + length, label),
        st.integers(0, 6),
        st.integers(1, 6),
        st.sampled_from(["PER", "LOC"]),
    ),
    max_size=7,
)
rows = st.lists(
    st.tuples(st.lists(st.sampled_from("abc"), min_size=SIZE, max_size=SIZE), drawn, drawn),
    min_size=1,
    max_size=4,
)


def tables_of(prediction_type: str, words, gold, predicted, train=None) -> dict[str, list[dict]]:
    """The tables of subgroups of an analysis."""
    examples = [TokenExample(0, tuple(each)) for each in words]
    fields = {"examples": examples, "vocabulary": train}
    groupings = TYPES[prediction_type].of_values(gold, predicted, **fields).groupings()
    return {name: each.table(name) for name, each in groupings.items()}


def span_tables(*sides, train=None) -> dict[str, list[dict]]:
    return tables_of("spans", *sides, train=train)


def test_buckets():
    names, order = buckets((0, 1, 2, 10, 11, 50, 51, 10**6), (1, 2, 11, 51))
    assert order == ["1", "2-10", "11-50", "51+"]
    assert names == "1 1 2-10 2-10 11-50 11-50 51+ 51+".split()


@given(drawn)
def test_depth_is_the_longest_chain_around(spans: list[Span]):
    found = depths(spans)
    assert {span for span, depth in found.items() if depth} == inner_spans(spans)

    def chain(span: Span) -> int:
        others = {other for other in spans if other[:2] != span[:2]}
        around = [o for o in others if o.start <= span.start and span.end <= o.end]
        return max(map(chain, around), default=-1) + 1

    assert found == {span: chain(span) for span in set(spans)}


@given(rows)
def test_subgroups_sum_to_the_whole(sentences: list[tuple[list[str], list[Span], list[Span]]]):
    words, gold, predicted = zip(*sentences, strict=True)
    whole = scores_of("spans", gold, predicted)
    correct = sum(len(set(a) & set(b)) for a, b in zip(gold, predicted, strict=True))
    train = TrainingVocabulary.of([TokenExample(0, tuple(words[0]), tuple(gold[0]))])
    found = span_tables(words, gold, predicted, train=train)
    assert {"length", "sentence length", "in training"} <= {*found}
    for name, groups in found.items():
        keys = ("gold", "found", "predicted", "correct")
        sums = {key: sum(group[key] for group in groups) for key in keys}
        assert sums["found"] == sums["correct"] == correct
        assert sums["gold"] == sum(len(set(spans)) for spans in gold)
        assert sums["predicted"] == sum(len(set(spans)) for spans in predicted)
        f1 = 2 * correct / max(1, sums["gold"] + sums["predicted"])
        assert f1 == pytest.approx(whole["span_f1_strict"])
        if name != "depth":
            assert all(group["found"] == group["correct"] for group in groups)


def test_depth_by_hand():
    gold = [[Span(0, 4, "ORG"), Span(1, 2, "LOC"), Span(2, 3, "PER")], [Span(0, 3, "ORG")]]
    predicted = [[Span(0, 4, "ORG"), Span(1, 2, "LOC")], [Span(0, 3, "ORG"), Span(0, 1, "PER")]]
    words = [["w"] * 4, ["w"] * 3]
    outermost, inner = span_tables(words, gold, predicted)["depth"]
    assert (outermost["depth"], inner["depth"]) == ("outermost", "within 1")
    assert (outermost["f1"], inner["f1"]) == (1.0, 0.5)
    assert (inner["gold"], inner["predicted"], inner["found"]) == (2, 2, 1)
    # a span that is inner in gold and outermost among the predicted is found, and right there
    found = span_tables(words[:1], [[gold[0][0], gold[0][1]]], [[gold[0][1]]])["depth"]
    names = ("gold", "found", "predicted", "correct", "f1")
    assert [[row[name] for name in names] for row in found] == [[1, 0, 1, 1, 0], [1, 1, 0, 0, 0]]


def test_depth_of_runs_of_which_one_has_no_span_in_another():
    examples, inner = [TokenExample(0, ("w",) * 4)], [Span(0, 4, "ORG"), Span(1, 2, "LOC")]
    runs = [
        TYPES["spans"].of_values([inner[:1]], [predicted], examples=examples)
        for predicted in (inner, inner[:1])
    ]
    for name, expected in (("outermost", [1.0, 1.0]), ("within_1", [0.0, 0.0])):
        counted = count_metric(f"span_f1_depth:{name}", runs)
        assert [float(counts.values(np.ones((1, 1)))[0]) for counts in counted] == expected


def test_seen_and_unseen():
    spans = (Span(0, 2, "LOC"), Span(3, 4, "PER"))
    example = TokenExample(0, ("New", "York", "is", "Ana"), spans)
    train = TrainingVocabulary.of([example])
    assert train.entity_types == {"New York": {"LOC"}, "Ana": {"PER"}}
    words = [["Ana", "left", "New", "York", "for", "Oslo"]]
    gold = [[Span(0, 1, "PER"), Span(2, 4, "ORG"), Span(5, 6, "LOC")]]
    predicted = [[Span(0, 1, "PER"), Span(2, 4, "LOC"), Span(5, 6, "LOC")]]
    found = span_tables(words, gold, predicted, train=train)["in training"]
    assert tuple(p["in training"] for p in found) == SEEN_ENTITIES
    counts = [(p["gold"], p["predicted"], p["correct"]) for p in found]
    assert counts == [(1, 2, 1), (1, 0, 0), (1, 1, 1)]
    assert "in training" not in span_tables(words, gold, predicted)


def test_unseen_words():
    example = TokenExample(0, ("the", "run", "run"), tags=("DET", "NOUN", "VERB"))
    train = TrainingVocabulary.of([example])
    words = [["the", "run"], ["a", "the", "dog"]]
    found = tables_of("plain tags", words, ["AA", "AAA"], ["AB", "ABB"], train)
    counts = [(p["in training"], p["words"], p["correct"]) for p in found["in training"]]
    assert counts == [*zip(SEEN_WORDS, (2, 1, 2), (1, 0, 1), strict=True)]
    for groups in found.values():
        assert (sum(p["words"] for p in groups), sum(p["correct"] for p in groups)) == (5, 2)


def test_the_vocabulary_of_training_data_is_saved(tmp_path: Path):
    """Entities are those that tags spell; the tags of words are kept where they spell none."""
    tagged = [
        TokenExample(0, ("Zürich",), tags=("B-ORG",)),
        TokenExample(1, ("Zürich", '"A"'), tags=("B-LOC", "B-LOC")),
    ]
    vocabulary = TrainingVocabulary.of(tagged)
    assert vocabulary == TrainingVocabulary({"Zürich": {"LOC", "ORG"}, '"A"': {"LOC"}}, {})
    vocabulary.save(tmp_path)
    expected = {"Zürich": ["LOC", "ORG"], '"A"': ["LOC"]}
    assert TrainingVocabulary.load(tmp_path) == TrainingVocabulary(expected, {})
    content = {"entity_types": expected, "word_tags": {}}
    written = (tmp_path / VOCABULARY_FILE).read_text("utf-8")
    assert written == json.dumps(content, ensure_ascii=False) + "\n"
    assert TrainingVocabulary.load(tmp_path / "none") is None
    assert TrainingVocabulary.of([TextExample(0, "no words")]) == TrainingVocabulary({}, {})


def test_vocabulary_of_tags_without_spans():
    inside = TokenExample(0, ("a", "b"), tags=("I-X", "I-X"))
    spelled = [inside, TokenExample(1, ("c",), (), ("O",))]
    assert TrainingVocabulary.of(spelled) == TrainingVocabulary({"a b": {"X"}}, {})
    mixed = [TokenExample(0, ("a", "b"), (Span(0, 1, "Q"),), ("N", "V")), TokenExample(1, ("c",))]
    expected = TrainingVocabulary({"a": {"Q"}}, {"a": {"N"}, "b": {"V"}})
    assert TrainingVocabulary.of(mixed) == expected
