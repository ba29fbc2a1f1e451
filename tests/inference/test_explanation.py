"""Explanations: leaving out equals predictions of shorter texts, on all tasks."""

from __future__ import annotations

import json
import math
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import finetune
from finetune.evaluation.decisions import Decisions
from finetune.inference import explanation
from finetune.inference.explanation import Explanation, without, words_of
from finetune.inference.loop import predict
from finetune.inference.predictor import Predictor
from finetune.inference.vectors import TrainingVectors
from finetune.types import LabelSpan, TextExample, TokenExample, UserError
from tests import fixtures as fx
from tests.command import run
from tests.covering import few

WINDOWS = {"long_text": "window", "max_length": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "windows": ("classify", WINDOWS),
    "pair windows": ("nli", WINDOWS),
    "all subwords": ("tag", {"label_subwords": "all"}),
    "crf windows": ("tag", {"crf": True, "max_length": 12}),
    "several types": ("ner", {"multi_label": True, "max_length": 12}),
}


def explained(
    model: Predictor, example: Any, monkeypatch: Any, labels: Any = None
) -> list[Explanation]:
    """Explanations of some labels, also where an untrained model predicts none."""
    if labels is None:
        (prediction,) = model.predict([example])
        labels = explanation.explained_labels(model.labels, prediction)[:2]
        if model.task.description.words and not labels:
            labels = [LabelSpan(model.labels[0], 0, (n, n + 1)) for n in range(2)]
    monkeypatch.setattr(explanation, "explained_labels", lambda *_: labels)
    return explanation.explain(example, None, model.task, model.model, model.accelerator.device)


@pytest.mark.parametrize("name", few(CASES, "windows", "crf windows"))
def test_packed_and_batch_size_change_nothing(name: str, monkeypatch: Any) -> None:
    task, settings = CASES[name]
    folder = fx.trained(task, **settings)
    model = finetune.load(folder)
    with fx.padded_rows():
        other = finetune.load(folder, max_tokens=48)
    config = model.task.state.config
    for example in list(model.task.read(config, config.data).splits["train"])[:2]:
        expected, found = (explained(m, example, monkeypatch) for m in (model, other))
        for mine, theirs in zip(expected, found, strict=True):
            assert mine.words == words_of(example)
            assert mine.scores == pytest.approx(theirs.scores, abs=2e-4)


@pytest.mark.parametrize(
    ("task", "settings", "inputs"),
    [
        ("classify", {}, ["the train was late", "anna"]),
        ("classify", {"calibrate": "temperature"}, ["the train was late"]),
        ("classify", {"few_shot": True}, ["the train was late"]),
        ("nli", {}, [("a man plays", "the dog saw it"), ("a dog", "a dog")]),
        ("nli", {"pair_encoder": "bi"}, [("a man plays", "the dog saw it")]),
    ],
)
def test_leaving_out_is_the_prediction_of_the_shorter_text(
    task: str, settings: dict[str, Any], inputs: list[Any]
) -> None:
    model = finetune.load(fx.trained(task, **settings))
    for given, (found,) in zip(inputs, model.explain(inputs), strict=True):
        label, texts = found.label.label, [given] if isinstance(given, str) else list(given)

        def log(*own: str, label: str = label) -> float:
            (answer,) = model.predict([own if len(own) > 1 else own[0] or " ."])
            return math.log((answer.uncalibrated or answer.scores)[label])  # type: ignore[union-attr]

        expected = []
        for number, text in enumerate(texts):
            words = text.split()
            for index in range(len(words)):
                shorter = " ".join(words[:index] + words[index + 1 :])
                expected.append(log(*texts) - log(*texts[:number], shorter, *texts[number + 1 :]))
        assert found.score == pytest.approx(log(*texts), abs=1e-5)
        assert found.words.words == tuple(" ".join(texts).split())
        if len(expected) > 1:  # nothing is left of one word
            assert found.scores == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("task", "family"), [("tag", "bert"), ("ner", "roberta")])
