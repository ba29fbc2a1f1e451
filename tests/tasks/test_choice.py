"""Multiple choice: sequences of choices, cut contexts, the loss of transformers, and runs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForMultipleChoice

import finetune
from finetune.data.choices import CHOICES
from finetune.data.splitting import hold_out
from finetune.evaluation.baselines import baselines_of
from finetune.evaluation.predictions import align_runs
from finetune.preprocessing.batching import grouped, micro_batches, pack
from finetune.tasks import load_task
from finetune.tasks.choice import texts_of_choices
from finetune.types import ChoicePrediction, ChoiceQuestion, TokenSequence, UserError
from tests import fixtures as fx
from tests import small_data
from tests.command import run
from tests.models.parity import plain_inputs
from tests.small_data import read_jsonl


def config(**changes: Any) -> Any:
    return fx.config("choice", **{"model": fx.checkpoint(dropout=0.0), "max_length": 32, **changes})


@pytest.fixture(scope="module")
def trained() -> Path:
    given = {"steps": 25, "lr": 5e-3, "eval_every": 25, "max_length": None, "precision": None}
    return fx.trained("choice", model=fx.checkpoint(dropout=0.0), **given)


def test_what_a_run_says(tmp_path: Path) -> None:
    outcome = fx.train("choice", tmp_path / "run").ok()
    assert "labels" not in outcome.err and "(choosing at random: " in outcome.out
    assert f"finetune predict {tmp_path / 'run'} --file QUESTIONS.jsonl" in outcome.out


@pytest.mark.parametrize(
    ("context", "question", "expected"),
    [
        ("It rains.", "Why?", ("It rains.", "Why? a")),
        ("It rains.", None, ("It rains.", "a")),
        ("It rains.", "It is _ .", ("It rains.", "It is a .")),
        ("", "Why?", ("Why?", "a")),
        ("  ", "___ or _", ("a or a", None)),
        ("", "Is __init__ snake_case?", ("Is __init__ snake_case?", "a")),
        ("", None, ("a", None)),
    ],
)
def test_texts_of_a_choice(context: str, question: str | None, expected: Any) -> None:
    example = ChoiceQuestion(0, context, question, choices=("a", "b"))
    first, second = texts_of_choices(example)
    assert first == expected and second != first


def test_an_empty_choice_beside_a_context_that_is_cut() -> None:
    task, _ = load_task(config(max_length=12), "choice")
    example = ChoiceQuestion(0, "a room " * 20, None, 0, choices=("", "warm"))
    assert len(list(task.encode([example]))) == 1


def test_contexts_are_cut_and_counted() -> None:
    words = " ".join(f"{letter} dog" for letter in "abcdefghijklmnop")
    short = ChoiceQuestion(0, "the dog", "it", choices=("saw", "and"))
    long = ChoiceQuestion(1, words, "it", choices=("saw", "in the garden"))
    giant = ChoiceQuestion(2, "the dog", "it " * 40, choices=("saw", "and"))
    task, _ = load_task(config(), "choice")
    encoded = task.encode([short, long, giant])
    assert encoded.num_cut == 2
    assert all(len(encoding.input_ids) <= 32 for encoding in encoded.sequences)
    whole, rest = task.tokenizer.text_subwords([words, "it in the garden"])
    assert encoded[1][1].input_ids == task.tokenizer.build(whole[: 32 - 3 - len(rest)], rest)[0]
    (end,) = task.tokenizer.text_subwords(["it and"])
    assert encoded[2][1].input_ids[-1 - len(end) : -1] == end, "the choice is kept"


def test_loss_and_gradient_equal_those_of_transformers(tmp_path: Path) -> None:
    """One question at a time, on padded rows; questions have different numbers of choices."""
    task, data = load_task(config(), "choice")
    torch.manual_seed(3)
    head = task.model().double().eval()
    head.save_pretrained(tmp_path / "saved")
    reference = AutoModelForMultipleChoice.from_pretrained(tmp_path / "saved").double().eval()
    reference.load_state_dict(head.model.state_dict())
    examples = data.splits["train"][:6]
    assert len({len(example.choices) for example in examples}) == 2
    encoded = task.encode(examples)
    batch = pack(encoded.sequences, task.collate(encoded.sequences))
    total, count = task.loss(head(batch), batch)
    (total / count).backward()
    expected = 0
    for example, sequences in zip(examples, encoded, strict=True):
        inputs = {n: v[None] for n, v in plain_inputs(reference, list(sequences)).items()}
        expected = expected + reference(**inputs, labels=torch.tensor([example.label])).loss
    expected = expected / len(examples)
    expected.backward()
    torch.testing.assert_close(total / count, expected, rtol=0, atol=1e-12)
    own = dict(head.model.named_parameters())
    for name, weight in reference.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(own[name].grad, weight.grad, rtol=0, atol=1e-12, msg=name)


def test_the_sequences_of_an_example_stay_together() -> None:
    chance = np.random.default_rng(1)
    for max_tokens in (1, 30, 100, 10**6):
        made = [
            TokenSequence(example, [1] * int(chance.integers(2, 30)), window=part)
            for example in chance.permutation(40)
            for part in range(int(chance.integers(1, 6)))
        ]
        order = chance.permutation(len(made))
        groups = micro_batches([made[n] for n in order], max_tokens, together=True)
        where = [{*group.example.tolist()} for group in groups]
        assert sum(map(len, where)) == 40 and set.union(*where) == {*range(40)}
        for group in groups:
            tokens = int(group.lengths.sum())
            assert tokens <= max_tokens or len({*group.example.tolist()}) == 1
        found = sorted((e.example, e.window) for group in groups for e in group)
        assert found == sorted((e.example, e.window) for e in made)
    assert [g.tolist() for g in grouped(np.array([3, 1, 2]), 4, np.array([7, 5, 7]))] == [
        [1],
        [0, 2],
    ]


def test_a_batch_with_some_choices_of_a_question_is_refused() -> None:
    task, data = fx.load(fx.config("choice"))
    sequences = task.encode(list(data.splits["train"])[:2]).sequences
    assert task.collate(sequences)
    with pytest.raises(UserError, match="only some choices of a question: make batches of whole"):
        task.collate(sequences[1:])


def test_predictions_and_their_files(trained: Path, tmp_path: Path) -> None:
    model = finetune.load(trained)
    file = fx.data("choice") / "test.jsonl"
    rows = read_jsonl(file)
    found = model.predict(rows)
    assert all(isinstance(each, ChoicePrediction) for each in found)
    for row, each in zip(rows, found, strict=True):
        assert len(each.scores) == len(row["choices"]) and sum(each.scores) == pytest.approx(1)
        assert each.text == row["choices"][each.choice] and each.score == max(each.scores)
    bare = [{k: v for k, v in row.items() if k != "label"} for row in rows]
    assert [p.scores for p in model.predict(bare)] == [p.scores for p in found]
    out = tmp_path / "predicted.jsonl"
    run("predict", trained, "--file", file, "--out", out).ok()
    lines = read_jsonl(out)
    assert [line["choice"] for line in lines] == [each.choice for each in found]
    right = [p.choice == row["label"] for p, row in zip(found, rows, strict=True)]
    expected = {"accuracy": sum(right) / 6}
    for words in ((out, file), (trained, "--data", file)):
        assert json.loads(run("score", *words, "--json").ok().out) == expected
    stored = read_jsonl(trained / "predictions.test.jsonl")
    assert [row["gold"] for row in stored] == [row["label"] for row in rows]
    assert [row["choices"] for row in stored] == [row["choices"] for row in rows]


def test_analysis_comparison_and_report(trained: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.jsonl"
    trained = shutil.copytree(trained, tmp_path / "run")
    rows = read_jsonl(trained / "predictions.test.jsonl")
    rows[0] |= {"choice": 1 - rows[0]["gold"], "scores": [0.5] * len(rows[0]["choices"])}
    wrong.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = run("report", wrong, "--format", "table").ok()
    assert "By length of the text" in outcome.out
    right, chosen = (rows[0]["choices"][n] for n in (rows[0]["gold"], rows[0]["choice"]))
    assert "Errors: wrong choice: 1" in outcome.out
    assert "accuracy on 6 questions" in run("compare", wrong, trained, "--resamples=50").ok().out
    (trained / "predictions.test.jsonl").write_text(wrong.read_text())
    run("report", trained, "--out", tmp_path / "report.html").ok()
    page = (tmp_path / "report.html").read_text()
    for text, mark in ((right, "right"), (chosen, "wrong")):
        assert re.search(
            f'<li[^>]*><mark class="{mark}"><bdi[^>]*>{text}</bdi></mark><span>0.500', page
        )
    card = (trained / "best" / "README.md").read_text()
    assert "AutoModelForMultipleChoice" in card and "pipeline_tag: multiple-choice" in card
    assert "## Labels" not in card and "pipeline(" not in card


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choice": 2, "id": "q1"}, "choice 2 is outside of the 2 choices"),
        ({"choice": "b", "id": "q1"}, "choice must be a whole number"),
    ],
)
def test_wrong_prediction_files(row: dict, message: str, tmp_path: Path) -> None:
    gold = {"id": "q1", "question": "Who?", "choices": ["me", "you"], "label": 0}
    for name, content in (("p", row), ("g", gold)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(content) + "\n")
    run("score", tmp_path / "p.jsonl", tmp_path / "g.jsonl").refused(f"p.jsonl:1: {message}")


@pytest.mark.parametrize("gold", [2, -1, "b", 1.5, True, ["a"], {"a": 1}])
def test_damaged_gold_in_a_prediction_file(gold: Any, trained: Path, tmp_path: Path) -> None:
    row = {"id": 0, "choice": 1, "choices": ["me", "you"], "score": 0.9, "text": "Who?"}
    lines = [json.dumps({**row, "id": index, "gold": own}) for index, own in enumerate((1, gold))]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"p.jsonl:2: .*gold"):
        align_runs([tmp_path / "p.jsonl"])
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "predictions.test.jsonl").write_text("\n".join(lines))
    outcome = run("report", tmp_path / "run")
    assert "predictions on test cannot be analyzed" in outcome.err and "gold must be" in (
        outcome.err.replace("`", "")
    )


def test_what_a_model_does_not_do_is_said(trained: Path, tmp_path: Path) -> None:
    for words, message in (
        (("predict", trained, "--text", "hello"), "give --file with the columns context, question"),
        (("export", trained, "--out", tmp_path / "onnx"), "`finetune choice` are not exported"),
        (("check", fx.data("choice"), "--task=chioce"), "Perhaps you meant 'choice'"),
    ):
        run(*words).refused(message)
    with pytest.raises(UserError, match="input 0: 'hello' is no example of this model"):
        finetune.load(trained).predict(["hello"])


def test_a_model_that_transformers_saved(trained: Path, tmp_path: Path) -> None:
    """Its configuration names two labels, as the default is, and it has no file of ours."""
    model = AutoModelForMultipleChoice.from_pretrained(trained / "best")
    model.config.id2label, model.config.label2id = {0: "LABEL_0", 1: "LABEL_1"}, {}
    model.save_pretrained(tmp_path / "plain")
    for file in (trained / "best").glob("tokenizer*"):
        (tmp_path / "plain" / file.name).write_bytes(file.read_bytes())
    rows = read_jsonl(fx.data("choice") / "test.jsonl")
    found = [finetune.load(folder).predict(rows) for folder in (trained, tmp_path / "plain")]
    assert found[0] == found[1]


def test_check_reads_choices() -> None:
    outcome = run("check", fx.data("choice"), "--task", "choice", "--model", fx.checkpoint()).ok()
    assert "0 errors" in outcome.out and "train 24" in outcome.out
    assert "longest 23" in outcome.out, "subwords of the longest choice, and not of all"


def test_baselines() -> None:
    examples = [
        ChoiceQuestion(n, "", "Who?", label, choices=("a", "b", "c", "d")[:size])
        for n, (label, size) in enumerate([(0, 2), (0, 4), (1, 2), (2, 4)])
    ]
    metrics = {"test": {"accuracy": 0.5}}
    found = baselines_of({"train": examples, "test": examples}, metrics)["test"]
    assert str(found) == "choosing at random: accuracy 0.3750"


def test_questions_about_one_context_are_held_out_together() -> None:
    rows = [
        {
            "context": f"text {n // 3}",
            "question": f"Who is {n}?",
            "choices": ["a", "b"],
            "label": n % 2,
        }
        for n in range(90)
    ]
    split = hold_out(CHOICES.read(rows), 0.2)
    contexts = [{each.text for each in split.splits[name]} for name in ("train", "validation")]
    assert not contexts[0] & contexts[1] and all(contexts)


def test_training_without_labels_is_refused(tmp_path: Path) -> None:
    rows = [{"question": "Who?", "choices": ["me", "you"]}] * 3
    data = small_data.write_jsonl(tmp_path / "data" / "train.jsonl", rows).parent
    with pytest.raises(UserError, match="no row of train has a label"):
        load_task(config(data=str(data)), "choice")
