"""Starting from another training: the encoder is taken, the head where labels match by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune.config.tasks import CONFIGS, TrainConfig
from finetune.tasks import load_task, save_task, saved_task
from tests import small_data as data
from tests.command import run
from tests.small_data import read_jsonl
from tests.tiny import head_parameters, save_tiny_checkpoint


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder, data, and untrained models of every kind as runs leave them."""
    folder = tmp_path_factory.mktemp("init")
    save_tiny_checkpoint(folder / "bert", "bert", seed=1)
    save_tiny_checkpoint(folder / "roberta", "roberta", seed=2)
    data.pairs(folder / "three")
    data.numbers(folder / "numbers")
    data.entities(folder / "entities")
    data.relations(folder / "relations")
    data.write_jsonl(folder / "two" / "train.jsonl", paired("entailment", "contradiction"))
    data.write_jsonl(folder / "rte" / "train.jsonl", paired("entailment", "not_entailment"))
    data.write_jsonl(
        folder / "chunks" / "train.jsonl",
        [{"tokens": ["the", "river"], "tags": ["B-NP", "I-NP"]}, {"tokens": ["saw"], "tags": ["O"]}]
        * 10,
    )
    for family in ("bert", "roberta"):
        for name, task, more in (
            ("nli", "nli", {"data": "three"}),
            ("tag", "tag", {"data": "entities"}),
            ("crf", "tag", {"data": "entities", "crf": True}),
            ("ner", "ner", {"data": "entities"}),
            ("numbers", "classify", {"data": "numbers"}),
            ("relations", "relations", {"data": "relations"}),
        ):
            made, _ = load_task(config(folder, task, family=family, **more), task)
            torch.manual_seed(3)
            best = folder / "runs" / f"{family}-{name}" / "best"
            made.model().save_pretrained(best)
            save_task(made, best)
    return folder


def paired(*labels: str) -> list[dict]:
    rows = [{"text": "he is", "text_pair": f"in {n}", "label": labels[n % 2]} for n in range(20)]
    return rows


def config(workdir: Path, task: str, *, family: str | None = None, **more: Any) -> TrainConfig:
    if family:
        more["model"] = str(workdir / family)
    more["data"] = str(workdir / more["data"])
    return CONFIGS[task](**more)


def begun(workdir: Path, run: str, task: str, **more: Any) -> tuple[Any, Any, str, Any]:
    """The old head; labels, last note and new head of a task that starts from it."""
    folder = workdir / "runs" / run
    old = saved_task(folder).model(folder / "best")
    made, dataset = load_task(config(workdir, task, init_from=str(folder), **more), task)
    torch.manual_seed(4)
    return old, made.state.labels, made.notes(dataset)[-1], made.model()


def encoder_weights(head: Any) -> dict[str, torch.Tensor]:
    weights = head.encoder.model.state_dict()
    return {name: value for name, value in weights.items() if not name.startswith("pooler")}


def assert_same_encoder(old: Any, new: Any) -> None:
    one, other = encoder_weights(old), encoder_weights(new)
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=0)


def last_layer(head: Any) -> Any:
    classifier = head.model.classifier
    return getattr(classifier, "out_proj", classifier)


@pytest.mark.parametrize(
    ("family", "before", "task", "more"),
    [
        ("bert", "nli", "classify", {"data": "numbers"}),
        ("bert", "nli", "ner", {"data": "entities"}),
        ("roberta", "tag", "nli", {"data": "three"}),
        ("roberta", "ner", "tag", {"data": "entities", "crf": True}),
        ("roberta", "ner", "ner", {"data": "entities"}),
        ("roberta", "relations", "nli", {"data": "three"}),
    ],
)
def test_encoder_is_taken_and_the_head_is_fresh(
    workdir: Path, family: str, before: str, task: str, more: dict
):
    old, labels, note, new = begun(workdir, f"{family}-{before}", task, **more)
    assert_same_encoder(old, new)
    assert note == f"encoder from {workdir / 'runs' / f'{family}-{before}'}; new head"
    assert list(new.labels) == list(labels)
    kept = {tuple(value.shape): value for value in head_parameters(old).values()}
    for name, value in head_parameters(new).items():
        if "pooler" not in name and value.ndim > 1 and tuple(value.shape) in kept:
            assert not torch.equal(value, kept[tuple(value.shape)]), name


