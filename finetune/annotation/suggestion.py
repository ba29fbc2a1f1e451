"""Active learning: the unlabeled examples most worth labeling next.

The kinds of predictions measure the uncertainty (``Kind.uncertainty``): the margin of one label,
the mean over several labels, the mean probability of tags, the entropy of spans.

``both`` is diverse mini-batch active learning (Zhdanov 2019). For n suggestions, k-means clusters
the 10 n most uncertain examples, weighted by uncertainty, and chooses the nearest to each center.
``diversity`` clusters a random sample of all examples.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xxhash

from finetune.cli.output import open_records, show
from finetune.data.examples import normalized_texts
from finetune.evaluation.kinds import KINDS
from finetune.inference.embed import Embedder
from finetune.inference.predictor import Predictor
from finetune.runtime.records import with_columns
from finetune.types import (
    Example,
    Prediction,
    SpanPrediction,
    TokenExample,
    UserError,
    quantity,
)

if TYPE_CHECKING:
    from finetune.annotation.commands import Suggest

Strategy = Literal["both", "uncertainty", "diversity", "random"]
PREFILTER = 10
"""Number of uncertain examples from which ``both`` chooses one (β of Zhdanov)."""
SAMPLE = 20_000
"""Largest number of examples that ``diversity`` clusters."""


@dataclass(frozen=True, eq=False)
class Suggestion:
    """An example to label, with its prediction and the uncertainty of this (None: no measure)."""

    example: Example
    prediction: Prediction
    uncertainty: float | None


def in_roles(example: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an example, with its texts under the names that all commands know.

    Words are in the prediction.
    """
    found, texts = dict(values), {"text": example.text}
    if isinstance(example, TokenExample):
        found = {name: value for name, value in found.items() if value != [*example.words]}
    else:
        texts["text_pair"] = example.pair
    for role, text in texts.items():
        if text is not None and found.get(role) != text:
            found = {name: value for name, value in found.items() if value != text}
            found = {f"input_{n}" if n == role else n: v for n, v in found.items()}
            found[role] = text
    return found


class Suggester:
    """A trained model that chooses examples to label next.

    Args:
        folder: Folder of a run.
        options: Options of ``Predictor``.
    """

    def __init__(self, folder: str, **options: Any) -> None:
        self.folder = folder
        self.model = Predictor(folder, decide=False, **options)
        self.num_read = self.num_repeated = self.num_empty = 0

    def suggest(
        self,
        examples: Iterable[Example],
        number: int,
        by: Strategy = "both",
        seed: int = 1,
        rows: dict[int, Any] | None = None,
    ) -> list[Suggestion]:
        """Return examples to label, the best first; equal texts count once.

        Examples are read once, and only candidates are kept in memory. The reader enters the values
        of each example in ``rows``, by id; the rows of examples that are not kept are removed.

        Raises:
            UserError: The predictions of the model have no measure of uncertainty.
        """
        limit = {"both": PREFILTER * number, "diversity": max(SAMPLE, number)}.get(by, number)
        kept: list[tuple[float, float, int, Suggestion]] = []
        random = np.random.default_rng(seed)
        for index, each in enumerate(self._predicted(examples)):
            score = 0.0
            if by in ("both", "uncertainty"):
                if each.uncertainty is None:
                    raise UserError(
                        f"--by {by} needs labels with probabilities, and a model of "
                        f"{self.model.task.name} predicts none: write --by diversity or random."
                    )
                score = each.uncertainty
            item = (score, float(random.random()), -index, each)  # ties by chance
            if len(kept) < limit:
                heapq.heappush(kept, item)
            else:
                dropped = heapq.heappushpop(kept, item)[3].example
                (rows or {}).pop(dropped.id, None)
        found = [item[3] for item in sorted(kept, reverse=True, key=lambda item: item[:3])]
        if by in ("uncertainty", "random") or len(found) <= number:
            return found
        weights = [max(each.uncertainty or 0.0, 1e-6) if by == "both" else 1.0 for each in found]
        return [found[index] for index in central(self._vectors(found), weights, number, seed)]

    def _predicted(self, examples: Iterable[Example]) -> Iterator[Suggestion]:
        waiting: dict[int, Example] = {}
        predictions = self.model.stream(self._distinct(examples, waiting))
        kind = KINDS[self.model.task.record.kind]
        for prediction in predictions:
            found = kind.uncertainty(prediction)
            if isinstance(prediction, SpanPrediction):
                prediction = replace(prediction, candidates=())
            yield Suggestion(waiting.pop(prediction.id), prediction, found)

    def _distinct(
        self, examples: Iterable[Example], waiting: dict[int, Example]
    ) -> Iterator[Example]:
        seen: set[int] = set()
        for example in examples:
            self.num_read += 1
            texts = normalized_texts(example)
            if not any(texts):
                self.num_empty += 1
                continue
            digest = xxhash.xxh3_64_intdigest("\x00".join(texts).encode())
            if digest in seen:
                self.num_repeated += 1
                continue
            seen.add(digest)
            waiting[example.id] = example
            yield example

    def _vectors(self, found: Sequence[Suggestion]) -> np.ndarray:
        embedder = Embedder(self.folder, unit="text", normalize=True, pooling="mean")
        examples: list[Any] = [each.example for each in found]
        sides = [examples]
        if len(examples[0].texts()) == 2:
            sides = [[each.text for each in examples], [each.pair or "" for each in examples]]
        vectors = ([each.vectors[0] for each in embedder.encode(side)] for side in sides)
        return np.concatenate(list(map(np.stack, vectors)), 1)


