"""The benchmarks print what they promise and leave everything as it was; no time is judged."""

from __future__ import annotations

import gc
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import measure, measured_model, prediction, shapes, synthetic, training
from benchmarks.__main__ import main, memory_returned
from benchmarks.measure import Variant, Work, Workload
from finetune.models import attention, graphs
from tests import fixtures as fx
from tests.gpu.__main__ import measured
from tests.models.call_again import CallAgain
from tests.models.test_graphs import attend

TRAIN = [
    "finetune",
    "finetune-whole-vocabulary",
    "finetune-fp32",
    "trainer-best",
    "trainer-dynamic-fp32",
]
PREDICT = ["finetune", "finetune-fp32", "pipeline-default", "pipeline-batch32"]
CPU = torch.device("cpu")
Printed = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True, scope="module")
def _earlier_objects_are_not_collected() -> None:
    """Garbage is collected before each measurement, which takes long among many objects."""
    gc.collect()
    gc.freeze()


def run(*arguments: str | Path) -> None:
    main([*map(str, arguments), "--size", "small"])


def rows_of(capsys: Printed, *arguments: str | Path) -> list[dict[str, Any]]:
    run(*arguments, "--rounds", 1, "--json")
    workloads = map(json.loads, capsys.readouterr().out.splitlines())
    return [row for workload in workloads for row in workload["rows"]]


@pytest.mark.parametrize(
    ("family", "task"),
    [("roberta", "nli"), pytest.param("deberta-v2", "tag", marks=pytest.mark.slow)],
)
def test_training_and_prediction(family: str, task: str, capsys: Printed) -> None:
    threads = torch.get_num_threads()
    model = fx.checkpoint(family)
    rows = rows_of(capsys, "train", "predict", "--model", model, "--task", task, "--threads", 1)
    assert [row["variant"] for row in rows] == TRAIN + PREDICT
    assert len([*measured({"rows": rows})]) == len(rows), "the table of tests.gpu has all of them"
    for row in rows:
        assert row["tokens_per_second"] > row["examples_per_second"] > 0
        assert 0 < row["lowest"] <= row["examples_per_second"] <= row["highest"]
        assert row["variant"] != "finetune" or row["ratio"] == 1
    assert threads == torch.get_num_threads()


def test_steps_that_count_are_replayed_from_recordings_made_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorders: list[Any] = []

    class Recorder(CallAgain):
        """Counts the recordings that are made while the clock runs."""

        counting = False

        def __init__(self) -> None:
            self.made, self.late = 0, 0
            recorders.append(self)

        def record(self, run: Any) -> Any:
            self.made, self.late = self.made + 1, self.late + self.counting
            return super().record(run)

    def now(device: torch.device) -> float:
        Recorder.counting = not Recorder.counting
        return float(Recorder.counting)

    monkeypatch.setattr(graphs, "DEVICE", "cpu")
    monkeypatch.setattr(graphs, "new_recorder", Recorder)
    monkeypatch.setattr(training, "now", now)
    monkeypatch.setattr(attention, "_flash_supports", lambda query: True)
    monkeypatch.setattr(attention, "_flash", attend)
    settings = measured_model.Settings.of(CPU, "small", model=str(fx.checkpoint()))
    with measured_model.measured_model(settings, settings.model) as model:
        for replayed in (True, False):
            training.training_seconds(model, "bf16", model.mixed, replayed=replayed)
    assert [(recorder.made > 0, recorder.late) for recorder in recorders] == [(True, 0)]


