"""A model folder never runs its own Python code unless told, whatever stands on standard input."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest

from finetune.cli.main import COMMANDS
from finetune.registry import TASKS
from tests import fixtures as fx
from tests.command import run
from tests.small_data import write_jsonl
from tests.test_layers import MODULES, ROOT, tree

SMALL = ("--max-length=40", "--batch-size=8", "--precision=fp32", "--steps=1")
CODE = """
from pathlib import Path
Path(__file__).with_name("CODE-RAN").touch()
Path({marker!r}).touch()
from transformers import BertConfig, BertModel, BertTokenizerFast
class ForeignConfig(BertConfig):
    model_type = "foreign"
class ForeignModel(BertModel):
    config_class = ForeignConfig
class ForeignTokenizer(BertTokenizerFast):
    pass
"""
SUITE = """title: Questions
source: none
tasks:
  one: {recipe: qa.yaml, scores: [test f1]}
"""
CLASSES = (
    "AutoModel",
    "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForPreTraining",
    "AutoModelForQuestionAnswering",
)


def make_foreign(folder: Path, marker: Path, *, known_type: bool) -> None:
    """Add code to a saved model, for its configuration, its tokenizer and its weights."""
    (folder / "foreign.py").write_text(CODE.format(marker=str(marker)))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {name: "foreign.ForeignModel" for name in CLASSES}
    config["auto_map"]["AutoConfig"] = "foreign.ForeignConfig"
    if not known_type:
        config["model_type"] = "foreign"
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "tokenizer_config.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["auto_map"] = {"AutoTokenizer": [None, "foreign.ForeignTokenizer"]}
    tokenizer["tokenizer_class"] = "ForeignTokenizer"
    path.write_text(json.dumps(tokenizer))
    saved = folder / "finetune.json"
    if saved.is_file():
        content = json.loads(saved.read_text())
        content["config"]["trust_remote_code"] = True
        content["config"]["custom_metrics"] = [f"{folder / 'foreign.py'}:mine"]
        content["config"]["custom_loss"] = f"{folder / 'foreign.py'}:mine"
        saved.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a run of each task."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(fx.checkpoint(), folder / "encoder")
    for task in TASKS:
        shutil.copytree(fx.data(task), folder / "data" / task)
        shutil.copytree(fx.trained(task), folder / "runs" / task)
    lines = ["the bank of the river", "a warm room in Oslo"] * 3
    (folder / "texts.txt").write_text("\n".join(lines) + "\n")
    question = {"question": "what?", "choices": ["a", "b"]}
    write_jsonl(folder / "questions.jsonl", [question])
    (folder / "words.conll").write_text("the\nbank\n\na\nroom\n\n")
    targets = [
        {
            "tokens": ["the", "bank"],
            "targets": [
                {"start": 1, "end": 2, "lemma": "bank", "pos": "NOUN", "senses": [f"bank%{n}"]}
            ],
        }
        for n in (1, 2)
    ]
    write_jsonl(folder / "senses.jsonl", targets)
    words = [
        {"text": "the bank", "text_pair": "a bank", "index": 1, "index_pair": 1, "label": label}
        for label in ("same", "different")
    ]
    for split in ("train", "test"):
        write_jsonl(folder / "wic" / f"{split}.jsonl", words)
    (folder / "recipe.yaml").write_text(
        "task: multitask\nmodel: MODEL\ntasks:\n"
        "  one: {task: classify, data: DATA/classify}\n  two: {task: tag, data: DATA/tag}\n"
    )
    (folder / "single.yaml").write_text("task: classify\nmodel: MODEL\ndata: DATA/classify\n")
    (folder / "qa.yaml").write_text("task: qa\nmodel: MODEL\ndata: DATA/qa\n")
    (folder / "suite.yaml").write_text(SUITE)
    return folder


@pytest.fixture(scope="module")
def foreign(
    request: pytest.FixtureRequest, trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same folder with code in each model."""
    folder = tmp_path_factory.mktemp("foreign") / "x"
    shutil.copytree(trained, folder)
    known_type = request.param == "known type"
    for model in (folder / "encoder", *folder.rglob("best")):
        make_foreign(model, folder / "CODE-RAN", known_type=known_type)
        (model.parent / "checksums.json").unlink(missing_ok=True)
    for name in ("recipe.yaml", "single.yaml", "qa.yaml"):
        path = folder / name
        text = path.read_text().replace("MODEL", str(folder / "encoder"))
        path.write_text(text.replace("DATA", str(folder / "data")))
    return folder


