"""The bench prints what it promises and leaves everything as it was; its times are not judged."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from finetune.benchmark import measure, prediction, subject, synthetic
from finetune.benchmark.commands import Bench
from finetune.benchmark.measure import Arm, Case, Work
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.runtime.memory import memory_returned
from tests import laboratory as lab
from tests import tiny
from tests.command import run

TRAIN = [
    "finetune",
    "finetune-whole-vocabulary",
    "finetune-fp32",
    "trainer-best",
    "trainer-dynamic-fp32",
]
PREDICT = ["finetune", "finetune-fp32", "pipeline-default", "pipeline-batch32"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    assert threads == torch.get_num_threads()


def bench(model: Path, *more: str) -> dict:
    outcome = run("bench", "--model", model, "--size", "small", "--json", *more).ok()
    return json.loads(outcome.out)


def test_json() -> None:
    found = bench(lab.checkpoint(), "--rounds", "2", "--threads", "1")
    arms: dict[str, list[str]] = {}
    for row in found["rows"]:
        arms.setdefault(row["phase"], []).append(row["arm"])
        assert row["tokens_per_second"] > row["examples_per_second"] > 0
        assert 0 < row["lowest"] <= row["examples_per_second"] <= row["highest"]
        assert row["milliseconds"] > 0
        assert row["peak_memory_bytes"] is None or row["peak_memory_bytes"] >= 0
        assert row["arm"] != "finetune" or row["ratio"] == 1
    assert arms == {"train": TRAIN, "predict": PREDICT}
    assert found["environment"]["torch"] == torch.__version__
    assert found["environment"]["threads"] == 1
    assert found["environment"]["processor"]


@pytest.mark.parametrize(("family", "task"), [("roberta", "nli"), ("deberta-v2", "tag")])
def test_other_tasks_and_families(family: str, task: str) -> None:
    found = bench(lab.checkpoint(family), "--task", task, "--phases", "train,predict")["rows"]
    assert [row["arm"] for row in found] == TRAIN + PREDICT


@pytest.mark.slow
def test_exported_graphs(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    rows = bench(lab.checkpoint(), "--task", "tag", "--phases", "onnx", "--threads", "1")["rows"]
    arms = ["finetune", "finetune-fp32", "onnx", "onnx-int8"]
    assert [row["arm"] for row in rows if row["arm"] != "finetune-fp32"] == 2 * [
        arm for arm in arms if arm != "finetune-fp32"
    ]
    alone = [row["case"].endswith("one by one") for row in rows]
    assert alone == sorted(alone, reverse=True) and any(alone) and not all(alone)
    for row, one in zip(rows, alone, strict=True):
        assert (row["p50_milliseconds"] is not None) == one
        assert not one or 0 < row["p50_milliseconds"] <= row["p95_milliseconds"]
    source, run_folder = "examples/data/sentiment", tmp_path / "run"
    run(
        "classify",
        "--model",
        lab.checkpoint(),
        "--data",
        source,
        "--steps",
        "1",
        "--out",
        run_folder,
    )
    outcome = run("bench", "--size", "small", "--phases", "onnx", run_folder).ok()
    assert "p95 ms" in outcome.out and "onnx-int8" in outcome.out
    run("bench", run_folder).refused("--phases onnx alone")


def test_data_of_ones_own() -> None:
    found = bench(
        lab.checkpoint(),
        "--data",
        "examples/data/sentiment",
        "--phases",
        "train",
        "--batch-size",
        "6",
    )["rows"]
    assert [row["arm"] for row in found] == TRAIN
    case = found[0]["case"]
    assert "12 texts of examples/data/sentiment" in case and case.endswith("batches of 6")


def test_pipelines_in_bf16() -> None:
    command = Bench(model=str(lab.checkpoint()))
    size = subject.SIZES["small"]._replace(num_batches=4)
    with subject.subject_of(command, str(lab.checkpoint()), size) as found:
        weights = {name: value.clone() for name, value in found.head.state_dict().items()}
        half = prediction._pipeline(found, found.texts[:3], torch.bfloat16)(32)
        assert [type(score) for _, score in half] == [float] * 3
        assert weights.keys() == found.head.state_dict().keys()


def test_table_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measures_resident_set", lambda: False)
    outcome = run("bench", "--model", lab.checkpoint(), "--size", "small", "--phases", "predict")
    title, empty, header, rule, *lines = outcome.out.splitlines()
    assert title.startswith("predict: classify, 8 texts like SST-2") and not empty
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:-2]]
    assert {line.count("|") for line in (header, rule, *lines[:-2])} == {9}
    assert [row[0] for row in cells] == PREDICT
    assert cells[0][5] == "1.00x" and all(row[6] == "" for row in cells)
    assert lines[-1].startswith(f"torch: {torch.__version__}")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--rounds", "0"), "--rounds must be 1 or more, not 0"),
        (("--batch-size", "0"), "--batch-size must be 1 or more, not 0"),
        (("--threads", "-2"), "--threads must be 1 or more, not -2"),
        (("--phases", "trian"), "Perhaps you meant 'train'?"),
        (("--columns", "text=a"), "--columns needs --data"),
        (("--data", "examples/data/topics"), "one label each, not multi"),
    ],
)
def test_errors(flags: tuple[str, ...], said: str) -> None:
    outcome = run("bench", "--size", "small", "--model", lab.checkpoint(), *flags).refused(said)
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1


def test_the_default_model_may_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "resolve_model", lambda name: "owner/name")
    run("bench", "--size", "small").refused("--shape minilm")


def test_rows_are_medians_of_turns_that_interleave() -> None:
    called = []

    def arm(name: str, *times: float) -> Arm:
        left = iter(times)
        return Arm(name, "fp32", Work(10, 200), lambda: called.append(name) or next(left), list)

    arms = (arm("finetune", 1, 2, 4), arm("peer", 4, 2, 40))
    ours, peer = measure.measure(Case("train", "x", arms), 3, [None, 7])
    assert called == ["finetune", "peer", "peer", "finetune", "finetune", "peer"]
    assert (ours.examples_per_second, ours.lowest, ours.highest) == (5, 2.5, 10)
    assert (ours.tokens_per_second, ours.milliseconds) == (100, 2000)
    assert (peer.ratio, ours.ratio) == (4, 1), "of each round, then the median"
    assert (ours.peak_memory_bytes, peer.peak_memory_bytes) == (None, 7)


@pytest.mark.parametrize("name", synthetic.LIKE)
def test_lengths_are_as_said(name: str) -> None:
    like, random_ = synthetic.LIKE[name], random.Random(1)
    drawn = [like.draw(random_) for _ in range(5000)]
    assert like.shortest <= min(drawn) and max(drawn) <= like.longest
    assert statistics.mean(drawn) == pytest.approx(like.mean, rel=0.05)
    assert statistics.stdev(drawn) == pytest.approx(like.deviation, rel=0.15)


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
def test_words_are_one_subword_each(family: str) -> None:
    tokenizer = SubwordTokenizer(tiny.tokenizer(family))
    words = synthetic.Words(tokenizer, 0.5, random.Random(0))
    pieces = tokenizer.text_subwords(words.words)
    assert [[place] for place in words.ids] == pieces
    assert words.words[0] in words.draw(200) and set(words.draw(200)) <= set(words.words)


def test_a_sample_has_the_lengths_of_the_whole() -> None:
    """As random batches of all texts are padded, so are those of the sample; not those of strata,
    in which the longest texts are missing."""
    random_ = random.Random(0)
    sizes = [synthetic.LIKE["classify"].draw(random_) for _ in range(1600)]
    chosen = synthetic.sample(sizes, 256)
    assert len(set(chosen)) == 256
    assert [sizes[place] for place in chosen] == sorted(sizes[place] for place in chosen)
    layered = [place for batch in synthetic.strata(sizes, 8, 32) for place in batch]

    def longest(places: Sequence[int]) -> float:
        return statistics.mean(
            max(sizes[p] for p in random_.sample(places, 32)) for _ in range(400)
        )

    whole = longest(range(1600))
    assert longest(chosen) == pytest.approx(whole, rel=0.05)
    assert longest(layered) < 0.8 * whole
    assert statistics.mean(sizes[p] for p in chosen) == pytest.approx(
        statistics.mean(sizes), rel=0.01
    )


def test_strata_are_what_sorting_makes() -> None:
    sizes = random.Random(0).choices(range(4, 60), k=1600)
    batches = synthetic.strata(sizes, 8, 32)
    flat = [place for batch in batches for place in batch]
    assert [len(batch) for batch in batches] == [32] * 8 and len(set(flat)) == 256
    chosen = [sizes[place] for place in flat]
    assert statistics.mean(chosen) == pytest.approx(statistics.mean(sizes), rel=0.02)
    assert max(max(sizes[p] for p in b) - min(sizes[p] for p in b) for b in batches) <= 3
    with pytest.raises(ValueError, match="3 training examples are less than a batch of 4"):
        synthetic.strata([1, 2, 3], 2, 4)


def test_answers_that_differ_are_an_error() -> None:
    expected = [("a", 0.9), ("b", 0.8), None]
    prediction.compare(expected, [("a", 0.9004), ("b", 0.8), ("b", 0.1)], 1e-3)
    with pytest.raises(AssertionError, match="1 of 2 probabilities"):
        prediction.compare(expected, [("a", 0.92), ("b", 0.8), None], 1e-3)
    with pytest.raises(AssertionError, match="1 of 2 labels"):
        prediction.compare(expected, [("b", 0.9), ("b", 0.8), None], 1e-3)


@pytest.mark.parametrize("shape", synthetic.SHAPES)
def test_shapes_are_models_and_tokenizers(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, settings = synthetic.SHAPES[shape]
    few = {"vocab_size": 300, "hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 32}
    monkeypatch.setitem(synthetic.SHAPES, shape, (kind, settings | few))
    synthetic.write_shape(shape, tmp_path)
    tokenizer = SubwordTokenizer.from_pretrained(tmp_path)
    special = tokenizer.tokenizer
    assert special.pad_token_id == AutoConfig.for_model(kind).pad_token_id
    first, segments = tokenizer.build(*tokenizer.text_subwords(["w7 w9"]))
    assert first == [special.cls_token_id, 7, 9, special.sep_token_id]
    assert (segments is None) == (kind != "bert")


@pytest.mark.skipif(not measure.measures_resident_set(), reason="needs Linux with glibc")
def test_peak_is_what_a_pass_needs_each_time_anew() -> None:
    size = 32 * 2**20

    def scores() -> None:
        kept = torch.ones(size // 4)  # freed before the end: only the peak has it
        kept.sum()

    with memory_returned():
        peaks = [measure.peak_memory(scores, CPU) for _ in range(4)]
    assert all(0.9 * size < peak < 1.5 * size for peak in peaks[1:]), peaks
