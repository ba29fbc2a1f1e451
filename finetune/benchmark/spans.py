"""Forward and backward passes of span heads over the same word vectors.

``naive`` gathers a vector for each candidate and passes it through the network. ``finetune``
factorizes the first layer, with and without recomputing the hidden activations in the backward
pass. These share weights and input, and their scores are compared before they are timed. ``gliner``
is the head of GLiNER (Zaratiana et al., 2024, NAACL), with other weights.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finetune.benchmark import measure
from finetune.models.heads import span_scorers as span_scoring
from finetune.models.heads.span_scorers import BiaffineScorer, FactorizedScorer, SpanLayout
from finetune.preprocessing.batching import pack
from finetune.types import Batch, Encoding

NUM_CLASSES = 6
REPRESENTATIONS = ("boundary", "attention", "biaffine")
DIRECT, RECOMPUTED = 2**60, 0
"""Budgets in bytes with which nothing, and everything, is recomputed."""

TOLERANCE = 1e-3
"""Largest difference of two scores; means by prefix sums lose digits to cancellation."""


@dataclass(frozen=True, slots=True)
class Case:
    """A batch of sequences of ``lengths`` words, vectors of ``width``, spans of ``max_width``."""

    name: str
    lengths: tuple[int, ...]
    max_width: int
    width: int


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to compute the scores [S, C], with the bytes of activations that it may keep.

    With ``same`` its scores must equal the scores of the first arm.
    """

    name: str
    scores: Callable[[], Tensor]
    budget: int
    same: bool = True

    def run(self) -> Tensor:
        """Go forward and backward; returns the scores [S, C]."""
        with activation_budget(self.budget):
            scores = self.scores()
            scores.sum().backward()
        return scores.detach()


def cases(which: str) -> list[Case]:
    """The cases of a size (see `finetune bench --size`)."""
    if which == "small":
        return [Case("2 tiny w4 d16", (3, 7), 4, 16)]
    if which == "default":
        return [Case(f"4x128 w12 d{width}", (128,) * 4, 12, width) for width in (384, 768)]
    mixed = tuple(map(random.Random(0).randint, [4] * 32, [40] * 32))
    batches = {"4x128": (128,) * 4, "1x512": (512,)}
    found = [
        Case(f"{name} w{max_width} d{width}", lengths, max_width, width)
        for name, lengths in batches.items()
        for max_width in (12, 20)
        for width in (384, 768)
    ]
    return [*found, Case("32 mixed 4-40 w12 d384", mixed, 12, 384)]


def cases_of(which: str, device: torch.device) -> Iterator[measure.Case]:
    """The cases of a size on a device, one by one; ``default`` leaves biaffine out."""
    shown = REPRESENTATIONS[:2] if which == "default" else REPRESENTATIONS
    for case, representation in itertools.product(cases(which), shown):
        arms, layout = prepared(case, representation, device)
        work = measure.Work(len(case.lengths), sum(case.lengths))
        found = tuple(
            measure.Arm(
                arm.name, "fp32", work, functools.partial(measure.seconds, arm.run, device), arm.run
            )
            for arm in arms
        )
        yield measure.Case("span", case.name, found, representation, layout.size)


def naive_scores(scorer: FactorizedScorer, words: Tensor, layout: SpanLayout) -> Tensor:
    """Scores [S, C] from vectors of words [W, H], with a vector [2h + H] of each candidate."""
    starts = scorer.start_network(words)[layout.start]  # [S, h]
    ends = scorer.end_network(words)[layout.start + layout.width - 1]
    content = _content(scorer, words, layout)  # [S, H]
    weight = torch.cat([scorer.start.weight, scorer.end.weight, scorer.content.weight], 1)
    inner = F.linear(torch.cat([starts, ends, content], 1), weight, scorer.start.bias)  # [S, h]
    scores: Tensor = scorer.output(F.gelu(inner + scorer.width(layout.width - 1)))
    return scores


def _content(scorer: FactorizedScorer, words: Tensor, layout: SpanLayout) -> Tensor:
    """Mean or attended vectors [S, H] of the candidates' words; L words of each are gathered."""
    start, width = layout.start, layout.width
    if scorer.attention is None:  # the cheapest gather
        sums = F.pad(words.cumsum(0), (0, 0, 1, 0))  # [W + 1, H]
        return (sums[start + width] - sums[start]) / width[:, None]
    offsets = torch.arange(layout.widest, device=words.device)
    windows = words[(start[:, None] + offsets).clamp(max=len(words) - 1)]  # [S, L, H]
    outside = offsets >= width[:, None]
    shares = scorer.attention(windows)[..., 0].masked_fill(outside, -torch.inf).softmax(-1)
    attended: Tensor = (shares[:, None] @ windows)[:, 0]
    return attended


def naive_biaffine_scores(scorer: BiaffineScorer, words: Tensor, layout: SpanLayout) -> Tensor:
    """Scores [S, C] from vectors of words [W, H], with a product U s_i [C, h] of each candidate."""
    starts = scorer.start_network(words)[layout.start]  # [S, h]
    ends = scorer.end_network(words)[layout.start + layout.width - 1]
    left = scorer.product(starts).unflatten(1, (NUM_CLASSES, -1))  # [S, C, h]
    bilinear = torch.einsum("sch,sh->sc", left, ends)
    scores: Tensor = bilinear + scorer.start(starts) + scorer.end(ends)
    return scores


