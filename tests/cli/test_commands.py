"""Every command from end to end on tiny models: what is printed, what is written, what is kept."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from finetune.data import read_text_file
from tests import fixtures as fx
from tests import small_data as data
from tests.command import Outcome, run
from tests.covering import few
from tests.small_data import read_jsonl, write_jsonl

TASKS = {"classify": "sentiment", "nli": "pairs", "tag": "entities"}
OURS = re.compile(
    r"data: |kept: |warning: |labels \(|step \d+: |[\d,]+ of (train|validation|test) |"
    r"[\d,]+ of [\d,]+ (subwords|examples) |[\d,]+ (texts?|words?|examples?) of "
)
"""How the lines begin that a run may print while it works."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Outcome]]:
    """A folder with data and a finished run of each task, and what the runs said."""
    folder = tmp_path_factory.mktemp("commands")
    for name in TASKS.values():
        shutil.copytree(fx.data(name), folder / name)
    return folder, {task: train(folder, task, folder / task) for task in TASKS}


@pytest.fixture(scope="module")
def workdir(trained: tuple[Path, dict[str, Outcome]]) -> Path:
    return trained[0]


@pytest.fixture(scope="module")
def outcomes(trained: tuple[Path, dict[str, Outcome]]) -> dict[str, Outcome]:
    return trained[1]


def train(workdir: Path, task: str, out: Path, *more: str | Path) -> Outcome:
    steps = None if "--epochs" in more else 6
    return fx.train(task, out, *more, data=workdir / TASKS[task], steps=steps)


@pytest.mark.parametrize("task", TASKS)
def test_a_run_folder_has_everything(task: str, workdir: Path, outcomes: dict[str, Outcome]):
    assert outcomes[task].code == 0
    folder = workdir / task
    vocabulary = {"training_vocabulary.json"} if task == "tag" else set()
    assert {path.name for path in folder.iterdir()} == vocabulary | {
        "best",
        "last",
        "checksums.json",
        "config.json",
        "environment.json",
        "log.jsonl",
        "metrics.json",
        "predictions.test.jsonl",
        "predictions.validation.jsonl",
        "README.md",
        "report.html",
    }
    assert {"config.json", "model.safetensors", "finetune.json", "tokenizer.json"} <= {
        path.name for path in (folder / "best").iterdir()
    }
    config = json.loads((folder / "config.json").read_text())
    assert config["task"] == task and config["steps"] == 6 and config["fingerprint"]
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["command"].startswith(f"finetune {task} --out")
    assert {"torch", "transformers"} <= set(environment["versions"])
    log = read_jsonl(folder / "log.jsonl")
    assert {"step", "loss", "lr", "examples_per_second"} <= set(log[0])
    assert log[-1]["split"] == "validation"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert [split for split in metrics if "_without_leaks" not in split] == ["validation", "test"]
    text = (folder / "README.md").read_text()
    assert "| `batch_size` | `8` |" in text and "finetune predict" in text
    assert "always predicting" in text
    for split in ("validation", "test"):
        lines = read_jsonl(folder / f"predictions.{split}.jsonl")
        rows = (workdir / TASKS[task] / f"{split}.jsonl").read_text().splitlines()
        assert [line["id"] for line in lines] == list(range(len(rows)))


@pytest.mark.parametrize("task", TASKS)
def test_what_a_run_says(task: str, workdir: Path, outcomes: dict[str, Outcome]):
    outcome = outcomes[task]
    sizes = [
        len((workdir / TASKS[task] / f"{split}.jsonl").read_text().splitlines())
        for split in ("train", "validation", "test")
    ]
    said = outcome.err.splitlines()
    assert said[0].endswith("train {}, validation {}, test {}".format(*sizes))
    assert said[1].startswith("labels (")
    assert all(OURS.match(line) for line in said), outcome.err
    shown = [line for line in outcome.out.splitlines() if "_without_leaks" not in line]
    metrics = json.loads((workdir / task / "metrics.json").read_text())
    name, value = next(iter(metrics["test"].items()))
    assert shown[2].strip().startswith(f"test: {name} {value:.4f}")
    assert "(always predicting" in shown[3]
    pair = ' --pair "…"' if task == "nli" else ""
    assert shown[-1] == f'Try it: finetune predict {workdir / task} --text "…"{pair}'


