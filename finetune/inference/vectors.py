"""Vectors that a trained model decides on, and distances from those of its training examples.

The distance of a text is the Mahalanobis distance from the mean of the training vectors, under
their covariance (Lee et al. 2018; for encoders Podolskiy et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.numpy import load, save

from finetune.evaluation.decisions import Choice
from finetune.evaluation.decisions.sets import conformal_quantile, fewest_for_level
from finetune.inference.loop import pass_options, precision_on, values_of_examples
from finetune.models.master_weights import cast_weights
from finetune.preprocessing.encodings import Array
from finetune.runtime.device import model_to_device
from finetune.runtime.files import replace_file
from finetune.runtime.launch import make_accelerator
from finetune.tasks.base import Task
from finetune.tasks.definition import run_data
from finetune.types import Example, UserError, quantity

FILE = "distance.safetensors"
"""File of a saved model with the statistics of its training vectors; a hub download includes it."""
MOST_VECTORS = 20_000
"""Training examples to compute vectors of: a covariance needs no more."""
RIDGE = 1e-3
"""Share of the mean variance that is added to each direction."""


def decision_vectors(
    task: Task, head: Any, examples: Sequence[Example], accelerator: Accelerator | None = None
) -> Array:
    """Compute the vector of each example that its head decides on: float32 [N, H].

    It is the last hidden state of the first token (or the pooled vector, as the model was trained)
    of texts and pairs, and the mean of the words of a sentence. The vector of an example of several
    windows is their mean, of words weighted by their number. That of a blank text, and of an
    example without a sequence, is 0. Every process computes all.

    Args:
        task: The task of the model.
        head: The model, on the accelerator's device.
        examples: The examples. Their ids need not differ.
        accelerator: The device.
    """
    device = (accelerator or make_accelerator()).device
    filled = [n for n, example in enumerate(examples) if task.state.of_blank(example) is None]
    encoded = task.encode([examples[number] for number in filled])
    num_words = np.maximum(encoded.sequences.num_words, 1)
    values = values_of_examples(
        head,
        encoded,
        lambda vectors, _: vectors.cpu().numpy(),
        forward=head.vectors,
        **pass_options(task, device),
    )
    windows = {number: vectors for number, vectors in values if vectors}
    width = len(next(iter(windows.values()))[0]) if windows else 0
    means = np.zeros((len(examples), width), np.float32)
    for number, vectors in windows.items():
        rows = slice(*encoded.offsets[number : number + 2])
        weights = num_words[rows] if task.description.words else None
        means[filled[number]] = np.average(vectors, 0, weights)
    return means


@dataclass(frozen=True)
class TrainingVectors:
    """The mean [H] of training vectors, and the matrix [H, H] that makes their covariance 1."""

    mean: np.ndarray
    whitening: np.ndarray

    @classmethod
    def fit(cls, vectors: np.ndarray) -> Self:
        """Estimate the statistics of training vectors [N, H]."""
        exact = vectors.astype(np.float64)
        covariance = np.atleast_2d(np.cov(exact, rowvar=False))
        values, directions = np.linalg.eigh(covariance)
        values = np.maximum(values, 0) + RIDGE * max(values.mean(), 1e-12)
        return cls(exact.mean(axis=0), directions / np.sqrt(values))

    def distances(self, vectors: np.ndarray) -> np.ndarray:
        """Compute the distance of each vector: [N, H] -> [N]."""
        distances: np.ndarray = np.linalg.norm((vectors - self.mean) @ self.whitening, axis=1)
        return distances

    def save(self, folder: Path) -> None:
        """Write the statistics into the folder of a model."""
        with replace_file(folder / FILE, binary=True) as file:
            file.write(save({"mean": self.mean, "whitening": self.whitening}))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the statistics of a saved model.

        Raises:
            UserError: The file is missing or damaged.
        """
        try:
            arrays = load((folder / FILE).read_bytes())
            return cls(arrays["mean"], arrays["whitening"])
        except (OSError, SafetensorError, KeyError) as error:
            raise UserError(
                f"{folder / FILE}: missing or damaged ({error}): choose it again with `finetune "
                "thresholds RUN --ood RATE`, or remove it with --reset."
            ) from error


def choose_distance(task: Task, model: Path, split: str, rate: float, *, save: bool) -> Choice:
    """Choose the distance that at most a share ``rate`` of new texts of the same kind exceeds.

    It is a conformal quantile of a split, with four digits, as decisions compare distances. With
    ``save``, the statistics of the training vectors are written into the folder of the model.

    Raises:
        UserError: The training data are gone or have changed, or the split is missing or too small.
    """
    data = run_data(task, model, "--ood compares with its training data")
    if not len(data.splits.get(split, ())):
        raise UserError(f"{data.name}: --ood needs a {split} split: train with one.")
    accelerator = make_accelerator()
    head = model_to_device(task.model(model), accelerator.device)
    cast_weights(head, precision_on(task, accelerator.device))
    vectors = {}
    for name, examples in data.splits.items():
        of_split = decision_vectors(task, head, examples[:MOST_VECTORS], accelerator)
        vectors[name] = of_split[of_split.any(axis=1)]
    statistics = TrainingVectors.fit(vectors["train"])
    distances = {name: statistics.distances(of_split) for name, of_split in vectors.items()}
    quantile = conformal_quantile(distances[split].tolist(), 1 - rate)
    if quantile is None:
        raise UserError(
            f"--ood {rate:g}: {quantity(len(distances[split]), 'example')}, where "
            f"{fewest_for_level(1 - rate):,} are needed: add some, or raise the rate."
        )
    largest = math.ceil(quantile * 1e4) / 1e4
    if save:
        statistics.save(model)
    rows = [
        {
            "split": name,
            "examples": len(of_split),
            "mean distance": float(of_split.mean()),
            "ood": float((of_split > largest).mean()),
        }
        for name, of_split in distances.items()
    ]
    note = f"the model abstains from texts at a distance above {largest:.4f}"
    if task.state.prediction_type == "number":
        note = f"`ood` is true of texts at a distance above {largest:.4f}, and their numbers stay"
    fields = {"distance": largest}
    return Choice(fields, {**fields, "splits": rows}, {"": rows}, [note])
