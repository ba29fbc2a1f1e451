"""Sentence encoders: vectors of texts, trained without labels, with pairs, or with scores of pairs.

``sentence_objectives`` has what each objective learns from, and its loss.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.special import softmax
from torch import Tensor

from finetune.config.tasks import column_map
from finetune.data import DataError, Dataset, read_text
from finetune.data.examples import Examples
from finetune.data.labels import NLI_LABELS, voted_names, with_standard_names
from finetune.embeddings.sentence_objectives import (
    OBJECTIVES,
    Objective,
    distinct_texts,
    positive_pairs,
)
from finetune.embeddings.settings import SentenceConfig
from finetune.embeddings.vectors import unit_vectors
from finetune.evaluation.metrics import score
from finetune.evaluation.prediction_types import TYPES
from finetune.models.heads.masked_lm import MaskedScores
from finetune.models.heads.sentence_encoder import SentenceEncoder, SentenceOutput, starting_pooling
from finetune.preprocessing.encodings import Array, EncodedExamples, FlatSequences
from finetune.tasks.base import BatchLoss, Task, starting_model
from finetune.tasks.state import TaskState
from finetune.types import (
    Batch,
    Example,
    LabelSet,
    SentencePrediction,
    TextExample,
    TokenSequence,
    UserError,
    WindowOutput,
    abbreviated,
    quantity,
)

Measure = Literal["label", "number", "ranking"]

_METRICS: Mapping[Measure, str] = {
    "label": "accuracy",
    "number": "spearman_all",
    "ranking": "ranking_accuracy",
}
"""The metric that selects the best model, by the gold of the validation split."""
_ROWS = 1024
"""Rows of the matrix of cosines to compute at a time."""


@dataclass(frozen=True, kw_only=True)
class SentenceState(TaskState):
    """The saved state of a sentence encoder."""

    config: SentenceConfig
    pooling: str
    normalize: bool
    measure: Measure
    """Validation gold: labels, numbers (cosines are scored), or none (pairs are ranked)."""

    @property
    def prediction_type(self) -> str:
        """The name of the prediction type."""
        return "label" if self.measure == "label" else "number"

    @property
    def metric(self) -> str:
        """Name of the metric that selects the best model."""
        return self.config.metric or _METRICS[self.measure]

    def read_scored(self, source: str, **options: Any) -> Iterator[Example]:
        """Stream the pairs of a file with gold: those with numbers are scored by their cosines."""
        usual = {"usual_columns": self.usual_columns}
        if len(self.labels):
            examples = TYPES["number"].read_gold(source, **options, **usual)
            if any(isinstance(example.label, float) for example in examples):
                # a number as label asks for the cosine; scores are against the gold of the file
                return (replace(row, label=row.label or 0.0) for row in examples)
        return self.read(source, **options)

    def checked(self, example: Any) -> Example:
        """As in every task, but a number stays as label: it asks for the cosine."""
        checked: Any = super().checked(example)
        number = example.label if isinstance(example.label, float) else None
        return replace(checked, label=number)  # type: ignore[no-any-return]


def with_numbers(rows: Examples) -> Examples:
    """Read labels that are whole numbers, such as ratings from 0 to 5, as numbers."""
    names = {label for label in rows.column("label") if label is not None}
    if not all(isinstance(name, str) and name.isdecimal() for name in names):
        return rows
    return rows.map(lambda _, row: replace(row, label=row.label and float(row.label)))


def scored_rows(rows: Sequence[TextExample], gold: type | None) -> Iterator[TextExample]:
    """Yield the examples of a split to score: with numbers, with labels, to rank, or without gold.

    ``gold`` is the type of the labels that the model learns from, None without labels.
    """
    pairs = [row for row in rows if row.pair is not None]
    numbers = [row for row in pairs if isinstance(row.label, float)]
    names = [row for row in pairs if isinstance(row.label, str)]
    if numbers or (names and gold is str):
        yield from numbers or names
    elif pairs and gold is not None:
        yield from (replace(row, label=None) for row in pairs)
    elif positive := list(positive_pairs(rows)):
        yield from (replace(pair, negative=None) for pair in positive)
    else:
        yield from distinct_texts(rows)


def with_half(example: TextExample) -> TextExample:
    """Pair a text with half of its words, in order (or of its characters, if it is one word).

    The choice of words depends on the text alone, so that all runs are scored on the same pairs.
    """
    if example.pair is not None:
        return example
    words = example.text.split()
    units, between = (words, " ") if len(words) > 1 else (list(example.text), "")
    generator = random.Random(example.text)
    kept = sorted(generator.sample(range(len(units)), max(1, len(units) // 2)))
    return replace(example, pair=between.join(units[index] for index in kept))


def _validation_gold(splits: Mapping[str, Sequence[TextExample]]) -> Any:
    name = next((split for split in sorted(splits) if split.startswith("validation")), "train")
    return splits[name][0].label if name in splits else None


def _nothing_to_use(objective: str, split: str, rows: Sequence[TextExample]) -> DataError:
    inputs = "texts" if rows[0].pair is None else "pairs"
    labels = [row.label for row in rows if row.label is not None]
    labeling = "without labels"
    if labels:
        names = abbreviated(sorted({*map(str, labels)}), 4)
        labeling = "with numbers" if isinstance(labels[0], float) else f"labeled {names}"
    return DataError(
        f"{rows[0].where}: --objective {objective} needs {OBJECTIVES[objective].needs}; {split} "
        f"has {inputs} {labeling}: choose another objective, or name the columns with --columns."
    )


class SentenceTask(Task):
    """One vector for each text."""

    state: SentenceState
    state_class = SentenceState
    gold = attrgetter("text")
    reusable_head = SentenceEncoder

    @classmethod
    def read(cls, config: SentenceConfig, source: Any) -> Dataset:
        """Read texts or pairs; the splits may have different types of labels."""
        return read_text(
            source, columns=column_map(config.columns), encoding=config.encoding, mixed_labels=True
        )

    @classmethod
    def prepare(cls, config: SentenceConfig, data: Dataset) -> Dataset:
        """Select the texts or pairs that the objective and the scores need, with notes."""
        objective = OBJECTIVES[config.objective]
        if voted_names(data.splits.values()):
            raise DataError(
                f"{data.name}: votes for labels, which sentence encoders do not read: write one "
                "label for each pair."
            )
        if objective.gold is float:
            data = data.with_splits({s: with_numbers(rows) for s, rows in data.splits.items()})
        data = with_standard_names(data)
        notes = list(data.notes)
        splits = {}
        for split, rows in data.splits.items():
            chosen = list(
                objective.select(rows) if split == "train" else scored_rows(rows, objective.gold)
            )
            unlabeled = split.startswith("validation") and objective.gold is not None
            if not chosen or (unlabeled and chosen[0].label is None):
                raise _nothing_to_use(config.objective, split, rows)
            if len(chosen) != len(rows) or chosen[0].pair != rows[0].pair:
                unit = "text" if chosen[0].pair is None else "pair"
                notes.append(f"{split}: {quantity(len(chosen), unit)} of {len(rows):,} rows")
            splits[split] = [replace(example, id=index) for index, example in enumerate(chosen)]
        if objective.gold is not None or isinstance(_validation_gold(splits), float):
            gold = "labels" if objective.gold is str else "numbers"
            notes += [
                f"{split}: {quantity(len(rows), 'pair')} without {gold}, predicted but not scored"
                for split, rows in splits.items()
                if split.startswith("test") and rows[0].label is None
            ]
        labels = {example.label for example in splits.get("train", ())}
        if objective.gold is not None and len(labels) == 1:
            notes.append(
                "warning: all pairs of train have the same label: nothing tells them apart, so "
                "there is nothing to learn"
            )
        return replace(data.with_splits(splits), notes=notes)

    @classmethod
    def derive(cls, config: SentenceConfig, data: Dataset) -> dict[str, Any]:
        """Infer labels, pooling and the type of validation gold."""
        objective, train = OBJECTIVES[config.objective], data.splits["train"]
        names = {example.label for example in train} if objective.gold is str else ()
        standard = [name for name in NLI_LABELS if name in names]
        labels = LabelSet(standard if len(standard) == len(names) else sorted(map(str, names)))
        gold = _validation_gold(data.splits)
        measure = "label" if len(labels) else "ranking"
        pooling, normalize = starting_pooling(config)
        chosen = config.pooling if config.pooling != "auto" else pooling or "mean"
        return {
            "labels": labels,
            "pooling": objective.pooling or chosen,
            "normalize": config.normalize or (normalize and objective.keeps_normalization),
            "measure": "number" if isinstance(gold, float) else measure,
            "pairs": None,
        }

    def complete(self, data: Dataset) -> Dataset:
        """Pair held-out texts without a pair with half of their words."""
        objective = self.state.config.objective
        if OBJECTIVES[objective].needs_mask and self.tokenizer.tokenizer.mask_token_id is None:
            raise UserError(
                f"--objective {objective}: the tokenizer of "
                f"{self.tokenizer.name} has no mask token: choose simcse, or another model."
            )
        splits = {
            split: rows if split == "train" else rows.map(lambda _, row: with_half(row))
            for split, rows in data.splits.items()
        }
        return replace(data, splits=splits)

    @property
    def _objective(self) -> Objective:
        return OBJECTIVES[self.state.config.objective](self.state, self.tokenizer)

    @property
    def batch_loss(self) -> BatchLoss | None:
        """The loss over all texts of an optimizer batch; None if pairs do not depend on others."""
        return self._objective.batch_loss

    def sequences_of_epoch(
        self, sequences: FlatSequences, seed: int, epoch: int, rows: Array | None = None
    ) -> FlatSequences:
        """Make the views or the masked pairs of an epoch, if the objective has any."""
        plain = super().sequences_of_epoch(sequences, seed, epoch, rows)
        return self._objective.sequences_of_epoch(plain, seed, epoch)

    def added_ids(self) -> Sequence[int]:
        """The ids of subwords that the objective adds."""
        return self._objective.added_ids()

    # --- Sequences --------------------------------------------------------------------------------

    def _encode_chunk(self, examples: Sequence[TextExample], for_training: bool) -> EncodedExamples:
        sequences, num_cut = self._sequences(examples, for_training)
        return EncodedExamples.of(sequences, num_cut, self.tokenizer.id_dtype)

    def _sequences(
        self, examples: Sequence[TextExample], for_training: bool = False
    ) -> tuple[list[list[TokenSequence]], int]:
        texts = [[t for t in (e.text, e.pair, e.negative) if t is not None] for e in examples]
        flat = [text for pair in texts for text in pair]
        subwords = iter(self.tokenizer.first_subwords(flat, self.state.max_length))
        objective = self._objective
        room = self.state.max_length - len(objective.before) - len(objective.after)
        if room <= objective.num_reserved:
            least = self.state.max_length + objective.num_reserved - room + 1
            raise UserError(
                f"--max-length {self.state.max_length} leaves no room for text: write {least} or "
                "more."
            )
        # second texts leave room for the tokens that are reserved in training
        rooms = room, room - objective.num_reserved * for_training, room
        num_cut, result = 0, []
        for example, pair in zip(examples, texts, strict=True):
            rows = list(zip(islice(subwords, len(pair)), rooms, strict=False))
            num_cut += any(len(ids) > room for ids, room in rows)
            label, cut = objective.label(example), enumerate(ids[:room] for ids, room in rows)
            result.append([objective.sequence(example.id, n, ids, label) for n, ids in cut])
        return result, num_cut

    def _targets(self, sequences: FlatSequences) -> dict[str, Tensor]:
        rows, targets = sequences.targets or {}, super()._targets(sequences)
        if "token" in rows:  # of pairs for cmlm
            return targets | {"number": torch.from_numpy(rows["position"].counts)}
        label = targets["label"]
        return targets | {"label": label.long() if len(self.state.labels) else label.float()}

    # --- Model ------------------------------------------------------------------------------------

    def model(self, folder: str | Path | None = None) -> Any:
        """Make a new model on the configured encoder, or load one from a folder."""
        state, load = self.state, self._objective.load
        settings: dict[str, Any] = {
            "pooling": state.pooling,
            "normalize": state.normalize,
            "max_length": state.max_length,
        }
        if folder is not None:
            with torch.random.fork_rng(devices=[]):  # transformers draws a pooler that is not read
                return load(str(folder), trained=True, **settings)
        model = load(trained=False, **settings, **starting_model(self))
        if self.warm_start is not None:
            self.warm_start.copy_head(model)
        return model

    def loss(self, scores: MaskedScores, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the summed cross entropy of the masked subwords, and their number (cmlm)."""
        return scores.loss.sum(), torch.ones_like(scores.loss).sum()

    # --- Predictions ------------------------------------------------------------------------------

    def decode(self, logits: SentenceOutput, batch: Batch) -> list[tuple[np.ndarray, np.ndarray]]:
        """Compute the vector of each sequence, with the weights of the classifier."""
        vectors, weights = logits.vectors.cpu().numpy(), logits.classifier.cpu().double().numpy()
        return [(vector, weights) for vector in vectors]

    def postprocess(
        self, example: TextExample, outputs: Sequence[WindowOutput]
    ) -> SentencePrediction:
        """Make the prediction: the vectors, and for a pair its label or its cosine."""
        vectors = np.stack([output.values[0] for output in outputs[:2]])
        if example.pair is None:
            return SentencePrediction(example.id, vectors)
        u, v = vectors.astype(np.float64)
        if not len(self.state.labels) or isinstance(example.label, float):
            norms = np.linalg.norm(u) * np.linalg.norm(v)
            cosine = float(u @ v / max(norms, 1e-12))
            # as in the file of predictions, so that both have the same ties and scores
            return SentencePrediction(example.id, vectors, round(cosine, 6))
        weights = outputs[0].values[1]
        logits = weights[:, :-1] @ np.concatenate([u, v, np.abs(u - v)]) + weights[:, -1]
        scores = dict(zip(self.state.labels, softmax(logits).tolist(), strict=True))
        best = max(scores, key=lambda name: scores[name])
        return SentencePrediction(example.id, vectors, best, scores[best], scores)

    def _score(
        self, gold: Sequence[TextExample], predicted: Sequence[SentencePrediction], **fields: Any
    ) -> dict[str, float]:
        expected: list[Any] = [example.label for example in gold]
        labels: list[Any] = [prediction.label for prediction in predicted]
        if isinstance(expected[0], float):
            scores = score(TYPES["number"].of_values(expected, labels))
            return {f"{name}_all": scores[name] for name in ("spearman", "pearson")}
        if expected[0] is not None:
            return score(TYPES["label"].of_values(expected, labels, labels=self.state.labels))
        if self.state.measure != "ranking":
            return {}
        u, v = np.stack([prediction.vectors for prediction in predicted], axis=1)
        return ranking_scores(u, v, [str(e.text) for e in gold], [str(e.pair) for e in gold])


