"""PairClassifier: one prediction for each pair of texts read apart.

A bi-encoder (Reimers & Gurevych 2019, "Sentence-BERT") or a poly-encoder (Humeau et al. 2020,
"Poly-encoders"). The vectors of texts do not depend on each other, so the vectors of candidates can
be computed once and ranked for any number of queries.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from finetune.models.heads.base import EncoderModel, EncoderModelConfig
from finetune.models.heads.layers import pooled_tokens
from finetune.types import Batch


class PairClassifierConfig(EncoderModelConfig):
    """The configuration of a ``PairClassifier``, with the configuration of its ``encoder`` inside.

    Attributes:
        kind: ``"bi"`` or ``"poly"``.
        num_codes: Number of codes that attend to the first text, with ``"poly"``.
        dropout: Dropout before the classifier.
    """

    model_type = "pair-classifier"

    kind: str = "bi"
    num_codes: int = 16
    dropout: float = 0.0


class PairClassifier(EncoderModel):
    """Logits of C classes for each of N pairs of texts, softmax(W [u; v; |u - v|]).

    v is the mean of the last hidden states of the second text. With a bi-encoder u is the mean of
    the first. With a poly-encoder, M learned codes attend to the hidden states h_j of the first
    text, u_i = sum_j softmax_j(c_i · h_j) h_j, and the second text attends to the results,
    u = sum_i softmax_i(v · u_i) u_i.

    ``from_pretrained`` loads a trained model; with ``labels`` (for regression the name of the
    number) it makes one to train. Its settings are the attributes of ``PairClassifierConfig``.

    Sequences of a batch have the first text and then the second, each with its special tokens, as
    their "words" (``TokenSequence.word_starts``).

    Examples:
        >>> from finetune import TokenSequence, pack
        >>> load = PairClassifier.from_pretrained
        >>> model = load("roberta-base", labels=["no", "yes"], kind="bi")  # doctest: +SKIP
        >>> batch = pack([TokenSequence(0, [0, 713, 2, 0, 16, 2], word_starts=[0, 3, 6])])
        >>> model(batch).shape  # doctest: +SKIP
        torch.Size([1, 2])
    """

    config_class = PairClassifierConfig
    config: PairClassifierConfig
    texts_per_sequence = 2

    def add_layers(self, width: int) -> None:
        """Add the layers of the head (``EncoderModel.add_layers``)."""
        # small at first: codes attend almost evenly, as the mean of a bi-encoder does
        has_codes = self.config.kind == "poly"
        self.codes = nn.Embedding(self.config.num_codes, width) if has_codes else None
        self.dropout = nn.Dropout(self.config.dropout)
        self.classifier = nn.Linear(3 * width, len(self.labels))

    def forward(self, batch: Batch) -> Tensor:
        """Compute logits [N, C] for a batch of N pairs."""
        texts = separate_texts(batch)
        return self.read(self.encoder(texts), texts)

    def read(self, hidden: Tensor, texts: Batch) -> Tensor:
        """Compute logits [N, C], given the hidden states [T, H] of ``separate_texts``."""
        queries, candidates = self._compared(hidden, texts)
        return self.compare(queries, candidates)

    def vectors(self, batch: Batch) -> Tensor:
        """Compute the vectors of both texts side by side [N, 2 H]; of a query its mean."""
        texts = separate_texts(batch)
        queries, candidates = self._compared(self.encoder(texts), texts)
        return torch.cat([queries.mean(1), candidates], -1)

    def _compared(self, hidden: Tensor, texts: Batch) -> tuple[Tensor, Tensor]:
        queries = self.query_vectors(hidden, texts, step=2)
        return queries, self.text_vectors(hidden, texts)[1::2]

    def text_vectors(self, hidden: Tensor, texts: Batch) -> Tensor:
        """Compute the mean of the hidden states [T, H] of each text: [N, H]."""
        return pooled_tokens(hidden, texts)

    def query_vectors(self, hidden: Tensor, texts: Batch, step: int = 1) -> Tensor:
        """Compute the vectors of every ``step``-th text as a query [N, M, H]; M is 1 for ``bi``."""
        if self.codes is None:
            return self.text_vectors(hidden, texts)[::step, None]
        lengths, longest = texts.cu_seqlens.diff()[::step], max(texts.lengths[::step])
        index = texts.cu_seqlens[:-1:step, None] + torch.arange(longest, device=hidden.device)
        padding = torch.arange(longest, device=hidden.device) >= lengths[:, None]  # [N, L]
        padded = hidden[index.masked_fill(padding, 0).long()]  # [N, L, H]
        padded = padded.to(torch.promote_types(hidden.dtype, torch.float32))
        scores = padded @ self.codes.weight.T.to(padded.dtype)  # [N, L, M]
        weights = scores.masked_fill(padding[..., None], -torch.inf).softmax(1)
        return weights.transpose(1, 2) @ padded

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Compute logits [N, C] of queries [N, M, H] and candidates [N, H].

        One query [1, M, H] is compared with all candidates.
        """
        if self.codes is None:
            first = queries[:, 0]
        else:
            weights = (queries @ candidates[..., None]).softmax(1)  # [N, M, 1]
            first = (weights * queries).sum(1)
        first = first.expand_as(candidates)
        features = torch.cat([first, candidates, (first - candidates).abs()], dim=-1)
        features = features.to(self.classifier.weight.dtype)  # means are float32
        logits: Tensor = self.classifier(self.dropout(features))
        return logits


def separate_texts(batch: Batch) -> Batch:
    """Build a batch whose sequences are the texts of the pairs of a batch, in order.

    ``window`` is 0 for the first text of a pair, and 1 for the second.
    """
    starts, lengths = batch.words, batch.word_lengths
    ends = starts + lengths
    size = len(batch.input_ids)
    positions = torch.arange(size, device=starts.device)
    return replace(
        batch,
        position_ids=positions - torch.repeat_interleave(starts, lengths, output_size=size),
        cu_seqlens=torch.cat([starts[:1] * 0, ends]).int(),
        words_cu=torch.arange(len(starts) + 1, device=starts.device),
        lengths=tuple((batch.host or batch).word_lengths.tolist()),
        example=tuple(number for number in batch.example for _ in range(2)),
        window=(0, 1) * len(batch.example),
        num_words=(1,) * len(starts),
        targets={},
    )
