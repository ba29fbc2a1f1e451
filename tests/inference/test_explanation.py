"""Explanations: leaving out equals predictions of shorter texts, gradients add up, on all tasks."""

from __future__ import annotations

import json
import math
import runpy
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import finetune
from finetune.evaluation.decisions import Decisions
from finetune.inference import explanation
from finetune.inference.explanation import without, words_of
from finetune.inference.loop import predict
from finetune.inference.predictor import Predictor
from finetune.inference.vectors import TrainingVectors, decision_vectors
from finetune.preprocessing.batching import pack
from finetune.tasks.base import EXPLAINED_BY
from finetune.types import Decision, TextExample, TokenExample, UserError
from tests import laboratory as lab
from tests.command import run

WINDOWS = {"long_text": "window", "max_length": 16, "overlap": 4}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "single": ("classify", {}),
    "bpe": ("classify", {"model": "roberta"}),
    "mean": ("classify", {"model": "modernbert"}),
    "windows": ("classify", WINDOWS),
    "few": ("classify", {"few_shot": True}),
    "pair": ("nli", {}),
    "pair windows": ("nli", WINDOWS),
    "bi": ("nli", {"pair_encoder": "bi"}),
    "tags": ("tag", {}),
    "all subwords": ("tag", {"label_subwords": "all"}),
    "crf windows": ("tag", {"crf": True, "max_length": 12, "overlap": 4}),
    "spans": ("ner", {}),
    "span windows": ("ner", {"max_length": 12, "overlap": 4}),
    "several types": ("ner", {"multi_label": True}),
}
every_case = pytest.mark.parametrize("name", CASES)


def model_of(name: str, **options: Any) -> Predictor:
    task, settings = CASES[name]
    family = settings.get("model", "bert")
    folder = lab.trained(task, **settings | {"model": str(lab.checkpoint(family))})
    return finetune.load(folder, **options)


def examples_of(model: Predictor, number: int = 3) -> list[Any]:
    """Some inputs with gold, whose words may be in several windows."""
    config = model.task.record.config
    return list(model.task.read(config, config.data).splits["train"])[:number]


def decided(model: Predictor, example: Any) -> list[Decision]:
    """Labels to explain, where an untrained model predicts none."""
    (prediction,) = model.predict([example])
    found = list(model.task.decisions(prediction))
    if model.task.description.words and not found:
        found = [Decision(model.labels[0], 0, (n, n + 1)) for n in range(2)]
    return found[:2]


def explained(
    model: Predictor, example: Any, method: str, monkeypatch: Any, given: Any = None
) -> list[Any]:
    decisions = given or decided(model, example)
    monkeypatch.setattr(type(model.task), "decisions", lambda *_: decisions)
    device = model.accelerator.device
    return explanation.explain(example, None, model.task, model.model, method, device)


def score(example: Any, decision: Decision, model: Predictor, *, masked: bool = False) -> float:
    """The score of a decision, also with the mask token in place of every subword of a word."""
    task, found = model.task, []
    for sequence in task.encode([example]).sequences:
        if (row := task.decision_row(decision, sequence)) is None:
            continue
        mask = task.tokenizer.tokenizer.mask_token_id
        pairs = zip(task.words_of_tokens(example, sequence), sequence.input_ids, strict=True)
        ids = [mask if masked and word >= 0 else id for word, id in pairs]
        with torch.no_grad():
            output = model.model.eval()(pack([replace(sequence, input_ids=ids)]))
        found.append(float(task.decision_scores(output)[row, decision.number]))
    return statistics.mean(found)


@every_case
def test_gradients_add_up(name: str, monkeypatch: Any) -> None:
    model = model_of(name)
    if "gradients" not in model.task.explained_by:
        pytest.skip("its texts are read apart")
    for example in examples_of(model):
        sequences = model.task.encode([example]).sequences
        for sequence in sequences:  # every token of a word, and the special ones of none
            numbers = np.array(model.task.words_of_tokens(example, sequence))
            assert len(numbers) == len(sequence.input_ids) and numbers.max() < len(
                words_of(example).words
            )
        for found in explained(model, example, "gradients", monkeypatch):
            assert len(found.scores) == len(words_of(example).words)
            everywhere = found.decision, model
            assert found.score == pytest.approx(score(example, *everywhere), abs=1e-4)
            difference = found.score - score(example, *everywhere, masked=True)
            assert sum(found.scores) + found.error == pytest.approx(difference, abs=1e-4)
            assert abs(found.error) <= explanation.TOLERANCE * max(1, abs(difference))


