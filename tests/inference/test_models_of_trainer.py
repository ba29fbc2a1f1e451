"""Models that transformers.Trainer has trained, and models that it or a head has saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
    pipeline,
)

import finetune
import finetune.inference.pipelines
from finetune import CrfTagger, SequenceClassifier, SpanClassifier
from tests import fixtures as fx
from tests import tiny
from tests.command import run

LABELS = ["bad", "good"]
TAGS = ["O", "B-PER", "I-PER"]
TEXT = "anna saw a big red dog"


@pytest.fixture(scope="module")
def encoder() -> str:
    return str(fx.checkpoint("roberta"))


def test_trainer_trains_the_model_inside(encoder: str, tmp_path: Path):
    """Python, the command line and transformers load what it saves, and agree."""
    head = SequenceClassifier.from_pretrained(encoder, labels=LABELS)
    rows = [
        {"input_ids": [0, 8, 9, 10 + n, 2], "attention_mask": [1] * 5, "labels": n % 2}
        for n in range(8)
    ]
    arguments = TrainingArguments(
        str(tmp_path / "out"),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        max_steps=2,
        learning_rate=0.1,
        save_strategy="no",
    )
    before = head.model.classifier.out_proj.weight.detach().clone()
    tokenizer = tiny.tokenizer("roberta")
    trainer = Trainer(head.model, arguments, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    assert not torch.equal(before, head.model.classifier.out_proj.weight)
    trainer.save_model(str(folder := tmp_path / "saved"))
    (found,) = finetune.load(folder).predict([TEXT])
    (plain,) = pipeline("text-classification", model=str(folder))(TEXT)
    assert found.label == plain["label"]
    assert found.score == pytest.approx(plain["score"], abs=0.02)  # bfloat16
    outcome = run("predict", folder, "--text", TEXT).ok()
    assert json.loads(outcome.out)["label"] == plain["label"]


@pytest.mark.parametrize("problem", ["single", "multi", "regression"])
def test_saved_head(encoder: str, tmp_path: Path, problem):
    labels = ["score"] if problem == "regression" else LABELS
    head = SequenceClassifier.from_pretrained(encoder, labels=labels, problem=problem)
    head.save_pretrained(tmp_path / "saved")
    (found,) = finetune.load(tmp_path / "saved").predict([TEXT])
    kinds = {"single": str, "multi": tuple, "regression": float}
    assert isinstance(found.label, kinds[problem])


def test_heads_that_transformers_lacks(encoder: str, tmp_path: Path):
    spans = SpanClassifier.from_pretrained(encoder, labels=["PER"], max_width=2)
    spans.save_pretrained(tmp_path / "spans")
    (found,) = finetune.load(tmp_path / "spans").predict([TEXT])
    assert all(span.end - span.start <= 2 for span in found.spans)
    tagger = CrfTagger.from_pretrained(encoder, labels=TAGS, scheme="BIO")
    tagger.save_pretrained(tmp_path / "tags")
    again = finetune.Predictor(tmp_path / "tags")
    (found,) = again.predict([TEXT])
    assert len(found.tags) == 6 and again.model.labels == tagger.labels
    assert pipeline("crf-tagger", model=str(tmp_path / "tags"))(TEXT) is not None


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_masked_language_models_fill_masks(family: str, tmp_path: Path):
    tiny.save_tiny_checkpoint(tmp_path / "model", family)
    folder = tmp_path / "model"
    tiny.model(family, AutoModelForMaskedLM).save_pretrained(folder)
    texts = ["anna saw a [MASK] dog", "anna saw a <mask> dog"]
    outcome = run("predict", folder, "--text", texts[0], "--text", texts[1]).ok()
    first, second = outcome.rows
    assert [first["text"], second["text"]] == texts
    assert first["masks"] == second["masks"] and len(first["masks"][0]) == 5
    own = texts[0].replace("[MASK]", tiny.tokenizer(family).mask_token)
    filled = pipeline("fill-mask", model=str(folder), top_k=10)(own)
    expected = {each["token_str"].strip(): each["score"] for each in filled}
    for mask in first["masks"][0]:  # bfloat16 may swap neighbors
        assert mask["score"] == pytest.approx(expected[mask["subword"]], abs=0.02)


def test_an_encoder_without_a_head_is_said_to_be_one(tmp_path: Path):
    tiny.model("bert").save_pretrained(tmp_path / "encoder")
    said = ("BertModel is an encoder without a trained head", "fills no masks", "roberta-base")
    run("predict", tmp_path / "encoder", "--text", "a [MASK]").refused(*said)


def test_models_of_plain_transformers(encoder: str, tmp_path: Path):
    """A model of natural language inference, labels in capitals, classifies without training."""
    names = ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]
    model = AutoModelForSequenceClassification.from_pretrained(
        encoder, id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)}
    )
    model.save_pretrained(tmp_path / "nli")
    with pytest.raises(ValueError, match="a model without a tokenizer"):
        finetune.load(tmp_path / "nli")
    tiny.tokenizer("roberta").save_pretrained(tmp_path / "nli")
    (found,) = finetune.load(tmp_path / "nli").predict([("anna saw", "anna")])
    assert found.label in names