def test_the_most_frequent_label_is_counted(workdir: Path, outcomes: dict[str, Outcome]):
    rows = {
        split: read_jsonl(workdir / "sentiment" / f"{split}.jsonl") for split in ("train", "test")
    }
    labels = [row["label"] for row in rows["train"]]
    most = max(sorted(set(labels)), key=labels.count)
    share = sum(row["label"] == most for row in rows["test"]) / len(rows["test"])
    assert f"(always predicting {most!r}: accuracy {share:.4f})" in outcomes["classify"].out


def test_prediction_lines(workdir: Path):
    text = run("predict", workdir / "classify", "--text", "a warm room").rows
    assert [set(row) for row in text] == [{"id", "label", "score", "scores", "positive_label"}]
    assert text[0]["label"] in text[0]["scores"] and 0 < text[0]["score"] <= 1
    pair = run("predict", workdir / "nli", "--text", "Ana sings", "--pair", "she is").rows
    assert set(pair[0]["scores"]) == {"entailment", "neutral", "contradiction"}
    sentence = "Ana  saw New York."
    (words,) = run("predict", workdir / "tag", "--text", sentence).rows
    assert set(words) == {"id", "words", "tags", "scores", "spans", "offsets"}
    assert words["words"] == ["Ana", "saw", "New", "York", "."]
    assert [sentence[a:b] for a, b in words["offsets"]] == words["words"]
    assert len(words["tags"]) == len(words["scores"]) == 5
    for span in words["spans"]:
        assert sentence[span["start_char"] : span["end_char"]] == span["text"]


def test_tags_of_another_scheme_in_the_input_are_not_read(workdir: Path, tmp_path: Path):
    expected = run("predict", workdir / "tag", "--text", "Ana saw Oslo.").rows[0]["tags"]
    for name, tags in (
        ("pos.conll", ["NN", "VB", "NN", "."]),
        ("bmes.conll", ["S-X", "O", "B-X", "E-X"]),
    ):
        lines = zip(["Ana", "saw", "Oslo", "."], tags, strict=True)
        file = tmp_path / name
        file.write_text("".join(f"{word} {tag}\n" for word, tag in lines))
        outcome = run("predict", workdir / "tag", "--file", file, "--keep-columns").ok()
        assert outcome.rows[0]["tags"] == expected
        assert "1 sentence of CoNLL files, of which --keep-columns keeps no column" in outcome.err


@pytest.mark.parametrize(
    ("content", "sentences"),
    [
        ("# sent_id = a\n" + "".join(f"{n}\tAna{8 * chr(9) + '_'}\n" for n in (1, 2)), 1),
        (f"1\tAna{8 * chr(9) + '_'}\n", 1),
        ("#\thttp://example.org\t[2010]\n1\tAna\tO\tO\n2\tsaw\tO\tO\n", 1),
        ("Ana\tB-PER\nsaw\tO\n\nOslo\tO\n", 2),
        ("-DOCSTART- O\n\nAna B-PER\nsaw O\n", 1),
        ("Drive on I-95\n# 5 things\n", 2),  # texts
        ("# text: a = b\nAna saw Oslo\n", 2),
    ],
)
def test_columns_of_standard_input_show_in_its_first_line(
    content: str, sentences: int, workdir: Path
):
    rows = run("predict", workdir / "tag", "--file", "-", stdin=content.encode()).ok().rows
    assert len(rows) == sentences and "\t" not in "".join(rows[0]["words"])


def test_a_tagger_reads_texts_of_a_pipe_as_of_standard_input(workdir: Path, tmp_path: Path):
    for number, content in enumerate(("Ana saw\nJohn left\n", "Ana\tB-PER\nsaw\tO\n")):
        os.mkfifo(pipe := tmp_path / str(number))
        threading.Thread(target=pipe.write_text, args=(content,), daemon=True).start()
        rows = run("predict", workdir / "tag", "--file", pipe).ok().rows
        assert [word for row in rows for word in row["words"]][:2] == ["Ana", "saw"]
        assert len(rows) == 2 - number


@pytest.mark.parametrize("text", ["", " ", "-warm", "--file", "\u200b", "a\u2028b", "🙂 é"])
def test_any_text_has_one_answer(text: str, workdir: Path):
    for task in ("classify", "tag"):
        outcome = run("predict", workdir / task, f"--text={text}")
        assert outcome.code == 0 and [r["id"] for r in outcome.rows] == [0], outcome.err


