"""Exports predict as plain transformers and `predict` do, without torch; int8 is measured."""

from __future__ import annotations

import inspect
import itertools
import json
import re
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
from finetune.models.loading import quiet
from finetune.types import Answer, Question, Span, TextExample, TokenExample, UserError
from tests import fixtures as fx
from tests import tiny
from tests.command import run
from tests.deployment.conftest import blocking
from tests.small_data import close

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from finetune.deployment import onnx as export  # noqa: E402
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
