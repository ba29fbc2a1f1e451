"""The objectives of sentence encoders: the texts that each learns from, their views, and the loss.

A sequence is one text, so that a pair has two and a pair with a hard negative three, numbered by
``window``. Losses are on the vectors of all sequences of an optimizer batch: the sum of the losses,
and the number to divide it by. ``identity`` has an integer for each text, the same for equal texts,
which are no negatives of each other.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from finetune.embeddings.conditional_lm import NUM_CONDITIONS, ConditionalMaskedLM
from finetune.evaluation.prediction_types.labels import named_positive
from finetune.models.heads.sentence_encoder import SentenceEncoder
from finetune.preprocessing.encodings import FlatSequences
from finetune.preprocessing.masking import Masking, special_subwords
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.runtime.device import to_device
from finetune.tasks.few_shot import cosine_loss
from finetune.types import IGNORED, TextExample, TokenSequence

MASK_PROBABILITY = 0.3
"""Fraction of the subwords of a second text that cmlm predicts."""
MASK_SPAN = 2
"""Most subwords that a mask token replaces in a copy of mirror: Mirror-BERT replaces five
characters, which touch about two."""
TEMPLATES = ('This sentence : "{text}" means {mask} .', 'This sentence of "{text}" means {mask} .')
"""The templates of PromptBERT (Jiang et al., 2022) for BERT."""
TEMPLATE_ALONE = 2**48
"""Number of the example that stands for the templates without a text."""


Loss = tuple[Tensor, Tensor]


def distinct_texts(rows: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield each distinct text that is not blank."""
    seen = set()
    for row in rows:
        for text in (row.text, row.pair):
            if text is not None and text.strip() and text not in seen:
                seen.add(text)
                yield TextExample(row.id, text, where=row.where)


