"""`finetune compare` from end to end: what it reads, what it prints, what it refuses."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from finetune.config.tasks import CONFIGS, ClassifyConfig, TagConfig
from finetune.config.tasks import settings as settings_of
from finetune.data import hold_out, read_text
from finetune.evaluation.sufficient_statistics import _WHOLE
from tests import small_data as data
from tests.command import Outcome, run
from tests.small_data import write_jsonl
from tests.tiny import save_tiny_checkpoint

FEW = ("--resamples", "200")
TYPES = ("PER", "LOC")


def gold_sentences(number: int = 60) -> list[dict]:
    rng = random.Random(1)
    rows = []
    for index in range(number):
        tags = [tag for _ in range(3) for tag in ("O", f"B-{rng.choice(TYPES)}", *["O"] * 2)]
        words = [f"w{index}.{place}" for place in range(len(tags))]
        rows.append({"tokens": words, "tags": tags, "document": f"d{index // 6}"})
    return rows


def corrupted(rows: list[dict], rate: float, seed: int) -> list[dict]:
    """Predictions that lose each entity with a chance."""
    rng = random.Random(seed)
    return [
        {"id": index, "words": row["tokens"],
         "tags": [tag if rng.random() > rate else "O" for tag in row["tags"]]}
        for index, row in enumerate(rows)
    ]  # fmt: skip


def columns(path: Path, *sides: list[list[str]], every: int = 6) -> Path:
    """Words and tags in columns, a document every few sentences."""
    lines = []
    for index, rows in enumerate(zip(*sides, strict=True)):
        lines += ["-DOCSTART- O O", ""] if index % every == 0 else []
        lines += [" ".join(cells) for cells in zip(*rows, strict=True)] + [""]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gold, a good system and a bad one, in both forms."""
    gold = gold_sentences()
    write_jsonl(tmp_path / "gold.jsonl", gold)
    words, right = [row["tokens"] for row in gold], [row["tags"] for row in gold]
    columns(tmp_path / "gold.conll", words, right)
    for name, rate, seed in (("good", 0.05, 1), ("bad", 0.4, 2), ("good2", 0.05, 3)):
        rows = corrupted(gold, rate, seed)
        answers = [row["tags"] for row in rows]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
        columns(tmp_path / f"{name}.conll", words, right, answers)
        columns(tmp_path / f"{name}.two.conll", words, answers)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compared(*arguments: str | Path) -> dict:
    outcome = run("compare", *arguments, *FEW, "--json")
    assert (outcome.code, outcome.err) == (0, ""), outcome.err
    return json.loads(outcome.out)


def test_the_table(place: Path):
    outcome = run("compare", "good.jsonl", "bad.jsonl", "--gold", "gold.jsonl", *FEW)
    scores = json.loads(run("score", "good.jsonl", "gold.jsonl").out)
    lines = outcome.out.splitlines()
    assert lines[0] == ("span_f1_conll on 60 sentences (gold: gold.jsonl), 200 resamples, seed 0")
    assert lines[1].split() == ["score", "95", "%", "interval", "runs"]
    assert lines[2].split()[:2] == ["A", f"{scores['span_f1_conll']:.4f}"]
    assert lines[2].endswith("1  good.jsonl") and lines[3].startswith("B ")
    assert lines[4].startswith("A - B   +0.")
    assert lines[5] == "p      0.0050 (paired bootstrap), 0.0050 (approximate randomization)"
    assert lines[6] == (
        "The difference is significant at 0.05: A is better. With one run each, this says nothing "
        "about other seeds."
    )
    assert len(lines) == 7


