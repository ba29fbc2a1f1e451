"""The data checks: each finding, its level, its locations, and how it is rendered."""

from dataclasses import replace

import pytest

from finetune.data import Dataset, check_data, read_tokens, render
from finetune.types import Span, TextExample, TokenExample


def text(index, content, label="a", pair=None, split="train"):
    return TextExample(index, content, pair, label, f"{split}.csv:{index + 1}")


def tokens(index, content, tags=None, spans=None, split="train"):
    words = tuple(content.split(" "))
    tags = tuple(tags.split()) if tags else None
    return TokenExample(index, words, spans, tags, where=f"{split}.conll:{index + 1}")


def found(dataset, check, level=None, **options):
    findings = [f for f in check_data(dataset, **options) if f.check == check]
    return [f for f in findings if level in (None, f.level)]


def texts(**splits):
    return Dataset("films", {name: list(rows) for name, rows in splits.items()}, format="csv")


def clean():
    train = [text(i, f"film {i}", "ab"[i % 2]) for i in range(10)]
    held = [text(i, f"other {i}", "ab"[i % 2], split="validation") for i in range(4)]
    return texts(train=train, validation=held)


def test_clean_data_has_only_infos():
    findings = check_data(clean())
    assert {f.level for f in findings} == {"info"}
    assert findings[0].message == "films (csv), examples: train 10, validation 4"
    shown = render(findings)
    assert shown.endswith("0 errors, 0 warnings")
    assert "10 labels: a (5, 50.0%), b (5, 50.0%)" in shown
    assert "words mean 2.0, median 2, 95% up to 2, longest 2" in shown


def test_splits_and_notes():
    dataset = Dataset("d", {"test": [text(0, "x")]}, notes=["one thing converted"])
    assert found(dataset, "splits", "warning")[0].message.startswith("no train split")
    assert found(dataset, "reading")[0].message == "one thing converted"
    only = texts(train=[text(0, "x"), text(1, "y", "b")])
    assert "holds out a tenth" in found(only, "splits", "info")[1].message


def test_missing_labels():
    some = texts(train=[text(0, "x"), text(1, "y", None), text(2, "z", "b")])
    finding = found(some, "labels", "warning")[0]
    assert finding.message == "train: 1 of 3 examples has no label"
    assert finding.locations == ("train.csv:2",)
    none = texts(train=[text(0, "x", None)])
    assert found(none, "labels", "error")[0].message.startswith("train: no example has a label")
    unscored = texts(train=clean().splits["train"], validation=[text(0, "x", None)])
    assert "validation: no example has" in found(unscored, "labels", "error")[0].message
    spans = tokens(0, "Ann left", "O O", (Span(0, 1, "PER"),))
    related = replace(spans, relations=())
    data = Dataset("d", {"train": [related], "validation": [spans]})
    message = "validation: no sentence has relations (--columns relations=NAME?)"
    assert message in [finding.message for finding in found(data, "labels", "error")]
    assert not found(data, "labels", "warning"), "its spans are given"
    test = texts(train=clean().splits["train"], test=[text(0, "x", None)])
    assert [f.level for f in found(test, "labels") if "test: 1" in f.message] == ["info"]


def test_one_label_is_nothing_to_learn():
    message = found(texts(train=[text(0, "x")]), "labels", "error")[0].message
    assert "the only label of 1 example is 'a'" in message
    tags = Dataset("d", {"train": [tokens(0, "x y", "NN NN")]})
    assert "the only label" in found(tags, "labels", "error")[0].message
    empty = Dataset("d", {"train": [tokens(0, "x y", "O O", ())]})
    assert "no example has a span" in found(empty, "labels", "error")[0].message
    own = texts(train=[text(i, f"x{i}", f"id-{i}") for i in range(20)])
    assert "has a different label" in found(own, "labels", "error")[0].message
    spans = Dataset("d", {"train": [tokens(0, "x y", "B-A O", (Span(0, 1, "A"),))]})
    assert not found(spans, "labels", "error")


def test_labels_that_only_one_split_has():
    dataset = texts(train=[text(0, "x"), text(1, "y", "b")], test=[text(0, "z", "c", split="test")])
    messages = [f.message for f in found(dataset, "labels")]
    (refused,) = found(dataset, "labels", "error")
    assert refused.message.startswith("test: labels that train does not have: 'c' (1): correct")
    assert refused.locations == ("test.csv:1",)
    assert "test: never has a, b, which train has" in messages


