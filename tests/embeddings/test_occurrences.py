"""Occurrences of words: which are found, with which label and context, and how they are drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finetune.embeddings.occurrences import (
    CONTEXT,
    SHOWN,
    Occurrence,
    find_occurrences,
    parse_words,
    read_examples,
)
from finetune.types import Span, TextExample, TokenExample, UserError
from tests.small_data import write_jsonl


def texts(*rows: str | tuple[str, str]) -> list[TextExample]:
    pairs = [(row, None) if isinstance(row, str) else row for row in rows]
    return [TextExample(number, text, label=label) for number, (text, label) in enumerate(pairs)]


def forms(rows: list, word: str) -> list[tuple[str, str]]:
    occurrences = find_occurrences(rows, parse_words(word))
    return [(occurrence.word, form_of(occurrence)) for occurrence in occurrences.sample]


def form_of(occurrence: Occurrence) -> str:
    return occurrence.shown.partition("[")[2].partition("]")[0]


def test_words_and_forms():
    rows = texts("The bank's banks.", "BANK", "banker", "a river-bank!", "embankment")
    assert forms(rows, "bank") == [("bank", "bank"), ("bank", "BANK"), ("bank", "bank")]
    assert [form for _, form in forms(rows, "bank/banks")] == ["bank", "banks", "BANK", "bank"]
    assert forms(rows, "river,bank")[0] == ("river", "river")


@pytest.mark.parametrize(
    ("text", "word", "form"),
    [
        ("I like Ice  cream.", "ice cream", "Ice cream"),
        ("the U.S. army", "U.S.", "U.S."),
        ("it isn't so", "isn't", "isn't"),
        ("他在银行工作", "银行", "银行"),
        ("na\u00efve", "nai\u0308ve", "na\u00efve"),
        ("die Straße", "STRASSE", "Straße"),
    ],
)
def test_words_of_any_kind(text: str, word: str, form: str):
    (occurrence,) = find_occurrences(texts(text), parse_words(word)).sample
    assert form_of(occurrence) == " ".join(form.split())
    assert occurrence.shown.replace("[", "").replace("]", "") == " ".join(text.split())


def test_labels():
    rows = [TokenExample(0, ("the", "U.S.", "army"), tags=("DT", "NNP", "NN"))]
    (occurrence,) = find_occurrences(rows, parse_words("u.s.")).sample
    assert (occurrence.shown, occurrence.label) == ("the [U.S.] army", "NNP")
    spans = (Span(0, 4, "ORG"), Span(3, 4, "LOC"))
    words = ("University", "of", "west", "Leeds", "in", "Leeds")
    tags = ("B-ORG", "I-ORG", "I-ORG", "I-ORG", "O", "O")
    rows = [TokenExample(0, words, spans, tags)]
    assert [o.label for o in find_occurrences(rows, parse_words("Leeds")).sample] == ["LOC", None]
    rows = texts(("a die", "tool"), "the die", ("one die", ("a", "b")), ("die", 2.5))
    labels = [o.label for o in find_occurrences(rows, parse_words("die")).sample]
    assert labels == ["tool", None, "a, b", "2.5"]


def test_senses_match_by_lemma(tmp_path: Path):
    file = tmp_path / "senses.jsonl"
    target = {"start": 1, "end": 2, "lemma": "die", "pos": "VERB", "senses": ["die%2:30:00::"]}
    idiom = {"start": 2, "end": 4, "lemma": "as_well", "pos": "ADV", "senses": []}
    rows = [
        {"tokens": ["He", "died", "as", "well", "die"], "targets": [target, idiom]},
        {"tokens": ["a", "die"], "targets": []},
    ]
    write_jsonl(file, rows)
    occurrences = find_occurrences(read_examples(str(file)), parse_words("die,as well"))
    labels = [(form_of(occurrence), occurrence.label) for occurrence in occurrences.sample]
    assert labels == [("died", "die%2:30:00::"), ("die", None), ("as well", None)]


def test_context_is_cut():
    words = [f"w{number}" for number in range(500)]
    words[300] = "die"
    (occurrence,) = find_occurrences(texts(" ".join(words)), parse_words("die")).sample
    assert occurrence.words[occurrence.start : occurrence.end] == ("die",)
    assert len(occurrence.words) == 2 * CONTEXT + 1 and occurrence.start == CONTEXT
    shown = occurrence.shown.split()
    assert (shown[0], shown[-1]) == (f"w{300 - SHOWN}", f"w{300 + SHOWN}")


def test_samples_are_the_same_for_a_seed():
    rows = texts(*(f"text {number} on a die" for number in range(100)))
    occurrences = find_occurrences(rows, parse_words("die"), limit=10)
    assert len(occurrences.sample) == 10 and occurrences.counts == {"die": 100}
    assert [o.id for o in occurrences.sample] == sorted(o.id for o in occurrences.sample)
    assert occurrences == find_occurrences(rows, parse_words("die"), limit=10)
    other = find_occurrences(rows, parse_words("die"), limit=10, seed=2)
    assert other.sample != occurrences.sample
    occurrences = find_occurrences(texts("a die", "a die", " ", "die, die"), parse_words("die"))
    assert len(occurrences.sample) == 3, "a context counts once"
    assert occurrences.num_texts == 3, "without blank lines"


@pytest.mark.parametrize("word", ["", "die,", "bank/", "die,die/dies"])
def test_errors(word: str):
    with pytest.raises(UserError, match=r"is not a word|'die' is named twice"):
        parse_words(word)


def test_files(tmp_path: Path):
    plain = tmp_path / "texts.txt"
    plain.write_text("a die\n\nto die\n", encoding="utf-16")
    assert [e.text for e in read_examples(str(plain), encoding="utf-16")] == ["a die", "", "to die"]
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"sentence": "a die", "sense": "x", "label": "y"}) + "\n")
    (row,) = read_examples(str(file), columns={"label": "sense"})
    assert row.label == "x"
    tagged = read_examples("examples/data/ner/test.conll")
    labels = {occurrence.label for occurrence in find_occurrences(tagged, {"": ["Jordan"]}).sample}
    assert labels >= {"PER", "LOC"}
