"""Tagging with a CRF: targets, the negative log-likelihood, and the best sequence of tags.

A window of a long sentence has a part of its chain. In training each part is a separate chain. The
scores of starting and ending a sentence count only in the windows that do so. For a prediction the
parts are joined, so that the best sequence and the probabilities are those of the whole sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from finetune.models.heads.crf import (
    CrfScores,
    best_path,
    log_partition,
    marginals,
    path_score,
    restrict,
)
from finetune.preprocessing.encodings import Ragged
from finetune.types import IGNORED, Batch, Partial


class Chain(NamedTuple):
    """The scores of a sequence's core words, with their best tags and the probabilities of these.

    Tags and probabilities are valid only if the sequence is the whole sentence.
    """

    scores: CrfScores
    tags: np.ndarray
    probabilities: np.ndarray


def chain_target(tags: Sequence[int], begins: bool, ends: bool) -> dict[str, Sequence[float]]:
    """The gold classes of a sequence's core words; whether they begin and end the sentence."""
    return {"tag": tags, "begins": [begins], "ends": [ends]}


def chain_targets(rows: Mapping[str, Ragged], num_tags: int) -> dict[str, Tensor]:
    """``tag`` [W]; ``begins`` and ``ends`` [N], whether a sequence begins or ends its sentence; and
    ``allowed`` [W, C], the possible tags of each word, if the tag of some word is unknown."""
    tags = torch.from_numpy(rows["tag"].values.astype(np.int64))
    found = {
        "tag": tags,
        "begins": torch.tensor(rows["begins"].values),
        "ends": torch.tensor(rows["ends"].values),
    }
    unknown = tags == IGNORED
    if unknown.any():
        known = one_hot(tags.masked_fill(unknown, 0), num_tags).bool()
        found["allowed"] = known | unknown[:, None]
    return found


def chain_loss(scores: CrfScores, batch: Batch) -> tuple[Tensor, Tensor]:
    """Summed negative log-likelihood of the gold chains, and the number of words with a tag.

    Words with an unknown tag may have any tag: the likelihood is marginal over them (Tsuboi et al.,
    2008).
    """
    scores = _centred(scores)
    tags, allowed = batch.targets["tag"], batch.targets.get("allowed")
    layout = (batch.num_words, batch.targets["begins"], batch.targets["ends"])
    if allowed is None:
        gold = path_score(scores, tags, *layout)
    else:
        gold = log_partition(restrict(scores, allowed), *layout)
    return (log_partition(scores, *layout) - gold).sum(), (tags != IGNORED).sum()


def decode_chains(scores: CrfScores, batch: Batch) -> list[Partial]:
    """A ``Chain`` for each sequence."""
    scores = _centred(CrfScores(*(part.detach() for part in scores)))
    decoded = [part.cpu().numpy() for part in _best_tags(scores, batch.num_words)]
    scores = CrfScores(*(part.cpu() for part in scores))
    cuts = np.cumsum(batch.num_words)[:-1]
    parts = zip(
        scores.emissions.split(batch.num_words),
        *(np.split(values, cuts) for values in decoded),
        strict=True,
    )
    chains = [Chain(scores._replace(emissions=own), *values) for own, *values in parts]
    return [Partial(*item) for item in zip(batch.example, batch.first_word, chains, strict=True)]


def whole_chain(partials: Sequence[Partial]) -> tuple[np.ndarray, np.ndarray]:
    """Tag and probability of each word of a sentence, both [words], from its sequences in order.

    The tags are the best sequence. Each probability is the marginal probability of its tag.
    """
    chains: list[Chain] = [partial.values for partial in partials]
    if len(chains) == 1:
        return chains[0].tags, chains[0].probabilities
    emissions = torch.cat([chain.scores.emissions for chain in chains])
    scores = chains[0].scores._replace(emissions=emissions)
    tags, probabilities = _best_tags(scores, [len(emissions)])
    return tags.numpy(), probabilities.numpy()


def _best_tags(scores: CrfScores, num_words: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The best tags of words and their marginal probabilities, both [W]."""
    tags = best_path(scores, num_words)
    return tags, marginals(scores, num_words).gather(1, tags[:, None])[:, 0]


def _centred(scores: CrfScores) -> CrfScores:
    """The same scores with 0 for the best emission of each word.

    A constant for a word changes neither the likelihood nor the best tags, and sums over hundreds
    of words that stay near 0 lose less precision in float32.
    """
    emissions = scores.emissions
    return scores._replace(emissions=emissions - emissions.detach().amax(-1, keepdim=True))
