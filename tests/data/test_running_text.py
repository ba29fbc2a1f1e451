"""Sampling of languages and sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.data.running_text import sample_lines, text_sources
from finetune.data.splitting import sampling_probabilities
from finetune.types import UserError


def test_sampling_probabilities_of_the_textbook():
    assert sampling_probabilities([1000, 10], 0.3) == pytest.approx([0.799, 0.201], abs=5e-4)
    assert sampling_probabilities([1000, 10], 1) == pytest.approx([0.990, 0.010], abs=5e-4)
    assert sampling_probabilities([7, 1, 2], 0) == pytest.approx([1 / 3] * 3)
    for sizes, alpha in (([1, 2], 1.5), ([1, 2], -0.1), ([1, 0], 0.3)):
        with pytest.raises(UserError):
            sampling_probabilities(sizes, alpha)


def lines(spec: object, **options: str) -> list[tuple[str, list[str]]]:
    return [(source.name, list(source.lines())) for source in text_sources(str(spec), **options)]


def test_lines_of_every_kind_of_file(tmp_path: Path):
    files = {
        "a.txt": "One.\n\nTwo, with\ttabs.\n",
        "b.jsonl": '{"text": "Three.\\nFour."}\n{"text": ""}\n',
        "c.jsonl": '{"tokens": ["Ana", "slept"], "tags": ["B-PER", "O"]}\n',
        "d.conll": "Paris B-LOC\nsleeps O\n\nNow O\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "notes.md").write_text("not read", encoding="utf-8")
    expected = {
        "a.txt": ["One.", "Two, with\ttabs."],
        "b.jsonl": ["Three.", "Four."],
        "c.jsonl": ["Ana slept"],
        "d.conll": ["Paris sleeps", "Now"],
    }
    for name, texts in expected.items():
        assert lines(tmp_path / name) == [(name[0], texts)]
    ((_, all_lines),) = lines(tmp_path)
    assert all_lines == [text for texts in expected.values() for text in texts]
    named = lines(f"en={tmp_path / 'a.txt'}, am={tmp_path / 'd.conll'}")
    assert named == [("en", expected["a.txt"]), ("am", expected["d.conll"])]
    (tmp_path / "a.txt").write_bytes("naïve".encode("cp1252"))
    assert lines(tmp_path / "a.txt", encoding="cp1252") == [("a", ["naïve"])]


@pytest.mark.parametrize("spec", ["", "absent.txt", "a.txt,b.txt", "en=none.txt", "en=", "=a.txt"])
def test_wrong_sources(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("text", encoding="utf-8")
    with pytest.raises(UserError) as error:
        text_sources(spec)
    assert "--data" not in str(error.value)
    with pytest.raises(UserError, match="twice"):
        text_sources("en=a.txt,en=a.txt")


def test_samples_are_uniform_and_in_order() -> None:
    lines = [f"{number:02}" for number in range(50)]
    counts = dict.fromkeys(lines, 0)
    for seed in range(400):
        chosen = sample_lines(iter(lines), 10, seed)
        assert chosen == sorted(set(chosen)) and len(chosen) == 10
        for line in chosen:
            counts[line] += 1
    assert min(counts.values()) > 45 and max(counts.values()) < 120  # 80 ± 8
    assert sample_lines(lines[:4], 10) == lines[:4]
