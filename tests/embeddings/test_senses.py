"""Word senses: the scorer of the framework, decisions, sense vectors of an encoder, the command."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from finetune.embeddings.sense_data import read_senses
from finetune.embeddings.senses import (
    PRIORS,
    SensePrediction,
    SenseSettings,
    WordSenses,
    sense_scores,
)
from finetune.embeddings.wordnet import Inventory
from finetune.evaluation.prediction_types import scores_of
from finetune.inference.embed import Embedder
from finetune.types import SenseTarget, TokenExample, UserError
from tests import laboratory as lab
from tests.command import run
from tests.runs import score_predictions
from tests.small_data import read_jsonl, write_jsonl

A, B, C = "bank%1:14:00::", "bank%1:17:00::", "bank%1:17:01::"


def target(*senses: str, lemma: str = "bank", **more: Any) -> SenseTarget:
    return SenseTarget(0, 1, lemma, "NOUN", senses, **more)


def framework_score(gold: dict[str, set[str]], system: dict[str, set[str]]) -> dict[str, float]:
    """The semantics of the framework's Scorer.java, written out once more."""
    right = wrong = 0.0
    for id, answers in system.items():
        if id in gold:
            right += len(answers & gold[id]) / len(answers)
            wrong += len(answers - gold[id]) / len(answers)
    p, r = right / (right + wrong), right / len(gold)
    return {"precision": p, "recall": r, "f1": 2 * p * r / (p + r)}


def test_scores_are_those_of_the_framework() -> None:
    rng = np.random.default_rng(0)
    draw = lambda: {f"s{i}" for i in rng.integers(0, 4, size=rng.integers(1, 4))}  # noqa: E731
    gold = {f"t{i}": draw() for i in range(60)}
    system = {id: draw() for id in gold if rng.random() < 0.8}
    found = scores_of("senses", list(gold.values()), [system.get(id, set()) for id in gold])
    assert found == pytest.approx(framework_score(gold, system), abs=1e-12)


def test_files_of_predictions(tmp_path: Path) -> None:
    targets = [
        {"start": 0, "end": 1, "lemma": "x", "pos": "n", "id": id, "senses": senses}
        for id, senses in (("d.t0", [A, B]), ("d.t1", [A]), ("d.t2", ["x%5:00:00:dead(p):00"]))
    ]
    gold = write_jsonl(tmp_path / "gold.jsonl", [{"tokens": ["x"], "targets": targets}])
    rows = [
        {"id": "d.t0", "senses": [B]},
        {"id": "d.t1", "senses": []},
        {"id": "d.t2", "senses": ["x%5:00:00:dead:00"]},
    ]
    expected = {"f1": 0.8, "precision": 1.0, "recall": 2 / 3}
    for lines in (rows, [rows[0], rows[2]]):
        file = write_jsonl(tmp_path / "system.jsonl", lines)
        assert score_predictions(file, str(gold)) == pytest.approx(expected)
    for wrong, message in (({"id": "x", "senses": [A]}, "is not in"), ({"senses": [A]}, "no ids")):
        with pytest.raises(UserError, match=message):
            score_predictions(write_jsonl(tmp_path / "o.jsonl", [wrong]), str(gold))


def senses(vectors: dict[str, Any], counts: dict[str, int], **more: Any) -> WordSenses:
    arrays = {sense: np.array(vector, dtype=float) for sense, vector in vectors.items()}
    inventory, embedder = more.pop("inventory", None), Mock(Embedder)
    settings = SenseSettings(model="x", **more)
    return WordSenses(settings, arrays, {("bank", "NOUN"): counts}, inventory, embedder)


def test_nearest_sense() -> None:
    found = senses({A: [3.0, 0.0], B: [0.0, 1.0]}, {A: 1, B: 1})
    cosines = found.cosines(target(), np.array([2.0, 1.0]), {})
    assert cosines == pytest.approx({A: 2 / np.sqrt(5), B: 1 / np.sqrt(5)})
    assert found.decide(target(), cosines).sense == A


