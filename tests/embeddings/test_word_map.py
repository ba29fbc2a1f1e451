"""Word maps: occurrences and their labels, layers, neighbors and scores against scikit-learn."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import silhouette_score
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from finetune.embeddings.vectors import unit_vectors
from finetune.embeddings.word_map import (
    CONTEXT,
    SHOWN,
    Occurrence,
    find_occurrences,
    labeled_rows,
    majority_sense,
    nearest_neighbor_purity,
    parse_words,
    project_layers,
    read_examples,
)
from finetune.runtime import progress
from finetune.types import Span, TextExample, TokenExample
from tests import fixtures as fx
from tests.command import run
from tests.small_data import write_jsonl
from tests.tiny import LAYERS


def texts(*rows: str | tuple[str, str]) -> list[TextExample]:
    pairs = [(row, None) if isinstance(row, str) else row for row in rows]
    return [TextExample(number, text, label=label) for number, (text, label) in enumerate(pairs)]


def sampled(rows: Iterable, word: str, **options: int) -> list[Occurrence]:
    return find_occurrences(rows, parse_words(word), **options)[0]


def forms(rows: list, word: str) -> list[tuple[str, str]]:
    return [(occurrence.word, form_of(occurrence)) for occurrence in sampled(rows, word)]


def form_of(occurrence: Occurrence) -> str:
    return occurrence.shown.partition("[")[2].partition("]")[0]


def test_words_and_forms():
    rows = texts("The bank's banks.", "BANK", "banker", "a river-bank!", "embankment")
    assert forms(rows, "bank") == [("bank", "bank"), ("bank", "BANK"), ("bank", "bank")]
    assert [form for _, form in forms(rows, "bank/banks")] == ["bank", "banks", "BANK", "bank"]
    assert forms(rows, "river,bank")[0] == ("river", "river")


@pytest.mark.parametrize(
    ("text", "word", "form"),
    [
        ("I like Ice  cream.", "ice cream", "Ice cream"),
        ("the U.S. army", "U.S.", "U.S."),
        ("it isn't so", "isn't", "isn't"),
        ("他在银行工作", "银行", "银行"),
        ("na\u00efve", "nai\u0308ve", "na\u00efve"),
        ("die Straße", "STRASSE", "Straße"),
    ],
)
def test_words_of_any_kind(text: str, word: str, form: str):
    (occurrence,) = sampled(texts(text), word)
    assert form_of(occurrence) == " ".join(form.split())
    assert occurrence.shown.replace("[", "").replace("]", "") == " ".join(text.split())


def test_labels():
    rows = [TokenExample(0, ("the", "U.S.", "army"), tags=("DT", "NNP", "NN"))]
    (occurrence,) = sampled(rows, "u.s.")
    assert (occurrence.shown, occurrence.label) == ("the [U.S.] army", "NNP")
    spans = (Span(0, 4, "ORG"), Span(3, 4, "LOC"))
    words = ("University", "of", "west", "Leeds", "in", "Leeds")
    tags = ("B-ORG", "I-ORG", "I-ORG", "I-ORG", "O", "O")
    rows = [TokenExample(0, words, spans, tags)]
    assert [o.label for o in sampled(rows, "Leeds")] == ["LOC", None]
    rows = texts(("a die", "tool"), "the die", ("one die", ("a", "b")), ("die", 2.5))
    labels = [o.label for o in sampled(rows, "die")]
    assert labels == ["tool", None, "a, b", "2.5"]


def test_senses_match_by_lemma(tmp_path: Path):
    file = tmp_path / "senses.jsonl"
    target = {"start": 1, "end": 2, "lemma": "die", "pos": "VERB", "senses": ["die%2:30:00::"]}
    idiom = {"start": 2, "end": 4, "lemma": "as_well", "pos": "ADV", "senses": []}
    rows = [
        {"tokens": ["He", "died", "as", "well", "die"], "targets": [target, idiom]},
        {"tokens": ["a", "die"], "targets": []},
    ]
    write_jsonl(file, rows)
    occurrences = sampled(read_examples(str(file)), "die,as well")
    labels = [(form_of(occurrence), occurrence.label) for occurrence in occurrences]
    assert labels == [("died", "die%2:30:00::"), ("die", None), ("as well", None)]


def test_context_is_cut():
    words = [f"w{number}" for number in range(500)]
    words[300] = "die"
    (occurrence,) = sampled(texts(" ".join(words)), "die")
    assert occurrence.words[occurrence.start : occurrence.end] == ("die",)
    assert len(occurrence.words) == 2 * CONTEXT + 1 and occurrence.start == CONTEXT
    shown = occurrence.shown.split()
    assert (shown[0], shown[-1]) == (f"w{300 - SHOWN}", f"w{300 + SHOWN}")


def test_samples_are_the_same_for_a_seed():
    rows = texts(*(f"text {number} on a die" for number in range(100)))
    occurrences, _, counts = find_occurrences(rows, parse_words("die"), limit=10)
    assert len(occurrences) == 10 and counts == {"die": 100}
    assert [o.id for o in occurrences] == sorted(o.id for o in occurrences)
    assert occurrences == sampled(rows, "die", limit=10) != sampled(rows, "die", limit=10, seed=2)
    rows = texts("a die", "a die", " ", "die, die")
    occurrences, num_texts, _ = find_occurrences(rows, parse_words("die"))
    assert len(occurrences) == 3, "a context counts once"
    assert num_texts == 3, "without blank lines"


def test_files(tmp_path: Path):
    plain = tmp_path / "texts.txt"
    plain.write_text("a die\n\nto die\n", encoding="utf-16")
    assert [e.text for e in read_examples(str(plain), encoding="utf-16")] == ["a die", "", "to die"]
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"sentence": "a die", "sense": "x", "label": "y"}) + "\n")
    (row,) = read_examples(str(file), columns={"label": "sense"})
    assert row.label == "x"
    tagged = read_examples("examples/data/ner/test.conll")
    labels = {occurrence.label for occurrence in sampled(tagged, "Jordan")}
    assert labels >= {"PER", "LOC"}


RANDOM = np.random.default_rng(0)


def clusters(layers: int = 3, size: int = 12, width: int = 20) -> np.ndarray:
    """Vectors of three groups that every layer separates a little differently."""
    centers = np.repeat(RANDOM.normal(size=(3, width)), size, axis=0)
    return unit_vectors(centers + 0.2 * RANDOM.normal(size=(layers, 3 * size, width)))


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_layers_of_groups(method: Any):
    vectors = clusters(2)
    points = project_layers(vectors, method=method)
    assert points.shape == (2, 36, 2)
    np.testing.assert_array_equal(points, project_layers(vectors, method=method))
    if method == "tsne":
        labels = np.repeat([0, 1, 2], 12)
        assert all(silhouette_score(layer, labels) > 0.5 for layer in points)
    for count in (3, 7):
        points = project_layers(clusters()[:, :count], method=method)
        assert points.shape == (3, count, 2) and np.isfinite(points).all()


@pytest.mark.filterwarnings("error")
def test_equal_vectors_are_one_point():
    """In layer 0 of an encoder without positions, a word is the same everywhere."""
    vectors = clusters(3)
    vectors[1] = vectors[1, 0]
    points = project_layers(vectors)
    assert np.isfinite(points).all() and not np.ptp(points[1], axis=0).any()
    assert np.ptp(points[0], axis=0).all() and np.ptp(points[2], axis=0).all()


def test_purity_equals_scikit_learn():
    vectors = clusters(1)[0]
    labels = [str(number % 5) for number in range(36)]
    nearest = KNeighborsClassifier(1, metric="cosine", algorithm="brute")
    right = cross_val_score(nearest, vectors, labels, cv=LeaveOneOut()).mean()
    assert nearest_neighbor_purity(vectors, ["die"] * 36, labels) == pytest.approx(right)


def test_scores_are_within_words():
    """A neighbor of another word does not count, nor do labels that occur once."""
    vectors = unit_vectors(np.array([[1, 0.0], [1, 0.1], [0, 1], [0.1, 1], [1, 0.01], [0.9, 0.1]]))
    words = ["die"] * 4 + ["bank"] * 2
    labels = ["a", "a", "b", "b", "c", "d"]
    assert nearest_neighbor_purity(vectors, words, labels) == 1.0
    assert labeled_rows(words, labels) == [0, 1, 2, 3] and majority_sense(words, labels) == 0.5
    assert nearest_neighbor_purity(vectors, words, [None] * 6) is None
    equal = np.ones((8, 3)) / np.sqrt(3)  # the order of the data does not decide
    labels = ["a"] * 4 + ["b"] * 4
    assert nearest_neighbor_purity(equal, ["die"] * 8, labels) == pytest.approx(3 / 7)


DATA = "examples/data/words/senses.jsonl"


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    options = ("--word", "die,bank", "--most", "12", "--out", tmp_path / "a.json")
    outcome = run("map", fx.checkpoint(), "--file", DATA, *options).ok()
    assert "die: 30 occurrences in 50 texts, 12 drawn at random (--most)" in outcome.err
    assert f"projecting: layer {LAYERS + 1}/{LAYERS + 1}" in outcome.err
    assert outcome.out.split("\n")[0].split("  ")[0] == "layer" and "1-NN purity" in outcome.out
    assert "always the main label of the word: 1-NN purity 0." in outcome.out
    content = json.loads((tmp_path / "a.json").read_text("utf-8"))
    occurrences = content["occurrences"]
    assert content["layers"] == list(range(LAYERS + 1))
    assert {occurrence["word"] for occurrence in occurrences[:12]} == {"die"}
    points = np.array([occurrence["points"] for occurrence in occurrences])
    assert points.shape == (24, LAYERS + 1, 2)


def test_words_without_labels(tmp_path: Path):
    file, output = tmp_path / "texts.txt", tmp_path / "b.HTML"
    file.write_text("a die\nto die </script><b>here</b>\n\nthe die is cast\nno\n")
    arguments = ("--word", "die", "--method", "pca", "--out", output)
    outcome = run("map", fx.checkpoint(), "--file", file, *arguments).ok()
    assert "purity" not in outcome.out
    html = output.read_text("utf-8")
    assert "</script><b>here" not in html and "&lt;b&gt;here" in html
    assert html.count('<circle class="point') == 3 * (LAYERS + 1)