def test_the_pooler_below_a_new_classifier_is_taken(workdir: Path):
    old, _, _, new = begun(workdir, "bert-nli", "nli", data="rte")
    assert torch.equal(old.model.bert.pooler.dense.weight, new.model.bert.pooler.dense.weight)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize(
    ("before", "task", "more", "kept", "fresh"),
    [
        ("nli", "nli", {"data": "rte"}, ["entailment"], ["not_entailment"]),
        ("tag", "tag", {"data": "chunks"}, ["O"], ["B-NP", "I-NP"]),
        ("crf", "tag", {"data": "chunks"}, ["O"], ["B-NP", "I-NP"]),
    ],
)
def test_labels_that_stay_keep_their_rows(
    workdir: Path, family: str, before: str, task: str, more: dict, kept: list, fresh: list
):
    old, labels, note, new = begun(workdir, f"{family}-{before}", task, **more)
    assert_same_encoder(old, new)
    assert note.endswith(f"; classes by name: {', '.join(kept)}; new: {', '.join(fresh)}")
    assert sorted([*kept, *fresh]) == sorted(labels) == sorted(new.labels)
    one, other = (last_layer(getattr(head, "tagger", head)) for head in (old, new))
    for name in kept:
        row, before_row = list(labels).index(name), list(old.labels).index(name)
        assert torch.equal(other.weight[row], one.weight[before_row])
        assert torch.equal(other.bias[row], one.bias[before_row])
    rows = [list(labels).index(name) for name in fresh]
    drawn = other.weight[rows]
    assert not any(torch.equal(row, known) for row in drawn for known in one.weight)
    usual = new.encoder.model.config.initializer_range
    assert 0.5 < drawn.std() / usual < 2  # as the model draws weights
    hidden = [{n: p for n, p in head_parameters(h).items() if "dense" in n} for h in (old, new)]
    for name, value in hidden[0].items() if before == "nli" else ():
        assert torch.equal(value, hidden[1][name]), name


def test_relations_keep_their_rows(workdir: Path):
    rows = read_jsonl(workdir / "relations" / "train.jsonl")
    known = sorted({each["label"] for row in rows for each in row["relations"]})
    for index, row in enumerate(rows):
        label = {"label": "new"} if index % 2 else {}
        row["relations"] = [each | label for each in row["relations"]]
    data.write_jsonl(workdir / "renamed" / "train.jsonl", rows)
    for name, more in (("relations", ""), ("renamed", "; new: new")):
        old, labels, note, new = begun(workdir, "bert-relations", "relations", data=name)
        assert_same_encoder(old, new)
        assert note.endswith(f"classes by name: {', '.join(known)}{more}")
        assert torch.equal(new.classifier.weight[0], old.classifier.weight[0])  # no relation
        for label in known:
            row, before = (list(of).index(label) + 1 for of in (labels, old.labels))
            assert torch.equal(new.classifier.weight[row], old.classifier.weight[before])
            assert torch.equal(new.classifier.bias[row], old.classifier.bias[before])


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("named", ["three", "two"])
def test_head_is_mapped_by_name(workdir: Path, family: str, named: str):
    """`classify` sorts its labels, NLI has entailment first; a subset of the labels will do."""
    old, labels, note, new = begun(workdir, f"{family}-nli", "classify", data=named)
    assert list(labels) == sorted(labels) and len(labels) < 4
    assert "encoder and head from" in note
    assert_same_encoder(old, new)
    rows = [list(old.labels).index(label) for label in labels]
    assert rows != list(range(3))
    assert torch.equal(last_layer(new).weight, last_layer(old).weight[rows])
    assert torch.equal(last_layer(new).bias, last_layer(old).bias[rows])
    assert list(new.labels) == list(labels)


