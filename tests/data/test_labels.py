"""One spelling of labels that differ only in case."""

from __future__ import annotations

from pathlib import Path

from finetune.config.tasks import CONFIGS
from finetune.data import check_data, read_text, read_tokens
from finetune.data.labels import folded
from finetune.tasks import load_task
from tests import laboratory as lab

NAMES = ["Pos", "pos", "pos", "POS ", "neg", "Neg", "neg", "neutral"]


def texts(names: list[str]) -> list[dict[str, object]]:
    return [{"text": f"text {i}", "label": name} for i, name in enumerate(names)]


def labels(data) -> list:
    return [row.label for row in data.splits["train"]]


def test_fold_takes_the_most_frequent_spelling() -> None:
    data = folded(read_text(texts(NAMES)))
    assert labels(data) == ["pos"] * 4 + ["neg"] * 3 + ["neutral"]
    assert data.notes[-1] == "--labels-case fold: one spelling each of neg, pos"
    several = [{"text": "a", "label": ["Joy", "joy"]}, {"text": "b", "label": ["joy", "fear"]}]
    assert labels(folded(read_text(several))) == [("joy",), ("joy", "fear")]


def test_words_and_spans() -> None:
    rows = [
        {"tokens": ["A", "b"], "tags": ["B-PER", "B-per"]},
        {"tokens": ["c", "d"], "tags": ["B-per", "I-per"]},
    ]
    data = folded(read_tokens(rows))
    assert [row.tags for row in data.splits["train"]] == [("B-per", "B-per"), ("B-per", "I-per")]
    assert {span.label for row in data.splits["train"] for span in row.spans} == {"per"}


def test_the_warning_names_the_option_once() -> None:
    found = [
        each
        for each in check_data(read_text(texts(NAMES)), max_length=None)
        if "differ only in case" in each.message
    ]
    (warning,) = found
    assert "'Neg' (1), 'neg' (2); 'POS' (1), 'Pos' (1), 'pos' (2)" in warning.message
    assert "--labels-case fold" in warning.message


def test_training_reads_them(tmp_path: Path) -> None:
    model = str(lab.checkpoint())
    config = CONFIGS["classify"](model=model, labels_case="fold")
    task, data = load_task(config, "classify", texts(NAMES * 3))
    assert list(task.record.labels) == ["neg", "neutral", "pos"]
    assert not any("differ only in case" in note for note in data.notes)
