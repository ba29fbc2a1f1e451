"""A linear-chain conditional random field over words, for many sequences at once.

p(y | x) = exp(s(y)) / Z, where s(y) sums the score of each word's tag (its emission), of each
transition from one tag to the next, and of the first and last tags (Lafferty, McCallum & Pereira,
2001; Jurafsky & Martin, *Speech and Language Processing*, "Conditional Random Fields"; with
emissions of a neural network: Lample et al., 2016). The forward algorithm computes Z,
forward-backward its gradient, all in log space and at least float32; prediction
(``finetune.tasks.viterbi``) needs neither torch nor gradients.

W words of N sequences are laid end to end; sequences have ``num_words`` each (0 is legal). Inside,
words are sorted by position: a step of the recursions takes the words at one position of all
sequences that are long enough, and nothing is padded. ``begins`` and ``ends`` [N] mark sequences
that begin and end a sentence, so that a window inside one does not count start or end scores; None
marks all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from finetune.data.tag_schemes import legal_transitions
from finetune.models.packing import PositionOrder
from finetune.runtime.device import to_device


class CrfScores(NamedTuple):
    """The scores that tag sequences depend on; -inf for illegal transitions."""

    emissions: Tensor  # [W, C]
    start: Tensor  # [C], of the first tag of a sentence
    end: Tensor  # [C], of its last tag
    transitions: Tensor  # [C, C], from the tag of the row to the tag of the column


class LinearChainCrf(nn.Module):
    """Learned start, end and transition scores of tags; -inf for those that the scheme forbids."""

    may_start: Tensor
    may_end: Tensor
    may_follow: Tensor

    def __init__(self, tags: Sequence[str], scheme: str | None) -> None:
        """Make a CRF over tags; with scheme None all transitions are legal."""
        super().__init__()
        num_tags = len(tags)
        self.start = nn.Parameter(torch.zeros(num_tags))
        self.end = nn.Parameter(torch.zeros(num_tags))
        self.transitions = nn.Parameter(torch.zeros(num_tags, num_tags))
        names = ("may_start", "may_end", "may_follow")
        for name, legal in zip(names, legal_transitions(tags, scheme), strict=True):
            self.register_buffer(name, torch.tensor(legal))

    def forward(self, emissions: Tensor) -> CrfScores:
        """Return all scores for words with emissions [W, C]."""
        return CrfScores(
            emissions,
            self.start.masked_fill(~self.may_start, -torch.inf),
            self.end.masked_fill(~self.may_end, -torch.inf),
            self.transitions.masked_fill(~self.may_follow, -torch.inf),
        )


def log_partition(
    scores: CrfScores,
    num_words: Sequence[int],
    begins: Tensor | None = None,
    ends: Tensor | None = None,
) -> Tensor:
    """Return log Z of each sequence, [N]: 0 without words, -inf if no tag sequence is legal."""
    scores, order = _prepare(scores, num_words)
    emissions = scores.emissions[order.words]
    starts = order.edge_scores(scores.start, begins)
    end_scores = order.edge_scores(scores.end, ends)
    inputs = (emissions, starts, scores.transitions, end_scores, order)
    found = _LogPartition.apply(*inputs)  # type: ignore[no-untyped-call]
    return emissions.new_zeros(len(num_words)).index_copy(0, order.sequences, found)


def path_score(
    scores: CrfScores,
    tags: Tensor,
    num_words: Sequence[int],
    begins: Tensor | None = None,
    ends: Tensor | None = None,
) -> Tensor:
    """Return the score s(y) of each sequence, [N], for the tags [W] of its words."""
    scores, order = _prepare(scores, num_words)
    tags = tags[order.words]
    words = scores.emissions[order.words].gather(1, tags[:, None])[:, 0]
    steps = scores.transitions[tags[order.previous], tags[order.num_first :]]
    start = order.edge_scores(scores.start, begins).gather(1, tags[: order.num_first, None])
    end = order.edge_scores(scores.end, ends).gather(1, tags[order.last, None])
    found = (start + end)[:, 0].index_add(0, order.sequence, words)
    found = found.index_add(0, order.sequence[order.num_first :], steps)
    return found.new_zeros(len(num_words)).index_copy(0, order.sequences, found)


def restrict(scores: CrfScores, allowed: Tensor) -> CrfScores:
    """Rule out all tags of words but the ``allowed`` ones ([W, C], boolean).

    Z of the result divided by the original Z is the probability of a partial annotation.
    """
    return scores._replace(emissions=scores.emissions.masked_fill(~allowed, -torch.inf))


class _WordOrder:
    """The words of N sequences sorted by position, longest sequence first.

    There are ``sizes`` words at each position; ``sequences`` [num_first] are sequences with words.
    Sorted words [W] have the given rows ``words`` and are in ``sequences[sequence]``; ``mirror`` is
    the sorted row of the word equally far from the other end. ``previous`` [W - num_first] and
    ``last`` [num_first] are the sorted rows of words before all but first words and of last words.
    """

    def __init__(self, num_words: Sequence[int], device: torch.device) -> None:
        order = PositionOrder.of(num_words)
        lengths, position, sequence = order.lengths, order.position, order.sequence
        offsets = order.sizes.cumsum(0) - order.sizes
        self.sizes: list[int] = order.sizes.tolist()
        self.num_first = self.sizes[0]
        first = torch.arange(self.num_first)
        self.words = to_device(order.rows, device)
        self.sequence = to_device(sequence, device)
        self.previous = to_device((offsets[position - 1] + sequence)[self.num_first :], device)
        self.last = to_device(offsets[lengths[: self.num_first] - 1] + first, device)
        self.mirror = to_device(offsets[lengths[sequence] - 1 - position] + sequence, device)
        self.sequences = to_device(order.sequences[: self.num_first], device)

    def edge_scores(self, scores: Tensor, counted: Tensor | None) -> Tensor:
        """Return start or end scores [C] for each sequence with words; 0 if not ``counted``."""
        rows = scores.expand(self.num_first, -1)
        return rows if counted is None else rows.where(counted[self.sequences, None], 0.0)


def _prepare(scores: CrfScores, num_words: Sequence[int]) -> tuple[CrfScores, _WordOrder]:
    """Return the scores in one type, at least float32, and the order of their words."""
    assert sum(num_words) == len(scores.emissions), "words and emissions do not match"
    kind = torch.promote_types(scores.emissions.dtype, torch.float32)
    kind = torch.promote_types(scores.transitions.dtype, kind)
    wide = CrfScores(*(score.to(kind) for score in scores))
    return wide, _WordOrder(num_words, scores.emissions.device)


def _messages(
    emissions: Tensor, starts: Tensor, transitions: Tensor, ends: Tensor, order: _WordOrder
) -> tuple[Tensor, Tensor]:
    """Return the forward and backward messages to each tag of each word, [W, C] each.

    They are log sums over all tag sequences before and after the word, without its emission. The
    backward algorithm is the forward algorithm on the mirrored chain, so both run in one loop.
    """
    both = torch.stack([emissions, emissions[order.mirror]])  # [2, W, C]
    steps = torch.stack([transitions, transitions.T])[:, None]  # [2, 1, C, C]
    found = [torch.stack([starts, ends])]  # [2, n, C]
    columns = torch.split(both, order.sizes, 1)
    for column, size in zip(columns, order.sizes[1:], strict=False):
        states = (found[-1] + column)[:, :size]  # of sequences that continue
        found.append((states[..., None] + steps).logsumexp(2))
    before, after = torch.cat(found, 1)
    return before, after[order.mirror]


class _LogPartition(torch.autograd.Function):
    """log Z [n] from sorted emissions; its gradient is the expected counts, by forward-backward.

    The backward pass is written out, as autograd's graph of the recursion costs more than the
    recursion, and gives NaN for a sum in which every term is -inf.
    """

    @staticmethod
    def forward(
        ctx: Any,
        emissions: Tensor,
        starts: Tensor,
        transitions: Tensor,
        ends: Tensor,
        order: _WordOrder,
    ) -> Tensor:
        before, after = _messages(emissions, starts, transitions, ends, order)
        begun, ended = before + emissions, after + emissions
        found = (begun[order.last] + ends).logsumexp(-1)
        ctx.save_for_backward(begun, transitions, after, ended, found)
        ctx.order = order
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        begun, transitions, after, ended, found = ctx.saved_tensors
        order: _WordOrder = ctx.order
        words = (begun + after - found[order.sequence, None]).exp()  # [W, C]
        words *= gradient[order.sequence, None]
        later = slice(order.num_first, None)
        sequence = order.sequence[later]
        steps = begun[order.previous][:, :, None] + transitions
        steps += (ended[later] - found[sequence, None])[:, None]  # [W - n, C, C]
        steps = steps.exp_().mul_(gradient[sequence, None, None]).sum(0)  # [C, C]
        return words, words[: order.num_first], steps, words[order.last], None