def test_back_off_ties_and_inventory() -> None:
    inventory = Inventory(Path(), {("bank", "NOUN"): (C, A, B)}, {A: 0, B: 0, C: 0})
    found = senses({A: [1, 0], B: [1, 0]}, {A: 1, B: 3}, inventory=inventory)
    assert found.candidates(target()) == [C, A, B]
    tie = found.decide(target(), found.cosines(target(), np.array([1.0, 0.0]), {}))
    assert tie.sense == B and tie.scores, "of equal scores, the more frequent"
    without_vector = found.decide(target(), found.cosines(target(), None, {}))
    assert without_vector == SensePrediction(target(), C, {}), "WordNet's first sense"
    assert found.decide(target(lemma="kiosk"), {}).sense is None
    without = senses({A: [1, 0]}, {A: 1, B: 3})
    assert without.decide(target(), {}).sense == B, "the most frequent of training"


def test_prior_and_glosses() -> None:
    found = senses({A: [1, 0], B: [0.9, 0.1]}, {A: 1, B: 9}, prior=0.5)
    cosines = found.cosines(target(), np.array([1.0, 0.0]), {})
    assert found.decide(target(), cosines).sense == B
    assert found.decide(target(), cosines, prior=0.0).sense == A
    expected = 1.0 + 0.5 * np.log(1 / 10)
    assert found.decide(target(), cosines).scores[A] == pytest.approx(expected)
    inventory = Inventory(Path(), {("bank", "NOUN"): (A, B, C)}, {A: 0, B: 0, C: 0})
    glosses = {A: np.array([0.0, 5.0]), C: np.array([0.0, 2.0])}
    with_gloss = senses({A: [1, 0]}, {A: 1}, inventory=inventory, gloss_weight=1.0)
    assert with_gloss.cosines(target(), np.array([0.0, 1.0]), glosses) == pytest.approx(
        {A: np.sqrt(0.5), C: 1.0}
    )
    nothing = senses({}, {}, inventory=inventory, gloss_weight=1.0)
    assert nothing.cosines(target(), np.ones(2), glosses) == {}, "glosses alone do not decide"


EXAMPLES = Path(__file__).parents[2] / "examples" / "data" / "senses"
WORDNET = str(EXAMPLES / "wordnet")


@pytest.fixture(scope="module")
def splits() -> dict[str, list[TokenExample]]:
    return read_senses(str(EXAMPLES)).splits


def test_sense_vectors_equal_a_plain_mean(splits: dict[str, list[TokenExample]]) -> None:
    model = str(lab.checkpoint())
    settings: dict[str, Any] = {"layers": (1, 2), "pooling": "max", "max_length": 12}
    found = WordSenses.fit(SenseSettings(model=model, **settings), splits["train"], max_tokens=40)
    plain: defaultdict[str, list[np.ndarray]] = defaultdict(list)
    embedder = Embedder(model, unit="word", **settings)
    for example in splits["train"]:
        (embedding,) = embedder.encode([example])
        for target in example.targets:
            for sense in target.senses:
                plain[sense].append(embedding.vectors[target.start : target.end].mean(0))
    assert set(found.vectors) == set(plain)
    for sense, vectors in plain.items():
        np.testing.assert_allclose(found.vectors[sense], np.mean(vectors, 0), atol=1e-5)
    reversed_order = WordSenses.fit(found.settings, splits["train"][::-1])
    for sense, vector in found.vectors.items():
        np.testing.assert_allclose(reversed_order.vectors[sense], vector, atol=1e-5)


def test_targets_without_subwords(splits: dict[str, list[TokenExample]]) -> None:
    settings = SenseSettings(model=str(lab.checkpoint()), inventory=WORDNET)
    found = WordSenses.fit(settings, splits["train"])
    words = ("a", "\u200b", "bank")
    targets = (
        SenseTarget(1, 2, "bank", "NOUN", key="a"),
        SenseTarget(1, 3, "bank", "NOUN", key="b"),
        SenseTarget(2, 3, "bank", "NOUN", key="c"),
    )
    none, part, whole = found.predict([TokenExample(0, words, targets=targets)])
    assert none.sense == "bank%1:14:00::" and not none.scores
    assert part.scores == pytest.approx(whole.scores), "the words that have subwords"


