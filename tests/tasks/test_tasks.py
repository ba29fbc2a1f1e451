"""The contract that every task keeps: learn, answer its own gold, lose no word, and load again."""

from __future__ import annotations

import json
import random
import re
import shutil
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    pipeline,
)

from finetune.config.tasks import CONFIGS, ClassifyConfig, TrainConfig
from finetune.data import Dataset, check_data, read_text, read_tokens
from finetune.inference import loop as prediction
from finetune.inference.loop import predict
from finetune.models import attention
from finetune.models.heads.crf import LinearChainCrf
from finetune.preprocessing.batching import micro_batches, pack
from finetune.registry import TASKS
from finetune.runtime.launch import make_accelerator
from finetune.tasks import TASK_FILE, load_task, save_task, saved_task, task_class
from finetune.tasks.abilities import Abilities
from finetune.tasks.base import Task
from finetune.tasks.text_data import with_problem
from finetune.training.data import training_data
from finetune.training.trainer import fit
from finetune.types import IGNORED, Partial, TextExample, TextPrediction, TokenExample, UserError
from tests.small_data import sentiment, write_jsonl
from tests.tiny import save_tiny_checkpoint

# Eight examples each; the last word or name says the label.
_GOOD, _BAD = ("lovely", "bright", "warm", "great"), ("dull", "broken", "cold", "boring")
_SENTIMENT = [
    (f"the room was {word}", kind)
    for kind, words in (("pos", _GOOD), ("neg", _BAD))
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


_MARKED = [
    {
        "text": "he saw the dog",
        "text_pair": "the dog saw it",
        "index": index,
        "index_pair": other,
        "label": label,
    }
    for index, other, label in (
        (1, 2, "same"),
        (1, 1, "other"),
        (3, 1, "same"),
        (3, 2, "other"),
        (2, 0, "same"),
        (2, 1, "other"),
        (0, 0, "other"),
        (0, 3, "other"),
    )
]
"""Equal texts: the marked words alone say the label."""
_SINGLE = texts([kind for _, kind in _SENTIMENT])
_WAYS = ["entailment", "neutral", "contradiction"]
_BIO = tagged([tags for _, tags in _ENTITIES])
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
    "single": Case("classify", _SINGLE, {}),
    "windows": Case(
        "classify",
        [{**row, "text": "the dog saw it and " * 2 + row["text"]} for row in _SINGLE],
        {"long_text": "window", "max_length": 16, "overlap": 4},
    ),
    "multi": Case(
        "classify",
        texts(
            [
                ["joy"],
                ["joy", "hope"],
                [],
                ["hope"],
                ["fear"],
                ["fear", "hope"],
                ["joy", "fear"],
                [],
            ]
        ),
        {},
    ),
    "regression": Case("classify", texts([0.5, 1.5, 2.0, -1.0, 0.0, 3.25, -2.5, 1.0]), {}),
    "pair": Case("classify", texts([*"abababab"], pairs=True), {}),
    "nli 3": Case("nli", texts([_WAYS[i % 3] for i in range(8)], pairs=True), {}),
    "nli 2": Case("nli", texts(["entailment", "not_entailment"] * 4, pairs=True), {}),
    "bi": Case("nli", texts(["entailment", "neutral"] * 4, pairs=True), {"pair_encoder": "bi"}),
    "poly": Case(
        "classify",
        texts([0.5, 1.5, 2.0, -1.0, 0.0, 3.25, -2.5, 1.0], pairs=True),
        {"pair_encoder": "poly", "poly_codes": 3},
    ),
    "marked": Case("nli", _MARKED, {"marked_words": True}),
    "marked bi": Case("classify", _MARKED, {"marked_words": True, "pair_encoder": "bi"}),
    "choice": Case("choice", _CHOICES, {}),
    "choice calibrated": Case(
        "choice",
        _CHOICES,
        {"calibrate": "temperature", "long_text": "truncate-start", "max_length": 16},
    ),
    "bio": Case("tag", _BIO, {"decoding": "greedy"}),
    "bio constrained": Case("tag", _BIO, {"decoding": "constrained"}),
    "bio all mean": Case("tag", _BIO, {"label_subwords": "all", "word_score": "mean"}),
    "bio first mean": Case("tag", _BIO, {"word_score": "mean"}),
    "io": Case("tag", _BIO, {"scheme": "IO"}),
    "bioes": Case("tag", _BIO, {"scheme": "BIOES"}),
    "bioes all max constrained": Case(
        "tag",
        _BIO,
        {
            "scheme": "BIOES",
            "label_subwords": "all",
            "word_score": "mean",
            "decoding": "constrained",
        },
    ),
    "bio windows": Case("tag", _BIO, {"max_length": 12, "overlap": 4, "decoding": "constrained"}),
    "bio crf": Case("tag", _BIO, {"crf": True}),
    "bioes crf windows": Case(
        "tag", _BIO, {"scheme": "BIOES", "crf": True, "max_length": 12, "overlap": 4}
    ),
    "ner": Case("ner", _SPANS, {}),
    "ner windows": Case("ner", _SPANS, {"max_length": 12, "overlap": 5, "decoding": "overlapping"}),
    "ner attention": Case("ner", _SPANS, {"representation": "attention", "word_vectors": "mean"}),
    "ner biaffine": Case("ner", _SPANS, {"representation": "biaffine", "multi_label": True}),
    "ner calibrated": Case("ner", _SPANS, {"representation": "ffn", "calibrate": "types"}),
    "relations": Case("relations", _RELATIONS, {"pairs": "all"}),
    "qa": Case("qa", _QUESTIONS, {}),
    "qa windows": Case("qa", _QUESTIONS, {"max_length": 14, "overlap": 4, "n_best": 2}),
    "pos": Case("tag", tagged(_POS), {}),
    "pos crf": Case("tag", tagged(_POS), {"crf": True}),
    "pos all mean": Case("tag", tagged(_POS), {"label_subwords": "all", "word_score": "mean"}),
}
SPANS = [name for name, case in CASES.items() if case.task == "ner"]
TAGGING = [name for name, case in CASES.items() if case.task == "tag"]
FAMILY = {
    "pair": "roberta",
    "choice": "roberta",
    "bio constrained": "roberta",
    "pos all mean": "roberta",
}


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

    def __init__(self, place: Path) -> None:
        self.place = place
        self.done: dict[str, Run] = {}
        for family in ("bert", "roberta"):
            save_tiny_checkpoint(place / family, family, dropout=0.0, num_hidden_layers=2)

    def config(self, name: str, **changes: Any) -> TrainConfig:
        case = CASES[name]
        data = self.place / "data" / name
        for split in ("train", "validation"):
            write_jsonl(data / f"{split}.jsonl", case.rows)
        settings = {
            "model": str(self.place / FAMILY.get(name, "bert")),
            "data": str(data),
            "out": str(self.place / "runs" / name),
            "steps": 60,
            "eval_every": 60,
            "batch_size": 8,
            "lr": 5e-3,
            "precision": "fp32",
            "weight_decay": 0.0,
            "max_length": 40,
            **({"overlap": 8} if case.task in ("tag", "ner") else {}),
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
            head = task.head()
            result = fit(task, dataset, config, head=head)
            log = [json.loads(line) for line in (result.folder / "log.jsonl").open()]
            losses = [line["loss"] for line in log if "loss" in line]
            folder = result.folder / "best"
            self.done[name] = Run(
                result.task, dataset, head, config, folder, losses, result.metrics
            )
        return self.done[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("tasks"))


SLOW = {"nli 2", "marked bi", "bio all mean", "bio first mean", "bioes", "ner windows", "pos crf"}
"""Cases whose settings also occur in other cases."""


def every_case(function):
    marked = [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES]
    return pytest.mark.parametrize("name", marked)(function)


def records(predictions) -> list[dict]:
    return [answer.record() for answer in predictions]


def same(one: list[dict], other: list[dict], tolerance: float = 1e-5) -> None:
    """Equal answers; probabilities and numbers up to rounding."""
    for mine, theirs in zip(one, other, strict=True):
        for key in ("id", "words", "tags", "choice"):
            assert mine.get(key) == theirs.get(key)
        for kind in ("spans", "relations"):
            for item, other_item in zip(mine.get(kind, []), theirs.get(kind, []), strict=True):
                assert item == pytest.approx(other_item, abs=tolerance)
        assert mine.get("label") == (
            pytest.approx(theirs["label"], abs=tolerance)
            if isinstance(theirs.get("label"), float)
            else theirs.get("label")
        )
        for key in ("score", "scores"):
            if theirs.get(key) is not None:
                assert mine[key] == pytest.approx(theirs[key], abs=tolerance)


@every_case
def test_learns_eight_examples(runs: Runs, name: str) -> None:
    run = runs.run(name)
    # Windows without the telling word are learnt by nobody.
    assert statistics.median(run.losses[-9:]) < {"windows": 0.65}.get(name, 0.2) * run.losses[0]
    if name != "bio first mean":  # reads pieces that training passes over
        assert run.metrics["validation"][run.task.record.metric] > 0.97


def span_logits(task: Any, target: torch.Tensor) -> torch.Tensor:
    if target.ndim == 2:
        return torch.where(target == 1, 12.0, -12.0)
    known = target != IGNORED
    return torch.where(known, 12.0, 0.0)[:, None] * torch.nn.functional.one_hot(
        target * known, len(task.record.labels) + 1
    )


def gold_logits(task: Any, batch: Any) -> torch.Tensor:
    """The logits of a model that knows the targets and nothing else."""
    if "tag" in batch.targets:
        target = batch.targets["tag"]
        logits = torch.zeros(len(target), len(task.record.labels))
        known = target != IGNORED
        logits[known, target[known]] = 12.0
        if task.record.config.crf:
            return LinearChainCrf(task.record.labels.names, task.record.scheme)(logits)
        return logits
    if "start" in batch.targets:
        logits = torch.zeros(len(batch.input_ids), 2)
        for column, name in enumerate(("start", "end")):
            logits[batch.cu_seqlens[:-1] + batch.targets[name], column] = 12.0
        return logits
    if "span" in batch.targets:
        return span_logits(task, batch.targets["span"])
    label = batch.targets["label"]
    if "rows" in batch.targets:
        right = batch.targets["rows"][torch.arange(len(label)), label]
        return 12.0 * torch.nn.functional.one_hot(right, len(batch.lengths)).sum(0)[:, None]
    if task.name == "relations":
        return 12.0 * torch.nn.functional.one_hot(label, len(task.record.labels) + 1)
    if task.record.problem == "regression":
        return label[:, None].double()
    if task.record.problem == "multi":
        return (2 * label - 1) * 12
    return 12.0 * torch.nn.functional.one_hot(label, len(task.record.labels))


@every_case
def test_answering_gold_scores_one(runs: Runs, name: str) -> None:
    task, dataset = runs.task(name)
    examples = dataset.splits["validation"]
    flat = [e for windows in task.encode(examples) for e in windows]
    batch = pack(flat, task.collate(flat))
    partials = task.decode(gold_logits(task, batch), batch)
    predicted = [
        task.finish(e, [p for p in reversed(partials) if p.example == e.id]) for e in examples
    ]
    scores = task.score(examples, predicted)
    best = {"mse": 0.0, "hamming_loss": 0.0}
    best |= dict.fromkeys(("inner_gold", "inner_predicted", "inner_found"), 2.0)
    scores = {name: value for name, value in scores.items() if not name.endswith("_thresh")}
    assert scores == pytest.approx({metric: best.get(metric, 1.0) for metric in scores}, abs=1e-4)
    wrong = task.score(examples, predicted[1:] + predicted[:1]) if name not in TAGGING else {}
    assert not wrong or wrong[task.record.metric] < 0.99


@every_case
def test_neither_order_nor_batches_matter(runs: Runs, name: str, monkeypatch) -> None:
    run = runs.run(name)
    examples = run.data.splits["validation"]
    expected = predict(run.task, run.head, examples)
    order = random.Random(1).sample(range(8), 8)
    monkeypatch.setattr(prediction, "CPU_TOKENS", 20)
    shuffled = predict(run.task, run.head, [examples[i] for i in order])
    same(records(shuffled), records([expected[i] for i in order]))
    scores = run.task.score([examples[i] for i in order], shuffled)
    assert scores == pytest.approx(run.task.score(examples, expected), abs=1e-5)
    alone = [predict(run.task, run.head, [example])[0] for example in examples]
    same(records(alone), records(expected))


@every_case
def test_saved_task_and_head_answer_alike(runs: Runs, name: str) -> None:
    """Everything comes back: labels, scheme, threshold, pieces, length, windows."""
    run = runs.run(name)
    again = saved_task(run.folder)
    assert type(again) is type(run.task)
    assert again.record == run.task.record
    head = again.head(run.folder)
    examples = run.data.splits["validation"]
    gold = {"tags": None, "spans": None} if name != "relations" else {"relations": None}
    bare = [
        replace(e, label=None, answers=None) if isinstance(e, TextExample) else replace(e, **gold)
        for e in examples
    ]
    assert records(predict(again, head, bare)) == records(predict(run.task, run.head, examples))
    assert list(head.labels) == list(run.task.record.labels)


@pytest.mark.parametrize("name", ["single", "bio", "ner calibrated"])
def test_a_task_file_of_the_last_version_loads(runs: Runs, name: str, tmp_path: Path) -> None:
    run = runs.run(name)
    shutil.copytree(run.folder, tmp_path / "best")
    path = tmp_path / "best" / TASK_FILE
    content = json.loads(path.read_text())
    del content["finetune"]  # the version, which older ones did not write
    assert content.keys() == {"format", "task", "labels", "max_length", "extra", "config"}
    if name != "single":
        del content["extra"]["pairs"]  # only tasks of texts had it
    path.write_text(json.dumps(content))
    assert saved_task(tmp_path).record == run.task.record
    path.write_text(json.dumps({**content, "extra": {"unknown": 1}}))
    with pytest.raises(UserError, match="damaged, or of another version of finetune"):
        saved_task(tmp_path)


def test_labels_in_another_order_than_in_the_model_are_refused(runs: Runs, tmp_path: Path) -> None:
    shutil.copytree(runs.run("single").folder, folder := tmp_path / "model")
    content = json.loads((folder / TASK_FILE).read_text())
    for change, problem in (
        ({"labels": content["labels"][::-1]}, "its labels .* differ from config.json"),
        ({"format": 2}, "has format 2, and this version of finetune reads format 1"),
    ):
        (folder / TASK_FILE).write_text(json.dumps({**content, **change}))
        with pytest.raises(UserError, match=problem):
            saved_task(folder)


FROM_DATA = set("record_class gold skipped_checks reusable_head load read prepare".split())
FROM_DATA |= set("derive of notes complete".split())
MEMBERS = set(
    "name description record tokenizer encode collate head loss decode finish score".split()
)


def public(kind: type) -> set[str]:
    """Return the public members of a class."""
    return {member for member in dir(kind) if not member.startswith("_")}


def kinds(base: type) -> set[type]:
    """Return the classes derived from a class."""
    return {base}.union(*map(kinds, base.__subclasses__()))


def test_public_members_of_tasks() -> None:
    """A task has no public members but those of every task, and of what only some tasks do."""
    for name in TASKS:
        task_class(name)  # imports it
    assert (len(FROM_DATA), len(MEMBERS), len(public(Abilities))) == (11, 11, 22)
    for kind in kinds(Task):
        assert public(kind) <= FROM_DATA | MEMBERS | public(Abilities), kind


@every_case
def test_loss_of_parts_is_loss_of_the_whole(runs: Runs, name: str) -> None:
    task, dataset = runs.task(name)
    head = task.head().double().eval()  # a fresh span head is for training: it drops
    flat = [e for windows in task.encode(dataset.splits["train"]) for e in windows]

    def loss(group) -> tuple[torch.Tensor, torch.Tensor]:
        batch = pack(group, task.collate(group))
        return task.loss(head(batch), batch)

    total, count = loss(flat)
    together = task.grouped
    groups = micro_batches(flat, 25, together=together)
    assert len(groups) > 2
    parts = [loss(group) for group in groups]
    torch.testing.assert_close(sum(p[0] for p in parts), total, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(sum(p[1] for p in parts), count, rtol=1e-9, atol=1e-9)
    rows = CASES[name].rows
    words = sum(len(row["tokens"]) for row in rows) if "tokens" in rows[0] else len(rows)
    if name in ("relations", "qa", "qa windows"):
        words = len(flat)  # pairs, or windows
    if name in TAGGING and task.record.config.label_subwords == "all":
        words = sum(e.word_starts[-1] - e.word_starts[0] for e in flat)
    assert float(count) == pytest.approx(words)


# Windows of whole texts


def test_shares_of_windows_sum_to_one(runs: Runs) -> None:
    task, _ = runs.task("windows")
    long = [TextExample(i, "the dog saw it " * n, None, "pos") for i, n in enumerate((1, 9, 30))]
    encoded = task.encode(long)
    assert [len(windows) > 1 for windows in encoded] == [False, True, True]
    for windows in encoded:
        shares = task.collate(windows)["weight"]
        assert float(shares.sum()) == pytest.approx(1.0)
        assert len(set(shares.tolist())) == 1
        assert all(len(window.input_ids) <= 16 for window in windows)
    assert encoded.num_cut == 0
    rows = [window.input_ids[1:-1] for window in encoded[2]]
    whole = task.tokenizer.text_subwords([long[2].text])[0]
    starts = [*range(0, len(whole) - 14, 10), len(whole) - 14]  # each shares 4 with the next
    assert rows == [whole[start : start + 14] for start in starts]


def test_windows_of_pairs_count_what_they_cut(runs: Runs) -> None:
    """The shorter text stands whole in every window, or is counted as cut."""
    task, _ = runs.task("pair", long_text="window", max_length=20, overlap=2)
    short, long = "the dog", "a big red dog in the garden " * 4
    for text, pair, cut in ((short, long, 0), (long, short, 0), (long, long, 1)):
        encoded = task.encode([TextExample(0, text, pair, "a")])
        (windows,) = encoded
        assert len(windows) > 1
        assert all(len(window.input_ids) <= 20 for window in windows)
        assert encoded.num_cut == cut
    assert task.encode([TextExample(0, short, short, "a")]).num_cut == 0


def test_long_texts_are_cut_and_counted_or_refused(runs: Runs) -> None:
    long = [TextExample(0, "dog " * 60, None, "pos", "f.jsonl:3"), TextExample(1, "dog")]
    task, _ = runs.task("single")
    encoded = task.encode(long)
    assert len(encoded[0][0].input_ids) == 40
    assert encoded.num_cut == 1
    strict, _ = runs.task("single", long_text="error")
    with pytest.raises(ValueError, match=r"f\.jsonl:3: the text has \d+ tokens, --max-length 40"):
        strict.encode(long)


# The word contract

ODD = ["", " ", "\u200b", "\u2063", "\t", "\ufeff"]
_NAMES = "Anna saw New York and General Motors in unbelievably Brussels guitar , .".split()


def odd_sentences() -> list[TokenExample]:
    chance = random.Random(4)
    long = chance.choices(_NAMES, k=300)
    giant = "unbelievably" * 8  # WordPiece takes words of over 100 letters for unknown
    sentences = [
        ODD,
        [*ODD, "Anna", *ODD],
        [giant],
        ["Anna", giant, "saw", giant, giant],
        long,
        [word for pair in zip(long, ODD * 50, strict=True) for word in pair],
        ["Anna"],
        ["東京", "🙂", "Zoë"],
        [],
    ]
    return [TokenExample(i, tuple(words)) for i, words in enumerate(sentences)]


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("name", ["bio", "bioes all max constrained", "bioes crf windows"])
def test_every_word_gets_one_answer(runs: Runs, name: str, family: str) -> None:
    model = str(runs.place / family)
    task, _ = runs.task(name, max_length=24, overlap=8, model=model)
    head = task.head().eval()
    sentences = odd_sentences()
    answers = predict(task, head, sentences)
    for sentence, answer in zip(sentences, answers, strict=True):
        assert (answer.id, answer.words) == (sentence.id, sentence.words)
        assert len(answer.tags) == len(answer.scores) == len(sentence.words)
        assert all(0 < score <= 1 + 1e-6 for score in answer.scores)
        assert all(span.end <= len(sentence.words) for span in answer.spans)
    assert task.encode(sentences).num_cut >= 4, "words longer than a window are counted"


@pytest.mark.parametrize("name", ["bio", "bio all mean"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_each_word_is_owned_and_learnt_once(runs: Runs, name: str, family: str) -> None:
    task, _ = runs.task(name, max_length=24, overlap=8, model=str(runs.place / family))
    kinds = ["O", "B-PER", "B-LOC", "B-ORG"]
    sentences = [
        replace(s, tags=tuple(kinds[i % 4] for i in range(len(s.words)))) for s in odd_sentences()
    ]
    for sentence, windows in zip(sentences, task.encode(sentences), strict=True):
        owned, targets = [], []
        for window in windows:
            owned += range(window.first_word, window.first_word + window.num_words)
            assert len(window.input_ids) <= 24
            assert window.word_starts == sorted(set(window.word_starts))
            assert 1 <= window.word_starts[0] <= window.word_starts[-1] <= len(window.input_ids) - 1
            own = iter(window.target["tag"])
            for start, end in zip(window.word_starts, window.word_starts[1:], strict=False):
                size = end - start if task.record.all_subwords else 1
                target = [next(own) for _ in range(size)]
                targets.append(task.record.labels[target[0]])
                rest = {task.record.labels[i].replace("B-", "I-") for i in target[1:]}
                assert rest <= {targets[-1].replace("B-", "I-")}
                assert not any(task.record.labels[i].startswith("B-") for i in target[1:])
            assert next(own, None) is None
        assert owned == list(range(len(sentence.words)))
        assert tuple(targets) == sentence.tags


def test_windows_read_the_right_pieces(runs: Runs) -> None:
    """A word's pieces stand where its window says, whichever window owns it."""
    task, _ = runs.task("bio", max_length=24, overlap=8)
    sentence = odd_sentences()[4]
    (windows,) = task.encode([sentence])
    pieces = task.tokenizer.word_subwords([sentence.words])[0]
    assert len(windows) > 10
    for window in windows:
        for offset in range(window.num_words):
            start, end = window.word_starts[offset : offset + 2]
            assert window.input_ids[start:end] == pieces[window.first_word + offset]
    inner = windows[1:-1]
    assert all(window.word_starts[0] > 1 for window in inner), "context before the first own word"
    assert all(w.word_starts[-1] < len(w.input_ids) - 1 for w in inner), "and after the last"


def test_a_wrong_number_of_words_is_an_error(runs: Runs) -> None:
    run = runs.run("bio")
    example = run.data.splits["validation"][1]
    (windows,) = run.task.encode([example])
    batch = pack(windows)
    with torch.no_grad():
        partials = run.task.decode(run.head(batch), batch)
    with pytest.raises(RuntimeError, match="6 predictions for 5 words"):
        run.task.finish(replace(example, words=example.words[:5]), partials)


@pytest.mark.parametrize("name", ["bio", "windows"])
def test_overlap_must_leave_room(runs: Runs, name: str) -> None:
    """A setting is kept or refused, never made smaller in silence."""
    kept, dataset = runs.task(name, max_length=24, overlap=12)
    assert kept.encode(dataset.splits["train"])
    with pytest.raises(ValueError, match=r"--overlap 13 is over half of --max-length 24"):
        task, dataset = runs.task(name, max_length=24, overlap=13)
        task.encode(dataset.splits["train"])


# Plain transformers on the saved folder


def pipeline_scores(answer: list[dict]) -> dict[str, float]:
    return {item["label"]: item["score"] for item in answer}


@pytest.mark.parametrize("name", ["single", "multi", "pair", "nli 3"])
def test_text_classification_pipeline_agrees(runs: Runs, name: str) -> None:
    run = runs.run(name)
    plain = pipeline("text-classification", model=str(run.folder), top_k=None)
    second = None if name in ("single", "multi") else "a dog"
    examples = [*run.data.splits["validation"], TextExample(8, "what a great story", second)]
    for example, answer in zip(examples, predict(run.task, run.head, examples), strict=True):
        inputs = {"text": example.text} | ({"text_pair": example.pair} if example.pair else {})
        theirs = pipeline_scores(plain(inputs))
        assert theirs == pytest.approx(dict(answer.scores), abs=1e-4)
        if name == "multi":
            assert {n for n, score in theirs.items() if score >= 0.5} == set(answer.label)
        else:
            assert max(theirs, key=theirs.get) == answer.label


def test_regression_model_agrees(runs: Runs) -> None:
    run = runs.run("regression")
    plain = pipeline("text-classification", model=str(run.folder))
    examples = run.data.splits["validation"]
    for example, answer in zip(examples, predict(run.task, run.head, examples), strict=True):
        assert plain(example.text)[0]["score"] == pytest.approx(answer.label, abs=1e-4)


@pytest.mark.parametrize("name", ["single", "pair"])
def test_auto_classes_agree(runs: Runs, name: str) -> None:
    run = runs.run(name)
    model = AutoModelForSequenceClassification.from_pretrained(run.folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.folder)
    examples = run.data.splits["validation"]
    seconds = [e.pair for e in examples] if examples[0].pair else None
    inputs = tokenizer([e.text for e in examples], seconds, padding=True, return_tensors="pt")
    with torch.no_grad():
        chances = model(**inputs).logits.softmax(-1)
    for row, answer in zip(chances, predict(run.task, run.head, examples), strict=True):
        named = {model.config.id2label[i]: float(p) for i, p in enumerate(row)}
        assert named == pytest.approx(dict(answer.scores), abs=1e-4)
    assert attention.NAME not in (run.folder / "config.json").read_text()
    assert model.config.label2id == {name: i for i, name in enumerate(run.task.record.labels)}


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("name", ["bio", "pos"])
def test_token_classification_agrees(runs: Runs, name: str, family: str, tmp_path: Path) -> None:
    """Word for word, by split words and through the pipeline on the running text."""
    task, dataset = runs.task(name, model=str(runs.place / family))
    head = task.head().eval()
    head.save_pretrained(tmp_path)
    save_task(task, tmp_path)
    model = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    plain = pipeline("token-classification", model=str(tmp_path), ignore_labels=[])
    examples = dataset.splits["validation"]
    for example, answer in zip(examples, predict(task, head, examples), strict=True):
        inputs = tokenizer(list(example.words), is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            chances = model(**inputs).logits[0].softmax(-1)
        owners = inputs.word_ids()
        rows = chances[[owners.index(word) for word in range(len(example.words))]]
        assert tuple(model.config.id2label[int(i)] for i in rows.argmax(-1)) == answer.tags
        assert rows.amax(-1).tolist() == pytest.approx(answer.scores, abs=1e-4)

        pieces, begin = plain(" ".join(example.words)), 0
        for word, tag, score in zip(example.words, answer.tags, answer.scores, strict=True):
            first = next(piece for piece in pieces if piece["start"] >= begin - 1)
            assert first["entity"] == tag
            assert first["score"] == pytest.approx(score, abs=1e-4)
            begin += len(word) + 1


# Labels, weights and what the data may be


def test_class_weights_by_hand(runs: Runs) -> None:
    rows = texts([*"abbbbbbc"])  # one a, six b, one c
    config = runs.config("single", class_weights="auto", data=str(runs.place / "weights"))
    for split in ("train", "validation"):
        write_jsonl(runs.place / "weights" / f"{split}.jsonl", rows)
    task, dataset = load_task(config, "classify")
    assert task.record.class_weights == pytest.approx([8 / 3, 8 / 18, 8 / 3])
    given, _ = load_task(replace(config, class_weights="a=2,c=0.5"), "classify")
    assert given.record.class_weights == (2.0, 1.0, 0.5)
    plain, _ = load_task(replace(config, class_weights="none"), "classify")
    flat = [windows[0] for windows in given.encode(dataset.splits["train"])]
    batch = pack(flat, given.collate(flat))
    logits = torch.randn(8, 3, dtype=torch.double)
    expected = torch.nn.functional.cross_entropy(
        logits, batch.targets["label"], torch.tensor([2.0, 1.0, 0.5], dtype=torch.double)
    )
    total, count = given.loss(logits, batch)
    torch.testing.assert_close(total / count, expected)
    assert float(count) == pytest.approx(2 + 6 + 0.5)
    total, count = plain.loss(logits, pack(flat, plain.collate(flat)))
    expected = torch.nn.functional.cross_entropy(logits, batch.targets["label"])
    torch.testing.assert_close(total / count, expected)


def test_class_weights_of_several_labels(runs: Runs) -> None:
    """Negatives over positives: 5 of 8 rows lack joy (3 have it), and so on."""
    task, dataset = runs.task("multi", class_weights="auto")
    assert list(task.record.labels) == ["fear", "hope", "joy"]
    assert task.record.class_weights == pytest.approx([5 / 3, 5 / 3, 5 / 3])
    flat = [windows[0] for windows in task.encode(dataset.splits["train"])]
    batch = pack(flat, task.collate(flat))
    logits = torch.randn(8, 3)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, batch.targets["label"], pos_weight=torch.full((3,), 5 / 3)
    )
    total, count = task.loss(logits, batch)
    torch.testing.assert_close(total / count, expected)


def test_the_positive_class_is_the_rarer_label_of_training(runs: Runs, tmp_path: Path) -> None:
    rows = [{"text": "x", "label": label} for label in ("fraud", "legit", "legit", "legit")]
    data = splits(tmp_path / "fraud", train=rows, validation=rows)
    task, dataset = runs.task("single", data=data)
    assert task.record.positive == "fraud" and "positive" in task.record.extra_fields()
    assert any("f1 scores 'fraud', the rarer label in training" in n for n in dataset.notes)
    predicted = [TextPrediction(n, "fraud") for n in range(4)]
    assert task.score(dataset.splits["train"], predicted)["f1"] == pytest.approx(0.4)
    task, dataset = runs.task("single", data=data, positive="legit")
    assert task.record.positive == "legit" and "f1 is" not in " ".join(dataset.notes)
    partial = Partial(0, 0, np.array([0.2, 0.8]))
    assert task.finish(dataset.splits["train"][0], [partial]).record()["positive_label"] == "legit"
    with pytest.raises(UserError, match="--positive fruad: the labels are 'fraud' and 'legit'"):
        runs.task("single", data=data, positive="fruad")
    with pytest.raises(UserError, match="--positive joy: it applies to texts with one of two"):
        runs.task("multi", positive="joy")


def test_several_labels_in_one_cell_are_one_and_said(runs: Runs, tmp_path: Path) -> None:
    rows = [{"text": "x", "label": label} for label in ("joy,hope", "joy", "hope", "joy,hope")]
    task, dataset = runs.task(
        "multi", problem="multi", data=splits(tmp_path / "cells", train=rows), validation="none"
    )
    assert list(task.record.labels) == ["hope", "joy", "joy,hope"]
    assert sum("write several as a list in JSON Lines" in note for note in dataset.notes) == 1
    assert not any("write several as a list" in note for note in runs.task("multi")[1].notes)


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("single", "pso=2", r"no label 'pso'; legal are neg, pos\. Perhaps you meant 'pos'\?"),
        ("single", "pos", "'pos' is not LABEL=NUMBER"),
        ("single", "pos=much", "'pos=much' is not LABEL=NUMBER"),
        ("regression", "auto", "--class-weights auto: the labels of .* are numbers"),
    ],
)
def test_wrong_class_weights(runs: Runs, name: str, asked: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        runs.task(name, class_weights=asked)


def test_numbers_have_no_smoothing(runs: Runs) -> None:
    with pytest.raises(UserError, match=r"--label-smoothing 0.1: the predictions are numbers"):
        runs.task("regression", label_smoothing=0.1)


def splits(folder: Path, **rows: list[dict]) -> str:
    for split, content in rows.items():
        write_jsonl(folder / f"{split}.jsonl", content)
    return str(folder)


def test_rows_without_label_are_dropped_and_counted(runs: Runs, tmp_path: Path) -> None:
    rows = [*_SINGLE, {"text": "no label", "label": None}, {"text": "nor here", "label": "-"}]
    bare = [{**row, "label": None} for row in _SINGLE[:3]]
    data = splits(tmp_path, train=rows, validation=rows[4:9], test=bare)
    task, dataset = runs.task("single", data=data)
    assert [len(dataset.splits[split]) for split in list(dataset.splits)] == [8, 4]
    unlabeled = read_text(data).splits["test"]
    notes = "\n".join(dataset.notes)
    assert "2 rows of train without label dropped" in notes
    assert "1 row of validation without label dropped" in notes
    assert list(task.record.labels) == ["neg", "pos"]
    assert task.collate([windows[0] for windows in task.encode(unlabeled)]) == {}
    predicted = predict(task, task.head(), unlabeled)
    assert task.score(unlabeled, predicted) == {}, "no gold"
    assert [answer.id for answer in predicted] == [e.id for e in unlabeled]
    with pytest.raises(ValueError, match=r"no row of validation has a label: --columns label="):
        runs.task("single", data=splits(tmp_path, validation=bare))


def test_labels_unseen_in_training_are_refused(runs: Runs, tmp_path: Path) -> None:
    data = splits(tmp_path, train=_SINGLE, validation=[*_SINGLE, {"text": "x", "label": "pso"}])
    with pytest.raises(ValueError, match=r"validation\.jsonl:9: .*does not have: 'pso'") as e:
        runs.task("single", data=data)
    assert "Perhaps you meant 'pos'?" in str(e.value)
    again = {"train": CASES["multi"].rows, "validation": [{"text": "x", "label": ["joy", "rage"]}]}
    with pytest.raises(ValueError, match=r"validation\.jsonl:1: .*'rage'"):
        runs.task("multi", data=splits(tmp_path / "multi", **again))


@pytest.mark.parametrize("label", ["good", "nan", "inf", float("inf"), ("3",)])
def test_regression_takes_finite_numbers_only(label: Any) -> None:
    example = TextExample(0, "a", label=label, where="a.csv:7")
    with pytest.raises(ValueError, match=r"a.csv:7: label .* is not a number, as regression needs"):
        with_problem(example, "regression")
    assert with_problem(replace(example, label="-3"), "regression").label == -3.0


def test_one_label_only_is_refused(runs: Runs, tmp_path: Path) -> None:
    rows = [{**row, "label": "same"} for row in _SINGLE]
    with pytest.raises(ValueError, match="the only label of 8 examples is 'same'"):
        runs.task("single", data=splits(tmp_path, train=rows, validation=rows))


def test_tags_unseen_in_training_are_noted(runs: Runs, tmp_path: Path) -> None:
    odd = [{"tokens": ["Oslo", "Anna"], "tags": ["B-GPE", "B-PER"]}]
    task, dataset = runs.task("bio", data=splits(tmp_path, train=_BIO, validation=_BIO, test=odd))
    assert any("test: labels that train does not have: 'GPE'" in note for note in dataset.notes)
    (windows,) = task.encode(dataset.splits["test"])
    assert windows[0].target == {"tag": [IGNORED, task.record.labels.id("B-PER")]}
    answer = predict(task, task.head(), dataset.splits["test"])
    perfect = replace(answer[0], tags=("O", "B-PER"))
    assert task.score(dataset.splits["test"], [perfect])["span_recall_conll"] == 0.5


def test_validation_is_held_out_and_noted(runs: Runs, tmp_path: Path) -> None:
    _task, dataset = runs.task("single", data=splits(tmp_path, train=_SINGLE * 3))
    assert list(dataset.splits) == ["train", "validation"]
    assert [len(dataset.splits[split]) for split in list(dataset.splits)] == [18, 6]
    assert any("held out 6 of 24 examples of train" in note for note in dataset.notes)
    _task, dataset = runs.task(
        "single", data=splits(tmp_path, train=_SINGLE * 3), validation="none"
    )
    assert {split: len(rows) for split, rows in dataset.splits.items()} == {"train": 24}
    assert not any("held out" in note for note in dataset.notes)


def test_limit_is_noted_and_keeps_the_labels(runs: Runs) -> None:
    task, dataset = runs.task("single", limit=3)
    assert len(dataset.splits["train"]) == 3
    assert len(dataset.splits["validation"]) == 8
    assert list(task.record.labels) == ["neg", "pos"], "labels are those of all training data"
    assert any("--limit: the first 3 of 8 examples of train" in n for n in dataset.notes)


def test_limit_that_leaves_one_label_is_noted(runs: Runs, tmp_path: Path) -> None:
    rows = [{"text": f"a man number {i}", "label": "ba"[i // 15]} for i in range(30)]
    _task, dataset = runs.task(
        "single", data=splits(tmp_path, train=rows, validation=rows), limit=10
    )
    assert any("no label but 'b': the data are sorted" in note for note in dataset.notes)
    _, more = runs.task(
        "single", data=splits(tmp_path / "b", train=rows, validation=rows), limit=20
    )
    assert not any("sorted" in note for note in more.notes)


def test_both_validation_sets_of_mnli_are_scored(runs: Runs, tmp_path: Path) -> None:
    rows = CASES["nli 3"].rows
    data = splits(tmp_path, train=rows, validation_matched=rows, validation_mismatched=rows[:5])
    config = runs.config("nli 3", data=data, out=str(tmp_path / "run"), steps=2, eval_every=1)
    task, dataset = load_task(config, "nli")
    assert list(dataset.splits) == ["train", "validation_matched", "validation_mismatched"]
    result = fit(task, dataset, config)
    assert list(result.metrics) == ["validation_matched", "validation_mismatched"]
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").open()]
    assert {line["split"] for line in log if "split" in line} == {"validation_matched"}


def test_nli_labels_are_mapped_by_name(runs: Runs, tmp_path: Path) -> None:
    """Trap 13: other spellings and orders give the same classes in the same order."""
    names = {"entailment": "entails", "neutral": "Neutral", "contradiction": "CONTRADICTS"}
    rows = [{**row, "label": names[row["label"]]} for row in CASES["nli 3"].rows[::-1]]
    task, dataset = runs.task("nli 3", data=splits(tmp_path, train=rows, validation=rows))
    assert list(task.record.labels) == _WAYS
    assert any("'entails' is entailment" in note for note in dataset.notes)
    assert list(runs.task("nli 2")[0].record.labels) == ["entailment", "not_entailment"]
    other = [{**row, "label": row["label"][:3]} for row in CASES["nli 3"].rows]
    kept, _ = runs.task("nli 3", data=splits(tmp_path / "b", train=other, validation=other))
    assert list(kept.record.labels) == ["con", "ent", "neu"]


def test_threshold_survives_saving(runs: Runs, tmp_path: Path) -> None:
    task, dataset = runs.task("multi", threshold=0.9)
    head = task.head().eval()
    head.save_pretrained(tmp_path)
    save_task(task, tmp_path)
    again = saved_task(tmp_path)
    assert again.record.threshold == 0.9
    for answer in predict(again, again.head(tmp_path), dataset.splits["validation"]):
        assert set(answer.label) == {n for n, score in answer.scores.items() if score >= 0.9}


def test_settings_without_effect_are_refused(tmp_path: Path) -> None:
    save_tiny_checkpoint(tmp_path / "bert", "bert")
    sentiment(tmp_path / "data")
    plain = ClassifyConfig(model=str(tmp_path / "bert"), data=str(tmp_path / "data"))
    for changes, message in (
        ({"threshold": 0.7}, "--threshold 0.7: it applies to several labels"),
        ({"overlap": 8}, "--overlap 8: it applies to --long-text window"),
        ({"class_weights": "neg=-1"}, "0 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            load_task(replace(plain, **changes), "classify")


@pytest.mark.parametrize("family", ["roberta", "deberta-v2"])
def test_dropout_of_the_classifier(family: str, tmp_path: Path) -> None:
    model = save_tiny_checkpoint(tmp_path / "model", family)
    data = sentiment(tmp_path / "data")
    config = ClassifyConfig(model=str(model), data=str(data), classifier_dropout=0.4)
    head = load_task(config, "classify")[0].head()
    dropout = head.model.classifier.dropout if family == "roberta" else head.model.dropout
    assert dropout.p == 0.4
    with pytest.raises(
        ValueError, match="--classifier-dropout must be 0 or more and below 1, not 1"
    ):
        replace(config, classifier_dropout=1.0)


@pytest.mark.parametrize("name", ["tag", "ner"])
def test_training_splits_words_where_gold_begins_and_ends(name: str, tmp_path: Path) -> None:
    save_tiny_checkpoint(tmp_path / "bert", "bert", dropout=0.0)
    rows = [{"text": "in Paris Anns", "entities": [[3, 8, "LOC"], [9, 12, "PER"]]}] * 3
    for split in ("train", "validation"):
        write_jsonl(tmp_path / "data" / f"{split}.jsonl", rows)
    config = CONFIGS[name](
        model=str(tmp_path / "bert"),
        data=str(tmp_path / "data"),
        out=str(tmp_path / "run"),
        steps=2,
        batch_size=2,
    )
    task, dataset = load_task(config, name)
    assert any("PER" in label for label in task.record.labels)  # a type of unreachable spans only
    trained = training_data(task, dataset, config, make_accelerator(config), lambda note: None)
    assert trained.splits["train"][0].words == ("in", "Paris", "Ann", "s")
    assert trained.splits["validation"][0].words == ("in", "Paris", "Anns")
    scores = fit(task, dataset, config).metrics["validation"]
    assert 0 <= scores["span_f1_characters"] <= 0.8  # half of gold cannot be predicted


PLAIN = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(4)]
PROBLEMS: dict[str, dict[str, list[dict]]] = {
    "unseen label": {"train": PLAIN, "test": [{"text": "x", "label": "c"}]},
    "one label": {"train": PLAIN[:1]},
    "a label each": {"train": [{"text": f"{i}", "label": f"id {i}"} for i in range(30)]},
    "pairs in train": {"train": [{**row, "text_pair": "x"} for row in PLAIN], "test": PLAIN},
    "case": {"train": [*PLAIN, {"text": "x", "label": "A"}]},
    "null": {"train": [*PLAIN, {"text": "x", "label": "null"}]},
    "leak": {"train": PLAIN, "test": PLAIN[:1]},
    "other spans": {
        "train": [{"tokens": ["x"], "tags": ["B-A"]}],
        "validation": [{"tokens": ["y"], "tags": ["B-B"]}],
    },
    "no spans": {"train": [{"tokens": ["x"], "tags": ["O"]}]},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_training_agrees_with_check(name: str, tmp_path: Path) -> None:
    rows = {"validation": PROBLEMS[name]["train"], **PROBLEMS[name]}
    data = splits(tmp_path / "data", **rows)
    kind = "tag" if "tokens" in rows["train"][0] else "classify"
    save_tiny_checkpoint(tmp_path / "bert", "bert")
    found = check_data((read_tokens if kind == "tag" else read_text)(data), max_length=None)
    errors = [finding.message for finding in found if finding.level == "error"]
    warnings = [finding.message for finding in found if finding.level == "warning"]
    assert errors or warnings
    config = CONFIGS[kind](model=str(tmp_path / "bert"), data=data)
    if errors:
        with pytest.raises(UserError, match=re.escape(errors[0])):
            load_task(config, kind)
    else:
        notes = "\n".join(load_task(config, kind)[1].notes)
        assert all(f"warning: {warning}" in notes for warning in warnings)
