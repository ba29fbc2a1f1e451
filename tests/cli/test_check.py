"""`finetune check`: planted label errors come first; every row that cannot be read is listed."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from finetune.runtime import progress
from tests.command import Outcome, run
from tests.small_data import keep_on_disk, read_jsonl, write_jsonl
from tests.tiny import save_tiny_checkpoint

NUMBER, PLANTED = 160, 12
EPOCHS = "epochs: 4"
OTHERS = ("the", "train", "was", "late", "and", "nobody")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("label-check")
    save_tiny_checkpoint(folder / "bert", "bert", dropout=0.0, layers=3)
    return folder


def recipe(workdir: Path, task: str, rows: list[dict]) -> Path:
    write_jsonl(workdir / task / "train.jsonl", rows)
    path = workdir / f"{task}.yaml"
    path.write_text(
        f"task: {task}\nmodel: {workdir / 'bert'}\ndata: {workdir / task}\n{EPOCHS}\n"
        "batch_size: 8\nlr: 2e-3\nprecision: fp32\nmax_length: 40\n"
    )
    return path


def check(path: Path, out: Path) -> Outcome:
    """Train the folds of a recipe, and check its labels with their predictions."""
    run("run", path, "--folds", "2", "--out", out.with_suffix("")).ok()
    return run("check", out.with_suffix(""), "--label-errors", "--examples", "4", "--out", out)


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


def test_texts(workdir: Path, tmp_path: Path):
    rows, planted = texts()
    path, out = recipe(workdir, "classify", rows), tmp_path / "found.jsonl"
    plain = check(path, out).ok()
    assert "cross-fitted accuracy 0." in plain.out and "(always predicting " in plain.out
    assert "estimated fraction of wrong labels" in plain.out and "hardly better" not in plain.err
    assert f"{workdir / 'classify' / 'train.jsonl'}:" in plain.out
    by_line = {int(row["where"].rpartition(":")[2]) - 1: row for row in read_jsonl(out)}
    first = [*by_line][:PLANTED]
    assert len(set(first) & set(planted)) >= 0.9 * PLANTED
    line = next(iter(set(first) & set(planted)))
    assert by_line[line]["given"] == rows[line]["label"] != by_line[line]["suggested"]

    folds = out.with_suffix("")
    for words, message in (
        (["--model", "x"], "--model: it does not apply to --label-errors"),
        (["--format=json"], "--format: it does not apply to --label-errors"),
        (["--out", tmp_path], "is a folder: name a file"),
    ):
        run("check", folds, "--label-errors", *words).refused(message)
    shutil.rmtree(folds / "fold-1.2")
    run("check", folds, "--label-errors").refused("fold-1.2: the fold is not finished")


def test_what_cannot_be_searched(workdir: Path, tmp_path: Path):
    numbers = [{"text": str(i), "label": i + 0.5} for i in range(12)]
    tags = [{"tokens": [str(i)], "tags": ["B-N" if i % 2 else "O"]} for i in range(12)]
    for task, rows in (("classify", numbers), ("tag", tags)):
        path = recipe(workdir, task, rows)
        path.write_text(path.read_text().replace(EPOCHS, "steps: 1"))
        check(path, tmp_path / f"{task}.jsonl").refused("--label-errors needs labels of texts")
    for words, message in (
        (["check", workdir, "--label-errors"], "no folder of folds: train them"),
        (["check", "--label-errors"], "needs a folder of --folds"),
        (["check", workdir / "tag", "--out", tmp_path / "a.jsonl"], "--out needs --label-errors"),
        (["check", workdir / "tag.yaml", "--task=ner"], "is a recipe for tag, not ner"),
    ):
        run(*words).refused(message)


def test_models_that_learned_nothing_name_no_label_issues(workdir: Path, tmp_path: Path):
    rows = [row | {"label": "neg" if n % 5 else "pos"} for n, row in enumerate(texts()[0])]
    path = recipe(workdir, "classify", rows)
    text = path.read_text().replace(EPOCHS, "steps: 1")
    path.write_text(text.replace("lr: 2e-3", "lr: 1e-9"))
    check(path, tmp_path / "found.jsonl").refused("the models learned nothing, cross-fitted")
    assert not (tmp_path / "found.jsonl").exists()


def test_large_data_show_their_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    keep_on_disk(monkeypatch)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))
    path = write_jsonl(tmp_path / "a.jsonl", texts()[0])
    outcome = run("check", path).ok()
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
        [200],
        "spans.jsonl:2: span 0 to 99 (PER)",
    ),
    "rows.jsonl": (
        '{"text": "a b", "label": "x"}\n{"text": \n[]\n{"text": []}\n' * 2,
        [2, 2, 2],
        "3: a row",
    ),
    "a.csv": ("text,label\na,x\nb\nc,y\ntext,label\nd,x,y\n", [2, 1], "a.csv:5: the header again"),
    "a.conll": ("a\tO\nb\n\nc\tO\nd\t\te\n", [2], "a.conll:5: 3 columns where 2"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("task", [False, True])
def test_bad_rows_are_listed_by_cause(name: str, task: bool, tmp_path: Path):
    content, numbers, location = BAD[name]
    (path := tmp_path / name).write_text(content, "utf-8")
    words = "spans" in name or "conll" in name
    outcome = run("check", path, *(["--task", "ner" if words else "classify"] if task else []))
    assert outcome.code == 1 and not outcome.err, outcome.err
    assert location in outcome.out
    listed = [f for f in json.loads(run("check", path, "--json").out) if f["check"] == "rows"]
    for finding, number in zip(listed, numbers, strict=True):
        assert finding["message"].startswith(f"{number} row")
        assert len(finding["locations"]) == min(number, 6)
        assert number < 6 or finding["locations"][-1] == f"… and {number - 5} more"


def test_questions_without_their_answers_and_repeated_ids_are_located(tmp_path: Path):
    def question(id: str, text: str) -> dict:
        return {"id": id, "question": "who", "answers": [{"text": text, "answer_start": 0}]}

    questions = [question(f"q{n}", "Anna") for n in range(20)]
    questions += [question("q0", "Anna"), question("x", "Rome")]
    paragraph = {"context": "Anna saw Oslo", "qas": questions}
    squad = {"data": [{"title": "t", "paragraphs": [paragraph]}]}
    (path := tmp_path / "a.json").write_text(json.dumps(squad))
    outcome = run("check", path).ok()
    at = f"{path}:article 1 (t), paragraph 1, question"
    assert "train: 1 repeated id:" in outcome.out and f"{at} 21 (q0, as {at} 1)" in outcome.out
    assert "train: 1 question without an answer in its place: left out of" in outcome.out
    assert f"at {at} 22: the answer 'Rome' is not in the context" in outcome.out
    paragraph["qas"] = questions[-3:]
    path.write_text(json.dumps(squad))
    outcome = run("check", path, "--task", "qa")
    assert outcome.code == 1 and "write each answer as it is in the context" in outcome.out


def test_bad_rows_are_listed_where_no_row_is_left(tmp_path: Path):
    (path := tmp_path / "a.jsonl").write_text('{"text": \n{"text": []}\n', "utf-8")
    outcome = run("check", path)
    assert outcome.code == 1 and "3 errors" in outcome.out, outcome.out
    assert "a.jsonl:1: not valid JSON" in outcome.out and "split is empty" in outcome.out


def test_spans_that_end_inside_a_word_are_a_warning(tmp_path: Path):
    rows = [{"text": "Anna ran", "spans": [SPAN]}] * 3
    outcome = run("check", write_jsonl(tmp_path / "a.jsonl", rows), "--strict")
    assert outcome.code == 1
    assert "warning  reading     3 spans in characters with an end inside a word" in outcome.out


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        ("ner", {"tokens": ["a", "b"], "tags": ["DT", "NN"]}, "no sentence of train has spans"),
        ("tag", {"tokens": ["a", "b"], "spans": [[0, 2, "X"], [0, 1, "Y"]]}, "overlap or nest"),
        ("relations", {"tokens": ["a"], "tags": ["B-X"]}, "no sentence of train has relations"),
    ],
)
def test_data_that_the_task_refuses_are_an_error(
    task: str, row: dict, message: str, tmp_path: Path
):
    file = write_jsonl(tmp_path / "train.jsonl", [row] * 3)
    assert run("check", file).ok()
    outcome = run("check", file, "--task", task)
    assert outcome.code == 1 and message in outcome.out


def test_the_missing_relations_of_spans_are_named(tmp_path: Path):
    row = {"tokens": ["Ana", "left"], "spans": [[0, 1, "PER"]], "relations": []}
    outcome = run("check", write_jsonl(tmp_path / "a.jsonl", [row] * 3), "--task", "relations")
    assert "train: no example has a relation, so" in outcome.out
    assert "--columns relations=NAME" in outcome.out