OPENED = """
embed HERE/encoder --file -
embed HERE/runs/classify --file -
similarity HERE/encoder --text a --pair b
similarity HERE/encoder --data HERE/wic --threshold
geometry HERE/encoder --data HERE/texts.txt --texts=4
map HERE/encoder --word bank --file HERE/texts.txt --out HERE/m.csv --method=pca
wsd --model HERE/encoder --data train=HERE/senses.jsonl --out HERE/out/wsd
perplexity HERE/encoder --text a
perplexity HERE/runs/pretrain --text a
vocabulary HERE/texts.txt --for HERE/encoder --out HERE/out/v --size=60
serve HERE/runs/classify --port=0
export HERE/runs/classify --out HERE/out/x
thresholds HERE/runs/classify --dry-run
distill HERE/runs/classify --layers=1 --out HERE/out/d0 --steps=1
distill HERE/runs/classify --model HERE/encoder --out HERE/out/d1 --steps=1
check HERE/data/classify --task=classify --model HERE/encoder
search classify --model HERE/encoder --data HERE/data/classify SMALL --trials=1 --out HERE/out/s \
  --space lr=1e-4,1e-3
run HERE/single.yaml --out HERE/out/r SMALL
run HERE/recipe.yaml --out HERE/out/mt
run HERE/suite.yaml --out HERE/suite SMALL
push HERE/runs/classify ana/x
report HERE/runs/classify
report HERE/runs/classify --format table
compare HERE/runs/classify HERE/runs/classify
score HERE/runs/classify
predict HERE/runs/choice --file HERE/questions.jsonl
predict HERE/runs/classify --file -
predict HERE/runs/pretrain --file -
"""
"""The commands that open a model."""
NO_MODEL = ("convert",)


def commands(folder: Path) -> dict[str, list[list[str]]]:
    """Each command with the arguments that open a model; none if it opens none."""
    lines = OPENED.strip().splitlines()
    for task in TASKS:
        for model in ("--model HERE/encoder", f"--init-from HERE/runs/{task}"):
            lines.append(f"{task} {model} --data HERE/data/{task} --dry-run SMALL")
    lines += [f"predict HERE/runs/{task} --text a --pair b" for task in ("nli", "qa", "sentence")]
    words = ("tag", "ner", "relations")
    lines += [f"predict HERE/runs/{task} --file HERE/words.conll" for task in words]
    found: dict[str, list[list[str]]] = {name: [] for name in NO_MODEL}
    for line in lines:
        typed = line.replace("SMALL", " ".join(SMALL)).replace("HERE", str(folder)).split()
        found.setdefault(typed[0], []).append(typed)
    return found


def test_every_command_is_walked(trained: Path) -> None:
    found = commands(trained)
    assert found.keys() == {*COMMANDS}
    assert len(found["predict"]) == len(TASKS)


@pytest.mark.parametrize(
    ("command", "foreign"),
    [
        *((command, "unknown type") for command in COMMANDS),
        *(pytest.param(command, "known type", marks=pytest.mark.slow) for command in COMMANDS),
    ],
    indirect=["foreign"],
)
def test_no_command_runs_the_code_of_a_model(
    command: str, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: None)
    (foreign / "CODE-RAN").unlink(missing_ok=True)
    for arguments in commands(foreign)[command]:
        outcome = run(*arguments, stdin=b"y\n" * 9)
        assert not (foreign / "CODE-RAN").exists(), arguments
        assert "[y/N]" not in outcome.out + outcome.err
        assert outcome.code in (0, 2), outcome.err  # 1 is a bug


@pytest.mark.parametrize("foreign", ["unknown type"], indirect=True)
def test_training_refuses_a_model_with_code_by_name(foreign: Path) -> None:
    data = ("--data", foreign / "data" / "classify", "--out", foreign / "untrained")
    run("classify", "--model", foreign / "encoder", *data).refused("brings its own Python code")
    assert not (foreign / "untrained").exists()


def test_transformers_loads_by_the_one_door_alone() -> None:
    """Calls of a method of transformers or datasets that loads by name, outside of the door."""
    found = []
    for module, path in MODULES.items():
        nodes = [*ast.walk(tree(module))]
        borrowed = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            and str(node.module).split(".")[0] in ("transformers", "datasets", "peft")
            for alias in node.names
        } | {"transformers", "auto_class"}
        for node in nodes:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "from_pretrained"
                and {*ast.unparse(node.func.value).split(".")} & borrowed
            ):
                found.append(f"{path.relative_to(ROOT)}: {ast.unparse(node.func.value)}")
    assert sorted(found) == [
        "models/loading.py: AutoConfig",
        "models/loading.py: AutoTokenizer",
        "models/loading.py: auto_class",
    ]
