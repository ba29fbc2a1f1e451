"""`finetune report` from end to end: its numbers against other commands, and odd input."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import statistics
from html.parser import HTMLParser
from pathlib import Path

import pytest

from finetune.config.values import shown_value
from finetune.evaluation.predictions import align_runs
from finetune.evaluation.significance import count_metric, estimate
from tests import fixtures as fx
from tests import small_data as data
from tests.command import Outcome, run
from tests.runs import LABELS, SENTENCES, label_run, spans_run, tag_run, write_run
from tests.small_data import read_jsonl

VOID = {"meta", "link", "input"}


class Page(HTMLParser):
    """The tags, attributes and text of a page; every tag must be closed where it belongs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.parts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open
        self.text = " ".join(" ".join(self.parts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.parts.append(text)

    def named(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        named = (found for name, found in self.tags if name == tag)
        return [found for found in named if attributes.items() <= found.items()]


def reported(*arguments: str | Path) -> Page:
    outcome = run("report", *arguments).ok()
    return Page(Path(outcome.out.strip()).read_text("utf-8"))


def numbers_run(folder: Path) -> Path:
    rows = [{"text": f"text {n}", "label": n / 2} for n in range(8)]
    answers = [{"id": n, "label": n / 2 + (-1) ** n * 0.3} for n in range(8)]
    return write_run(folder, "classify", {"train": rows, "test": rows}, answers)


def sets_run(folder: Path) -> Path:
    rows = [{"text": f"text {n}", "labels": ["a", "b"][: n % 3]} for n in range(9)]
    answers = [{"id": n, "label": ["a"], "scores": {"a": 0.9, "b": 0.3}} for n in range(9)]
    return write_run(folder, "classify", {"train": rows, "test": rows}, answers)


def speech_run(folder: Path) -> Path:
    """Tags without spans."""
    rows = [{"tokens": ["she", "sings", "well"], "tags": ["PRON", "VERB", "ADV"]}] * 5
    answers = [
        {
            "id": n,
            "words": rows[n]["tokens"],
            "tags": ["PRON", "NOUN" if n else "VERB", "ADV"],
            "scores": [0.9, 0.6, 0.8],
        }
        for n in range(5)
    ]
    return write_run(folder, "tag", {"train": rows, "test": rows}, answers)


RUNS = {
    "tag": tag_run,
    "label": label_run,
    "number": numbers_run,
    "sets": sets_run,
    "spans": spans_run,
    "speech": speech_run,
}


@pytest.mark.parametrize("setup", RUNS)
def test_every_kind_of_predictions(setup: str, tmp_path: Path):
    folder = RUNS[setup](tmp_path / "run")
    page = reported(folder)
    found = json.loads(run("report", folder, "--format", "json").out)
    scores = json.loads((folder / "metrics.json").read_text())["test"]
    for name, value in scores.items():
        assert ":" in name or (name in page.text and shown_value(value) in page.text)
    for rows in found["tables"].values():
        for row in rows:
            if "f1" in row:
                assert f"{row['f1']:.4f}" in page.text
    if (error := found["calibration"]["expected_calibration_error"]) is not None:
        assert f"ECE {error:.4f}" in page.text
    every = json.loads(run("report", folder, "--format", "json", "--examples", "99").out)[
        "examples"
    ]
    wrong = {error["id"] for some in every.values() for error in some}
    assert len(page.named("li", **{"class": "card error"})) == len(wrong) > 0
    assert "Missing data" not in page.text
    check_self_contained_and_accessible(page)


def check_self_contained_and_accessible(page: Page) -> None:
    for _, attributes in page.tags:
        for name in ("src", "href", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [link["href"].removeprefix("#") for link in page.named("a")]
    assert set(links) <= set(ids)
    drawings = page.named("svg")
    labeled = (each.get("role") == "img" and each.get("aria-label") for each in drawings)
    assert drawings and all(labeled)
    assert all(cell.get("scope") in ("col", "row") for cell in page.named("th"))


def test_the_labels_of_relations_are_scores_by_class(tmp_path: Path):
    first = fx.trained("relations")
    second = shutil.copytree(first, tmp_path / "b")
    for folders in ([first], [first, second]):
        page = reported(*folders, "--out", tmp_path / "page.html")
        section = page.text.split("Scores by class")[2].split("Kinds of errors")[0]
        assert "By relation" in section or "F1 by relation" in section


def test_numbers_have_errors_of_a_size_and_no_marks(tmp_path: Path):
    page = reported(numbers_run(tmp_path / "run"))
    assert "those with the largest error come first." in page.text and "Highlights" not in page.text
    assert not page.named("mark")


def test_of_cosines_the_ranks_differ(tmp_path: Path):
    data = [{"text": f"a {n}", "text_pair": "b", "label": n / 2} for n in range(4)]
    cosines = [{"label": score, "similarity": "cosine"} for score in (0.9, 0.6, 0.7, 0.8)]
    page = reported(write_run(tmp_path / "run", "classify", {"test": data}, cosines))
    assert "those with the largest difference of ranks come first." in page.text
    assert "difference of ranks 0.7500" in page.text


def test_a_context_is_shown_where_it_has_an_answer(tmp_path: Path):
    """A question without a predicted answer shows its context once; the list is complete."""
    rows = [
        {"id": f"q{n}", "question": f"Where {n}?", "context": "Ana lives in Oslo.", "answers": gold}
        for n, gold in enumerate([{"text": ["Oslo"], "answer_start": [13]}] * 2)
    ]
    answers = [
        {"id": "q0", "answer": "", "score": 0.9},
        {"id": "q1", "answer": "Ana", "start": 0, "end": 3, "score": 0.8},
    ]
    page = reported(
        write_run(tmp_path / "run", "qa", dict.fromkeys(("train", "test"), rows), answers)
    )
    first, second = page.text.split("test.jsonl:")[1:3]
    assert first.count("lives in") == 1 and second.count("lives in") == 2
    assert "All 2 examples with an error" in page.text
    assert "Kinds of errors" in page.text and "Risk is the share of wrong answers" in page.text


def test_votes_and_the_meaning_of_metrics_are_shown(tmp_path: Path):
    rows = [{"text": f"text {n}", "label": {"a": 3, "b": 1 + n}} for n in range(6)]
    answers = [{"id": n, "label": "a", "scores": {"a": 0.75, "b": 0.25}} for n in range(6)]
    data = dict.fromkeys(("train", "test"), rows)
    page = reported(write_run(tmp_path / "run", "classify", data, answers))
    assert "votes: a 3, b 6" in page.text
    assert "correlation of gold and predicted classes" in page.text


def test_the_interval_is_that_of_the_bootstrap(tmp_path: Path):
    folder = label_run(tmp_path / "run")
    aligned = align_runs([folder / "predictions.test.jsonl"])
    value, low, high = estimate(count_metric("accuracy", aligned))
    page = reported(folder)
    assert f"{value:.4f} accuracy 95% interval {low:.4f} to {high:.4f}" in page.text


def test_the_score_is_of_the_metric_that_selected_the_model(tmp_path: Path):
    """`finetune sentence` scores all cosines, and has no score with the name of the default."""
    data = [{"text": f"a {n}", "label": n / 2} for n in range(8)]
    answers = [{"id": n, "label": [0.1, 0.3, 0.2, 0.6, 0.5][n % 5] + n} for n in range(8)]
    folder = write_run(
        tmp_path / "run", "classify", dict.fromkeys(("train", "test"), data), answers
    )
    scores = json.loads((folder / "metrics.json").read_text())["test"]
    of_cosines = {f"{name}_all": scores[name] for name in ("spearman", "pearson")}
    (folder / "metrics.json").write_text(json.dumps({"test": of_cosines}))
    page = reported(folder)
    assert f"{scores['spearman']:.4f} spearman_all 95% interval" in page.text
    compared = run("compare", folder, folder / "predictions.test.jsonl", "--resamples", "9")
    assert compared.out.startswith("spearman_all on 8 texts")


def test_texts_are_escaped(tmp_path: Path):
    attack = '"><img src=x onerror=alert(1)>'
    sentences = [*SENTENCES, (f"{attack} \ud800 \x00", "B-PER O O O O", "O O O O O", 0.4)]
    sentences[-1] = ("a b", "B-<i> O", "O O", 0.4)
    folder = tag_run(tmp_path / "run", sentences)
    text = (folder / "environment.json").read_text()
    about = json.loads(text) | {"command": f"finetune {attack} \ud800 \x00 {{{{style}}}}"}
    (folder / "environment.json").write_text(json.dumps(about))
    page = reported(folder)
    assert not page.named("img") and not page.named("i", onerror="alert(1)")
    assert len(page.named("script")) == 1
    assert attack in page.text and "<script>alert('x')</script>" in page.text
    assert "{{style}}" in page.text and "مرحبا" in page.text and "東京" in page.text
    raw = (folder / "report.html").read_text("utf-8")
    assert "<script>alert" not in raw and "\x00" not in raw


def test_many_errors_are_bounded(tmp_path: Path):
    rows = [(f"text {n} " + "long " * 400, "good", "bad", 0.6) for n in range(310)]
    folder = label_run(tmp_path / "run", rows)
    page = reported(folder)
    assert "Showing the first 300 of 310 examples" in page.text
    assert len(page.named("li", **{"class": "card error"})) == 300
    assert (folder / "report.html").stat().st_size < 2e6
    assert "Showing the first 5 of 310" in reported(folder, "--examples", "5").text
    page = reported(folder, "--examples", "0")
    assert not page.named("li", **{"class": "card error"})


def test_long_sentences_words_and_sets_are_bounded(tmp_path: Path):
    words, tags = " ".join(["x" * 5000, *["word"] * 999]), " ".join(["B-PER"] * 1000)
    folder = tag_run(tmp_path / "run", [(words, tags, " ".join(["O"] * 1000), 0.4)] * 3)
    page = reported(folder)
    assert page.text.count("and 980 more") == 3 and "x" * 101 not in page.text
    assert (folder / "report.html").stat().st_size < 2e5
    names = [f"n{number}" for number in range(900)]
    rows = [{"text": f"text {n}", "labels": names} for n in range(3)]
    answers = [{"id": n, "label": ["n0"]} for n in range(3)]
    sets = write_run(tmp_path / "sets", "classify", {"train": rows, "test": rows}, answers)
    assert reported(sets).text.count("and 880 more") == 3


def test_an_unfinished_seed_does_not_count(tmp_path: Path):
    """It has predictions on validation alone, and may be the first."""
    folder = tmp_path / "seeds"
    for number in (1, 2, 3):
        label_run(folder / f"seed-{number}")
    (folder / "seed-1" / "metrics.json").unlink()
    answers = folder / "seed-1" / "predictions.test.jsonl"
    answers.rename(answers.with_name("predictions.validation.jsonl"))
    content = {"seeds": [1, 2, 3], "verdicts": [], "baselines": {}, "degenerate": []}
    (folder / "seeds.json").write_text(json.dumps(content))
    page = reported(folder)
    assert "Mean of 2 seeds" in page.text and "of test)" in page.text
    assert "the score covers 2 of 3 runs" in page.text
    assert "differ in more" not in page.text
    for path in folder.glob("seed-*/config.json"):  # each seed draws texts of its own
        drawn = {"per_class": 4, "training_fingerprint": path.parent.name}
        path.write_text(json.dumps(json.loads(path.read_text()) | drawn))
    assert "differ in more" not in reported(folder).text
    path = folder / "seed-3" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lr": 1.0}))
    assert "the runs differ in more than their seed: lr" in reported(folder).text
    path.write_text(json.dumps(json.loads(path.read_text()) | {"task": "nli"}))
    for command in ("report", "score"):
        run(command, folder).refused("holds runs of several tasks: give one of its runs, for")


def test_a_metric_that_cannot_be_counted(tmp_path: Path):
    """F1 of the positive class where a test split has one class."""
    folder = label_run(tmp_path / "run", [(f"text {n}", "good", "good", 0.8) for n in range(5)])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"metric": "f1"}))
    page = reported(folder)
    assert (
        "the interval is for accuracy, not for f1" in page.text and "1.0000 accuracy" in page.text
    )


def test_the_main_metric_is_drawn_where_it_is_defined(tmp_path: Path):
    folder, path = tag_run(tmp_path / "run"), tmp_path / "run" / "log.jsonl"
    scores = {"span_precision_conll": 0.9, "span_f1_conll": 0.5, "tag_accuracy": 0.8}
    lines = [{"step": n, "split": "validation", **scores} for n in (1, 2)]
    data.write_jsonl(path, lines)
    with path.open("a") as file:
        file.write('{"step": 21, "loss": NaN, "gradient_norm": Infinity}\n')
        file.write('{"step": 21, "split": "validation", "span_f1_conll": NaN}\n')
    page = reported(folder)
    assert len(labels_of_charts(page, "span_f1_conll on validation")) == 1
    assert "nan" not in page.text
    other = shutil.copytree(folder, tmp_path / "other")
    page = reported(folder, other, "--out", tmp_path / "both.html")
    assert len(labels_of_charts(page, "span_f1_conll on validation")) == 1
    data.write_jsonl(path, lines[:1])
    assert not labels_of_charts(reported(folder), ""), "one point is no curve"


def labels_of_charts(page: Page, caption: str) -> list[str]:
    labels = [str(each["aria-label"]) for each in page.named("svg")]
    others = ("confidence", "coverage")
    return [x for x in labels if x.startswith(caption) and not any(each in x for each in others)]


def test_scores_come_first_then_errors_and_machinery_last(tmp_path: Path):
    page = reported(label_run(tmp_path / "run"))
    sections = [each["id"] for each in page.named("section")]
    assert sections[:2] == ["results", "error-analysis"]
    assert sections[-2:] == ["training", "environment"]
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1 and all(b <= a + 1 for a, b in itertools.pairwise(headings))


def test_missing_files_are_reported(tmp_path: Path):
    folder = tag_run(tmp_path / "run")
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"step": 21, "lo')
    (folder / "metrics.json").unlink()
    page = reported(folder)
    assert "no metrics.json: the run is not finished" in page.text
    assert "log.jsonl has an incomplete line" in page.text
    (folder / "log.jsonl").unlink()
    (folder / "environment.json").write_text("{")
    shutil.rmtree(tmp_path / "data-of-run")
    page = reported(folder)
    assert "no log.jsonl" in page.text and "cannot be analyzed" not in page.text
    path = folder / "predictions.test.jsonl"
    rows = read_jsonl(path)
    data.write_jsonl(path, [{name: row[name] for name in row if name != "gold"} for row in rows])
    page = reported(folder)
    assert "the predictions on test cannot be analyzed" in page.text
    assert "no gold in it" in page.text
    (folder / "predictions.test.jsonl").unlink()
    page = reported(folder)
    assert "there was no evaluation yet" in page.text and "No score" in page.text


def test_a_finished_run_that_scored_nothing(tmp_path: Path):
    folder = tmp_path / "run"
    only_train = fx.data("sentiment") / "train.jsonl"
    fx.train("classify", folder, data=only_train, validation="none").ok()
    assert "no predictions: no split was scored" in reported(folder).text
    run("score", folder).refused(f"no split was scored: finetune score {folder} --data FILE")
    run("report", folder, "--format", "json").refused("name a file of predictions")


def test_validation_is_analyzed_if_test_has_no_gold(tmp_path: Path):
    folder = label_run(tmp_path / "run")
    shutil.copy(folder / "predictions.test.jsonl", folder / "predictions.validation.jsonl")
    path = folder / "predictions.test.jsonl"
    rows = [json.loads(line) | {"gold": None} for line in path.read_text().splitlines()]
    data.write_jsonl(path, rows)
    page = reported(folder)
    assert "no row has a label" in page.text and "of validation)" in page.text
    asked = reported(folder, "--split", "validation", "--out", tmp_path / "page.html")
    assert "no row has a label" not in asked.text


def test_wrong_arguments_are_refused(tmp_path: Path):
    run("report").refused("RUN", "finetune report --help")
    run("report", tmp_path).refused(f"{tmp_path}: the folder has no config.json of a run")
    run("report", tmp_path / "none").refused("the folder does not exist")
    folder = label_run(tmp_path / "run")
    run("report", folder, folder).refused("named twice")
    run("report", folder, "--out", tmp_path / "no" / "x.html").refused("--out", "does not exist")
    run("report", folder, "--examples", "-1").refused("--examples")
    run("report", folder, "--gold", "b").refused("--gold applies to the analysis")
    run("report", folder, "b", "--format", "csv").refused("several runs are compared on a page")
    run("report", folder, "--split", "zz").refused(
        f"--split zz: {folder}: no predictions of the split 'zz' (there are test): nothing was"
    )
    assert not (folder / "report.html").exists()


def test_several_runs_on_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    first = label_run(tmp_path / "a")
    turned = [(text, gold, "good", 0.6) for text, gold, *_ in LABELS]
    page = reported(first, label_run(tmp_path / "b", turned), tag_run(tmp_path / "c"))
    assert (tmp_path / "report.html").is_file()
    errors = page.named("li", **{"class": "card error"})
    assert {error["data-run"] for error in errors} >= {"a", "b"}


def test_seeds(tmp_path: Path):
    folder = tmp_path / "seeds"
    label_run(folder / "seed-1")
    turned = [(text, gold, "good", 0.6) for text, gold, *_ in LABELS]
    label_run(folder / "seed-2", turned)
    verdict = {
        "split": "test",
        "metric": "accuracy",
        "expected": 0.9,
        "tolerance": 0.01,
        "mean": 0.5,
        "verdict": "below",
        "source": "a <paper>",
    }
    content = {
        "seeds": [1, 2],
        "verdicts": [verdict],
        "baselines": {},
        "degenerate": [{"seed": 2, "reasons": ["every prediction is good"]}],
    }
    (folder / "seeds.json").write_text(json.dumps(content))
    page = reported(folder)
    values = [
        json.loads((folder / f"seed-{n}" / "metrics.json").read_text())["test"]["accuracy"]
        for n in (1, 2)
    ]
    assert f"{statistics.fmean(values):.4f} accuracy" in page.text
    assert "Two seeds are too few for an interval" in page.text
    assert f"Mean of 2 seeds, standard deviation {statistics.stdev(values):.4f}" in page.text
    assert "Expected: test accuracy 0.9 ± 0.01 (a <paper>); measured: 0.5000" in page.text
    assert "seed 2 is degenerate: every prediction is good" in page.text


def train(out: Path, *more: str) -> Outcome:
    recipe = out.with_name("recipe.yaml")
    recipe.write_text(
        f"task: classify\nmodel: {fx.checkpoint()}\ndata: {fx.data('sentiment')}\nsteps: 2\n"
        "expected:\n- {split: test, metric: accuracy, value: 0.999, tolerance: 0.0001, "
        "source: nobody}\n"
    )
    return run("run", recipe, "--out", out, *more)


def test_training_ends_with_a_report(tmp_path: Path):
    outcome = train(tmp_path / "run")
    assert outcome.code == 0 and "report.html" in outcome.out
    page = Page((tmp_path / "run" / "report.html").read_text("utf-8"))
    accuracy = json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]["accuracy"]
    said = f"Expected: test accuracy 0.999 ± 0.0001 (nobody); measured: {accuracy:.4f}"
    assert said in page.text and "Baseline that reads no text" in page.text
    assert re.search(r"finetune run \S+recipe.yaml", page.text)
    before = (tmp_path / "run" / "report.html").read_bytes()
    assert run("report", tmp_path / "run").code == 0
    assert (tmp_path / "run" / "report.html").read_bytes() == before, "written the same"


def test_runs_are_read_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The data of the run are named relative to the folder where it was trained."""
    monkeypatch.chdir(tmp_path)
    label_run(Path("a"))
    label_run(Path("b"))
    (elsewhere := tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    expected = run("report", "a", "--format", "json").out.replace('"a/', '"../../a/')
    monkeypatch.chdir(elsewhere)
    assert run("report", "../../a", "--format", "json").out == expected
    assert run("compare", "../../a", "../../b", "--resamples", "9").code == 0
    assert run("report", "../../a", "../../b").code == 0
