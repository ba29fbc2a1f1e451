"""Validation and folds: related examples stay together, sizes and labels are balanced."""

from __future__ import annotations

from collections import Counter

import pytest

from finetune.data import (
    DataError,
    Dataset,
    assign_folds,
    halves,
    hold_out,
    leaked,
    unmeasured_labels,
)
from finetune.data.examples import normalized
from finetune.types import ChoiceQuestion, Span, TextExample, TokenExample

LONG = tuple("a sentence of ten words is long enough to join".split())


def texts(*rows: tuple[str, str]) -> list[TextExample]:
    return [TextExample(i, text, None, label) for i, (text, label) in enumerate(rows)]


def test_folds_have_equal_sizes_and_shares_of_labels():
    rows = texts(*[(f"text {i}", "rare" if i % 10 == 0 else "common") for i in range(100)])
    words = [TokenExample(e.id, (str(e.id), "w"), tags=("A", e.label)) for e in rows]
    for examples in (rows, words):
        folds = assign_folds(examples, 5)
        assert Counter(folds) == dict.fromkeys(range(5), 20)
        rare = Counter(f for f, row in zip(folds, rows, strict=True) if row.label == "rare")
        assert rare == dict.fromkeys(range(5), 2)
        assert assign_folds(examples, 5) == folds, "no chance in it"
        assert assign_folds(examples, 5, seed=1) != folds


