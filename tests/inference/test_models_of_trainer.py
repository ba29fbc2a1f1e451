"""Heads that transformers.Trainer has trained, and models that it or a head has saved."""

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
from finetune import CrfTagger, SequenceClassifier, SpanClassifier, TokenClassifier
from tests import laboratory as lab
from tests import tiny
from tests.command import run

LABELS = ["bad", "good"]
TAGS = ["O", "B-PER", "I-PER"]
TEXT = "anna saw a big red dog"


@pytest.fixture(scope="module")
def encoder() -> str:
    return str(lab.checkpoint("roberta"))


def trained(head: torch.nn.Module, labels: list, folder: Path) -> Trainer:
    rows = [
        {"input_ids": [0, 8, 9, 10 + n, 2], "attention_mask": [1] * 5, "labels": labels[n % 2]}
        for n in range(8)
    ]
    arguments = TrainingArguments(
        str(folder),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        max_steps=2,
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        learning_rate=0.5,
    )
    trainer = Trainer(head, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    return trainer


def test_trained_and_saved_by_trainer(encoder: str, tmp_path: Path):
    """The model that it saves is the best one, which it has read back from a checkpoint."""
    head = SequenceClassifier.from_pretrained(encoder, labels=LABELS)
    trainer = trained(head, [0, 1], tmp_path / "out")
    losses = {
        line["step"]: line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line
    }
    assert trainer.state.best_metric == min(losses.values()) < losses[2]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric)
    trainer.save_model(str(tmp_path / "saved"))
    assert_same_answers(tmp_path / "saved", "text-classification")


def assert_same_answers(folder: Path, task: str) -> None:
    """Python, the command line and transformers load a folder and agree."""
    (found,) = finetune.load(folder).predict([TEXT])
    (plain,) = pipeline(task, model=str(folder))(TEXT)
    assert found.label == plain["label"]
    assert found.score == pytest.approx(plain["score"], abs=0.02)  # bfloat16
    outcome = run("predict", folder, "--text", TEXT).ok()
    assert json.loads(outcome.out)["label"] == plain["label"]


def test_tagger_of_trainer(encoder: str, tmp_path: Path):
    head = TokenClassifier.from_pretrained(encoder, labels=TAGS)
    trained(head, [[-100, 1, 2, 0, -100]] * 2, tmp_path / "out").save_model(str(tmp_path / "saved"))
    (found,) = finetune.load(tmp_path / "saved").predict([TEXT])
    assert len(found.tags) == 6 and {*found.tags} <= {*TAGS}
    assert found.spans is not None, "the labels are a tag scheme"
    plain = pipeline("token-classification", model=str(tmp_path / "saved"), ignore_labels=[])
    assert [each["entity"] for each in plain(TEXT)][: len(found.tags)]


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
    again = finetune.Predictor.from_pretrained(tmp_path / "tags")
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