def ranking_scores(
    queries: np.ndarray, candidates: np.ndarray, texts: Sequence[str], answers: Sequence[str]
) -> dict[str, float]:
    """Score the rank of the answer to each text among the answers to all texts.

    ``queries`` and ``candidates`` are the vectors [N, H] of texts and their answers. An answer does
    not compete with other answers to the same text, and equal answers count once.

    Returns:
        ``ranking_accuracy``, the fraction of texts whose answer has the highest cosine, and
        ``ranking_mrr``, the mean of 1 / rank. If cosines tie, the answer has the last rank.
    """
    queries, candidates = unit_vectors(queries), unit_vectors(candidates)
    text_ids = np.unique(np.array(texts, dtype=object), return_inverse=True)[1]
    _, first, answer_ids = np.unique(
        np.array(answers, dtype=object), return_index=True, return_inverse=True
    )
    answered = csr_array((np.ones(len(texts), dtype=bool), (text_ids, answer_ids)))
    ranks = np.empty(len(texts))
    for start in range(0, len(texts), _ROWS):
        rows = slice(start, start + _ROWS)
        cosines = queries[rows] @ candidates[first].T
        answer = np.take_along_axis(cosines, answer_ids[rows, None], axis=1)
        rivals = (cosines >= answer) & ~answered[text_ids[rows]].toarray()
        ranks[rows] = 1 + rivals.sum(axis=1)
    return {
        "ranking_accuracy": float((ranks == 1).mean()),
        "ranking_mrr": float((1 / ranks).mean()),
    }
