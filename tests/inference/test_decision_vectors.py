"""Vectors that models decide on: those of plain transformers, in any batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import finetune
from finetune.inference.loop import chunks
from finetune.inference.vectors import decision_vectors
from tests import fixtures as fx

CASES: list[tuple[str, dict[str, Any]]] = [
    ("classify", {}),
    ("classify", {"model": "modernbert"}),
    ("nli", {}),
    ("nli", {"pair_encoder": "poly"}),
    ("classify", {"few_shot": True}),
    ("choice", {}),
    ("tag", {}),
    ("tag", {"crf": True}),
    ("ner", {}),
    ("relations", {}),
    ("qa", {}),
]


def model_of(task: str, settings: dict[str, Any]) -> Any:
    family = settings.get("model", "bert")
    return finetune.load(fx.trained(task, **settings | {"model": str(fx.checkpoint(family))}))


def examples_of(model: Any, number: int = 3) -> list[Any]:
    """Some training examples, with gold."""
    config = model.task.state.config
    return list(model.task.read(config, config.data).splits["train"])[:number]


@pytest.mark.parametrize(("task", "settings"), CASES)
def test_batches_change_nothing(task: str, settings: dict[str, Any]) -> None:
    model = model_of(task, settings)
    examples = examples_of(model, 7)
    whole = decision_vectors(model.task, model.model, examples)
    widths = {"poly": 2, "bi": 2}.get(settings.get("pair_encoder", ""), 1)
    assert whole.shape == (7, widths * model.model.encoder.width) and whole.dtype == np.float32
    alone = [decision_vectors(model.task, model.model, part) for part in chunks(examples, 1)]
    np.testing.assert_allclose(np.concatenate(alone), whole, atol=1e-5)
    config = replace(model.task.state.config, max_tokens=40)
    small = replace(model.task, state=replace(model.task.state, config=config))
    np.testing.assert_allclose(decision_vectors(small, model.model, examples), whole, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("task", ["classify", "nli", "tag"])
def test_vectors_equal_plain_transformers(task: str) -> None:
    model = model_of(task, {})
    examples = examples_of(model, 7)
    folder = fx.trained(task, model=str(fx.checkpoint())) / "best"
    plain = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = decision_vectors(model.task, model.model, examples)
    for example, vector in zip(examples, found, strict=True):
        if task == "tag":
            encoding = tokenizer(list(example.words), is_split_into_words=True, return_tensors="pt")
        else:
            encoding = tokenizer(example.text, example.pair, return_tensors="pt")
        if encoding.input_ids.shape[1] > model.task.state.max_length:
            continue  # cut, or in windows
        states = plain(**encoding).last_hidden_state[0].numpy()
        words = encoding.word_ids()
        first = [words.index(word) for word in range(len(example.words))] if task == "tag" else [0]
        np.testing.assert_allclose(vector, states[first].mean(0), atol=1e-5)
