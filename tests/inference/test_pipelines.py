"""transformers' ``pipeline`` gives the entities that the predictor gives, however it is called."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import pipeline

import finetune
import finetune.inference.pipelines
from finetune.types import Span, TokenExample
from tests import fixtures as fx
from tests.small_data import close

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
