"""Tagging with a CRF: gold as chains of tags, their likelihood, and the best chain of a sentence.

A window of a long sentence answers for a piece of its chain. In training each piece is a chain of
its own, which counts the scores of the sentence's edges only where it has them; for the answer the
pieces are put together again, so that the best chain and the probabilities are those of the whole
sentence.
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
    """What one sequence says of its words: all scores, and their tags with their probabilities,
    which are right if the sequence is the whole sentence."""

    scores: CrfScores
    tags: np.ndarray
    chances: np.ndarray


def chain_target(tags: Sequence[int], begins: bool, ends: bool) -> dict[str, Sequence[float]]:
    """The gold tags of a sequence's own words; whether they begin and end the sentence."""
    return {"tag": tags, "begins": [begins], "ends": [ends]}


def chain_targets(rows: Mapping[str, Ragged], num_tags: int) -> dict[str, Tensor]:
    """``tag`` [W]; ``begins`` and ``ends`` [N], whether a sequence does so to its sentence; and
    ``allowed`` [W, C], the tags a word may have, if there is a word whose tag is unknown."""
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

    Words whose tag is unknown may have any: the likelihood is that of what is known (Tsuboi et
    al., 2008).
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
    answers = [part.cpu().numpy() for part in _answer(scores, batch.num_words)]
    scores = CrfScores(*(part.cpu() for part in scores))
    cuts = np.cumsum(batch.num_words)[:-1]
    parts = zip(
        scores.emissions.split(batch.num_words),
        *(np.split(answer, cuts) for answer in answers),
        strict=True,
    )
    chains = [Chain(scores._replace(emissions=own), *answer) for own, *answer in parts]
    return [Partial(*item) for item in zip(batch.example, batch.first_word, chains, strict=True)]


def whole_chain(partials: Sequence[Partial]) -> tuple[np.ndarray, np.ndarray]:
    """Tag and probability of each word of a sentence, from its sequences in order: both [words].

    The tags are the best chain's, each probability its tag's in all chains together (marginal).
    """
    chains: list[Chain] = [partial.values for partial in partials]
    if len(chains) == 1:
        return chains[0].tags, chains[0].chances
    emissions = torch.cat([chain.scores.emissions for chain in chains])
    scores = chains[0].scores._replace(emissions=emissions)
    tags, chances = _answer(scores, [len(emissions)])
    return tags.numpy(), chances.numpy()


def _answer(scores: CrfScores, num_words: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The best tags of words and their marginal probabilities, both [W]."""
    tags = best_path(scores, num_words)
    return tags, marginals(scores, num_words).gather(1, tags[:, None])[:, 0]


def _centred(scores: CrfScores) -> CrfScores:
    """The same scores with 0 for the best emission of each word.

    A constant for a word changes neither likelihood nor answer, and sums over hundreds of words
    that stay near 0 lose less in float32.
    """
    emissions = scores.emissions
    return scores._replace(emissions=emissions - emissions.detach().amax(-1, keepdim=True))