@pytest.mark.parametrize("first, second, more", [
    ("good.jsonl", "bad.conll", ("--gold", "gold.jsonl")),
    ("good.two.conll", "bad.two.conll", ("--gold", "gold.conll")),
    ("good.conll", "bad.conll", ()),
    ("good.jsonl", "bad.conll", ()),
    ("good.two.conll", "bad.jsonl", ("--gold", "good.conll", "--columns", "tags=1")),
])  # fmt: skip
def test_forms_of_files(place: Path, first: str, second: str, more: tuple[str, ...]):
    found = compared(first, second, *more)
    expected = compared("good.jsonl", "bad.jsonl", "--gold", "gold.jsonl")
    for name in ("difference", "p_bootstrap", "p_randomization", "num_units", "verdict"):
        assert found[name] == expected[name], name


def test_every_metric_that_score_prints(place: Path):
    for name, value in json.loads(run("score", "bad.jsonl", "gold.jsonl").out).items():
        found = compared("good.jsonl", "bad.jsonl", "--gold", "gold.jsonl", "--metric", name)
        assert found["b"]["value"] == pytest.approx(value) and found["metric"] == name
    found = compared("good.jsonl", "bad.jsonl", "--gold", "gold.jsonl", "--metric",
                     "span_f1_strict:PER")  # fmt: skip
    assert found["b"]["low"] < found["b"]["value"] < found["b"]["high"]


def told(*arguments: str) -> dict[str, float]:
    """The scores that `finetune analyse` prints, and those of its tables, by name of metric."""
    found = json.loads(run("analyse", *arguments, "--json").out)
    scores = dict(found["scores"])
    for name, rows in found["tables"].items():
        for row in rows:
            group = f"{name}:{row.get(name)}".replace(" ", "_")
            if name == "counted":
                if row["counted"] == "strict":  # of tags, read as conlleval does
                    continue
                scores |= {f"span_{rate}_{row['counted']}": row[rate]
                           for rate in ("precision", "recall", "f1")}  # fmt: skip
            elif name in ("label", "tag"):
                scores |= {
                    f"{rate}:{row[name]}": row[rate] for rate in ("precision", "recall", "f1")
                }
            elif "accuracy" in row:
                scores[f"accuracy_{group}"] = row["accuracy"]
            elif "found" in row:
                scores[f"span_f1_{group}"] = row["f1"]
    if (error := found["calibration"]["expected_calibration_error"]) is not None:
        scores["ece"] = error
    counts = {"inner_gold", "inner_predicted", "inner_found", "unseen_words"}
    return {name: value for name, value in scores.items() if name not in counts}


def agree(first: str, second: str, *more: str, told_of: dict[str, float]) -> None:
    for name, value in told_of.items():
        found = compared(first, second, *more, "--metric", name)
        assert found["b"]["value"] == pytest.approx(value), name


def test_every_score_of_spans_that_analyse_tells(place: Path):
    rng = random.Random(4)
    gold = gold_sentences(30)
    nested, answers = [], []
    for row in gold:
        spans = [{"start": i, "end": i + rng.randint(1, 3), "label": rng.choice(TYPES)}
                 for i in range(0, 6, 2)]  # fmt: skip
        found = [span | {"end": span["end"] + (rng.random() < 0.2), "label": rng.choice(TYPES),
                         "score": rng.random()}
                 for span in spans if rng.random() < 0.8]  # fmt: skip
        nested.append({"tokens": row["tokens"], "spans": spans})
        answers.append({"words": row["tokens"], "spans": found})
    write_jsonl(place / "nested.jsonl", nested)
    write_jsonl(place / "found.jsonl", answers)
    write_jsonl(place / "train.jsonl", nested[:10])
    more = ("--train", "train.jsonl")
    scores = told("found.jsonl", "nested.jsonl", *more)
    assert {"span_f1_partial", "span_f1_type", "span_precision_exact", "span_f1_macro", "ece",
            "span_f1_length:3", "span_f1_depth:within_1", "span_f1_in_training:unseen",
            "span_f1_inner", "span_f1_strict:PER"} <= {*scores}  # fmt: skip
    agree("found.jsonl", "found.jsonl", "--gold", "nested.jsonl", *more, told_of=scores)
    scores = told("bad.jsonl", "gold.jsonl")
    assert {"span_f1_partial", "span_f1_strict", "tag_accuracy"} <= {*scores}
    agree("good.jsonl", "bad.jsonl", "--gold", "gold.jsonl", told_of=scores)


