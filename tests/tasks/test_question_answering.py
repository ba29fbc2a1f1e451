"""Extractive question answering: windows, characters of answers, decoding, and the task."""

from __future__ import annotations

import datetime
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering

import finetune
from finetune import pack
from finetune.data.questions import QUESTIONS, locate
from finetune.models.heads.pretrained import ANSWER_ENDS, QuestionAnswerer, position_losses
from finetune.preprocessing.questions import (
    ContextTokens,
    context_tokens,
    encode_questions,
    window_starts,
    word_numbers,
)
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.tasks import load_task
from finetune.tasks.answer_decoding import NO_ANSWER, AnswerCandidates, AnswerDecoder, legal_answers
from finetune.types import (
    Answer,
    AnswerPrediction,
    DataError,
    FoundAnswer,
    Question,
    TokenSequence,
    UserError,
    WindowOutput,
)
from tests import fixtures as fx
from tests.command import run
from tests.small_data import read_jsonl, write_jsonl


def made_context(chance: random.Random, length: int) -> tuple[str, ContextTokens]:
    """Return a context of ``length`` tokens: some words have several, some tokens no characters."""
    text, starts, ends = "", [], []
    for _ in range(length):
        if text and chance.random() < 0.6:
            text += " "
        size = 0 if chance.random() < 0.05 else chance.randint(1, 3)
        starts.append(len(text))
        text += "x" * size
        ends.append(len(text))
    return text, ContextTokens.of(text, [0] * length, zip(starts, ends, strict=True))


def by_brute_force(
    text: str, tokens: ContextTokens, windows: list[int], scores: list[np.ndarray], most: int
) -> dict[tuple[int, int], float]:
    """Return the score of every legal pair of tokens, in the window with most context around it."""
    found: dict[tuple[int, int], tuple[int, float]] = {}
    for first in range(len(tokens.ids)):
        for last in range(first, len(tokens.ids)):
            start, end = int(tokens.starts[first]), int(tokens.ends[last])
            empty = any(tokens.starts[i] == tokens.ends[i] for i in (first, last))
            if empty or len(text[start:end].split()) > most:
                continue
            for begin, own in zip(windows, scores, strict=True):
                around = min(first - begin, begin + len(own) - 1 - last)
                if around < 0:
                    continue
                score = float(own[first - begin, 0] + own[last - begin, 1])
                if (first, last) not in found or around > found[first, last][0]:
                    found[first, last] = around, score
    return {pair: score for pair, (_, score) in found.items()}


@pytest.mark.parametrize("seed", range(20))
def test_answers_over_windows_equal_brute_force(seed: int) -> None:
    chance, numbers = random.Random(seed), np.random.default_rng(seed)
    length = chance.randint(1, 60)
    text, tokens = made_context(chance, length)
    size = chance.randint(4, 20)
    overlap = chance.randint(2, size // 2)
    windows = window_starts(length, size, overlap)
    scores = [numbers.normal(size=(min(size, length), 2)) for _ in windows]
    if length > size:  # an answer that straddles the middle between two windows
        middle = windows[1] + (size - (windows[1] - windows[0])) // 2
        for begin, own in zip(windows, scores, strict=True):
            for token, column in ((middle - 1, 0), (middle, 1)):
                if begin <= token < begin + size:
                    own[token - begin, column] += 50
    most = chance.randint(1, 6)
    expected = by_brute_force(text, tokens, windows, scores, most)
    found = legal_answers(tokens, windows, scores, most)
    pairs = zip(found.first.tolist(), found.last.tolist(), strict=True)
    assert dict(zip(pairs, found.scores.tolist(), strict=True)) == expected
    reachable = {
        (first, last)
        for first in range(length)
        for last in range(first, min(length, first + min(overlap, size)))
    }
    assert {pair for pair in reachable if pair in expected} == {
        (first, last)
        for first, last in reachable
        if tokens.starts[first] < tokens.ends[first]
        and tokens.starts[last] < tokens.ends[last]
        and len(text[tokens.starts[first] : tokens.ends[last]].split()) <= most
    }, "every answer of as many tokens as windows share is in a window"
    best = sorted(expected.items(), key=lambda item: -item[1])[:5]
    none = chance.uniform(-3, 3)
    values = [np.vstack([[none / 2, none / 2], own]) for own in scores]
    outputs = [WindowOutput(begin, own) for begin, own in zip(windows, values, strict=True)]
    decoder = answer_decoder(max_answer=most, unanswerable=True)
    predicted = decoder.postprocess(Question(0, "q", text), outputs, tokens)
    total = np.exp(none) + sum(np.exp(list(expected.values())))
    assert predicted.no_answer_score == pytest.approx(np.exp(none) / total)
    assert [(each.start, each.end) for each in predicted.best] == [
        (tokens.starts[first], tokens.ends[last]) for (first, last), _ in best
    ]
    assert [each.score for each in predicted.best] == pytest.approx(
        [np.exp(score) / total for _, score in best]
    )
    for each in predicted.best:
        assert each.text == text[each.start : each.end]
    assert (predicted.answer is None) == (not best or none >= best[0][1])


def test_ties_do_not_depend_on_the_number_of_answers() -> None:
    rng = np.random.default_rng(3)
    found = AnswerCandidates(rng.permutation(200), np.arange(200), rng.integers(0, 4, 200) * 0.5)
    everything = found.best(200)
    for number in range(1, 200):
        best = found.best(number)
        assert [best.first.tolist(), best.last.tolist()] == [
            everything.first[:number].tolist(),
            everything.last[:number].tolist(),
        ]


# Characters

CONTEXTS = [
    "Anna saw the big river in Oslo, twice.",
    "  spaced   out \t words\nand lines ",
    "東京の犬 and 🙂🙂 faces — naïve café",
    "cafe\u0301 (decomposed) and a\u200bb zero width",
    "ÅNGSTRÖM İstanbul straße ﬁre",
    "",
]


@pytest.fixture(scope="module", params=["bert", "roberta", "deberta-v2", "modernbert"])
def tokenizer(request: Any) -> SubwordTokenizer:
    return fx.tokenizer(request.param)


def test_tokens_have_the_characters_of_the_context(tokenizer: SubwordTokenizer) -> None:
    for context, tokens in zip(CONTEXTS, context_tokens(tokenizer, CONTEXTS), strict=True):
        assert len(tokens.ids) == len(tokens.starts) == len(tokens.ends)
        covered = set()
        for start, end in zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True):
            text = context[start:end]
            assert text == text.strip()
            covered |= set(range(start, end))
        lost = {context[i] for i in range(len(context)) if i not in covered and context[i].strip()}
        assert lost <= {"\u200b"}, "only an invisible character may be in no token"


