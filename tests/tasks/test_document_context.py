"""Document context: what is read with a sentence, that it alone is answered and learnt, and that a
saved model, a stream and a file read the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune import load
from finetune.config.tasks import NerConfig, TagConfig, TrainConfig
from finetune.data import Dataset
from finetune.inference.loop import predict
from finetune.preprocessing.batching import pack
from finetune.preprocessing.context import surrounded
from finetune.tasks import load_task, saved_task
from finetune.tasks.word_task import WordTask
from finetune.training.cache import encoding_key
from finetune.training.trainer import fit
from finetune.types import TokenExample, TokenSequence
from tests import fixtures as fx
from tests.command import run
from tests.covering import few
from tests.small_data import close, read_jsonl, write_jsonl
from tests.tasks.test_tasks import dicts

SETUPS: dict[str, tuple[type[TrainConfig], dict[str, Any]]] = {
    "tag": (TagConfig, {}),
    "all": (TagConfig, {"label_subwords": "all"}),
    "crf": (TagConfig, {"crf": True}),
    "ner": (NerConfig, {}),
}
LENGTH = 24


def task_of(setup: str = "tag", family: str = "bert", **changes: Any) -> tuple[Any, Dataset]:
    config, own = SETUPS[setup]
    chosen = {"context": "doc", "max_length": LENGTH, **own, **changes}
    model, data = fx.checkpoint(family, dropout=0.0), fx.data("documents")
    made = config(model=str(model), data=str(data), precision="fp32", **chosen)
    return load_task(made, "ner" if config is NerConfig else "tag")


def in_context(task: WordTask, examples: Iterable[TokenExample]) -> Iterator[TokenExample]:
    reach = task.state.context_words
    return surrounded(examples, reach) if reach else iter(examples)


def windows_of(task: WordTask, examples: Sequence[TokenExample]) -> list[list[TokenSequence]]:
    return [list(each) for each in task.encode(examples)]


# What is read

WORDS = "Anna saw New York and General Motors in unbelievably Brussels guitar , .".split()


@pytest.mark.parametrize(("context", "max_length"), [("doc", 60), ("doc", 30), ("8", 60)])
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("setup", ["tag", "ner"])
def test_context_is_the_running_text_of_the_document(
    family: str, setup: str, context: str, max_length: int
):
    """A document is read as if it were one sentence, as far as there is room on both sides."""
    task, _ = task_of(setup, family, context=context, max_length=max_length)
    rows = [tuple(WORDS[:3]), tuple(WORDS[3:7]), tuple(WORDS[7:])]
    examples = [TokenExample(i, words, document="d") for i, words in enumerate(rows)]
    ((whole,),) = windows_of(task_of(setup, family, max_length=60)[0], [TokenExample(0, (*WORDS,))])
    first = 0
    for example, (window,) in zip(
        examples, windows_of(task, list(in_context(task, examples))), strict=True
    ):
        last = first + len(example.words)
        shift = whole.word_starts[first] - window.word_starts[0]  # the subwords that are left out
        assert window.word_starts == [
            start - shift for start in whole.word_starts[first : last + 1]
        ]
        inner = window.input_ids[1:-1]
        assert whole.input_ids[shift + 1 :][: len(inner)] == inner and window.first_word == 0
        sides = window.word_starts[0] - 1, len(inner) + 1 - window.word_starts[-1]
        assert sum(sides) and len(window.input_ids) <= max_length
        assert max(sides) <= (8 if context == "8" else max_length)
        if (context, max_length) == ("doc", 60):
            assert window.input_ids == whole.input_ids
        first = last


@pytest.mark.parametrize("setup", SETUPS)
def test_none_is_what_there_was(setup: str):
    """Neighbours that an example happens to have do nothing without --context."""
    task, dataset = task_of(setup, context="none")
    bare = dataset.splits["train"]
    assert not any(row.before or row.after for row in bare)
    assert list(in_context(task, bare)) == bare
    near = list(surrounded(bare, 99))
    assert any(row.before for row in near)
    assert windows_of(task, near) == windows_of(task, bare)
    assert encoding_key(task, near) == encoding_key(task, bare)
    for (window,), row in zip(windows_of(task, bare), bare, strict=True):
        (pieces,) = task.tokenizer.word_subwords([row.words])
        assert window.input_ids == task.tokenizer.build([*chain(*pieces)])[0]


def test_long_sentences_are_read_in_windows_as_without():
    task, bare = task_of()[0], task_of(context="none")[0]
    rows = [("Anna", "saw"), ("river",) * 60, ("in", "Brussels")]
    examples = [TokenExample(i, words, document="d") for i, words in enumerate(rows)]
    near = list(in_context(task, examples))
    found, without = windows_of(task, near), windows_of(bare, near)
    assert len(found[1]) > 2 and found[1] == without[1]
    river = len(task.tokenizer.word_subwords([("river",)])[0][0])
    assert LENGTH - river < len(found[0][0].input_ids) <= LENGTH
    assert len(without[0][0].input_ids) < 8


def test_rows_without_gold_are_read_all_the_same(tmp_path: Path):
    rows = [
        {"tokens": ["a", "river"], "document": "d"},
        {"tokens": ["Anna", "saw"], "tags": ["B-PER", "O"], "document": "d"},
        {"tokens": ["a", "guitar"], "document": "d"},
    ]
    write_jsonl(tmp_path / "train.jsonl", rows)
    write_jsonl(tmp_path / "validation.jsonl", rows)
    config = TagConfig(model=str(fx.checkpoint(dropout=0.0)), data=str(tmp_path), context="doc")
    task, dataset = load_task(config, "tag")
    (row,) = dataset.splits["train"]
    assert (row.before, row.after) == ((("a", "river"),), (("a", "guitar"),))
    ((window,),) = windows_of(task, [row])
    assert window.num_words == len(window.target["tag"]) == 2


# What is learnt and answered


@pytest.mark.parametrize("setup", SETUPS)
def test_context_carries_no_loss(setup: str):
    """The loss counts the sentences' own words, and neighbours' tags do not change it."""
    task, dataset = task_of(setup)
    rows = dataset.splits["train"]
    sequences = [window for windows in task.encode(rows) for window in windows]
    batch = pack(sequences, task.collate(sequences))
    assert sum(batch.num_words) == sum(len(row.words) for row in rows) < len(batch.input_ids) / 2
    head = task.model().eval()
    total, count = task.loss(head(batch), batch)
    assert torch.isfinite(total)
    if setup != "all":
        assert int(count) == sum(batch.num_words)
    alone = [windows for row in rows for windows in task.encode([row])]
    assert [w.target for windows in alone for w in windows] == [s.target for s in sequences]


@pytest.mark.parametrize("setup", few(SETUPS, "tag", "ner"))
def test_a_sentence_is_answered_alike_in_any_company(setup: str):
    task, dataset = task_of(setup)
    head = task.model().eval()
    bare = [replace(row, before=(), after=()) for row in dataset.splits["test"]]
    expected = dicts(predict(task, head, list(in_context(task, bare))))
    for chunk in (1, 3, 1000):
        found = fx.stream(task, head, iter(bare), chunk=chunk)
        assert close(dicts(found), expected, 1e-5)
    near = list(in_context(task, bare))
    alone = [predict(task, head, [row])[0] for row in near]
    assert close(dicts(alone), expected, 1e-5)
    if setup == "tag":
        without = dicts(predict(task, head, bare))
        largest = max(
            abs(a - b)
            for one, other in zip(without, expected, strict=True)
            for a, b in zip(one["scores"], other["scores"], strict=True)
        )
        assert largest > 1e-3, "the context says something"


def test_the_key_of_kept_sequences_knows_the_context():
    task, dataset = task_of()
    rows = dataset.splits["train"]
    key = encoding_key(task, rows)
    assert key == encoding_key(task_of()[0], task_of()[1].splits["train"])
    assert key != encoding_key(task_of(context="8")[0], rows)
    number = next(i for i, row in enumerate(rows) if row.after)
    words = (("other",), *rows[number].after[1:])
    assert key != encoding_key(task, [*rows[:number], replace(rows[number], after=words)])
    changed = [*rows[:number], replace(rows[number], after=words), *rows[number + 1 :]]
    assert key != encoding_key(task, changed)


# From the command line

FLAGS = ("--max-length", "24", "--precision", "fp32", "--steps", "4")


def trained(setup: str) -> Path:
    sizes = {"max_length": 24, "steps": 4}
    given = {"model": fx.checkpoint(dropout=0.0), "data": fx.data("documents"), **sizes}
    return fx.trained(
        "ner" if setup == "ner" else "tag", context="doc", crf=setup == "crf" or None, **given
    )


@pytest.mark.parametrize("setup", few(["tag", "crf", "ner"], "crf"))
def test_a_saved_model_reads_files_in_context(setup: str):
    """Documents of other formats are read alike (tests/preprocessing/test_context.py)."""
    task = saved_task(trained(setup))
    assert (task.state.config.context, task.state.max_length) == ("doc", 24)
    expected = read_jsonl(trained(setup) / "predictions.test.jsonl")
    for row in expected:
        for name in ("gold", "where", "document"):
            del row[name]
    path = fx.data("documents") / "test.jsonl"
    for source, stdin in ((path, b""), ("-", path.read_bytes())):
        outcome = run("predict", trained(setup), "--file", source, stdin=stdin).ok()
        assert not outcome.err and close(outcome.rows, expected, 1e-5)


def test_inputs_without_documents_are_counted(tmp_path: Path):
    (tmp_path / "a.txt").write_text("Anna saw it\na river .\n")
    outcome = run("predict", trained("tag"), "--file", tmp_path / "a.txt")
    assert len(outcome.rows) == 2
    assert outcome.err.startswith("2 inputs without a document, read without context")
    assert run("predict", trained("tag"), "--text", "Anna saw it").err == ""


def test_from_python():
    model = load(trained("tag"))
    texts = [["Anna", "saw", "it"], ["a", "river", "."], "a guitar ."]
    alone = model.predict(texts)
    words = [["Anna", "saw", "it"], ["a", "river", "."], ["a", "guitar", "."]]
    together = model.predict({"words": words, "document": ["1", "1", "2"]})
    assert [answer.id for answer in together] == [0, 1, 2]
    assert together[2].scores == pytest.approx(alone[2].scores, abs=1e-5)
    assert together[0].scores != pytest.approx(alone[0].scores, abs=1e-3)
    row = TokenExample(0, ("Anna", "saw", "it"), after=(("a", "river", "."),))
    (expected,) = predict(model.task, model.model, [row])
    assert together[0].scores == pytest.approx(expected.scores, abs=1e-5)
    (named,) = model.predict([replace(row, document="d")])
    assert named.scores == pytest.approx(expected.scores, abs=1e-5)


# What is refused


@pytest.mark.parametrize("task", ["tag", "ner"])
def test_data_without_documents(task: str, tmp_path: Path):
    entities = fx.data("entities")
    where = ("--model", fx.checkpoint(dropout=0.0), "--out", tmp_path / "run")
    run(task, *where, "--data", entities, "--context", "doc", *FLAGS).refused(
        "--context doc: no sentence of train in entities names its document",
        "-DOCSTART-",
        "# newdoc",
        "`document`",
        "leave --context out",
    )
    rows = read_jsonl(fx.data("documents") / "train.jsonl")
    write_jsonl(tmp_path / "mixed" / "train.jsonl", rows)
    (tmp_path / "mixed" / "test.jsonl").write_text((entities / "test.jsonl").read_text())
    mixed = run(task, *where, "--data", tmp_path / "mixed", "--context", "9", *FLAGS)
    mixed.refused("--context 9: no sentence of test in mixed names its document")
    single = [{**row, "document": str(number)} for number, row in enumerate(rows)]
    write_jsonl(tmp_path / "single" / "train.jsonl", single)
    lonely = run(task, *where, "--data", tmp_path / "single", "--context", "doc", *FLAGS)
    lonely.refused("each document of train in single has one sentence")


@pytest.mark.slow
def test_learns_what_only_the_neighbours_say(tmp_path: Path):
    """Whether a name is a person or a place is drawn by lot; the sentence beside it tells."""
    config = fx.config(
        "tag",
        model=fx.checkpoint(dropout=0.0),
        data=fx.data("documents", (240, 12, 120)),
        context="doc",
        steps=120,
        eval_every=120,
        batch_size=24,
        max_length=None,
        lr=1e-2,
        out=str(tmp_path / "run"),
    )
    metrics = fit(*load_task(config, "tag"), config).metrics
    assert metrics["test"]["span_f1_strict"] > 0.8, "without context it is about 0.5"