def test_every_score_of_tags_that_analyse_tells(place: Path):
    rng = random.Random(4)
    tags = ("NOUN", "VERB", "DET")
    gold = [{"tokens": [f"w{rng.randint(0, 30)}" for _ in range(size)],
             "tags": [rng.choice(tags) for _ in range(size)]} for size in range(1, 25)]  # fmt: skip
    for name in ("a", "b"):
        rows = [{"tags": [t if rng.random() < 0.7 else rng.choice(tags) for t in row["tags"]],
                 "scores": [rng.random() for _ in row["tags"]]} for row in gold]  # fmt: skip
        write_jsonl(place / f"{name}.jsonl", rows)
    write_jsonl(place / "pos.jsonl", gold)
    write_jsonl(place / "train.jsonl", gold[:8])
    scores = told("b.jsonl", "pos.jsonl", "--train", "train.jsonl")
    assert {"weighted_f1", "matthews", "unseen_word_accuracy", "accuracy_place:2-10", "ece",
            "f1:DET", "accuracy_in_training:unseen"} <= {*scores}  # fmt: skip
    files = ("a.jsonl", "b.jsonl", "--gold", "pos.jsonl")
    agree(*files, "--train", "train.jsonl", told_of=scores)
    refused(run("compare", *files, "--metric", "unseen_word_accuracy"),
            "Training data are not known: name them with --train FILE.")  # fmt: skip


@pytest.mark.parametrize("several", [False, True])
def test_every_score_of_labels_that_analyse_tells(place: Path, several: bool):
    rng = random.Random(5)
    names = ("x", "y", "z")

    def label() -> str | list[str]:
        return [name for name in names if rng.random() < 0.5] if several else rng.choice(names)

    gold = [{"text": "a " * rng.randint(1, 30), "label": label()} for _ in range(40)]
    for name in ("a", "b"):
        rows = [{"label": label() if rng.random() < 0.4 else row["label"],
                 "scores": {name: rng.random() for name in names}} for row in gold]  # fmt: skip
        write_jsonl(place / f"{name}.jsonl", rows)
    write_jsonl(place / "g.jsonl", gold)
    scores = told("b.jsonl", "g.jsonl")
    assert {"weighted_f1", "macro_f1", "ece", "recall:z"} <= {*scores}
    assert several or "accuracy_text_length:11-25" in scores
    agree("a.jsonl", "b.jsonl", "--gold", "g.jsonl", told_of=scores)
    errors = compared("a.jsonl", "b.jsonl", "--gold", "g.jsonl", "--metric", "ece")
    assert errors["a"]["low"] <= errors["a"]["high"]


def test_training_data_of_a_run_are_known(runs: Path):
    found = compared("runs/good", "runs/bad", "--metric", "span_f1_in_training:seen")
    plain = compared("runs/good", "runs/bad")  # it was trained on the same sentences
    assert found["difference"]["value"] == pytest.approx(plain["difference"]["value"])
    refused(run("compare", "runs/good", "runs/bad", "--metric", "span_f1_in_training:unseen"),
            "does not fit")  # fmt: skip


def test_the_readme_lists_every_metric():
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    table = text.split("| answers | metrics |")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.*) \|$", table, re.M))
    kinds = {"a label": "label", "several labels": "labels", "a number": "number",
             "plain tags": "plain", "tags of entities": "tags", "spans": "spans"}  # fmt: skip
    assert rows.keys() == kinds.keys()
    for name, cell in rows.items():
        rates = ("span_precision", "span_recall")
        whole = {metric for metric in _WHOLE[kinds[name]] if not metric.startswith(rates)}
        listed = re.findall("`([a-z0-9_]+)`", cell)
        assert set(listed) - {"unseen_word_accuracy"} == whole and len(listed) == len({*listed})


