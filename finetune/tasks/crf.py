"""Tagging with a CRF: targets, the negative log-likelihood, and the best sequence of tags.

Training treats each window of a long sentence as a separate chain: the scores of starting and
ending a sentence count only in its first and last window. Prediction joins the windows.
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
    """The scores of a sequence's core words; their tags and probabilities if it is a sentence."""

    scores: CrfScores
    tags: np.ndarray
    probabilities: np.ndarray


def chain_targets(rows: Mapping[str, Ragged], num_tags: int) -> dict[str, Tensor]:
    """Return ``tag`` [W]; ``begins`` and ``ends`` [N], whether a sequence begins or ends its
    sentence; and ``allowed`` [W, C], the possible tags of each word, if some tag is unknown."""
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
    """Return the summed negative log-likelihood of the gold, and the number of words with a tag.

    The likelihood is marginal over the tags of words whose tag is unknown (Tsuboi et al., 2008).
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
    """Return a ``Chain`` for each sequence."""
    scores = _centred(CrfScores(*(part.detach() for part in scores)))
    decoded = [part.cpu().numpy() for part in _best_tags(scores, batch.num_words)]
    scores = CrfScores(*(part.cpu() for part in scores))
    cuts = np.cumsum(batch.num_words)[:-1]
    parts = zip(
        torch.split(scores.emissions, list(batch.num_words)),
        *(np.split(values, cuts) for values in decoded),
        strict=True,
    )
    chains = [Chain(scores._replace(emissions=own), *values) for own, *values in parts]
    return [Partial(*item) for item in zip(batch.example, batch.first_word, chains, strict=True)]


def whole_chain(partials: Sequence[Partial]) -> tuple[np.ndarray, np.ndarray]:
    """Return the best tags of a sentence and their marginal probabilities, both [words]."""
    chains: list[Chain] = [partial.values for partial in partials]
    if len(chains) == 1:
        return chains[0].tags, chains[0].probabilities
    emissions = torch.cat([chain.scores.emissions for chain in chains])
    scores = chains[0].scores._replace(emissions=emissions)
    tags, probabilities = _best_tags(scores, [len(emissions)])
    return tags.numpy(), probabilities.numpy()


def _best_tags(scores: CrfScores, num_words: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the best tags of words and their marginal probabilities, both [W]."""
    tags = best_path(scores, num_words)
    return tags, marginals(scores, num_words).gather(1, tags[:, None])[:, 0]


def _centred(scores: CrfScores) -> CrfScores:
    """Shift the emissions of each word so that the best one is 0, for precision in float32."""
    emissions = scores.emissions
    return scores._replace(emissions=emissions - emissions.detach().amax(-1, keepdim=True))