def test_the_prior_is_chosen_on_validation(splits: dict[str, list[TokenExample]]) -> None:
    settings = SenseSettings(model=str(lab.checkpoint()), inventory=WORDNET, gloss_weight=0.5)
    found = WordSenses.fit(settings, splits["train"], splits["validation"])
    f1 = {}
    for prior in PRIORS:
        found.settings = replace(found.settings, prior=prior)
        f1[prior] = sense_scores(found.predict(splits["validation"]))["f1"]
    chosen = WordSenses.fit(settings, splits["train"], splits["validation"]).settings.prior
    assert chosen == min(prior for prior in PRIORS if f1[prior] == max(f1.values()))
    unlabeled = [
        replace(e, targets=tuple(replace(t, senses=()) for t in e.targets)) for e in splits["train"]
    ]
    with pytest.raises(UserError, match="no target of the training data has gold"):
        WordSenses.fit(settings, unlabeled)


def test_command(tmp_path: Path) -> None:
    out = tmp_path / "run"
    shared = ("--data", EXAMPLES, "--inventory", WORDNET, "--model", lab.checkpoint())
    outcome = run("wsd", *shared, "--glosses", "0.5", "--out", out).ok()
    run("wsd", *shared, "--out", out).refused("is not empty: name a new folder")
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["test"]["first_sense_f1"] == pytest.approx(9 / 17)
    assert metrics["test"]["targets"] == 17 and "first sense f1" in outcome.out
    lines = read_jsonl(out / "predictions.test.jsonl")
    assert lines[0]["id"] == "test.s000.t000" and lines[0]["gold"] == ["bank%1:14:00::"]
    assert all(set(line["scores"]) >= set(line["senses"]) for line in lines)
    scored = run("score", out / "predictions.test.jsonl", EXAMPLES / "test.jsonl", "--json")
    assert json.loads(scored.out)["f1"] == pytest.approx(metrics["test"]["f1"])
    compared = run(
        "compare", str(out), str(out / "first_sense.test.jsonl"), "--resamples", "50"
    ).ok()
    assert "f1 on 17 targets" in compared.out, compared.err
    again = run("predict", out, "--file", EXAMPLES / "test.jsonl").ok()
    assert f"f1 {metrics['test']['f1']:.4f}" in again.err
    assert [json.loads(line)["senses"] for line in again.out.splitlines()] == [
        line["senses"] for line in lines
    ]
    analyzed = run("report", str(out), "--format", "table").ok()
    assert "VERB" in analyzed.out, analyzed.err
    run("report", str(out)).ok()
    assert "VERB" in (out / "report.html").read_text("utf-8")

    typed = run("predict", out, "--text", "He sat on the *banks* of the river.").ok()
    lines = typed.out.splitlines()
    assert lines[0] == "banks" and lines[1].split()[:2] == ["sense", "part"]
    assert "bank%1:17:00::" in typed.out and "the edge of a river" in typed.out
    scored = [float(line.split()[2]) for line in lines[2:] if line.split()[2][-1].isdigit()]
    assert len(scored) > 1 and scored == sorted(scored, reverse=True)
    given = run("predict", out, "--text", "He *went=bank* there, and took the *bass*.").ok()
    assert {"went", "bass"} <= {*given.out.splitlines()}, given.err
    for text, problem in (("no mark", "no word is marked"), ("a *zzz*", "no sense of 'zzz'")):
        run("predict", out, "--text", text).refused(problem)

    targets = [
        {"start": 1, "end": 2, "lemma": "bass", "pos": "n"},
        {"start": 0, "end": 1, "lemma": "kiosk", "pos": "n"},
    ]
    row = {"tokens": ["a", "bass"], "targets": targets}
    new = write_jsonl(tmp_path / "new.jsonl", [row])
    saved = tmp_path / "out.jsonl"
    outcome = run("predict", out, "--file", new, "--out", saved)
    first, second = (json.loads(line) for line in saved.open())
    assert first["id"] == "0.0" and first["senses"][0].startswith("bass%") and not outcome.out
    assert second["senses"] == [] and second["backed_off"] and "gold" not in second
    for wrong, message in (
        (["--file", new, "--threshold", "0.5"], "--threshold: it does not apply to a run of wsd"),
        (["--text", "a *bank*", "--out", saved], "--text prints the senses of a sentence"),
    ):
        run("predict", out, *wrong).refused(message)
