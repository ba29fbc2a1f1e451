"""What a run on few examples says at its end."""

from __future__ import annotations

import pytest

from finetune.config.tasks import ClassifyConfig, TagConfig
from finetune.reporting.environment import advice
from finetune.types import Example, TextExample, TokenExample


def texts(number: int) -> list[Example]:
    return [TextExample(index, "t", label="ab"[index % 2]) for index in range(number)]


@pytest.mark.parametrize("degenerate", [False, True])
def test_few_texts_name_few_shot_training_epochs_labels_and_a_command(degenerate: bool):
    said = advice(ClassifyConfig(out="runs/x"), texts(45), degenerate)
    assert "20 steps on 45 training examples, 22 of each of 2 labels" in said
    assert "--epochs 50 makes 100" in said and "64 of each label or more" in said
    assert said.endswith("Try: finetune run runs/x/config.json --few-shot --out runs/x-2")


def test_tasks_without_few_shot_training_try_more_epochs():
    words = [TokenExample(n, ("w",), tags=("O",)) for n in range(20)]
    said = advice(TagConfig(out="x"), words, True)
    assert "--few-shot" not in said and "--sizes" in said
    assert said.endswith("Try: finetune run x/config.json --epochs 100 --out x-2")


def test_large_runs_get_advice_only_where_they_failed():
    config = ClassifyConfig(out="x", epochs=3)
    assert advice(config, texts(10_000), False) == ""
    assert "another --lr" in advice(config, texts(10_000), True)
    assert advice(ClassifyConfig(out="x", few_shot=True), texts(20), False) == ""