def test_documents(place: Path):
    found = compared("good.conll", "bad.conll", "--unit", "document")
    named = compared("good.jsonl", "bad.jsonl", "--gold", "gold.jsonl", "--unit", "document")
    assert found["num_units"] == named["num_units"] == 10 and found["unit"] == "documents"
    assert found["difference"] == named["difference"]
    sentences = compared("good.conll", "bad.conll")
    assert sentences["difference"]["value"] == pytest.approx(found["difference"]["value"])


def test_tags_against_spans(place: Path):
    gold = gold_sentences()
    rows = [{"words": row["tokens"], "spans": [[i, i + 1, tag[2:]] for i, tag in
             enumerate(row["tags"]) if tag != "O"]} for row in corrupted_tokens(gold)]  # fmt: skip
    write_jsonl(place / "spans.jsonl", rows)
    found = compared("good.jsonl", "spans.jsonl", "--gold", "gold.jsonl")
    assert found["metric"] == "span_f1_strict"
    scores = json.loads(run("score", "good.jsonl", "gold.jsonl").out)
    assert found["a"]["value"] == pytest.approx(scores["span_f1_strict"])


def corrupted_tokens(gold: list[dict]) -> list[dict]:
    return [{"tokens": row["words"], "tags": row["tags"]} for row in corrupted(gold, 0.3, 9)]


def labelled(place: Path, gold: list, first: list, second: list) -> tuple[str, ...]:
    write_jsonl(place / "g.jsonl", [{"text": "x", "label": label} for label in gold])
    for name, answers in (("a", first), ("b", second)):
        write_jsonl(place / f"{name}.jsonl", [{"label": label} for label in answers])
    return "a.jsonl", "b.jsonl", "--gold", "g.jsonl"


def test_labels_and_numbers(place: Path):
    names = labelled(place, ["x", "y"] * 20, ["x", "y"] * 20, ["x"] * 40)
    assert compared(*names)["b"]["value"] == 0.5
    assert compared(*names, "--metric", "matthews")["difference"]["value"] == pytest.approx(1.0)
    numbers = labelled(place, [1.5, 2, 3.5, 5] * 9, [1, 2, 3, 4] * 9, [4, 1, 3, 2] * 9)
    assert compared(*numbers)["metric"] == "pearson"
    assert compared(*numbers, "--metric", "spearman")["a"]["value"] == pytest.approx(1.0)
    errors = compared(*numbers, "--metric", "mse")
    assert errors["difference"]["value"] < 0 and errors["verdict"].endswith("A is better.")


def test_whole_numbers_and_their_names_are_the_same_classes(place: Path):
    answers = [[0, 1, 1], [1, 0, 0]]
    for gold, first, second in (([0, 1, 0], int, str), (list("010"), str, int)):
        sides = [[kind(x) for x in each * 9] for kind, each in zip((first, second), answers,
                                                                   strict=True)]  # fmt: skip
        found = compared(*labelled(place, gold * 9, *sides))
        assert found["metric"] == "accuracy"
        assert [found[side]["value"] for side in "ab"] == pytest.approx([2 / 3, 1 / 3])


def test_measures_against_whole_numbers(place: Path):
    """A system that rounds is compared with one that does not as what they both measure."""
    files = labelled(place, [1, 2, 3, 5] * 9, [1, 2, 3, 4] * 9, [1.5, 2.5, 3.1, 4.2] * 9)
    assert compared(*files)["metric"] == "pearson"
    assert compared("b.jsonl", "a.jsonl", *files[2:])["metric"] == "pearson"


def test_the_same_twice(place: Path):
    found = compared("good.jsonl", "good.jsonl", "--gold", "gold.jsonl")
    assert found["p_bootstrap"] == found["p_randomization"] == 1.0
    assert found["verdict"] == "The difference is not significant at 0.05."


# --- runs ------------------------------------------------------------------------------------


