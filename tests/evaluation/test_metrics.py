"""Metrics against scikit-learn, scipy, seqeval and numbers by hand."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.scheme import BILOU, IOB2, IOBES
from sklearn import metrics as sklearn_metrics
from sklearn.preprocessing import MultiLabelBinarizer
from transformers import EvalPrediction

from finetune.config.tasks import NliConfig
from finetune.data.tag_schemes import tag_names
from finetune.evaluation import metrics, prediction_types
from finetune.evaluation.error_analysis import confusion_tables
from finetune.evaluation.hf_trainer import compute_metrics
from finetune.evaluation.prediction_types import scores_of
from finetune.evaluation.prediction_types.labels import positive_label
from finetune.preprocessing.text_labels import label_order, nli_label_order
from finetune.tasks.text_classification import TextClassificationTask, TextState
from finetune.types import LabelSet, Span, TextExample, TextPrediction, UserError
from tests.command import run
from tests.small_data import write_jsonl

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*seems not to be NE tag"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning"),
    pytest.mark.filterwarnings("ignore:.*ill-defined"),
    pytest.mark.filterwarnings("ignore:.*single label"),
    pytest.mark.filterwarnings("ignore:.*NearConstant"),
]
LABELS = ["neutral", "entailment", "contradiction"]


def paired(values, min_size=1, max_size=25):
    """Two lists of the same length."""
    pairs = st.lists(st.tuples(values, values), min_size=min_size, max_size=max_size)
    return pairs.map(lambda items: ([a for a, _ in items], [b for _, b in items]))


f1_of_labels = partial(sklearn_metrics.f1_score, zero_division=0)
span_scores = partial(scores_of, "spans")


def text_scores(prediction_type, gold, predicted, labels=()):
    return scores_of(prediction_type, gold, predicted, labels=labels)


def tagging_scores(gold, predicted, scheme):
    return scores_of("tags", gold, predicted, schemes=(scheme, None))


def class_scores(prediction_type, gold, predicted):
    return metrics.class_scores(prediction_types.TYPES[prediction_type].of_values(gold, predicted))


def plain(scores):
    """Only Python numbers, finite, so that any JSON reader takes them."""
    assert all(type(value) in (float, int) for value in scores.values())
    return json.loads(json.dumps(scores, allow_nan=False)) == scores


# Classification and regression


@given(paired(st.sampled_from(LABELS)))
def test_classification_is_scikit_learns(pair):
    gold, predicted = pair
    scores = text_scores("label", gold, predicted, LABELS)
    assert plain(scores)
    assert scores == pytest.approx(
        {
            "accuracy": sklearn_metrics.accuracy_score(gold, predicted),
            "macro_f1": f1_of_labels(gold, predicted, average="macro"),
            "weighted_f1": f1_of_labels(gold, predicted, average="weighted"),
            "matthews": sklearn_metrics.matthews_corrcoef(gold, predicted),
        }
    )
    names = sorted({*gold, *predicted})
    table = confusion_tables(Counter(zip(gold, predicted, strict=True)))["confusion"]
    expected = sklearn_metrics.confusion_matrix(gold, predicted, labels=names)
    assert [[row["predicted"][name] for name in names] for row in table] == expected.tolist()
    report = sklearn_metrics.classification_report(
        gold, predicted, output_dict=True, zero_division=0
    )
    for label, each in class_scores("label", gold, predicted).items():
        assert plain(each)
        expected = {name.removesuffix("-score"): value for name, value in report[label].items()}
        assert each == pytest.approx(expected)


@given(paired(st.sampled_from(["no", "yes"])))
def test_two_labels_have_the_f1_of_the_positive_class(pair):
    expected = f1_of_labels(*pair, pos_label="yes")
    for labels in (["no", "yes"], ["yes", "no"]):
        assert text_scores("label", *pair, labels)["f1"] == pytest.approx(expected)


@given(paired(st.frozensets(st.sampled_from("abcd"))))
def test_multilabel_is_scikit_learns(pair):
    scores = text_scores("labels", *map(lambda side: [tuple(each) for each in side], pair), "abcd")
    binary = MultiLabelBinarizer(classes=list("abcd")).fit([])
    gold, predicted = map(binary.transform, pair)
    assert plain(scores)
    assert scores == pytest.approx(
        {
            "micro_f1": f1_of_labels(gold, predicted, average="micro"),
            "macro_f1": f1_of_labels(gold, predicted, average="macro"),
            "weighted_f1": f1_of_labels(gold, predicted, average="weighted"),
            "subset_accuracy": sklearn_metrics.accuracy_score(gold, predicted),
            "hamming_loss": sklearn_metrics.hamming_loss(gold, predicted),
        }
    )


@given(paired(st.integers(-20, 20).map(lambda n: n / 4), min_size=2))
def test_regression_is_scipys(pair):
    gold, predicted = pair
    scores = text_scores("number", gold, predicted)
    assert plain(scores)
    assert scores["mse"] == pytest.approx(np.mean((np.array(gold) - np.array(predicted)) ** 2))
    if len(set(gold)) > 1 and len(set(predicted)) > 1:
        assert scores["pearson"] == pytest.approx(stats.pearsonr(gold, predicted)[0])
        assert scores["spearman"] == pytest.approx(stats.spearmanr(gold, predicted)[0])


def test_regression_of_a_constant_is_zero():
    for gold, predicted in [([1.0, 2.0], [3.0, 3.0]), ([1.0, 1.0], [3.0, 4.0]), ([1.0], [2.0])]:
        scores = text_scores("number", gold, predicted)
        assert scores["pearson"] == scores["spearman"] == 0.0
    assert text_scores("number", [], []) == {"pearson": 0.0, "spearman": 0.0, "mse": 0.0}
    assert text_scores("number", [0.1, 0.2, 0.3], [1.0, 2.0, 3.0])["pearson"] == pytest.approx(1.0)
    tiny = text_scores("number", [0.0, 1e-200, 3e-200], np.array([0.0, 1.0, 3.0], np.float32))
    assert tiny["pearson"] == pytest.approx(1.0) and plain(tiny)


def test_numbers_that_are_none_are_named():
    with pytest.raises(ValueError, match="predicted value 1 is nan"):
        text_scores("number", [1.0, 2.0], [1.0, math.nan])
    with pytest.raises(ValueError, match="gold value 0 is inf"):
        text_scores("number", [math.inf, 2.0], [1.0, 2.0])


@pytest.mark.parametrize("name", ["label", "labels", "number", "spans", "tags"])
def test_lengths_must_agree(name):
    with pytest.raises(ValueError, match="2 gold and 1 predicted"):
        scores_of(name, ["a", "a"], ["a"])


# Spans and tags


def micro(gold, predicted):
    scores = span_scores(gold, predicted)
    return {name: scores[f"span_{name}_strict"] for name in ("precision", "recall", "f1")}


def test_no_spans_score_zero():
    zero = {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert micro([[], []], [[], []]) == micro([], []) == zero
    assert {*span_scores([[]], [[]])} == {f"span_{name}_strict" for name in zero}
    assert micro([[Span(0, 1, "X")]], [[]]) == zero
    flat = span_scores([[Span(0, 1, "X")]], [[Span(0, 2, "X"), Span(0, 1, "Y")]])
    assert flat["span_f1_strict"] == 0.0
    assert class_scores("spans", [[]], [[]]) == {}
    scores = tagging_scores([["O"]], [["O"]], "BIO")
    assert scores["span_f1_conll"] == scores["span_f1_strict"] == 0.0
    assert scores["tag_accuracy"] == 1.0


@pytest.mark.parametrize(
    ("scheme", "theirs"), [("BIO", IOB2), ("BIOES", IOBES), ("BILOU", BILOU), ("IOB1", None)]
)
@given(data=st.data())
def test_tagging_is_seqevals(scheme, theirs, data):
    names = tag_names(["X", "art-film"], scheme)
    words = data.draw(st.lists(paired(st.sampled_from(names), max_size=8), min_size=1, max_size=4))
    gold, predicted = [g for g, _ in words], [p for _, p in words]
    scores = tagging_scores(gold, predicted, scheme)
    assert plain(scores)
    assert scores["tag_accuracy"] == pytest.approx(
        sklearn_metrics.accuracy_score([*chain(*gold)], [*chain(*predicted)])
    )
    if scheme != "BILOU":  # the default mode knows no L and U
        assert scores["span_f1_conll"] == pytest.approx(f1_score(gold, predicted))
        assert scores["span_precision_conll"] == pytest.approx(precision_score(gold, predicted))
        assert scores["span_recall_conll"] == pytest.approx(recall_score(gold, predicted))
    if theirs is not None:
        strict = f1_score(gold, predicted, mode="strict", scheme=theirs)
        assert scores["span_f1_strict"] == pytest.approx(strict)


@given(paired(st.sampled_from(["DET", "NOUN", "VERB"])))
def test_plain_tags_are_scored_as_scikit_learn_scores_words(pair):
    scores = tagging_scores(*([side[:2], side[2:]] for side in pair), None)
    assert scores["weighted_f1"] == pytest.approx(f1_of_labels(*pair, average="weighted"))
    assert scores["matthews"] == pytest.approx(sklearn_metrics.matthews_corrcoef(*pair))
    assert "f1" not in tagging_scores([["DET", "NOUN"]], [["DET", "NOUN"]], None)


def test_missing_words_are_named():
    with pytest.raises(ValueError, match="sentence 1 has 3 gold and 2 predicted tags"):
        tagging_scores([["O"], ["O"] * 3], [["O"], ["O"] * 2], "BIO")
    with pytest.raises(ValueError, match="'NN' is not in the scheme BIO"):
        tagging_scores([["NN"]], [["O"]], "BIO")


# Spans that may nest against a naive count

TYPES = ["X", "Y", "art-film"]

nested_span = st.tuples(st.integers(0, 4), st.integers(1, 4), st.sampled_from(TYPES)).map(
    lambda drawn: Span(drawn[0], drawn[0] + drawn[1], drawn[2])
)
sides = st.lists(nested_span, max_size=6)
sentences = st.lists(st.tuples(sides, sides), max_size=4)


def naive_f1(gold, predicted):
    right = [item for item in predicted if item in gold]
    if not right:
        return 0.0
    precision, recall = len(right) / len(predicted), len(right) / len(gold)
    return 2 * precision * recall / (precision + recall)


def naive(pairs):
    gold = {(i, item) for i, (right, _) in enumerate(pairs) for item in right}
    predicted = {(i, item) for i, (_, answer) in enumerate(pairs) for item in answer}
    scores = {
        "span_precision_strict": len(gold & predicted) / len(predicted) if predicted else 0.0,
        "span_recall_strict": len(gold & predicted) / len(gold) if gold else 0.0,
        "span_f1_strict": naive_f1(gold, predicted),
    }
    for name in sorted({item.label for _, item in gold | predicted}):
        sides = [{item for item in side if item[1].label == name} for side in (gold, predicted)]
        scores[f"span_f1_strict:{name}"] = naive_f1(*sides)
    return scores


@given(sentences)
def test_against_a_naive_count(pairs):
    gold, predicted = [right for right, _ in pairs], [answer for _, answer in pairs]
    scores = span_scores(gold, predicted)
    assert scores == pytest.approx(naive(pairs))
    assert list(scores) == list(naive(pairs))
    assert plain(scores)


# The positive class of two labels, the same wherever F1 is reported

GLUE = {  # positive class first, by the names of the hub
    "cola": ("acceptable", "unacceptable"),
    "sst2": ("positive", "negative"),
    "mrpc": ("equivalent", "not_equivalent"),
    "qqp": ("duplicate", "not_duplicate"),
    "qnli, rte, wnli": ("entailment", "not_entailment"),
}


NAMED = [
    *GLUE.values(),
    ("Toxic", "not toxic"),
    ("relevant", "non relevant"),
    *(
        tuple(pair.split("/"))
        for pair in (
            "hate/non-hate irony/non_irony event/no-event offensive/NotOffensive known/UNKNOWN "
            "yes/no Yes/NO true/false pos/neg 1/0 1/-1 +/- LABEL_1/LABEL_0"
        ).split()
    ),
]
UNNAMED = "fraud/legit hate/none defect/ok phishing/safe spam/ham 2/1 no/maybe".split()


@pytest.mark.parametrize("positive, negative", NAMED)
def test_names_tell_the_positive_class(positive: str, negative: str):
    """Also where it is the more frequent label."""
    for labels in ([positive, negative], [negative, positive]):
        assert positive_label(labels, {positive: 9, negative: 1}) == positive
        assert positive_label(labels, {}, negative) == negative


@pytest.mark.parametrize("pair", UNNAMED)
def test_other_names_leave_it_to_the_rarer_label(pair: str):
    for rare, frequent in permutations(pair.split("/")):
        assert positive_label([rare, frequent], {rare: 3, frequent: 7}) == rare
    assert positive_label(["b", "a"], {"a": 5, "b": 5}) == "b"


def test_an_unknown_positive_class_is_refused():
    with pytest.raises(UserError, match=r"fruad: the labels are 'fraud' and 'legit'[.] Perhaps"):
        positive_label(["legit", "fraud"], {}, "fruad")


@pytest.mark.parametrize("labels", [["a"], ["a", "a"], ["a", "b", "c"]])
def test_other_numbers_of_labels(labels: list[str]):
    with pytest.raises(ValueError, match="one of two labels"):
        positive_label(labels, {})


def in_training(order: Callable[..., list[str]], gold: list[str], answers: list[str]) -> float:
    """As at every evaluation; the score that selects models under --metric f1."""
    labels = LabelSet(order(set(gold)))
    state = TextState(config=NliConfig(), labels=labels, max_length=8, problem="single")
    rows = [TextExample(i, "x", None, label, "") for i, label in enumerate(gold)]
    predicted = [TextPrediction(i, label) for i, label in enumerate(answers)]
    return TextClassificationTask(state, tokenizer=None).score(rows, predicted)["f1"]


def in_the_trainer(labels: list[str], gold: list[str], answers: list[str]) -> float:
    sides = [np.array([labels.index(name) for name in side]) for side in (answers, gold)]
    return compute_metrics(labels)(EvalPrediction(*sides))["f1"]


@pytest.mark.parametrize("positive, negative", GLUE.values(), ids=GLUE)
def test_f1_of_glue_is_scikit_learns_in_every_command(
    positive: str, negative: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(3)
    gold = [rng.choice([positive, positive, negative]) for _ in range(60)]
    answers = [label if rng.random() < 0.7 else negative for label in gold]
    expected = pytest.approx(sklearn_metrics.f1_score(gold, answers, pos_label=positive))
    assert sklearn_metrics.f1_score(gold, answers, pos_label=negative) != expected
    for order in (label_order, nli_label_order):
        assert in_training(order, gold, answers) == expected
    for labels in ([positive, negative], [negative, positive]):
        assert in_the_trainer(labels, gold, answers) == expected
    write_jsonl(tmp_path / "gold.jsonl", [{"text": "x", "label": label} for label in gold])
    for name in ("answers", "again"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"label": label} for label in answers])
    scored = run("score", "answers.jsonl", "gold.jsonl", "--json")
    assert json.loads(scored.out)["f1"] == expected
    report = run("report", *"answers.jsonl --gold gold.jsonl --format json".split())
    found = json.loads(report.out)
    assert found["scores"]["f1"] == expected
    sides = "answers.jsonl again.jsonl --gold gold.jsonl"
    compared = run("compare", *f"{sides} --metric f1 --resamples 20 --format json".split())
    assert json.loads(compared.out)["a"]["value"] == expected


FRAUD = [("fraud", "fraud"), ("legit", "fraud"), ("fraud", "legit"), *[("legit", "legit")] * 6]


def test_the_positive_class_of_score_is_the_rarer_the_given_or_that_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "gold.jsonl", [{"text": "x", "label": gold} for gold, _ in FRAUD])
    answers = [{"label": predicted} for _, predicted in FRAUD]
    write_jsonl(tmp_path / "answers.jsonl", answers)
    outcome = run("score", "answers.jsonl", "gold.jsonl", "--json")
    assert json.loads(outcome.out)["f1"] == 0.5
    assert "f1 scores 'fraud', the rarer label of gold; --positive" in outcome.err
    outcome = run("score", "answers.jsonl", "gold.jsonl", "--positive", "legit", "--json")
    assert json.loads(outcome.out)["f1"] == pytest.approx(12 / 14) and "f1" not in outcome.err
    write_jsonl(tmp_path / "run.jsonl", [row | {"positive_label": "legit"} for row in answers])
    (tmp_path / "run.jsonl.gz").write_bytes((tmp_path / "run.jsonl").read_bytes())
    of_f1 = "--gold gold.jsonl --metric f1 --resamples 9"
    for typed in (
        "report run.jsonl --gold gold.jsonl --format table",
        f"compare run.jsonl run.jsonl.gz {of_f1}",
    ):
        outcome = run(*typed.split())
        assert "0.8571" in outcome.out and "rarer" not in outcome.out
        assert "0.5000" in run(*typed.split(), "--positive", "fraud").out
    write_jsonl(tmp_path / "other.jsonl", [row | {"positive_label": "fraud"} for row in answers])
    outcome = run(*f"compare run.jsonl other.jsonl {of_f1}".split())
    assert "f1 scores 'fraud', the rarer label of gold" in outcome.out
    outcome = run("score", "answers.jsonl", "gold.jsonl", "--positive", "spam")
    assert outcome.code == 2
    assert outcome.err == "error: --positive spam: the labels are 'fraud' and 'legit'.\n"
    write_jsonl(tmp_path / "three.jsonl", [{"label": name, "gold": name} for name in "abc"])
    three = run("score", "three.jsonl", "--positive", "a")
    three.refused("it applies to texts with one of two labels")


def test_the_trainer_takes_a_positive_class():
    evaluated = EvalPrediction(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]))
    assert compute_metrics(["a", "b"], positive="a")(evaluated)["f1"] == pytest.approx(2 / 3)
    assert compute_metrics(["a", "b"], positive="b")(evaluated)["f1"] == pytest.approx(0.8)
    with pytest.raises(UserError, match="--positive c"):
        compute_metrics(["a", "b"], positive="c")
