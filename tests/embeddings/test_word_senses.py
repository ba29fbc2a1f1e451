"""Senses: the scorer of the framework, sense vectors, decisions, ties and priors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.embeddings.disambiguation import (
    Disambiguator,
    SenseCollector,
    choose_prior,
)
from finetune.embeddings.wordnet import Inventory
from finetune.evaluation.compare import ComparisonOptions, compare_systems
from finetune.evaluation.metrics import scores
from finetune.evaluation.pairs import pair
from finetune.evaluation.runs import score_predictions
from finetune.types import SenseTarget, UserError
from tests.small_data import write_jsonl

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
    found = scores(pair("senses", list(gold.values()), [system.get(id, set()) for id in gold]))
    assert found == pytest.approx(framework_score(gold, system), abs=1e-12)


def test_files_of_keys_and_of_predictions(tmp_path: Path) -> None:
    gold = tmp_path / "x.gold.key.txt"
    gold.write_text(f"d0.s0.t0 {A} {B}\nd0.s0.t1 {A}\nd0.s1.t0 asleep%5:00:00:dead(p):00\n")
    keys = tmp_path / "system.key"
    keys.write_text(f"d0.s0.t0 {B}\nd0.s1.t0 asleep%5:00:00:dead:00\n")
    expected = {"f1": 0.8, "precision": 1.0, "recall": 2 / 3}
    assert score_predictions(keys, str(gold)) == pytest.approx(expected)
    rows = [
        {"id": "d0.s0.t0", "senses": [B]},
        {"id": "d0.s0.t1", "senses": []},
        {"id": "d0.s1.t0", "senses": ["asleep%5:00:00:dead:00"]},
    ]
    lines = write_jsonl(tmp_path / "system.jsonl", rows)
    assert score_predictions(lines, str(gold)) == pytest.approx(expected)
    result = compare_systems(
        str(lines), str(keys), options=ComparisonOptions(gold=str(gold), resamples=50)
    )
    assert (result.metric, result.unit, result.result.num_units) == ("f1", "target", 3)
    assert result.result.difference.value == 0
    nouns = ComparisonOptions(gold=str(gold), metric="f1_pos:NOUN", resamples=50)
    of_nouns = compare_systems(str(lines), str(keys), options=nouns)
    assert of_nouns.result.first.value == pytest.approx(2 / 3)  # one of two answered, correctly
    with pytest.raises(UserError, match="is not in"):
        score_predictions(
            write_jsonl(tmp_path / "o.jsonl", [{"id": "x", "senses": [A]}]), str(gold)
        )
    with pytest.raises(UserError, match="have no ids"):
        score_predictions(write_jsonl(tmp_path / "o.jsonl", [{"senses": [A]}]), str(gold))


def model(vectors: dict[str, Any], counts: dict[str, int], **more: Any) -> Disambiguator:
    arrays = {sense: np.array(vector, dtype=float) for sense, vector in vectors.items()}
    return Disambiguator(arrays, {("bank", "NOUN"): counts}, more.pop("inventory", None), **more)


def test_sense_vectors_are_means_of_uses() -> None:
    collector = SenseCollector()
    collector.add(target(A), np.array([[1.0, 2.0]]))
    collector.add(target(A, B), np.array([[3.0, 6.0]]))
    collector.add(target(B), None)  # counted, but without a vector
    collector.add(target(), np.array([[9.0, 9.0]]))
    vectors = collector.vectors()
    assert list(vectors) == [A, B]
    assert np.stack(list(vectors.values())).tolist() == [[[2.0, 4.0]], [[3.0, 6.0]]]
    assert collector.counts == {("bank", "NOUN"): {A: 2, B: 2}}


def test_nearest_sense() -> None:
    found = model({A: [3.0, 0.0], B: [0.0, 1.0]}, {A: 1, B: 1})
    cosines = found.cosines(target(), np.array([2.0, 1.0]))
    assert cosines == pytest.approx({A: 2 / np.sqrt(5), B: 1 / np.sqrt(5)})
    assert found.predict(target(), cosines).sense == A


def test_back_off_ties_and_inventory() -> None:
    inventory = Inventory(Path(), {("bank", "NOUN"): (C, A, B)}, {A: 0, B: 0, C: 0})
    found = model({A: [1, 0], B: [1, 0]}, {A: 1, B: 3}, inventory=inventory)
    assert found.candidates(target()) == [C, A, B]
    tie = found.predict(target(), found.cosines(target(), np.array([1.0, 0.0])))
    assert tie.sense == B and not tie.backed_off, "of equal scores, the more frequent"
    without_vector = found.predict(target(), found.cosines(target(), None))
    assert without_vector == (C, {}, True), "WordNet's first sense"
    unseen = target(lemma="kiosk")
    assert found.predict(unseen, found.cosines(unseen, np.ones(2))).sense is None
    without = model({A: [1, 0]}, {A: 1, B: 3})
    assert without.predict(target(), {}).sense == B, "the most frequent of training"


def test_prior_and_glosses() -> None:
    found = model({A: [1, 0], B: [0.9, 0.1]}, {A: 1, B: 9}, prior=0.5)
    cosines = found.cosines(target(), np.array([1.0, 0.0]))
    assert found.predict(target(), cosines).sense == B
    expected = 1.0 + 0.5 * np.log(1 / 10)
    assert found.predict(target(), cosines).scores[A] == pytest.approx(expected)
    chosen, by_prior = choose_prior(found, [target(A)] * 3, [cosines] * 3)
    assert chosen.prior == 0.0 and by_prior[0.2] == 0.0
    chosen, _ = choose_prior(found, [target(B)] * 3, [cosines] * 3)
    assert chosen.prior > 0
    inventory = Inventory(Path(), {("bank", "NOUN"): (A, B, C)}, {A: 0, B: 0, C: 0})
    with_gloss = model(
        {A: [1, 0]},
        {A: 1},
        inventory=inventory,
        gloss_weight=1.0,
        glosses={A: np.array([0.0, 5.0]), C: np.array([0.0, 2.0])},
    )
    assert with_gloss.cosines(target(), np.array([0.0, 1.0])) == pytest.approx(
        {A: np.sqrt(0.5), C: 1.0}
    )
    nothing = model({}, {}, inventory=inventory, gloss_weight=1.0, glosses={A: np.ones(2)})
    assert nothing.cosines(target(), np.ones(2)) == {}, "glosses alone do not decide"