class GlinerHead(nn.Module):
    """GLiNER's SpanMarkerV0: a two-layer network for each span.

    Start and end vectors [H] of words go through networks H -> 4H -> H; both vectors of a span go
    through a network 2H -> 4H -> H. The result is multiplied with a vector of each type [C, H] (in
    GLiNER, of the name of the type). As in GLiNER, sequences are padded to the longest, and spans
    beyond the end of a sequence are computed too. Dropout is left out.
    """

    def __init__(self, width: int, num_classes: int, max_width: int) -> None:
        super().__init__()
        self.start, self.end = _two_layers(width, width), _two_layers(width, width)
        self.span = _two_layers(2 * width, width)
        self.types = nn.Parameter(torch.randn(num_classes, width) / width**0.5)
        self.max_width = max_width

    def forward(self, words: Tensor, num_words: Sequence[int]) -> Tensor:
        """Scores [S, C] of the candidates, ordered as in ``SpanLayout``, from vectors of words
        [W, H]."""
        padded = nn.utils.rnn.pad_sequence(words.split(list(num_words)), batch_first=True)
        starts, ends = self.start(padded), self.end(padded)  # [N, longest, H]
        offsets = torch.arange(self.max_width, device=words.device)
        first = torch.arange(padded.shape[1], device=words.device)[:, None]
        last = (first + offsets).clamp(max=padded.shape[1] - 1)  # [longest, K]
        both = torch.cat([starts[:, first.expand_as(last)], ends[:, last]], -1)
        spans = self.span(both.relu())  # [N, longest, K, H]
        scores = torch.einsum("nwkh,ch->nwkc", spans, self.types)
        limits = torch.tensor(list(num_words), device=words.device)[:, None, None]
        return scores[first + offsets < limits]


def _two_layers(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * out), nn.ReLU(), nn.Linear(4 * out, out))


def arms_of(case: Case, representation: str, words: Tensor, layout: SpanLayout) -> list[Arm]:
    """Return the arms of one representation over the same vectors [W, H], the naive arm first.

    The biaffine scorer has no activations [S, h] to recompute. GLiNER's head is compared with
    ``boundary``.
    """
    device = words.device
    if representation == "biaffine":
        biaffine = BiaffineScorer(case.width, span_scoring.BIAFFINE_WIDTH, NUM_CLASSES, 0.0)
        biaffine.to(device)
        return [
            Arm("naive", lambda: naive_biaffine_scores(biaffine, words, layout), DIRECT),
            Arm("finetune", lambda: biaffine(words, layout), DIRECT),
        ]
    sizes = (case.width, case.width, NUM_CLASSES, case.max_width)
    scorer = FactorizedScorer(representation, *sizes, dropout=0.0).to(device)
    arms = [
        Arm("naive", lambda: naive_scores(scorer, words, layout), DIRECT),
        Arm("finetune", lambda: scorer(words, layout), DIRECT),
        Arm("finetune-recomputed", lambda: scorer(words, layout), RECOMPUTED),
    ]
    if representation == "boundary":
        gliner = GlinerHead(case.width, NUM_CLASSES, case.max_width).to(device)
        arms.append(Arm("gliner", lambda: gliner(words, case.lengths), DIRECT, same=False))
    return arms


def prepared(case: Case, representation: str, device: torch.device) -> tuple[list[Arm], SpanLayout]:
    """The arms of a case; raises AssertionError where scores differ that should not."""
    torch.manual_seed(0)
    layout = SpanLayout(_batch(case.lengths).to(device), case.max_width)
    words = torch.randn(sum(case.lengths), case.width, device=device, requires_grad=True)
    arms = arms_of(case, representation, words, layout)
    compare(arms)
    return arms, layout


def _batch(lengths: Sequence[int]) -> Batch:
    """Return sequences of these numbers of words, one subword each, between two special tokens."""
    ids_and_starts = [([0] * (length + 2), [*range(1, length + 2)]) for length in lengths]
    return pack([Encoding(n, ids, None, starts) for n, (ids, starts) in enumerate(ids_and_starts)])


def compare(arms: Sequence[Arm]) -> None:
    """Raise AssertionError unless all arms have the scores of the first arm; also warms them up.

    Arms with other weights must have the same number of scores.
    """
    expected = arms[0].run()
    for arm in arms[1:]:
        say = f"{arm.name} differs from {arms[0].name}: ".__add__
        found = arm.run()
        if arm.same:
            torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE, msg=say)
        assert found.shape == expected.shape, say(f"{found.shape}, not {expected.shape}")


@contextlib.contextmanager
def activation_budget(size: int) -> Iterator[None]:
    """Let the scorers keep ``size`` bytes of activations within a ``with`` block."""
    before = span_scoring.ACTIVATION_BUDGET
    span_scoring.ACTIVATION_BUDGET = size
    try:
        yield
    finally:
        span_scoring.ACTIVATION_BUDGET = before