def test_answers_of_words_come_back_with_their_characters(tokenizer: SubwordTokenizer) -> None:
    for context, tokens in zip(CONTEXTS, context_tokens(tokenizer, CONTEXTS), strict=True):
        words = [match.span() for match in re.finditer(r"\S+", context)]
        for first, (start, _) in enumerate(words):
            for _, end in words[first : first + 4]:
                found = tokens.of_answer(Answer(start, context[start:end]))
                assert found is not None
                begin, last = found
                assert context[tokens.starts[begin] : tokens.ends[last]] == context[start:end]
        assert tokens.of_answer(Answer(None, "x")) is None


def test_words_of_scripts_without_spaces_are_letters() -> None:
    assert word_numbers("東京 ab犬c").tolist() == [0, 1, 1, 2, 2, 3, 4]
    assert word_numbers("").tolist() == []


# Sequences


def test_windows_hold_question_and_context(tokenizer: SubwordTokenizer) -> None:
    context = " ".join(f"word{i}" for i in range(40))
    (tokens,) = context_tokens(tokenizer, [context])
    answer = Answer(context.index("word17"), "word17 word18")
    examples = [
        Question(0, "who saw", context, answers=(answer,)),
        Question(1, "who saw", context, answers=()),
        Question(2, "who saw " * 30, context),
        Question(3, "who", "", answers=()),
    ]
    encoded, num_cut = encode_questions(examples, tokenizer, 32, 8)
    assert num_cut == 1
    question = tokenizer.text_subwords(["who saw"])[0]
    begin = len(tokenizer.pair.prefix) + len(question) + len(tokenizer.pair.middle)
    gold = tokens.of_answer(answer)
    found = 0
    for window in encoded[0]:
        assert window.word_starts[0] == begin
        size = window.word_starts[1] - begin
        assert window.input_ids[begin : begin + size] == tokens.ids[window.window :][:size]
        assert len(window.input_ids) <= 32
        start, end = window.target["start"][0], window.target["end"][0]
        if start:
            found += 1
            assert (start - begin + window.window, end - begin + window.window) == gold
        else:
            assert end == 0
    assert 0 < found < len(encoded[0])
    assert [window.window for window in encoded[0]] == window_starts(
        len(tokens.ids), 32 - tokenizer.pair.num_special - len(question), 8
    )
    assert {target for w in encoded[1] for name in w.target for target in w.target[name]} == {0}
    assert all(window.target == {"start": [-1], "end": [-1]} for window in encoded[2])
    assert len(encoded[3]) == 1


def answer_decoder(**values) -> AnswerDecoder:
    usual = {"labels": ANSWER_ENDS, "max_answer": 30, "unanswerable": False}
    return AnswerDecoder.restored(usual | {"thresholds": {}} | values)


