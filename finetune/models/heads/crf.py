"""A linear-chain conditional random field over words, for many sequences at once.

p(y | x) = exp(s(y)) / Z, where s(y) sums the score of each word's tag (its emission), of each
step from one tag to the next, and of the tags that begin and end the sequence (Lafferty, McCallum
& Pereira, 2001; Jurafsky & Martin, *Speech and Language Processing*, "Conditional Random Fields";
over a neural network's emissions: Lample et al., 2016). Z by the forward algorithm, marginals by
forward-backward, the best sequence by Viterbi: all in log space, in float32 at least.

Sequences are laid end to end, as everywhere: W words of N sequences, ``num_words`` each (0 too).
Inside, words are sorted by their place: a step of the recursions takes the words at one place of
all sequences that are so long, and nothing is padded. ``begins`` and ``ends`` [N] say which
sequences begin and end a sentence, so that a piece of one does not count the scores of its edges;
None says that all do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from finetune.data.tag_schemes import legal_transitions
from finetune.runtime.transfer import to_device


class CrfScores(NamedTuple):
    """The scores of W words' tags, of C tags to begin and to end a sentence, and of tags [C, C]
    to follow one another (the earlier tag in the row); -inf where that is illegal."""

    emissions: Tensor
    start: Tensor
    end: Tensor
    transitions: Tensor


class LinearChainCrf(nn.Module):
    """Learned scores of tags that begin, end and follow one another.

    All start at 0; those that the tag scheme forbids stand at -inf and are never trained away.
    """

    may_start: Tensor
    may_end: Tensor
    may_follow: Tensor

    def __init__(self, tags: Sequence[str], scheme: str | None) -> None:
        """A CRF over tags; with scheme None all transitions are legal."""
        super().__init__()
        num_tags = len(tags)
        self.start = nn.Parameter(torch.zeros(num_tags))
        self.end = nn.Parameter(torch.zeros(num_tags))
        self.transitions = nn.Parameter(torch.zeros(num_tags, num_tags))
        names = ("may_start", "may_end", "may_follow")
        for name, legal in zip(names, legal_transitions(tags, scheme), strict=True):
            self.register_buffer(name, torch.tensor(legal))

    def forward(self, emissions: Tensor) -> CrfScores:
        """All scores that the tags of words with emissions [W, C] depend on."""
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
    """Log of the summed exp(s(y)) over all tag sequences y, for each sequence [N] (forward
    algorithm); 0 without words, -inf where no tag sequence is legal."""
    scores, places = _prepared(scores, num_words)
    emissions = scores.emissions[places.words]
    starts = places.at_edges(scores.start, begins)
    ending = places.at_edges(scores.end, ends)
    found = _LogPartition.apply(emissions, starts, scores.transitions, ending, places)
    return emissions.new_zeros(len(num_words)).index_copy(0, places.sequences, found)


def path_score(
    scores: CrfScores,
    tags: Tensor,
    num_words: Sequence[int],
    begins: Tensor | None = None,
    ends: Tensor | None = None,
) -> Tensor:
    """The score s(y) of one tag [W] for each word, summed for each sequence: [N]."""
    scores, places = _prepared(scores, num_words)
    tags = tags[places.words]
    words = scores.emissions[places.words].gather(1, tags[:, None])[:, 0]
    steps = scores.transitions[tags[places.before], tags[places.num_first :]]
    start = places.at_edges(scores.start, begins).gather(1, tags[: places.num_first, None])
    end = places.at_edges(scores.end, ends).gather(1, tags[places.last, None])
    found = (start + end)[:, 0].index_add(0, places.owner, words)
    found = found.index_add(0, places.owner[places.num_first :], steps)
    return found.new_zeros(len(num_words)).index_copy(0, places.sequences, found)


def restricted(scores: CrfScores, allowed: Tensor) -> CrfScores:
    """The scores with all tags of a word but some ruled out; ``allowed`` is [W, C], boolean.

    The partition of what is left, over the whole one, is the probability of a partial annotation.
    """
    return scores._replace(emissions=scores.emissions.masked_fill(~allowed, -torch.inf))


@torch.no_grad()
def marginals(
    scores: CrfScores,
    num_words: Sequence[int],
    begins: Tensor | None = None,
    ends: Tensor | None = None,
) -> Tensor:
    """The probability of each tag of each word given the whole sequence, [W, C]
    (forward-backward); exactly 0 for a tag on no legal path."""
    scores, places = _prepared(scores, num_words)
    emissions = scores.emissions[places.words]
    starts, ending = places.at_edges(scores.start, begins), places.at_edges(scores.end, ends)
    before, after = _messages(emissions, starts, scores.transitions, ending, places)
    found = (before + emissions + after).softmax(-1)
    return torch.empty_like(found).index_copy_(0, places.words, found)


@torch.no_grad()
def best_path(
    scores: CrfScores,
    num_words: Sequence[int],
    begins: Tensor | None = None,
    ends: Tensor | None = None,
) -> Tensor:
    """The tags [W] of the highest-scoring sequences (Viterbi, 1967)."""
    scores, places = _prepared(scores, num_words)
    first, *others = scores.emissions[places.words].split(places.sizes)
    best = [first + places.at_edges(scores.start, begins)]
    origins = []
    for column in others:
        paths = best[-1][: len(column), :, None] + scores.transitions  # [n, C, C]
        reached, origin = paths.max(1)
        best.append(reached + column)
        origins.append(origin)
    last = torch.cat(best)[places.last] + places.at_edges(scores.end, ends)
    tags = [last.argmax(-1)]  # at the place in hand; where a sequence is shorter, its last
    for origin in reversed(origins):
        earlier = tags[-1].clone()
        earlier[: len(origin)] = origin.gather(1, tags[-1][: len(origin), None])[:, 0]
        tags.append(earlier)
    found = torch.cat([t[:size] for t, size in zip(tags[::-1], places.sizes, strict=True)])
    return torch.empty_like(found).index_copy_(0, places.words, found)


class _Places:
    """Where the words of N sequences stand when sorted by their place, longest sequence first.

    ``words`` [W] are their rows as given, ``sizes`` how many there are at each place, ``owner``
    [W] their sequence among those with words (``sequences``, of which there are ``num_first``),
    ``before`` [W - num_first] the sorted rows of the words before all but first words, ``last``
    [num_first] those of last words, ``mirror`` [W] those of the words as far from the other end.
    """

    def __init__(self, num_words: Sequence[int], device: torch.device) -> None:
        lengths = torch.tensor(num_words, dtype=torch.long)
        begins = lengths.cumsum(0) - lengths
        order = lengths.argsort(descending=True, stable=True)
        lengths = lengths[order]
        inside = torch.arange(max([1, *num_words]))[:, None] < lengths  # [longest, N]
        place, owner = inside.nonzero(as_tuple=True)  # [W]
        sizes = inside.sum(1)
        offsets = sizes.cumsum(0) - sizes
        self.sizes: list[int] = sizes.tolist()
        self.num_first = self.sizes[0]
        first = torch.arange(self.num_first)
        self.words = to_device(begins[order][owner] + place, device)
        self.owner = to_device(owner, device)
        self.before = to_device((offsets[place - 1] + owner)[self.num_first :], device)
        self.last = to_device(offsets[lengths[: self.num_first] - 1] + first, device)
        self.mirror = to_device(offsets[lengths[owner] - 1 - place] + owner, device)
        self.sequences = to_device(order[: self.num_first], device)

    def at_edges(self, scores: Tensor, counted: Tensor | None) -> Tensor:
        """Scores [C] of an edge for each sequence with words, 0 where it is not counted."""
        rows = scores.expand(self.num_first, -1)
        return rows if counted is None else rows.where(counted[self.sequences, None], 0.0)


def _prepared(scores: CrfScores, num_words: Sequence[int]) -> tuple[CrfScores, _Places]:
    """The scores in one type, float32 or wider, and the places of their words."""
    assert sum(num_words) == len(scores.emissions), "words and emissions do not match"
    kind = torch.promote_types(scores.emissions.dtype, torch.float32)
    kind = torch.promote_types(scores.transitions.dtype, kind)
    wide = CrfScores(*(part.to(kind) for part in scores))
    return wide, _Places(num_words, scores.emissions.device)


def _messages(
    emissions: Tensor, starts: Tensor, transitions: Tensor, ends: Tensor, places: _Places
) -> tuple[Tensor, Tensor]:
    """Log of the summed scores of all that comes before each tag of each word, and of all that
    comes after: both [W, C], with the steps to and from it.

    The backward algorithm is the forward algorithm on the mirrored chain, so both run in one loop.
    """
    both = torch.stack([emissions, emissions[places.mirror]])  # [2, W, C]
    steps = torch.stack([transitions, transitions.T])[:, None]  # [2, 1, C, C]
    found = [torch.stack([starts, ends])]  # [2, n, C]
    for column, size in zip(both.split(places.sizes, 1), places.sizes[1:], strict=False):
        states = (found[-1] + column)[:, :size]  # where a sequence goes on
        found.append((states[..., None] + steps).logsumexp(2))
    before, after = torch.cat(found, 1)
    return before, after[places.mirror]


class _LogPartition(torch.autograd.Function):
    """log Z [n] from sorted emissions; its gradient are expected counts, by forward-backward.

    Written out because the graph of the recursion costs more than it does, and because the
    derivative of a sum of nothing but -inf is no number there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        emissions: Tensor,
        starts: Tensor,
        transitions: Tensor,
        ends: Tensor,
        places: _Places,
    ) -> Tensor:
        before, after = _messages(emissions, starts, transitions, ends, places)
        begun, ended = before + emissions, after + emissions
        found = (begun[places.last] + ends).logsumexp(-1)
        ctx.save_for_backward(begun, transitions, after, ended, found)
        ctx.places = places
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        begun, transitions, after, ended, found = ctx.saved_tensors
        places: _Places = ctx.places
        words = (begun + after - found[places.owner, None]).exp()  # [W, C]
        words *= gradient[places.owner, None]
        later = slice(places.num_first, None)
        owner = places.owner[later]
        steps = begun[places.before][:, :, None] + transitions
        steps += (ended[later] - found[owner, None])[:, None]  # [W - n, C, C]
        steps = steps.exp_().mul_(gradient[owner, None, None]).sum(0)  # [C, C]
        return words, words[: places.num_first], steps, words[places.last], None
