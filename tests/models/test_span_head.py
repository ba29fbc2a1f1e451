"""The span scorer equals its textbook form, in logits and gradients; saving, loading, memory."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel

from finetune.models.heads import span_scorers as span_scoring
from finetune.models.heads.span_classifier import PRIOR, REPRESENTATIONS, SpanClassifier
from finetune.models.heads.span_scorers import SpanLayout
from finetune.preprocessing.batching import pack
from finetune.preprocessing.span_candidates import candidates
from finetune.types import Batch, TokenSequence
from tests import fixtures as fx
from tests import tiny
from tests.covering import covering
from tests.models.heads import LABELS, words_of
from tests.models.heads import head_of as tiny_head
from tests.models.parity import assert_equal, assert_same_gradients, encodings


def head_of(family: str = "bert", *, dropout: float = 0.0, **settings) -> SpanClassifier:
    """A head over a tiny encoder with weights large enough to matter, in float64."""
    return tiny_head("boundary", family, dropout=dropout, settings=settings)


def sequences(head: SpanClassifier) -> list[TokenSequence]:
    """Sequences with many words, one word and no words; words of one piece and of many."""
    made = words_of(encodings(head.model))
    made.append(TokenSequence(10, [5, 6, 7, 8, 9, 10, 11], None, [1, 5]))
    made.append(TokenSequence(11, list(range(5, 45)), None, list(range(1, 40))))
    return made


def naive_spans(batch: Batch, max_width: int) -> list[tuple[int, int]]:
    """First word and word after the last of each candidate, among all words of the batch."""
    positions, begin = [], 0
    for length in batch.num_words:
        for start in range(length):
            widest = min(max_width, length - start)
            positions += [(begin + start, begin + start + width) for width in range(1, widest + 1)]
        begin += length
    return positions


def naive(head: SpanClassifier, batch: Batch) -> Tensor:
    """Equations 11.21 to 11.26 as they are written: gather, concatenate, feed forward."""
    hidden, scorer = head.encoder(batch), head.scorer
    words = torch.stack([hidden[row] for row in batch.words.tolist()])
    positions = naive_spans(batch, head.config.max_width)
    starts, ends = scorer.start_network(words), scorer.end_network(words)
    contents = []
    for i, j in positions:
        weights = words.new_full((j - i,), 1 / (j - i))
        if head.config.representation == "attention":
            weights = scorer.attention(words[i:j])[:, 0].softmax(0)
        contents.append(weights @ words[i:j])
    first, last = zip(*positions, strict=True)
    vectors = torch.cat(
        [starts[list(first)], ends[[j - 1 for j in last]], torch.stack(contents)], 1
    )  # [S, 3H]
    weight = torch.cat([scorer.start.weight, scorer.end.weight, scorer.content.weight], 1)
    widths = torch.tensor([j - i - 1 for i, j in positions])
    hidden = F.gelu(F.linear(vectors, weight, scorer.start.bias) + scorer.width(widths))
    return scorer.output(hidden)


def assert_equals_naive(head: SpanClassifier, batch: Batch, tolerance: float = 1e-12) -> None:
    reference = copy.deepcopy(head)
    logits, expected = head(batch), naive(reference, batch)
    assert_equal(logits, expected, head, reference, tolerance)


@pytest.mark.parametrize(
    ("max_width", "representation"), covering([1, 3, 7, 100], [*REPRESENTATIONS])
)
def test_equals_the_textbook_form(representation, max_width) -> None:
    head = head_of(representation=representation, max_width=max_width)
    batch = pack(sequences(head))
    assert {0, 1, 38} <= set(batch.num_words)
    assert_equals_naive(head, batch)


@pytest.mark.parametrize("max_width", [1, 2, 5, 100])
def test_order_of_candidates(max_width: int) -> None:
    batch = pack(sequences(head_of()))
    layout = SpanLayout(batch, max_width)
    positions = naive_spans(batch, max_width)
    found = list(zip(layout.start.tolist(), (layout.start + layout.width).tolist(), strict=True))
    assert found == positions
    assert layout.size == len(positions) == sum(layout.counts)
    begins = batch.words_cu.tolist()
    numbered = [
        (begin + start, begin + end)
        for begin, length in zip(begins, batch.num_words, strict=False)
        for start, end in candidates(length, max_width).tolist()
    ]
    assert found == numbered


@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_no_words_and_single_words(representation: str) -> None:
    """Every weight has a gradient, zero perhaps: processes add up theirs one by one."""
    head = head_of(representation=representation, max_width=3)
    for last in (TokenSequence(1, [5]), TokenSequence(1, [5, 6, 7], None, [1, 2])):
        logits = head(pack([TokenSequence(0, [5, 6, 7]), last]))
        assert logits.shape == (last.num_words, 4)
        logits.sum().backward()
        assert all(parameter.grad is not None for parameter in head.parameters())
        head.zero_grad(set_to_none=True)


@pytest.mark.parametrize("representation", ["boundary", "ffn", "attention"])
def test_recomputing_changes_nothing(representation: str, monkeypatch) -> None:
    direct = head_of(representation=representation, dropout=0.2, max_width=9).train()
    again = copy.deepcopy(direct)
    batch = pack(sequences(direct))
    runs, results = [], []

    def recorded(function, width: int, *inputs, **how) -> Tensor:
        runs.append(width)
        return torch.utils.checkpoint.checkpoint(function, width, *inputs, **how)

    monkeypatch.setattr(span_scoring, "checkpoint", recorded)
    for head, budget in ((direct, span_scoring.ACTIVATION_BUDGET), (again, 0)):
        monkeypatch.setattr(span_scoring, "ACTIVATION_BUDGET", budget)
        torch.manual_seed(3)
        logits = head(batch)
        logits.square().sum().backward()
        results.append(logits)
    assert runs == list(range(1, 10))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)
    assert_same_gradients(again, direct, 1e-12)
    with torch.no_grad():
        again(batch)
    assert len(runs) == 9, "nothing to recompute where there is no backward pass"


def sharp(head: SpanClassifier) -> SpanClassifier:
    """Scores of words hundreds apart, where differences of prefix sums are no numbers."""
    with torch.no_grad():
        head.scorer.attention.weight.mul_(200)
    return head


def test_half_precision_with_sharp_attention() -> None:
    head = sharp(head_of(representation="attention", max_width=12)).float()
    batch = pack(sequences(head))
    exact = copy.deepcopy(head).double()(batch)
    torch.testing.assert_close(head(batch).double(), exact, rtol=0, atol=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(batch)
        logits.float().square().sum().backward()
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_half_precision_is_close(representation: str) -> None:
    """Autocast, and weights in bfloat16, err by what bfloat16 does and no more over long spans."""
    head = head_of(representation=representation, max_width=32, hidden=64)
    words = torch.randn(58, tiny.WIDTH, dtype=torch.double)
    layout = SpanLayout(pack([TokenSequence(0, list(range(5, 65)), None, list(range(1, 60)))]), 32)
    exact = head.scorer(words, layout)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = copy.deepcopy(head).float().scorer(words.float(), layout)
    half = copy.deepcopy(head).bfloat16().scorer(words.bfloat16(), layout)
    for logits in (mixed, half):
        assert logits.dtype == torch.bfloat16
        error = (logits.double() - exact).abs()
        assert error.mean() < 0.02 * exact.abs().mean()
        wide = layout.width > 16
        assert error[wide].mean() < 2 * error[~wide].mean()


@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_a_new_scorer_expects_few_spans(representation: str, tmp_path) -> None:
    source = str(fx.checkpoint())
    settings = {"representation": representation, "max_width": 4}
    head = SpanClassifier.from_pretrained(source, labels=LABELS, **settings)
    bias = [0.0, *[math.log(PRIOR / len(LABELS))] * len(LABELS)]
    torch.testing.assert_close(head.scorer.output.bias.detach(), torch.tensor(bias))
    head.config.thresholds = {"PER": 0.25}
    head.save_pretrained(tmp_path / "saved")
    loaded = AutoModel.from_pretrained(tmp_path / "saved")
    assert loaded.config.thresholds == {"PER": 0.25}
    assert torch.equal(loaded.scorer.output.bias, head.scorer.output.bias)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"representation": "bondary"}, "one of boundary, ffn.*Perhaps you meant 'boundary'"),
        ({"decoding": "any"}, "one of flat, nested, overlapping"),
        ({"max_width": 0}, "1 or more, not 0"),
        ({"labels": []}, "at least one label"),
        ({"labels": ["a", "a"]}, "'a' occurs twice"),
        ({"num_labels": 2}, "name the labels instead"),
    ],
)
def test_what_is_refused(settings, message, tmp_path) -> None:
    source = str(fx.checkpoint())
    with pytest.raises(ValueError, match=message) as caught:
        SpanClassifier.from_pretrained(source, **({"labels": LABELS, "max_width": 3} | settings))
    assert "\n" not in str(caught.value)