@pytest.mark.slow
def test_shapes_take_turns(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    small = {"bert-base": ("bert", sizes), "roberta-base": ("roberta", sizes)}
    for module in (shapes, synthetic):
        monkeypatch.setattr(module, "SHAPES", small)
    rows = rows_of(capsys, "shapes", "--threads", 1)
    assert [row["variant"] for row in rows] == 2 * [*small]
    assert [row["phase"] for row in rows] == ["train", "train", "predict", "predict"]
    assert all(row["ratio"] == 1 for row in rows if row["variant"] == "bert-base")


@pytest.mark.slow
def test_exported_graphs(capsys: Printed) -> None:
    pytest.importorskip("onnxruntime")
    rows = rows_of(capsys, "onnx", "--model", fx.checkpoint(), "--task", "tag", "--threads", 1)
    variants = [row["variant"] for row in rows if row["variant"] != "finetune-fp32"]
    assert variants == 2 * ["finetune", "onnx", "onnx-int8"]
    alone = [row["workload"].endswith("one by one") for row in rows]
    assert alone == sorted(alone, reverse=True) and any(alone) and not all(alone)
    for row, one in zip(rows, alone, strict=True):
        assert (row["p50_milliseconds"] is not None) == one
    run("onnx", "--run", fx.trained("classify"))
    printed = capsys.readouterr().out
    assert "p95 ms" in printed and "onnx-int8" in printed


def test_a_table_of_data_of_ones_own_without_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.setattr(measure, "measures_resident_set", lambda: False)
    data = ("--data", "examples/data/sentiment", "--batch-size", 6)
    run("predict", "--model", fx.checkpoint(), *data)
    title, empty, header, rule, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("predict: classify, 12 texts of examples/data/sentiment") and not empty
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:-2]]
    assert {line.count("|") for line in (header, rule, *lines[:-2])} == {9}
    assert [row[0] for row in cells] == PREDICT
    assert cells[0][5] == "1.00x" and all(row[6] == "" for row in cells)
    assert lines[-1].startswith(f"torch: {torch.__version__}")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("train", "--rounds", "0"), "--rounds"),
        (("trian",), "trian"),
        (("train", "--variants", "finetnue"), "finetnue: train has finetune, finetune-whole"),
        (("train", "--data", "examples/data/topics"), "one label each can be measured, not multi"),
        (("train", "--run", "x"), "--run applies to the phase onnx alone"),
    ],
)
def test_errors(flags: tuple[str, ...], problem: str, capsys: Printed) -> None:
    with pytest.raises(SystemExit) as end:
        run(*flags, "--model", fx.checkpoint())
    assert end.value.code == 2 and problem in capsys.readouterr().err


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_reading_of_generated_rows(
    task: str, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(module: str, *words: str) -> str:
        monkeypatch.setattr("sys.argv", [module, *words])
        runpy.run_module(f"benchmarks.{module}", run_name="__main__")
        return capsys.readouterr().out

    path = tmp_path / "rows.jsonl"
    path.write_text(printed("generated_rows", task, "40"), "utf-8")
    first, stages = printed("rows", task, str(path)).splitlines()
    assert first.startswith(f"{task}, 36 rows of train, ") and "fingerprint" in stages


def test_rows_are_medians_of_turns_that_interleave() -> None:
    called = []

    def variant(name: str, *times: float) -> Variant:
        left = iter(times)
        return Variant(name, "fp32", Work(10, 200), lambda: called.append(name) or next(left), list)

    variants = (variant("finetune", 1, 2, 4), variant("peer", 4, 2, 40))
    ours, peer = measure.measure(Workload("train", "x", variants), 3, [None, 7])
    assert called == ["finetune", "peer", "peer", "finetune", "finetune", "peer"]
    assert (ours.examples_per_second, ours.lowest, ours.highest) == (5, 2.5, 10)
    assert (ours.tokens_per_second, ours.milliseconds) == (100, 2000)
    assert (peer.ratio, ours.ratio) == (4, 1), "of each round, then the median"
    assert (ours.peak_memory_bytes, peer.peak_memory_bytes) == (None, 7)


def test_answers_that_differ_are_an_error() -> None:
    expected = [("a", 0.9), ("b", 0.8), None]
    prediction.compare(expected, [("a", 0.9004), ("b", 0.8), ("b", 0.1)], 1e-3)
    with pytest.raises(AssertionError, match="1 of 2 probabilities"):
        prediction.compare(expected, [("a", 0.92), ("b", 0.8), None], 1e-3)
    with pytest.raises(AssertionError, match="1 of 2 labels"):
        prediction.compare(expected, [("b", 0.9), ("b", 0.8), None], 1e-3)


@pytest.mark.skipif(not measure.measures_resident_set(), reason="needs Linux with glibc")
def test_peak_is_what_a_pass_needs_each_time_anew() -> None:
    size = 32 * 2**20

    def scores() -> None:
        kept = torch.ones(size // 4)  # freed before the end: only the peak has it
        kept.sum()

    with memory_returned():
        peaks = [measure.peak_memory(scores, CPU) for _ in range(4)]
    assert all(0.9 * size < peak < 1.5 * size for peak in peaks[1:]), peaks