def test_words_of_sentences_are_masked(task: str, family: str, monkeypatch: Any) -> None:
    model = finetune.load(fx.trained(task, model=str(fx.checkpoint(family))))
    mask = model.task.tokenizer.tokenizer.mask_token
    example = TokenExample(0, ("Anna", "saw", "New", "York"))
    label = LabelSpan(model.labels[0], 0, (2, 3))
    (found,) = explained(model, example, monkeypatch, [label])

    def value(words: tuple[str, ...]) -> float:
        (answer,) = predict(
            model.task, model.model, [TokenExample(0, words)], keep_log_probabilities=True
        )
        if task == "tag":
            return float(answer.log_probabilities[2, 0])  # type: ignore[union-attr]
        odds = dict(answer.candidates).get((2, 3, label.label))  # type: ignore[union-attr]
        return math.nan if odds is None else math.log(odds / (1 - odds))

    whole = value(example.words)
    for index, own in enumerate(found.scores):
        masked = (*example.words[:index], mask, *example.words[index + 1 :])
        assert math.isnan(whole - value(masked)) or own == pytest.approx(
            whole - value(masked), abs=1e-4
        )


@pytest.mark.parametrize(
    ("text", "left_out", "expected"),
    [
        ("the film was good", {1}, "the was good"),
        ("the film was good", {0, 3}, "film was"),
        ("good, film.", {1}, "good film."),
        ("(good) film", {1}, "( ) film"),
        ("well-known", {1}, "well known"),
        ("isn't it", {1}, "is it"),
        ("  a  b ", set(), "  a  b "),
        ("  a  b ", {0}, "b"),
        ("東京都", {1}, "東 都"),
        ("a", {0}, ""),
    ],
)
def test_shortened_texts(text: str, left_out: set[int], expected: str) -> None:
    task = finetune.load(fx.trained("classify")).task
    assert without(task, TextExample(0, text), left_out).text == expected
    pair = without(task, TextExample(0, "x y", text), {number + 2 for number in left_out})
    assert (pair.text, pair.pair) == ("x y", expected)


@pytest.mark.parametrize("task", ["choice", "qa", "relations", "sentence"])
def test_models_that_cannot_be_explained(task: str) -> None:
    with pytest.raises(UserError, match=f"`{task}` model cannot be explained"):
        finetune.load(fx.trained(task)).explain([])


def test_several_labels_and_numbers() -> None:
    model = finetune.load(fx.trained("classify", data=str(fx.data("topics"))), threshold=0.0)
    ((*found,),) = model.explain(["the train was late"])
    assert [each.label.label for each in found] == list(model.labels)
    assert {each.unit for each in found} == {"logit"}
    model = finetune.load(fx.trained("classify", data=str(fx.data("numbers"))))
    (prediction,) = model.predict([("a man", "the dog")])
    ((number,),) = model.explain([("a man", "the dog")])
    assert number.score == pytest.approx(prediction.label, abs=1e-5)
    assert number.unit == "number"
    assert model.explain([(" ", "")]) == [[]]


def encoded_by(model: Any, monkeypatch: Any) -> list[Any]:
    """A list that gets all examples that the model encodes from now on."""
    encoded: list[Any] = []
    encode = type(model.task).encode
    monkeypatch.setattr(
        type(model.task),
        "encode",
        lambda task, examples: encoded.extend(examples) or encode(task, examples),
    )
    return encoded


def test_words_that_are_cut_off_take_no_pass(monkeypatch: Any) -> None:
    model = finetune.load(fx.trained("nli", max_length=16))
    pairs = [("a man plays", "the dog saw it " * 500)] * 2
    encoded = encoded_by(model, monkeypatch)
    ((found,), _) = model.explain(pairs)
    assert len(encoded) < 2 * 24
    assert found.words.words == (*"a man plays".split(), *("the dog saw it".split() * 4))
    (score,) = model.predict([pairs[0]])
    (other,) = model.predict([("a man", pairs[0][1])])
    difference = math.log(score.scores[found.label.label] / other.scores[found.label.label])
    assert found.scores[2] == pytest.approx(difference, abs=1e-4)
    assert found.scores[-1] == 0


