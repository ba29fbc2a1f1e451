"""Masked language modeling as a task: data to blocks, scores, filling of masks, new encoders."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, BertForPreTraining, pipeline

import finetune
from finetune.config.tasks import TrainConfig
from finetune.evaluation.compare import ComparisonOptions, compare_systems
from finetune.evaluation.error_analysis import analyze
from finetune.inference.predictor import Predictor
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.reporting.html import report_run
from finetune.tasks import load_task
from finetune.types import UserError
from tests import fixtures as fx
from tests import small_data, tiny
from tests.runs import score_predictions
from tests.small_data import read_jsonl

SETTINGS: dict[str, Any] = {"lr": 4e-3, "batch_size": 4, "max_length": 48, "steps": None}


def model_of(family: str = "bert") -> Path:
    return fx.checkpoint(family, dropout=0.0, layers=3, initializer_range=0.1)


def config_of(family: str = "bert", **changes: Any) -> TrainConfig:
    return fx.config("pretrain", **{"model": model_of(family), **SETTINGS, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("pretraining") / "run"
    return fx.fit(config_of(out=out, epochs=14.0, eval_every=200)).folder


def test_learns_and_reports(run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    assert set(metrics["test"]) == {"mlm_accuracy", "mlm_loss", "perplexity"}
    assert metrics["test"]["mlm_accuracy"] > 0.2
    assert metrics["test"]["perplexity"] == pytest.approx(math.exp(metrics["test"]["mlm_loss"]))
    rows = read_jsonl(run / "predictions.test.jsonl")
    losses = [loss for row in rows for loss in row["losses"]]
    assert metrics["test"]["mlm_loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    with pytest.raises(UserError, match="hold their gold"):
        score_predictions(run / "predictions.test.jsonl", str(run / "predictions.test.jsonl"))
    analysis = analyze(str(run))
    assert analysis.run.unit == "sequence"
    assert analysis.scores == pytest.approx(metrics["test"], abs=1e-4)
    compared = compare_systems(str(run), str(run), options=ComparisonOptions(metric="mlm_loss"))
    assert compared.result.difference.value == 0
    (run / "environment.json").write_text("{}")
    assert report_run(run)
    card = (run / "best" / "README.md").read_text("utf-8")
    assert "pipeline_tag: fill-mask" in card and "[MASK]" in card


def test_fills_masks(run: Path) -> None:
    model = Predictor(run)
    text = "Ana saw the [MASK] river near [MASK] and the old house ."
    (prediction,) = model.predict([text])
    masks = prediction.to_dict()["masks"]
    assert len(masks) == 2 and all(len(best) == 5 for best in masks)
    scores = [best["score"] for best in masks[0]]
    assert scores == sorted(scores, reverse=True) and sum(scores) <= 1
    plain = pipeline("fill-mask", str(run / "best"), top_k=5)(text)
    for best, other in zip(masks, plain, strict=True):
        assert [one["subword"] for one in best] == [one["token_str"] for one in other]
        scores = [one["score"] for one in other]
        assert [one["score"] for one in best] == pytest.approx(scores, abs=1e-5)
    long = f"{'Ana saw the river . ' * 30}[MASK] {'Ana saw the river . ' * 30}[MASK]"
    assert len(model.predict([long])[0].to_dict()["masks"]) == 2, "in several windows"
    with pytest.raises(UserError, match=r"has no \[MASK\]: write it"):
        model.predict(["Ana saw the river"])


def test_masks_of_scores_are_the_same_in_every_run() -> None:
    encoded = []
    for changes in ({"seed": 1}, {"seed": 2, "replacement": "unigram", "explore": True}):
        task, data = fx.load(config_of(**changes))
        encoded.append(task.encode(data.splits["test"]).sequences)
    assert np.array_equal(encoded[0].ids.values, encoded[1].ids.values)


def test_sources_are_sampled_by_the_exponent(tmp_path: Path) -> None:
    small_data.running_text(tmp_path / "en", (60, 3, 3))
    small_data.running_text(tmp_path / "de", (3, 3, 3))
    data = f"en={tmp_path}/en,de={tmp_path}/de"
    sizes, texts = {}, []
    for alpha in (0.0, 0.3, 1.0):
        _, data_of_alpha = fx.load(config_of(data=data, alpha=alpha))
        ids_and_keys = [(example.id, example.key) for example in data_of_alpha.splits["train"]]
        sizes[alpha] = len(ids_and_keys)
        assert ids_and_keys == [(number, None) for number in range(sizes[alpha])]
        texts = texts or [example.text for example in data_of_alpha.splits["train"]]
    assert sizes[0.0] > sizes[0.3] > sizes[1.0], "1 repeats nothing"
    half = len(texts) // 2
    assert len(set(texts[:half])) > 2 * len(set(texts[half:])), "both have the same share"


def test_text_in_memory() -> None:
    rows = [{"text": "Ana saw the river .\n\nShe slept .", "label": "x"}, {"text": " "}] * 3
    _, data = load_task(config_of(validation="none"), "pretrain", rows)
    assert [row.text for row in data.splits["train"]] == ["Ana saw the river .\nShe slept ."] * 3


def test_a_new_encoder(tmp_path: Path) -> None:
    settings = {"config": "small", "tokenizer": str(model_of("roberta")), "validation": "none"}
    config = config_of(model=None, steps=2, out=tmp_path / "run", **settings)
    result = fx.fit(config)
    loaded = AutoModelForMaskedLM.from_pretrained(result.folder / "best")
    sizes = loaded.config.num_hidden_layers, loaded.config.hidden_size, loaded.config.vocab_size
    assert sizes == (4, 256, len(tiny.tokenizer("roberta")))
    assert loaded.config.pad_token_id == tiny.tokenizer("roberta").pad_token_id
    task, _ = fx.load(replace(config, config=str(model_of()), tokenizer=None))
    old = MaskedLanguageModel.from_pretrained(str(model_of())).state_dict()
    assert task.model().state_dict().keys() == old.keys()


def test_the_encoder_begins_other_tasks_and_its_head_further_pretraining(run: Path) -> None:
    task, _ = fx.load(fx.config("classify", model=None, init_from=run))
    saved = MaskedLanguageModel.from_pretrained(str(run / "best"), new_head=False)
    further, again = fx.load(config_of(model=None, init_from=str(run)))
    assert f"encoder and masked language model from {run}" in further.notes(again)
    for new, old in ((task.model().encoder.model, saved.encoder.model), (further.model(), saved)):
        weights = new.state_dict()
        for name, value in old.state_dict().items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=0)


def test_further_objectives(tmp_path: Path) -> None:
    """All three objectives learn, are scored, and are saved for plain transformers."""
    changes = {"mask": "spans", "boundary": True, "nsp": True, "epochs": 4.0, "eval_every": 200}
    changes["data"] = fx.data("short_text")
    config = config_of(out=str(tmp_path / "run"), **changes)
    task, data = fx.load(config)
    result = finetune.fit(task, data, config)
    names = {"mlm_accuracy", "mlm_loss", "perplexity", "sbo_loss", "nsp_accuracy"}
    assert set(result.metrics["test"]) == names
    assert result.metrics["test"]["sbo_loss"] < math.log(len(task.tokenizer.tokenizer))
    encoded = task.encode(data.splits["test"]).sequences
    texts = [example.text for example in data.splits["train"]]
    single = sum("\n" not in text for text in texts)
    assert (f"train: {single} sequence" in "\n".join(result.notes)) == (single > 0)
    assert analyze(str(result.folder)).scores == pytest.approx(result.metrics["test"], abs=1e-4)
    best = str(result.folder / "best")
    plain, report = BertForPreTraining.from_pretrained(best, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    _, report = AutoModelForMaskedLM.from_pretrained(best, output_loading_info=True)
    assert not report["missing_keys"]
    rows = read_jsonl(result.folder / "predictions.test.jsonl")
    for sequence, row in zip(encoded, rows, strict=True):
        ids, segments = (torch.tensor([v]) for v in (sequence.input_ids, sequence.token_type_ids))
        with torch.no_grad():
            logits = plain.eval()(ids, token_type_ids=segments).seq_relationship_logits
        assert row["follows_score"] == pytest.approx(float(logits.softmax(-1)[0, 0]), abs=1e-5)
        assert row["follows"] == (sequence.target["next"][0] == 0)
