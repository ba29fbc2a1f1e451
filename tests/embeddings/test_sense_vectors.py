"""Sense vectors of an encoder: equal to a plain computation, saved, reused, chosen by layer."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finetune.embeddings.sense_data import read_senses
from finetune.embeddings.senses import SenseSettings, WordSenses
from finetune.inference.embed import Embedder
from finetune.types import SenseTarget, TokenExample, UserError
from tests.command import run
from tests.small_data import write_jsonl
from tests.tiny import LAYERS, save_tiny_checkpoint

EXAMPLES = Path(__file__).parents[2] / "examples" / "data" / "senses"
WORDNET = str(EXAMPLES / "wordnet")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_checkpoint(tmp_path_factory.mktemp("senses") / "bert", "bert"))


@pytest.fixture(scope="module")
def splits() -> dict[str, list[TokenExample]]:
    return read_senses(str(EXAMPLES)).splits


@pytest.mark.parametrize("settings", [{}, {"layers": (1, 2), "pooling": "max", "max_length": 12}])
def test_sense_vectors_equal_a_plain_mean(
    settings: dict, model: str, splits: dict[str, list[TokenExample]]
) -> None:
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


def test_targets_without_subwords(model: str, splits: dict[str, list[TokenExample]]) -> None:
    found = WordSenses.fit(SenseSettings(model=model, inventory=WORDNET), splits["train"])
    words = ("a", "\u200b", "bank")
    targets = (
        SenseTarget(1, 2, "bank", "NOUN", key="a"),
        SenseTarget(1, 3, "bank", "NOUN", key="b"),
        SenseTarget(2, 3, "bank", "NOUN", key="c"),
    )
    _, (none, part, whole) = found.predict([TokenExample(0, words, targets=targets)])
    assert none == ("bank%1:14:00::", {}, True) and found.num_without_vector == 1
    assert part.scores == pytest.approx(whole.scores), "the words that have subwords"


def test_layers_are_chosen_on_validation(model: str, splits: dict[str, list[TokenExample]]) -> None:
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
    with pytest.raises(UserError, match="chooses on a validation split"):
        WordSenses.fit(auto, splits["train"])
    with pytest.raises(UserError, match="add --inventory"):
        WordSenses.fit(SenseSettings(model=model, gloss_weight=1.0), splits["train"])
    unlabeled = [
        replace(e, targets=tuple(replace(t, senses=()) for t in e.targets)) for e in splits["train"]
    ]
    with pytest.raises(UserError, match="no target of the training data has gold"):
        WordSenses.fit(SenseSettings(model=model), unlabeled)


def test_command(model: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shared = ["--data", str(EXAMPLES), "--inventory", WORDNET, "--model", model]
    outcome = run("wsd", *shared, "--glosses", "0.5", "--out", str(out))
    assert outcome.code == 0, outcome.err
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["test"]["first_sense_f1"] == pytest.approx(9 / 17)
    assert metrics["test"]["targets"] == 17 and "first sense f1" in outcome.out
    lines = [json.loads(line) for line in (out / "predictions.test.jsonl").open()]
    assert lines[0]["id"] == "test.s000.t000" and lines[0]["gold"] == ["bank%1:14:00::"]
    assert all(set(line["scores"]) >= set(line["senses"]) for line in lines)
    scored = run("score", str(out / "predictions.test.jsonl"), str(EXAMPLES / "test.jsonl"))
    assert json.loads(scored.out)["f1"] == pytest.approx(metrics["test"]["f1"])
    compared = run("compare", str(out), str(out / "first_sense.test.jsonl"), "--resamples", "50")
    assert compared.code == 0 and "f1 on 17 targets" in compared.out, compared.err
    again = run("predict", out, "--file", EXAMPLES / "test.jsonl")
    assert again.code == 0 and f"f1 {metrics['test']['f1']:.4f}" in again.err
    assert [json.loads(line)["senses"] for line in again.out.splitlines()] == [
        line["senses"] for line in lines
    ]
    analyzed = run("analyze", str(out))
    assert analyzed.code == 0 and "VERB" in analyzed.out, analyzed.err
    reported = run("report", str(out))
    assert reported.code == 0 and "VERB" in (out / "report.html").read_text("utf-8"), reported.err

    typed = run("predict", out, "--text", "He sat on the *banks* of the river.")
    assert typed.code == 0, typed.err
    lines = typed.out.splitlines()
    assert lines[0] == "banks" and lines[1].split()[:2] == ["sense", "part"]
    assert "bank%1:17:00::" in typed.out and "the edge of a river" in typed.out
    scored = [float(line.split()[2]) for line in lines[2:] if line.split()[2][-1].isdigit()]
    assert len(scored) > 1 and scored == sorted(scored, reverse=True)
    given = run("predict", out, "--text", "He *went=bank* there, and took the *bass*.")
    assert given.code == 0 and {"went", "bass"} <= {*given.out.splitlines()}, given.err
    for text, problem in (("no mark", "no word is marked"), ("a *zzz*", "no sense of 'zzz'")):
        refused = run("predict", out, "--text", text)
        assert refused.code == 2 and problem in refused.err

    new = write_jsonl(
        tmp_path / "new.jsonl",
        [
            {
                "tokens": ["a", "bass"],
                "targets": [
                    {"start": 1, "end": 2, "lemma": "bass", "pos": "n"},
                    {"start": 0, "end": 1, "lemma": "kiosk", "pos": "n"},
                ],
            }
        ],
    )
    saved = tmp_path / "out.jsonl"
    outcome = run("predict", out, "--file", new, "--out", saved)
    first, second = (json.loads(line) for line in saved.open())
    assert first["id"] == "0.0" and first["senses"][0].startswith("bass%") and not outcome.out
    assert second["senses"] == [] and second["backed_off"] and "gold" not in second
    for wrong, message in (
        (["--file", new, "--threshold", "0.5"], "--threshold: it does not apply to a run of wsd"),
        (["--text", "a *bank*", "--out", saved], "--text prints the senses of a sentence"),
    ):
        refused = run("predict", out, *wrong)
        assert refused.code == 2 and message in refused.err, refused.err


def test_wrong_use(model: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "new"), "--model", model]
    data = ["--data", str(EXAMPLES)]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    test = EXAMPLES / "test.jsonl"
    for wrong, message in (
        ([*data, *out, "--glosses=-1"], "--glosses must be a finite number of 0 or more"),
        ([*data, "--out", str(tmp_path / "full")], "is not empty: name a new folder"),
        (["--data", f"test={test}", *out], "no train split (found: test)"),
    ):
        outcome = run("wsd", *wrong)
        assert outcome.code == 2 and message in outcome.err, outcome.err
    assert not (tmp_path / "new").exists()
