"""`finetune compare` from end to end: what it reads, what it prints, what it refuses."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from finetune.config.description import HIERARCHY, VOTES
from finetune.data import read_tokens
from finetune.evaluation import prediction_types
from finetune.evaluation.significance import holm
from finetune.evaluation.training_vocabulary import TrainingVocabulary
from finetune.types import Example, Span, TextExample, TokenExample
from tests import small_data as data
from tests.command import run
from tests.runs import label_run, write_predictions
from tests.small_data import read_jsonl, write_jsonl
from tests.tiny import save_tiny_checkpoint

FEW = ("--resamples", "200")
TYPES = ("PER", "LOC")


def gold_sentences(number: int = 60) -> list[dict]:
    rng = random.Random(1)
    rows = []
    for index in range(number):
        tags = [tag for _ in range(3) for tag in ("O", f"B-{rng.choice(TYPES)}", *["O"] * 2)]
        words = [f"w{index}.{word}" for word in range(len(tags))]
        rows.append({"tokens": words, "tags": tags, "document": f"d{index // 6}"})
    return rows


def corrupted(rows: list[dict], rate: float, seed: int) -> list[dict]:
    """Predictions that lose each entity with a chance."""
    rng = random.Random(seed)
    return [
        {
            "id": index,
            "words": row["tokens"],
            "tags": [tag if rng.random() > rate else "O" for tag in row["tags"]],
        }
        for index, row in enumerate(rows)
    ]


def columns(path: Path, *sides: list[list[str]], every: int = 6) -> Path:
    """Words and tags in columns, a document every few sentences."""
    lines = []
    for index, rows in enumerate(zip(*sides, strict=True)):
        lines += ["-DOCSTART- O O", ""] if index % every == 0 else []
        lines += [" ".join(cells) for cells in zip(*rows, strict=True)] + [""]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gold, a good system and a bad one, in both forms."""
    gold = gold_sentences()
    write_jsonl(tmp_path / "gold.jsonl", gold)
    words, right = [row["tokens"] for row in gold], [row["tags"] for row in gold]
    columns(tmp_path / "gold.conll", words, right)
    for name, rate, seed in (("good", 0.05, 1), ("bad", 0.4, 2), ("good2", 0.05, 3)):
        rows = corrupted(gold, rate, seed)
        answers = [row["tags"] for row in rows]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
        columns(tmp_path / f"{name}.conll", words, answers)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compared(*arguments: str | Path) -> dict:
    outcome = run("compare", *arguments, *FEW, "--format", "json")
    assert (outcome.code, outcome.err) == (0, ""), outcome.err
    return json.loads(outcome.out)


def test_the_table(workdir: Path):
    outcome = run("compare", "good.jsonl", "bad.jsonl", "--gold", "gold.jsonl", *FEW)
    scores = json.loads(run("score", "good.jsonl", "gold.jsonl", "--format", "json").out)
    lines = outcome.out.splitlines()
    assert lines[0] == (
        "span_f1_conll on 60 sentences (gold: gold.jsonl, aligned by position), 200 resamples, "
        "seed 0"
    )
    assert lines[1].split() == ["score", "95", "%", "interval", "runs"]
    assert lines[2].split()[:2] == ["A", f"{scores['span_f1_conll']:.4f}"]
    assert lines[2].endswith("1  good.jsonl") and lines[3].startswith("B ")
    assert lines[4].startswith("A - B  +0.")
    assert lines[5] == "p      0.0050 (paired bootstrap), 0.0050 (approximate randomization)"
    assert lines[6] == (
        "The difference is significant at 0.05: A is better. With one run of each system, the "
        "result may not hold for other seeds."
    )
    assert len(lines) == 7