def test_no_answer_by_probability_and_threshold() -> None:
    best = (FoundAnswer(0, 1, "a", 0.3), FoundAnswer(2, 3, "b", 0.2))

    def decided(decoder: AnswerDecoder, none: float | None, best: Any = best) -> AnswerPrediction:
        return decoder.decide(AnswerPrediction(0, None, 0.0, none, best))

    plain = answer_decoder(unanswerable=True)
    assert decided(plain, 0.4).answer is None
    assert decided(plain, 0.2).answer == best[0]
    strict = answer_decoder(unanswerable=True, thresholds={NO_ANSWER: 0.5})
    assert decided(strict, 0.4).answer == best[0]
    assert decided(strict, 0.6).score == 0.6
    assert decided(answer_decoder(), None).answer == best[0]
    assert decided(answer_decoder(), None, ()).to_dict()["answer"] == ""


# Data


def test_answers_are_moved_only_if_one_place_is_possible() -> None:
    context = "a dog and a  dog saw Oslo"
    assert locate("Oslo", 21, context) == Answer(21, "Oslo")
    assert locate("Oslo", 3, context) == Answer(21, "Oslo")
    assert locate("Oslo", None, context) == Answer(21, "Oslo")
    assert locate("a dog", 9, context) == Answer(10, "a  dog"), "before the white space"
    assert locate("a dog", 5, context) == Answer(None, "a dog")
    assert locate("dog", None, context) == Answer(None, "dog")
    assert locate("Rome", 3, context) == Answer(None, "Rome")


ROW = {"question": "who", "context": "Anna saw Anna", "answers": "Anna", "answer_start": 9}
WHO = {"id": "x", "question": "who", "answers": [{"text": "Anna", "answer_start": 0}]}
WHY = {"id": "y", "question": "why", "answers": [], "is_impossible": True}
PARAGRAPH = {"context": "Anna saw Oslo", "qas": [WHO, WHY]}
SQUAD = {"version": "1.1", "data": [{"title": "t", "paragraphs": [PARAGRAPH]}]}


def test_forms_of_data(tmp_path: Path) -> None:
    for name, indent in (("a.json", None), ("b.json", 1), ("c.jsonl", None)):
        (tmp_path / name).write_text(json.dumps(SQUAD, indent=indent), encoding="utf-8")
        rows = QUESTIONS.read(tmp_path / name).splits["train"]
        assert [row.answers for row in rows] == [(Answer(0, "Anna"),), ()]
        assert [row.key for row in rows] == ["x", "y"]
        assert rows[0].where.endswith(":article 1 (t), paragraph 1, question 1")
    forms = [
        {"text": ["Anna"], "answer_start": [9]},
        [{"text": "Anna", "answer_start": 9}],
        {"text": "Anna", "answer_start": 9},
        json.dumps({"text": ["Anna"], "answer_start": [9]}),
    ]
    for form in forms:
        (row,) = QUESTIONS.read([{**ROW, "answers": form}]).splits["train"]
        assert row.answers == (Answer(9, "Anna"),)
    (tmp_path / "d.csv").write_text("q,context,gold,answer_start\nwho,Anna saw Anna,Anna,9\n")
    data = QUESTIONS.read(tmp_path / "d.csv", columns={"question": "q", "answers": "gold"})
    assert data.splits["train"][0].answers == (Answer(9, "Anna"),)
    bare = [{"question": "who", "context": "Anna"}]
    assert QUESTIONS.read({"test": bare}).splits["test"][0].answers is None
    none = {"text": [], "answer_start": []}
    assert QUESTIONS.read([{**bare[0], "answers": none}]).splits["train"][0].answers == ()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answers": {"text": ["Anna"], "answer_start": []}}, ""),
        ({"answers": {"text": ["Anna"], "answer_start": [1, 2]}}, "has 1 text and 2 answer_start"),
        ({"answers": [1.5, None]}, "must hold texts"),
        ({"answer_start": "x"}, "from 0, not 'x'"),
        ({"answers": datetime.date(1873, 1, 1)}, "must hold texts"),
        ({"is_impossible": True}, "is_impossible is true, and there is the answer 'Anna'"),
        ({"question": []}, "column 'question' holds list"),
    ],
)
def test_rows_that_cannot_be_read(row: dict[str, Any], message: str) -> None:
    if not message:
        assert QUESTIONS.read([ROW | row]).splits["train"][0].answers == (Answer(None, "Anna"),)
        return
    with pytest.raises(DataError, match=f"data, row 1: .*{re.escape(message)}"):
        QUESTIONS.read([ROW | row])


def test_an_answer_of_brackets_is_a_text(tmp_path: Path) -> None:
    """It is no JSON, and so the answer itself, whatever its depth."""
    for text in ("[[[", "[" * 100_000, '{"text": ["Anna"]'):
        (row,) = QUESTIONS.read([{**ROW, "answers": text}]).splits["train"]
        assert row.answers == (Answer(None, text),)