def run_folder(folder: Path, rows: list[dict], config: object, task: str, **facts) -> Path:
    """What a run leaves that matters here."""
    write_jsonl(folder / "predictions.test.jsonl", rows)
    content = {"task": task, **settings_of(config), **facts}
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture
def runs(place: Path) -> Path:
    """Three seeds of one system and two of another, trained on data that lie beside them."""
    gold = gold_sentences()
    for split in ("train", "validation", "test"):
        write_jsonl(place / "data" / f"{split}.jsonl", gold)
    for name, rate, seeds in (("good", 0.05, (1, 2, 10)), ("bad", 0.4, (1, 2))):
        for seed in seeds:
            run_folder(place / "runs" / name / f"seed-{seed}", corrupted(gold, rate, seed),
                       TagConfig(data="data", seed=seed), "tag")  # fmt: skip
    return place


def test_runs(runs: Path):
    found = compared("runs/good", "runs/bad")
    assert [Path(file).parent.name for file in found["a"]["files"]] == [
        "seed-1", "seed-2", "seed-10"]  # fmt: skip
    assert len(found["b"]["runs"]) == 2 and found["gold"] == "data"
    assert found["a"]["value"] == pytest.approx(sum(found["a"]["runs"]) / 3)
    listed = compared("runs/good/seed-1,runs/good/seed-2,runs/good/seed-10/predictions.test.jsonl",
                      "runs/bad", "--gold", "gold.jsonl")  # fmt: skip
    assert {**found, "gold": ""} == {**listed, "gold": ""} | {
        name: {**listed[name], "files": found[name]["files"]} for name in ("a", "b")}  # fmt: skip
    said = run("compare", "runs/good", "runs/bad", *FEW).out
    assert "3  runs/good" in said and "Runs of a system vary by 0.0" in said
    assert "three or more" not in said
    few = run("compare", "good.jsonl", "runs/bad", *FEW).out
    assert few.endswith("So few runs say little on seeds: give three or more.\n")
    one = compared("runs/good/seed-1", "bad.jsonl")
    assert one["deviation_between_runs"] is None


def test_runs_that_were_asked_other_things(place: Path):
    """Other training data do not matter; other test data are refused, even of the same size."""
    names = []
    for name, train, test in (("a", "one", "x"), ("b", "two", "x"), ("c", "one", "y")):
        for split, word in (("train", train), ("validation", "v"), ("test", test)):
            rows = [{"text": f"{word} {i}", "label": "ab"[i % 2]} for i in range(30)]
            write_jsonl(place / name / f"{split}.jsonl", rows)
        answers = [{"id": i, "label": "ab"[i % 2]} for i in range(30)]
        fingerprint = read_text(name).fingerprint
        run_folder(place / f"run-{name}", answers, ClassifyConfig(data=name), "classify",
                   fingerprint=fingerprint)  # fmt: skip
        names.append(fingerprint)
    assert len(set(names)) == 3
    assert compared("run-a", "run-b")["difference"]["value"] == 0
    refused(run("compare", "run-a", "run-c"), "run-c was tested on other examples")


def test_runs_that_tag_and_runs_that_find_spans(place: Path):
    """Spans of tags count as spans; of one form, the gold must be one too."""
    words, tags = ["Ana", "saw", "Oslo"], ["B-PER", "O", "B-LOC"]
    spans = [{"start": 0, "end": 1, "label": "PER"}, {"start": 2, "end": 3, "label": "LOC"}]
    other = ["B-NP", "O", "B-NP"]
    for name, gold in (("tags", tags), ("chunks", other)):
        write_jsonl(place / f"{name}.jsonl", [{"tokens": words, "tags": gold}] * 8)
    for name, file, task, answer in (
        ("tagged", "tags", "tag", {"words": words, "tags": ["B-PER", "O", "O"]}),
        ("chunked", "chunks", "tag", {"words": words, "tags": other}),
        ("found", "tags", "ner", {"words": words, "spans": spans}),
    ):
        splits = ",".join(f"{split}={file}.jsonl" for split in ("train", "validation", "test"))
        answers = [{"id": number, **answer} for number in range(8)]
        run_folder(place / name, answers, CONFIGS[task](data=splits), task)
    found = compared("found", "tagged", *FEW)
    assert found["a"]["value"] == 1 and found["b"]["value"] == pytest.approx(2 / 3)
    refused(run("compare", "tagged", "chunked"), "chunked was tested on other examples", "gold")