@pytest.mark.parametrize(
    "first, second, more",
    [
        ("good.jsonl", "bad.conll", ("--gold", "gold.jsonl")),
        ("good.conll", "bad.conll", ("--gold", "gold.conll")),
        ("good.conll", "bad.jsonl", ("--gold", "gold.conll", "--columns", "tags=1")),
    ],
)
def test_formats_of_files(workdir: Path, first: str, second: str, more: tuple[str, ...]):
    found = compared(first, second, *more)
    expected = compared("good.jsonl", "bad.jsonl", "--gold", "gold.jsonl")
    for name in ("difference", "p_bootstrap", "p_randomization", "num_units", "verdict"):
        assert found[name] == expected[name], name


def test_training_data_of_a_run_are_known(runs: Path):
    found = compared("runs/good", "runs/bad", "--metric", "span_f1_in_training:seen")
    plain = compared("runs/good", "runs/bad")  # it was trained on the same sentences
    assert found["difference"]["value"] == pytest.approx(plain["difference"]["value"])
    run("compare", "runs/good", "runs/bad", "--metric", "span_f1_in_training:unseen").refused(
        "does not fit"
    )


OF_DATA = {"a label": (*VOTES, *HIERARCHY), "a set of labels": HIERARCHY}
"""Metrics of data with votes, and with levels of labels."""


def test_the_documentation_lists_every_metric():
    page = Path(__file__).parents[2] / "docs" / "evaluation.md"
    table = page.read_text(encoding="utf-8").split("| prediction | metrics |")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.*) \|$", table, re.M))
    kinds = {
        "a label": "label",
        "a set of labels": "labels",
        "a number": "number",
        "tags that are not spans": "plain tags",
        "tags that spell spans": "tags",
        "spans": "spans",
        "masked subwords": "subwords",
        "senses of targets": "senses",
        "relations": "relations",
        "a choice": "choice",
        "answers to questions": "answers",
    }
    assert rows.keys() == kinds.keys()
    for name, cell in rows.items():
        rates = ("span_precision", "span_recall", "relation_precision", "relation_recall")
        whole = {
            metric
            for metric in {*prediction_types.TYPES[kinds[name]].metrics, *OF_DATA.get(name, ())}
            if not metric.startswith(rates) and not metric.endswith("_all")  # of vectors
        }
        listed = re.findall("`([a-z0-9_]+)`", cell)
        assert set(listed) == whole and len(listed) == len({*listed})


def test_documents(workdir: Path):
    found = compared("good.conll", "bad.conll", "--gold", "gold.conll", "--unit", "document")
    named = compared("good.jsonl", "bad.jsonl", "--gold", "gold.jsonl", "--unit", "document")
    assert found["num_units"] == named["num_units"] == 10 and found["unit"] == "documents"
    assert found["difference"] == named["difference"]
    sentences = compared("good.conll", "bad.conll", "--gold", "gold.conll")
    assert sentences["difference"]["value"] == pytest.approx(found["difference"]["value"])


def labelled(workdir: Path, gold: list, first: list, second: list) -> tuple[str, ...]:
    write_jsonl(workdir / "g.jsonl", [{"text": "x", "label": label} for label in gold])
    for name, answers in (("a", first), ("b", second)):
        write_jsonl(workdir / f"{name}.jsonl", [{"label": label} for label in answers])
    return "a.jsonl", "b.jsonl", "--gold", "g.jsonl"


def test_labels_and_numbers(workdir: Path):
    names = labelled(workdir, ["x", "y"] * 20, ["x", "y"] * 20, ["x"] * 40)
    assert compared(*names)["b"]["value"] == 0.5
    assert compared(*names, "--metric", "matthews")["difference"]["value"] == pytest.approx(1.0)
    assert compared(*names, "--metric", "f1", "--positive", "x")["metric"] == "f1"
    write_jsonl(workdir / "upper.jsonl", [{"label": name} for name in "XY" * 20])
    other = run("compare", names[0], "upper.jsonl", *names[2:], *FEW)
    assert "upper.jsonl: No gold label is ever predicted: gold has x, y;" in other.err + other.out
    ignored = run("compare", *names, "--positive", "x")
    ignored.refused("--positive: it is for --metric f1, and the metric is accuracy")
    numbers = labelled(workdir, [1.5, 2, 3.5, 5] * 9, [1, 2, 3, 4] * 9, [4, 1, 3, 2] * 9)
    assert compared(*numbers)["metric"] == "pearson"
    assert compared(*numbers, "--metric", "spearman")["a"]["value"] == pytest.approx(1.0)
    errors = compared(*numbers, "--metric", "mse")
    assert errors["difference"]["value"] < 0 and errors["verdict"].endswith("A is better.")


