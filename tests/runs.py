"""Run folders as training leaves them, without training: what a report reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finetune.config.tasks import CONFIGS, settings
from finetune.evaluation.metrics import score
from finetune.evaluation.predictions import GoldSource, align_runs
from finetune.evaluation.training_vocabulary import TrainingVocabulary
from finetune.tasks import task_class
from finetune.types import Example
from tests.small_data import write_jsonl


def write_run(
    folder: Path,
    task: str,
    data: dict[str, list[dict]],
    answers: list[dict],
    steps: int = 20,
    **config,
) -> Path:
    """A finished run of ``task`` on ``data`` (rows by split) that gave ``answers`` on test."""
    source = folder.parent / f"data-of-{folder.name}"
    for split, rows in data.items():
        write_jsonl(source / f"{split}.jsonl", rows)
    made = CONFIGS[task](model="none", data=str(source), out=str(folder), **config)
    read = task_class(task).prepare(made, task_class(task).read(made, made.data))
    folder.mkdir(parents=True)
    content = {"task": task, **settings(made), "fingerprint": read.fingerprint}
    (folder / "config.json").write_text(json.dumps(content), "utf-8")
    write_predictions(folder / "predictions.test.jsonl", answers, read.splits["test"])
    if task in ("tag", "ner"):
        TrainingVocabulary.of(read.splits["train"]).save(folder)
    write_jsonl(
        folder / "log.jsonl", [line for step in range(1, steps + 1) for line in _lines(step, steps)]
    )
    scores = score_predictions(folder / "predictions.test.jsonl", str(source / "test.jsonl"))
    (folder / "metrics.json").write_text(json.dumps({"test": scores}), "utf-8")
    about = {"command": f"finetune {task} --out x", "versions": {"torch": "0"}, "device": "cpu"}
    (folder / "environment.json").write_text(json.dumps(about), "utf-8")
    return folder


def write_predictions(path: Path, answers: list[dict], examples: Sequence[Example]) -> Path:
    """A prediction file as a run writes it, with gold."""
    pairs = zip(answers, examples, strict=True)
    return write_jsonl(path, [answer | example.to_dict() for answer, example in pairs])


def score_predictions(predictions: Path, gold: str, **settings: Any) -> dict[str, float]:
    """The scores of a prediction file, as `finetune score` prints them."""
    return score(align_runs([predictions], GoldSource(gold=gold, **settings))[0])


def _lines(step: int, steps: int) -> list[dict]:
    loss = {
        "step": step,
        "loss": 1 / step,
        "lr": 1e-4 * (1 - step / steps),
        "gradient_norm": 1.0,
        "examples_per_second": 50.0 + step % 3,
    }
    score = {"step": step, "split": "validation", "accuracy": step / steps, "macro_f1": 0.5}
    return [loss, score] if step % 5 == 0 else [loss]


SENTENCES = [
    # words, gold tags, answered tags, probability
    ("Ana saw New York .", "B-PER O B-LOC I-LOC O", "B-PER O B-LOC I-LOC O", 0.9),
    ("Oslo is cold", "B-LOC O O", "B-PER O O", 0.95),
    ("He met Carla Silva", "O O B-PER I-PER", "O O B-PER O", 0.6),
    ("Nothing here", "O O", "O O", 0.99),
    ("Quito and Lagos", "B-LOC O B-LOC", "B-LOC O O", 0.7),
    ("the bank", "O O", "O B-ORG", 0.8),
    ("<script>alert('x')</script> \"of\" Bruno", "O O B-PER", "O O O", 0.5),
    ("مرحبا يا علي", "O O B-PER", "O O O", 0.55),
    ("東京 は 大きい", "B-LOC O O", "O O O", 0.65),
]
"""Seven of nine are wrong in something, in the forms that must display."""


def tag_run(folder: Path, sentences: list[tuple] = SENTENCES) -> Path:
    """A run that tags entities."""
    rows = [{"tokens": words.split(), "tags": tags.split()} for words, tags, *_ in sentences]
    answers = [
        {
            "id": number,
            "words": words.split(),
            "tags": answer.split(),
            "scores": [sure] * len(words.split()),
        }
        for number, (words, _, answer, sure) in enumerate(sentences)
    ]
    return write_run(folder, "tag", {"train": rows, "validation": rows, "test": rows}, answers)


LABELS = [
    # text, gold, answer, probability of the answer
    ("a lovely film", "good", "good", 0.9),
    ("dull & cold", "bad", "bad", 0.8),
    ('<b onclick="x">', "bad", "good", 0.97),
    ("فيلم جميل", "good", "bad", 0.6),
    ("very warm", "good", "good", 0.7),
    ("broken", "bad", "bad", 0.75),
    ("bright", "good", "bad", 0.55),
    ("dreadful", "bad", "bad", 0.95),
]


def label_run(folder: Path, rows: list[tuple] = LABELS, **config: Any) -> Path:
    """A run that labels texts."""
    data = [{"text": text, "label": gold} for text, gold, *_ in rows]
    answers = []
    for number, (_, _, answer, sure) in enumerate(rows):
        other = {"good": "bad", "bad": "good"}[answer]
        scores = {answer: sure, other: round(1 - sure, 6)}
        answers.append({"id": number, "label": answer, "score": sure, "scores": scores})
    splits = dict.fromkeys(("train", "validation", "test"), data)
    return write_run(folder, "classify", splits, answers, **config)


def spans_run(folder: Path) -> Path:
    """Nested and crossing spans."""
    words = "The University of New York City".split()
    gold = [(0, 6, "ORG"), (3, 6, "LOC")]
    answer = [(0, 6, "ORG"), (3, 5, "LOC"), (4, 6, "PER")]
    as_rows = [
        [{"start": s, "end": e, "label": x, "score": 0.8} for s, e, x in side]
        for side in (gold, answer)
    ]
    rows = [{"tokens": words, "spans": as_rows[0]}] * 2
    answers = [{"id": n, "words": words, "spans": as_rows[n]} for n in range(2)]
    return write_run(folder, "ner", {"train": rows, "test": rows}, answers)
