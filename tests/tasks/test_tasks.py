"""The contract that every task keeps: learn, answer its own gold, load again, also in transformers.

Of long texts and sentences every word belongs to one window, and nothing is cut in silence.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from finetune.data.tag_schemes import illegal_transitions
from finetune.inference import loop as prediction
from finetune.inference.loop import predict
from finetune.models import attention
from finetune.models.heads.crf import LinearChainCrf
from finetune.preprocessing.batching import micro_batches, pack
from finetune.registry import TASKS
from finetune.tasks import save_task, saved_task, task_class
from finetune.tasks.base import Task
from finetune.types import IGNORED, TextExample, TokenExample
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
    starts = [*range(0, len(whole) - 14, 7), len(whole) - 14]  # each shares half with the next
    assert rows == [whole[start : start + 14] for start in starts]


def test_windows_of_pairs_count_what_they_cut(runs: Runs) -> None:
    """The shorter text stands whole in every window, or is counted as cut."""
    task, _ = runs.task("pair", long_text="window", max_length=20)
    short, long = "the dog", "a big red dog in the garden " * 4
    for text, pair, cut in ((short, long, 0), (long, short, 0), (long, long, 1)):
        encoded = task.encode([TextExample(0, text, pair, "a")])
        (windows,) = encoded
        assert len(windows) > 1
        assert all(len(window.input_ids) <= 20 for window in windows)
        assert encoded.num_cut == cut
    assert task.encode([TextExample(0, short, short, "a")]).num_cut == 0


def test_long_texts_are_cut_and_counted(runs: Runs) -> None:
    long = [TextExample(0, "dog " * 60, None, "pos", "f.jsonl:3"), TextExample(1, "dog")]
    task, _ = runs.task("single")
    encoded = task.encode(long)
    assert len(encoded[0][0].input_ids) == 40
    assert encoded.num_cut == 1


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
    model = str(runs.workdir / family)
    task, _ = runs.task(name, max_length=24, model=model)
    head = task.model().eval()
    sentences = odd_sentences()
    answers = predict(task, head, sentences)
    for sentence, answer in zip(sentences, answers, strict=True):
        assert (answer.id, answer.words) == (sentence.id, sentence.words)
        assert len(answer.tags) == len(answer.scores) == len(sentence.words)
        assert all(0 < score <= 1 + 1e-6 for score in answer.scores)
        assert all(span.end <= len(sentence.words) for span in answer.spans)
        assert name == "bio" or not illegal_transitions(answer.tags, "BIOES"), "over windows too"
    assert task.encode(sentences).num_cut >= 4, "words longer than a window are counted"


@pytest.mark.parametrize("name", ["bio", "bio all mean"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_each_word_is_owned_and_learnt_once(runs: Runs, name: str, family: str) -> None:
    task, _ = runs.task(name, max_length=24, model=str(runs.workdir / family))
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
                size = end - start if task.state.all_subwords else 1
                target = [next(own) for _ in range(size)]
                targets.append(task.state.labels[target[0]])
                rest = {task.state.labels[i].replace("B-", "I-") for i in target[1:]}
                assert rest <= {targets[-1].replace("B-", "I-")}
                assert not any(task.state.labels[i].startswith("B-") for i in target[1:])
            assert next(own, None) is None
        assert owned == list(range(len(sentence.words)))
        assert tuple(targets) == sentence.tags


def test_overlap_must_leave_room(runs: Runs) -> None:
    """A setting is kept or refused, never made smaller in silence."""
    kept, dataset = runs.task("qa windows", max_length=24, overlap=12)
    assert kept.encode(dataset.splits["train"])
    with pytest.raises(ValueError, match=r"--overlap 13 is over half of --max-length 24"):
        task, dataset = runs.task("qa windows", max_length=24, overlap=13)
        task.encode(dataset.splits["train"])


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
    assert plain.model.config.label2id == {n: i for i, n in enumerate(run.task.state.labels)}
    assert attention.NAME not in (run.folder / "config.json").read_text()


def test_regression_model_agrees(runs: Runs) -> None:
    run = runs.run("regression")
    plain = pipeline("text-classification", model=str(run.folder))
    examples = run.data.splits["validation"]
    for example, answer in zip(examples, predict(run.task, run.head, examples), strict=True):
        assert plain(example.text)[0]["score"] == pytest.approx(answer.label, abs=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("name", ["bio", "pos"])
def test_token_classification_agrees(runs: Runs, name: str, family: str, tmp_path: Path) -> None:
    """Word for word, by split words and through the pipeline on the running text."""
    task, dataset = runs.task(name, model=str(runs.workdir / family))
    head = task.model().eval()
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