def test_measures_against_whole_numbers(workdir: Path):
    """A system that rounds is compared with one that does not as what they both measure."""
    files = labelled(workdir, [1, 2, 3, 5] * 9, [1, 2, 3, 4] * 9, [1.5, 2.5, 3.1, 4.2] * 9)
    assert compared(*files)["metric"] == "pearson"
    assert compared("b.jsonl", "a.jsonl", *files[2:])["metric"] == "pearson"


# --- runs ------------------------------------------------------------------------------------


def run_folder(folder: Path, rows: list[dict], gold: list[Example]) -> Path:
    """What a run writes that matters here."""
    write_predictions(folder / "predictions.test.jsonl", rows, gold)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture
def runs(workdir: Path) -> Path:
    """Three seeds of one system and two of another, trained on the same data."""
    gold = gold_sentences()
    examples = read_tokens("train=gold.jsonl").splits["train"]
    for name, rate, seeds in (("good", 0.05, (1, 2, 10)), ("bad", 0.4, (1, 2))):
        for seed in seeds:
            folder = run_folder(
                workdir / "runs" / name / f"seed-{seed}", corrupted(gold, rate, seed), examples
            )
            TrainingVocabulary.of(examples).save(folder)
    return workdir


def test_runs(runs: Path):
    found = compared("runs/good", "runs/bad")
    folders = [Path(file).parent.name for file in found["a"]["files"]]
    assert folders == ["seed-1", "seed-2", "seed-10"]
    assert len(found["b"]["runs"]) == 2
    assert found["gold"] == "runs/good/seed-1/predictions.test.jsonl"
    assert found["a"]["value"] == pytest.approx(sum(found["a"]["runs"]) / 3)
    listed = compared(
        "runs/good/seed-1,runs/good/seed-2,runs/good/seed-10/predictions.test.jsonl",
        "runs/bad",
        "--gold",
        "gold.jsonl",
    )
    same = {"gold": "", "aligned_by": ""}
    assert found | same == listed | same | {
        name: {**listed[name], "files": found[name]["files"]} for name in ("a", "b")
    }
    messages = run("compare", "runs/good", "runs/bad", *FEW).out
    assert "3  runs/good" in messages and "over the runs of a system is 0.0" in messages
    assert "three or more" not in messages
    few = run("compare", "good.jsonl", "runs/bad", *FEW).out
    assert few.endswith("Give three or more runs of each system for a reliable estimate.\n")
    one = compared("runs/good/seed-1", "bad.jsonl")
    assert one["deviation_between_runs"] is None


def test_the_metric_that_selected_a_model_is_compared(tmp_path: Path):
    for metric in ("macro_f1", "cost"):  # the second is a custom metric, which is not computed
        paths = [label_run(tmp_path / f"{metric}-{name}", metric=metric) for name in "ab"]
        compared = run("compare", *paths, *FEW).out
        assert compared.startswith(
            f"{'macro_f1' if metric == 'macro_f1' else 'accuracy'} on 8 texts"
        )


