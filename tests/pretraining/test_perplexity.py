"""Pseudo-log-likelihoods: equal to a loop over masked copies with plain transformers."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from finetune.pretraining.perplexity import TextScorer
from tests.command import Outcome, run
from tests.covering import covering
from tests.fixtures import checkpoint
from tests.small_data import read_jsonl, write_jsonl

TEXTS = ["the unbelievably late train from paris", "", "nobody knew why", "a"]
LONG = " ".join(["two children run across the street because it rains"] * 11)


def reference(folder: Path, text: str, method: str) -> list[float]:
    """Log-probabilities of the subwords of one text, one masked copy at a time."""
    plain = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    encoding = plain(text, return_tensors="pt")
    ids, words = encoding["input_ids"][0], encoding.word_ids()
    positions = [index for index, word in enumerate(words) if word is not None]
    log_probabilities = []
    for position in positions:
        masked = [position]
        if method == "word":
            masked = [p for p in positions if p >= position and words[p] == words[position]]
        row = ids.clone()
        row[masked] = plain.mask_token_id
        with torch.no_grad():
            logits = model(**{**encoding, "input_ids": row[None]}).logits[0, position]
        log_probabilities.append(float(logits.log_softmax(-1)[ids[position]]))
    return log_probabilities


@pytest.mark.parametrize(
    ("family", "method"),
    covering(["bert", "roberta", "squeezebert", "modernbert"], ["token", "word"]),
)
def test_equal_to_plain_transformers(family: str, method: str):
    scorer = TextScorer(checkpoint(family), method=method, max_tokens=60)
    scores = list(scorer.score(TEXTS))
    assert [score.text for score in scores] == TEXTS
    for text, score in zip(TEXTS, scores, strict=True):
        expected = reference(checkpoint(family), text, method)
        np.testing.assert_allclose(score.log_probabilities, expected, atol=1e-4)
        assert score.log_likelihood == pytest.approx(sum(expected), abs=1e-3)
    assert scores[1].perplexity is None
    assert scores[3].perplexity == pytest.approx(math.exp(-scores[3].log_probabilities.mean()))


@pytest.mark.parametrize("method", ["token", "word"])
def test_long_texts_in_windows(method: str, monkeypatch: pytest.MonkeyPatch):
    scorer = TextScorer(checkpoint(), method=method, max_length=32)
    texts = ["anna", LONG, "x" * 70, "late"]  # one word longer than a window
    scores = list(scorer.score(texts))
    for score in scores:
        assert len(score.log_probabilities) == len(score.subwords) > 0
        assert (score.log_probabilities < 0).all()
    monkeypatch.setattr("finetune.pretraining.perplexity.TEXTS", 1)
    for again, score in zip(scorer.score(texts), scores, strict=True):
        np.testing.assert_allclose(again.log_probabilities, score.log_probabilities, atol=1e-5)
    # the first words of a long text are read in the first window alone
    begins = [" ".join(LONG.split()[:number]) for number in range(1, 30)]
    sizes = map(len, scorer.tokenizer.text_subwords(begins))
    window = [text for text, size in zip(begins, sizes, strict=True) if size <= 30][-1]
    expected = reference(checkpoint(), window, method)[0]
    assert scores[1].log_probabilities[0] == pytest.approx(expected, abs=1e-4)


def measures_of(done: Outcome) -> dict[str, float]:
    return {row["measure"]: row["value"] for row in json.loads(done.out)}


def test_command_on_texts(tmp_path: Path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS), encoding="utf-8")
    output = tmp_path / "scores.jsonl"
    done = run("perplexity", checkpoint(), "--file", texts, "--out", output, "--json").ok()
    scores = measures_of(done)
    rows = read_jsonl(output)
    assert [row["text"] for row in rows] == TEXTS
    total = sum(row["log_likelihood"] for row in rows)
    sums = {name: sum(row[f"num_{name}"] for row in rows) for name in ("subwords", "characters")}
    assert scores["pseudo perplexity"] == pytest.approx(math.exp(-total / sums["subwords"]))
    bits = -total / math.log(2) / sums["characters"]
    assert scores["bits per character"] == pytest.approx(bits)
    assert scores["words"] == sum(len(text.split()) for text in TEXTS)
    assert scores["log likelihood"] == pytest.approx(total, abs=1e-4)
    shown = run("perplexity", checkpoint(), "--text", "a ጠ", "--method", "word")
    assert "--method word" in shown.out and "a ጠ" in shown.out
    assert re.search(r"unknown +1\b", shown.out)


def test_command_on_pairs(tmp_path: Path):
    scorer = TextScorer(checkpoint())
    pairs = [(a, b) for a in TEXTS for b in ("anna", "the old house")]
    texts = sorted({text for pair in pairs for text in pair})
    scores = {text: s.log_likelihood for text, s in zip(texts, scorer.score(texts), strict=True)}
    file, output = tmp_path / "pairs.jsonl", tmp_path / "predictions.jsonl"
    rows = [{"id": f"p{n}", "text": a, "text_pair": b} for n, (a, b) in enumerate(pairs)]
    write_jsonl(file, rows)
    done = run("perplexity", checkpoint(), "--file", file, "--out", output, "--format", "json").ok()
    measures = measures_of(done)
    expected = np.mean([scores[a] > scores[b] for a, b in pairs])
    assert measures["accuracy"] == pytest.approx(expected)
    assert f"{expected:.4f}" in run("score", output).ok().out
    predictions = read_jsonl(output)
    assert [row["id"] for row in predictions] == [f"p{n}" for n in range(len(pairs))]
    assert "accuracy" in run("compare", output, output, "--resamples", "50").ok().out
