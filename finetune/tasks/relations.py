"""Relations between given spans, such as entities: each ordered pair of spans is classified.

A sequence of a pair is the whole sentence, with markers around subject and object that tell their
types (Zhong & Chen 2021, "A Frustratingly Easy Approach for Entity and Relation Extraction"; Zhou &
Chen 2022). The start markers are classified together, into the labels or no relation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finetune.config.tasks import RelationsConfig
from finetune.data import Dataset
from finetune.data.examples import Examples
from finetune.evaluation.temperature import log_softmax
from finetune.models.heads.relation_classifier import RelationClassifier
from finetune.preprocessing.context import in_documents
from finetune.preprocessing.encodings import EncodedExamples, FlatSequences
from finetune.preprocessing.marked_spans import Markers, mark_pair
from finetune.preprocessing.preparation import with_gold
from finetune.tasks.base import SequencesOfExamples, Windows, WindowTargets
from finetune.tasks.class_losses import class_losses, class_weights, loss_targets
from finetune.tasks.word_task import WordState, WordTask
from finetune.types import (
    IGNORED,
    Batch,
    LabelSet,
    Relation,
    RelationPrediction,
    Span,
    TokenExample,
    TokenSequence,
    UserError,
    WindowOutput,
    quantity,
)

MOST_BOTH = 0.01
"""Largest fraction of related pairs with relations in both directions that is taken for errors."""


@dataclass(frozen=True, kw_only=True)
class RelationState(WordState):
    """The state of a relation task."""

    config: RelationsConfig
    related: Mapping[str, list[str]]
    """The types of the objects of each type of subject in training, for the types of all spans."""
    both: bool
    """True if two spans may be related in both directions."""
    class_weights: tuple[float, ...] | None = None
    """The weight of each label; no relation has the weight 1."""

    prediction_type = "relations"


_NO_GOLD = (
    "relations: give each row `spans` and `relations`, such as "
    '{"subject": 0, "object": 1, "label": "lives_in"}, which count the spans from 0.'
)


class RelationTask(WordTask):
    """Labels for pairs of spans of a sentence."""

    state: RelationState
    state_class = RelationState
    reusable_head = RelationClassifier
    gold = attrgetter("relations")

    @classmethod
    def prepare(cls, config: RelationsConfig, data: Dataset) -> Dataset:
        """Drop sentences without gold, and training sentences without a pair to classify."""
        data = with_gold(in_documents(config, data), "relations", "sentence", _NO_GOLD, "relations")
        train, notes = data.splits.get("train", Examples()), list(data.notes)
        if train and not any(example.relations for example in train):
            raise UserError(f"{data.name}: the training data have no relation: nothing to learn.")
        related = _related(train)
        kept = [any(_pairs(config, related, e.spans or ())) for e in train]
        if not all(kept):
            dropped = quantity(kept.count(False), "sentence")
            notes.append(f"{dropped} of train without a pair to classify left out")
        several = [i for i, e in enumerate(train) if len(_gold_labels(e)) < len(e.relations or ())]
        if several:
            notes.append(
                f"warning: {quantity(len(several), 'sentence')} of train with several relations of "
                "one pair: the first in alphabetical order is learned, the others are missed; "
                f"first in {train[several[0]].where}"
            )
        splits = {**data.splits, "train": train if all(kept) else train.keep(kept)}
        return replace(data, splits=splits, notes=notes)

    @classmethod
    def derive(cls, config: RelationsConfig, data: Dataset) -> dict[str, Any]:
        """Derive the labels, the pairs of related types, and whether in both directions."""
        train = data.splits["train"]
        related = _related(train)
        counts, num_both = Counter[str](), 0
        for pairs in map(_gold_labels, train):
            counts.update(pairs.values())
            num_both += sum((object, subject) in pairs for subject, object in pairs)
        names = LabelSet(sorted({relation.label for e in train for relation in e.relations or ()}))
        num_pairs = sum(1 for e in train for _ in _pairs(config, related, e.spans or ()))
        weights = class_weights(config.class_weights, list(names), counts, num_pairs, "single")
        return {
            "labels": names,
            "related": related,
            "both": num_both > MOST_BOTH * counts.total(),
            "class_weights": weights,
        }

    def complete(self, data: Dataset) -> Dataset:
        """Add a note on the pairs to classify in each split."""
        state, notes = self.state, list(data.notes)
        for split, rows in data.splits.items():
            spans = [example.spans or () for example in rows]
            pairs = [{*_pairs(state.config, state.related, in_text)} for in_text in spans]
            ordered = quantity(sum(len(s) * (len(s) - 1) for s in spans), "ordered pair")
            note = f"{split}: {sum(map(len, pairs)):,} of {ordered} of spans classified"
            gold = [{(r.subject, r.object) for r in example.relations or ()} for example in rows]
            if missed := sum(len(g - p) for g, p in zip(gold, pairs, strict=True)):
                note += f"; {missed:,} of {quantity(sum(map(len, gold)), 'relation')} cannot be "
                note += "found, as none in training is between spans of such types (--pairs all)"
            notes.append(note)
        return replace(data, notes=notes)

    @cached_property
    def _markers(self) -> Markers:
        return Markers(self.tokenizer)

    def _pairs(self, example: TokenExample) -> list[tuple[Span, Span]]:
        if example.spans is None:
            where = f"{example.where}: " if example.where else ""
            raise UserError(
                f"{where}there are no `spans`, and this model finds relations between given ones: "
                "predict them with a `ner` run first."
            )
        return list(_pairs(self.state.config, self.state.related, example.spans))

    def _sequences(self, examples: Sequence[TokenExample]) -> SequencesOfExamples:
        with_context, tokenizer = self._with_context(examples), self.tokenizer
        subwords = tokenizer.word_subwords([example.words for example in examples])
        room = tokenizer.room(self.state.max_length)
        begin = len(tokenizer.single.prefix)
        result: list[list[TokenSequence]] = []
        num_cut = 0
        for example, words in zip(examples, subwords, strict=True):
            result.append([])
            for number, pair in enumerate(self._pairs(example)):
                size = self._markers.size(*(span.label for span in pair))
                if room < size + 2:
                    raise UserError(
                        f"{example.where}: --max-length {self.state.max_length} has no room for "
                        f"words between the {size} tokens of the markers: raise it."
                    )
                around, first = words, 0
                if with_context and (spare := room - size - sum(map(len, words))) > 0:
                    first, around = with_context(example, words, spare)
                subject, object = (
                    s._replace(start=s.start + first, end=s.end + first) for s in pair
                )
                marked, represents, num_left_out = mark_pair(
                    around, subject, object, self._markers, room
                )
                num_cut += num_left_out
                ids, token_type_ids = tokenizer.build(marked)
                starts = [*(begin + index for index in represents), len(ids)]
                result[-1].append(TokenSequence(example.id, ids, token_type_ids, starts, number))
        return result, num_cut

    def _window_targets(self, example: TokenExample, windows: Windows) -> WindowTargets:
        gold, labels = _gold_labels(example), ["", *self.state.labels]
        pairs = [gold.get(pair, "") for pair in self._pairs(example)]
        return [{"label": [labels.index(n) if n in labels else IGNORED]} for n in pairs]

    def _encoding_notes(
        self, examples: Sequence[TokenExample], encoded: EncodedExamples
    ) -> list[str]:
        notes = super()._encoding_notes(examples, encoded)
        if number := sum(len(example.misaligned) for example in examples):
            spans = quantity(number, "span begins or ends", "spans begin or end")
            notes.append(f"{spans} inside a word: no pairs with them are classified")
        return notes

    def _targets(self, sequences: FlatSequences) -> dict[str, torch.Tensor]:
        weights = self.state.class_weights
        return super()._targets(sequences) | loss_targets(weights and (1.0, *weights))

    def model(self, folder: str | Path | None = None) -> RelationClassifier:
        return self._load(
            RelationClassifier.from_pretrained,
            folder,
            subject_id=self._markers.subject_id,
            dropout=self.state.config.classifier_dropout,
        )

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the summed loss of the pairs [N, 1 + C], and their summed weight."""
        targets = batch.targets
        losses, weights = class_losses(self.state.config, logits, targets["label"], targets)
        return losses.sum(), weights.sum()

    def decode(self, logits: torch.Tensor, batch: Batch) -> list[np.ndarray]:
        """Compute the probabilities [1 + C] of each pair."""
        return list(np.exp(log_softmax(logits.cpu().numpy().astype(np.float64))))

    def postprocess(
        self, example: TokenExample, outputs: Sequence[WindowOutput]
    ) -> RelationPrediction:
        """Predict the most probable label of each pair, in one or both directions."""
        state, pairs = self.state, self._pairs(example)
        scores: dict[Relation, float] = {}
        for output in outputs:
            if best := int(output.values.argmax()):
                relation = Relation(*pairs[output.window], state.labels[best - 1])
                scores[relation] = float(output.values[best])
        if not state.both:
            by_pair = {relation[:2]: relation for relation in scores}
            for pair, relation in by_pair.items():
                other = by_pair.get(pair[::-1])
                if other in scores and relation in scores and scores[other] >= scores[relation]:
                    del scores[relation]
        relations = tuple(sorted(scores))
        return RelationPrediction(
            example.id,
            example.words,
            example.spans or (),
            relations,
            tuple(scores[relation] for relation in relations),
            offsets=example.offsets,
            text=example.text,
        )


def _related(examples: Sequence[TokenExample]) -> dict[str, list[str]]:
    related: dict[str, set[str]] = {s.label: set() for e in examples for s in e.spans or ()}
    for example in examples:
        for subject, object, _ in example.relations or ():
            related[subject.label].add(object.label)
    return {name: sorted(related[name]) for name in sorted(related)}


def _pairs(
    config: RelationsConfig, related: Mapping[str, list[str]], spans: Sequence[Span]
) -> Iterator[tuple[Span, Span]]:
    for subject, object in permutations(spans, 2):
        unseen = subject.label not in related or object.label not in related
        if config.pairs == "all" or unseen or object.label in related[subject.label]:
            yield subject, object


def _gold_labels(example: TokenExample) -> dict[tuple[Span, Span], str]:
    relations = reversed(example.relations or ())
    return {(subject, object): label for subject, object, label in relations}