def positive_pairs(rows: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield the pairs that belong together, perhaps with a hard negative, without their label.

    Pairs with labels belong together if they are entailment (or have the positive one of two
    labels); a negative contradicts the same first text (or has the other label; Gao et al., 2021).
    Pairs of the same first text take its negatives in turn.
    """
    pairs = [row for row in rows if row.pair is not None]
    names = {str(row.label) for row in pairs if row.label is not None}
    if any(isinstance(row.label, float) for row in pairs):
        return
    if not names:
        yield from pairs
        return
    positive = "entailment" if "entailment" in names else None
    opposite = "contradiction" if "contradiction" in names else None
    if len(names) == 2:
        positive = positive or named_positive(names)
        opposite = opposite or next(name for name in names if name != positive)
    negatives: dict[str, list[str]] = {}
    for row in pairs:
        if row.label == opposite and row.pair is not None:
            negatives.setdefault(row.text, []).append(row.pair)
    used: Counter[str] = Counter()
    for row in pairs:
        if positive is not None and row.label == positive:
            hard = negatives.get(row.text)
            negative = hard[used[row.text] % len(hard)] if hard else row.negative
            used[row.text] += 1
            yield replace(row, label=None, negative=negative)


class Sides(NamedTuple):
    """The vectors [N, H] of first and second texts and of hard negatives, of a batch.

    ``identities`` have a number for each text of each side, the same for equal texts; ``label`` is
    the gold of each pair, and ``alone`` the vectors of the templates without a text.
    """

    u: Tensor
    v: Tensor
    negatives: Tensor
    identities: tuple[Tensor, Tensor, Tensor]
    label: Tensor
    alone: Sequence[Tensor]


class Objective:
    """Base of the objectives: pairs of texts as they are, in no template."""

    needs: ClassVar[str] = "texts"
    """The rows of train that it learns from, in words."""
    gold: ClassVar[type | None] = None
    """The type of the labels that it learns from; None if it learns without labels."""
    needs_mask: ClassVar[bool] = False
    """Whether it needs a mask token."""
    pooling: ClassVar[str | None] = None
    """The only pooling that it trains; None for any."""
    keeps_normalization: ClassVar[bool] = True
    """Whether vectors have length 1 if those of the starting model have, as for objectives that
    read cosines alone."""
    num_reserved: ClassVar[int] = 0
    """Tokens that training adds to a second text."""
    temperature: float = 0.05
    """τ of the loss."""

    @staticmethod
    def select(rows: Sequence[TextExample]) -> Iterable[TextExample]:
        """Select the training examples that the objective learns from."""
        raise NotImplementedError

    def __init__(self, state: Any, tokenizer: SubwordTokenizer) -> None:
        self.state, self.tokenizer = state, tokenizer
        self.temperature = state.config.temperature or self.temperature
        self.before, self.after = list(tokenizer.single.prefix), list(tokenizer.single.suffix)
        """The subwords before and after a text."""

    def sequence(self, example: int, number: int, ids: list[int], label: float) -> TokenSequence:
        """Add special tokens to the subwords of a text, and its targets."""
        input_ids = [*self.before, *ids, *self.after]
        types = None
        if self.tokenizer.uses_token_types:
            types = [self.tokenizer.single.token_types[1]] * len(input_ids)
        digest = hashlib.blake2b(np.array(ids, np.int64).tobytes(), digest_size=7).digest()
        target: dict[str, list[float]] = {"identity": [int.from_bytes(digest)], "label": [label]}
        return TokenSequence(example, input_ids, types, [], number, target)

    def label(self, example: TextExample) -> float:
        """Convert the gold of a pair to a number; 0 without one."""
        return float(example.label) if isinstance(example.label, float) else 0.0

    def sequences_of_epoch(self, sequences: FlatSequences, seed: int, epoch: int) -> FlatSequences:
        """Make the training sequences of an epoch."""
        return sequences

    def added_ids(self) -> Sequence[int]:
        """The ids that ``sequences_of_epoch`` adds to the texts."""
        return []

    def load(self, name: str, *, trained: bool, **options: Any) -> Any:
        """Load a model that the objective trains, or one that it has ``trained``."""
        labels = list(self.state.labels) or None
        return SentenceEncoder.from_pretrained(name, trained=trained, labels=labels, **options)

    def loss(self, sides: Sides, model: SentenceEncoder) -> Loss:
        """Compute the loss over all texts of an optimizer batch, and the number to divide it by."""
        return ranking_loss(*sides[:4], self.temperature)

    def batch_loss(
        self,
        model: SentenceEncoder,
        vectors: Tensor,
        keys: Sequence[tuple[int, int]],
        targets: Mapping[str, Tensor],
    ) -> Loss:
        """Sort the vectors of an optimizer batch into sides, and compute their loss."""
        example, side = np.array(keys).T
        alone = example == TEMPLATE_ALONE
        rows = [
            to_device(torch.from_numpy(np.flatnonzero(~alone & (side == k))), vectors.device)
            for k in range(3)
        ]
        u, v, negatives = (vectors.index_select(0, row) for row in rows)
        identities: Any = tuple(targets["identity"].index_select(0, row) for row in rows)
        # each process has the templates: those of the first one count
        templates = [
            vectors[np.flatnonzero(alone & (side == k))[0]] for k in np.unique(side[alone])
        ]
        label = targets["label"].index_select(0, rows[0])
        return self.loss(Sides(u, v, negatives, identities, label, templates), model)


class _SimCSE(Objective):
    """A copy with other dropout (Gao et al., 2021)."""

    select = staticmethod(distinct_texts)

    def other(self, view: TokenSequence, key: str) -> TokenSequence:
        return view

    def sequences_of_epoch(self, sequences: FlatSequences, seed: int, epoch: int) -> FlatSequences:
        views = []
        for view in sequences:
            views += [view, self.other(replace(view, window=1), f"{seed}/{epoch}/{view.example}")]
        return FlatSequences.of(views)


class _Mirror(_SimCSE):
    """A copy with a masked span (Liu et al., 2021, Mirror-BERT)."""

    needs_mask = True
    temperature = 0.04

    def added_ids(self) -> Sequence[int]:
        return [self.tokenizer.tokenizer.mask_token_id]

    def other(self, view: TokenSequence, key: str) -> TokenSequence:
        # one subword of the text stays
        first, last = len(self.before), len(view.input_ids) - len(self.after)
        width = min(MASK_SPAN, last - first - 1)
        if width < 1:
            return view
        start = random.Random(key).randint(first, last - width)
        ids = [*view.input_ids[:start], *self.added_ids(), *view.input_ids[start + width :]]
        types = None if view.token_type_ids is None else view.token_type_ids[: len(ids)]
        return replace(view, input_ids=ids, token_type_ids=types)

    def loss(self, sides: Sides, model: SentenceEncoder) -> Loss:
        return two_view_loss((sides.u, sides.v), sides.identities[0], self.temperature)


class _Prompt(_SimCSE):
    """Two templates, whose mask tokens are the vectors (Jiang et al., 2022, PromptBERT)."""

    needs_mask = True
    pooling = "mask"
    keeps_normalization = False

    def __init__(self, state: Any, tokenizer: SubwordTokenizer) -> None:
        super().__init__(state, tokenizer)
        mask, self.templates = tokenizer.tokenizer.mask_token, []
        for template in state.config.templates or TEMPLATES:
            texts = template.replace("{mask}", mask).split("{text}")
            before, after = tokenizer.text_subwords(texts)
            self.templates.append((self.before + before, after + self.after))
        self.before, self.after = self.templates[0]

    def _mask_position(self, number: int, length: int) -> list[int]:
        before, after = self.templates[number]
        mask = self.tokenizer.tokenizer.mask_token_id
        at = before.index(mask) if mask in before else len(before) + length + after.index(mask)
        return [at, at + 1]

    def sequence(self, example: int, number: int, ids: list[int], label: float) -> TokenSequence:
        sequence = super().sequence(example, number, ids, label)
        return replace(sequence, word_starts=self._mask_position(0, len(ids)))

    def added_ids(self) -> Sequence[int]:
        return [id for template in self.templates for part in template for id in part]

    def other(self, view: TokenSequence, key: str) -> TokenSequence:
        ids = view.input_ids[len(self.before) : len(view.input_ids) - len(self.after)]
        before, after = self.templates[1]
        input_ids = [*before, *ids, *after]
        types = view.token_type_ids and view.token_type_ids[:1] * len(input_ids)
        starts = self._mask_position(1, len(ids))
        return replace(view, input_ids=input_ids, token_type_ids=types, word_starts=starts)

    def sequences_of_epoch(self, sequences: FlatSequences, seed: int, epoch: int) -> FlatSequences:
        alone = self.sequence(TEMPLATE_ALONE, 0, [], 0.0)
        return super().sequences_of_epoch(FlatSequences.of([*sequences, alone]), seed, epoch)

    def loss(self, sides: Sides, model: SentenceEncoder) -> Loss:
        # without what the templates add to the vectors
        u, v = (side - alone for side, alone in zip(sides[:2], sides.alone, strict=True))
        return super().loss(sides._replace(u=u, v=v), model)


class _Ranking(Objective):
    """Pairs that belong together, perhaps with hard negatives (Henderson et al., 2017)."""

    needs = (
        "pairs of texts that belong together: without labels, or with the labels "
        "entailment and contradiction or with two such as duplicate and not_duplicate"
    )
    select = staticmethod(positive_pairs)


class _Softmax(Objective):
    """Pairs with labels: the siamese classifier of Sentence-BERT (Reimers & Gurevych, 2019)."""

    needs = "pairs of texts with two labels or more"
    gold = str
    keeps_normalization = False

    @staticmethod
    def select(rows: Sequence[TextExample]) -> Iterator[TextExample]:
        pairs = [row for row in rows if row.pair is not None and isinstance(row.label, str)]
        if len({row.label for row in pairs}) > 1:  # nothing can be learned from one
            yield from pairs

    def label(self, example: TextExample) -> float:
        labels = self.state.labels  # without those that only test has
        if isinstance(example.label, str):
            return labels.id(example.label) if example.label in labels else IGNORED
        return super().label(example)

    def loss(self, sides: Sides, model: SentenceEncoder) -> Loss:
        return softmax_loss(sides.u, sides.v, model.classifier_weights(), sides.label)


class _Cosine(Objective):
    """Pairs with numbers, scaled to 0..1, which the cosines learn."""

    needs = "pairs of texts with a number"
    gold = float

    @staticmethod
    def select(rows: Sequence[TextExample]) -> Iterator[TextExample]:
        pairs = [row for row in rows if row.pair is not None and isinstance(row.label, float)]
        numbers = [row.label for row in pairs if isinstance(row.label, float)]
        if numbers:
            lowest, highest = min(numbers), max(numbers)
            for row, number in zip(pairs, numbers, strict=True):
                yield replace(row, label=(number - lowest) / max(highest - lowest, 1e-12))

    def loss(self, sides: Sides, model: SentenceEncoder) -> Loss:
        return cosine_loss(sides.u, sides.v, sides.label)


class _ConditionalLM(Objective):
    """Masked subwords of a text, given the vector of the text before it (``conditional_lm``)."""

    needs = "running text with a sentence in each line, or pairs of adjacent texts"
    needs_mask = True
    keeps_normalization = False
    num_reserved = NUM_CONDITIONS
    batch_loss = None  # type: ignore[assignment]

    @staticmethod
    def select(rows: Sequence[TextExample]) -> Iterator[TextExample]:
        # the pairs of the data, or each line with the next line of its text, which ends at a blank
        # line; a row of several lines is a text
        if any(row.pair is not None for row in rows):
            yield from (replace(row, label=None) for row in rows if row.pair is not None)
            return
        before = ""
        for row in rows:
            lines = row.text.split("\n")
            for line in ["", *lines, ""] if len(lines) > 1 else lines:
                if before.strip() and line.strip():
                    yield TextExample(row.id, before, line, where=row.where)
                before = line

    def added_ids(self) -> Sequence[int]:
        return range(len(self.tokenizer.tokenizer))  # any subword can be drawn as a random one

    def load(self, name: str, *, trained: bool, **options: Any) -> Any:
        names = ("pooling", "normalize", "max_length")
        pooling, normalize, max_length = map(options.pop, names)
        model = ConditionalMaskedLM.from_pretrained(name, new_head=not trained, **options)
        model.pooling, model.normalize, model.max_length = pooling, normalize, max_length
        return model

    def sequences_of_epoch(self, sequences: FlatSequences, seed: int, epoch: int) -> FlatSequences:
        # a sequence for each pair: the second text is masked, and padding behind it keeps the
        # places of the vectors of the first one
        tokenizer = self.tokenizer.tokenizer
        masking = Masking(
            special_subwords(tokenizer), tokenizer.mask_token_id, probability=MASK_PROBABILITY
        )
        firsts = [text for text in sequences if not text.window]
        seconds = [text for text in sequences if text.window]
        pairs, padding = [], [tokenizer.pad_token_id] * NUM_CONDITIONS
        masked = masking.apply(FlatSequences.of(seconds), seed, epoch)
        for first, second in zip(firsts, masked, strict=True):
            ids = [*first.input_ids, *second.input_ids, *padding]
            types = first.token_type_ids and first.token_type_ids[:1] * len(ids)
            starts = [0, len(first.input_ids), len(ids)]
            pairs.append(TokenSequence(first.example, ids, types, starts, 0, second.target))
        return FlatSequences.of(pairs)


def two_view_loss(views: tuple[Tensor, Tensor], identity: Tensor, temperature: float) -> Loss:
    """Contrast each of 2 N views with all others (Liu et al., 2021, Mirror-BERT; NT-Xent).

    The positive of a view [H] is the other view of the same text, its negatives are the 2 N - 2
    views of other texts:
    -log exp(cos(f(x), f(x̄)) / τ) / sum over other views y of exp(cos(f(x), f(y)) / τ).
    """
    size = len(identity)
    unit = F.normalize(torch.cat(views), dim=-1)
    scores = unit @ unit.T / temperature
    same = identity[:, None] == identity
    eye = torch.eye(size, dtype=torch.bool, device=same.device)
    excluded = torch.cat([torch.cat([same, same & ~eye], 1), torch.cat([same & ~eye, same], 1)])
    target = torch.arange(2 * size, device=scores.device).roll(size)
    return _contrast(scores.masked_fill(excluded, -torch.inf), target)


def ranking_loss(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    identity: tuple[Tensor, Tensor, Tensor],
    temperature: float,
) -> Loss:
    """Rank each anchor's positive above the positives of other anchors and all hard negatives.

    Multiple negatives ranking (Henderson et al., 2017). With two dropout views of one text it is
    the loss of unsupervised SimCSE, with hard negatives of supervised SimCSE (Gao et al., 2021).

    Args:
        anchors: [N, H].
        positives: [N, H].
        negatives: [M, H], M may be 0.
        identity: Equal numbers for equal texts, of anchors, positives and negatives. A candidate
            does not count as a negative if it equals the anchor or its positive, or is the positive
            of an equal anchor.
        temperature: τ, which divides the cosines; the inverse of the scale.
    """
    candidates = F.normalize(torch.cat([positives, negatives]), dim=-1)
    scores = F.normalize(anchors, dim=-1) @ candidates.T / temperature  # [N, N + M]
    anchor, positive, negative = identity
    candidate = torch.cat([positive, negative])
    excluded = (candidate == anchor[:, None]) | (candidate == positive[:, None])
    size = len(anchor)
    excluded[:, :size] |= anchor == anchor[:, None]
    excluded[:, :size].fill_diagonal_(False)
    target = torch.arange(size, device=scores.device)
    return _contrast(scores.masked_fill(excluded, -torch.inf), target)


def _contrast(scores: Tensor, target: Tensor) -> Loss:
    return F.cross_entropy(scores, target, reduction="sum"), scores.new_full((), len(target))


def softmax_loss(u: Tensor, v: Tensor, classifier: Tensor, label: Tensor) -> Loss:
    """Compute the cross entropy of W [u; v; |u - v|] + b (Reimers & Gurevych, 2019).

    ``classifier`` [C, 3 H + 1] has the weights, with the bias last.
    """
    features = torch.cat([u, v, (u - v).abs()], dim=1)
    return _contrast(F.linear(features, classifier[:, :-1], classifier[:, -1]), label)


OBJECTIVES: Mapping[str, type[Objective]] = {
    "mirror": _Mirror,
    "simcse": _SimCSE,
    "prompt": _Prompt,
    "cmlm": _ConditionalLM,
    "ranking": _Ranking,
    "softmax": _Softmax,
    "cosine": _Cosine,
}