def test_runs_with_other_gold_are_refused(workdir: Path):
    """Other examples, or other gold, even if there are as many."""
    answers = [{"id": i, "label": "ab"[i % 2]} for i in range(30)]
    systems = ("a", "x", "ab"), ("b", "x", "ab"), ("c", "y", "ab"), ("d", "x", "ba")
    for name, word, labels in systems:
        gold = [TextExample(i, f"{word} {i}", label=labels[i % 2]) for i in range(30)]
        run_folder(workdir / f"run-{name}", answers, gold)
    assert compared("run-a", "run-b")["difference"]["value"] == 0
    message = "predictions.test.jsonl has other examples, or other gold"
    for other in ("run-c", "run-d"):
        run("compare", "run-a", other).refused(f"{other}/{message}")


def test_runs_that_tag_and_runs_that_find_spans(workdir: Path):
    """Spans of tags count as spans; of one kind, the gold must be the same."""
    words, tags = ("Ana", "saw", "Oslo"), ("B-PER", "O", "B-LOC")
    spans = (Span(0, 1, "PER"), Span(2, 3, "LOC"))
    other = (Span(0, 1, "NP"), Span(2, 3, "NP"))
    as_json = [span._asdict() for span in spans]
    for name, gold_tags, gold_spans, answer in (
        ("tagged", tags, spans, {"words": words, "tags": ("B-PER", "O", "O")}),
        ("chunked", ("B-NP", "O", "B-NP"), other, {"words": words, "tags": ("B-NP", "O", "B-NP")}),
        ("found", tags, spans, {"words": words, "spans": as_json}),
        ("nested", None, spans, {"words": words, "spans": as_json}),
    ):
        gold = [TokenExample(number, words, gold_spans, gold_tags) for number in range(8)]
        run_folder(workdir / name, [{"id": number, **answer} for number in range(8)], gold)
    for first in ("found", "nested"):
        found = compared(first, "tagged", *FEW)
        assert found["a"]["value"] == 1 and found["b"]["value"] == pytest.approx(2 / 3)
    run("compare", "tagged", "chunked").refused("chunked/pred", "has other examples, or other")


def test_gold_in_any_prediction_file(workdir: Path):
    """Lines of any system may hold gold; rows without gold are left out."""
    write_jsonl(
        workdir / "a.jsonl",
        [{"label": "x", "gold": "x"}, {"label": "y", "gold": "x"}, {"label": "x", "gold": None}],
    )
    write_jsonl(workdir / "b.jsonl", [{"label": "x"}] * 3)
    found = compared("b.jsonl", "a.jsonl")
    assert (found["a"]["value"], found["b"]["value"], found["num_units"]) == (1.0, 0.5, 2)
    write_jsonl(workdir / "a.jsonl", [{"words": ["a"], "tags": ["N"], "gold": ["N"]}])
    run("compare", "a.jsonl", "a.jsonl").refused("a.jsonl:1: next to `words`, `gold` must be")


@pytest.mark.parametrize(
    "task, make", [("classify", data.sentiment), ("tag", data.entities), ("ner", data.entities)]
)
def test_a_real_run_needs_its_folder_only(task: str, make: Callable[[Path], Path], tmp_path: Path):
    """Its scores follow from its prediction files, also where its data are gone."""
    save_tiny_checkpoint(tmp_path / "bert", "bert")
    make(tmp_path / "data")
    out = tmp_path / "run"
    flags = ("--steps", "2", "--max-length", "40", "--precision", "fp32", "--out", out)
    run(task, "--model", tmp_path / "bert", "--data", tmp_path / "data", *flags).ok()
    shutil.rmtree(tmp_path / "data")
    metrics = json.loads((out / "metrics.json").read_text())
    for split in ("validation", "test"):
        scores, found = metrics[split], compared(out, out, "--split", split)
        assert found["a"]["value"] == pytest.approx(scores[found["metric"]])
        analysis = json.loads(run("report", out, "--split", split, "--format", "json").out)
        assert analysis["scores"].items() >= scores.items()
        assert ("in training" in analysis["tables"]) == (task != "classify")
    path = out / "predictions.test.jsonl"
    rows = read_jsonl(path)
    write_jsonl(path, [{name: row[name] for name in row if name != "gold"} for row in rows])
    run("compare", out, out).refused("no gold in it", "--gold FILE")


