"""Classes keep the numbers that the data set gives them, in the model and when a run resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

import finetune
from finetune.config.tasks import CONFIGS
from finetune.tasks import load_task
from tests import fixtures as fx


@pytest.fixture(scope="module")
def model() -> str:
    return str(fx.checkpoint())


def texts(names: list[str], used: list[str] | None = None, **more: str) -> datasets.Dataset:
    """Eight texts for each of the ``used`` names of a ClassLabel column."""
    rows = [
        {"text": f"a {name} film {i}", "label": names.index(name), **more}
        for i in range(8)
        for name in used or names
    ]
    columns = {name: datasets.Value("string") for name in ("text", *more)}
    features = datasets.Features({**columns, "label": datasets.ClassLabel(names=names)})
    return datasets.Dataset.from_list(rows, features=features)


def labels(task: str, model: str, data: Any) -> list[str]:
    return list(load_task(CONFIGS[task](model=model), task, data)[0].state.labels)


def test_numbers_of_the_data_set(model: str, tmp_path: Path) -> None:
    cola = ["unacceptable", "acceptable"]
    assert labels("classify", model, texts(cola)) == cola
    mrpc = texts(["not_equivalent", "equivalent"], text_pair="b")
    assert labels("nli", model, mrpc) == ["not_equivalent", "equivalent"]
    wnli = texts(["not_entailment", "entailment"], text_pair="b")
    assert labels("nli", model, wnli) == ["not_entailment", "entailment"]
    reordered = texts(["contradiction", "entailment", "neutral"], text_pair="b")
    assert labels("nli", model, reordered) == ["entailment", "neutral", "contradiction"]
    path = tmp_path / "train.parquet"
    texts(cola).to_parquet(path)
    assert labels("classify", model, str(path)) == cola
    # a class that no text has keeps no place, as after a filter
    assert labels("classify", model, texts(["x", "b", "a"], ["b", "a"])) == ["b", "a"]
    assert labels("classify", model, [{"text": f"{n} film", "label": n} for n in "baba"]) == [*"ab"]


def test_numbers_of_tags(model: str) -> None:
    tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]

    def words(names: list[str]) -> datasets.Dataset:
        columns = {
            "tokens": datasets.List(datasets.Value("string")),
            "tags": datasets.List(datasets.ClassLabel(names=names)),
        }
        rows = [{"tokens": [*"abcde"[: len(names)]], "tags": [*range(len(names))]}] * 8
        rows = [{**row, "tokens": [*row["tokens"][:-1], str(i)]} for i, row in enumerate(rows)]
        return datasets.Dataset.from_list(rows, features=datasets.Features(columns))

    assert labels("tag", model, words(tags)) == tags
    assert labels("tag", model, words(["VERB", "NOUN", "ADJ"])) == ["VERB", "NOUN", "ADJ"]


def test_a_run_is_resumed_with_the_order_of_its_model(model: str, tmp_path: Path) -> None:
    """Older versions sorted the classes by name: the saved head has them in that order."""
    rows = texts(["worse", "better"])
    plain = [{**row, "label": ["worse", "better"][row["label"]]} for row in rows]
    settings = {"out": str(tmp_path / "run"), "steps": 4, "batch_size": 4, "quiet": True}
    first = finetune.train("classify", plain, model, **settings)
    again = finetune.train("classify", rows, model, resume=True, **settings)
    assert again.metrics == first.metrics
    assert list(again.predictor.labels) == ["better", "worse"]
    saved = json.loads((again.folder / "best" / "config.json").read_text())
    assert saved["id2label"] == {"0": "better", "1": "worse"}
    fresh = finetune.train("classify", rows, model, **{**settings, "out": str(tmp_path / "new")})
    saved = json.loads((fresh.folder / "best" / "config.json").read_text())
    assert saved["id2label"] == {"0": "worse", "1": "better"}
    prediction = fresh.predictor.predict(["a better film"])[0]
    assert list(prediction.scores or {}) == ["worse", "better"]