@every_case
@pytest.mark.parametrize("method", EXPLAINED_BY)
def test_packed_and_batch_size_change_nothing(name: str, method: str, monkeypatch: Any) -> None:
    model = model_of(name)
    if method not in model.task.explained_by:
        pytest.skip("its texts are read apart")
    other = model_of(name, batching="padded", max_tokens=48)
    for example in examples_of(model, 2):
        expected, found = (explained(m, example, method, monkeypatch) for m in (model, other))
        for mine, theirs in zip(expected, found, strict=True):
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
    model = finetune.load(lab.trained(task, **settings))
    for given, (found,) in zip(inputs, model.explain(inputs, "leave-out"), strict=True):
        label, texts = found.decision.label, [given] if isinstance(given, str) else list(given)

        def log(*own: str, label: str = label) -> float:
            (answer,) = model.predict([own if len(own) > 1 else own[0] or " ."])
            return math.log((answer.uncalibrated or answer.scores)[label])  # type: ignore[union-attr]

        expected = []
        for number, text in enumerate(texts):
            words = text.split()
            for place in range(len(words)):
                shorter = " ".join(words[:place] + words[place + 1 :])
                expected.append(log(*texts) - log(*texts[:number], shorter, *texts[number + 1 :]))
        assert found.score == pytest.approx(log(*texts), abs=1e-5)
        assert found.words.words == tuple(" ".join(texts).split())
        if len(expected) > 1:  # nothing is left of one word
            assert found.scores == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("task", ["tag", "ner"])
def test_words_of_sentences_are_masked(task: str, family: str, monkeypatch: Any) -> None:
    model = finetune.load(lab.trained(task, model=str(lab.checkpoint(family))))
    mask = model.task.tokenizer.tokenizer.mask_token
    example = TokenExample(0, ("Anna", "saw", "New", "York"))
    decision = Decision(model.labels[0], 0, (2, 3))
    (found,) = explained(model, example, "leave-out", monkeypatch, [decision])

    def value(words: tuple[str, ...]) -> float:
        (answer,) = predict(
            model.task, model.model, [TokenExample(0, words)], keep_log_probabilities=True
        )
        if task == "tag":
            return float(answer.log_probabilities[2, 0])  # type: ignore[union-attr]
        odds = dict(answer.candidates).get((2, 3, decision.label))  # type: ignore[union-attr]
        return math.nan if odds is None else math.log(odds / (1 - odds))

    whole = value(example.words)
    for place, own in enumerate(found.scores):
        masked = (*example.words[:place], mask, *example.words[place + 1 :])
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
    task = finetune.load(lab.trained("classify")).task
    assert without(task, TextExample(0, text), left_out).text == expected
    pair = without(task, TextExample(0, "x y", text), {number + 2 for number in left_out})
    assert (pair.text, pair.pair) == ("x y", expected)


@pytest.mark.parametrize(
    ("task", "settings", "options", "method", "problem"),
    [
        ("nli", {"pair_encoder": "bi"}, {}, "gradients", "legal for this model: leave-out"),
        ("nli", {}, {"labels": "a,b"}, "gradients", "legal for this model: leave-out"),
        ("choice", {}, {}, "leave-out", "`choice` model cannot be explained"),
        ("qa", {}, {}, "gradients", "`qa` model cannot be explained"),
        ("relations", {}, {}, "leave-out", "`relations` model cannot be explained"),
        ("sentence", {}, {}, "leave-out", "`sentence` model cannot be explained"),
        ("classify", {}, {}, "magic", "legal for this model: leave-out, gradients"),
    ],
)
def test_models_that_cannot_be_explained(
    task: str, settings: dict[str, Any], options: dict[str, Any], method: Any, problem: str
) -> None:
    model = finetune.load(lab.trained(task, **settings), **options)
    with pytest.raises(UserError, match=problem):
        model.explain([], method)


def test_labels_of_zero_shot_and_several_labels_and_numbers(monkeypatch: Any) -> None:
    model = finetune.load(lab.trained("nli"), labels="sports,politics", multi_label=True)
    (found,) = model.explain(["the train was late"])
    (prediction,) = model.predict(["the train was late"])
    assert [each.decision.label for each in found] == list(prediction.label)  # type: ignore[arg-type]
    labels = lab.trained("classify", data=str(lab.data("topics")))
    model = finetune.load(labels, threshold=0.0)
    ((*found,),) = model.explain(["the train was late"])
    assert [each.decision.label for each in found] == list(model.labels)
    model = finetune.load(lab.trained("classify", data=str(lab.data("numbers"))))
    (prediction,) = model.predict([("a man", "the dog")])
    ((number,),) = model.explain([("a man", "the dog")])
    assert number.score == pytest.approx(prediction.label, abs=1e-5)
    assert model.explain([(" ", "")]) == [[]]


