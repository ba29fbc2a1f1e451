"""What `convert` refuses, each in one line with the place in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.command import run
from tests.small_data import write_jsonl

ROWS: dict[str, list[dict[str, Any]]] = {
    "labels": [{"id": n, "text": f"t{n}", "label": label} for n, label in enumerate("xy")],
    "numbers": [{"id": n, "text": f"t{n}", "label": n / 2} for n in range(2)],
    "spans": [{"id": 0, "text": "t0", "spans": [[0, 1, "x y"]]}],
    "questions": [{"title": "t0", "context": "t1", "question": "t2", "answers": []}],
    "answers": [{"id": 0, "answer": "", "no_answer_score": 0.5, "text": "t0", "text_pair": "t1"}],
}
REFUSED = {
    "convert labels.jsonl --to conll --out o.conll": "--to conll: the data have texts with labels",
    "convert labels.jsonl --to jsonl --out labels.jsonl": "would overwrite the input",
    "convert labels.jsonl --to doccano --out o.json": "o.json",
    "convert spans.jsonl --to conll --out o.conll": "a label with white space, 'x y'",
    "convert questions.jsonl --out o.jsonl": "it has questions on contexts",
    "convert answers.jsonl --to label-studio --out o.json": "it has questions on contexts",
    "convert numbers.jsonl --to doccano --out o.jsonl": "numbers as labels",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_refused(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rows in ROWS.items():
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    before = sorted(tmp_path.iterdir())
    done = run(*typed.split())
    assert done.code == 2 and REFUSED[typed] in done.err.splitlines()[-1], done.err
    assert done.err.splitlines()[-1].startswith("error: ")
    assert sorted(tmp_path.iterdir()) == before