FILES = {
    "in.txt": "first\n\n  \nfourth one\n",
    "in.jsonl": "".join(json.dumps({"text": t}) + "\n" for t in ("first", "", " ", "fourth one")),
    "in.csv": 'text,score\nfirst,1\n"",2\n" ",nobody knows\nfourth one,4\n',  # a label in one
    "in.tsv": "text\tmore\nfirst\t1\n\t2\n \t3\nfourth one\t4\n",
}


@pytest.mark.parametrize("task", ["classify", "tag"])
@pytest.mark.parametrize("name", FILES)
def test_files_have_one_answer_for_each_row(task: str, name: str, workdir: Path, tmp_path: Path):
    (path := tmp_path / name).write_text(FILES[name], encoding="utf-8")
    outcome = run("predict", workdir / task, "--file", path).ok()
    assert [row["id"] for row in outcome.rows] == [0, 1, 2, 3]
    output = tmp_path / "out.jsonl"
    assert run("predict", workdir / task, "--file", path, "--out", output).out == ""
    written = read_jsonl(output)
    uncertain = [row.pop("uncertainty", None) for row in written]
    assert written == outcome.rows
    assert all(value is None or 0 <= value <= 1 for value in uncertain) and any(uncertain)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, "out.jsonl"])


def test_standard_input(workdir: Path):
    plain = run("predict", workdir / "classify", "--file", "-", "--out", "-", stdin=b"one\n\ntwo\n")
    assert [row["id"] for row in plain.rows] == [0, 1, 2]
    rows = b'{"premise": "Ana sings", "hypothesis": "she does"}\n' * 2
    assert len(run("predict", workdir / "nli", "--file", "-", stdin=rows).rows) == 2
    assert run("predict", workdir / "classify", "--file", "-", stdin=b"").out == ""