def test_the_same_text_is_in_one_fold():
    rows = texts(*[(("A  %d" if i % 2 else "a %d") % (i // 2), "ab"[i % 2]) for i in range(60)])
    folds = assign_folds(rows, 3)
    assert folds[::2] == folds[1::2]
    assert len(set(folds)) == 3
    with pytest.raises(DataError, match="only 2 documents or different texts"):
        assign_folds(texts(("a", "x"), ("b", "y"), ("A", "x")), 3)


def test_a_document_is_in_one_fold_and_joined_by_a_long_sentence():
    sentences = [("Results", ":")] * 30  # short ones join nothing
    examples = [TokenExample(i, words, document=str(i // 3)) for i, words in enumerate(sentences)]
    folds = assign_folds(examples, 5)
    assert all(folds[i] == folds[i // 3 * 3] for i in range(30))
    assert Counter(folds) == dict.fromkeys(range(5), 6)
    examples[0] = TokenExample(0, LONG, document="0")
    examples[29] = TokenExample(29, LONG, document="9")
    folds = assign_folds(examples, 5)
    assert folds[0] == folds[29]


def held(examples: list, share: float | None = None) -> tuple[list, list]:
    """The training and the validation examples."""
    splits = hold_out(Dataset("x", {"train": examples}), share).splits
    train, validation = splits["train"], splits["validation"]
    assert list(splits) == ["train", "validation"]
    assert [e.id for e in train] == list(range(len(train)))
    assert [e.id for e in validation] == list(range(len(validation)))
    assert len(train) + len(validation) == len(examples)
    return train, validation


def counts(examples: list) -> Counter[str]:
    golds = (e.labels_of(*(getattr(e, name) for name in e.GOLD)) for e in examples)
    return Counter(name for labels in golds for name in set(labels or ("-",)))


def test_hold_out_keeps_fractions_of_labels_and_needs_no_seed():
    labels = ["common"] * 60 + ["often"] * 30 + ["rare"] * 8 + ["twice"] * 2
    rows = texts(*[(f"text {i}", label) for i, label in enumerate(labels)])
    train, validation = held(rows)
    assert counts(validation) == {"common": 6, "often": 3, "rare": 1, "twice": 1}
    assert counts(train)["twice"] == 1
    assert held(rows) == (train, validation)
    assert counts(held(rows, 0.25)[1]) == {"common": 15, "often": 7, "rare": 2, "twice": 1}
    turns = texts(*[(f"text {i}", "ab"[i % 2]) for i in range(60)])
    assert counts(held(turns)[1]) == {"a": 3, "b": 3}


def compared(examples: list) -> set[tuple[str, ...]]:
    return {tuple(normalized(example.texts())) for example in examples}


def test_equal_texts_are_on_one_side():
    """Before, every tenth row was held out: over half of validation was in train too."""
    names = [("Ｔext  %d" if i % 3 else "text %d") % (i % 250) for i in range(1000)]
    rows = texts(*[(name, "ab"[i % 2]) for i, name in enumerate(names)])
    train, validation = held(rows)
    assert compared(train).isdisjoint(compared(validation))
    assert 90 <= len(validation) <= 110
    pairs = [TextExample(i, f"first {i % 40}", f"second {i % 80}", "ab"[i % 2]) for i in range(400)]
    train, validation = held(pairs)
    assert compared(train).isdisjoint(compared(validation))


def test_hold_out_of_several_labels_tags_spans_and_numbers():
    names = ((2, "b"), (3, "c"), (50, "d"))
    several = [
        TextExample(i, str(i), None, tuple(name for k, name in names if i % k == 0))
        for i in range(300)
    ]
    assert counts(held(several)[1]) == {"b": 15, "c": 10, "d": 1, "-": 10}
    tags = [
        TokenExample(i, (str(i), "w"), tags=("A" if i % 4 else "B", "C" if i < 2 else "D"))
        for i in range(200)
    ]
    assert counts(held(tags)[1]) == {"A": 15, "B": 5, "C": 1, "D": 19}
    spans = [
        TokenExample(i, (str(i), "w"), spans=(Span(0, 1, "X"),) if i % 20 == 0 else ())
        for i in range(400)
    ]
    assert counts(held(spans)[1]) == {"X": 2, "-": 38}
    numbers = [TextExample(i, str(i), None, float(i)) for i in range(200)]
    assert Counter(int(e.label / 20) for e in held(numbers)[1]) == dict.fromkeys(range(10), 2)


def test_whole_documents_are_held_out_from_twenty_on():
    def sentences(number: int) -> list[TokenExample]:
        return [
            TokenExample(i, ("w", str(i)), tags=("O", "O"), document=f"d{i % number}")
            for i in range(120)
        ]

    train, validation = held(sentences(20))
    assert len({e.document for e in validation}) == 2
    assert {e.document for e in train}.isdisjoint({e.document for e in validation})
    note = hold_out(Dataset("x", {"train": sentences(20)})).notes[-1]
    assert note.startswith("no validation split: held out 12 of 120 examples of train")
    assert note.endswith("documents stay together")
    assert "equal texts stay together" in hold_out(Dataset("x", {"train": sentences(19)})).notes[-1]


def test_a_label_of_one_text_stays_in_train():
    rows = texts(*[(f"text {i}", "a") for i in range(30)], ("odd", "b"), ("ODD", "b"))
    data = hold_out(Dataset("x", {"train": rows}))
    assert counts(data.splits["validation"]) == {"a": 3}
    assert unmeasured_labels(data) == [
        "validation cannot measure labels that it lacks: b (2 in train)"
    ]
    questions = [ChoiceQuestion(i, "", "a?", i, choices=("x", "y", "z")) for i in range(3)]
    splits = {"train": questions, "validation": questions[:1]}
    assert unmeasured_labels(Dataset("x", splits)) == [], "the place of a choice is no label"
    many = texts(*[(f"text {i}", str(i // 2)) for i in range(100)])
    assert len(held(many)[1]) == 20, "rare labels alone do not take half of the data"


def test_small_and_given_splits():
    assert len(held(texts(("a", "x"), ("b", "x"), ("c", "y")))[1]) == 1
    with pytest.raises(DataError, match="train has only 1 different text,"):
        hold_out(Dataset("one", {"train": texts(("a", "x"), ("A ", "y"))}))
    given = Dataset("m", {"train": texts(("a", "x")), "validation_matched": []})
    assert hold_out(given) is given
    with pytest.raises(DataError, match=r"--validation 0\.2: m has a validation split"):
        hold_out(given, 0.2)


def test_the_default_share_has_a_most(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("finetune.data.splitting.MOST_HELD_OUT", 4)
    rows = texts(*[(f"text {i}", "ab"[i % 2]) for i in range(100)])
    assert counts(held(rows)[1]) == {"a": 2, "b": 2}
    assert len(held(rows, 0.2)[1]) == 20


def test_leaks_are_texts_of_train():
    splits = {
        "train": texts(("One", "x"), ("two", "y")),
        "validation": texts(("three", "x")),
        "test": texts(("four", "x"), ("one ", "y"), ("three", "x")),
    }
    assert leaked(Dataset("x", splits)) == {"test": {1}}


def test_halves_keep_texts_together_and_single_texts_are_divided():
    rows = texts(*[(f"text {i // 2}", "ab"[i % 2]) for i in range(20)])
    for own in halves(rows):
        assert len(own) == 10 and [row ^ 1 for row in own[::2]] == own[1::2]
    assert halves(texts(("a", "x"), ("A", "y"))) == ([0], [1])
    first, _ = halves([TokenExample(i, ("a", str(i)), document="d") for i in range(4)])
    assert len(first) == 2