def test_the_example_of_captum() -> None:
    script = Path(__file__).parents[2] / "examples" / "integrated_gradients.py"
    example = runpy.run_path(str(script), run_name="imported")
    model, tokenizer = example["load"](fx.trained("nli"))
    encoded, baseline, words = example["inputs_of"](tokenizer, ["a man plays", "Oslo"])
    assert model(**encoded).logits.shape == (1, 3)
    same = (encoded["input_ids"] == baseline)[0].tolist()
    assert same == [word is None for word in words]
    scores = [0.0 if word is None else 1.0 for word in words]
    found = example["word_scores"](encoded, words, scores)
    assert "".join(word for word, _ in found).lower() == "amanplaysoslo"
    assert sum(score for _, score in found) == sum(scores)
    assert len(found) == 4


def test_faithfulness_by_hand() -> None:
    model = finetune.load(fx.trained("classify"))
    text = "the train was late"
    ((found,),) = model.explain([text])
    best, *_ = np.argsort(-np.array(found.scores), kind="stable")
    words = text.split()
    shorter = " ".join(words[:best] + words[best + 1 :])
    probabilities = [
        p.scores[found.label.label] for p in model.predict([text, shorter, words[best]])
    ]
    whole, without_it, alone = probabilities
    script = Path(__file__).parents[2] / "examples" / "faithfulness.py"
    faithfulness = runpy.run_path(str(script), run_name="imported")["faithfulness"]
    scores = faithfulness(model, [text], [0.25])
    assert scores["leave-out"] == pytest.approx((whole - without_it, whole - alone), abs=1e-6)
    assert set(scores) == {"leave-out", "random"}
    assert scores["leave-out"][0] >= scores["random"][0]
    two, _ = faithfulness(model, [text], [0.25, 1.0])["leave-out"]
    (empty,) = explanation.label_scores(
        model.task, model.model, [TextExample(0, "")], [found.label], model.accelerator.device
    )
    expected = (whole - without_it + whole - math.exp(empty[0])) / 2
    assert two == pytest.approx(expected, abs=1e-6)


def test_a_sentence_without_spans_has_no_vector() -> None:
    model = finetune.load(fx.trained("relations"))
    alone = [TokenExample(0, ("a", "b"), spans=())]
    size = model.model.encoder.width
    model.training_vectors = TrainingVectors(np.zeros(size), np.eye(size))
    model.decisions = Decisions(distance=0.0)
    assert model.predict(alone)[0].decided["distance"] is None


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fx.trained("nli")
    words = "predict", folder, "--text", "a man plays", "--pair", "the dog saw it"
    run(*words, "--explain", "--out", tmp_path / "out.jsonl").ok()
    found = json.loads((tmp_path / "out.jsonl").read_text())
    (reason,) = found["explanation"]
    assert reason["label"] == found["label"] and reason["words"] == ["a", "man", "plays"]
    assert reason["pair_words"] == ["the", "dog", "saw", "it"] and len(reason["pair_scores"]) == 4
    assert reason["offsets"] == [[0, 1], [2, 5], [6, 11]]
    assert run(*words, "--explain").rows[0]["explanation"] == found["explanation"]
    with monkeypatch.context() as patched:
        terminal = SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True))
        patched.setattr("finetune.cli.predict.sys", terminal)
        assert "\ndog " in run(*words, "--explain").out
    (tmp_path / "in.txt").write_text("a\nb\n")
    file = "predict", fx.trained("tag"), "--file", tmp_path / "in.txt"
    for row in map(json.loads, run(*file, "--explain").out.splitlines()):
        for each in row["explanation"]:
            assert row["tags"][each["start"]] == each["label"] != "O"
            assert each["words"] == row["words"] and "offsets" not in each
    run("report", fx.trained("tag"), "--explain", "--out", tmp_path / "report.html").ok()
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"<b>why <bdi[^>]*>[BI]-\w+ \(\w+\)<", page)
