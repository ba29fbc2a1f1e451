"""Labels and their order, weights, and what the data of tasks may be."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

import finetune
from finetune.config.tasks import CONFIGS
from finetune.data import check_data, read_text, read_tokens
from finetune.data.examples import Examples
from finetune.inference.loop import predict
from finetune.preprocessing.batching import pack
from finetune.preprocessing.text_labels import with_problem
from finetune.runtime.launch import make_accelerator
from finetune.tasks import load_task
from finetune.training.data import TrainingData
from finetune.training.trainer import fit
from finetune.types import IGNORED, TextExample, TextPrediction, UserError, WindowOutput
from tests import fixtures as fx
from tests.small_data import read_jsonl, write_jsonl
from tests.tasks.cases import BIO, CASES, SINGLE, WAYS, Runs, texts


def test_class_weights_by_hand(runs: Runs) -> None:
    rows = texts([*"abbbbbbc"])  # one a, six b, one c
    config = runs.config("single", class_weights="auto", data=str(runs.workdir / "weights"))
    for split in ("train", "validation"):
        write_jsonl(runs.workdir / "weights" / f"{split}.jsonl", rows)
    task, dataset = load_task(config, "classify")
    assert task.state.class_weights == pytest.approx([8 / 3, 8 / 18, 8 / 3])
    given, _ = load_task(replace(config, class_weights="a=2,c=0.5"), "classify")
    assert given.state.class_weights == (2.0, 1.0, 0.5)
    plain, _ = load_task(replace(config, class_weights="none"), "classify")
    flat = [windows[0] for windows in given.encode(dataset.splits["train"])]
    batch = pack(flat, given.collate(flat))
    logits = torch.randn(8, 3, dtype=torch.double)
    expected = torch.nn.functional.cross_entropy(
        logits, batch.targets["label"], torch.tensor([2.0, 1.0, 0.5], dtype=torch.double)
    )
    total, count = given.loss(logits, batch)
    torch.testing.assert_close(total / count, expected)
    assert float(count) == pytest.approx(2 + 6 + 0.5)
    total, count = plain.loss(logits, pack(flat, plain.collate(flat)))
    expected = torch.nn.functional.cross_entropy(logits, batch.targets["label"])
    torch.testing.assert_close(total / count, expected)


def test_stars_are_numbers_without_a_warning_where_a_regression_is_asked_for(runs: Runs) -> None:
    data = runs.workdir / "stars"
    for split in ("train", "validation"):
        write_jsonl(data / f"{split}.jsonl", texts([1, 2, 3, 4, 5, 1, 2, 3]))
    config = runs.config("single", problem="regression", data=str(data))
    task, dataset = load_task(config, "classify")
    assert task.state.problem == "regression"
    assert not any("decimal point" in note for note in dataset.notes)


def test_class_weights_of_several_labels(runs: Runs) -> None:
    """Negatives over positives: 5 of 8 rows lack joy (3 have it), and so on."""
    task, dataset = runs.task("multi", class_weights="auto")
    assert list(task.state.labels) == ["fear", "hope", "joy"]
    assert task.state.class_weights == pytest.approx([5 / 3, 5 / 3, 5 / 3])
    flat = [windows[0] for windows in task.encode(dataset.splits["train"])]
    batch = pack(flat, task.collate(flat))
    logits = torch.randn(8, 3)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, batch.targets["label"], pos_weight=torch.full((3,), 5 / 3)
    )
    total, count = task.loss(logits, batch)
    torch.testing.assert_close(total / count, expected)


def test_the_positive_class_is_the_rarer_label_of_training(runs: Runs, tmp_path: Path) -> None:
    rows = [{"text": "x", "label": label} for label in ("fraud", "legit", "legit", "legit")]
    data = splits(tmp_path / "fraud", train=rows, validation=rows)
    task, dataset = runs.task("single", data=data)
    assert task.state.positive == "fraud" and "positive" in task.state.extra_fields()
    assert any("f1 scores 'fraud', the rarer label in training" in n for n in dataset.notes)
    predicted = [TextPrediction(n, "fraud") for n in range(4)]
    assert task.score(dataset.splits["train"], predicted)["f1"] == pytest.approx(0.4)
    task, dataset = runs.task("single", data=data, positive="legit")
    assert task.state.positive == "legit" and "f1 is" not in " ".join(dataset.notes)
    output = WindowOutput(0, np.array([0.2, 0.8]))
    assert (
        task.postprocess(dataset.splits["train"][0], [output]).to_dict()["positive_label"]
        == "legit"
    )
    with pytest.raises(UserError, match="--positive fruad: the labels are 'fraud' and 'legit'"):
        runs.task("single", data=data, positive="fruad")


def test_several_labels_in_one_cell_are_one_and_said(runs: Runs, tmp_path: Path) -> None:
    rows = [{"text": "x", "label": label} for label in ("joy,hope", "joy", "hope", "joy,hope")]
    task, dataset = runs.task(
        "multi", problem="multi", data=splits(tmp_path / "cells", train=rows), validation="none"
    )
    assert list(task.state.labels) == ["hope", "joy", "joy,hope"]
    assert sum("write several as a list in JSON Lines" in note for note in dataset.notes) == 1
    assert not any("write several as a list" in note for note in runs.task("multi")[1].notes)
    lists = str(runs.workdir / "lists")
    for split in ("train", "validation"):
        write_jsonl(Path(lists) / f"{split}.jsonl", texts([[label] for label in "abababab"]))
    _, dataset = runs.task("multi", data=lists, problem="multi")
    assert dataset.notes[0].startswith("each label is a list of one:") and len(dataset.notes) == 2


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("single", {"class_weights": "pso=2"}, r"'pso' is none of neg, pos\. .* 'pos'\?"),
        ("single", {"class_weights": "pos"}, "'pos' is not LABEL=NUMBER"),
        ("single", {"class_weights": "pos=much"}, "'pos=much' is not LABEL=NUMBER"),
        ("single", {"class_weights": "neg=-1"}, "0 or more"),
        ("single", {"metric": "micro_f1"}, "accuracy, macro_f1, weighted_f1, matthews, f1: leave"),
        (
            "regression",
            {"metric": "macro_f1"},
            "metrics of these labels are pearson, spearman: leave",
        ),
        ("multi", {"positive": "joy"}, "--positive joy: it applies to texts with one of two"),
        ("regression", {"class_weights": "auto"}, "--class-weights auto: the labels of .* are num"),
        ("regression", {"label_smoothing": 0.1}, "label_smoothing 0.1: the predictions are num"),
        ("regression", {"calibrate": "temperature"}, "are numbers and have no probabilities"),
    ],
)
def test_settings_without_effect_are_refused(
    runs: Runs, name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        runs.task(name, **settings)


def splits(folder: Path, **rows: list[dict]) -> str:
    for split, content in rows.items():
        write_jsonl(folder / f"{split}.jsonl", content)
    return str(folder)


def test_rows_without_label_are_dropped_and_counted(runs: Runs, tmp_path: Path) -> None:
    rows = [*SINGLE, {"text": "no label", "label": None}, {"text": "nor here", "label": "-"}]
    bare = [{**row, "label": None} for row in SINGLE[:3]]
    data = splits(tmp_path, train=rows, validation=rows[4:9], test=bare)
    task, dataset = runs.task("single", data=data)
    assert [len(dataset.splits[split]) for split in list(dataset.splits)] == [8, 4]
    unlabeled = read_text(data).splits["test"]
    notes = "\n".join(dataset.notes)
    assert "2 rows of train without label (empty, '-', NaN or -1) dropped" in notes
    assert "1 row of validation without label" in notes
    assert list(task.state.labels) == ["neg", "pos"]
    assert task.collate([windows[0] for windows in task.encode(unlabeled)]) == {}
    predicted = predict(task, task.model(), unlabeled)
    assert task.score(unlabeled, predicted) == {}, "no gold"
    assert [answer.id for answer in predicted] == [e.id for e in unlabeled]
    with pytest.raises(ValueError, match="no row of validation has a label: name its column, -"):
        runs.task("single", data=splits(tmp_path, validation=bare))


def test_labels_unseen_in_training_are_refused(runs: Runs, tmp_path: Path) -> None:
    data = splits(tmp_path, train=SINGLE, validation=[*SINGLE, {"text": "x", "label": "pso"}])
    with pytest.raises(ValueError, match=r"validation\.jsonl:9: .*does not have: 'pso'") as e:
        runs.task("single", data=data)
    assert "Perhaps you meant 'pos'?" in str(e.value)
    again = {"train": CASES["multi"].rows, "validation": [{"text": "x", "label": ["joy", "rage"]}]}
    with pytest.raises(ValueError, match=r"validation\.jsonl:1: .*'rage'"):
        runs.task("multi", data=splits(tmp_path / "multi", **again))


@pytest.mark.parametrize("label", ["good", "nan", "inf", float("inf"), ("3",)])
def test_regression_takes_finite_numbers_only(label: Any) -> None:
    examples = Examples([TextExample(0, "a", label=label, where="a.csv:7")])
    with pytest.raises(ValueError, match=r"a.csv:7: label .* is not a number, as regression needs"):
        with_problem(examples, "regression", label, 0)
    assert with_problem(examples, "regression", "-3", 0) == -3.0


def test_tags_unseen_in_training_are_noted(runs: Runs, tmp_path: Path) -> None:
    odd = [{"tokens": ["Oslo", "Anna"], "tags": ["B-GPE", "B-PER"]}]
    task, dataset = runs.task("bio", data=splits(tmp_path, train=BIO, validation=BIO, test=odd))
    assert any("test: labels that train does not have: 'GPE'" in note for note in dataset.notes)
    (windows,) = task.encode(dataset.splits["test"])
    assert windows[0].target == {"tag": [IGNORED, task.state.labels.id("B-PER")]}
    answer = predict(task, task.model(), dataset.splits["test"])
    perfect = replace(answer[0], tags=("O", "B-PER"))
    assert task.score(dataset.splits["test"], [perfect])["span_recall_conll"] == 0.5


def test_limit_is_noted_and_keeps_the_labels(runs: Runs, tmp_path: Path) -> None:
    task, dataset = runs.task("single", limit=3)
    assert len(dataset.splits["train"]) == 3
    assert len(dataset.splits["validation"]) == 8
    assert list(task.state.labels) == ["neg", "pos"], "labels are those of all training data"
    assert any("--limit: the first 3 of 8 examples of train" in n for n in dataset.notes)
    rows = [{"text": f"a man number {i}", "label": "ba"[i // 15]} for i in range(30)]
    data = splits(tmp_path, train=rows, validation=rows)
    for limit, is_noted in ((10, True), (20, False)):  # which leaves one label, or both
        notes = runs.task("single", data=data, limit=limit)[1].notes
        assert any("no label but 'b': the data are sorted" in note for note in notes) == is_noted


def test_both_validation_sets_of_mnli_are_scored(runs: Runs, tmp_path: Path) -> None:
    rows = CASES["nli 3"].rows
    data = splits(tmp_path, train=rows, validation_matched=rows, validation_mismatched=rows[:5])
    config = runs.config("nli 3", data=data, out=str(tmp_path / "run"), steps=2, eval_every=1)
    task, dataset = load_task(config, "nli")
    assert list(dataset.splits) == ["train", "validation_matched", "validation_mismatched"]
    result = fit(task, dataset, config)
    assert list(result.metrics) == ["validation_matched", "validation_mismatched"]
    log = read_jsonl(tmp_path / "run" / "log.jsonl")
    assert {line["split"] for line in log if "split" in line} == {"validation_matched"}


def test_nli_labels_are_mapped_by_name(runs: Runs, tmp_path: Path) -> None:
    """Trap 13: other spellings and orders give the same classes in the same order."""
    names = {"entailment": "entails", "neutral": "Neutral", "contradiction": "CONTRADICTS"}
    rows = [{**row, "label": names[row["label"]]} for row in CASES["nli 3"].rows[::-1]]
    task, dataset = runs.task("nli 3", data=splits(tmp_path, train=rows, validation=rows))
    assert list(task.state.labels) == WAYS
    assert any("'entails' is entailment" in note for note in dataset.notes)
    assert list(runs.task("nli 2")[0].state.labels) == ["entailment", "not_entailment"]
    other = [{**row, "label": row["label"][:3]} for row in CASES["nli 3"].rows]
    kept, _ = runs.task("nli 3", data=splits(tmp_path / "b", train=other, validation=other))
    assert list(kept.state.labels) == ["con", "ent", "neu"]


@pytest.mark.parametrize("name", ["tag", "ner"])
def test_training_splits_words_where_gold_begins_and_ends(name: str, tmp_path: Path) -> None:
    rows = [{"text": "in Paris Anns", "entities": [[3, 8, "LOC"], [9, 12, "PER"]]}] * 3
    data = splits(tmp_path / "data", train=rows, validation=rows)
    config = fx.config(name, data=data, out=tmp_path / "run", batch_size=2)
    task, dataset = load_task(config, name)
    assert any("PER" in label for label in task.state.labels)  # a type of misaligned spans only
    trained = TrainingData(task, dataset, config, make_accelerator(config), lambda note: None)
    assert trained.splits["train"][0].words == ("in", "Paris", "Ann", "s")
    assert trained.splits["validation"][0].words == ("in", "Paris", "Anns")
    scores = fit(task, dataset, config).metrics["validation"]
    assert 0 <= scores["span_f1_characters"] <= 0.8  # half of gold cannot be predicted


PLAIN = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(4)]
PROBLEMS: dict[str, dict[str, list[dict]]] = {
    "unseen label": {"train": PLAIN, "test": [{"text": "x", "label": "c"}]},
    "one label": {"train": PLAIN[:1]},
    "a label each": {"train": [{"text": f"{i}", "label": f"id {i}"} for i in range(30)]},
    "pairs in train": {"train": [{**row, "text_pair": "x"} for row in PLAIN], "test": PLAIN},
    "case": {"train": [*PLAIN, {"text": "x", "label": "A"}]},
    "null": {"train": [*PLAIN, {"text": "x", "label": "null"}]},
    "leak": {"train": PLAIN, "test": PLAIN[:1]},
    "other spans": {
        "train": [{"tokens": ["x"], "tags": ["B-A"]}],
        "validation": [{"tokens": ["y"], "tags": ["B-B"]}],
    },
    "no spans": {"train": [{"tokens": ["x"], "tags": ["O"]}]},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_training_agrees_with_check(name: str, tmp_path: Path) -> None:
    rows = {"validation": PROBLEMS[name]["train"], **PROBLEMS[name]}
    data = splits(tmp_path / "data", **rows)
    task_name = "tag" if "tokens" in rows["train"][0] else "classify"
    found = check_data((read_tokens if task_name == "tag" else read_text)(data), max_length=None)
    errors = [finding.message for finding in found if finding.level == "error"]
    warnings = [finding.message for finding in found if finding.level == "warning"]
    assert errors or warnings
    config = fx.config(task_name, data=data)
    if errors:
        with pytest.raises(UserError, match=re.escape(errors[0])):
            load_task(config, task_name)
    else:
        notes = "\n".join(load_task(config, task_name)[1].notes)
        assert all(f"warning: {warning}" in notes for warning in warnings)


def class_texts(names: list[str], used: list[str] | None = None, **more: str) -> datasets.Dataset:
    """Eight texts for each of the ``used`` names of a ClassLabel column."""
    rows = [
        {"text": f"a {name} film {i}", "label": names.index(name), **more}
        for i in range(8)
        for name in used or names
    ]
    columns = {name: datasets.Value("string") for name in ("text", *more)}
    features = datasets.Features({**columns, "label": datasets.ClassLabel(names=names)})
    return datasets.Dataset.from_list(rows, features=features)


def labels_of(task: str, data: Any) -> list[str]:
    return list(load_task(CONFIGS[task](model=str(fx.checkpoint())), task, data)[0].state.labels)


def test_numbers_of_the_data_set(tmp_path: Path) -> None:
    cola = ["unacceptable", "acceptable"]
    assert labels_of("classify", class_texts(cola)) == cola
    mrpc = class_texts(["not_equivalent", "equivalent"], text_pair="b")
    assert labels_of("nli", mrpc) == ["not_equivalent", "equivalent"]
    wnli = class_texts(["not_entailment", "entailment"], text_pair="b")
    assert labels_of("nli", wnli) == ["not_entailment", "entailment"]
    reordered = class_texts(["contradiction", "entailment", "neutral"], text_pair="b")
    assert labels_of("nli", reordered) == ["entailment", "neutral", "contradiction"]
    path = tmp_path / "train.parquet"
    class_texts(cola).to_parquet(path)
    assert labels_of("classify", str(path)) == cola
    # a class that no text has keeps no place, as after a filter
    assert labels_of("classify", class_texts(["x", "b", "a"], ["b", "a"])) == ["b", "a"]
    assert labels_of("classify", [{"text": f"{n} film", "label": n} for n in "baba"]) == [*"ab"]


def test_numbers_of_tags() -> None:
    tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]

    def words(names: list[str]) -> datasets.Dataset:
        columns = {
            "tokens": datasets.List(datasets.Value("string")),
            "tags": datasets.List(datasets.ClassLabel(names=names)),
        }
        rows = [{"tokens": [*"abcde"[: len(names)]], "tags": [*range(len(names))]}] * 8
        rows = [{**row, "tokens": [*row["tokens"][:-1], str(i)]} for i, row in enumerate(rows)]
        return datasets.Dataset.from_list(rows, features=datasets.Features(columns))

    assert labels_of("tag", words(tags)) == tags
    assert labels_of("tag", words(["VERB", "NOUN", "ADJ"])) == ["VERB", "NOUN", "ADJ"]


def test_a_run_is_resumed_with_the_order_of_its_model(tmp_path: Path) -> None:
    """Older versions sorted the classes by name: the saved head has them in that order."""
    model = str(fx.checkpoint())
    rows = class_texts(["worse", "better"])
    plain = [{**row, "label": ["worse", "better"][row["label"]]} for row in rows]
    settings = {"out": str(tmp_path / "run"), "steps": 4, "batch_size": 4, "quiet": True}
    first = finetune.train("classify", plain, model, **settings)
    again = finetune.train("classify", rows, model, resume=True, **settings)
    assert again.metrics == first.metrics
    assert list(again.predictor.labels) == ["better", "worse"]
    saved = json.loads((again.folder / "best" / "config.json").read_text())
    assert saved["id2label"] == {"0": "better", "1": "worse"}
    fresh = finetune.train("classify", rows, model, **{**settings, "out": str(tmp_path / "new")})
    saved = json.loads((fresh.folder / "best" / "config.json").read_text())
    assert saved["id2label"] == {"0": "worse", "1": "better"}
    prediction = fresh.predictor.predict(["a better film"])[0]
    assert list(prediction.scores or {}) == ["worse", "better"]
