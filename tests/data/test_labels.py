"""One spelling of labels that differ only in case."""

from __future__ import annotations

from finetune.data import check_data, read_text

NAMES = ["Pos", "pos", "pos", "POS ", "neg", "Neg", "neg", "neutral"]


def texts(names: list[str]) -> list[dict[str, object]]:
    return [{"text": f"text {i}", "label": name} for i, name in enumerate(names)]


def labels(data) -> list:
    return [row.label for row in data.splits["train"]]


def test_other_spellings_of_a_label_are_a_warning() -> None:
    found = [
        each
        for each in check_data(read_text(texts(NAMES)), max_length=None)
        if "differ only in case" in each.message
    ]
    (warning,) = found
    assert "'Neg' (1), 'neg' (2); 'POS' (1), 'Pos' (1), 'pos' (2)" in warning.message
    assert "spell them alike" in warning.message


def test_lists_of_one_number_are_numbers_and_both_are_noted() -> None:
    rows = [{"text": "a", "label": ["-1"]}, {"text": "b", "label": ["1"]}]
    notes = read_text(rows).notes
    assert any("a list of one" in note and "-1 is read as a class" in note for note in notes)
