"""Small data for every task and its settings, and runs that know them by heart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from finetune.config.tasks import CONFIGS, TrainConfig
from finetune.data import Dataset
from finetune.tasks import load_task
from finetune.training.trainer import fit
from finetune.types import IGNORED, Batch, WindowOutput
from tests.small_data import read_jsonl, write_jsonl
from tests.tiny import save_tiny_checkpoint

# Eight examples each; the last word or name says the label.
_GOOD, _BAD = ("lovely", "bright", "warm", "great"), ("dull", "broken", "cold", "boring")
_SENTIMENT = [
    (f"the room was {word}", name)
    for name, words in (("pos", _GOOD), ("neg", _BAD))
    for word in words
]
_PAIRED = [
    ("he is in paris", f"he is in {place}")
    for place in ("paris", "oslo", "berlin", "rome", "new york", "paris now", "madrid", "quito")
]
_ENTITIES = [
    ("Anna saw the dog", "B-PER O O O"),
    ("John Smith works in New York", "B-PER I-PER O O B-LOC I-LOC"),
    ("the bank of England", "O O O B-ORG"),
    ("Peter Blackburn lives in Brussels", "B-PER I-PER O O B-LOC"),
    ("a guitar", "O O"),
    ("Geneva", "B-LOC"),
    ("IBM and General Motors raised rates", "B-ORG O B-ORG I-ORG O O"),
    ("the European Union signed it , Anna", "O B-ORG I-ORG O O O B-PER"),
]
_POS = [
    "PRON VERB DET NOUN",
    "PROPN PROPN VERB ADP ADJ PROPN",
    "DET NOUN ADP PROPN",
    "PROPN PROPN VERB ADP PROPN",
    "DET NOUN",
    "PROPN",
    "PROPN CONJ ADJ NOUN VERB NOUN",
    "DET ADJ NOUN VERB PRON PUNCT PROPN",
]


def texts(labels: list[Any], pairs: bool = False) -> list[dict]:
    if pairs:
        return [
            {"text": a, "text_pair": b, "label": label}
            for (a, b), label in zip(_PAIRED, labels, strict=True)
        ]
    return [
        {"text": text, "label": label} for (text, _), label in zip(_SENTIMENT, labels, strict=True)
    ]


def tagged(tags: list[str]) -> list[dict]:
    return [
        {"tokens": words.split(), "tags": own.split()}
        for (words, _), own in zip(_ENTITIES, tags, strict=True)
    ]


@dataclass(frozen=True)
class Case:
    task: str
    rows: list[dict]
    settings: dict[str, Any]


SINGLE = texts([name for _, name in _SENTIMENT])
WAYS = ["entailment", "neutral", "contradiction"]
BIO = tagged([tags for _, tags in _ENTITIES])
_SPANS = [
    {
        "tokens": words.split(),
        "spans": [{"start": s, "end": e, "label": label} for s, e, label in spans],
    }
    for (words, _), spans in zip(
        _ENTITIES,
        [
            [(0, 1, "PER")],
            [(0, 2, "PER"), (4, 6, "LOC")],
            [(1, 4, "ORG"), (3, 4, "LOC")],
            [(0, 2, "PER"), (4, 5, "LOC")],
            [],
            [(0, 1, "LOC")],
            [(0, 1, "ORG"), (2, 4, "ORG")],
            [(0, 3, "ORG"), (1, 2, "LOC"), (6, 7, "PER")],
        ],
        strict=True,
    )
]
_RELATIONS = [
    {**row, "relations": [{"subject": s, "object": o, "label": label} for s, o, label in relations]}
    for row, relations in zip(
        [_SPANS[number] for number in (1, 1, 2, 2, 3, 6, 7, 7)],
        [
            [(0, 1, "in")],
            [(0, 1, "in")],
            [(1, 0, "names")],
            [(1, 0, "names")],
            [],
            [(0, 1, "owns"), (1, 0, "owns")],
            [(2, 1, "in"), (2, 0, "for")],
            [(2, 1, "in"), (2, 0, "for")],
        ],
        strict=True,
    )
]
_QUESTIONS = [
    {"question": question, "context": context, "answers": answers}
    for context, pairs in (
        ("Anna saw the dog in the garden", [("who saw it", "Anna"), ("where", "in the garden")]),
        ("John Smith works in New York", [("who works", "John Smith"), ("where", "New York")]),
        ("the bank of England raised rates", [("who raised it", "the bank of England")]),
        ("Peter lives in Brussels", [("where", "Brussels"), ("who lives", "Peter")]),
        ("IBM and General Motors", [("who signed it", None)]),
    )
    for question, answer in pairs
    for answers in [
        {"text": [], "answer_start": []}
        if answer is None
        else {"text": [answer] * 2, "answer_start": [context.index(answer)] * 2}
    ]
]
_PLACES = ["paris", "oslo", "rome", "madrid"]
_CHOICES = [
    {
        "context": f"he is in {_PLACES[n % 4]}" if n != 5 else "",
        "question": "he is in" if n != 6 else "we saw _ now",
        "choices": (_PLACES[n % 4 :] + _PLACES[: n % 4])[: 2 + n % 3][:: -1 if n % 2 else 1],
        "label": (1 + n % 3 if n % 2 else 0),
    }
    for n in range(8)
]
"""Questions of two to four choices: the right one is in the context, if there is one."""
CASES = {
    "single": Case("classify", SINGLE, {}),
    "windows": Case(
        "classify",
        [{**row, "text": "the dog saw it and " * 2 + row["text"]} for row in SINGLE],
        {"long_text": "window", "max_length": 16},
    ),
    "multi": Case(
        "classify",
        texts(
            [*map(str.split, ("joy", "joy hope", "", "hope", "fear", "fear hope", "joy fear", ""))]
        ),
        {},
    ),
    "regression": Case("classify", texts([0.5, 1.5, 2.0, -1.0, 0.0, 3.25, -2.5, 1.0]), {}),
    "pair": Case("classify", texts([*"abababab"], pairs=True), {}),
    "nli 3": Case("nli", texts([WAYS[i % 3] for i in range(8)], pairs=True), {}),
    "nli 2": Case("nli", texts(["entailment", "not_entailment"] * 4, pairs=True), {}),
    "bi": Case("nli", texts(["entailment", "neutral"] * 4, pairs=True), {"pair_encoder": "bi"}),
    "poly": Case(
        "classify",
        texts([0.5, 1.5, 2.0, -1.0, 0.0, 3.25, -2.5, 1.0], pairs=True),
        {"pair_encoder": "poly"},
    ),
    "choice": Case("choice", _CHOICES, {}),
    "choice calibrated": Case("choice", _CHOICES, {"calibrate": "temperature", "max_length": 16}),
    "bio": Case("tag", BIO, {"decoding": "greedy"}),
    "bio constrained": Case("tag", BIO, {"decoding": "constrained"}),
    "bio all mean": Case("tag", BIO, {"label_subwords": "all"}),
    "io": Case("tag", BIO, {"scheme": "IO"}),
    "bioes": Case("tag", BIO, {"scheme": "BIOES"}),
    "bioes all max constrained": Case("tag", BIO, {"scheme": "BIOES", "label_subwords": "all"}),
    "bio windows": Case("tag", BIO, {"max_length": 12, "decoding": "constrained"}),
    "bio crf": Case("tag", BIO, {"crf": True}),
    "bioes crf windows": Case("tag", BIO, {"scheme": "BIOES", "crf": True, "max_length": 12}),
    "ner": Case("ner", _SPANS, {}),
    "ner windows": Case("ner", _SPANS, {"max_length": 12, "decoding": "overlapping"}),
    "ner attention": Case("ner", _SPANS, {"representation": "attention"}),
    "ner several": Case("ner", _SPANS, {"multi_label": True}),
    "ner calibrated": Case("ner", _SPANS, {"representation": "ffn", "calibrate": "one"}),
    "relations": Case("relations", _RELATIONS, {"pairs": "all"}),
    "qa": Case("qa", _QUESTIONS, {}),
    "qa windows": Case("qa", _QUESTIONS, {"max_length": 14, "overlap": 4}),
    "pos": Case("tag", tagged(_POS), {}),
    "pos crf": Case("tag", tagged(_POS), {"crf": True}),
    "pos all mean": Case("tag", tagged(_POS), {"label_subwords": "all"}),
}
SLOW = {
    *("nli 2", "choice", "io", "bio all mean", "bio windows", "bioes", "ner", "ner windows", "bio"),
    *("pos crf", "pair", "bioes all max constrained", "bio crf", "ner calibrated", "qa windows"),
    "pos all mean",
}
"""Cases whose settings also occur in other cases."""
TAGGING = [name for name, case in CASES.items() if case.task == "tag"]
FAMILY = {
    "pair": "roberta",
    "choice": "roberta",
    "bio constrained": "roberta",
    "pos all mean": "roberta",
}


def outputs_of(batch: Batch, values: list[Any]) -> dict[int, list[WindowOutput]]:
    """The values of the windows of each example in a batch."""
    outputs: dict[int, list[WindowOutput]] = {example: [] for example in batch.example}
    for example, window, value in zip(batch.example, batch.window, values, strict=True):
        outputs[example].append(WindowOutput(window, value))
    return outputs


def span_logits(task: Any, target: torch.Tensor) -> torch.Tensor:
    """Logits [S, C] of a model that knows the targets of candidates."""
    if target.ndim == 2:
        return torch.where(target == 1, 12.0, -12.0)
    known = target != IGNORED
    return torch.where(known, 12.0, 0.0)[:, None] * torch.nn.functional.one_hot(
        target * known, len(task.state.labels) + 1
    )


@dataclass(frozen=True)
class Run:
    """One case, trained on eight examples until it knows them by heart."""

    task: Any
    data: Dataset
    head: Any
    config: TrainConfig
    folder: Path
    losses: list[float]
    metrics: dict[str, dict[str, float]]


class Runs:
    """Trains each case once, when a test first asks for it."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.done: dict[str, Run] = {}
        for family in ("bert", "roberta"):
            save_tiny_checkpoint(workdir / family, family, dropout=0.0, num_hidden_layers=1)

    def config(self, name: str, **changes: Any) -> TrainConfig:
        case = CASES[name]
        data = self.workdir / "data" / name
        for split in ("train", "validation"):
            write_jsonl(data / f"{split}.jsonl", case.rows)
        steps, lr = (40, 5e-3) if case.task == "ner" else (24, 1e-2)
        settings = {
            "model": str(self.workdir / FAMILY.get(name, "bert")),
            "data": str(data),
            "out": str(self.workdir / "runs" / name),
            "steps": steps,
            "eval_every": steps,
            "batch_size": 8,
            "lr": lr,
            "precision": "fp32",
            "weight_decay": 0.0,
            "max_length": 40,
            **case.settings,
            **changes,
        }
        return CONFIGS[case.task](**settings)

    def task(self, name: str, **changes: Any) -> tuple[Any, Dataset]:
        return load_task(self.config(name, **changes), CASES[name].task)

    def run(self, name: str) -> Run:
        if name not in self.done:
            torch.manual_seed(5)
            config = self.config(name)
            task, dataset = load_task(config, CASES[name].task)
            head = task.model()
            result = fit(task, dataset, config, model=head)
            log = read_jsonl(result.folder / "log.jsonl")
            losses = [line["loss"] for line in log if "loss" in line]
            folder = result.folder / "best"
            self.done[name] = Run(
                result.task, dataset, head, config, folder, losses, result.metrics
            )
        return self.done[name]
