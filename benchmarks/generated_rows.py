"""Rows of any number for measurements: `python -m benchmarks.generated_rows TASK ROWS > FILE`.

Each text is 12 to 24 words of the example data, drawn at random; of a pair, 6 to 12 words. Labels
are random. In `tag`, spans of one or two words are tagged. The same command writes the same rows.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples/data"
LABELS = ("negative", "neutral", "positive")
RELATIONS = ("contradiction", "neutral", "entailment")


def words() -> list[str]:
    """The different words of the example texts, in alphabetical order."""
    texts = [path.read_text() for path in sorted(EXAMPLES.rglob("*.jsonl"))]
    return sorted({word.lower() for text in texts for word in re.findall(r"[A-Za-z]{2,}", text)})


def _classify_row(forms: list[str], draw: random.Random) -> str:
    text = " ".join(draw.choices(forms, k=draw.randint(12, 24)))
    return f'{{"text": "{text}", "label": "{draw.choice(LABELS)}"}}'


def _nli_row(forms: list[str], draw: random.Random) -> str:
    first, second = (" ".join(draw.choices(forms, k=draw.randint(6, 12))) for _ in range(2))
    label = draw.choice(RELATIONS)
    return f'{{"text": "{first}", "text_pair": "{second}", "label": "{label}"}}'


def _tag_row(forms: list[str], draw: random.Random) -> str:
    tokens = draw.choices(forms, k=draw.randint(12, 24))
    tags = ["O"] * len(tokens)
    for start in range(0, len(tokens) - 2, 6):
        tags[start] = "B-NAME"
        if draw.random() < 0.5:
            tags[start + 1] = "I-NAME"
    return json.dumps({"tokens": tokens, "tags": tags})


def _text_row(forms: list[str], draw: random.Random) -> str:
    return " ".join(draw.choices(forms, k=draw.randint(12, 24))) + "\n"


ROWS: dict[str, Callable[[list[str], random.Random], str]] = {
    "classify": _classify_row,
    "nli": _nli_row,
    "tag": _tag_row,
    "pretrain": _text_row,
}


def main(task: str, rows: str) -> None:
    """Write rows of a task to standard output."""
    forms, draw, row = words(), random.Random(0), ROWS[task]
    for _ in range(int(rows)):
        sys.stdout.write(row(forms, draw) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