# --- errors ----------------------------------------------------------------------------------


GOLD = ("--gold", "gold.jsonl")
TWO = "good.jsonl bad.jsonl"
REFUSED: dict[str, tuple[str, ...]] = {
    TWO: ("no gold in it", "--gold FILE"),
    "good.conll bad.conll --columns tags=1": ("add --gold FILE",),
    "good.conll other.conll --gold gold.conll": ("other.conll:3: word 2 is 'w0.3'",),
    "table.csv good.jsonl --gold gold.jsonl": ("table.csv: predictions are read from JSON Lines",),
    "good.jsonl no.jsonl --gold gold.jsonl": ("no.jsonl: No such file",),
    f"{TWO} --gold gold.jsonl --metric span_f1": (
        "--metric span_f1 does not fit these predictions: choose span_precision_conll",
        "Perhaps you meant 'span_f1_conll'?",
    ),
    f"{TWO} --gold gold.jsonl --metric span_f1_strict:PET": (
        "Perhaps you meant 'span_f1_strict:PER'?",
    ),
    f"{TWO} --gold gold.jsonl --resamples 0": ("--resamples must be 1 or more",),
    "good.jsonl,good.jsonl bad.jsonl --gold gold.jsonl": ("names the same predictions twice",),
    ". bad.jsonl --gold gold.jsonl": ("no predictions.test.jsonl in it or in its folders",),
    "a.jsonl b.jsonl --gold n.jsonl": ("b.jsonl predicts numbers, but a.jsonl a label",),
    "a.jsonl a.jsonl --gold n.jsonl --unit document": ("name no documents", "-DOCSTART-"),
    "a.jsonl good.jsonl --gold n.jsonl": ("good.jsonl predicts tags, but a.jsonl a label",),
}


def test_refused(workdir: Path):
    text = (workdir / "bad.conll").read_text().replace("w0.2 ", "w0.3 ")
    (workdir / "other.conll").write_text(text)
    labelled(workdir, ["x"] * 60, ["x"] * 60, [0.5] * 60)
    write_jsonl(workdir / "n.jsonl", [{"text": "x", "label": str(i)} for i in range(60)])
    for typed, messages in REFUSED.items():
        run("compare", *typed.split()).refused(*messages)


def test_errors_of_runs(runs: Path):
    wrong = run("compare", "runs/good", "runs/bad", "--split", "dev")
    wrong.refused("no predictions.dev.jsonl", "write --split test")
    wrong = run("score", "runs/good/seed-1", "gold.jsonl")
    wrong.refused("is a folder, not a file of predictions", "write --data gold.jsonl")
    write_jsonl(runs / "runs" / "bad" / "seed-1" / "predictions.test.jsonl", [{"label": "x"}] * 9)
    message = "runs/bad/seed-1/predictions.test.jsonl predicts a label, but"
    run("compare", "runs/good", "runs/bad").refused(message)


# --- tables for papers -----------------------------------------------------------------------


@pytest.fixture
def two_data_sets(runs: Path) -> Path:
    """Runs of three systems on one data set and of two on another, which holds half of it."""
    for folder in (runs / "runs" / "good", runs / "runs" / "bad"):
        for seed in folder.glob("seed-*"):
            (seed / "config.json").write_text('{"data": "data/news_a"}', encoding="utf-8")
            lines = (seed / "predictions.test.jsonl").read_text().splitlines(keepends=True)
            half = runs / "half" / folder.name / seed.name
            half.mkdir(parents=True)
            (half / "predictions.test.jsonl").write_text("".join(lines[:30]), encoding="utf-8")
            (half / "config.json").write_text('{"data": "data/half"}', encoding="utf-8")
    return runs


SYSTEMS = (
    "Base=runs/bad",
    "Best_1=runs/good",
    "single=runs/good/seed-1",
    "Base=half/bad",
    "Best_1=half/good",
)


