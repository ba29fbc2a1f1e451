"""Training of taggers with a CRF: targets and the negative log-likelihood.

Each window of a long sentence is a separate chain: the scores of starting and ending a sentence
count only in its first and last window. Prediction joins the windows (``tasks.decoding``).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from finetune.models.heads.crf import CrfScores, log_partition, path_score, restrict
from finetune.preprocessing.encodings import Ragged
from finetune.types import IGNORED, Batch


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


def chain_divergence(
    scores: CrfScores, teacher: CrfScores, batch: Batch, temperature: float
) -> Tensor:
    """Return T^2 KL(teacher || student) of tag sequences, summed, at temperature T.

    KL is the difference of log Z - E[s(y)] of student and teacher, where the teacher's expectation
    of a score s(y) is linear in its expected counts, the gradient of its log Z (structure-level
    distillation; Wang et al., 2020).
    """
    kind = scores.emissions.dtype
    layout = (batch.num_words, batch.targets["begins"], batch.targets["ends"])
    with torch.enable_grad():
        fixed = [
            (part.detach().to(kind) / temperature).requires_grad_() for part in _centred(teacher)
        ]
        expected = CrfScores(*fixed)
        partition = log_partition(expected, *layout).sum()
        counts = torch.autograd.grad(partition, fixed)
    own = CrfScores(*(part / temperature for part in _centred(scores)))

    def cross_entropy(other: CrfScores, partition: Tensor) -> Tensor:
        for count, part in zip(counts, other, strict=True):  # illegal transitions are -inf
            partition = partition - (count * part.masked_fill(count == 0, 0.0)).sum()
        return partition

    least = cross_entropy(CrfScores(*(part.detach() for part in fixed)), partition.detach())
    return (cross_entropy(own, log_partition(own, *layout).sum()) - least) * temperature**2


def _centred(scores: CrfScores) -> CrfScores:
    """Shift the emissions of each word so that the best one is 0, for precision in float32."""
    emissions = scores.emissions
    return scores._replace(emissions=emissions - emissions.detach().amax(-1, keepdim=True))