GOOD = [
    {"question": "who", "context": f"Anna saw dog {i}", "answers": "Anna", "answer_start": 0}
    for i in range(12)
]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{**ROW, "answers": "Rome"}], "f.jsonl:1: the answer 'Rome' is not in the context:"),
        ([{**ROW, "answer_start": 4}] * 2, "is several times in the context, and not at its"),
        (
            [{**ROW, "answers": {"text": []}}],
            "train: no question has an answer, so there is nothing",
        ),
        ([{**ROW, "answers": None}], "no question of train has gold answers: name their column"),
        ([{"question": "x"}], "no column is known to hold the context of a question"),
    ],
)
def test_answers_without_a_place_are_refused(
    rows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "f.jsonl", rows)
    model = str(fx.checkpoint())
    config = finetune.QAConfig(model=model, data=str(tmp_path / "f.jsonl"))
    with pytest.raises(UserError, match=re.escape(message)):
        load_task(config, "qa")


def test_few_answers_without_a_place_are_left_out_and_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [*GOOD, {**ROW, "answer_start": 4}])
    write_jsonl(tmp_path / "test.jsonl", [GOOD[0], {**GOOD[0], "answers": "Rome"}])
    model = str(fx.checkpoint())
    config = finetune.QAConfig(model=model, data=str(tmp_path))
    _, data = load_task(config, "qa")
    notes = "\n".join(data.notes)
    assert "train.jsonl:13: the answer 'Anna' is several times in the context, and" in notes
    scored = "warning: test: 1 question without an answer in its place: scored by their text (first"
    assert scored in notes and "test.jsonl:2: the answer 'Rome' is not in the context" in notes
    assert len(data.splits["train"]) + len(data.splits["validation"]) == 12


# Commands


def test_commands(tmp_path: Path) -> None:
    """Train, predict, score, analyze, compare, report and distill."""
    data, run_folder = fx.data("qa"), tmp_path / "run"
    fx.train("qa", run_folder, "--seeds", "2", steps=4, max_length=24).ok()
    first = run_folder / "seed-1"
    card = (first / "best" / "README.md").read_text(encoding="utf-8")
    assert "AutoModelForQuestionAnswering" in card and "pipeline(" not in card
    gold = data / "test.jsonl"
    predicted = tmp_path / "predicted.jsonl"
    run("predict", first, "--file", gold, "--out", predicted).ok()
    rows = read_jsonl(predicted)
    contexts = [json.loads(line)["context"] for line in gold.open(encoding="utf-8")]
    for row, context in zip(rows, contexts, strict=True):
        for each in row["best"]:
            assert each["text"] == context[each["start"] : each["end"]]
    scores = run("score", predicted, gold, "--json").ok()
    saved = json.loads((first / "metrics.json").read_text(encoding="utf-8"))["test"]
    for name in ("exact_match", "f1", "noans_exact"):
        assert json.loads(scores.out)[name] == pytest.approx(saved[name], abs=1e-12)
    analyzed = run("report", first, "--format", "table")
    assert "By length of the first gold answer" in analyzed.out and "Errors: " in analyzed.out
    run("compare", first, run_folder / "seed-2", "--metric", "exact_match").ok()
    run("report", first, "--out", tmp_path / "report.html").ok()
    run("thresholds", first).refused("`qa` choose a threshold in training")
    run("distill", first, "--layers", "1", "--steps", "2", "--out", tmp_path / "student").ok()
    asked = ("--text", "who", "--pair", "anna saw the river")
    found = run("predict", first, *asked, "--threshold", "1")
    assert json.loads(found.out)["answer"]


def test_the_loss_is_that_of_transformers_without_padding(tmp_path: Path) -> None:
    head = QuestionAnswerer.from_pretrained(fx.checkpoint(dropout=0.0), labels=ANSWER_ENDS)
    head.save_pretrained(tmp_path / "head")
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "head")
    rows, starts, ends = [[2, 5, 6, 3, 7, 8, 3], [2, 5, 3, 9, 3]], [4, 0], [5, 0]
    batch = pack([TokenSequence(number, ids) for number, ids in enumerate(rows)])
    loss = position_losses(head(batch), batch, torch.tensor(starts), torch.tensor(ends)).mean()
    alone = [
        model(
            input_ids=torch.tensor([ids]),
            start_positions=torch.tensor([start]),
            end_positions=torch.tensor([end]),
        ).loss
        for ids, start, end in zip(rows, starts, ends, strict=True)
    ]
    expected = torch.stack(alone).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(
        head.model.qa_outputs.weight.grad, model.qa_outputs.weight.grad, rtol=1e-4, atol=1e-6
    )
