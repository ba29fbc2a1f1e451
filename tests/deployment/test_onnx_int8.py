"""Graphs in int8: the score that they cost is measured, and refused if it is too much."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import finetune
from finetune.config.tasks import IN_MEMORY
from finetune.tasks import saved_task
from finetune.types import TextExample, TokenExample
from tests import fixtures as fx
from tests.command import run
from tests.small_data import write_jsonl, write_splits

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from finetune.deployment import onnx as export  # noqa: E402
from finetune.deployment import onnx_int8  # noqa: E402
from finetune.deployment.onnx_model import OnnxModel  # noqa: E402
from tests.covering import few  # noqa: E402
from tests.deployment.test_onnx import FILES, ONE_TEXT, WORDS, exported, saved  # noqa: E402


def data_of(folder: Path) -> Path:
    """Texts whose labels a model can learn, with a validation split."""
    texts = [" ".join(WORDS[: n % 5 + 1]) for n in range(12)]
    rows = [{"text": text, "label": ("neg", "pos")["smith" in text]} for text in texts]
    return write_splits(folder, train=rows, validation=rows)


def test_int8_is_measured_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = saved("classify", data=IN_MEMORY)
    data, graph = data_of(tmp_path / "data"), tmp_path / "graph"
    command = ("export", workdir, "--out", graph, "--int8")
    run(*command).refused("data in memory", "--data")
    run(*command[:-1], "--max-loss", "1").refused("--max-loss applies to --int8")
    before = {path.name for path in tmp_path.iterdir()}
    lowest = iter([{"accuracy": 0.9}, {"accuracy": 0.894}])
    with monkeypatch.context() as patched:
        patched.setattr(export, "_score", lambda *_: next(lowest))
        refused = run(*command, "--data", data)
    refused.refused("lowers accuracy on validation by 0.60 points, from 0.9000 to 0.8940")
    assert {path.name for path in tmp_path.iterdir()} == before
    outcome = run(*command, "--data", data, "--max-loss", "100").ok()
    assert outcome.err == "", outcome
    assert "int8: validation accuracy" in outcome.out and "on 12 examples" in outcome.out
    assert {path.name for path in graph.iterdir()} == FILES
    export.export_onnx(workdir, tmp_path / "whole")
    small, size = ((folder / "model.onnx").stat().st_size for folder in (graph, tmp_path / "whole"))
    assert small < 0.85 * size  # few weights, many nodes
    expected = OnnxModel(tmp_path / "whole").predict(ONE_TEXT)
    for one, other in zip(expected, OnnxModel(graph).predict(ONE_TEXT), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=0.2, nan_ok=True)
        assert one.scores != other.scores or one.label is None


@pytest.mark.slow
def test_an_export_abstains_as_its_run(tmp_path: Path) -> None:
    data = data_of(tmp_path / "data")
    (data / "validation.jsonl").unlink()
    fx.train("classify", tmp_path / "run", data=data, steps=20, lr=1e-2, validation="0.3").ok()
    command = ("export", tmp_path / "run", "--out", tmp_path / "graph")
    run("thresholds", tmp_path / "run", "--ood", "0.5")
    run(*command).refused("abstains for out-of-distribution texts")
    run("thresholds", tmp_path / "run", "--reset")
    run("thresholds", tmp_path / "run", "--coverage", "0.1")
    run(*command).ok()
    texts = [" ".join(WORDS[: n % 5 + 1]) for n in range(5)]
    found = [each.to_dict() for each in OnnxModel(tmp_path / "graph").predict(texts)]
    expected = [each.to_dict() for each in finetune.load(tmp_path / "run").predict(texts)]
    assert [row["withheld"] for row in found] == [row["withheld"] for row in expected]


def test_int8_scores_by_the_metric_of_the_training(tmp_path: Path) -> None:
    """A built-in metric in place of a custom one."""
    data = data_of(tmp_path / "data")
    (tmp_path / "own.py").write_text("def cost(gold, predicted):\n    return 0.5\n")
    settings = {"custom_metrics": (f"{tmp_path / 'own.py'}:cost",), "metric": "cost"}
    fx.train("classify", tmp_path / "run", data=data, steps=20, lr=1e-2, **settings).ok()
    options = ("--out", tmp_path / "graph", "--int8", "--max-loss", "100")
    outcome = run("export", tmp_path / "run", *options).ok()
    assert "int8: validation accuracy" in outcome.out


def test_large_components_are_divided_for_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One component of a hidden state is 40 times the others, as in trained encoders."""
    workdir = shutil.copytree(saved("classify"), tmp_path / "run")
    folders = [tmp_path / name for name in ("a", "b", "c")]
    head = saved_task(workdir / "best").model(workdir / "best")
    with torch.no_grad():
        for layer in head.encoder.model.base_model.encoder.layer:
            layer.attention.output.LayerNorm.weight[3] = 40
            layer.intermediate.dense.weight[:, 3] /= 40
    head.save_pretrained(workdir / "best")
    texts = [TextExample(i, text) for i, text in enumerate(ONE_TEXT)]

    def logits(folder: Path) -> np.ndarray:
        model = OnnxModel(folder, threads=1)
        return np.concatenate([model.logits(windows) for windows in model.output.encode(texts)])

    export.export_onnx(workdir, folders[0])
    for folder in folders[1:]:
        shutil.copytree(folders[0], folder)
    graph = onnx.load(folders[0] / "model.onnx")
    onnx_int8._divide_outliers(graph, onnx_int8._ranges(graph, folders[0], texts))
    assert sum("/divided" in node.name for node in graph.graph.node) >= 2
    expected = logits(folders[0])
    onnx.save(graph, folders[0] / "model.onnx")
    np.testing.assert_allclose(logits(folders[0]), expected, rtol=1e-5, atol=1e-5)
    onnx_int8.quantize(folders[1], texts)
    monkeypatch.setattr(onnx_int8, "OUTLIERS", 0.0)
    onnx_int8.quantize(folders[2], texts)
    divided, whole = (np.abs(logits(folder) - expected).mean() for folder in folders[1:])
    assert 0 < divided < whole / 2


