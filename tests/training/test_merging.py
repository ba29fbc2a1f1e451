"""Model soups: means of weights, the greedy choice, refusals."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import finetune
from finetune.tasks import save_task, saved_task
from finetune.training.merging import mean_state
from finetune.training.run_folder import RunWriter
from finetune.types import LabelSet, UserError
from tests import small_data as data
from tests.command import run
from tests.tiny import save_tiny_checkpoint

SETTINGS: dict[str, Any] = {"steps": 6, "eval_every": 3, "batch_size": 8, "lr": 3e-3}
RUNS = {
    "one": {"seed": 1},
    "two": {"seed": 2, "lr": 1e-3},
    "three": {"seed": 3, "tuning": "bitfit", "label_smoothing": 0.1},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("soup")
    save_tiny_checkpoint(folder / "bert", "bert")
    data.sentiment(folder / "sentiment")
    data.pairs(folder / "pairs")
    data.entities(folder / "entities", words=3)
    data.running_text(folder / "text")
    data.questions(folder / "questions")
    data.choices(folder / "choices")
    for name, changes in RUNS.items():
        train(folder, name, **changes)
    return folder


def train(place: Path, name: str, task: str = "classify", **changes: Any) -> Path:
    names = {"classify": "sentiment", "nli": "pairs"}
    settings = {"data": str(place / names[task]), "model": str(place / "bert"), **SETTINGS}
    finetune.train(task, out=str(place / name), quiet=True, **{**settings, **changes})
    return place / name


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "best" / "model.safetensors")


def with_other_order(source: Path, target: Path) -> Path:
    """A copy of a run whose labels are in the opposite order."""
    shutil.copytree(source, target)
    (target / "checksums.json").unlink(missing_ok=True)
    task = saved_task(source)
    labels = list(task.record.labels)[::-1]
    head = task.head(source / "best")
    head.config.id2label = dict(enumerate(labels))
    head.config.label2id = {name: number for number, name in enumerate(labels)}
    head.save_pretrained(target / "best")
    save_task(replace(task, record=replace(task.record, labels=LabelSet(labels))), target / "best")
    return target


@pytest.mark.parametrize("method", ["uniform", "greedy"])
def test_the_mean_of_runs_is_a_run(method: Any, place: Path, tmp_path: Path):
    folders = [place / name for name in RUNS]
    merged = finetune.merge(folders, tmp_path / "soup", method=method, report=lambda _: None)
    scores = [merged.soup.scores[str(folder)] for folder in folders]
    for folder, score in zip(folders, scores, strict=True):
        saved = json.loads((folder / "metrics.json").read_text())
        assert score == pytest.approx(saved["validation"]["accuracy"])
    used = [weights(Path(name)) for name in merged.soup.used]
    for name, value in weights(tmp_path / "soup").items():
        mean = sum(each[name].double() for each in used) / len(used)
        torch.testing.assert_close(value, mean.float(), rtol=0, atol=1e-7)
    assert merged.soup.score == pytest.approx(merged.run.metrics["validation"]["accuracy"])
    if method == "uniform":
        assert merged.soup.used == tuple(map(str, folders))
    else:
        assert merged.soup.score >= max(scores)
        assert merged.soup.used[0] == str(folders[scores.index(max(scores))])
    written = json.loads((tmp_path / "soup" / "config.json").read_text())["merged"]
    assert written["used"] == list(merged.soup.used)
    assert written == {"method": method, "runs": [*map(str, folders)], "used": written["used"]}
    assert "finetune merge --method" in (tmp_path / "soup" / "README.md").read_text()
    shown = run("compare", tmp_path / "soup", *folders, "--split", "test")
    assert shown.code == 0, shown.err
    again = run("run", tmp_path / "soup" / "config.json")
    assert again.code == 2 and "repeat the `finetune merge` command" in again.err


def test_commands_and_cards_of_merged_runs(place: Path, tmp_path: Path):
    folders = [place / "one", place / "two"]
    shown = run("merge", *folders, "--out", tmp_path / "plain", "--format", "json")
    assert shown.code == 0, shown.err
    assert "the runs have different seeds (1, 2)" in shown.err
    card = (tmp_path / "plain" / "best" / "README.md").read_text()
    assert "mean of the weights of 2 runs (uniform model soup" in card
    assert "`one`, `two`" in card and str(place) not in card.partition("| setting |")[0]


def test_other_orders_of_labels_are_refused(place: Path, tmp_path: Path):
    other = with_other_order(place / "two", tmp_path / "other")
    with pytest.raises(UserError, match="have them in different orders"):
        finetune.merge([place / "one", other], tmp_path / "soup")


@pytest.mark.parametrize("at", ["write_start", "save_best", "write_predictions", "write_metrics"])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_merge_is_repeated(
    at: str, after: bool, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    method = getattr(RunWriter, at)

    def stopped(*arguments: Any, **options: Any) -> None:
        if after:
            method(*arguments, **options)
        raise KeyboardInterrupt

    parents, out = [place / "one", place / "two"], tmp_path / "soup"
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(RunWriter, at, stopped)
        finetune.merge(parents, out)
    if (out / "best").exists():
        with pytest.raises(UserError, match="holds a run already"):
            finetune.merge(parents[::-1], out)
    finetune.merge(parents, out)
    finetune.merge(parents, whole := tmp_path / "whole")
    for name in ("best/model.safetensors", "metrics.json", "config.json"):
        own = (out / name).read_text("latin-1").replace(str(out), str(whole))
        assert own == (whole / name).read_text("latin-1")
    with pytest.raises(UserError, match="holds a run already"):
        finetune.merge(parents, out)


def test_truncated_weights_are_named(place: Path, tmp_path: Path):
    other = tmp_path / "other"
    shutil.copytree(place / "two", other)
    (other / "checksums.json").unlink()
    file = other / "best" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    outcome = run("merge", place / "one", other, "--out", tmp_path / "soup")
    assert outcome.code == 2 and "cannot be loaded: " in outcome.err and str(file) in outcome.err


def test_the_mean_keeps_integers_and_types():
    first = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor([3]), "h": torch.tensor([1.0]).half()}
    others = [{**first, "w": torch.tensor([2.0, 4.0])}, {**first, "w": torch.tensor([6.0, 0.0])}]
    found = mean_state(iter([first, *others]))
    assert found["w"].tolist() == [3.0, 2.0] and found["n"].tolist() == [3]
    assert found["h"].dtype == torch.float16 and first["w"].tolist() == [1.0, 2.0]


def changed(place: Path, target: Path, file: str, **changes: Any) -> Path:
    """A copy of a run with other content of a JSON file."""
    shutil.copytree(place / "two", target)
    path = target / file
    content = json.loads(path.read_text())
    for name, value in changes.items():
        inner = (
            content["config"] if file.endswith("finetune.json") and name != "labels" else content
        )
        inner[name] = value
    path.write_text(json.dumps(content))
    (target / "checksums.json").unlink()
    return target


def test_runs_that_do_not_fit_are_refused(place: Path, tmp_path: Path):
    one, two = place / "one", place / "two"
    other_task = train(place, "nli", "nli")
    labels = changed(place, tmp_path / "labels", "best/finetune.json", labels=["neg", "good"])
    names = {"id2label": {"0": "neg", "1": "good"}, "label2id": {"neg": 0, "good": 1}}
    config = labels / "best" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | names))
    start = changed(place, tmp_path / "start", "config.json", model="roberta-base")
    settings = changed(place, tmp_path / "settings", "best/finetune.json", long_text="window")
    fingerprint = {"fingerprint": "0", "training_fingerprint": "0"}
    other_data = changed(place, tmp_path / "other-data", "config.json", **fingerprint)
    shapes = changed(place, tmp_path / "shapes", "config.json")
    file = shapes / "best" / "model.safetensors"
    weights = load_file(file)
    bias = next(name for name in weights if name.endswith("classifier.bias"))
    save_file(weights | {bias: weights[bias][:1].clone()}, file, {"format": "pt"})
    tokenizer = changed(place, tmp_path / "tokenizer", "best/tokenizer.json", normalizer=None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for folders, message in (
        ([one], "merge needs two runs or more"),
        ([one, one], "is the same run as"),
        ([one, tmp_path], "there is no trained run"),
        ([one, other_task], "is a run of `finetune classify`, and .* of `finetune nli`"),
        ([one, labels], "the labels of the runs differ: only .* has pos; only .* has good"),
        ([one, start], "starts from .*bert, and .* from roberta-base"),
        ([one, tokenizer], "have different tokenizers"),
        ([one, settings], "with --long-text truncate, and .* with window"),
        ([one, other_data], "trained or validated on different data"),
        ([one, shapes], r"differ in the weight classifier.bias: \(2,\) and \(1,\)"),
    ):
        with pytest.raises(UserError, match=message):
            finetune.merge(folders, tmp_path / "soup")
        assert not (tmp_path / "soup").exists(), message
    with pytest.raises(UserError, match="holds other files"):
        finetune.merge([one, two], tmp_path / "full")
    with pytest.raises(UserError, match="must be uniform or greedy, not 'best'"):
        finetune.merge([one, two], tmp_path / "soup", method="best")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "name", "changes"),
    [
        ("pretrain", "text", {}),
        ("classify", "pairs", {"few_shot": True}),
        ("ner", "entities", {"calibrate": "types", "tuning": "lora"}),
        ("sentence", "pairs", {"objective": "softmax"}),
        ("qa", "questions", {}),
        ("choice", "choices", {}),
    ],
)
def test_every_kind_of_run_can_be_merged(
    task: str, name: str, changes: dict, place: Path, tmp_path: Path
):
    settings = {**changes, "data": str(place / name), "max_length": 32, "out": None}
    folders = []
    for seed in (1, 2):
        folders.append(tmp_path / f"seed-{seed}")
        own = {**SETTINGS, **settings, "seed": seed, "out": str(folders[-1]), "steps": 3}
        finetune.train(task, model=str(place / "bert"), quiet=True, **own)
    merged = finetune.merge(folders, tmp_path / "soup", method="greedy", report=lambda _: None)
    assert merged.soup.score >= max(merged.soup.scores.values())
    assert not (tmp_path / "soup" / "adapter").exists()
    assert finetune.saved_task(tmp_path / "soup").name == task