def test_numbers_and_several_labels():
    numbers = texts(train=[text(0, "x", 1.0), text(1, "y", 4.5)], test=[text(0, "z", 2.0)])
    messages = [f.message for f in found(numbers, "labels")]
    assert messages == ["train: numbers 1 to 4.5, mean 2.75", "test: numbers 2 to 2, mean 2.00"]
    (classes,) = found(texts(train=[text(0, "x", 1.0), text(1, "y", 0.0)]), "numbers", "warning")
    assert "all labels are whole numbers with a decimal point" in classes.message
    several = texts(train=[text(0, "x", ("a", "b")), text(1, "y", ())])
    assert found(several, "labels")[0].message == "train: 2 labels: a (1, 50.0%), b (1, 50.0%)"


def test_empty_damaged_and_long_texts():
    rows = [text(0, "  "), text(1, "caf\ufffd", "b"), text(2, "w " * 30), text(3, "x", "b", "")]
    dataset = texts(train=rows)
    assert found(dataset, "empty")[0].locations == ("train.csv:1", "train.csv:4")
    assert found(dataset, "characters", "warning")[0].locations == ("train.csv:2",)
    empty = texts(train=[text(i, "", "ab"[i % 2]) for i in range(8)])
    locations = found(empty, "empty")[0].locations
    assert len(locations) == 6 and locations[-1] == "… and 3 more"
    finding = found(dataset, "lengths", "warning", max_length=20)[0]
    assert finding.message.startswith("train: 1 example of more than 20 words")
    words = Dataset("d", {"train": [spanned(0, 9, (0, 1, "X"))]})
    (finding,) = found(words, "lengths", "info", max_length=5)[1:]
    assert finding.message.endswith("1 example of more than 5 words, read in windows")


def test_duplicates_conflicts_and_leaks():
    train = [text(0, "A Film"), text(1, "a  film"), text(2, "a film", "b"), text(3, "x", "b")]
    test = [text(0, "a film", split="test"), text(1, "new", split="test")]
    dataset = texts(train=train, test=test)
    repeated, conflicts = found(dataset, "duplicates")
    assert repeated.message == "train: 2 repeated examples (50.0%): equal texts within the split"
    assert (conflicts.level, conflicts.locations) == ("warning", ("train.csv:1 and train.csv:3",))
    leak = found(dataset, "leak")[0]
    assert leak.message.startswith("test: 1 example (50.0%) also in train; test_without_leaks")
    assert (leak.level, leak.locations) == ("warning", ("test.csv:1 = train.csv:1",))
    pairs = [text(0, "x", pair="y"), text(1, "x", "b", pair="z"), text(2, "y", "b", pair="x")]
    assert not found(texts(train=pairs), "duplicates"), "pairs are repeated only as pairs"


def test_schemes_and_illegal_tags():
    rows = [tokens(0, "a b c", "O I-X B-Z"), tokens(1, "d", "I-Y"), tokens(2, "e f", "B-X I-X")]
    finding = found(Dataset("d", {"train": rows}), "scheme", "warning")[0]
    assert finding.message.startswith("train: tag scheme BIO, 2 illegal tags")
    assert finding.locations[0] == "train.conll:1, word 1 ('b': I-X after O)"
    assert finding.locations[1] == "train.conll:2, word 0 ('d': I-Y after the start)"
    good = Dataset("d", {"train": [tokens(0, "a b", "B-X I-X")]})
    assert "all transitions legal" in found(good, "scheme", "info")[0].message
    assert not found(Dataset("d", {"train": [tokens(0, "a b", "NN VB")]}), "scheme")


def spanned(index, num_words, *spans, split="train"):
    words = " ".join("abcdefghijklmnopqrstuvwxyz"[:num_words])
    return tokens(index, words, spans=tuple(Span(*span) for span in spans), split=split)


def test_widths_of_spans():
    rows = [spanned(i, 3, (0, 1, "X"), (1, 3, "Y")) for i in range(300)]
    rows.append(spanned(300, 9, (0, 9, "X")))
    (train,) = found(Dataset("d", {"train": rows}), "widths")
    message = "train: spans are up to 9 words wide; --max-width 2 covers 99.83% of them"
    assert train.message == message
    rows = [spanned(0, 3, (0, 1, "X")), spanned(1, 3)]
    (one,) = found(Dataset("d", {"train": rows, "test": rows}), "widths")
    assert one.message == "train: spans are up to 1 word wide; --max-width 1 covers all of them"
    assert not found(Dataset("d", {"train": [spanned(0, 3)], "test": rows}), "widths")
    assert not found(Dataset("d", {"train": [tokens(0, "a b", "NN VB")]}), "widths")


def test_nested_spans():
    train = [spanned(0, 9, (0, 5, "X"), (0, 2, "Y"), (3, 4, "X"), (6, 7, "Y"))]
    flat = [spanned(0, 9, (0, 5, "X"), (6, 7, "Y"), split="test")]
    (nested,) = found(Dataset("d", {"train": train, "test": flat}), "nesting")
    assert nested.message == ("train: 2 of 4 spans (50.0%) inside a wider one")
    assert nested.level == "info"