@pytest.mark.parametrize("max_width", few([3, 4], 3))
def test_int8_of_span_scorers_with_any_number_of_widths(max_width: int, tmp_path: Path) -> None:
    """One layer computes the scores of all widths, so that several products share its weights.

    Weights of the second graph are in files beside it, as of graphs of more than 2 GB.
    """
    folder = tmp_path / "graph"
    export.export_onnx(saved("ner", max_width=max_width), folder)
    rows, graph = [TokenExample(0, WORDS, ())], folder / "model.onnx"
    if max_width == 4:
        model = onnx.load(graph)
        graph.unlink()
        onnx.save(model, graph, save_as_external_data=True, all_tensors_to_one_file=False)
        assert len(list(folder.iterdir())) > len(FILES)
    found = []
    for int8 in (False, True):
        if int8:
            onnx_int8.quantize(folder, rows)
        runner = OnnxModel(folder, threads=1)
        found.append(runner.logits(runner.output.encode(rows)[0]))
    assert 0 < np.abs(found[0] - found[1]).max() < 0.25 * np.abs(found[0]).max()
    assert {path.name for path in folder.iterdir()} == FILES


def test_int8_is_not_measured_on_data_that_say_nothing(tmp_path: Path) -> None:
    save_data = data_of(tmp_path / "data")
    fx.train("classify", tmp_path / "run", data=save_data, steps=1).ok()
    command = ("export", tmp_path / "run", "--out", tmp_path / "graph", "--int8")
    run(*command, "--data", tmp_path / "data" / "train.jsonl").refused("no validation split")
    other = write_jsonl(tmp_path / "other.jsonl", [{"text": "anna", "label": "maybe"}] * 2)
    zero = run(*command, "--data", f"validation={other}")
    zero.refused("accuracy of the validation data is 0 before int8")
    (save_data / "validation.jsonl").unlink()
    run(*command).refused("changed since the training of")
    assert not (tmp_path / "graph").exists()


def test_int8_weights_of_products_use_seven_bits(tmp_path: Path) -> None:
    """Sums of two products of 8 bits overflow on processors without VNNI."""
    folder = shutil.copytree(exported("classify"), tmp_path / "graph")
    onnx_int8.quantize(folder, [TextExample(i, text) for i, text in enumerate(ONE_TEXT)])
    graph = onnx.load(folder / "model.onnx").graph
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    products = [tensors[node.input[1]] for node in graph.node if node.op_type == "MatMulInteger"]
    assert products and all(weights.dtype == np.int8 for weights in products)
    assert max(np.abs(weights.astype(int)).max() for weights in products) == 64


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("qemu-x86_64"), reason="needs qemu-x86_64")
def test_int8_on_an_old_processor() -> None:
    """An emulated Haswell has AVX2 and no VNNI."""
    command = ["qemu-x86_64", "-cpu", "Haswell", str(Path(sys.executable).resolve())]
    command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "int8 or divided", __file__]
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-2000:]
