"""The packaged suite glue on a small copy of GLUE on a hub, and the files for its server."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import zipfile
from pathlib import Path
from typing import Any

import datasets
import pytest

from finetune.data.labels import NLI_LABELS
from tests.command import run
from tests.hub.server import Hub
from tests.hub.test_datasets import publish
from tests.tiny import save_tiny_checkpoint

COLUMNS = {
    "cola": ("sentence", None, ("unacceptable", "acceptable")),
    "sst2": ("sentence", None, ("negative", "positive")),
    "mrpc": ("sentence1", "sentence2", ("not_equivalent", "equivalent")),
    "stsb": ("sentence1", "sentence2", None),
    "qqp": ("question1", "question2", ("not_duplicate", "duplicate")),
    "mnli": ("premise", "hypothesis", NLI_LABELS),
    "qnli": ("question", "sentence", ("entailment", "not_entailment")),
    "rte": ("sentence1", "sentence2", ("entailment", "not_entailment")),
    "wnli": ("sentence1", "sentence2", ("not_entailment", "entailment")),
    "ax": ("premise", "hypothesis", NLI_LABELS),
}
"""Columns and class names of nyu-mll/glue by configuration."""
ROWS = 8
"""Rows of each test set."""


def copy_of_glue(hub: Hub) -> None:
    drawn = random.Random(0)
    words = "a big red dog saw the old house in berlin and the garden was late".split()

    def row(name: str, index: int, blind: bool) -> dict:
        first, second, labels = COLUMNS[name]
        found = {first: " ".join(drawn.choices(words, k=5)), "idx": index}
        if second is not None:
            found[second] = " ".join(drawn.choices(words, k=5))
        own = drawn.uniform(0, 5) if labels is None else index % len(labels)
        return found | {"label": -1 if blind else own}

    def rows(name: str, number: int, blind: bool = False) -> list[dict]:
        return [row(name, index, blind) for index in range(number)]

    configs, features = {}, {}
    for name, (first, second, labels) in COLUMNS.items():
        text = datasets.Value("string")
        label = datasets.Value("float32") if labels is None else datasets.ClassLabel(names=labels)
        own = {first: text, second: text, "label": label, "idx": datasets.Value("int32")}
        features[name] = datasets.Features({k: v for k, v in own.items() if k})
        parts = ("_matched", "_mismatched") if name == "mnli" else ("",)
        splits = {f"test{part}": rows(name, ROWS, blind=True) for part in parts}
        if name != "ax":
            splits |= {f"validation{part}": rows(name, 9) for part in parts}
            splits["train"] = rows(name, 30)
        configs[name] = splits
    publish(hub, "nyu-mll/glue", configs, features)


@pytest.fixture
def script() -> Any:
    """The example that writes the files, as a module."""
    path = Path(__file__).parents[2] / "examples" / "glue_submission.py"
    spec = importlib.util.spec_from_file_location("glue_submission", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_run_is_best_by_the_metric_of_its_recipe(script: Any, tmp_path: Path):
    for seed, (accuracy, matthews) in enumerate([(0.9, 0.1), (0.8, 0.2)]):
        run_folder = tmp_path / f"seed-{seed}"
        run_folder.mkdir()
        scores = {"validation": {"accuracy": accuracy, "matthews": matthews}, "test": {}}
        (run_folder / "metrics.json").write_text(json.dumps(scores))
        (run_folder / "config.json").write_text('{"metric": "matthews"}')
    assert script.best_run(tmp_path).name == "seed-1"
    for path in tmp_path.glob("*/config.json"):
        path.write_text('{"metric": null}')
    assert script.best_run(tmp_path).name == "seed-0", "the first metric is the default"


@pytest.mark.slow
def test_glue_from_the_hub_to_its_server(
    hub: Hub, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    copy_of_glue(hub)
    save_tiny_checkpoint(hub.model("lab/tiny"), "roberta")
    monkeypatch.chdir(tmp_path)
    run("run", "glue", *"--model lab/tiny --max-length 32 --steps 2 --limit 60".split()).ok()
    folder = Path("runs/glue-tiny")
    content = json.loads((folder / "suite.json").read_text("utf-8"))
    by_name: dict[str, list[float]] = {}
    for each in content["scores"]:
        by_name.setdefault(each["task"], []).append(each["seeds"]["1"])
    assert list(by_name) == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
    (rte,) = [each for each in content["scores"] if each["task"] == "rte"]
    assert "init_from" in rte["verdict"] and "| 78.70 " in (folder / "suite.md").read_text("utf-8")
    means = [sum(own) / len(own) for name, own in by_name.items() if name != "wnli"]
    assert content["average"] == {"1": pytest.approx(sum(means) / 8)}
    start = json.loads((folder / "rte/seed-1/config.json").read_text("utf-8"))["init_from"]
    assert start == str(folder / "mnli" / "seed-1")

    monkeypatch.setattr(sys, "argv", ["glue_submission.py", str(folder), "glue.zip"])
    with pytest.raises(SystemExit, match=f"CoLA: {ROWS} rows, and the server expects 1063"):
        script.main()
    assert not Path("glue.zip").exists()
    small = {name: (*file[:2], ROWS, file[3]) for name, file in script.FILES.items()}
    monkeypatch.setattr(script, "FILES", small)
    script.main()
    with zipfile.ZipFile("glue.zip") as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert sorted(texts) == sorted(f"{name}.tsv" for name in small)
    for name, text in texts.items():
        head, *lines = text.splitlines()
        assert head == "index\tprediction"
        index, values = zip(*(line.split("\t") for line in lines), strict=True)
        assert list(index) == [str(number) for number in range(ROWS)]
        labels = {*small[name.removesuffix(".tsv")][3]}
        legal = labels if "entailment" in labels and name != "WNLI.tsv" else {"0", "1"}
        assert {*values} <= legal if labels else all(0 <= float(v) <= 5 for v in values)