def test_a_table_of_systems_and_data_sets(two_data_sets: Path):
    outcome = run("compare", *SYSTEMS, *FEW, "--format", "csv").ok()
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    assert [(row["system"], row["data"], row["runs"], row["best"]) for row in rows] == [
        ("Base", "news_a", "2", "false"),
        ("Best_1", "news_a", "3", "true"),
        ("single", "news_a", "1", "false"),
        ("Base", "half", "2", "false"),
        ("Best_1", "half", "3", "true"),
    ]
    pair = compared("runs/good", "runs/bad")
    base, best = rows[0], rows[1]
    assert [float(best[name]) for name in ("mean", "low", "high", "p_bootstrap")] == [
        *(pair["a"][name] for name in ("value", "low", "high")),
        pair["p_bootstrap"],
    ]
    assert float(best["deviation"]) == pytest.approx(statistics.stdev(pair["a"]["runs"]))
    assert (base["p"], base["significant"]) == ("", "false"), "the baseline has no test"
    larger = [
        max(float(row["p_bootstrap"]), float(row["p_randomization"])) for row in rows if row["p"]
    ]
    assert [float(row["p"]) for row in rows if row["p"]] == pytest.approx(holm(larger))


def test_a_table_as_papers_print_it(two_data_sets: Path):
    outcome = run("compare", *SYSTEMS, *FEW, "--format", "latex")
    assert "† differs from Base at 0.05" in outcome.err and "3 comparisons (Holm" in outcome.err
    latex = outcome.out.splitlines()
    assert latex[2] == (r"system & news\_a span\_f1\_conll & half span\_f1\_conll \\")
    assert re.fullmatch(
        r"Best\\_1 & \\textbf\{\d\d\.\d\d\} \$\\pm\$ \d\.\d\d(\$\^\{\\dagger\}\$)? & .*", latex[5]
    )
    markdown = run("compare", *SYSTEMS, *FEW, "--format", "markdown").out.splitlines()
    assert re.fullmatch(r"\| Best\\_1 \| \*\*\d\d\.\d\d\*\* ± \d\.\d\d( †)? \| .* \|", markdown[3])
    assert re.fullmatch(r"\| single \| \d\d\.\d\d( †)? \|  \|", markdown[4]), "no run on `half`"
    text = run("compare", *SYSTEMS, *FEW).out
    assert "the best in bold" in text and "runs/" not in text


def test_two_systems_are_a_table_with_a_baseline_or_two_data_sets(two_data_sets: Path):
    found = compared("A:x=runs/good", "A:y=half/good")
    rows = [(row["system"], row["data"], row["p"]) for row in found]
    assert rows == [("A", "x", None), ("A", "y", None)]
    found = compared("runs/good", "runs/bad", "--baseline", "bad")
    assert [row["p"] is None for row in found] == [False, True]
    named = compared("Ours=runs/good", "Theirs=runs/bad")
    assert named["a"] == compared("runs/good", "runs/bad")["a"], "still the long comparison"
    assert "Ours" in run("compare", "Ours=runs/good", "Theirs=runs/bad", *FEW).out


def test_tables_that_cannot_be(two_data_sets: Path):
    for typed, messages in {
        "a=runs/good a=runs/bad b=runs/bad": (
            "2 systems are named 'a' on the data set 'news_a'",
            "NAME:DATA=RUN",
            "RUN1,RUN2",
        ),
        "runs/good runs/bad --baseline Base": ("--baseline Base: name one of good, bad",),
        "a:=runs/good b=runs/bad": ("a:=runs/good: write RUN, NAME=RUN or NAME:DATA=RUN",),
        "a:x=runs/good a:y=half/good --gold gold.jsonl": (
            "the systems are on 2 data sets",
            "leave it out",
        ),
        "a:x=runs/good b:x=half/good c:x=half/bad": ("has no prediction in half/good",),
    }.items():
        run("compare", *typed.split()).refused(*messages)
