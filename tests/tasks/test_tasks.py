"""The contract that every task keeps: learn, answer its own gold, and load again."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch

from finetune.inference import loop as prediction
from finetune.inference.loop import predict
from finetune.models.heads.crf import LinearChainCrf
from finetune.preprocessing.batching import micro_batches, pack
from finetune.registry import TASKS
from finetune.tasks import saved_task, task_class
from finetune.tasks.base import Task
from finetune.types import IGNORED, TextExample
from tests.covering import few
from tests.small_data import close
from tests.tasks.cases import CASES, SLOW, TAGGING, Runs, outputs_of, span_logits

every_case = pytest.mark.parametrize("name", few(CASES, *({*CASES} - {*SLOW})))


def dicts(predictions) -> list[dict]:
    return [answer.to_dict() for answer in predictions]


@every_case
def test_learns_eight_examples(runs: Runs, name: str) -> None:
    run = runs.run(name)
    # Windows without the telling word are learnt by nobody.
    assert statistics.median(run.losses[-9:]) < {"windows": 0.65}.get(name, 0.2) * run.losses[0]
    assert run.metrics["validation"][run.task.state.metric] > 0.97


def gold_logits(task: Any, batch: Any) -> torch.Tensor:
    """The logits of a model that knows the targets and nothing else."""
    if "tag" in batch.targets:
        target = batch.targets["tag"]
        logits = torch.zeros(len(target), len(task.state.labels))
        known = target != IGNORED
        logits[known, target[known]] = 12.0
        if task.state.config.crf:
            return LinearChainCrf(task.state.labels, task.state.scheme)(logits)
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
        return 12.0 * torch.nn.functional.one_hot(label, len(task.state.labels) + 1)
    if task.state.problem == "regression":
        return label[:, None].double()
    if task.state.problem == "multi":
        return (2 * label - 1) * 12
    return 12.0 * torch.nn.functional.one_hot(label, len(task.state.labels))


@every_case
def test_answering_gold_scores_one(runs: Runs, name: str) -> None:
    task, dataset = runs.task(name)
    examples = dataset.splits["validation"]
    flat = [e for windows in task.encode(examples) for e in windows]
    batch = pack(flat, task.collate(flat))
    outputs = outputs_of(batch, task.decode(gold_logits(task, batch), batch))
    predicted = [task.postprocess(e, outputs[e.id]) for e in examples]
    scores = task.score(examples, predicted)
    best = {"mse": 0.0, "hamming_loss": 0.0}
    assert scores == pytest.approx({metric: best.get(metric, 1.0) for metric in scores}, abs=1e-4)
    wrong = task.score(examples, predicted[1:] + predicted[:1]) if name not in TAGGING else {}
    assert not wrong or wrong[task.state.metric] < 0.99


@every_case
def test_neither_order_nor_batches_matter(runs: Runs, name: str, monkeypatch) -> None:
    run = runs.run(name)
    examples = run.data.splits["validation"]
    expected = predict(run.task, run.head, examples)
    order = random.Random(1).sample(range(8), 8)
    monkeypatch.setattr(prediction, "CPU_TOKENS", 20)
    shuffled = predict(run.task, run.head, [examples[i] for i in order])
    assert close(dicts(shuffled), dicts([expected[i] for i in order]), 1e-5)
    scores = run.task.score([examples[i] for i in order], shuffled)
    assert scores == pytest.approx(run.task.score(examples, expected), abs=1e-5)
    alone = [predict(run.task, run.head, [example])[0] for example in examples]
    assert close(dicts(alone), dicts(expected), 1e-5)


@every_case
def test_saved_task_and_head_answer_alike(runs: Runs, name: str) -> None:
    """Everything comes back: labels, scheme, threshold, pieces, length, windows."""
    run = runs.run(name)
    again = saved_task(run.folder)
    assert type(again) is type(run.task)
    assert again.state == run.task.state
    head = again.model(run.folder)
    examples = run.data.splits["validation"]
    gold = {"tags": None, "spans": None} if name != "relations" else {"relations": None}
    bare = [
        replace(e, **(dict.fromkeys(e.GOLD) if isinstance(e, TextExample) else gold))
        for e in examples
    ]
    assert dicts(predict(again, head, bare)) == dicts(predict(run.task, run.head, examples))
    assert list(head.labels) == list(run.task.state.labels)


REQUIRED = {"state_class", "gold", "derive", "_sequences", "model", "loss", "decode", "postprocess"}
REQUIRED |= {"_window_targets"}  # unless ``_sequences`` makes the targets
COMMON = {"tokenizer", "warm_start", "description", "name", "notes", "_load", "collate", "score"}


def public(cls: type) -> set[str]:
    """Return the public members of a class."""
    return {member for member in dir(cls) if not member.startswith("_")}


def kinds(base: type) -> set[type]:
    """Return the classes derived from a class."""
    return {base}.union(*map(kinds, base.__subclasses__()))


def test_members_of_tasks() -> None:
    """A task has nine required and few optional members, and no further public ones."""
    for name in TASKS:
        task_class(name)  # imports it
    members = {name for name in vars(Task) if not name.startswith(("__", "_abc"))}
    assert len(REQUIRED) == 9
    assert len(members - REQUIRED - COMMON) <= 20
    for cls in kinds(Task):
        assert public(cls) <= members | REQUIRED | COMMON, cls


@every_case
def test_loss_of_parts_is_loss_of_the_whole(runs: Runs, name: str) -> None:
    task, dataset = runs.task(name)
    head = task.model().double().eval()  # a fresh span head is for training: it drops
    flat = [e for windows in task.encode(dataset.splits["train"]) for e in windows]

    def loss(group) -> tuple[torch.Tensor, torch.Tensor]:
        batch = pack(group, task.collate(group))
        return task.loss(head(batch), batch)

    total, count = loss(flat)
    together = task.description.grouped
    groups = micro_batches(flat, 25, together=together)
    assert len(groups) > 2
    parts = [loss(group) for group in groups]
    torch.testing.assert_close(sum(p[0] for p in parts), total, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(sum(p[1] for p in parts), count, rtol=1e-9, atol=1e-9)
    rows = CASES[name].rows
    words = sum(len(row["tokens"]) for row in rows) if "tokens" in rows[0] else len(rows)
    if name in ("relations", "qa", "qa windows"):
        words = len(flat)  # pairs, or windows
    if name in TAGGING and task.state.config.label_subwords == "all":
        words = sum(e.word_starts[-1] - e.word_starts[0] for e in flat)
    assert float(count) == pytest.approx(words)