def test_gold_of_a_run_is_what_it_was_tested_on(place: Path):
    """Held out validation data and rows without label, as in training."""
    rows = [{"text": f"t{i}", "label": "ab"[i % 2] if i % 7 else None} for i in range(60)]
    write_jsonl(place / "data" / "train.jsonl", rows)
    labelled_rows = [row for row in rows if row["label"]]
    held = hold_out(read_text(str(write_jsonl(place / "l.jsonl", labelled_rows))))
    names = [example.label for example in held.splits["validation"]]
    answers = [{"id": i, "label": name} for i, name in enumerate(names)]
    folder = run_folder(place / "run", answers, ClassifyConfig(data="data"), "classify")
    (folder / "predictions.test.jsonl").rename(folder / "predictions.validation.jsonl")
    found = compared("run", "run", "--split", "validation")
    assert found["a"]["value"] == 1.0 and found["num_units"] == len(names)


def test_a_real_run(tmp_path: Path):
    save_tiny_checkpoint(tmp_path / "bert", "bert")
    data.sentiment(tmp_path / "sentiment")
    out = tmp_path / "run"
    flags = ("--steps", "2", "--max-length", "40", "--precision", "fp32", "--out", out)
    trained = run(
        "classify", "--model", tmp_path / "bert", "--data", tmp_path / "sentiment", *flags
    )
    assert trained.code == 0, trained.err
    metrics = json.loads((out / "metrics.json").read_text())
    assert compared(out, out)["a"]["value"] == pytest.approx(metrics["test"]["accuracy"])
    (tmp_path / "sentiment" / "test.jsonl").write_text('{"text": "a", "label": "pos"}\n')
    refused(run("compare", out, out), f"changed since {out} was trained on it", "--gold")


# --- errors ----------------------------------------------------------------------------------


def refused(outcome: Outcome, *said: str) -> None:
    assert outcome.code == 2 and outcome.out == ""
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
    for part in said:
        assert part in outcome.err, outcome.err


def changed(place: Path, change, name: str = "good") -> str:
    rows = [json.loads(line) for line in (place / f"{name}.jsonl").read_text().splitlines()]
    change(rows)
    write_jsonl(place / "changed.jsonl", rows)
    return "changed.jsonl"


@pytest.mark.parametrize("change, said", [
    (lambda rows: rows.pop(), ("changed.jsonl: 59 predictions, but 60 in good.jsonl",)),
    (lambda rows: rows[3].update(id=77), ("changed.jsonl:4: id 77, but 3 in good.jsonl:4",)),
    (lambda rows: rows[2]["words"].__setitem__(1, "x"),
     ("changed.jsonl:3: word 1 is 'x', but 'w2.1' in gold.jsonl:3",)),
    (lambda rows: rows[2]["tags"].pop(), ("changed.jsonl:3: 11 tags for the 12 words",)),
    (lambda rows: [row.pop("tags") for row in rows], ("changed.jsonl: each line must have",)),
    (lambda rows: rows.clear(), ("changed.jsonl: there is no prediction in it",)),
])  # fmt: skip
def test_files_that_do_not_fit(place: Path, change, said: tuple[str, ...]):
    other = changed(place, change)
    refused(run("compare", "good.jsonl", other, "--gold", "gold.jsonl"), *said)


def test_both_files_are_cut(place: Path):
    other = changed(place, lambda rows: rows.pop())
    refused(run("compare", other, other, "--gold", "gold.jsonl"),
            "gold.jsonl: 60 examples, but 59 predictions in changed.jsonl")  # fmt: skip


