"""Windows of long texts and sentences: every word belongs to one, and nothing is cut in silence."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from finetune.data.tag_schemes import illegal_transitions
from finetune.inference.loop import predict
from finetune.types import TextExample, TokenExample
from tests.tasks.cases import Runs


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
