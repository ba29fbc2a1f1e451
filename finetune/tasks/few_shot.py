"""Few-shot classification: contrastive training of the encoder, then a logistic regression.

SetFit (Tunstall et al., 2022): vectors of texts get a cosine of 1 if their labels are equal and of
0 if not; the classifier is fitted on the vectors of the training texts before each evaluation.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from finetune.data import Dataset
from finetune.models.heads.sentence_encoder import SentenceEncoder, SentenceOutput, starting_pooling
from finetune.preprocessing.encodings import Array, FlatSequences
from finetune.preprocessing.text_labels import names_of
from finetune.runtime.device import to_device
from finetune.tasks.base import starting_model
from finetune.tasks.text_classification import TextClassificationTask
from finetune.types import Batch, TextExample, UserError


def cosine_loss(
    u: torch.Tensor, v: torch.Tensor, label: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the summed squared error of cosines to labels from 0 to 1, and their number.

    The loss of Sentence-BERT for pairs with numbers (Reimers & Gurevych, 2019).
    """
    errors = (functional.cosine_similarity(u, v, dim=-1) - label.to(u.dtype)) ** 2
    return errors.sum(), u.new_full((), len(label))


class FewShotTask(TextClassificationTask):
    """Texts or pairs of texts with one label each, few examples of each label."""

    def complete(self, data: Dataset) -> Dataset:
        """Raise UserError if the training examples lack a label."""
        names = {name for example in data.splits["train"] for name in names_of(example.label)}
        if missing := [name for name in self.state.labels if name not in names]:
            raise UserError(
                f"--few-shot: no training example is labeled {missing[0]!r}: train on more of them."
            )
        return super().complete(data)

    def _targets(self, sequences: FlatSequences) -> dict[str, torch.Tensor]:
        return {}  # the loss compares vectors

    def model(self, folder: str | Path | None = None) -> SentenceEncoder:
        config, state = self.state.config, self.state
        settings: dict[str, Any] = {
            "labels": list(state.labels),
            "pairs": False,
            "max_length": state.max_length,
        }
        if folder is not None:
            return SentenceEncoder.from_pretrained(str(folder), trained=True, **settings)
        # the regression fits vectors of their own length better than those of length 1
        settings |= {"pooling": starting_pooling(config)[0], "normalize": False}
        return SentenceEncoder.from_pretrained(**settings, **starting_model(self))

    def sequences_of_epoch(
        self, sequences: FlatSequences, seed: int, epoch: int, rows: Array | None = None
    ) -> FlatSequences:
        """Draw for each text one of its own label and one of another.

        They are the anchor, its positive and its negative: the windows 0, 1 and 2.
        """
        chosen = np.arange(len(sequences)) if rows is None else rows
        assert sequences.targets is not None
        labels = sequences.targets["label"].values
        triples = np.repeat(chosen, 3)
        for index, row in enumerate(chosen):
            generator = random.Random(f"{seed}/{epoch}/{row}")
            same, different = labels == labels[row], labels != labels[row]
            same[row] = same.sum() == 1  # a text without another of its label: with itself
            for number, legal in ((1, same), (2, different)):
                triples[3 * index + number] = generator.choice(np.flatnonzero(legal))
        return replace(
            sequences.take(triples),
            example=np.repeat(sequences.example[chosen], 3),
            window=np.tile(np.arange(3), len(chosen)),
        )

    def batch_loss(
        self,
        model: SentenceEncoder,
        vectors: torch.Tensor,
        keys: Sequence[tuple[int, int]],
        targets: Mapping[str, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.tensor([number for _, number in keys])
        rows = [to_device((numbers == n).nonzero()[:, 0], vectors.device) for n in range(3)]
        anchor, *positive_and_negative = (vectors.index_select(0, indices) for indices in rows)
        label = torch.cat([anchor.new_ones(len(anchor)), anchor.new_zeros(len(anchor))])
        loss, count = cosine_loss(anchor.repeat(2, 1), torch.cat(positive_and_negative), label)
        # a frozen encoder has no gradient, the classifier one of 0
        return loss + 0.0 * model.classifier_weights().sum(), count

    def fit_classifier(
        self, model: SentenceEncoder, gold: Sequence[TextExample], vectors: Array
    ) -> None:
        """Fit a logistic regression on the vectors, with an L2 penalty as in SetFit (C = 1)."""
        from sklearn.linear_model import LogisticRegression  # which takes long to import

        labels = self.state.labels
        classes = np.array([labels.id(str(example.label), example.where) for example in gold])
        weights = self.state.class_weights
        regression = LogisticRegression(max_iter=10_000).fit(
            vectors.astype(np.float64),
            classes,
            None if weights is None else np.array(weights)[classes],
        )
        weight, bias = regression.coef_, regression.intercept_
        if len(weight) == 1:  # of two classes: a sigmoid, as a softmax
            weight, bias = (np.concatenate([-half, half]) for half in (weight / 2, bias / 2))
        assert model.classifier is not None
        with torch.no_grad():
            model.classifier.weight.copy_(torch.from_numpy(weight))
            model.classifier.bias.copy_(torch.from_numpy(bias))

    def decode(self, logits: SentenceOutput, batch: Batch) -> list[np.ndarray]:
        """Compute the probabilities [C] of each text, by the classifier on their vectors."""
        weights = logits.classifier
        class_logits = functional.linear(logits.vectors, weights[:, :-1], weights[:, -1])
        return super().decode(class_logits, batch)