def test_other_words_in_columns(place: Path):
    text = (place / "bad.two.conll").read_text().replace("w0.2 ", "w0.3 ")
    (place / "other.conll").write_text(text)
    refused(run("compare", "good.conll", "other.conll"), "other.conll:3: word 2 is 'w0.3'")


GOLD = ("--gold", "gold.jsonl")


@pytest.mark.parametrize("arguments, said", [
    ((), ("compare needs two systems",)),
    (("good.jsonl",), ("compare needs two systems",)),
    (("good.jsonl", "bad.jsonl"), ("there is no gold", "--gold FILE")),
    (("good.conll", "bad.conll", "--columns", "tags=1"), ("add --gold FILE",)),
    (("good.jsonl", "bad.jsonl", "--gold", "no.jsonl"), ("no.jsonl does not exist",)),
    (("good.jsonl", "no.jsonl", *GOLD), ("no.jsonl does not exist",)),
    (("good.jsonl", "bad.jsonl", *GOLD, "--metric", "span_f1"),
     ("--metric span_f1 does not fit these predictions: choose span_precision_conll",
      "Perhaps you meant 'span_f1_conll'?")),
    (("good.jsonl", "bad.jsonl", *GOLD, "--metric", "matthews"), ("does not fit",)),
    (("good.jsonl", "bad.jsonl", *GOLD, "--metric", "span_f1_strict:PET"),
     ("Perhaps you meant 'span_f1_strict:PER'?",)),
    (("good.jsonl", "bad.jsonl", *GOLD, "--resamples", "0"), ("--resamples must be 1 or more",)),
    (("good.jsonl,good.jsonl", "bad.jsonl", *GOLD), ("names the same predictions twice",)),
    ((",", "bad.jsonl", *GOLD), ("names no predictions",)),
    ((".", "bad.jsonl", *GOLD), ("no predictions.test.jsonl in it or in its folders",)),
])  # fmt: skip
def test_errors_of_use(place: Path, arguments: tuple[str, ...], said: tuple[str, ...]):
    refused(run("compare", *arguments), *said)


def test_errors_of_runs(runs: Path):
    refused(run("compare", "runs/good", "runs/bad", "--split", "dev"),
            "no predictions.dev.jsonl", "write --split test")  # fmt: skip
    (runs / "data").rename(runs / "moved")
    refused(run("compare", "runs/good", "runs/bad"), "data", "--gold FILE names others")
    (runs / "runs" / "good" / "seed-1" / "config.json").write_text("{")
    refused(run("compare", "runs/good", "runs/bad"), "seed-1/config.json: damaged", "--gold FILE")


def test_other_kinds_of_answers(place: Path):
    labelled(place, ["x"] * 60, ["x"] * 60, [0.5] * 60)
    write_jsonl(place / "n.jsonl", [{"text": "x", "label": str(i)} for i in range(60)])
    refused(run("compare", "a.jsonl", "b.jsonl", "--gold", "n.jsonl"),
            "b.jsonl answers with numbers, but a.jsonl with a label")  # fmt: skip


def test_no_documents(place: Path):
    arguments = labelled(place, ["x", "y"], ["x", "y"], ["x", "x"])
    refused(run("compare", *arguments, "--unit", "document"), "name no documents", "-DOCSTART-")


def test_gold_column_that_is_none(place: Path):
    """Words, parts of speech and answers: the column before the last is no gold of the last."""
    lines = (place / "good.conll").read_text().splitlines(keepends=True)
    rows = [line if len(line.split()) != 3 else "{} NN {}\n".format(*line.split()[::2])
            for line in lines]  # fmt: skip
    (place / "pos.conll").write_text("".join(rows))
    refused(run("compare", "pos.conll", "pos.conll"),
            "pos.conll: the last column but one (NN) holds no gold", "--gold FILE")  # fmt: skip
