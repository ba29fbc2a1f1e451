"""Exports predict as plain transformers and `predict` do, without torch; int8 is measured."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

import finetune
from finetune.config.tasks import IN_MEMORY
from finetune.models.loading import quiet
from finetune.tasks import saved_task
from finetune.types import Answer, Question, Span, TextExample, TokenExample, UserError
from tests import fixtures as fx
from tests import tiny
from tests.command import run
from tests.covering import few
from tests.deployment.conftest import blocking
from tests.small_data import close, write_jsonl, write_splits

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from finetune.deployment import onnx as export  # noqa: E402
from finetune.deployment import onnx_int8  # noqa: E402
from finetune.deployment.onnx_model import OnnxModel  # noqa: E402

FILES = {
    *("model.onnx", "tokenizer.json", "tokenizer_config.json", "config.json", "finetune.json"),
    *("predictor.json", "predictor", "requirements.txt"),
}
FIRSTS = ["the train was late", "anna", "a man is playing a guitar while a woman is singing a song"]
SECONDS = ["two children run", "nothing contradicts what the reporter wrote", "so"]
WORDS = ("anna", "smith", "saw", "new", "york", ".")


ANSWERS = [(Answer(4, "train"),), (Answer(0, "nothing"),), ()]
CONTEXTS = [FIRSTS[0], SECONDS[1], FIRSTS[2]]
NLI_LABELS = ("entailment", "neutral", "contradiction")
SPANS = (Span(0, 2, "PER"), Span(3, 5, "LOC"))
NESTED = (*SPANS, Span(1, 2, "PER"))
TAGS = ("B-PER", "I-PER", "O", "B-LOC", "I-LOC", "O")
EXAMPLES: dict[str, list[Any]] = {
    "classify": [TextExample(n, FIRSTS[n], label=label) for n, label in enumerate(("neg", "pos"))],
    "nli": [TextExample(n, FIRSTS[n], SECONDS[n], label) for n, label in enumerate(NLI_LABELS)],
    "qa": [Question(n, SECONDS[n], CONTEXTS[n], answers=a) for n, a in enumerate(ANSWERS)],
    "tag": [TokenExample(0, WORDS, SPANS, TAGS)],
    "ner": [TokenExample(n, WORDS, spans, document="a") for n, spans in enumerate((NESTED, ()))],
}


def saved(task: str, family: str = "bert", layers: int = 2, **settings: Any) -> Path:
    """What a run saves of its model, untrained but with logits far apart."""
    model = fx.checkpoint(family, layers=layers)
    return fx.untrained(task, EXAMPLES[task], **{"model": str(model), **settings})


def exported(task: str, **settings: Any) -> Path:
    """The export of an untrained model."""
    run = saved(task, **settings)
    return fx.made("graph", (task, settings), lambda out: export.export_onnx(run, out))


def answers(folder: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    names = {entry.name for entry in session.get_inputs()}
    assert all(entry.type == "tensor(int64)" for entry in session.get_inputs())
    fed = {name: value.astype(np.int64) for name, value in inputs.items() if name in names}
    assert fed.keys() == names, "the tokenizer gives all that the graph takes"
    (logits,) = session.run(None, fed)
    assert session.get_outputs()[0].name == "logits" and logits.dtype == np.float32
    return logits


TASKS = ("nli", "tag")
OTHERS = [family for family in tiny.FAMILIES if family not in ("bert", "modernbert")]


@pytest.mark.parametrize(
    ("family", "task"),
    [
        ("bert", "nli"),
        ("modernbert", "tag"),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in itertools.product(OTHERS, TASKS)),
    ],
)
def test_answers_are_those_of_plain_transformers(family: str, task: str, tmp_path: Path) -> None:
    workdir = saved(task, family, layers=2 if family == "modernbert" else 1)
    *_, last = export.export_onnx(workdir, tmp_path / "graph")
    setup = AutoModelForTokenClassification if task == "tag" else AutoModelForSequenceClassification
    with quiet():
        model = setup.from_pretrained(workdir / "best", dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "graph")
    segments = last.endswith("token_type_ids")
    assert segments == (getattr(model.config, "type_vocab_size", 0) > 1 and family in SEGMENTED)
    accepted = inspect.signature(model.forward).parameters
    for size, width in ((1, None), (3, None), (2, 50), (1, 50)):
        texts = (FIRSTS[:size],) if task == "tag" else (FIRSTS[:size], SECONDS[:size])
        padding = {"padding": "max_length", "max_length": width} if width else {"padding": True}
        inputs = tokenizer(*texts, **padding, return_tensors="pt")
        with torch.no_grad():
            known = {name: value for name, value in inputs.items() if name in accepted}
            expected = model(**known).logits.numpy()
        found = answers(tmp_path / "graph", {k: v.numpy() for k, v in inputs.items()})
        assert found.shape == expected.shape
        if task == "tag":
            real = inputs["attention_mask"].bool().numpy()
            found, expected = found[real], expected[real]
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=5e-5 * max(1.0, abs(expected).max())
        )


SEGMENTED = ("bert", "electra", "albert", "ernie", "nomic_bert", "squeezebert")
"""Families whose models and tokenizers tell the two texts of a pair apart."""


def test_command(tmp_path: Path) -> None:
    workdir, graph = saved("tag", label_subwords="all"), tmp_path / "new" / "graph"
    outcome = run("export", workdir, "--out", graph).ok()
    assert outcome.err == ""
    difference, size = outcome.out.splitlines()
    assert difference.startswith("largest difference to torch: ")
    assert "batches of 1, 1, 1, 2, 6 sequences" in difference and "to 63 tokens" in difference
    megabytes = (graph / "model.onnx").stat().st_size / 1e6
    assert size.startswith(f"{graph / 'model.onnx'}: {megabytes:.1f} MB, inputs input_ids, att")
    assert {path.name for path in graph.iterdir()} == FILES
    for taken in (graph, graph / "model.onnx"):
        run("export", workdir, "--out", taken).refused("is not empty", "new folder")
    needed = (graph / "requirements.txt").read_text("utf-8").splitlines()
    assert f"onnxruntime=={onnxruntime.__version__}" in needed and len(needed) == 3
    assert [path.name for path in graph.parent.iterdir()] == ["graph"]
    config = json.loads((graph / "config.json").read_text())
    assert config["id2label"]["1"] == "B-LOC"
    for name in ("finetune.json", "tokenizer.json"):
        assert (graph / name).read_bytes() == (workdir / "best" / name).read_bytes()
    for command in (("predict", graph, "--text", "a"), ("nli", "--model", graph)):
        run(*command).refused("is a folder of finetune export", "load(")


def test_what_no_graph_can_answer(tmp_path: Path) -> None:
    for task, settings, parts in (
        ("tag", {"bilstm": True}, ("--bilstm is not part", "train without --bilstm")),
        ("ner", {"context": "64"}, ("--context", "train without --context")),
        ("nli", {"pair_encoder": "bi"}, ("apart", "without --pair-encoder")),
        ("classify", {"few_shot": True}, ("classifier", "without --few-shot")),
    ):
        workdir = saved(task, **settings)
        run("export", workdir, "--out", tmp_path / "graph").refused(*parts, "finetune predict")
    assert not list(tmp_path.glob("graph*"))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_packages_that_are_missing(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    outcome = run("export", tmp_path, "--out", tmp_path / "graph")
    outcome.refused(f'export needs {package}: pip install "{package}>=1.')


@pytest.mark.parametrize("wrong", [3e-3, float("nan")])
def test_a_graph_that_answers_otherwise_is_not_kept(
    wrong: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir = saved("classify")

    class Wrong(export.Logits):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(*inputs) + wrong

    monkeypatch.setattr(export, "Logits", Wrong)
    outcome = run("export", workdir, "--out", tmp_path / "graph")
    outcome.refused("bert models cannot be exported", "are off by", "finetune predict")
    assert not list(tmp_path.glob("graph*"))


LONG = " ".join(["anna smith saw new york , and the old dog isn't in Geneva."] * 4)
SENTENCES = [
    "anna smith saw new york .",
    "",
    LONG,
    list(WORDS),
    ["anna", "", "\u200b"],
    [],
    "東京 café № 7",
    ["x" * 99],
]
ONE_TEXT = [FIRSTS[0], "", LONG, "東京 café"]
PAIRS = [*zip(FIRSTS, SECONDS, strict=True), ("", ""), (LONG, "so"), ("so", LONG)]


def same(expected: Sequence[Any], found: Sequence[Any], tolerance: float) -> None:
    """Predictions are equal but for small differences of their scores."""
    one, other = ([each.to_dict() | {"id": 0} for each in side] for side in (expected, found))
    assert close(other, one, tolerance)


def case(task: str, family: str, *, slow: bool = False, **settings: Any) -> Any:
    return pytest.param(task, family, settings, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(
    ("task", "family", "settings"),
    [
        case("classify", "roberta", slow=True, long_text="window"),
        case("nli", "bert", slow=True, long_text="window"),
        case("qa", "roberta", overlap=4),
        case("tag", "roberta", slow=True, label_subwords="all"),
        case("tag", "bert", crf=True),
        case("ner", "roberta", slow=True, representation="boundary"),
        case("ner", "bert", representation="attention", max_width=5),
        case("ner", "roberta", slow=True, representation="ffn", multi_label=True),
    ],
)
def test_predictions_are_those_of_predict(
    task: str, family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Of texts of any length, one by one and in batches, words and characters of any kind."""
    workdir = saved(task, family, max_length=20, precision="fp32", **settings)
    export.export_onnx(workdir, tmp_path / "graph")
    inputs: Sequence[Any] = {"classify": ONE_TEXT, "nli": PAIRS, "qa": PAIRS}.get(task, SENTENCES)
    model = OnnxModel(tmp_path / "graph", threads=1)
    found = model.predict(inputs)
    same(finetune.load(workdir).predict(inputs), found, 3e-5)  # of logits up to 150
    same(found, [model.predict([item])[0] for item in inputs], 3e-6)
    written = (tmp_path / "graph" / "predictor.json").read_text("utf-8")
    assert not re.search("Infinity|NaN", written), "strict JSON"
    if settings.get("crf"):  # earlier exports have -Infinity, which is no JSON
        earlier = re.sub(r"\bnull(?=,?\n +[\]\dn-])", "-Infinity", written)
        assert json.loads(earlier)["transitions"] != json.loads(written)["transitions"]
        (tmp_path / "graph" / "predictor.json").write_text(earlier, "utf-8")
        same(found, OnnxModel(tmp_path / "graph", threads=1).predict(inputs), 0)
    for table in ({"text": ["a"]}, pandas.DataFrame({"text": ["a"]})):
        with pytest.raises(UserError, match="is a table: give one of its columns"):
            model.predict(table)  # type: ignore[arg-type]
    if task == "ner":
        assert sum(len(p.spans) for p in found) > 5


ALONE = (
    blocking("torch", "transformers", "finetune", "accelerate", "scipy")
    + """
import json
import re
sys.path.insert(0, ".")
import predictor
for prediction in predictor.load(".", threads=1).predict(json.load(sys.stdin)):
    print(json.dumps(prediction.to_dict()))
"""
)


@pytest.mark.parametrize("task", [pytest.param("tag", marks=pytest.mark.slow), "ner"])
def test_the_export_predicts_alone(task: str, tmp_path: Path) -> None:
    """In a process that cannot import torch, transformers and finetune."""
    settings = {"crf": True} if task == "tag" else {}
    workdir = saved(task, max_length=20, precision="fp32", **settings)
    graph = tmp_path / "graph"
    run("export", workdir, "--out", graph).ok()
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE],
        input=json.dumps(SENTENCES),
        capture_output=True,
        encoding="utf-8",
        cwd=graph,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    predicted = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [p.to_dict() for p in OnnxModel(graph, threads=1).predict(SENTENCES)]
    assert close(predicted, expected)
    with pytest.raises(UserError, match=r"input 0: \[\['a'\]\] is neither"):
        OnnxModel(graph).predict([[["a"]]])


# --- int8 -----------------------------------------------------------------------------------------


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
