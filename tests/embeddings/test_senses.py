"""Word senses: the scorer of the framework, decisions, sense vectors of an encoder, the command."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.embeddings.disambiguation import (
    Disambiguator,
    SenseCollector,
    choose_prior,
)
from finetune.embeddings.sense_data import read_senses
from finetune.embeddings.senses import SenseSettings, WordSenses
from finetune.embeddings.wordnet import Inventory
from finetune.evaluation.compare import ComparisonOptions, compare_systems
from finetune.evaluation.kinds import scores_of
from finetune.evaluation.predictions import GoldSource
from finetune.inference.embed import Embedder
from finetune.types import SenseTarget, TokenExample, UserError
from tests import laboratory as lab
from tests.command import run
from tests.runs import score_predictions
from tests.small_data import read_jsonl, write_jsonl
from tests.tiny import LAYERS

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
        str(lines),
        str(keys),
        options=ComparisonOptions(source=GoldSource(gold=str(gold)), resamples=50),
    )
    assert (result.metric, result.unit, result.result.num_units) == ("f1", "target", 3)
    assert result.result.difference.value == 0
    nouns = ComparisonOptions(source=GoldSource(gold=str(gold)), metric="f1_pos:NOUN", resamples=50)
    of_nouns = compare_systems(str(lines), str(keys), options=nouns)
    assert of_nouns.result.first.value == pytest.approx(2 / 3)  # one of two answered, correctly
    with pytest.raises(UserError, match="is not in"):
        score_predictions(
            write_jsonl(tmp_path / "o.jsonl", [{"id": "x", "senses": [A]}]), str(gold)
        )
    with pytest.raises(UserError, match="have no ids"):
        score_predictions(write_jsonl(tmp_path / "o.jsonl", [{"senses": [A]}]), str(gold))


def decision(vectors: dict[str, Any], counts: dict[str, int], **more: Any) -> Disambiguator:
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
    found = decision({A: [3.0, 0.0], B: [0.0, 1.0]}, {A: 1, B: 1})
    cosines = found.cosines(target(), np.array([2.0, 1.0]))
    assert cosines == pytest.approx({A: 2 / np.sqrt(5), B: 1 / np.sqrt(5)})
    assert found.predict(target(), cosines).sense == A


def test_back_off_ties_and_inventory() -> None:
    inventory = Inventory(Path(), {("bank", "NOUN"): (C, A, B)}, {A: 0, B: 0, C: 0})
    found = decision({A: [1, 0], B: [1, 0]}, {A: 1, B: 3}, inventory=inventory)
    assert found.candidates(target()) == [C, A, B]
    tie = found.predict(target(), found.cosines(target(), np.array([1.0, 0.0])))
    assert tie.sense == B and not tie.backed_off, "of equal scores, the more frequent"
    without_vector = found.predict(target(), found.cosines(target(), None))
    assert without_vector == (C, {}, True), "WordNet's first sense"
    unseen = target(lemma="kiosk")
    assert found.predict(unseen, found.cosines(unseen, np.ones(2))).sense is None
    without = decision({A: [1, 0]}, {A: 1, B: 3})
    assert without.predict(target(), {}).sense == B, "the most frequent of training"


def test_prior_and_glosses() -> None:
    found = decision({A: [1, 0], B: [0.9, 0.1]}, {A: 1, B: 9}, prior=0.5)
    cosines = found.cosines(target(), np.array([1.0, 0.0]))
    assert found.predict(target(), cosines).sense == B
    expected = 1.0 + 0.5 * np.log(1 / 10)
    assert found.predict(target(), cosines).scores[A] == pytest.approx(expected)
    chosen, by_prior = choose_prior(found, [target(A)] * 3, [cosines] * 3)
    assert chosen.prior == 0.0 and by_prior[0.2] == 0.0
    chosen, _ = choose_prior(found, [target(B)] * 3, [cosines] * 3)
    assert chosen.prior > 0
    inventory = Inventory(Path(), {("bank", "NOUN"): (A, B, C)}, {A: 0, B: 0, C: 0})
    with_gloss = decision(
        {A: [1, 0]},
        {A: 1},
        inventory=inventory,
        gloss_weight=1.0,
        glosses={A: np.array([0.0, 5.0]), C: np.array([0.0, 2.0])},
    )
    assert with_gloss.cosines(target(), np.array([0.0, 1.0])) == pytest.approx(
        {A: np.sqrt(0.5), C: 1.0}
    )
    nothing = decision({}, {}, inventory=inventory, gloss_weight=1.0, glosses={A: np.ones(2)})
    assert nothing.cosines(target(), np.ones(2)) == {}, "glosses alone do not decide"


EXAMPLES = Path(__file__).parents[2] / "examples" / "data" / "senses"
WORDNET = str(EXAMPLES / "wordnet")


@pytest.fixture(scope="module")
def splits() -> dict[str, list[TokenExample]]:
    return read_senses(str(EXAMPLES)).splits


@pytest.mark.parametrize("settings", [{}, {"layers": (1, 2), "pooling": "max", "max_length": 12}])
def test_sense_vectors_equal_a_plain_mean(
    settings: dict, splits: dict[str, list[TokenExample]]
) -> None:
    model = str(lab.checkpoint())
    found = WordSenses.fit(SenseSettings(model=model, **settings), splits["train"], max_tokens=40)
    plain: defaultdict[str, list[np.ndarray]] = defaultdict(list)
    embedder = Embedder(model, unit="word", **settings)
    for example in splits["train"]:
        (embedding,) = embedder.encode([example])
        for target in example.targets:
            for sense in target.senses:
                plain[sense].append(embedding.vectors[target.start : target.end].mean(0))
    assert set(found.model.vectors) == set(plain)
    for sense, vectors in plain.items():
        np.testing.assert_allclose(found.model.vectors[sense], np.mean(vectors, 0), atol=1e-5)
    reversed_order = WordSenses.fit(found.settings, splits["train"][::-1])
    for sense, vector in found.model.vectors.items():
        np.testing.assert_allclose(reversed_order.model.vectors[sense], vector, atol=1e-5)


def test_targets_without_subwords(splits: dict[str, list[TokenExample]]) -> None:
    settings = SenseSettings(model=str(lab.checkpoint()), inventory=WORDNET)
    found = WordSenses.fit(settings, splits["train"])
    words = ("a", "\u200b", "bank")
    targets = (
        SenseTarget(1, 2, "bank", "NOUN", key="a"),
        SenseTarget(1, 3, "bank", "NOUN", key="b"),
        SenseTarget(2, 3, "bank", "NOUN", key="c"),
    )
    _, (none, part, whole) = found.predict([TokenExample(0, words, targets=targets)])
    assert none == ("bank%1:14:00::", {}, True) and found.num_without_vector == 1
    assert part.scores == pytest.approx(whole.scores), "the words that have subwords"


def test_layers_are_chosen_on_validation(splits: dict[str, list[TokenExample]]) -> None:
    model = str(lab.checkpoint())
    auto = SenseSettings(model=model, inventory=WORDNET, layers="auto", gloss_weight=0.5)
    found = WordSenses.fit(auto, splits["train"], splits["validation"])
    assert [each.layers for each in found.choices] == [(i,) for i in range(LAYERS + 1)]
    best = max(found.choices, key=lambda each: each.f1)
    assert found.settings.layers == best.layers and found.settings.prior == best.prior
    alone = WordSenses.fit(found.settings, splits["train"], splits["validation"])
    assert alone.choices[0].f1 == best.f1
    for one, other in zip(
        found.predict(splits["test"])[1], alone.predict(splits["test"])[1], strict=True
    ):
        assert one.sense == other.sense and one.scores == pytest.approx(other.scores, abs=1e-5)
    unlabeled = [
        replace(e, targets=tuple(replace(t, senses=()) for t in e.targets)) for e in splits["train"]
    ]
    with pytest.raises(UserError, match="no target of the training data has gold"):
        WordSenses.fit(SenseSettings(model=model), unlabeled)


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
    scored = run("score", str(out / "predictions.test.jsonl"), str(EXAMPLES / "test.jsonl"))
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
