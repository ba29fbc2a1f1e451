"""Span NER as a task: nothing is lost but what is said to be, whatever the windows and labels."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import finetune
from finetune.config.tasks import NerConfig
from finetune.data import Dataset
from finetune.preprocessing.batching import pack
from finetune.preprocessing.span_candidates import candidates
from finetune.tasks import load_task
from finetune.training.trainer import fit
from finetune.types import IGNORED, Span, TokenExample
from tests.command import run
from tests.covering import covering
from tests.small_data import write_jsonl
from tests.tasks.cases import outputs_of, span_logits
from tests.tiny import save_tiny_checkpoint

NESTED = [
    ("the bank of New York", [(0, 5, "ORG"), (3, 5, "LOC")]),
    ("Anna saw the European Union", [(0, 1, "PER"), (3, 5, "ORG"), (3, 4, "LOC")]),
    ("the big red dog of John Smith of Geneva", [(5, 9, "PER"), (5, 7, "PER"), (8, 9, "LOC")]),
    ("a guitar", []),
    ("IBM in Paris", [(0, 3, "ORG"), (0, 1, "ORG"), (2, 3, "LOC")]),
    (
        "the United Nations of the United Nations of Geneva signed it",
        [(0, 9, "ORG"), (1, 3, "ORG"), (4, 9, "ORG"), (8, 9, "LOC")],
    ),
]
TWICE = [*NESTED, ("Madrid wins", [(0, 1, "LOC"), (0, 1, "ORG")])]
CROSSING = [*NESTED, ("John Smith of New York", [(0, 4, "PER"), (2, 5, "LOC")])]


def rows(sentences: list) -> list[dict]:
    return [
        {
            "tokens": text.split(),
            "spans": [dict(zip(("start", "end", "label"), s, strict=True)) for s in spans],
        }
        for text, spans in sentences
    ]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ner")
    for family in ("bert", "roberta"):
        save_tiny_checkpoint(folder / family, family, num_hidden_layers=2)
    for name, sentences in (("nested", NESTED), ("twice", TWICE), ("crossing", CROSSING)):
        for split in ("train", "validation", "test"):
            write_jsonl(folder / name / f"{split}.jsonl", rows(sentences))
    return folder


def task_of(workdir: Path, data: str = "nested", **settings: Any) -> tuple[Any, Dataset]:
    settings = {"model": str(workdir / "bert"), "max_length": 40, "precision": "fp32", **settings}
    return load_task(NerConfig(data=str(workdir / data), **settings), "ner")


def answers(task: Any, examples: list[TokenExample]) -> list[Any]:
    encoded = task.encode(examples)
    flat = [e for windows in encoded for e in windows]
    batch = pack(flat, task.collate(flat))
    target = batch.targets["span"]
    logits = span_logits(task, target)
    logits[(target == IGNORED).reshape(len(target), -1)[:, 0], -1] = 30.0  # of another window
    outputs = outputs_of(batch, task.decode(logits, batch))
    return [task.postprocess(e, outputs[e.id]) for e in examples]


def out_of_reach(task: Any, examples: list[TokenExample]) -> int:
    """The number that the task tells people."""
    lines = [line for line in task.encode(examples).notes if "out of reach, counted" in line]
    return int(re.match(r"([\d,]+) of", lines[0])[1]) if lines else 0


@pytest.mark.parametrize(
    ("settings", "data"),
    covering(
        [
            {},
            {"max_width": 3},
            {"max_width": 1},
            {"max_length": 10},
            {"max_length": 8, "max_width": 5},
            {"max_length": 10},
            {"multi_label": True},
            {"multi_label": True, "max_length": 10, "max_width": 4},
            {"decoding": "flat"},
            {"decoding": "overlapping", "multi_label": True},
        ],
        ["nested", "twice", "crossing"],
    ),
    ids=str,
)
def test_gold_is_answered_but_for_what_is_said_to_be_lost(
    workdir: Path, data: str, settings: dict[str, Any]
):
    task, dataset = task_of(workdir, data, **settings)
    examples = dataset.splits["test"]
    predicted = answers(task, examples)
    gold = sum(len(example.spans) for example in examples)
    found = sum(len(set(e.spans) & set(p.spans)) for e, p in zip(examples, predicted, strict=True))
    extra = sum(len(set(p.spans) - set(e.spans)) for e, p in zip(examples, predicted, strict=True))
    assert extra == 0
    assert gold - found == out_of_reach(task, examples)
    scores = task.score(examples, predicted)
    assert scores["span_recall_strict"] == pytest.approx(found / gold)
    assert scores["span_precision_strict"] == (1.0 if found else 0.0)


def test_flat_data_is_decoded_flat_unless_told_otherwise(workdir: Path):
    assert task_of(workdir)[0].state.constraint == "nested"
    flat = workdir / "flat"
    for split in ("train", "validation"):
        write_jsonl(flat / f"{split}.jsonl", rows([(t, s[:1]) for t, s in NESTED]))
    assert task_of(workdir, "flat")[0].state.constraint == "flat"
    assert task_of(workdir, "flat", decoding="nested")[0].state.constraint == "nested"


def test_the_widest_span_is_noted(workdir: Path):
    for width, said in ((1, "up to 1 word wide"), (3, "up to 3 words wide")):
        _, data = task_of(workdir, max_width=width)
        assert any(note.startswith(f"candidates: spans {said};") for note in data.notes)


def test_each_candidate_is_learnt_once(workdir: Path):
    """Over all windows of a long text, every span that some window holds has one target."""
    task, _ = task_of(workdir, max_length=12, max_width=4)
    text = " ".join(text for text, _ in NESTED) + " " + "the dog saw it " * 5
    example = TokenExample(0, tuple(text.split()), (Span(3, 5, "LOC"),))
    (windows,) = task.encode([example])
    assert len(windows) > 4
    seen: dict[tuple[int, int], int] = {}
    held = set()
    for window in windows:
        target = task.collate([window])["span"].numpy()
        extents = candidates(window.num_words, 4) + window.first_word
        held |= {tuple(extent) for extent in extents.tolist()}
        for extent, value in zip(extents.tolist(), target.tolist(), strict=True):
            if value != IGNORED:
                assert tuple(extent) not in seen
                seen[tuple(extent)] = value
    assert set(seen) == held
    assert {extent: value for extent, value in seen.items() if value} == {
        (3, 5): 1 + task.state.labels.id("LOC")
    }


@pytest.mark.slow
def test_learns_keeps_its_threshold_and_answers_in_characters(workdir: Path, tmp_path: Path):
    config = NerConfig(
        model=str(workdir / "roberta"),
        data=str(workdir / "nested"),
        out=str(tmp_path / "run"),
        steps=200,
        eval_every=100,
        lr=5e-3,
        batch_size=6,
        precision="fp32",
        calibrate="one",
        weight_decay=0.0,
        max_length=40,
    )
    torch.manual_seed(3)
    task, dataset = load_task(config, "ner")
    result = fit(task, dataset, config)
    assert result.metrics["validation"]["span_f1_strict"] > 0.85
    assert "span_f1_uncalibrated" in result.metrics["test"]
    model = finetune.load(result.folder)
    assert set(model.task.state.thresholds) == set(task.state.labels)
    assert model.model.config.thresholds == model.task.state.thresholds
    (answer,) = model.predict(["the bank of  New York"])
    texts = {(s["text"], s["label"]) for s in answer.to_dict()["spans"]}
    assert texts >= {("the bank of  New York", "ORG"), ("New York", "LOC")}
    (flat,) = finetune.load(result.folder, decoding="flat").predict(["the bank of New York"])
    assert len(flat.spans) == 1
    with pytest.raises(ValueError, match=r"--decoding must be one of .*flat, nested"):
        finetune.load(result.folder, decoding="greedy")

    resumed = replace(config, resume=True)
    again = fit(*load_task(resumed, "ner"), resumed)
    assert again.metrics == result.metrics, "a finished run is not calibrated twice"


def test_a_task_is_trained_again_as_the_first_time(workdir: Path, tmp_path: Path):
    task, dataset = task_of(workdir, steps=10, lr=5e-3, eval_every=5, calibrate="one")
    runs = []
    for name, thresholds in (("new", {}), ("again", dict.fromkeys(task.state.labels, 0.95))):
        # As an earlier training fits them
        task = replace(task, state=replace(task.state, thresholds=thresholds))
        result = fit(task, dataset, replace(task.state.config, out=str(tmp_path / name)))
        lines = (result.folder / "log.jsonl").read_text().splitlines()
        runs.append(([line for line in lines if '"split"' in line], result.metrics))
    assert runs[0] == runs[1]


def test_a_metric_may_be_missing_in_the_first_example(workdir: Path, tmp_path: Path):
    metric = "span_f1_strict:PER"
    sentences = [NESTED[3], *NESTED[:3]]  # the first has no span at all
    data = tmp_path / "data"
    for split in ("train", "validation"):
        write_jsonl(data / f"{split}.jsonl", rows(sentences))
    task, dataset = task_of(workdir, str(data), metric=metric, steps=1)
    result = fit(task, dataset, replace(task.state.config, out=str(tmp_path / "run")))
    assert metric in result.metrics["validation"]


def test_data_without_spans_is_refused(workdir: Path, tmp_path: Path):
    write_jsonl(tmp_path / "train.jsonl", [{"tokens": ["a", "b"], "tags": ["DET", "NOUN"]}])
    refused = run("ner", "--model", workdir / "bert", "--data", tmp_path)
    refused.refused("has spans, or tags that spell spans")
