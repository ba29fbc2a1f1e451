"""Training steps of nested entity recognition: the span head against pairs of markers.

``marker-pairs`` encodes each candidate span as a pair of marker tokens behind the text, as
SpanMarker does (Aarsen, 2023; the idea is PL-Marker's, Ye et al., 2022): every row is padded to
256 tokens and two times 128 markers, text sees text, a pair sees the text and itself, and a
sentence with more candidates takes several rows. Markers have the positions of their words. The
scores are computed from the vectors of both markers. Both arms have the same candidates, of up to 8
words, the default of SpanMarker. The span head takes a batch in each step, the markers only a few
sentences, as their time grows with the number of sentences, in fp32, the default of Trainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel

from finetune.benchmark.measure import Arm, Case, Work, now
from finetune.benchmark.subject import (
    MEGABATCH,
    Size,
    Subject,
    longest,
    operations,
    subject_on,
    synthetic_task,
)
from finetune.benchmark.synthetic_texts import LIKE, sample
from finetune.benchmark.training import FORWARD_AND_BACKWARD, seconds
from finetune.config.tasks import NerConfig
from finetune.models.loading import load_config, load_weights
from finetune.preprocessing.span_candidates import candidates
from finetune.training.optimizer import default_learning_rate
from finetune.types import Encoding

MAX_WIDTH = 8
ROWS_AT_ONCE = 8
"""Rows in one forward pass."""


@contextmanager
def subject_of(model: str, size: Size) -> Iterator[Subject]:
    """Yield nested entity recognition with a model."""
    most = min(longest(model), size.marked_length)
    config = NerConfig(model=model, max_length=most, max_width=MAX_WIDTH)
    task, data, occurring = synthetic_task(config, "ner", MEGABATCH * size.batch_size)
    fewer = replace(size, num_batches=max(1, size.num_batches // 4))
    with subject_on(task, data, occurring, f"like {LIKE['ner'].name}", fewer) as subject:
        yield subject


def applies(subject: Subject) -> bool:
    """Return whether the encoder takes positions and a mask for each pair of tokens."""
    family = subject.head.encoder.family
    return family.packing == "interface" and family.positions is not None


def case_of(subject: Subject) -> Case:
    """Return the arms, over sentences with the lengths of GENIA."""
    work, best = subject.work, subject.precision
    assert work.operations is not None
    work = replace(work, operations=FORWARD_AND_BACKWARD * work.operations)
    batches = subject.mixed

    def ours(name: str, precision: str) -> Arm:
        def run() -> float:
            return seconds(subject, batches, precision, "auto")

        return Arm(name, precision, work, run, run)

    arms = [ours("finetune", best), ours("finetune-fp32", "fp32")]
    if applies(subject):
        markers = Markers(subject)
        arms.append(Arm("marker-pairs", "fp32", markers.work, markers.turn, markers.turn))
    return Case("span", f"nested NER with its encoder, {subject.case}", tuple(arms))


@dataclass(frozen=True, slots=True)
class Marked:
    """Rows of texts with markers.

    ``ids`` and ``positions`` are [R, X], the attention mask ``mask`` [R, X, X]. ``real`` [R, M] is
    False for pairs of markers that are padding.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    real: Tensor


class Markers:
    """An encoder that reads spans as pairs of markers, with its head and optimizer."""

    def __init__(self, subject: Subject) -> None:
        self.device, self.size = subject.device, subject.size
        encoder, name = subject.head.encoder, subject.task.record.config.model or ""
        self.first = encoder.pad_id + 1 if encoder.family.positions == "after padding" else 0
        self.model = load_weights(AutoModel, name, load_config(name)).to(self.device)
        classes = 2 * encoder.width, 1 + len(subject.task.record.labels)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(*classes)).to(self.device)
        self.weights = [*self.model.parameters(), *self.head.parameters()]
        rate = default_learning_rate(encoder.width)
        self.optimizer = torch.optim.AdamW(self.weights, lr=rate, fused=True)
        places = list(chain.from_iterable(subject.mixed))
        number = min(self.size.marked_sentences, len(places))
        chosen = sample([subject.length(place) for place in places], number)
        encodings = [subject.encoded[places[place]][0] for place in chosen]
        self.marked = self._marked(encodings)
        lengths = [len(encoding.input_ids) for encoding in encodings]
        per_step = FORWARD_AND_BACKWARD * operations(encoder, lengths)
        self.work = Work(number, sum(lengths), per_step)

    def turn(self) -> float:
        """Take one step over all rows and return its seconds."""
        self.model.train()
        begin = now(self.device)
        total = int(self.marked.real.sum())
        for start in range(0, len(self.marked.ids), ROWS_AT_ONCE):
            scores, real = self._scores(slice(start, start + ROWS_AT_ONCE))
            target = torch.zeros(int(real.sum()), dtype=torch.long, device=self.device)
            (F.cross_entropy(scores[real], target, reduction="sum") / total).backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return now(self.device) - begin

    def _scores(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the scores [R, M, C] of the pairs of some rows, and which are real [R, M]."""
        marked = self.marked
        hidden = self.model(
            input_ids=marked.ids[rows].to(self.device),
            position_ids=marked.positions[rows].to(self.device) + self.first,
            attention_mask=marked.mask[rows, None].to(self.device),
        ).last_hidden_state  # [R, X, H]
        starts, ends = hidden[:, self.size.marked_length :].chunk(2, 1)
        return self.head(torch.cat([starts, ends], -1)), marked.real[rows].to(self.device)

    def _marked(self, encodings: list[Encoding]) -> Marked:
        """Return the rows of these sentences, on the CPU."""
        most = self.size.num_markers
        rows = []
        for encoding in encodings:
            spans = torch.tensor(candidates(encoding.num_words, MAX_WIDTH))  # [S, 2]
            rows += [self._row(encoding, some) for some in spans.split(most)]
        return Marked(*(torch.stack(column) for column in zip(*rows, strict=True)))

    def _row(self, encoding: Encoding, spans: Tensor) -> tuple[Tensor, ...]:
        """Return one row: the text, then the start markers, then the end markers.

        All markers have the id of the first token, as ids make no difference to the time.
        """
        text, most = self.size.marked_length, self.size.num_markers
        length, count, whole = len(encoding.input_ids), len(spans), text + 2 * most
        ids = torch.full((whole,), encoding.input_ids[0])
        ids[:length] = torch.tensor(encoding.input_ids)
        positions = torch.zeros(whole, dtype=torch.long)
        positions[:length] = torch.arange(length)
        starts = torch.tensor(encoding.word_starts)
        first, second = (text + offset + torch.arange(count) for offset in (0, most))
        positions[first] = starts[spans[:, 0]]
        positions[second] = starts[spans[:, 1] - 1]
        mask = torch.zeros(whole, whole, dtype=torch.bool)
        mask[:length, :length] = True
        mask[:, 0] = True  # padding attends to one token: attending to none gives NaN
        for rows in (first, second):
            mask[rows, :length] = True
            mask[rows, first] = mask[rows, second] = True
        return ids, positions, mask, torch.arange(most) < count