@pytest.mark.parametrize("before", ["tag", "crf"])
@pytest.mark.parametrize("crf", [False, True])
def test_tagger_is_mapped_by_name(workdir: Path, before: str, crf: bool):
    old, _labels, note, new = begun(workdir, f"roberta-{before}", "tag", data="entities", crf=crf)
    taggers = [head.tagger if hasattr(head, "tagger") else head for head in (old, new)]
    assert torch.equal(last_layer(taggers[0]).weight, last_layer(taggers[1]).weight)
    assert "encoder and head from" in note
    if crf:
        assert not any(p.any() for p in new.crf.parameters()), "transitions are fresh"


def test_numbers_are_the_same_kind_of_head(workdir: Path):
    old, _, _, new = begun(workdir, "bert-numbers", "classify", data="numbers")
    assert torch.equal(last_layer(new).weight, last_layer(old).weight)
    assert new.problem == "regression"


def test_plain_folder_and_architecture(workdir: Path):
    named = config(workdir, "nli", data="rte", init_from=str(workdir / "bert"), family="bert")
    made, _ = load_task(named, "nli")
    plain, _ = load_task(replace(named, init_from=None), "nli")
    assert_same_encoder(plain.model(), made.model())
    with pytest.raises(ValueError, match=r"--model .* has model_type roberta, but --init-from .*"):
        load_task(replace(named, model=str(workdir / "roberta")), "nli")


def test_the_default_model_is_checked_where_it_is_asked_for(
    workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It looks like no --model at all once it is in a configuration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roberta-base").symlink_to(workdir / "roberta")  # a folder goes before the hub
    flags = ("--init-from", workdir / "runs" / "bert-nli", "--data", workdir / "rte", "--dry-run")
    assert run("nli", *flags).code == 0
    (recipe := tmp_path / "recipe.yaml").write_text("task: nli\nmodel: roberta-base\n")
    for asked in (("nli", "--model", "roberta-base"), ("run", recipe)):
        run(*asked, *flags).refused("--model roberta-base has model_type roberta, but --init-from")
    same = ("--init-from", workdir / "roberta", "--model", "roberta-base")
    assert run("nli", *same, *flags[2:]).code == 0


def test_wrong_folders(workdir: Path, tmp_path: Path):
    base = config(workdir, "nli", data="rte")
    with pytest.raises(ValueError, match=r"--init-from runs/none: no such folder: name a run fold"):
        load_task(replace(base, init_from="runs/none"), "nli")
    with pytest.raises(ValueError, match=r"--init-from .*: there is no model in it or in its best"):
        load_task(replace(base, init_from=str(tmp_path)), "nli")
    with pytest.raises(ValueError, match=r"is a folder of runs: give one of them, .*bert-crf"):
        load_task(replace(base, init_from=str(workdir / "runs")), "nli")


def test_a_run_says_what_it_began_with(workdir: Path, tmp_path: Path):
    before = workdir / "runs" / "bert-nli"
    start = ("nli", "--init-from", before, "--data", workdir / "rte")
    outcome = run(*start, "--steps", "2", "--out", tmp_path / "run").ok()
    said = f"encoder and head from {before}; classes by name: entailment; new: not_entailment"
    assert said in outcome.err + outcome.out
    readme = (tmp_path / "run" / "README.md").read_text("utf-8")
    assert said in readme and f"# nli: {before} on" in readme
    assert "finetune-" not in (tmp_path / "run" / "best" / "config.json").read_text("utf-8")
    planned = run(*start, "--dry-run")
    assert planned.code == 0 and said in planned.out