def central(vectors: np.ndarray, weights: Sequence[float], number: int, seed: int = 1) -> list[int]:
    """Return the indices of the vectors [N, H] nearest to the centers of weighted k-means.

    Clusters of more weight are first. There are ``number`` indices, all different, if N allows it.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    distinct = len(np.unique(vectors, axis=0))
    with threadpool_limits(limits=1):  # the order of a sum decides ties
        clusters = KMeans(min(number, distinct), n_init=1, random_state=seed)
        labels = clusters.fit(vectors, sample_weight=weights).labels_
    distance = np.linalg.norm(vectors - clusters.cluster_centers_[labels], axis=1)
    mass = np.bincount(labels, weights, minlength=len(clusters.cluster_centers_))
    order = np.lexsort((np.arange(len(vectors)), distance))
    first = {int(labels[index]): int(index) for index in order[::-1]}
    chosen = sorted(first.values(), key=lambda index: (-mass[labels[index]], index))
    others = [index for index in range(len(vectors)) if index not in {*chosen}]
    return [*chosen, *others][:number]


def write_suggestions(command: Suggest) -> None:
    """Write one line for each chosen example, the best first."""
    suggester = Suggester(command.folder, max_tokens=command.max_tokens)
    rows: dict[int, Mapping[str, Any]] = {}
    examples = suggester.model.task.record.read(command.file, **command.reading, rows=rows)
    with open_records(command.out, [Path(command.file)]) as write:
        found = suggester.suggest(examples, command.number, command.by, command.seed, rows)
        for each in found:
            example: Any = each.example
            record = each.prediction.record()
            record["id"] = example.id if example.key is None else example.key
            if each.uncertainty is not None:
                record["uncertainty"] = round(each.uncertainty, 6)
            write(with_columns(record, in_roles(example, rows.get(example.id, {}))))
    for number, what in (
        (suggester.num_repeated, "with the text of another left out"),
        (suggester.num_empty, "without text left out"),
    ):
        if number:
            show(f"{quantity(number, 'example')} {what}", error=True)
    chosen = f"{len(found):,} of {quantity(suggester.num_read, 'example')}"
    show(f"chose {chosen}{f': {command.out}' if command.out else ''}", error=True)
