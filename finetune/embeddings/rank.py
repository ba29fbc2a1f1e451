"""Ranking many candidate texts for a query with a trained model of pairs.

A bi-encoder or poly-encoder computes the vectors of the candidates once. A cross-encoder reads each
candidate again with every query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finetune.inference.loop import pass_options, predict, values_of_examples
from finetune.inference.predictor import Predictor
from finetune.models.heads.pair_classifier import PairClassifier
from finetune.preprocessing.encodings import EncodedExamples
from finetune.preprocessing.texts import encode_texts
from finetune.types import Batch, TextExample, UserError, did_you_mean


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate, its index, and its probability or number for the query."""

    index: int
    text: str
    score: float


class Ranker:
    """A trained model of pairs with the candidates that it ranks.

    Scores equal ``finetune predict`` without ``--calibrate``, with the query as the first text and
    the candidate as the second. Vectors are compared in float32, so that few scores tie. A
    cross-encoder ranks a blank candidate last for a blank query.

    Args:
        run: Folder of a run of ``classify`` or ``nli`` on pairs.
        candidates: The texts to rank.
        label: The label whose probability ranks; None is the only number of a regression, or
            ``entailment``.

    Raises:
        UserError: The model does not compare pairs, or has no such label.

    Examples:
        >>> ranker = Ranker("runs/bi", ["A dog runs.", "It rains."])  # doctest: +SKIP
        >>> ranker.rank("A puppy is running.")[0].text  # doctest: +SKIP
        'A dog runs.'
    """

    def __init__(
        self, run: str | Path, candidates: Sequence[str], *, label: str | None = None
    ) -> None:
        self.predictor = Predictor(run)
        self.device: torch.device = self.predictor.accelerator.device
        self.task: Any = self.predictor.task
        self.model: Any = self.predictor.model.train(False)
        state = self.task.state
        if not state.pairs:
            raise UserError(f"{run}: ranking needs a model of pairs of texts.")
        if state.prediction_type == "labels":
            raise UserError(f"{run}: ranking needs one label or a number for a pair, not several.")
        self.candidates, self.label = list(candidates), label or "entailment"
        self.is_number = state.prediction_type == "number"
        if not self.is_number and self.label not in state.labels:
            raise UserError(
                f"label {self.label!r} is not one of {', '.join(state.labels)}: name the label "
                f"whose probability ranks.{did_you_mean(self.label, state.labels)}"
            )
        self.has_vectors = isinstance(self.model, PairClassifier)
        if self.has_vectors:
            self.vectors = self._vectors(self.candidates, self.model.text_vectors)

    def rank(self, query: str, count: int = 10) -> list[Ranked]:
        """Rank the best candidates for a query, best first; ties keep their order."""
        scores = self.scores(query)
        best = torch.sort(scores, descending=True, stable=True).indices[:count].tolist()
        return [Ranked(index, self.candidates[index], float(scores[index])) for index in best]

    def scores(self, query: str) -> Tensor:
        """Compute the score of each candidate for a query."""
        if not self.has_vectors:
            task = replace(self.task, state=self.task.state.unfitted())
            pairs = [TextExample(index, query, text) for index, text in enumerate(self.candidates)]
            predicted: Any = predict(task, self.model, pairs, self.predictor.accelerator)
            values = [p.label if self.is_number else p.scores[self.label] for p in predicted]
            scores = torch.from_numpy(np.array(values, np.float32))
            return scores.nan_to_num(nan=-torch.inf)  # two blank texts have no prediction
        with torch.no_grad():
            vectors = self._vectors([query], self.model.query_vectors)
            logits: Tensor = self.model.compare(vectors, self.vectors)
        if self.is_number:
            return logits[:, 0].cpu()
        return logits.softmax(-1)[:, self.task.state.labels.id(self.label)].cpu()

    def _vectors(
        self, texts: Sequence[str], vectors_of: Callable[[Tensor, Batch], Tensor]
    ) -> Tensor:
        examples = [TextExample(number, text) for number, text in enumerate(texts)]
        limits = self.task.tokenizer, self.task.state.max_length, "truncate"
        encoded = EncodedExamples.of(encode_texts(examples, *limits)[0])
        options = pass_options(self.task, self.device)
        vectors = dict(values_of_examples(self.model.encoder, encoded, vectors_of, **options))
        return torch.stack([vectors[number][0] for number in range(len(texts))])