def test_faithfulness_by_hand() -> None:
    model = finetune.load(lab.trained("classify"))
    text = "the train was late"
    ((found,),) = model.explain([text], "leave-out")
    best, *_ = np.argsort(-np.array(found.scores), kind="stable")
    words = text.split()
    shorter = " ".join(words[:best] + words[best + 1 :])
    probabilities = [
        p.scores[found.decision.label] for p in model.predict([text, shorter, words[best]])
    ]
    whole, without_it, alone = probabilities
    script = Path(__file__).parents[2] / "examples" / "faithfulness.py"
    faithfulness = runpy.run_path(str(script), run_name="imported")["faithfulness"]
    scores = faithfulness(model, [text], [0.25])
    assert scores["leave-out"] == pytest.approx((whole - without_it, whole - alone), abs=1e-6)
    assert set(scores) == {"leave-out", "gradients", "random"}
    assert scores["leave-out"][0] >= scores["random"][0]
    two, _ = faithfulness(model, [text], [0.25, 1.0])["leave-out"]
    (empty,) = explanation.decision_scores(
        model.task, model.model, [TextExample(0, "")], [found.decision], model.accelerator.device
    )
    expected = (whole - without_it + whole - math.exp(empty[0])) / 2
    assert two == pytest.approx(expected, abs=1e-6)


def test_nearest_is_the_largest_cosine() -> None:
    model = finetune.load(lab.trained("classify"))
    training, _ = model.training
    vectors = decision_vectors(model.task, model.model, training)
    (own,) = decision_vectors(model.task, model.model, [TextExample(0, "the train was late")])
    cosines = [float(own @ v / np.linalg.norm(own) / np.linalg.norm(v)) for v in vectors]
    order = sorted(range(len(cosines)), key=lambda i: -cosines[i])[:4]
    ((*found,),) = model.nearest(["the train was late"], 4)
    assert [each.similarity for each in found] == pytest.approx(
        [cosines[i] for i in order], abs=1e-5
    )
    assert {each.example.label for each in found} <= {*model.labels}
    ((first, *_),) = model.nearest([training[5].text], 1)
    assert model.nearest([" "], 1) == [[]]
    assert first.similarity == pytest.approx(1, abs=1e-5) and first.example.text == training[5].text


def test_training_data_must_be_those_of_the_run(tmp_path: Path) -> None:
    data = shutil.copytree(lab.data("classify"), tmp_path / "data")
    folder = lab.trained("classify", data=str(data))
    with next(data.glob("train*")).open("a") as file:
        file.write(json.dumps({"text": "new", "label": "pos"}) + "\n")
    with pytest.raises(UserError, match=r"data: changed since the training of .*leave it out"):
        finetune.load(folder).nearest(["x"])
    shutil.rmtree(data)
    with pytest.raises(UserError, match="data"):
        finetune.load(folder).nearest(["x"])
    with pytest.raises(UserError, match="leave it out"):
        finetune.load(lab.trained("nli"), labels="a,b").nearest(["x"])


def test_a_sentence_without_spans_has_no_vector() -> None:
    model = finetune.load(lab.trained("relations"))
    alone = [TokenExample(0, ("a", "b"), spans=())]
    assert model.nearest(alone, 1) == [[]]
    size = decision_vectors(model.task, model.model, model.training[0][:1]).shape[1]
    model.training_vectors = TrainingVectors(np.zeros(size), np.eye(size))
    model.decisions = Decisions(distance=0.0)
    assert model.predict(alone)[0].decided["distance"] is None


def test_command(tmp_path: Path) -> None:
    folder = lab.trained("nli")
    words = "predict", folder, "--text", "a man plays", "--pair", "the dog saw it"
    found = json.loads(run(*words, "--explain", "--nearest", "2", "--format", "jsonl").out)
    (reason,) = found["explanation"]
    assert reason["label"] == found["label"] and reason["words"] == ["a", "man", "plays"]
    assert reason["pair_words"] == ["the", "dog", "saw", "it"] and len(reason["pair_scores"]) == 4
    assert reason["offsets"] == [[0, 1], [2, 5], [6, 11]] and len(found["nearest"]) == 2
    assert {"similarity", "text", "text_pair", "gold", "where"} <= found["nearest"][0].keys()
    table = run(*words, "--explain", "leave-out", "--nearest", "1").out
    assert "nearest training examples" in table and "\ndog " in table
    (tmp_path / "in.txt").write_text("a\nb\n")
    file = "predict", lab.trained("tag"), "--file", tmp_path / "in.txt"
    for record in map(json.loads, run(*file, "--explain").out.splitlines()):
        for each in record["explanation"]:
            assert record["tags"][each["start"]] == each["label"] != "O"
            assert each["words"] == record["words"] and "offsets" not in each
    for options, problem in (
        (("--nearest", "0"), "--nearest must be 1 or more"),
        (("--explain", "--out", f"{tmp_path}/parts/"), "leave them out, or name a file"),
        (("--explain", "magic"), "magic"),
    ):
        run(*file, *options).refused(problem)
