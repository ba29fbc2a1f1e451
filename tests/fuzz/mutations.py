"""Valid inputs of every format, and strategies that damage them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("FINETUNE_FUZZ_EXAMPLES", "40"))
"""Number of damaged contents of each test."""


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


_SPAN = {"start": 0, "end": 1, "label": "PER"}
_WORDS = {"tokens": ["Ana", "saw", "Oslo"], "document": "d", "id": 3}
_PREDICTED = {
    "id": 0,
    "words": ["Ana", "saw"],
    "tags": ["B-PER", "O"],
    "scores": [0.9, 0.8],
    "spans": [{**_SPAN, "score": 0.9}],
    "gold": {"tags": ["O", "O"], "spans": []},
}
_LABELED = {"start": 0, "end": 3, "text": "Ana", "labels": ["PER"]}
_STUDIO = {
    "id": 1,
    "data": {"text": "Ana saw"},
    "annotations": [{"completed_by": 1, "result": [{"value": _LABELED, "type": "labels"}]}],
}
SEEDS: dict[str, bytes] = {
    "texts.jsonl": lines(
        {"text": "Fine film", "label": "pos", "id": 1},
        {"text": "Dull é", "label": "neg"},
        {"text": "A", "text_pair": "B", "label": "pos"},
    ),
    "lists.jsonl": lines(
        {"text": "Fine", "label": ["a", "b"], "scores": {"a": 0.5}}, {"text": "x", "label": []}
    ),
    "questions.jsonl": lines(
        {
            "question": "Who?",
            "context": "Ana saw Oslo.",
            "answers": {"text": ["Ana"], "answer_start": [0]},
        },
        {
            "question": "Why?",
            "context": "Ana saw Oslo.",
            "answers": {"text": [], "answer_start": []},
        },
    ),
    "choices.jsonl": lines(
        {"context": "Ana saw Oslo.", "question": "Who?", "choices": ["Ana", "Ben"], "label": 0},
        {"article": "A", "question": "B _ .", "options": ["x", "y", "z"], "answer": "C"},
    ),
    "numbers.csv": b'text,text_pair,label\nA,B,0.5\n"C, d",E,1.5\n',
    "texts.tsv": b"text\tlabel\nFine\tpos\nDull\tneg\n",
    "plain.txt": "Fine film.\n\nÄnother line\u2028x\n".encode(),
    "tags.jsonl": lines({**_WORDS, "tags": ["B-PER", "O", "B-LOC"]}, {**_WORDS, "tags": ["O"] * 3}),
    "spans.jsonl": lines(
        {
            **_WORDS,
            "spans": [_SPAN, {"start": 2, "end": 3, "label": "LOC"}],
            "relations": [{"subject": 0, "object": 1, "label": "saw"}],
        },
        {"text": "Ana saw Oslo", "entities": [[0, 3, "PER"]]},
    ),
    "doccano.jsonl": lines({"text": "Ana 😀 Oslo", "label": [[0, 3, "PER"]], "Comments": []}),
    "studio.json": json.dumps([_STUDIO, _STUDIO]).encode(),
    "prodigy.jsonl": lines(
        {
            "text": "Ana",
            "tokens": [{"text": "Ana", "start": 0, "end": 3, "id": 0}],
            "spans": [{**_SPAN, "end": 3, "token_start": 0, "token_end": 0}],
            "answer": "accept",
            "_annotator_id": "x",
        },
        {
            "text": "a",
            "options": [{"id": "p"}],
            "accept": ["p"],
            "answer": "ignore",
            "config": {"choice_style": "single"},
        },
    ),
    "words.conll": b"-DOCSTART- -X- -X- O\n\nAna NNP I-NP I-PER\nsaw VBD I-VP O\n\n"
    b"Oslo NNP B-NP B-LOC\n",
    "words.conllu": b"# sent_id = 1\n1\tAna\tAna\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n"
    b"2\tsaw\tsee\tVERB\tVBD\t_\t0\troot\t_\t_\n",
    "nested.conll": b"1\tAna\tB-PER\tO\n2\tsaw\tO\tB-X\n",
    "senses.jsonl": lines(
        {
            "tokens": ["a", "bank"],
            "targets": [
                {"start": 1, "end": 2, "lemma": "bank", "pos": "NOUN", "senses": ["bank%1:14:00::"]}
            ],
        }
    ),
    "predicted.jsonl": lines(_PREDICTED, {**_PREDICTED, "id": 1}),
    "labels.jsonl": lines(
        {
            "id": 0,
            "label": "pos",
            "score": 0.9,
            "scores": {"pos": 0.9, "neg": 0.1},
            "gold": "neg",
            "text": "Fine",
            "where": "a:1",
        },
        {"id": 1, "label": "neg", "score": 0.9, "gold": "neg"},
    ),
    "suspects.jsonl": lines(
        {
            "where": "a:1",
            "text": "Fine",
            "given": "pos",
            "suggested": "neg",
            "confidence": 0.9,
            "given_confidence": 0.1,
            "kind": "label",
            "worst": True,
        }
    ),
    "sentences.jsonl": lines(
        {
            "id": 1,
            "text": "Ana saw",
            "words": ["Ana", "saw"],
            "offsets": [[0, 3], [4, 7]],
            "spans": [{**_SPAN, "score": 0.9}],
            "uncertainty": 0.4,
            "gold": {"spans": [], "unreachable": [[0, 2, "PER"]]},
        }
    ),
}

# Recorded outputs draw by the order of contents, values and pieces: new ones go to the ends.
_NUMBERS = [0, -1, 3, 10**30, 0.5, -0.0, float("nan"), float("inf")]
_TEXTS = ["", " ", "\x00", "\u2028", "a" * 300, "B-PER", "NaN"]
_LISTS: list[Any] = [[], {}, [[]], [None], [0, 1, "PER"], ["a", 1], {"a": 1}]
_SPANS = [{"start": 1, "end": 0, "label": "X"}, {"start": None, "end": "1", "label": 3}]
VALUES: list[Any] = [None, True, *_NUMBERS, *_TEXTS, *_LISTS, *_SPANS]
VALUES += [[[0, 3]], "\ud800", "[MASK]", 2**53]
PIECES = [
    *b"null -1 1e999 NaN {} [] \" '".split(),
    *(b"\x00", b"\xff", b"\xef\xbb\xbf", b"\t", b"\n", b"\r\n", b",", b";", b"{", b"]"),
    *(b"\\u0000", b"\\ud800", b"9" * 40, b"<", b"&#0;", b"-DOCSTART-", b"B-", b"\xe2\x80\xa8"),
    *(b"\x1f\x8b", b"\xff\xfe", b"T1\t", b"<!DOCTYPE x>"),
]


@st.composite
def damaged(draw: Any, content: bytes) -> bytes:
    """Return a content with values of its JSON or some of its bytes changed."""
    if draw(st.booleans()):
        content = _other_values(draw, content)
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 20)))
        edit = draw(st.sampled_from(["cut", "insert", "repeat", "replace", "end"]))
        part = content[start:end]
        new = {
            "cut": b"",
            "insert": draw(st.sampled_from(PIECES)) + part,
            "repeat": part * 2,
            "replace": draw(st.binary(max_size=4)),
            "end": b"",
        }[edit]
        content = content[:start] + new + (b"" if edit == "end" else content[end:])
    return content


def _other_values(draw: Any, content: bytes) -> bytes:
    """Return JSON with one value changed or left out in each of its documents."""
    try:
        documents = [json.loads(line) for line in content.decode().splitlines() if line.strip()]
    except ValueError:
        return content
    for index, document in enumerate(documents):
        documents[index] = _changed(draw, document)
    return "\n".join(json.dumps(each) for each in documents).encode()


def _changed(draw: Any, value: Any) -> Any:
    inside = list(value.items()) if isinstance(value, dict) else []
    inside = list(enumerate(value)) if isinstance(value, list) else inside
    if not inside or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(VALUES))
    key, old = draw(st.sampled_from(inside))
    changed = dict(value) if isinstance(value, dict) else list(value)
    if draw(st.integers(0, 5)) == 0:
        del changed[key]
    else:
        changed[key] = _changed(draw, old)
    return changed


def fuzz(content: bytes, check: Callable[[bytes], None]) -> None:
    """Call ``check`` with damaged contents."""

    @seed(0)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(damaged(content))
    def run(changed: bytes) -> None:
        check(changed)

    run()
