"""Settings: documentation, ranges, and the forms they are written in."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from finetune.config.tasks import (
    CONFIGS,
    DEFAULT_MODEL,
    WITHOUT_OPTION,
    ClassifyConfig,
    NerConfig,
    NliConfig,
    TagConfig,
    TrainConfig,
    affects_of,
    affects_results,
    column_map,
    flag,
    from_settings,
    settings,
)
from finetune.types import UserError
from tests.command import option_texts

every_task = pytest.mark.parametrize("task", CONFIGS)


@every_task
def test_every_field_is_documented(task: str):
    docs = option_texts(CONFIGS[task])
    fields = {field.name for field in dataclasses.fields(CONFIGS[task])}
    names = [flag(name) for name in fields - {*CONFIGS[task].unused} - WITHOUT_OPTION]
    assert sorted(docs) == sorted(names)
    assert all(len(text) > 15 and text[-1] in ".)" for text in docs.values())


def test_paths_and_dicts_of_python_are_settings():
    config = ClassifyConfig(
        out=Path("runs/a"), class_weights={"a, b": 2, "c": 0.5}, test_sets={"new": Path("new.csv")}
    )
    assert config == ClassifyConfig(
        out=str(Path("runs/a")), class_weights="a, b=2,c=0.5", test_sets=("new=new.csv",)
    )
    with pytest.raises(UserError, match="--test-sets: new must be a text or a number, not"):
        ClassifyConfig(test_sets={"new": [{"text": "x"}] * 99})
    with pytest.raises(UserError, match=r"--validation must be auto, .{,150}$"):
        ClassifyConfig(validation=[{"text": "x"}] * 99)


@every_task
def test_settings_and_back(task: str):
    config = CONFIGS[task](columns=("text=a", "label=b"), lr=1e-3, steps=7, out="x y", resume=True)
    written = json.loads(json.dumps(settings(config)))
    assert from_settings(CONFIGS[task], written) == config
    assert from_settings(CONFIGS[task], settings(CONFIGS[task]())) == CONFIGS[task]()


def test_tokens_of_a_pass_follow_the_device_unless_said():
    assert [TrainConfig().tokens_on(device) for device in ("cpu", "cuda", "mps")] == [
        4096,
        32768,
        4096,
    ]
    assert TrainConfig(max_length=6000).max_tokens is None, "a sequence may be a pass of its own"
    before = {**settings(NliConfig()), "max_tokens": 4096}  # as older runs have it
    assert from_settings(NliConfig, before).tokens_on("cuda") == 4096


def test_names():
    assert flag("batch_size") == "--batch-size"
    assert column_map(("text=a", "label=b=c")) == {"text": "a", "label": "b=c"}
    assert column_map(("text=a,label=b, c", "id=d")) == {"text": "a", "label": "b, c", "id": "d"}


def test_a_setting_says_what_it_may_change() -> None:
    affects = affects_of(NerConfig)
    assert [*affects] == [field.name for field in dataclasses.fields(NerConfig)]
    results = {name for name, mark in affects.items() if not mark.results}
    assert results >= {"out", "max_tokens", "encoding"}
    assert {"data", "metric", "test_sets"} <= {n for n, mark in affects.items() if mark.scores}
    assert affects["max_width"].weights and affects["max_width"].data, "as other settings of a task"
    assert affects["data"].scores, "of the base, though the task declares it again"
    assert affects["out"].acts and not affects["lr"].acts
    assert affects_results("lr") and not affects_results("save_every")


WRONG = [
    (ClassifyConfig, {"epochs": 0}, "--epochs must be above 0 and at most 1e9, not 0"),
    (ClassifyConfig, {"epochs": math.inf}, "--epochs must be a finite number, not inf"),
    (ClassifyConfig, {"steps": 10**30}, "--steps must be a finite number, not 1000"),
    (ClassifyConfig, {"precision": "fp8"}, "--precision must be one of auto, bf16, fp16, fp32"),
    (ClassifyConfig, {"lr": "1e-3"}, "--lr must be a number, not '1e-3'"),
    (ClassifyConfig, {"columns": "text=a"}, "--columns must be a list of texts"),
    (ClassifyConfig, {"layer_decay": 1.5}, "layer_decay must be above 0 and at most 1, not 1.5"),
    (ClassifyConfig, {"freeze": "-1"}, "freeze must be none, embeddings, or a number"),
    (ClassifyConfig, {"columns": ("text",)}, "--columns must be role=column, .* not 'text'"),
    (TagConfig, {"freeze": "all"}, "a number of layers .the whole encoder: --tuning head."),
    (TagConfig, {"max_length": 10, "max_tokens": 5}, "--max-length 10 exceeds --max-tokens 5"),
    (ClassifyConfig, {"loss": "weighted"}, "--loss must be ce, focal, .* see --class-weights"),
    (ClassifyConfig, {"loss": "logit-adjusted", "sampling": "balanced"}, "--sampling balanced"),
    (ClassifyConfig, {"loss": "logit-adjusted:2", "class_weights": "auto"}, "--class-weights"),
    (NerConfig, {"loss": "logit-adjusted"}, "does not apply to spans"),
    (TagConfig, {"crf": True, "loss": "focal"}, "--loss focal does not go with --crf"),
    (TagConfig, {"crf": True, "class_weights": "auto"}, "--class-weights auto does not go with"),
    (NerConfig, {"label_smoothing": 0.1}, "label_smoothing 0.1 does not apply to ner: leave"),
    (ClassifyConfig, {"label_smoothing": 0.1, "loss": "focal:1"}, "not go with --loss focal:1"),
    (ClassifyConfig, {"label_smoothing": 0.1, "few_shot": True}, "does not apply to --few-s"),
    (TagConfig, {"label_smoothing": 0.1, "crf": True}, "smoothing 0.1 does not go with --crf"),
    (TagConfig, {"calibrate": "temperature", "crf": True}, "temperature does not go with --crf"),
    (NerConfig, {"max_width": 41, "max_length": 40}, "--max-width 41 exceeds --max-length 40"),
    (ClassifyConfig, {"few_shot": True, "loss": "focal"}, "--loss focal does not apply to --few-s"),
    (ClassifyConfig, {"few_shot": True, "head_lr": 0.1}, "head_lr 0.1 does not apply"),
    (ClassifyConfig, {"few_shot": True, "pair_encoder": "bi"}, "--pair-encoder bi does not apply"),
    (ClassifyConfig, {"few_shot": True, "long_text": "window"}, "reads one sequence of each text"),
    (
        ClassifyConfig,
        {"few_shot": True, "tuning": "head", "epochs": 2},
        "--epochs 2 does not apply to --few-shot --tuning head",
    ),
] + [
    (NliConfig, {name: 0}, f"{flag(name)} must be above 0, not 0")
    for name in ("lr", "limit", "steps", "max_length", "head_lr", "eval_every", "save_every")
]


@pytest.mark.parametrize(("cls", "values", "message"), WRONG)
def test_ranges(cls: type[TrainConfig], values: dict, message: str):
    with pytest.raises(ValueError, match=message):
        cls(**values)


@pytest.mark.parametrize("freeze", ["none", "embeddings", "0", "12"])
def test_legal_freezing(freeze: str):
    assert ClassifyConfig(freeze=freeze).freeze == freeze
    assert ClassifyConfig(freeze=2).freeze == "2"  # type: ignore[arg-type]


def test_an_unset_model_is_the_default_or_that_of_the_run_to_start_from():
    assert NliConfig().model == DEFAULT_MODEL
    assert NliConfig(init_from="runs/x").model is None
    assert NliConfig(init_from="runs/x", model="m").model == "m"
