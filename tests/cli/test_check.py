"""`finetune check --label-errors`: planted errors come first, and an interrupted search goes on."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from finetune.runtime import progress
from tests.command import Outcome, run
from tests.small_data import keep_on_disk, write_jsonl
from tests.tiny import save_tiny_checkpoint
from tests.training.stopping import interrupt_in_step

NUMBER, PLANTED = 160, 12
EPOCHS = {"classify": 4, "tag": 12, "ner": 12}
NAMES, OTHERS = ("paris", "peter", "maria"), ("the", "train", "was", "late", "and", "nobody")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("label-check")
    save_tiny_checkpoint(folder / "bert", "bert", dropout=0.0, layers=3)
    return folder


def recipe(place: Path, task: str, rows: list[dict], *more: str) -> Path:
    write_jsonl(place / task / "train.jsonl", rows)
    lines = [
        f"task: {task}",
        "description: planted",
        f"model: {place / 'bert'}",
        f"data: {place / task}",
        f"epochs: {EPOCHS[task]}",
        "batch_size: 8",
        "lr: 2e-3",
        "precision: fp32",
        "max_length: 40",
        *more,
    ]
    path = place / f"{task}.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def check(*arguments: str | Path) -> Outcome:
    return run("check", *arguments, "--label-errors", "--folds", "3", "--examples", "4")


def suspects(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def texts() -> tuple[list[dict], list[int]]:
    """Words say the label; some labels are turned round."""
    rng = random.Random(1)
    planted = sorted(rng.sample(range(NUMBER), PLANTED))
    rows = []
    for index in range(NUMBER):
        good = rng.random() < 0.5
        words = rng.choices(("big", "red", "dog") if good else ("old", "why", "saw"), k=3)
        label = "pos" if good != (index in planted) else "neg"
        rows.append({"text": " ".join([*words, *rng.choices(OTHERS, k=4)]), "label": label})
    return rows, planted


def test_texts_and_going_on(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows, planted = texts()
    path, out = recipe(place, "classify", rows), tmp_path / "found.jsonl"
    plain = check(path)
    assert plain.code == 0, plain.err
    assert "cross-fitted accuracy 0." in plain.out and "(always predicting " in plain.out
    assert "a valid recipe" in plain.out and "estimated fraction of wrong labels" in plain.out
    assert f"{place / 'classify' / 'train.jsonl'}:" in plain.out

    interrupt_in_step(100, monkeypatch)  # in the second fold
    stopped = check(path, "--out", out)
    assert stopped.code == 130 and "the same command continues" in stopped.err, stopped.err
    assert not out.exists() and (tmp_path / "found.jsonl.folds" / "fold-1.jsonl").exists()
    monkeypatch.undo()
    other = check(path, "--out", out, "--epochs", "1")
    assert other.code == 2 and "holds folds with " in other.err
    again = check(path, "--out", out)
    assert again.code == 0, again.err
    assert "fold 1 of 3" not in again.err and "continuing from step" in again.err
    last = f"all suspects, the most probable first: {out}\n"
    assert again.out.replace(last, "") == plain.out, "an interruption changes nothing"
    assert [file.name for file in tmp_path.iterdir()] == ["found.jsonl"]

    first = [row["line"] - 1 for row in suspects(out)[:PLANTED]]
    assert len(set(first) & set(planted)) >= 0.9 * PLANTED
    by_line = {row["line"] - 1: row for row in suspects(out)}
    hit = by_line[next(iter(set(first) & set(planted)))]
    assert hit["given"] == rows[hit["line"] - 1]["label"] != hit["suggested"]


def sentences() -> tuple[list[dict], list[tuple[int, int]]]:
    """Names are names everywhere, but where a tag was planted."""
    rng = random.Random(2)
    rows, names = [], []
    for index in range(NUMBER):
        tokens = [
            *rng.choices(OTHERS, k=rng.randint(2, 6)),
            rng.choice(NAMES),
            *rng.choices(OTHERS),
        ]
        names.append((index, len(tokens) - 2))
        rows.append({"tokens": tokens, "tags": ["B-N" if t in NAMES else "O" for t in tokens]})
    planted = rng.sample(names, PLANTED)
    for index, word in planted:
        rows[index]["tags"][word] = "O"
    return rows, planted


@pytest.mark.slow
def test_words(place: Path, tmp_path: Path):
    rows, planted = sentences()
    out = tmp_path / "found.jsonl"
    outcome = check(recipe(place, "tag", rows, "crf: true"), "--out", out)
    assert outcome.code == 0, outcome.err
    found = suspects(out)
    hits = {(row["line"] - 1, row["first_word"]) for row in found[:PLANTED]} & set(planted)
    assert len(hits) >= 0.7 * PLANTED and len(hits) >= 0.9 * len(found[:PLANTED])
    assert found[0]["worst"]
    assert ("O", "B-N") in {(row["given"], row["suggested"]) for row in found[:3]}


@pytest.mark.slow
def test_spans(place: Path, tmp_path: Path):
    rows, planted = sentences()
    out = tmp_path / "found.jsonl"
    outcome = check(recipe(place, "ner", rows, "max_width: 2", "head_lr: 2e-3"), "--out", out)
    assert outcome.code == 0, outcome.err
    found = suspects(out)[: PLANTED // 2]
    hits = {(row["line"] - 1, row["first_word"]) for row in found} & set(planted)
    assert len(hits) >= PLANTED // 2 - 1
    assert (found[0]["kind"], found[0]["given"]) == ("missing span", "nothing")


def test_validation_splits_with_other_names(place: Path, tmp_path: Path):
    rows = texts()[0][:24]
    for split in ("train", "validation_matched", "validation_mismatched"):
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    given = ("--data", tmp_path, "--model", place / "bert", "--epochs", "1")
    outcome = run("check", *given, "--task", "classify", "--label-errors", "--folds", "2")
    assert "fold 2 of 2: training on 12 examples" in outcome.err
    assert "internal error" not in outcome.err, outcome.err


def test_what_cannot_be_searched(place: Path, tmp_path: Path):
    write_jsonl(tmp_path / "n.jsonl", [{"text": str(i), "label": i + 0.5} for i in range(20)])
    for arguments, message in (
        (("--data", tmp_path / "n.jsonl"), "name one with --model"),
        (("--data", tmp_path / "n.jsonl", "--model", place / "bert"), "are numbers"),
    ):
        outcome = run("check", *arguments, "--label-errors")
        assert outcome.code == 2 and message in outcome.err, outcome.err
    run(
        "check", tmp_path / "n.jsonl", "--model", place / "bert", "--label-errors", "--folds=1"
    ).refused("--folds must be 2 or more")


def test_what_is_asked_for_beside_it(place: Path, tmp_path: Path):
    """Settings without effect are refused, and data without a training split are named."""
    rows, _ = sentences()
    path, file = recipe(place, "tag", rows), write_jsonl(tmp_path / "a.jsonl", rows)
    for arguments, message in (
        ((path, "--out", tmp_path / "found"), "--out needs --label-errors"),
        ((path, "--folds=3"), "--folds needs --label-errors"),
        ((path, "--label-errors", "--task=ner"), "is a recipe for tag, not ner"),
        ((f"test={file}", "--label-errors", "--model", place / "bert"), "there is no train split"),
    ):
        outcome = run("check", *arguments)
        assert outcome.code == 2 and message in outcome.err, outcome.err


@pytest.mark.parametrize("task", ["classify", "tag", "ner"])
def test_models_that_learned_nothing_name_no_suspects(task: str, place: Path, tmp_path: Path):
    rows = texts()[0] if task == "classify" else sentences()[0]
    path = recipe(place, task, rows)
    text = path.read_text().replace(f"epochs: {EPOCHS[task]}", "steps: 1")
    path.write_text(text.replace("lr: 2e-3", "lr: 1e-9"))
    outcome = check(path, "--out", tmp_path / "found.jsonl")
    assert outcome.code == 2
    assert "the models learned nothing, cross-fitted" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_large_data_show_their_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    keep_on_disk(monkeypatch)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))
    path = write_jsonl(tmp_path / "a.jsonl", texts()[0])
    outcome = run("check", path)
    assert outcome.code == 0
    assert "reading: row 160 " in outcome.err and "checking: check 10/10 " in outcome.err
    assert "checking" not in outcome.out
    listed = run("check", path, "--format", "json")
    assert json.loads(listed.out) and "reading: row" in listed.err


SPAN = {"start": 0, "end": 3, "label": "PER"}
BAD = {
    "spans.jsonl": (
        "".join(
            json.dumps({"text": "Ann ran", "spans": [{**SPAN, "end": 99} if n % 2 else SPAN]})
            + "\n"
            for n in range(400)
        ),
        200,
        "spans.jsonl:2: span 0 to 99 (PER)",
    ),
    "rows.jsonl": (
        '{"text": "a b", "label": "x"}\n{"text": \n[]\n{"text": []}\n' * 2,
        6,
        "3: a row",
    ),
    "a.csv": ("text,label\na,x\nb\nc,y\ntext,label\nd,x,y\n", 3, "a.csv:5: the header again"),
    "a.conll": ("a\tO\nb\n\nc\tO\nd\t\te\n", 2, "a.conll:5: 3 columns where 2"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("task", [False, True])
def test_every_bad_row_is_listed(name: str, task: bool, tmp_path: Path):
    content, number, place = BAD[name]
    (path := tmp_path / name).write_text(content, "utf-8")
    words = "spans" in name or "conll" in name
    outcome = run("check", path, *(["--task", "ner" if words else "classify"] if task else []))
    assert outcome.code == 1 and not outcome.err, outcome.err
    assert f"error    rows        {number} rows cannot be read\n" in outcome.out
    assert place in outcome.out
    assert (number < 100) or "at … and 100 more" in outcome.out
    listed = json.loads(run("check", path, "--json").out)
    assert listed[-1]["check"] == "rows" and len(listed[-1]["locations"]) == min(number, 101)


def test_bad_rows_are_listed_where_no_row_is_left(tmp_path: Path):
    (path := tmp_path / "a.jsonl").write_text('{"text": \n{"text": []}\n', "utf-8")
    outcome = run("check", path)
    assert outcome.code == 1 and "2 errors" in outcome.out, outcome.out
    assert "a.jsonl:1: not valid JSON" in outcome.out and "split is empty" in outcome.out


def test_spans_that_end_inside_a_word_are_a_warning(tmp_path: Path):
    rows = [{"text": "Anna ran", "spans": [SPAN]}] * 3
    outcome = run("check", write_jsonl(tmp_path / "a.jsonl", rows), "--strict")
    assert outcome.code == 1
    assert "warning  reading     3 spans in characters with an end inside a word" in outcome.out
