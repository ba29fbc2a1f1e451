"""Few-shot training: its pairs, its logistic regression, a run from start to prediction."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression

from finetune.config.tasks import TrainConfig
from finetune.data.splitting import per_class
from finetune.inference.embed import Embedder
from finetune.inference.predictor import Predictor
from finetune.models.heads.sentence_encoder import SentenceEncoder
from finetune.tasks import load_task, saved_task
from finetune.tasks.few_shot import cosine_loss
from finetune.training.trainer import fit
from finetune.types import TextExample, UserError
from tests import fixtures as fx
from tests.command import run
from tests.small_data import read_jsonl


def config_of(task: str = "classify", **changes: Any) -> TrainConfig:
    given = {"few_shot": True, "validation": "none", "batch_size": None, "steps": None}
    return fx.config(task, **{**given, "max_length": None, **changes})


def test_vectors_keep_their_length(tmp_path: Path):
    SentenceEncoder.from_pretrained(
        str(fx.checkpoint()), pooling="cls", normalize=True
    ).save_pretrained(tmp_path)
    fx.tokenizer("bert").save_pretrained(tmp_path)
    model = load_task(config_of(model=str(tmp_path)), "classify")[0].model()
    assert (model.pooling, model.normalize) == ("cls", False)


def test_a_run_learns_and_predicts(tmp_path: Path):
    model = str(fx.checkpoint(dropout=0.0))
    common: dict[str, Any] = {"steps": 4, "save_every": 2, "batch_size": 4, "per_class": 6}
    config = config_of(model=model, out=str(tmp_path / "whole"), **common)
    task, dataset = load_task(config, "classify")
    assert Counter(example.label for example in dataset.splits["train"]) == {"neg": 6, "pos": 6}
    result = fit(task, dataset, config)
    log = read_jsonl(tmp_path / "whole/log.jsonl")
    assert [line["step"] for line in log] == [1, 2, 3, 4]

    # the gradient does not depend on the forward passes
    small = replace(config, out=str(tmp_path / "small"), max_tokens=64, max_length=64)
    again = fit(*load_task(small, "classify"), small)
    whole = load_file(tmp_path / "whole/best/classifier.safetensors")
    for name, weight in load_file(tmp_path / "small/best/classifier.safetensors").items():
        torch.testing.assert_close(weight, whole[name], rtol=1e-3, atol=1e-4)
    assert again.metrics == result.metrics

    # the classifier is the logistic regression on the vectors that other libraries read
    train, test = dataset.splits["train"], dataset.splits["test"]
    rows = {}
    for name, examples in (("train", train), ("test", test)):
        embedded = Embedder(tmp_path / "whole/best").encode(e.text for e in examples)  # type: ignore[union-attr]
        rows[name] = np.stack([each.vectors[0] for each in embedded])
    expected = LogisticRegression(max_iter=10_000).fit(rows["train"], [e.label for e in train])  # type: ignore[union-attr]
    predictor = Predictor(tmp_path / "whole")
    found = [p.scores for p in predictor.predict([e.text for e in test])]  # type: ignore[union-attr]
    np.testing.assert_allclose(
        [[scores[name] for name in expected.classes_] for scores in found],
        expected.predict_proba(rows["test"]),
        atol=1e-4,
    )
    saved = read_jsonl(tmp_path / "whole/predictions.test.jsonl")
    assert [max(scores, key=scores.__getitem__) for scores in found] == [
        row["label"] for row in saved
    ]
    assert saved_task(tmp_path / "whole").state.config.few_shot


def test_pairs_of_texts_have_the_standard_labels(tmp_path: Path) -> None:
    few = {"per_class": 2, "steps": 2, "batch_size": 2, "validation": None}
    config = config_of("nli", out=str(tmp_path / "nli"), **few)
    fit(*load_task(config, "nli"), config)
    predictor = Predictor(tmp_path / "nli")
    assert predictor.task.state.labels == ("entailment", "neutral", "contradiction")
    (prediction,) = predictor.predict([("Ada lives in Rome", "Ada is in Rome")])
    assert prediction.scores is not None and sum(prediction.scores.values()) == pytest.approx(1)


def test_pairs_and_loss() -> None:
    task, dataset = load_task(config_of(), "classify")
    train: Any = dataset.splits["train"]
    encoded = task.encode(train).sequences
    rows = np.array([5, 0, 17])
    taken = task.sequences_of_epoch(encoded, 1, 0, rows)
    assert taken.example.tolist() == [5, 5, 5, 0, 0, 0, 17, 17, 17]
    assert taken.window.tolist() == [0, 1, 2] * 3
    ids = [encoding.input_ids for encoding in encoded]
    labels = {tuple(own): example.label for own, example in zip(ids, train, strict=True)}
    for row, (anchor, positive, negative) in zip(rows, _threes(taken), strict=True):
        assert anchor.input_ids == ids[row] != positive.input_ids
        assert labels[tuple(positive.input_ids)] == train[row].label
        assert labels[tuple(negative.input_ids)] != train[row].label
    # a shard draws what the whole epoch draws; epochs and seeds differ
    for seed, epoch, same in ((1, 0, True), (1, 1, False), (2, 0, False)):
        whole = task.sequences_of_epoch(encoded, seed, epoch)
        own = [whole[3 * row + number] for row in rows for number in range(3)]
        assert ([e.input_ids for e in own] == [e.input_ids for e in taken]) == same
    vectors = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    head = task.model()
    # --sampling balanced can draw a text twice: the sequences are in the order of their numbers
    keys = [*zip((3,) * 6 + (7,) * 3, (0, 0, 1, 1, 2, 2, 0, 1, 2), strict=True)]
    with torch.no_grad():
        loss, count = task.batch_loss(head, vectors, keys, {})
    pairs = ((0, 2, 1.0), (1, 3, 1.0), (6, 7, 1.0), (0, 4, 0.0), (1, 5, 0.0), (6, 8, 0.0))
    expected = sum(
        float(cosine_loss(vectors[[n]], vectors[[k]], torch.tensor([label]))[0])
        for n, k, label in pairs
    )
    assert float(count) == 6 and float(loss) == pytest.approx(expected)


def _threes(sequences: Any) -> list[Any]:
    return [[sequences[n + k] for k in range(3)] for n in range(0, len(sequences), 3)]


def test_draws_of_examples_are_nested() -> None:
    rows = [TextExample(n, f"text {n}", label="abc"[n % 3 if n < 9 else 0]) for n in range(60)]
    for seed in (1, 2):
        small, large = (set(per_class(rows, number, seed)) for number in (2, 8))
        assert small < large
        assert Counter(rows[n].label for n in large) == {"a": 8, "b": 3, "c": 3}
    assert per_class(rows, 4, 1) != per_class(rows, 4, 2)


def test_seeds_draw_their_own_examples(tmp_path: Path) -> None:
    few = {"few_shot": True, "tuning": "head", "per_class": 3, "validation": "none", "steps": None}
    outcome = fx.train("classify", out := tmp_path / "seeds", "--seeds=2", **few).ok()
    assert "--per-class 3: drew 6 of 40 training examples" in outcome.err + outcome.out
    assert json.loads((out / "seeds.json").read_text())["seeds"] == [1, 2]
    weights = [load_file(out / f"seed-{n}/best/model.safetensors") for n in (1, 2)]
    for name, weight in weights[0].items():  # the encoder is that of the start
        assert torch.equal(weight, weights[1][name])
    fitted = [load_file(out / f"seed-{n}/best/classifier.safetensors") for n in (1, 2)]
    assert not torch.equal(fitted[0]["weight"], fitted[1]["weight"])
    run("compare", out, out).ok()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"problem": "multi"}, "--few-shot: it compares texts by their one label"),
        (
            {"problem": "multi", "few_shot": False, "per_class": 2},
            "--per-class 2 needs texts with one",
        ),
        ({"data": "pairs", "limit": 1}, "no training example is labeled"),
    ],
)
def test_wrong_settings(tmp_path: Path, settings: dict[str, Any], message: str):
    if "data" in settings:
        settings["data"] = fx.data(settings["data"])
    with pytest.raises(UserError, match=message):
        config = config_of(**{"steps": 1, "out": str(tmp_path / "run"), **settings})
        fit(*load_task(config, "classify"), config)