def test_several_labels_and_crossing_spans():
    rows = [spanned(0, 9, (0, 2, "X"), (0, 2, "Y"), (0, 2, "Z")), spanned(1, 9)]
    rows.append(spanned(2, 9, (0, 3, "X"), (2, 5, "Y")))
    dataset = Dataset("d", {"train": rows, "test": rows[:1]})
    labels = [f for f in found(dataset, "labels") if "several" in f.message]
    assert [f.level for f in labels] == ["warning", "info"]
    assert labels[0].message == "train: 1 span with several labels: --multi-label keeps all"
    assert labels[0].locations == ("train.conll:1, words 0 to 2 (X, Y, Z)",)
    (crossing,) = found(dataset, "nesting")
    assert crossing.message == "train: 1 pair of crossing spans: --decoding overlapping keeps both"
    assert crossing.locations == ("train.conll:3, words 0 to 3 (X) and 2 to 5 (Y)",)


def test_words_through_a_tokenizer():
    def subwords(sentences):
        assert all(isinstance(words, list) for words in sentences)
        return [[0 if word == "\u200b" else len(word) for word in words] for words in sentences]

    rows = [tokens(0, "ab \u200b c", "X Y X"), tokens(1, "a" * 20 + " b", "X Y")]
    data, options = Dataset("d", {"train": rows}), {"count_subwords": subwords, "max_length": 10}
    findings = found(data, "subwords", **options)
    assert findings[0].locations == ("train.conll:2 (the longest)",)
    assert "subwords mean 12.0, median 12, 95% up to 21, longest 21" in findings[0].message
    assert findings[1].locations == ("train.conll:1, word 1 ('\\u200b')",)
    windows = found(data, "lengths", **options)
    assert windows[-1].message == "train: 1 example of more than 10 tokens: read in windows"


@pytest.mark.parametrize(
    ("pair", "max_length", "special", "count"),
    [
        (None, 6, (2, 3), 0),
        (None, 5, (2, 3), 1),
        ("bb", 9, (2, 3), 0),
        ("bb", 8, (2, 3), 1),
        ("bb", 9, (2, 4), 1),
    ],
)
def test_texts_through_a_tokenizer(pair, max_length, special, count):
    def subwords(batch):
        assert all(isinstance(item, str) for item in batch)
        return [len(item) for item in batch]

    rows = [text(0, "aaaa", pair=pair), text(1, "a", "b", pair=pair and "c")]
    options = {"count_subwords": subwords, "max_length": max_length, "num_special": special}
    findings = found(texts(train=rows), "lengths", "warning", **options)
    assert len(findings) == count
    assert all("will be cut" in finding.message for finding in findings)


def test_errors_come_last_and_are_counted():
    lines = render(check_data(texts(train=[text(0, ""), text(1, "x")]))).splitlines()
    assert lines[-2].startswith("error    labels")
    assert lines[-1] == "1 error, 1 warning"


def test_on_files(tmp_path):
    (tmp_path / "train.conll").write_text("Ann B-PER\nran O\n\nAnn B-PER\nran O\n")
    (tmp_path / "test.conll").write_text("Lee B-PER\n")
    shown = render(check_data(read_tokens(str(tmp_path))))
    assert "train: 2 spans: PER (2, 100.0%)" in shown
    assert f"at {tmp_path}/train.conll:4" in shown


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["Pos", "pos", "neg"], ["differ only in case", "'Pos' (1), 'pos' (1)"]),
        (["caf\u00e9", "cafe\u0301", "x"], ["invisible", "'cafe\\u0301' (1), 'caf\\xe9' (1)"]),
        (["a\u200b", "a", "b"], ["'a' (1), 'a\\u200b' (1)"]),
        (["a", "b", "N/A"], ["label 'N/A' (1 time) is read as a class"]),
        (["a", "b", "null"], ["label 'null'"]),
        (["a", "b; c", "b"], ["labels that hold other labels: 'b; c': if", "write a list"]),
    ],
)
def test_labels_that_are_probably_not_meant(labels, words):
    rows = [text(i, f"text {i}", label) for i, label in enumerate(labels)]
    (finding,) = found(texts(train=rows), "labels", "warning")
    assert all(word in finding.message for word in words), finding.message


def test_pairs_and_single_texts():
    one, two = text(0, "a"), TextExample(0, "a", "b", "x", where="test.csv:1")
    data = Dataset("d", {"train": [one, text(1, "c", "b")], "test": [two]})
    (finding,) = found(data, "pairs", "error")
    assert "1 of 1 example unlike train, which has single texts" in finding.message
    both = Dataset("d", {"train": [one, two], "test": [two]})
    assert not found(both, "pairs")
