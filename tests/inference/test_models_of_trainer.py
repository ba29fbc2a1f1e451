"""Models that transformers.Trainer has trained, models that it or a head has saved, and pipelines.

``pipeline`` gives the entities that the predictor gives, however it is called.
"""

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
from finetune.types import Span, TokenExample
from tests import fixtures as fx
from tests import tiny
from tests.command import run
from tests.small_data import close

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


TEXTS = [
    "Anna saw  New York, and\tGeneral Motors.",
    "",
    "Peter Blackburn lives in Brussels ; Maria Garcia lives in Madrid . " * 6,
    "Unbelievably!",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    words = ("Anna", "Smith", "saw", "New", "York", ".")
    spans = (Span(0, 2, "PER"), Span(1, 2, "PER"), Span(3, 5, "LOC"))
    examples = [TokenExample(index, words, spans) for index in range(3)]
    return fx.untrained("ner", examples, max_width=3, precision="fp32") / "best"


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[dict]]:
    """The predictor's answers in the pipeline's form."""
    names = {"entity": "label", "score": "score", "word": "text"}
    names |= {"start": "start_char", "end": "end_char"}
    return [
        [{name: span[own] for name, own in names.items()} for span in answer.to_dict()["spans"]]
        for answer in finetune.load(folder).predict(TEXTS)
    ]


def test_answers_are_those_of_the_predictor(folder: Path, expected: list[list[dict]]) -> None:
    recognise = pipeline("span-ner", model=str(folder))
    assert recognise.__class__.__name__ == "SpanPipeline"
    assert not recognise.model.training
    found = recognise(TEXTS)
    assert close(found, expected, 1e-5)
    assert found[1] == []
    assert sum(map(len, found)) > 5
    for text, entities in zip(TEXTS, found, strict=True):
        for entity in entities:
            assert list(entity) == ["entity", "score", "word", "start", "end"]
            assert text[entity["start"] : entity["end"]] == entity["word"]
            assert isinstance(entity["score"], float)


def test_one_text_lists_and_generators(folder: Path, expected: list[list[dict]]) -> None:
    recognise = pipeline("span-ner", model=str(folder))
    assert close([recognise(text) for text in TEXTS], expected, 1e-5)
    assert close(recognise(TEXTS[:1]), expected[:1], 1e-5)
    for size in (2, 3, 100):
        assert close(recognise(TEXTS, batch_size=size), expected, 1e-5)
    assert close(pipeline("span-ner", model=str(folder), batch_size=4)(TEXTS), expected, 1e-5)
    lazily = recognise((text for text in TEXTS), batch_size=2)
    assert close(list(lazily), expected, 1e-5)


def test_model_in_memory_and_half_precision(folder: Path, expected: list[list[dict]]) -> None:
    model = finetune.SpanClassifier.from_pretrained(folder)
    assert close(pipeline("span-ner", model=model)(TEXTS), expected, 1e-5)
    half = pipeline("span-ner", model=str(folder), dtype=torch.bfloat16)
    assert half.model.dtype == torch.bfloat16
    assert len(half(TEXTS)) == len(TEXTS)


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    recognise = pipeline("span-ner", model=str(folder))
    with pytest.raises(ValueError, match="takes texts, not 3"):
        recognise([3])
    with pytest.raises(TypeError, match="threshold"):
        recognise(TEXTS, threshold=0.1)
    finetune.SpanClassifier.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"a model without a tokenizer"):
        pipeline("span-ner", model=str(tmp_path))


@pytest.fixture(scope="module", params=["chunks", "pos"])
def crf_folder(request: pytest.FixtureRequest) -> Path:
    """A model with a CRF whose tags encode spans or do not."""
    words = ("Anna", "saw", "Paris", ".")
    chunks = request.param == "chunks"
    tags = ("B-PER", "O", "B-LOC", "O") if chunks else ("NOUN", "VERB", "NOUN", "PUNCT")
    examples = [TokenExample(0, words, tags=tags)]
    return fx.untrained("tag", examples, crf=True, precision="fp32") / "best"


def test_tags_of_a_crf(crf_folder: Path) -> None:
    found = pipeline("crf-tagger", model=str(crf_folder))(TEXTS)
    for mine, prediction in zip(found, finetune.load(crf_folder).predict(TEXTS), strict=True):
        if prediction.spans is None:
            labels, scores = prediction.tags, prediction.scores
        else:
            labels, scores = [span.label for span in prediction.spans], prediction.span_scores
        assert [entity["entity"] for entity in mine] == list(labels)
        assert [entity["score"] for entity in mine] == pytest.approx(list(scores), abs=1e-5)
    assert sum(map(len, found)) > 5
