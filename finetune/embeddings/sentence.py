"""Sentence encoders: vectors of texts, trained without labels, with pairs, or with scores of pairs.

A sequence is one text, so that a pair has two and a pair with a hard negative three, numbered by
``part``. Losses contrast the vectors of all sequences of an optimizer batch
(``sentence_losses``).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from finetune.config.tasks import column_map
from finetune.embeddings.conditional_lm import NUM_CONDITIONS, ConditionalMaskedLM
from finetune.embeddings.sentence_rows import (
    FROM_TEXTS,
    complete_pairs,
    derive_vectors,
    prepare_pairs,
    read_pairs,
)
from finetune.embeddings.settings import SentenceConfig
from finetune.evaluation.metrics import text_scores
from finetune.models.heads.masked_lm import MaskedScores
from finetune.models.heads.sentence_encoder import (
    SentenceEncoder,
    SentenceOutput,
)
from finetune.preprocessing.encodings import Array, Encodings, Ragged
from finetune.preprocessing.masking import Masking, special_subwords
from finetune.runtime.transfer import to_device
from finetune.tasks import sentence_losses as losses
from finetune.tasks.base import Task, TaskRecord
from finetune.tasks.capabilities import CoupledLoss, EpochSequences, Export, TextVectors
from finetune.tasks.definition import TaskDefinition
from finetune.tasks.inputs import TextInputs
from finetune.types import (
    IGNORED,
    Batch,
    Encoding,
    Partial,
    SentencePrediction,
    Sequences,
    TextExample,
    UserError,
)

Measure = Literal["label", "number", "ranking"]

METRICS: Mapping[Measure, str] = {
    "label": "accuracy",
    "number": "spearman_all",
    "ranking": "ranking_accuracy",
}
"""The metric that selects the best model, by the gold of the validation split."""
MASK_PROBABILITY = 0.3
"""Fraction of the subwords of a second text that cmlm predicts."""
TEMPERATURES = {"mirror": 0.04}
TEMPERATURE = 0.05
TEMPLATES = ('This sentence : "{text}" means {mask} .', 'This sentence of "{text}" means {mask} .')
"""The templates of PromptBERT (Jiang et al., 2022) for BERT."""
ROWS = 1024
"""Rows of the matrix of cosines to compute at a time."""
TEMPLATE_ALONE = 2**48
"""Number of the example that stands for the templates without a text."""


@dataclass(frozen=True, kw_only=True)
class SentenceRecord(TaskRecord):
    """The record of a sentence encoder."""

    config: SentenceConfig
    pooling: str
    normalize: bool
    measure: Measure
    """Validation gold: labels, numbers (cosines are scored), or none (pairs are ranked)."""

    @property
    def kind(self) -> str:
        """The kind of predictions."""
        return "label" if self.measure == "label" else "number"

    @property
    def inputs(self) -> TextInputs:
        """The inputs of the model."""
        return TextInputs(column_map(self.config.columns), pairs=self.pairs)

    @property
    def metric(self) -> str:
        """Name of the metric that selects the best model."""
        return self.config.metric or METRICS[self.measure]

    @property
    def temperature(self) -> float:
        """τ of the loss."""
        default = TEMPERATURES.get(self.config.objective, TEMPERATURE)
        return self.config.temperature or default


GOLD = attrgetter("text")


class SentenceTask(Task):
    """One vector for each text."""

    record: SentenceRecord
    _gold = GOLD

    def _capabilities(self) -> Iterator[object]:
        objective = self.record.config.objective
        yield TextVectors(self._limited)
        yield Export(
            refusal="sentence encoders give vectors, and graphs are written for logits only: use "
            "`finetune embed`, or export best/ with sentence-transformers (backend onnx)"
        )
        if objective in FROM_TEXTS or objective == "cmlm":
            yield EpochSequences(self._views, self._added_ids)
        if objective != "cmlm":  # whose pairs do not depend on each other
            yield CoupledLoss(self._coupled_loss)

    def _limited(self, max_length: int, max_tokens: int | None) -> Task:
        config = replace(self.record.config, max_length=None, max_tokens=max_tokens)
        return replace(self, record=replace(self.record, max_length=max_length, config=config))

    # --- Sequences --------------------------------------------------------------------------------

    def _sequences(self, examples: Sequence[TextExample]) -> tuple[list[list[Encoding]], int]:
        texts = [[t for t in (e.text, e.pair, e.negative) if t is not None] for e in examples]
        flat = [text for own in texts for text in own]
        subwords = iter(self.tokenizer.first_subwords(flat, self.record.max_length))
        before, after = self._around(0)
        room = self.record.max_length - len(before) - len(after)
        if room < 1:
            raise UserError(
                f"--max-length {self.record.max_length} leaves no room for text: raise it."
            )
        num_cut, result = 0, []
        for example, own in zip(examples, texts, strict=True):
            rows = [next(subwords) for _ in own]
            num_cut += any(len(ids) > room for ids in rows)
            label = self._label(example)
            result.append(
                [
                    self._encoding(example.id, number, ids[:room], label)
                    for number, ids in enumerate(rows)
                ]
            )
        return result, num_cut

    def _encoding(self, example: int, number: int, ids: list[int], label: float) -> Encoding:
        """Return a text as a sequence, in the first template if there is one."""
        before, after = self._around(0)
        input_ids = [*before, *ids, *after]
        segments = None
        if self.tokenizer.uses_segments:
            segments = [self.tokenizer.single.segments[1]] * len(input_ids)
        digest = hashlib.blake2b(np.array(ids, np.int64).tobytes(), digest_size=7).digest()
        target: dict[str, list[float]] = {"identity": [int.from_bytes(digest)], "label": [label]}
        starts = self._mask_position(0, len(ids))
        return Encoding(example, input_ids, segments, starts, number, target)

    def _label(self, example: TextExample) -> float:
        if self.record.config.objective == "softmax" and isinstance(example.label, str):
            labels = self.record.labels  # without those that only test has
            return labels.id(example.label) if example.label in labels else IGNORED
        return float(example.label) if isinstance(example.label, float) else 0.0

    def _around(self, number: int) -> tuple[list[int], list[int]]:
        """Return the subwords before and after a text, including a template's."""
        template = self.tokenizer.single
        prefix, suffix = list(template.prefix), list(template.suffix)
        if self.record.config.objective != "prompt":
            return prefix, suffix
        mask = self.tokenizer.tokenizer.mask_token
        written = (self.record.config.templates or TEMPLATES)[number].replace("{mask}", mask)
        before, after = self.tokenizer.text_subwords(written.split("{text}"))
        return prefix + before, after + suffix

    def _mask_position(self, number: int, length: int) -> list[int]:
        """Return where the mask token of a template starts and ends; empty without template."""
        if self.record.config.objective != "prompt":
            return []
        before, after = self._around(number)
        mask = self.tokenizer.tokenizer.mask_token_id
        at = before.index(mask) if mask in before else len(before) + length + after.index(mask)
        return [at, at + 1]

    def _views(self, sequences: Encodings, seed: int, epoch: int, rows: Array | None) -> Encodings:
        """Return two views of each text for the objectives that learn from texts alone, and pairs
        with a masked second text for cmlm."""
        sequences = sequences if rows is None else sequences.take(rows)
        objective = self.record.config.objective
        if objective == "cmlm":
            return self._conditioned(sequences, seed, epoch)
        views = []
        for view in sequences:
            other = replace(view, part=1)
            if objective == "mirror":
                other = self._masked(other, random.Random(f"{seed}/{epoch}/{view.example}"))
            elif objective == "prompt":
                before, after = self._around(0)
                ids = view.input_ids[len(before) : len(view.input_ids) - len(after)]
                other = self._in_second_template(other, ids)
            views += [view, other]
        if objective == "prompt":
            alone = self._encoding(TEMPLATE_ALONE, 0, [], 0.0)
            views += [alone, self._in_second_template(replace(alone, part=1), [])]
        return Encodings.of(views)

    def _conditioned(self, sequences: Encodings, seed: int, epoch: int) -> Encodings:
        """Return each pair as one sequence, its second text with masks.

        The second text is cut so that the vectors of the first one fit behind it.
        """
        tokenizer, after = self.tokenizer.tokenizer, self._around(0)[1]
        masking = Masking(
            special_subwords(tokenizer), tokenizer.mask_token_id, probability=MASK_PROBABILITY
        )
        longest = self.record.max_length - NUM_CONDITIONS
        seconds = [
            replace(text, input_ids=[*text.input_ids[: longest - len(after)], *after])
            if len(text.input_ids) > longest
            else text
            for text in sequences
            if text.part
        ]
        pairs = []
        masked = masking.apply(Encodings.of(seconds), seed, epoch)
        firsts = (text for text in sequences if not text.part)
        for first, second in zip(firsts, masked, strict=True):
            ids = [*first.input_ids, *second.input_ids]
            segments = first.segment_ids and first.segment_ids[:1] * len(ids)
            starts = [0, len(first.input_ids), len(ids)]
            pairs.append(Encoding(first.example, ids, segments, starts, 0, second.target))
        return Encodings.of(pairs)

    def _masked(self, view: Encoding, generator: random.Random) -> Encoding:
        """Replace a random span of subwords by one mask token; the text keeps a subword at least.

        Mirror-BERT replaces five characters, which touch about two subwords.
        """
        before, after = self._around(0)
        first, last = len(before), len(view.input_ids) - len(after)
        width = min(self.record.config.mask_span, last - first - 1)
        if width < 1:
            return view
        start = generator.randint(first, last - width)
        mask = [self.tokenizer.tokenizer.mask_token_id]
        ids = [*view.input_ids[:start], *mask, *view.input_ids[start + width :]]
        segments = None if view.segment_ids is None else view.segment_ids[: len(ids)]
        return replace(view, input_ids=ids, segment_ids=segments)

    def _in_second_template(self, view: Encoding, ids: list[int]) -> Encoding:
        before, after = self._around(1)
        input_ids = [*before, *ids, *after]
        segments = None if view.segment_ids is None else view.segment_ids[:1] * len(input_ids)
        starts = self._mask_position(1, len(ids))
        return replace(view, input_ids=input_ids, segment_ids=segments, word_starts=starts)

    def _added_ids(self) -> Sequence[int]:
        """Ids of the mask token and of the templates; all if random ones can be drawn."""
        objective = self.record.config.objective
        if objective == "cmlm":
            return range(len(self.tokenizer.tokenizer))
        if objective == "mirror":
            return [self.tokenizer.tokenizer.mask_token_id]
        if objective == "prompt":
            return [id for number in (0, 1) for part in self._around(number) for id in part]
        return []

    def _targets(self, rows: Mapping[str, Ragged]) -> dict[str, Tensor]:
        if "token" in rows:  # of pairs for cmlm
            targets = {
                name: torch.from_numpy(rows[name].values.astype(np.int64))
                for name in ("position", "token")
            }
            return targets | {"number": torch.from_numpy(rows["position"].counts)}
        label = torch.from_numpy(rows["label"].values.astype(np.float64))
        return {
            "identity": torch.from_numpy(rows["identity"].values.astype(np.int64)),
            "label": label.long() if len(self.record.labels) else label.float(),
        }

    # --- Model ------------------------------------------------------------------------------------

    def head(self, folder: str | Path | None = None) -> Any:
        """Make a new model on the configured encoder, or load one from a folder."""
        record = self.record
        pooling: Any = record.pooling
        settings: dict[str, Any] = {
            "pooling": pooling,
            "normalize": record.normalize,
            "max_length": record.max_length,
            "batching": record.config.batching,
        }
        labels = list(record.labels) or None
        if record.config.objective == "cmlm":
            load = ConditionalMaskedLM.from_pretrained
            if folder is not None:
                return load(str(folder), new_head=False, **settings)
            with self._pretrained() as checkpoint:
                return load(**settings, **checkpoint)
        if folder is not None:
            return SentenceEncoder.from_pretrained(
                str(folder), trained=True, labels=labels, **settings
            )
        with self._pretrained() as checkpoint:
            return SentenceEncoder.from_pretrained(labels=labels, **settings, **checkpoint)

    def loss(self, scores: MaskedScores, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the summed cross entropy of the masked subwords, and their number (cmlm)."""
        return scores.loss.sum(), torch.ones_like(scores.loss).sum()

    def _coupled_loss(
        self, head: SentenceEncoder, vectors: Tensor, sequences: Sequences
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of the objective over all texts of an optimizer batch."""
        objective, temperature = self.record.config.objective, self.record.temperature
        rows: dict[int, list[int]] = {0: [], 1: [], 2: []}
        alone: dict[int, int] = {}
        for row, key in enumerate(zip(sequences.example, sequences.part, strict=True)):
            if key[0] == TEMPLATE_ALONE:
                alone.setdefault(key[1], row)  # each process has one
            else:
                rows[key[1]].append(row)
        index = {
            number: to_device(torch.tensor(own, dtype=torch.long), vectors.device)
            for number, own in rows.items()
        }
        u, v, negatives = (vectors.index_select(0, own) for own in index.values())
        identity = sequences.targets["identity"]
        first, second, negative = (identity.index_select(0, own) for own in index.values())
        label = sequences.targets["label"].index_select(0, index[0])
        if objective == "mirror":
            return losses.two_view_loss((u, v), first, temperature)
        if objective == "prompt":
            u, v = (side - vectors[alone[view]] for view, side in enumerate((u, v)))
        if objective in ("simcse", "prompt", "ranking"):
            ids = first, first if objective != "ranking" else second, negative
            return losses.ranking_loss(u, v, negatives, ids, temperature)
        if objective == "softmax":
            return losses.softmax_loss(u, v, head.classifier_weights(), label)
        return losses.cosine_loss(u, v, label)

    # --- Predictions ------------------------------------------------------------------------------

    def decode(self, logits: SentenceOutput, batch: Batch) -> list[Partial]:
        """Return the vector of each sequence, with the weights of the classifier."""
        vectors, weights = logits.vectors.cpu().numpy(), logits.classifier.cpu().double().numpy()
        return [
            Partial(example, number, (vector, weights))
            for example, number, vector in zip(batch.example, batch.part, vectors, strict=True)
        ]

    def finish(
        self, example: TextExample, partials: Sequence[Partial], *, log_probabilities: bool = False
    ) -> SentencePrediction:
        """Return the vectors, and for a pair its label or its cosine."""
        parts = sorted(partials, key=lambda partial: partial.part)[:2]
        vectors = np.stack([part.values[0] for part in parts])
        if example.pair is None:
            return SentencePrediction(example.id, vectors)
        u, v = vectors.astype(np.float64)
        if not len(self.record.labels) or isinstance(example.label, float):
            norms = np.linalg.norm(u) * np.linalg.norm(v)
            return SentencePrediction(example.id, vectors, float(u @ v / max(norms, 1e-12)))
        weights = partials[0].values[1]
        logits = weights[:, :-1] @ np.concatenate([u, v, np.abs(u - v)]) + weights[:, -1]
        probabilities = np.exp(logits - logits.max())
        probabilities /= probabilities.sum()
        scores = dict(zip(self.record.labels, map(float, probabilities), strict=True))
        best = max(scores, key=lambda name: scores[name])
        return SentencePrediction(example.id, vectors, best, scores[best], scores)

    def _score(
        self, gold: Sequence[TextExample], predicted: Sequence[SentencePrediction]
    ) -> dict[str, float]:
        expected: list[Any] = [example.label for example in gold]
        labels: list[Any] = [prediction.label for prediction in predicted]
        if isinstance(expected[0], float):
            found = text_scores("number", expected, labels)
            return {f"{name}_all": found[name] for name in ("spearman", "pearson")}
        if expected[0] is not None:
            return text_scores("label", expected, labels, list(self.record.labels))
        if self.record.measure != "ranking":
            return {}
        u, v = np.stack([prediction.vectors for prediction in predicted], axis=1)
        return ranking_scores(u, v, [str(e.text) for e in gold], [str(e.pair) for e in gold])


def ranking_scores(
    queries: np.ndarray, candidates: np.ndarray, texts: Sequence[str], answers: Sequence[str]
) -> dict[str, float]:
    """Score the rank of the answer to each text among the answers to all texts.

    Args:
        queries: The vectors [N, H] of the texts.
        candidates: The vectors [N, H] of their answers, in the same order.
        texts: The texts. Other answers to the same text are no competitors of an answer.
        answers: The answers. Equal ones count once.

    Returns:
        ``ranking_accuracy``, the fraction of texts whose answer has the highest cosine, and
        ``ranking_mrr``, the mean of 1 / rank. Of equal cosines the answer has the last rank.
    """
    unit = [
        side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-12)
        for side in (queries.astype(np.float64), candidates.astype(np.float64))
    ]
    numbers: dict[str, int] = {}
    for answer in answers:
        numbers.setdefault(answer, len(numbers))
    own = np.array([numbers[answer] for answer in answers])
    first = np.unique(own, return_index=True)[1]
    by_text: dict[str, set[int]] = {}
    for text, number in zip(texts, own, strict=True):
        by_text.setdefault(text, set()).add(int(number))
    ranks = np.empty(len(own))
    for start in range(0, len(own), ROWS):
        cosines = unit[0][start : start + ROWS] @ unit[1][first].T
        for row, scores in enumerate(cosines, start):
            rivals = scores >= scores[own[row]]
            rivals[sorted(by_text[texts[row]])] = False
            ranks[row] = 1 + rivals.sum()
    return {
        "ranking_accuracy": float((ranks == 1).mean()),
        "ranking_mrr": float((1 / ranks).mean()),
    }


SENTENCE = TaskDefinition(
    task=SentenceTask,
    record=SentenceRecord,
    read=read_pairs,
    prepare=prepare_pairs,
    derive=derive_vectors,
    complete=complete_pairs,
    gold=GOLD,
    skipped_checks=("labels", "pairs"),
)
