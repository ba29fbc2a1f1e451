"""Every example script runs as it stands, here with a tiny model and a few steps.

It trains, validates and tests on fewer examples than there are.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import finetune
from finetune.embeddings.sense_data import read_senses
from tests import fixtures as fx
from tests.covering import few
from tests.end_to_end.test_documentation import copy_examples
from tests.small_data import write_jsonl
from tests.training.same_weights import same_files
from tests.training.stopping import interrupted

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
ENGINES = ROOT / "examples" / "engines.py"
LEFT_OUT = {"engines", "glue_submission", "integrated_gradients"}
"""Examples that need more packages or data, and have a test of their own."""
NAMES = [path.stem for path in SCRIPTS if path.stem not in LEFT_OUT]
FAST = (
    "ner",
    "own_loop",
    "own_head",
    "predict",
    "context",
    "agreement",
    "guarantees",
    "sense_corpus",
)
SAYS = {
    "own_data": "held out 20 of 120 examples",
    "predict": "11 words",
    "resume": "stopped at step 3",
    "layers": "weights are frozen",
    "long_texts": "read in several windows",
    "onnx_export": "largest difference to torch",
    "context": "11 words are predicted",
    "rank": "ranked in",
    "vocabulary": "copied",
    "little_data": "95 % interval",
    "other_domains": "examples/data/topics distance",
    "faithfulness": "leave-out comprehensiveness",
    "guarantees": "sets: coverage",
    "annotation_loop": "round 1: 40 texts",
    "agreement": "ann and bob: 16 texts, kappa 0.7460",
    "sense_corpus": "1 sentences in o.jsonl",
}
"""What an example's output must have, beyond an end without error."""
ARGUMENTS = {
    "annotation_loop": "--add 20".split(),
    "guarantees": "guesses.jsonl --risk 0.5 --draws 3 --number 50 --sets 0.5".split(),
    "sense_corpus": "x.data.xml o.jsonl".split(),
}
"""Small settings of examples that take arguments."""
NEEDS = {"onnx_export": ("onnx", "onnxruntime")}
"""Packages of extras, without which an example is not run."""


@pytest.fixture(scope="module")
def model() -> Path:
    return fx.checkpoint()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    copy_examples(folder)
    guesses = ({"a": (n % 10) / 10, "b": 1 - (n % 10) / 10} for n in range(60))
    rows = (
        {"label": max(p, key=p.get), "scores": p, "gold": "a" if i % 3 else "b"}
        for i, p in enumerate(guesses)
    )
    write_jsonl(folder / "guesses.jsonl", rows)
    (folder / "x.data.xml").write_text(
        '<corpus><text id="d"><sentence id="s"><wf>The</wf><instance id="t" lemma="change_ringing" '
        'pos="NOUN">change ringing</instance></sentence></text></corpus>'
    )
    (folder / "x.gold.key.txt").write_text("t change_ringing%1:04:00::\n")
    return folder


@pytest.mark.parametrize("name", few([*NAMES], *FAST))
def test_example(
    name: str,
    model: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    script = ROOT / "examples" / f"{name}.py"
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(script), *ARGUMENTS.get(name, ())])
    settings = {"MODEL": model, "STEPS": "2", "OUT": tmp_path / "run", "ROUNDS": "1"}
    settings |= {"COPIES": tmp_path / "copies"}
    settings |= {"STEPS": "4"} if name in ("resume", "copy_run") else {}
    for variable, value in settings.items():
        monkeypatch.setenv(variable, str(value))
    runpy.run_path(str(script), run_name="__main__")
    assert SAYS.get(name, "") in capsys.readouterr().out
    saved = tmp_path / "run"
    written = (
        "model.safetensors",
        "best/finetune.json",
        "senses.safetensors",
        "fold-1.1/best/finetune.json",
        "seed-1/best/finetune.json",
    )
    trains = name not in ("guarantees", "agreement", "sense_corpus")
    assert any((saved / file).exists() for file in written) == trains
    if name == "sense_corpus":
        ((example,),) = read_senses("o.jsonl").splits.values()
        (target,) = example.targets
        assert (target.start, target.end, target.document) == (1, 3, "d")
        assert (target.key, target.senses) == ("t", ("change_ringing%1:04:00::",))
    if name == "own_head":
        assert "attention-pooling" in (saved / "seed-1/best/config.json").read_text("utf-8")


@pytest.mark.slow
def test_a_copied_run_continues_elsewhere(
    model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    copies_of = runpy.run_path(str(ROOT / "examples" / "copy_run.py"), run_name="copy_run")[
        "Copies"
    ]
    url = (tmp_path / "copies").as_uri()

    def train(out: Path) -> None:
        copies = copies_of(out, url)
        copies.fetch()
        settings = {"steps": 6, "save_every": 2, "batch_size": 8, "max_length": 24, "seed": 3}
        settings |= {"out": str(out), "resume": "auto", "precision": "fp32", "quiet": True}
        data = "examples/data/sentiment"
        finetune.train("classify", data, str(model), callbacks=[copies], **settings)

    with interrupted(3):
        train(tmp_path / "run")
    kept = sorted(path.name for path in (tmp_path / "copies").iterdir())
    (tmp_path / "copies" / "9" / "last").mkdir(parents=True)  # a copy that was interrupted
    elsewhere = tmp_path / "elsewhere" / "run"
    elsewhere.parent.mkdir()
    train(elsewhere)
    log = (elsewhere / "log.jsonl").read_text("utf-8")
    assert '"step": 2,' in log and '"step": 6,' in log
    assert {*kept} < {path.name for path in (tmp_path / "copies").iterdir()}, "nothing is deleted"
    shutil.move(tmp_path / "copies", tmp_path / "moved")
    train(tmp_path / "whole")
    same_files(tmp_path / "whole", elsewhere)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "pyspark", "dask", "datasets"])
def test_engines_predict_the_rows_of_the_command(engine: str, model: Path, tmp_path: Path):
    pytest.importorskip(engine)
    if engine == "pyspark" and shutil.which("java") is None:
        pytest.skip("needs Java")
    variables = {"MODEL": str(model), "STEPS": "6", "OUT": str(tmp_path / "run")}
    ended = subprocess.run(
        [sys.executable, ENGINES, engine.removeprefix("py")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "720 rows by" in ended.stdout, ended.stderr


NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def set_up_notebook(model: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for name, value in (("MODEL", model), ("EPOCHS", "0.1"), ("OUT", out)):
        monkeypatch.setenv(name, str(value))


def test_notebook_cells(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    set_up_notebook(model, tmp_path / "run", monkeypatch)
    names: dict[str, object] = {}
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_notebook_in_a_kernel(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipywidgets")
    import nbformat

    set_up_notebook(model, tmp_path / "run", monkeypatch)
    notebook = nbformat.read(NOTEBOOK, 4)
    nbclient.NotebookClient(notebook, timeout=120).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = {kind for output in shown for kind in output.get("data", ())}
    assert "application/vnd.jupyter.widget-view+json" in kinds, "a moving bar"
    assert "<iframe srcdoc" in shown[-1]["data"]["text/html"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_examples_say_how_to_run_them(script: Path):
    assert f"python examples/{script.name}" in script.read_text(encoding="utf-8")
