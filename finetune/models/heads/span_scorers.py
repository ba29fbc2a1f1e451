"""Span scorers: scores of all candidate spans of a batch from vectors of words.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", on
span-based NER, represent the span of words i to j as [z_i; z_j; g_ij] (equations 11.21 to 11.26)
and feed it to a network. Here that vector is never formed: the first layer of the network is
linear, W[z_i; z_j; g_ij] = A_i + B_j + G_ij with three projections of words, so a span costs a few
additions instead of a product with an h x 3H matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from finetune.runtime.device import to_device
from finetune.types import Batch

ACTIVATION_BUDGET = 256 * 2**20
"""Most bytes of hidden activations of S candidates to keep in a training step. Larger activations
are recomputed in the backward pass, one width at a time: the same numbers in less memory."""


class SpanLayout:
    """The S candidate spans of a batch of W words, by sequence, first word and width.

    ``start`` [S] is the first word of each candidate among all words and ``width`` [S] its number
    of words. For each word [W], ``room`` is the number of words to the end of its sequence. All
    sizes are Python values, so that nothing waits for a device: ``size`` is S, ``widest`` the
    largest width, and ``counts`` has the number of candidates of width w at index w - 1.
    """

    def __init__(self, batch: Batch, max_width: int) -> None:
        self.widest = min(max(1, *batch.num_words), max_width)
        self.counts = [sum(max(0, n - w) for n in batch.num_words) for w in range(self.widest)]
        self.size = sum(self.counts)
        bounds, total = batch.words_cu, len(batch.words)
        sequences = torch.stack([bounds[:-1], bounds.diff()])  # [2, N]
        spread = torch.repeat_interleave(sequences, sequences[1], 1, output_size=total)
        words = torch.arange(total, device=bounds.device)
        self.room = spread.sum(0) - words
        widths = self.room.clamp(max=self.widest)
        before = widths.cumsum(0) - widths  # [W] candidates of earlier words
        self.start = torch.repeat_interleave(words, widths, output_size=self.size)
        self.width = torch.arange(1, self.size + 1, device=bounds.device) - before[self.start]


class FactorizedScorer(nn.Module):
    """A two-layer network over first word, last word, content and width of each candidate.

    ``boundary``: [z_i; z_j; g_ij] with the mean g_ij of the words' vectors (11.21, 11.22).
    ``ffn``: [FFN_start(z_i); FFN_end(z_j); g_ij] (11.23 to 11.25). ``attention``: as ``ffn``, with
    g_ij weighted by a softmax of learned scores over the words of the span (11.26).
    An embedding of the width is added. The hidden layer has h units with GELU.

    Training keeps A, B and log2(widest) + 1 tables of pooled content, [W, h] each, and input and
    output of the activation, [S, h] each; the latter are recomputed, one width at a time, if they
    exceed ``ACTIVATION_BUDGET``.
    """

    def __init__(
        self,
        representation: str,
        width: int,
        hidden: int,
        num_classes: int,
        max_width: int,
        dropout: float,
    ) -> None:
        super().__init__()
        has_networks = representation != "boundary"
        inner = hidden if has_networks else width

        def network() -> nn.Module:  # [W, H] -> [W, h]
            if not has_networks:
                return nn.Identity()
            return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout))

        self.start_network, self.end_network = network(), network()
        self.start = nn.Linear(inner, hidden)
        self.end = nn.Linear(inner, hidden, bias=False)
        self.content = nn.Linear(width, hidden, bias=False)
        attends = representation == "attention"
        self.attention = nn.Linear(width, 1, bias=False) if attends else None
        self.width = nn.Embedding(max_width, hidden)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, num_classes)

    def forward(self, words: Tensor, layout: SpanLayout) -> Tensor:
        """Compute scores [S, C] from vectors of words [W, H]."""
        starts = self.start(self.start_network(words))  # [W, h]
        ends = self.end(self.end_network(words))
        scores = None if self.attention is None else self.attention(words)[:, 0]
        pooled = PooledContent(self.content(words), scores, layout.widest)
        order = layout.room.argsort(descending=True, stable=True)  # words with most room first
        starts = starts.index_select(0, order)
        size = 2 * layout.size * starts.shape[1] * starts.element_size()  # of [S, h] in and out
        run: Callable[..., Tensor] = self._of_width
        if torch.is_grad_enabled() and size > ACTIVATION_BUDGET:
            run = partial(checkpoint, self._of_width, use_reentrant=False)
        by_width = [
            run(width, starts, ends, pooled, order[:count])
            for width, count in enumerate(layout.counts, start=1)
        ]
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        sizes = to_device(torch.tensor([0, *layout.counts[:-1]]).cumsum(0), order.device)
        rows = sizes[layout.width - 1] + rank[layout.start]  # of each candidate, by width [S]
        return torch.cat(by_width).index_select(0, rows)

    def grid(self, words: Tensor) -> Tensor:
        """Compute scores [N, W, K, C] of all first words and widths up to K, for tracing.

        ``words`` are vectors [N, W, H]. Candidates beyond the end of a sequence have scores too.
        """
        flat = words.flatten(0, 1)
        beyond = (0, 0, 0, self.width.num_embeddings - 1)  # words behind the last
        starts = self.start(self.start_network(flat))
        ends = F.pad(self.end(self.end_network(flat)), beyond)
        weights = None if self.attention is None else F.pad(self.attention(flat), beyond)[:, 0]
        content = F.pad(self.content(flat), beyond)
        pooled = PooledContent(content, weights, self.width.num_embeddings)
        by_width = []
        for width in range(1, self.width.num_embeddings + 1):
            inner = pooled.add_to(ends[width - 1 :], width)[: flat.shape[0]]
            by_width.append(self.output(F.gelu(inner + starts + self.width.weight[width - 1])))
        scores: Tensor = torch.stack(by_width, 1).reshape(*words.shape[:2], len(by_width), -1)
        return scores

    def _of_width(
        self, width: int, starts: Tensor, ends: Tensor, pooled: PooledContent, rows: Tensor
    ) -> Tensor:
        inner = pooled.add_to(ends[width - 1 :], width).index_select(0, rows)
        inner += starts[: len(rows)]  # [n, h]
        inner += self.width.weight[width - 1]
        scores: Tensor = self.output(self.dropout(F.gelu(inner.to(starts.dtype))))
        return scores


class PooledContent:
    """Means or softmax-weighted means of the vectors in every window of words, of any width.

    A window is the union of disjoint windows of 1, 2, 4, … words, which are tabulated once. Unlike
    differences of prefix sums, this has no cancellation, and each width can be recomputed alone.
    Weights are relative to the largest score of each window, as in online softmax (Milakov &
    Gimelshein, 2018), in float32 or wider.
    """

    def __init__(self, vectors: Tensor, scores: Tensor | None, widest: int) -> None:
        """Tabulate vectors [W, h], weighted by a softmax of their scores [W] if there are any."""
        dtype = torch.promote_types(vectors.dtype, torch.float32)
        self.sums = [vectors.to(dtype)]
        self.weights: list[tuple[Tensor, Tensor]] = []  # [n]: largest score, sum of weights
        if scores is not None:
            scores = scores.to(dtype)
            top = scores.detach()  # a shift of all scores leaves a softmax unchanged
            weight = (scores - top).exp()  # 1, with the gradient of the score
            self.weights = [(top, weight)]
            self.sums = [self.sums[0] * weight[:, None]]
        while 2 ** len(self.sums) <= widest:
            self._double(2 ** (len(self.sums) - 1))

    def _double(self, width: int) -> None:
        left, right = slice(None, -width), slice(width, None)
        sums = self.sums[-1]
        if not self.weights:
            self.sums.append(sums[left] + sums[right])
            return
        top, weight = self.weights[-1]
        higher = torch.maximum(top[left], top[right])
        scales = [(top[side] - higher).exp() for side in (left, right)]
        self.weights.append((higher, weight[left] * scales[0] + weight[right] * scales[1]))
        scaled = sums[left] * scales[0][:, None]
        self.sums.append(torch.addcmul(scaled, sums[right], scales[1][:, None]))

    def add_to(self, scores: Tensor, width: int) -> Tensor:
        """Add the pooled content of each window of a width to ``scores`` [W - width + 1, h]."""
        size, offset, parts = scores.shape[0], 0, []  # len is a constant in a traced graph
        for level in reversed(range(width.bit_length())):
            if width >> level & 1:
                parts.append((level, slice(offset, offset + size)))
                offset += 2**level
        if not self.weights:
            for level, window in parts:
                scores = torch.add(scores, self.sums[level][window], alpha=1 / width)
            return scores
        tops = [self.weights[level][0][window] for level, window in parts]
        higher = torch.stack(tops).amax(0)
        scales = [(top - higher).exp() for top in tops]  # [n] each
        weights = [self.weights[level][1][window] for level, window in parts]
        total: Any = sum(w * s for w, s in zip(weights, scales, strict=True))
        for (level, window), scale in zip(parts, scales, strict=True):
            scores = torch.addcmul(scores, self.sums[level][window], (scale / total)[:, None])
        return scores
