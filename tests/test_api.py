"""``finetune.train``: one call from data to a finished run."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import finetune
from finetune.api import ReportPage
from finetune.cli.main import main
from finetune.types import TextExample, TokenExample, UserError
from tests import fixtures as fx
from tests import small_data
from tests.forks import in_two_forks
from tests.small_data import read_jsonl


@pytest.fixture(scope="module")
def model() -> str:
    return str(fx.checkpoint())


def rows_of(folder: Path) -> dict[str, list[dict]]:
    return {path.stem: read_jsonl(path) for path in folder.glob("*.jsonl")}


def test_a_call_in_memory_equals_the_command(model: str, tmp_path: Path) -> None:
    folder = small_data.sentiment(tmp_path / "data")
    settings = {"steps": 4, "batch_size": 8, "lr": 1e-3}
    run = finetune.train(
        "classify", rows_of(folder), model, out=str(tmp_path / "call"), quiet=True, **settings
    )
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    options += [f"--model={model}", f"--data={folder}", f"--out={tmp_path / 'command'}"]
    main(["classify", *options])
    for name in ("best/model.safetensors", "metrics.json"):
        assert (run.folder / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    assert run.metrics == json.loads((run.folder / "metrics.json").read_text())
    assert run.predictor.predict(["a bright room"])[0].label in ("neg", "pos")
    page = run.report("validation")
    assert isinstance(page, ReportPage) and "&lt;!doctype html" in page._repr_html_()
    readme = (run.folder / "README.md").read_text("utf-8")
    assert "finetune.train('classify', data=…, model=" in readme and "steps=4" in readme
    assert "classify on data in memory" in (run.folder / "best" / "README.md").read_text("utf-8")


def test_a_call_with_a_path_resumes(model: str, tmp_path: Path) -> None:
    folder = small_data.entities(tmp_path / "data", words=3)
    settings = {"out": str(tmp_path / "run"), "steps": 2, "quiet": True}
    first = finetune.train("tag", folder, model, **settings)
    again = finetune.train("tag", folder, model, resume=True, **settings)
    assert again.metrics == first.metrics
    score = f"test span_f1_conll {first.metrics['test']['span_f1_conll']:.4f}"
    assert repr(first).endswith(f", {score})"), "the metric of the task, not the first of all"


def test_a_call_again_replaces_the_run_if_it_may(model: str, tmp_path: Path) -> None:
    folder = small_data.sentiment(tmp_path / "data")
    settings = {"out": str(tmp_path / "run"), "steps": 2, "quiet": True}
    first = finetune.train("classify", folder, model, **settings)
    (first.folder / "notes.txt").write_text("mine")
    with pytest.raises(finetune.UserError, match="add overwrite=True to replace it, or resume=Tr"):
        finetune.train("classify", folder, model, seed=2, **settings)
    again = finetune.train("classify", folder, model, seed=2, overwrite=True, **settings)
    assert json.loads((again.folder / "config.json").read_text())["seed"] == 2
    assert (again.folder / "notes.txt").read_text() == "mine"
    log = (again.folder / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log if "loss" in line] == [1, 2]
    assert re.fullmatch(
        r"TrainedRun\('\S+/run', validation \S+ [\d.]+, test \S+ [\d.]+\)", repr(again)
    )
    call = {"data": str(folder), "model": model, "out": str(again.folder), "overwrite": True}
    program = f"import finetune; print(repr(finetune.train('classify', steps=3, **{call!r})))"
    forks = in_two_forks([sys.executable, "-c", program])
    runs = [fork.communicate() for fork in forks]
    assert all("/run', validation" in out for out, _ in runs), runs
    assert json.loads((again.folder / "config.json").read_text())["num_processes"] == 2
    (other := tmp_path / "other").mkdir()
    (other / "best").mkdir()
    with pytest.raises(finetune.UserError, match="holds other files"):
        finetune.train("classify", folder, model, **settings | {"out": str(other)}, overwrite=True)
    assert (other / "best").is_dir()


def test_the_output_names_labels_and_says_what_a_degenerate_run_lacks(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = "Terms, Conditions", "other"
    rows = [{"text": f"a text {i}", "label": labels[i % 4 == 0]} for i in range(24)]
    finetune.train("classify", rows, model, out=str(tmp_path), steps=1, lr=1e-9)
    output = capsys.readouterr().err
    assert "labels (2): 'Terms, Conditions', other\n" in output
    assert "this run is degenerate: validation: " in output
    assert "\nvalidation accuracy " in output and " 95% interval " in output
    assert output.endswith(
        f". Train longer (--epochs), or with another --lr.\nEverything is in {tmp_path}.\n"
    )


def test_a_caller_without_gradients_trains_alike(model: str, tmp_path: Path) -> None:
    rows = rows_of(small_data.sentiment(tmp_path / "data"))
    weights = set()
    for mode in (contextlib.nullcontext, torch.no_grad, torch.inference_mode):
        out = tmp_path / mode.__name__
        with mode():
            run = finetune.train("classify", rows, model, steps=2, out=str(out), quiet=True)
            assert torch.is_grad_enabled() == (mode is contextlib.nullcontext)
        weights.add((run.folder / "best/model.safetensors").read_bytes())
    assert len(weights) == 1


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    config = finetune.TagConfig(seed=numpy.int64(3), lr=numpy.float32(0.5), steps=numpy.int8(2))
    assert repr((config.seed, config.lr, config.steps)) == "(3, 0.5, 2)"


def test_columns_are_predicted(model: str, tmp_path: Path) -> None:
    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    folder = small_data.sentiment(tmp_path / "data")
    run = finetune.train("classify", folder, model, out=str(tmp_path / "run"), steps=1, quiet=True)
    texts = ["a bright room", "", "dull"]
    expected = run.predictor.predict(texts)
    assert run.predictor.predict(pandas.Series(texts, index=[7, 8, 9])) == expected
    assert run.predictor.predict(numpy.array(texts)) == expected
    missing = pandas.Series(["a bright room", None, "dull"])
    assert run.predictor.predict(missing) == expected


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("clasify", {}, "Perhaps you meant 'classify'"),
        ("ner", {"epoch": 3}, r"no setting 'epoch'\. Perhaps you meant 'epochs"),
        ("ner", {"epochs": "three"}, r"--epochs must be .* not 'three'"),
        ("ner", {"seeds": 3}, "no setting 'seeds': call train once for each seed"),
        ("ner", {"fp16": True}, r"no setting 'fp16': write --precision fp16 \(options are"),
        (None, {}, r"must be settings such as .* not None"),
        ([{"text": "a"}], {}, r"must be settings such as"),
        ("ner", {"adam": "0.98,1e-6"}, "no setting 'adam': write adam_beta2 and adam_epsilon"),
        (finetune.TrainConfig(), {}, r"TrainConfig has no task: use finetune\.C"),
        ("tag", {"resume": True, "overwrite": True}, "and resume=True continues it: give one"),
        ("classify", {"loss": "focl"}, "--loss .*focl"),
    ],
)
def test_refuses_unknown_tasks_and_settings(task: Any, settings: dict, message: str) -> None:
    with pytest.raises(finetune.UserError, match=message):
        finetune.train(task, **settings)


def test_settings_as_one_value_or_as_keywords(model: str, tmp_path: Path) -> None:
    rows = rows_of(small_data.sentiment(tmp_path / "data"))
    settings: dict[str, Any] = {"steps": 3, "lr": 1e-3, "loss": "focal"}
    one = finetune.ClassifyConfig(model=model, **settings | {"lr": 2e-3})
    value = finetune.train(one, rows, lr=1e-3, out=str(tmp_path / "value"), quiet=True)
    out = str(tmp_path / "keywords")
    keywords = finetune.train("classify", rows, model, out=out, quiet=True, **settings)
    assert value.metrics == keywords.metrics
    for name in ("best/model.safetensors", "metrics.json"):
        assert (value.folder / name).read_bytes() == (keywords.folder / name).read_bytes()
    calls = [(each.folder / "README.md").read_text("utf-8") for each in (value, keywords)]
    assert all("finetune.train('classify', data=…" in each for each in calls)


def test_public_names_are_documented_and_can_be_imported() -> None:
    page = (Path(__file__).parents[1] / "docs/python.md").read_text("utf-8")
    tables = page.partition("## Names")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in tables.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)", row)]
    assert sorted(named) == sorted(set(finetune.__all__) - {"__version__"})
    assert all(getattr(finetune, name) is not None for name in finetune.__all__)


@pytest.mark.parametrize(
    ("task", "example", "wanted"),
    [
        ("tag", TextExample(0, "a"), "TokenExample"),
        ("classify", TokenExample(0, ("a",), tags=("X",)), "TextExample"),
        ("qa", TextExample(0, "who", "anna"), "Question"),
        ("choice", TextExample(0, "", "who"), "ChoiceQuestion"),
    ],
)
def test_examples_of_another_task_are_refused(task: str, example: Any, wanted: str) -> None:
    data = finetune.Dataset("mine", {"train": [example]})
    with pytest.raises(
        UserError, match=f"mine: the examples of train are .* reads finetune.{wanted}"
    ):
        finetune.train(task, data, str(fx.checkpoint()), quiet=True)
    model = finetune.load(fx.trained(task))
    with pytest.raises(UserError, match=f"input 0: the examples are .* reads finetune.{wanted}"):
        model.predict([example])


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"trials": 1.5}, r"--trials must be a whole number, not 1\.5"),
        ({"trials": "2"}, "--trials must be a whole number, not '2'"),
        ({"minutes": "5"}, "--minutes must be a number above 0, not '5'"),
        ({"trials": 1, "space": [("lr", [1e-3])]}, "space must be a dict such as"),
    ],
)
def test_search_refuses(limits: dict, message: str, model: str, tmp_path: Path) -> None:
    rows = rows_of(small_data.sentiment(tmp_path / "data"))
    with pytest.raises(UserError, match=message):
        finetune.search("classify", rows, model, out=str(tmp_path / "found"), **limits)


@pytest.mark.parametrize("layers", [1.5, "2"])
def test_distill_refuses_layers_that_are_no_whole_number(layers: Any) -> None:
    with pytest.raises(UserError, match=f"--layers must be a whole number, not {layers!r}"):
        finetune.distill("runs/teacher", layers=layers)
