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

from finetune.embeddings.sense_data import Inventory, read_inventory, read_senses, sense_key
from finetune.embeddings.senses import (
    PRIORS,
    SensePrediction,
    SenseSettings,
    WordSenses,
    sense_scores,
)
from finetune.inference.embed import Embedder
from finetune.types import SenseTarget, TokenExample, UserError
from tests import fixtures as fx
from tests.command import run
from tests.runs import score_predictions
from tests.small_data import read_jsonl, write_jsonl

EXAMPLES = Path(__file__).parents[2] / "examples" / "data" / "senses"
WORDNET = str(EXAMPLES / "wordnet")
A, B, C = "bank%1:14:00::", "bank%1:17:00::", "bank%1:17:01::"
TARGET = {"start": 0, "end": 1, "lemma": "b", "pos": "NOUN"}


WRONG: list[tuple[dict, str]] = [
    ({"tokens": "a b"}, "a row needs `tokens`, a list of words"),
    ({"targets": None}, "a row needs .* and `targets`"),
    ({"targets": []}, "no row of train has targets"),
    *(
        ({"targets": [TARGET | change]}, "target of the 2 words.* pos NOUN, VERB, ADJ or ADV")
        for change in ({"start": 1}, {"end": 3}, {"pos": "X"}, {"senses": [3]})
    ),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_rows(change: dict, message: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", [{"tokens": ["a", "b"], "targets": []} | change])
    with pytest.raises(UserError, match=message):
        read_senses(str(tmp_path / "x.jsonl"))
    (tmp_path / "x.txt").write_text("some words")
    with pytest.raises(UserError, match="has no targets"):
        read_senses(str(tmp_path / "x.txt"))


def test_targets(tmp_path: Path) -> None:
    senses = ["a%5:00:00:dead(p):00", "b%3:00:00::"]
    row: dict = {"id": "s0", "document": "d", "tokens": ["a", "b"], "targets": [TARGET]}
    row["targets"].append(TARGET | {"senses": senses, "id": "t7"})
    data = read_senses(str(write_jsonl(tmp_path / "x.jsonl", [row])))
    first, second = next(iter(data.splits["train"])).targets
    assert (first.key, first.senses, first.document) == ("s0.0", (), "d")
    assert (second.key, second.senses) == ("t7", ("a%5:00:00:dead:00", "b%3:00:00::"))


def test_example_inventory() -> None:
    assert sense_key("asleep%5:00:00:dead(p):00") == "asleep%5:00:00:dead:00"
    assert sense_key("U") is None and sense_key("bank%9:14:00::") is None
    inventory = read_inventory(WORDNET)
    assert inventory.senses["bank", "NOUN"] == ("bank%1:14:00::", "bank%1:17:00::")
    assert inventory.senses["light", "ADJ"][0] == "light%3:00:01::"
    assert "warm%5:00:00:kind:00" in inventory.offsets
    glosses = inventory.glosses(list(inventory.offsets))
    assert len(glosses) == len(inventory.offsets)
    assert (
        glosses["give_up%2:41:00::"]
        == "give up - give up, quit, stop - stop trying or doing something"
    )
    assert "lightweight" in glosses["light%3:00:01::"] and "(a)" not in glosses["light%3:00:01::"]
    data = read_senses(str(EXAMPLES))
    senses = [s for rows in data.splits.values() for e in rows for t in e.targets for s in t.senses]
    assert senses and {*senses} <= inventory.offsets.keys()


def test_wrong_inventories(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no index\.sense in it"):
        read_inventory(tmp_path)
    (tmp_path / "index.sense").write_text("")
    with pytest.raises(UserError, match=r"index\.sense: it lists no sense"):
        read_inventory(tmp_path)
    (tmp_path / "index.sense").write_text("bank%1:14:00:: 00000000 1\n")
    with pytest.raises(UserError, match=r"index\.sense:1: .* is not a line of a sense index"):
        read_inventory(tmp_path)
    (tmp_path / "index.sense").write_text("bank%1:14:00:: 00000003 1 0\n")
    inventory = read_inventory(tmp_path)
    for message in (r"data\.noun: no such file", "no synset of bank%1:14:00:: begins at byte 3"):
        with pytest.raises(UserError, match=message):
            inventory.glosses(["bank%1:14:00::"])
        (tmp_path / "data.noun").write_text("00000000 03 n 01 entity 0 000 | x\n")


def target(*senses: str, lemma: str = "bank", **more: Any) -> SenseTarget:
    return SenseTarget(0, 1, lemma, "NOUN", senses, **more)


def test_files_of_predictions(tmp_path: Path) -> None:
    """The scores are those of the framework's Scorer.java: several senses share the credit."""
    targets = [
        {"start": 0, "end": 1, "lemma": "x", "pos": "NOUN", "id": id, "senses": senses}
        for id, senses in (("d.t0", [A, B]), ("d.t1", [A]), ("d.t2", ["x%5:00:00:dead(p):00"]))
    ]
    gold = write_jsonl(tmp_path / "gold.jsonl", [{"tokens": ["x"], "targets": targets}])
    rows = [
        {"id": "d.t0", "senses": [B]},
        {"id": "d.t1", "senses": []},
        {"id": "d.t2", "senses": ["x%5:00:00:dead:00", C]},
    ]
    expected = {"f1": 0.6, "precision": 1.5 / 2, "recall": 1.5 / 3}
    for lines in (rows, [rows[0], rows[2]]):
        file = write_jsonl(tmp_path / "system.jsonl", lines)
        assert score_predictions(file, str(gold)) == pytest.approx(expected)
    other = write_jsonl(tmp_path / "o.jsonl", [{"id": "x", "senses": [A]}])
    with pytest.raises(UserError, match="is not in"):
        score_predictions(other, str(gold))


def inventory(*keys: str) -> Inventory:
    return Inventory(Path(), {("bank", "NOUN"): keys}, dict.fromkeys(keys, 0))


def senses(vectors: dict[str, Any], counts: dict[str, int], **more: Any) -> WordSenses:
    arrays = {sense: np.array(vector, dtype=float) for sense, vector in vectors.items()}
    listed, embedder = more.pop("inventory", inventory()), Mock(Embedder)
    settings = SenseSettings(model="x", **more)
    return WordSenses(settings, arrays, {("bank", "NOUN"): counts}, listed, embedder)


def test_decisions() -> None:
    vector, tied = np.array([2.0, 1.0]), np.array([1.0, 0.0])
    plain = senses({A: [3.0, 0.0], B: [0.0, 1.0]}, {A: 1, B: 1})
    cosines = plain.cosines(target(), vector, {})
    assert cosines == pytest.approx({A: 2 / np.sqrt(5), B: 1 / np.sqrt(5)})
    assert plain.decide(target(), cosines).sense == A
    listed = senses({A: [1, 0], B: [1, 0]}, {A: 1, B: 3}, inventory=inventory(C, A, B))
    assert listed.candidates(target()) == [C, A, B]
    tie = listed.decide(target(), listed.cosines(target(), tied, {}))
    assert tie.sense == B and tie.scores, "of equal scores, the more frequent"
    without_vector = listed.decide(target(), listed.cosines(target(), None, {}))
    assert without_vector == SensePrediction(target(), C, {}), "WordNet's first sense"
    assert listed.decide(target(lemma="kiosk"), {}).sense is None
    without = senses({A: [1, 0]}, {A: 1, B: 3})
    assert without.decide(target(), {}).sense == B, "the most frequent of training"


def test_prior_and_glosses() -> None:
    frequent = senses({A: [1, 0], B: [0.9, 0.1]}, {A: 1, B: 9}, prior=0.5)
    cosines = frequent.cosines(target(), np.array([1.0, 0.0]), {})
    assert frequent.decide(target(), cosines).sense == B
    assert frequent.decide(target(), cosines, prior=0.0).sense == A
    expected = 1.0 + 0.5 * np.log(1 / 10)
    assert frequent.decide(target(), cosines).scores[A] == pytest.approx(expected)
    glosses = {A: np.array([0.0, 5.0]), C: np.array([0.0, 2.0])}
    more: Any = {"inventory": inventory(A, B, C), "gloss_weight": 1.0}
    cosines = senses({A: [1, 0]}, {A: 1}, **more).cosines(target(), np.array([0.0, 1.0]), glosses)
    assert cosines == pytest.approx({A: np.sqrt(0.5), C: 1.0})
    nothing = senses({}, {}, **more)
    assert nothing.cosines(target(), np.ones(2), glosses) == {}, "glosses alone do not decide"


@pytest.fixture(scope="module")
def splits() -> dict[str, list[TokenExample]]:
    return read_senses(str(EXAMPLES)).splits


def test_sense_vectors_equal_a_plain_mean(splits: dict[str, list[TokenExample]]) -> None:
    model, train = str(fx.checkpoint()), splits["train"]
    settings: dict[str, Any] = {"layers": (1, 2), "pooling": "max", "max_length": 12}
    fitted = WordSenses.fit(SenseSettings(model=model, **settings), train, max_tokens=40)
    plain: defaultdict[str, list[np.ndarray]] = defaultdict(list)
    embedder = Embedder(model, unit="word", **settings)
    for example in train:
        (embedding,) = embedder.encode([example])
        for target in example.targets:
            for sense in target.senses:
                plain[sense].append(embedding.vectors[target.start : target.end].mean(0))
    assert set(fitted.vectors) == set(plain)
    reversed_order = WordSenses.fit(fitted.settings, train[::-1])
    for sense, vectors in plain.items():
        for vectors_of in (fitted.vectors, reversed_order.vectors):
            np.testing.assert_allclose(vectors_of[sense], np.mean(vectors, 0), atol=1e-5)


def test_targets_without_subwords(splits: dict[str, list[TokenExample]]) -> None:
    settings = SenseSettings(model=str(fx.checkpoint()), inventory=WORDNET)
    words = ("a", "\u200b", "bank")
    spans = ((1, 2), (1, 3), (2, 3))
    targets = tuple(SenseTarget(*span, "bank", "NOUN") for span in spans)
    without, partly, complete = WordSenses.fit(settings, splits["train"]).predict(
        [TokenExample(0, words, targets=targets)]
    )
    assert without.sense == "bank%1:14:00::" and not without.scores
    assert partly.scores == pytest.approx(complete.scores), "the words that have subwords"


def test_the_prior_is_chosen_on_validation(splits: dict[str, list[TokenExample]]) -> None:
    settings = SenseSettings(model=str(fx.checkpoint()), inventory=WORDNET, gloss_weight=0.5)
    fitted = WordSenses.fit(settings, splits["train"], splits["validation"])
    chosen, f1 = fitted.settings.prior, {}
    for prior in PRIORS:
        fitted.settings = replace(fitted.settings, prior=prior)
        f1[prior] = sense_scores(fitted.predict(splits["validation"]))["f1"]
    assert chosen == min(prior for prior in PRIORS if f1[prior] == max(f1.values()))
    without_gold = [
        replace(e, targets=tuple(replace(t, senses=()) for t in e.targets)) for e in splits["train"]
    ]
    with pytest.raises(UserError, match="no target of the training data has gold"):
        WordSenses.fit(settings, without_gold)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wsd") / "run"
    shared = ("--data", EXAMPLES, "--inventory", WORDNET, "--model", fx.checkpoint())
    outcome = run("wsd", *shared, "--glosses", "0.5", "--out", out).ok()
    assert "first sense f1" in outcome.out
    return out


def test_scores_of_a_run(fitted: Path) -> None:
    metrics = json.loads((fitted / "metrics.json").read_text())["test"]
    assert metrics["first_sense_f1"] == pytest.approx(9 / 17) and metrics["targets"] == 17
    lines = read_jsonl(fitted / "predictions.test.jsonl")
    assert lines[0]["id"] == "test.s000.t000" and lines[0]["gold"] == ["bank%1:14:00::"]
    assert all(set(line["scores"]) >= set(line["senses"]) for line in lines)
    scored = run("score", fitted / "predictions.test.jsonl", EXAMPLES / "test.jsonl", "--json")
    assert json.loads(scored.out)["f1"] == pytest.approx(metrics["f1"])
    again = run("score", fitted, "--data", EXAMPLES / "test.jsonl", "--format", "json").ok()
    assert "f1 " not in again.err, "printed once"
    assert json.loads(again.out)["f1"] == pytest.approx(metrics["f1"])
    first = fitted / "first_sense.test.jsonl"
    assert "f1 on 17 targets" in run("compare", fitted, first, "--resamples", "50").ok().out
    again = run("predict", fitted, "--file", EXAMPLES / "test.jsonl").ok()
    assert f"f1 {metrics['f1']:.4f}" in again.err
    assert [row["senses"] for row in again.rows] == [line["senses"] for line in lines]
    assert "VERB" in run("report", fitted, "--format", "table").ok().out
    run("report", fitted).ok()
    assert "VERB" in (fitted / "report.html").read_text("utf-8")


def test_predictions_of_texts_and_files(fitted: Path, tmp_path: Path) -> None:
    typed = run("predict", fitted, "--text", "He sat on the *banks=bank* of the river.").ok()
    lines = typed.out.splitlines()
    assert lines[0] == "banks" and lines[1].split()[:2] == ["sense", "part"]
    assert "bank%1:17:00::" in typed.out and "the edge of a river" in typed.out
    scored = [float(line.split()[2]) for line in lines[2:] if line.split()[2][-1].isdigit()]
    assert len(scored) > 1 and scored == sorted(scored, reverse=True)
    named = run("predict", fitted, "--text", "He *went=bank* there, and took the *bass*.").ok()
    assert {"went", "bass"} <= {*named.out.splitlines()}, named.err
    targets = [
        {"start": 1, "end": 2, "lemma": "bass", "pos": "NOUN"},
        {"start": 0, "end": 1, "lemma": "kiosk", "pos": "NOUN"},
    ]
    new = write_jsonl(tmp_path / "new.jsonl", [{"tokens": ["a", "bass"], "targets": targets}])
    saved = tmp_path / "out.jsonl"
    assert not run("predict", fitted, "--file", new, "--out", saved).ok().out
    first, second = read_jsonl(saved)
    assert first["id"] == "0.0" and first["senses"][0].startswith("bass%")
    assert second["senses"] == [] and second["backed_off"] and "gold" not in second
    for arguments, message in (
        (["--text", "no mark"], "no word is marked"),
        (["--text", "a *zzz*"], "no sense of 'zzz'"),
        (["--file", new, "--threshold", "0.5"], "--threshold: it does not apply to a run of wsd"),
        (["--text", "a *bank*", "--out", saved], "--text prints the senses of a sentence"),
    ):
        run("predict", fitted, *arguments).refused(message)