@pytest.mark.parametrize("task", few(TASKS, "nli"))
def test_predictions_for_a_spreadsheet(task: str, workdir: Path, tmp_path: Path):
    rows = read_jsonl(workdir / TASKS[task] / "test.jsonl")[:5]
    rows = [{"id": f"-n{n}", **row, "note": f'=é,"{n}"\n'} for n, row in enumerate(rows)]
    path = data.write_jsonl(tmp_path / "in.jsonl", rows)
    plain = run("predict", workdir / task, "--file", path).rows
    kept = run("predict", workdir / task, "--file", path, "--keep-columns").rows
    for row, prediction, joined in zip(rows, plain, kept, strict=True):
        assert prediction.items() <= joined.items()
        renamed = {"label": "gold", "tags": "input_tags"}
        known = {name: renamed.get(name, name) for name in row}
        assert {name: joined[known[name]] for name in row} == row
    run("predict", workdir / task, "--file", path, "--out", tmp_path / "p.csv").ok()
    with (tmp_path / "p.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    output = tmp_path / "p.parquet"
    run("predict", workdir / task, "--file", path, "--out", output).ok()
    found = read_text_file(str(output), columns={"text": "note"}, pair=False, labels=False)
    assert [example.key for example in found] == [f"-n{n}" for n in range(5)]
    run("predict", workdir / task, "--file", path, "--out", tmp_path / "p.pdf").refused(
        "the suffix names the format: one of .jsonl"
    )
    assert [row["id"] for row in table] == [f"'-n{n}" for n in range(5)]
    assert [row["note"] for row in table] == [f"'{row['note']}" for row in rows]
    for cells, prediction in zip(table, plain, strict=True):
        if task == "tag":
            assert json.loads(cells["tags"]) == prediction["tags"] and "input_tags" in cells
        else:
            assert (
                cells["label"] == prediction["label"]
                and cells["gold"] == rows[int(cells["id"][3:])]["label"]
            )
            for name, score in prediction["scores"].items():
                assert float(cells[f"score:{name}"]) == score


@pytest.mark.parametrize(("task", "column"), [("ner", "input_tags"), ("choice", "gold")])
def test_gold_that_is_kept_is_no_prediction(task: str, column: str, tmp_path: Path):
    gold, out = fx.data(task) / "test.jsonl", tmp_path / "out.jsonl"
    words = ("predict", fx.trained(task), "--file", gold, "--out", out)
    run(*words).ok()
    scores = run("score", out, gold).ok().out
    run(*words, "--keep-columns").ok()
    assert column in read_jsonl(out)[0] and run("score", out, gold).ok().out == scores
    if column == "gold":
        assert run("score", out).ok().out == scores


def test_several_texts(workdir: Path):
    outcome = run("predict", workdir / "classify", "--text", "one", "two")
    separate = [run("predict", workdir / "classify", "--text", text) for text in ("one", "two")]
    alone = [each.rows[0]["scores"] for each in separate]
    apart = run("predict", workdir / "classify", "--text", "one", "--text", "two")
    assert apart.out == outcome.out, "in the order of the command"
    assert [row["id"] for row in outcome.rows] == [0, 1]
    assert [row["scores"] for row in outcome.rows] == [
        pytest.approx(scores, abs=1e-5) for scores in alone
    ]
    run("predict", workdir / "nli", "--text", "one", "--text", "two", "--pair", "x").refused(
        "--pair is the second text of one --text"
    )


@pytest.mark.parametrize("task", TASKS)
def test_score_says_what_training_said(task: str, workdir: Path):
    gold = workdir / TASKS[task] / "test.jsonl"
    outcome = run("score", workdir / task / "predictions.test.jsonl", gold, "--json")
    metrics = json.loads((workdir / task / "metrics.json").read_text())["test"]
    assert json.loads(outcome.out) == pytest.approx(metrics)
    again = run("score", workdir / task, "--data", gold, "--json")
    assert "lacks" not in again.err
    assert json.loads(again.out) == pytest.approx(metrics), "the model predicts the file"


def test_a_finished_model_is_scored_on_other_data(workdir: Path, tmp_path: Path):
    """Also with a label that the model lacks; and what is refused."""
    rows = [{"text": "a warm room", "label": "pos"}, {"text": "a cold room", "label": "odd"}]
    file = data.write_jsonl(tmp_path / "other.jsonl", rows)
    outcome = run("score", workdir / "classify", "--data", file, "--format", "json")
    found = json.loads(outcome.out)
    assert found["accuracy"] in (0.0, 0.5), "the label is missed"
    assert "Gold has labels that the model lacks and always misses: odd (1)." in outcome.err
    tagged = {"words": ["Ana", "is", "in", "Oslo"], "tags": ["B-PER", "O", "B-X", "B-LOC"]}
    tags = data.write_jsonl(tmp_path / "tags.jsonl", [tagged])
    lacking = "Gold has types that the model lacks and always misses: X (1)."
    assert lacking in run("score", workdir / "tag", "--data", tags).ok().err
    run("score", workdir / "classify", file, "--data", file).refused("holds the gold labels, too")
    unknown = data.write_jsonl(tmp_path / "unknown.jsonl", [{"text": "a room", "label": "odd"}])
    told = run("score", workdir / "classify", "--data", unknown).ok().err
    assert "No gold label is ever predicted: gold has odd" in told
    models = workdir / "classify", workdir / "classify" / "best"
    compare = ("compare", *models, "--data", file, "--resamples", "9")
    lacking = "Gold has labels that the model lacks and always misses: odd (1)."
    assert f"{models[0]}: {lacking}" in run(*compare).ok().out
    compared = run(*compare, "--json").ok()
    first = json.loads(compared.out)["a"]
    assert first["value"] == found["accuracy"] and first["files"] == [str(models[0])]
    latex = run("compare", f"one={models[0]}", f"two={models[1]}", "--data", file, "--format=latex")
    assert "one - two" in latex.ok().out
    run("score", workdir / "classify", "--data", tmp_path / "no").refused("no does not exist")
    run("score", workdir / "classify", "--data", tmp_path).refused("is a folder: name one file")


def test_dry_run_trains_nothing(workdir: Path, tmp_path: Path):
    for task in TASKS:
        given = ("--columns", "label=label") if task == "classify" else ("--epochs", "2")
        outcome = train(workdir, task, tmp_path / "run", "--dry-run", *given)
        assert outcome.code == 0 and not (tmp_path / "run").exists()
        for part in (
            "train ",
            "labels (",
            "lengths in tokens",
            "steps of up to 8 examples",
            "--batch-size 8",
            " ".join(given),
        ):
            assert part in outcome.out, (task, part)


def test_check_knows_the_limit_of_the_model(workdir: Path, tmp_path: Path):
    rows = [{"tokens": ["dog"] * 70, "tags": ["B-X", *["O"] * 69]}] * 3
    file = data.write_jsonl(tmp_path / "train.jsonl", rows)
    outcome = run("check", "--data", f"train={file}", "--model", fx.checkpoint())
    assert "3 examples of more than 64 tokens" in outcome.out, outcome
    run(
        "check", "--data", f"train={file}", "--model", fx.checkpoint(), "--max-length", "99"
    ).refused("exceeds the 64 tokens")


def test_the_class_of_f1_is_named(workdir: Path, outcomes: dict[str, Outcome]):
    assert "  f1 (pos) " in outcomes["classify"].out and "f1 (" not in outcomes["nli"].out
    for file in ("README.md", "best/README.md"):
        assert "| `f1` of `pos` | " in (workdir / "classify" / file).read_text("utf-8")
    assert ">f1 (pos)<" in (workdir / "classify/report.html").read_text("utf-8")
    analysis = run("report", workdir / "classify", "--positive", "neg", "--format", "table")
    assert "  f1 (neg) " in analysis.out


def test_text_that_the_vocabulary_does_not_know_is_said(workdir: Path, tmp_path: Path):
    """WordPiece reads every word of another script as one and the same piece."""
    rows = [{"tokens": ["አበበ", "በአዲስ"], "tags": ["B-PER", tag]} for tag in ("O", "B-LOC")] * 4
    for split in ("train", "validation", "test"):
        data.write_jsonl(tmp_path / "data" / f"{split}.jsonl", rows)
    said = "of the subwords are unknown to the model"
    checked = run("check", "--data", tmp_path / "data", "--model", fx.checkpoint())
    assert f"100% {said}" in checked.out
    flags = ("--model", fx.checkpoint(), "--data", tmp_path / "data", "--steps", "1")
    trained = run("tag", *flags, "--out", tmp_path / "run")
    assert trained.code == 0 and f"train: 50% {said}" in trained.err, trained.err
    assert said not in run("check", workdir / "sentiment", "--model", fx.checkpoint()).out


def test_runs_are_neither_overwritten_nor_repeated(
    workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = {p: p.read_bytes() for p in (workdir / "classify").rglob("*") if p.is_file()}
    assert train(workdir, "classify", workdir / "classify").code == 2
    again = train(workdir, "classify", workdir / "classify", "--resume")
    assert again.code == 0 and "step 6: " not in again.err
    for path, content in before.items():
        if path.name not in ("config.json", "environment.json", "README.md", "report.html"):
            assert path.read_bytes() == content, path
    monkeypatch.chdir(tmp_path)
    names = []
    for _ in range(2):
        flags = ("--model", fx.checkpoint(), "--data", workdir / "sentiment", "--steps", "1")
        names.append(run("classify", *flags).out.splitlines()[-1].split()[4])
    base = "runs/classify-bert-sentiment-seed1"
    assert names == [base, base + "-2"]


@pytest.mark.parametrize("task", few(TASKS, "tag"))
def test_the_command_in_the_readme_trains_again(task: str, workdir: Path):
    readme = (workdir / task / "README.md").read_text()
    command = re.search(r"^    (finetune run .*)$", readme, re.MULTILINE)
    assert command is not None
    run(*shlex.split(command[1])[1:]).ok()
    metrics = [workdir / name / "metrics.json" for name in (task, f"{task}-again")]
    assert metrics[0].read_text() == metrics[1].read_text()


def test_tensorboard(workdir: Path, tmp_path: Path):
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("needs the extra track")
    assert train(workdir, "classify", tmp_path / "run", "--track", "tensorboard").code == 0
    assert list((tmp_path / "run").rglob("events.out.tfevents*"))


def test_mlflow(workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    assert train(workdir, "classify", tmp_path / "run", "--track", "mlflow").code == 0
    client = mlflow.MlflowClient(uri)
    (experiment,) = client.search_experiments(filter_string="name = 'finetune'")
    (tracked,) = client.search_runs([experiment.experiment_id])
    scores = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert tracked.data.metrics["test/accuracy"] == pytest.approx(scores["test"]["accuracy"])
    assert tracked.data.params["lr"] and tracked.info.status == "FINISHED"


TWICE = "bad.csv:1: the header has the column 'label' 2 times"
NO_FOLDER = "none: no such folder"
EARLY_ERRORS = {
    "classify --data bad.csv": TWICE,
    "tag --data bad.csv": "bad.csv: CSV rows cannot hold words with tags",
    "qa --data texts.csv": "texts.csv: no column is known to hold the context",
    "choice --seeds 2 --data texts.csv": "texts.csv: no column is known to hold a list of choices",
    "nli --dry-run --data bad.csv": TWICE,
    "search classify --data bad.csv": TWICE,
    "run two.yaml": TWICE,
    "check --task qa --data texts.csv": "texts.csv: no column is known to hold the context",
    "check --data bad.csv": TWICE,
    "predict none --text a": NO_FOLDER,
    "predict . --file none.csv": "none.csv does not exist",
    "predict . --file=": "predict needs either --text or --file",
    "embed none --file none.csv": "none.csv does not exist",
    "perplexity none --file none.csv": "none.csv does not exist",
    "thresholds none": NO_FOLDER,
    "serve none": NO_FOLDER,
    "push none a/b": NO_FOLDER,
}


def test_errors_of_data_and_names_come_before_torch_is_imported(tmp_path: Path):
    (tmp_path / "bad.csv").write_text("text,label,label\na b,x,y\n")
    (tmp_path / "texts.csv").write_text("text\na b\n")
    tasks = "{a: {task: classify, data: bad.csv}, b: {task: classify, data: bad.csv}}"
    (tmp_path / "two.yaml").write_text(f"task: multitask\nmodel: none\ntasks: {tasks}\n")
    code = "import sys; from finetune.cli.main import main\n"
    for command in EARLY_ERRORS:
        words = command.split()
        words += ["--model", "none"] if "--data" in words and words[0] != "check" else []
        code += f"try: main({words})\nexcept SystemExit: print('torch' in sys.modules)\n"
    python = [sys.executable, "-c", code]
    done = subprocess.run(python, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["False"] * len(EARLY_ERRORS), done.stderr
    for line, message in zip(done.stderr.splitlines(), EARLY_ERRORS.values(), strict=True):
        assert message in line, done.stderr


@pytest.mark.slow
def test_training_goes_on_without_its_reader_and_other_libraries_stay_quiet(tmp_path: Path):
    """In a process of its own, where nothing is configured: only our lines, no bars."""
    words = [sys.executable, "-m", "finetune", *fx.words("classify", tmp_path / "run")]
    script = f"{shlex.join(words)} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "README.md").is_file()
    assert "step 2: " in done.stderr
    assert all(OURS.match(line) for line in done.stderr.splitlines()), done.stderr
    assert "\x1b" not in done.stderr + done.stdout and "\r" not in done.stderr


def test_words_and_labels_with_other_line_ends(tmp_path: Path):
    """U+2028 and U+0085 end no line: the run is scored, and its seeds are summed up."""
    words = ["paris\u2028", "\u2028", "dog\u0085"]
    rows = [{"tokens": words, "tags": ["B-a\u2028b", "O", "O"]}] * 8
    for split in ("train", "validation", "test"):
        data.write_jsonl(tmp_path / "data" / f"{split}.jsonl", rows)
    fx.train("tag", tmp_path / "runs", "--seeds=2", data=tmp_path / "data").ok()
    with (tmp_path / "runs/seed-2/predictions.test.jsonl").open(encoding="utf-8") as lines:
        assert [json.loads(line)["words"] for line in lines] == [words] * 8


def test_markup_in_labels_is_text_in_the_readme(tmp_path: Path) -> None:
    label = "<img src=x onerror=alert(1)> [a](b) `c`"
    for split, number in (("train", 20), ("test", 6)):
        rows = [{"text": f"room {n}", "label": (label, "plain")[n % 5 == 0]} for n in range(number)]
        write_jsonl(tmp_path / "data" / f"{split}.jsonl", rows)
    fx.train("classify", tmp_path / "run", data=tmp_path / "data").ok()
    text = (tmp_path / "run" / "README.md").read_text("utf-8")
    outside = "".join(part for n, part in enumerate(text.split("`")) if n % 2 == 0)
    assert "<img" not in outside and "[a](b)" not in outside.replace("\\[", "")


def test_thresholds_need_some_examples_of_a_label(tmp_path: Path) -> None:
    data = shutil.copytree(fx.data("sentiment"), tmp_path / "data")
    (data / "validation.jsonl").unlink()  # a tenth of the few examples is held out
    fx.train("classify", tmp_path / "run", data=data, few_shot=True, per_class=4).ok()
    run("thresholds", tmp_path / "run").refused("no label has 5 gold examples in validation")
