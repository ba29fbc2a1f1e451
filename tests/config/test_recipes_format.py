"""Reading recipe files: what is legal, and what errors name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from finetune.config.expected_scores import Expected
from finetune.config.recipes import (
    changed,
    find_recipes,
    load_multitask,
    load_recipe,
    packaged_path,
)
from finetune.config.tasks import IN_MEMORY, NliConfig, settings
from finetune.evaluation.runs import RunFolder
from finetune.types import UserError
from tests.command import run


def written(folder: Path, text: str) -> Path:
    (path := folder / "r.yaml").write_text(text, encoding="utf-8")
    return path


def test_a_recipe(tmp_path: Path):
    recipe = load_recipe(
        written(
            tmp_path,
            """\
task: nli
description: a test
model: some/model
lr: 1e-5
steps: 10
resume: no
columns: [text=a, pair=b]
expected:
  - {split: test, metric: accuracy, value: 0.9, tolerance: 1e-2, source: "a paper, table 1"}
  - {split: test, metric: f1, value: 1, tolerance: 0.1, source: "b", source_checked: false}
""",
        )
    )
    assert recipe.name == "nli-r"
    assert recipe.task == "nli" and recipe.description == "a test"
    assert recipe.expected[0] == Expected("test", "accuracy", 0.9, 0.01, "a paper, table 1")
    assert not recipe.expected[1].source_checked
    # YAML 1.1 reads 1e-5 as text: it becomes a number
    assert recipe.config() == NliConfig(
        model="some/model", lr=1e-5, steps=10, columns=("text=a", "pair=b"), resume=False
    )


def test_values_get_the_types_of_the_settings(tmp_path: Path):
    text = "task: tag\nlimit: ~\nepochs: 3\nbilstm: on\ncontext: 64\n"
    recipe = load_recipe(written(tmp_path, f"{text}label_subwords: all\ncolumns: text=a\n"))
    assert recipe.settings == {
        "limit": None,
        "epochs": 3.0,
        "bilstm": True,
        "context": "64",
        "label_subwords": "all",
        "columns": ("text=a",),
    }
    assert recipe.config().limit is None


STRANGERS = {
    "custom_metrics: [own.py:mine]": "--custom-metrics own.py:mine",
    "custom_loss: own.py:mine": "--custom-loss own.py:mine",
    "out: ../../work": "--out ../../work",
    "resume: auto": "--resume auto",
    "track: wandb": "--track wandb",
}


@pytest.mark.parametrize("line", STRANGERS)
def test_what_a_file_cannot_set(line: str, tmp_path: Path) -> None:
    key = line.partition(":")[0]
    refused = rf"a file cannot set {key}, which .* write {STRANGERS[line]} in the command"
    with pytest.raises(UserError, match=f"r.yaml:2: {refused}"):
        load_recipe(written(tmp_path, f"task: nli\n{line}\n"))
    if key not in ("out", "resume"):  # options that the command of several tasks lacks
        flag = f"--{key.replace('_', '-')}"
        refused = f"a file cannot set {key}, .* remove it; a run of several tasks has no {flag}"
    tasks = "tasks:\n  a: {task: nli}\n  b:\n    task: tag\n"
    for text, number in (
        (f"task: multitask\n{line}\n{tasks}", 2),
        (f"task: multitask\n{tasks}    {line}\n", 6),
    ):
        with pytest.raises(UserError, match=f"r.yaml:{number}: {refused}"):
            load_multitask(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: nly\n", r"r.yaml:1: task is 'nly', legal are .*nli.* Perhaps you meant 'nli'\?"),
        ("model: a\n", r"r.yaml: names no `task`, as a recipe does"),
        ("- task\n", "r.yaml: a recipe is a mapping"),
        ("task: [\n", "r.yaml:2: not valid YAML"),
        ("task:\tnli\n\tlr: 1\n", "r.yaml:2: not valid YAML"),
        ("task: nli\n---\ntask: nli\n", "r.yaml:2: not valid YAML"),
        ("task: {a: b}\n", "r.yaml:1: task is {'a': 'b'}, legal are"),
        ("task: nli\n\nbatchsize: 3\n", r"r.yaml:3: unknown setting 'batchsize' .*'batch_size'\?"),
        ("task: tag\nthreshold: 0.3\n", "r.yaml:2: unknown setting 'threshold' for task tag"),
        ("task: nli\nlr: {a: 1}\n", "r.yaml:2: lr must be a number, not {.a.: 1}"),
        ("task: nli\nsteps: 2.5\n", "r.yaml:2: steps must be a whole number, not 2.5"),
        ("task: nli\nsteps: yes\n", "r.yaml:2: steps must be a whole number, not True"),
        ("task: nli\nresume: maybe\n", "r.yaml:2: resume must be true, false or auto, not 'maybe'"),
        (
            "task: nli\nexpected: 0.9\n",
            "r.yaml:2: `expected` must be a list of scores, such as `- {split: test, .*}`, or",
        ),
        ("task: nli\nexpected:\n  - {split: test, metric: f1}\n", "r.yaml:3: each entry .* keys"),
        (
            "task: nli\nexpected:\n"
            "  - {split: test, metric: f1, value: x, tolerance: 0, source: s}\n",
            "r.yaml:3: .*value must be a number, not 'x'",
        ),
        ("task: nli\ntask: tag\n", "r.yaml:2: the key 'task' occurs twice"),
        ("task: nli\nno: 3\n", 'r.yaml:2: the key no is no text in YAML .* in quotes, "no"'),
        ("task: nli\na: &a [1]\nb: [*a]\n", r"r.yaml:2: an anchor .*aliases are not read"),
    ],
)
def test_wrong_recipes(tmp_path: Path, text: str, message: str):
    with pytest.raises(ValueError, match=message):
        load_recipe(written(tmp_path, text))


def test_files_that_are_not_text_or_not_there(tmp_path: Path):
    (path := tmp_path / "r.yaml").write_bytes(b"task: nli\ndescription: caf\xe9\n")
    for file, message in ((path, r"r\.yaml: .*UTF-8"), (tmp_path / "none", "no such recipe file")):
        with pytest.raises(ValueError, match=message):
            load_recipe(file)


@pytest.mark.parametrize(
    "name",
    ["cola-minilm", "cola-minilm.yaml", "classify/cola-minilm", "recipes/classify/cola-minilm"],
)
def test_bare_names(name: str):
    assert load_recipe(name).path == packaged_path("recipes") / "classify" / "cola-minilm.yaml"


def test_bare_names_of_several_tasks():
    with pytest.raises(ValueError, match="write ner/conll2003-minilm or tag/conll2003-minilm"):
        load_recipe("conll2003-minilm")
    assert load_recipe("tag/conll2003-minilm").task == "tag"
    with pytest.raises(ValueError, match="no such recipe file"):
        load_recipe("*-minilm")
    with pytest.raises(ValueError, match="Perhaps you meant 'cola-minilm'"):
        load_recipe("classify/cola-minilmm")


def test_data_are_relative_to_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    written(folder / "data", "x")
    text = "task: classify\ndata: "
    train = next((folder / "data").iterdir())
    (folder / "a,b.jsonl").touch()
    cases = {
        "data": str(folder / "data"),
        f"data/{train.name}": str(train),
        "cola": "cola",
        f"train=data/{train.name},test=other.csv": f"train={train},test=other.csv",
        "train=a,b.jsonl": f"train={folder / 'a,b.jsonl'}",
        "none/at/all": "none/at/all",
    }
    monkeypatch.chdir(tmp_path)
    for data, expected in cases.items():
        recipe = load_recipe(written(folder, text + data).relative_to(tmp_path))
        assert recipe.settings["data"] == expected


def test_find_recipes(tmp_path: Path):
    for name in ("b/2.yaml", "a/1.yaml", "3.yaml", "a/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    names = [str(path.relative_to(tmp_path)) for path in find_recipes(tmp_path)]
    assert names == ["3.yaml", "a/1.yaml", "b/2.yaml"]


def test_a_wrong_recipe_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (folder := tmp_path / "recipes").mkdir()
    monkeypatch.chdir(tmp_path)
    (folder / "a.yaml").write_text("task: nli\ndescription: first\n")
    (folder / "b.yaml").write_text("task: nli\nmodle: x\n")
    (folder / "c.yaml").write_text("task: tag\ndescription: last\n")
    outcome = run("run").refused("error: 1 of 3 recipes cannot be read: ")
    assert [line.split()[:2] for line in outcome.out.splitlines()[1:]] == [
        ["a", "nli"],
        ["c", "tag"],
    ]
    assert "recipes/b.yaml:2: unknown setting 'modle'" in outcome.err
    tasks = "tasks:\n  x: {task: tag, data: a}\n  y: {task: nli, data: b}\n"
    (folder / "b.yaml").write_text(f"task: multitask\nmodel: m\n{tasks}")
    assert run("run").ok().out.splitlines()[2].split() == ["b", "multitask", "m", "a,", "b"]
    listed = run("run", "--only", "CONLL").ok().out
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["c"]


def test_what_makes_runs_incomparable():
    config = NliConfig(lr=1e-5, columns=("text=a",))
    saved = settings(config)
    assert changed(saved, config) == []
    assert changed({**saved, "seed": 7, "out": "x", "max_tokens": 9}, config) == ["seed"]
    assert changed({**saved, "seed": 7}, config, "seed") == []
    assert changed({**saved, "columns": [], "lr": 2e-5}, config) == ["columns", "lr"]
    before = {name: value for name, value in saved.items() if name != "clip"}
    assert changed(before, config) == [], "a setting that did not exist yet had its default"
    assert changed(before, NliConfig(lr=1e-5, columns=("text=a",), clip=0.5)) == ["clip"]


def test_settings_of_a_run_are_a_recipe(tmp_path: Path):
    plain = NliConfig(model="some/model", lr=1e-5, columns=("text=a",))
    own = replace(plain, out="x", track="wandb")
    saved = {"task": "nli", **settings(own), "fingerprint": "f", "training_fingerprint": "t"}
    saved |= {"precision_used": "fp32", "num_processes": 1, "revision_used": None}
    saved["data_used"] = None
    path = tmp_path / "a-run" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(saved | {"label_subwords": "all"}))
    with pytest.raises(UserError, match=r"config.json:\d+: unknown setting 'label_subwords'"):
        load_recipe(path)
    path.write_text(json.dumps(saved, indent=2))
    for name in (path, path.parent):
        recipe = load_recipe(name)
        assert recipe.name == "nli-a-run"
        assert recipe.config() == plain
    before = {name: value for name, value in saved.items() if not name.startswith("adam")}
    path.write_text(json.dumps(before | {"adam": "0.98,1e-6"}))
    assert load_recipe(path).config() == replace(plain, adam_beta2=0.98, adam_epsilon=1e-6)
    assert RunFolder.open(path.parent).config["adam_beta2"] == 0.98
    for change, message in (
        ({"custom_loss": "own.py:mine"}, "the run had --custom-loss, .* repeat the command in"),
        ({"custom_metrics": ["own.py:mine"]}, "the run had --custom-metrics, .* repeat the comma"),
        ({"teacher": {"folder": "t"}}, "repeat the `finetune distill` command"),
        ({"loss_function": "mine"}, "the run had the loss mine of Python: repeat the call in"),
        ({"data": IN_MEMORY}, "save the data to a file"),
        ({"task": "bert"}, "not the settings of a run"),
    ):
        path.write_text(json.dumps(saved | change))
        with pytest.raises(UserError, match=message):
            load_recipe(path)
