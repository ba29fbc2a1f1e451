"""Word senses by nearest neighbor: sense vectors, the decision, and the choice of the prior.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", section on
word senses. The vector of a sense is the mean over its annotated uses (equation 11.8), and a word
has the sense with the nearest vector (11.9). Where no sense of a word has a vector, it has the
first sense (Melamud, Goldberger & Dagan 2016; Peters et al. 2018).

Shapes: S senses, H width.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from finetune.embeddings.vectors import Array
from finetune.embeddings.wordnet import Inventory
from finetune.evaluation.kinds import scores_of
from finetune.types import SenseTarget

Lemma = tuple[str, str]
"""A lemma and its part of speech."""
PRIORS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2)
"""The weights of the prior to try on the validation split."""


class SensePrediction(NamedTuple):
    """The sense of a target; None if its lemma has no known sense.

    ``scores`` has all candidates with a vector, the best first. ``backed_off`` says that ``sense``
    is the first sense, for lack of scores.
    """

    sense: str | None
    scores: Mapping[str, float]
    backed_off: bool

    def record(self, target: SenseTarget) -> dict[str, Any]:
        """Return a line of a prediction file, with the gold of the target if it has some."""
        best = dict(list(self.scores.items())[:10])
        record = {
            "id": target.key,
            "senses": [] if self.sense is None else [self.sense],
            "scores": {sense: round(score, 6) for sense, score in best.items()},
            "backed_off": self.backed_off,
            "lemma": target.lemma,
            "pos": target.pos,
            "document": target.document,
            "where": target.where,
        }
        return record | ({"gold": list(target.senses)} if target.senses else {})


@dataclass
class SenseCollector:
    """Adds up the vectors of annotated uses: memory grows with senses, not with uses."""

    counts: defaultdict[Lemma, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _sums: dict[str, Array] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)

    def add(self, target: SenseTarget, vector: Array | None) -> None:
        """Add one use to each of its gold senses; a use without vector is only counted."""
        if not target.senses:
            return
        self.counts[target.lemma, target.pos].update(target.senses)
        if vector is None:
            return
        for sense in target.senses:
            if sense not in self._sums:
                self._sums[sense] = np.zeros(vector.shape, dtype=np.float32)
            self._sums[sense] += vector
            self._numbers[sense] += 1

    def vectors(self) -> dict[str, Array]:
        """Return the vector of each sense, float32 [H] (equation 11.8).

        Call it once, at the end: the sums become the means, so that memory has one of them.
        """
        for sense, vector in self._sums.items():
            vector /= self._numbers[sense]
        return dict(sorted(self._sums.items()))


@dataclass(frozen=True, eq=False)
class Disambiguator:
    """Decides on the senses of targets from their vectors.

    Attributes:
        vectors: The vector [H] of each sense with annotated uses.
        counts: The number of uses of each sense in training, by lemma.
        inventory: The senses of each lemma; None takes the senses of the training data.
        prior: λ, the weight of the prior: the score of a sense is
            ``cos(t, v_s) + λ log p(s | lemma)``, with p from ``counts``. If a candidate has no use,
            every candidate gets one more.
        glosses: The vector [H] of the gloss of each sense.
        gloss_weight: The vector of a sense is the vector of its uses plus this weight times the
            vector of its gloss, both at length 1 (Loureiro & Jorge 2019, LMMS).
    """

    vectors: Mapping[str, Array]
    counts: Mapping[Lemma, Mapping[str, int]]
    inventory: Inventory | None
    prior: float = 0.0
    glosses: Mapping[str, Array] = field(default_factory=dict)
    gloss_weight: float = 0.0

    def candidates(self, target: SenseTarget) -> list[str]:
        """Return the senses of a lemma, the first sense first.

        Senses of the inventory keep its order; other senses of the training data follow by
        frequency.
        """
        lemma = target.lemma, target.pos
        listed = () if self.inventory is None else self.inventory.senses.get(lemma, ())
        counts = self.counts.get(lemma, {})
        return list(dict.fromkeys([*listed, *sorted(counts, key=lambda s: (-counts[s], s))]))

    def cosines(self, target: SenseTarget, vector: Array | None) -> dict[str, float]:
        """Return the cosine of a target's vector [H] with each candidate that has a vector.

        Glosses alone do not decide: without annotated uses of a candidate, there are no cosines.
        """
        candidates = self.candidates(target)
        if vector is None or not any(sense in self.vectors for sense in candidates):
            return {}
        found = {}
        weighted = (
            (self.vectors, 1.0),
            (self.glosses if self.gloss_weight else {}, self.gloss_weight),
        )
        for sense in candidates:
            parts = [weight * _unit(each[sense]) for each, weight in weighted if sense in each]
            if parts:
                found[sense] = float(_unit(np.sum(parts, axis=0)) @ _unit(vector))
        return found

    def predict(self, target: SenseTarget, cosines: Mapping[str, float]) -> SensePrediction:
        """Return the sense with the highest score (11.9), of equal ones the most frequent."""
        candidates = self.candidates(target)
        if not cosines:
            return SensePrediction(next(iter(candidates), None), {}, True)
        counts = self.counts.get((target.lemma, target.pos), {})
        uses = {sense: counts.get(sense, 0) for sense in cosines}
        added = 0 if all(uses.values()) else 1
        total = sum(uses.values()) + added * len(uses)
        scored = {
            sense: cosine + self.prior * float(np.log((uses[sense] + added) / total))
            for sense, cosine in cosines.items()
        }
        order = sorted(scored, key=lambda s: (-scored[s], -uses[s], candidates.index(s)))
        return SensePrediction(order[0], {sense: scored[sense] for sense in order}, False)


def choose_prior(
    model: Disambiguator, targets: Sequence[SenseTarget], cosines: Sequence[Mapping[str, float]]
) -> tuple[Disambiguator, dict[float, float]]:
    """Return the model with the prior of the highest F1 on these targets, and the F1 of each.

    Of equal ones it is the smallest.
    """
    found = {}
    for prior in PRIORS:
        tried = replace(model, prior=prior)
        predicted = [tried.predict(*each) for each in zip(targets, cosines, strict=True)]
        found[prior] = sense_scores(targets, predicted)["f1"]
    best = max(found, key=lambda prior: (found[prior], -prior))
    return replace(model, prior=best), found


def sense_scores(
    targets: Sequence[SenseTarget], predictions: Sequence[SensePrediction]
) -> dict[str, float]:
    """Return precision, recall and F1 of the targets with gold; nothing without gold.

    They are defined as in the scorer of Raganato, Camacho-Collados & Navigli 2017.
    """
    gold = [target.senses for target in targets if target.senses]
    predicted = [
        () if prediction.sense is None else (prediction.sense,)
        for target, prediction in zip(targets, predictions, strict=True)
        if target.senses
    ]
    return scores_of("senses", gold, predicted) if gold else {}


def first_senses(
    model: Disambiguator, targets: Iterable[SenseTarget], *, trained: bool = False
) -> list[SensePrediction]:
    """Return the first sense of each target; with ``trained`` the most frequent in training.

    Lemmas that do not occur in training have the first sense in both.
    """
    found = []
    for target in targets:
        senses = model.candidates(target)
        counts = model.counts.get((target.lemma, target.pos), {})
        if trained and counts:
            senses = sorted(counts, key=lambda sense: (-counts[sense], sense))
        found.append(SensePrediction(next(iter(senses), None), {}, True))
    return found


def _unit(vector: Array) -> Array:
    length = np.linalg.norm(vector)
    return np.asarray(vector / length if length else vector)
