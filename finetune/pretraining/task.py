"""Masked language modeling on running text: pretraining from scratch, and continued pretraining.

Jurafsky & Martin, chapter "Masked Language Models", sections on training bidirectional encoders and
on contiguous spans; Devlin et al. (2019); Liu et al. (2019); Gururangan et al. (2020), "Don't Stop
Pretraining". An example is a block of whole lines that makes one sequence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from finetune.config.tasks import column_map
from finetune.data import Dataset
from finetune.evaluation.metrics import masked_scores
from finetune.models.heads.masked_lm import MaskedLanguageModel, MaskedScores
from finetune.models.loading import new_config
from finetune.models.warm_start import LANGUAGE_MODELS
from finetune.preprocessing.encodings import Array, Encoded, Encodings, Ragged
from finetune.preprocessing.masking import KINDS, Masking, special_subwords
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.preprocessing.windows import encode_window, windows
from finetune.pretraining.model import (
    MOST_TARGETS,
    PretrainingModel,
    PretrainingScores,
    require_next_sentence,
)
from finetune.pretraining.sentence_pairs import SentencePairs, block_targets, pair_notes
from finetune.pretraining.settings import PretrainConfig
from finetune.pretraining.text_blocks import large_documents, packed_documents, read_documents
from finetune.tasks.base import CHUNK, EncodeChunk, Gather, Task, TaskRecord, joined
from finetune.tasks.capabilities import EpochSequences, Export, SeveralLosses
from finetune.tasks.definition import (
    TaskDefinition,
    limited,
    load_tokenizer,
    sequence_limit,
    starting_config,
)
from finetune.tasks.inputs import TextInputs
from finetune.types import (
    Batch,
    Encoding,
    LabelSet,
    MaskedPrediction,
    Partial,
    TextExample,
    UserError,
)

MASKS = re.compile(r"\[MASK\]|<mask>")
"""Masks in texts to predict, whatever the mask of the model."""
NUM_BEST = 5
"""Number of subwords to predict for a mask."""


@dataclass(frozen=True, kw_only=True)
class PretrainingRecord(TaskRecord):
    """The record of masked language modeling."""

    config: PretrainConfig

    @property
    def inputs(self) -> TextInputs:
        """The inputs of the model."""
        return TextInputs(column_map(self.config.columns), pairs=self.pairs)

    @property
    def kind(self) -> str:
        """The kind of predictions."""
        return "subwords"


GOLD = attrgetter("text")


@dataclass(eq=False)
class _MaskedTask(Task):
    """Base of filling masks and pretraining: the mask, positions in batches, and the model."""

    record: PretrainingRecord
    _gold = GOLD

    def __post_init__(self) -> None:
        """Require a mask token."""
        if self.tokenizer.tokenizer.mask_token_id is None:
            raise UserError(f"{self.tokenizer.name}: its tokenizer has no mask token.")

    def _capabilities(self) -> Iterator[object]:
        yield Export(
            refusal="masked language models compute logits at masks alone, which a graph does not: "
            "fine-tune the encoder with --init-from"
        )

    def collate(self, encodings: Iterable[Encoding]) -> dict[str, torch.Tensor]:
        """Return the ``position`` [M] of each target in the packed row, the ``number`` of targets
        of each sequence [N], and other targets.
        """
        sequences = Encodings.of(encodings)
        targets = super().collate(sequences)
        begins = torch.from_numpy(sequences.ids.offsets[:-1].astype(np.int64))
        begins = begins.repeat_interleave(targets["number"])
        if "left" in targets:
            offset = targets["position"] - targets["left"] - 1
            found = (targets["left"] >= 0) & (offset < MOST_TARGETS)
            targets["boundary"] = boundary = found.nonzero()[:, 0]
            targets["offset"] = offset[boundary]
            for side in ("left", "right"):
                targets[side] = (targets[side] + begins)[boundary]
        targets["position"] += begins
        return targets

    def _targets(self, rows: Mapping[str, Ragged]) -> dict[str, torch.Tensor]:
        targets = {
            name: torch.from_numpy(rows[name].values.astype(np.int64))
            for name in ("position", "token", "kind", "left", "right", "next")
            if name in rows
        }
        return targets | {"number": torch.from_numpy(rows["position"].counts)}

    def head(self, folder: str | Path | None = None) -> Any:
        """Make a model to train, or load one from a folder."""
        config = self.record.config
        options: dict[str, Any] = {"batching": config.batching}
        model: type[Any] = MaskedLanguageModel
        if config.boundary or config.nsp:
            model = PretrainingModel
            options |= {"boundary": config.boundary, "nsp": config.nsp}
        if folder is not None:
            return model.from_pretrained(str(folder), new_head=False, **options)
        if config.config is not None:
            made = new_config(config.config, self.tokenizer.tokenizer)
            return model.from_config(made, **options)
        with self._pretrained() as checkpoint:
            return model.from_pretrained(**options, **checkpoint)

    def _score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        return masked_scores(predicted)


@dataclass(eq=False)
class MaskFilling(_MaskedTask):
    """Prediction of the subwords at the mask tokens of a text."""

    def encode(self, examples: Sequence[Any], gather: Gather = joined) -> Encoded:
        """Encode texts with the mask of this tokenizer, and find their masks."""
        own, mask_id = self.tokenizer.tokenizer.mask_token, self.tokenizer.tokenizer.mask_token_id
        examples = [
            replace(example, text=MASKS.sub(lambda _: own, example.text)) for example in examples
        ]
        encoded = super().encode(examples, gather)
        ids = encoded.sequences.ids
        rows = [
            (ids.values[start:end] == mask_id).nonzero()[0]
            for start, end in zip(ids.offsets[:-1], ids.offsets[1:], strict=True)
        ]
        for example, start, end in zip(
            examples, encoded.offsets[:-1], encoded.offsets[1:], strict=True
        ):
            if not any(len(row) for row in rows[start:end]):
                raise UserError(
                    f"{example.where}: {example.text!r:.60} has no {own}: write it in place of "
                    "the subwords to predict."
                )
        targets = {"position": Ragged.of(rows)}
        return replace(encoded, sequences=replace(encoded.sequences, targets=targets))

    def _sequences(self, examples: Sequence[TextExample]) -> tuple[list[list[Encoding]], int]:
        """Return windows of the lines of each text; a separator stands for an empty line."""
        room = self.record.max_length - self.tokenizer.single.num_special
        texts = [each.text.split("\n") for each in examples]
        lines = iter(self.tokenizer.subwords_with_words([x for each in texts for x in each]))
        separator = [self.tokenizer.tokenizer.sep_token_id]
        found, num_cut = [], 0
        for example, own in zip(examples, texts, strict=True):
            words: list[list[int]] = []
            for line in own:
                ids, starts = next(lines)
                words += [ids[a:b] for a, b in pairwise([*starts, len(ids)])]
                if not line:
                    words.append(separator)
            num_cut += sum(len(word) > room for word in words)
            words = [word[:room] for word in words]
            parts = windows([len(word) for word in words], room, 0)
            found.append([encode_window(self.tokenizer, example.id, words, part) for part in parts])
        return found, num_cut

    def decode(self, scores: Any, batch: Batch) -> list[Partial]:
        """Return the best subwords of each mask and their probabilities [M, 2, ``NUM_BEST``]."""
        best = scores.cpu().double().softmax(-1).topk(min(NUM_BEST, scores.shape[-1]))
        values = torch.stack([best.indices.double(), best.values], 1)
        return _partials(values, batch)

    def finish(
        self, example: TextExample, partials: Sequence[Partial], *, log_probabilities: bool = False
    ) -> MaskedPrediction:
        """Name the subwords of all windows in order."""
        values, decode = _joined(partials), self.tokenizer.tokenizer.decode
        subwords = tuple(tuple(decode([int(id)]).strip() for id in ids) for ids, _ in values)
        scores = tuple(tuple(map(float, probabilities)) for _, probabilities in values)
        return MaskedPrediction(example.id, subwords, scores, example.text)


@dataclass(eq=False)
class PretrainingTask(_MaskedTask):
    """Prediction of subwords that a rule chooses: for each epoch, and always the same for scores.

    Examples are blocks that know their subwords (``text_blocks``).
    """

    _frequency: Array = field(kw_only=True)
    """Occurrences of each subword in the training data [V]."""

    @cached_property
    def _masking(self) -> Masking:
        config, tokenizer = self.record.config, self.tokenizer.tokenizer
        special = special_subwords(tokenizer)
        return Masking(
            special,
            tokenizer.mask_token_id,
            config.mask,
            config.mask_probability,
            config.explore,
            self._frequency if config.replacement == "unigram" else None,
            self._separator(len(special)) if config.boundary else None,
        )

    @cached_property
    def _pairs(self) -> SentencePairs | None:
        """Pairs of texts for next sentence prediction; None without it."""
        paired = self.record.config.nsp
        return SentencePairs(self.tokenizer.pair, self.record.max_length) if paired else None

    def _separator(self, size: int) -> Array:
        """Return which subwords are the special tokens around and between texts [V]."""
        single = self.tokenizer.single  # sep_token_id is also between two texts
        found = np.zeros(size, dtype=bool)
        found[[*single.prefix, *single.suffix, self.tokenizer.tokenizer.sep_token_id]] = True
        return found

    def encode(self, examples: Sequence[Any], gather: Gather = joined) -> Encoded:
        """Encode blocks, and mask them as for scores."""
        # without unigram frequencies, so that scores of runs compare
        masking = replace(self._masking, frequency=None)
        if self._pairs is not None:
            return self._pairs_of_scores(self._pairs, masking, examples, gather)

        def masked_chunks(encode_chunk: EncodeChunk, starts: Sequence[int]) -> Encoded:
            def masked(start: int) -> Encoded:  # drawn where a chunk is encoded
                encoded = encode_chunk(start)
                return replace(encoded, sequences=masking.apply(encoded.sequences))

            return gather(masked, starts)

        return super().encode(examples, masked_chunks)

    def _pairs_of_scores(
        self, pairs: SentencePairs, masking: Masking, examples: Sequence[Any], gather: Gather
    ) -> Encoded:
        """Return the masked pairs of scores. The second text of a pair may be of any example."""
        blocks = super().encode(examples)

        def masked(start: int) -> Encoded:
            rows = np.arange(start, min(start + CHUNK, len(examples)))
            made = masking.apply(pairs.apply(blocks.sequences, rows))
            return Encoded(made, np.arange(len(rows) + 1), 0 if start else blocks.num_cut)

        encoded = gather(masked, range(0, len(examples), CHUNK))
        return replace(encoded, notes=blocks.notes)

    def _capabilities(self) -> Iterator[object]:
        yield from super()._capabilities()
        config, size = self.record.config, len(self.tokenizer.tokenizer)
        # any subword can be drawn as a random one
        yield EpochSequences(self._masked, lambda: range(size), super().encode)
        if config.boundary or config.nsp:
            yield SeveralLosses(self._loss_counts)

    def _masked(self, sequences: Encodings, seed: int, epoch: int, rows: Array | None) -> Encodings:
        """Return sequences with the pairs and masks of an epoch."""
        if self._pairs is None:
            own = sequences if rows is None else sequences.take(rows)
        else:
            rows = np.arange(len(sequences)) if rows is None else rows
            own = self._pairs.apply(sequences, rows, seed, epoch)
        return self._masking.apply(own, seed, epoch)

    def _sequences(self, examples: Sequence[TextExample]) -> tuple[list[list[Encoding]], int]:
        before, found = len(self.tokenizer.single.prefix), []
        for example in examples:
            assert example.subwords is not None
            ids, starts, lines = map(_numbers, example.subwords)
            starts = [*starts, len(ids)]
            target = None
            if self._pairs is not None:
                target = block_targets(example, ids, starts, lines)
            words = [before + start for start in starts]
            found.append([Encoding(example.id, *self.tokenizer.build(ids), words, target=target)])
        return found, 0

    def loss(self, scores: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the summed cross entropy of the chosen positions, and their number.

        With further objectives, return the sum and the number of each.
        """
        if isinstance(scores, MaskedScores):
            return scores.loss.sum(), torch.ones_like(scores.loss).sum()
        losses = [scores.loss, scores.boundary]
        if "next" in batch.targets:
            losses.append(cross_entropy(scores.next, batch.targets["next"], reduction="none"))
        counts = [each.new_full((), len(each)) for each in losses]
        return torch.stack([each.sum() for each in losses]), torch.stack(counts)

    def _loss_counts(self, batch: Batch) -> torch.Tensor:
        """Return the numbers of chosen positions, boundary losses and pairs."""
        targets = batch.targets
        names = (
            ("position", "boundary", "next") if self.record.config.nsp else ("position", "boundary")
        )
        return torch.tensor([float(len(targets.get(name, ()))) for name in names])

    def decode(self, scores: Any, batch: Batch) -> list[Partial]:
        """Return loss, best subword, gold subword and kind of each target [M, 4].

        With further objectives, three more columns have the boundary loss, 1 if the second text is
        random, and the probability that it follows; NaN if a value is missing.
        """
        targets = batch.targets
        columns = [scores.loss, scores.best, targets["token"], targets["kind"]]
        if isinstance(scores, PretrainingScores):
            none = torch.full_like(scores.loss, torch.nan)
            boundary = targets.get("boundary", targets["token"][:0])
            columns.append(none.index_copy(0, boundary, scores.boundary))
            if "next" in targets:
                of_pairs = targets["next"], scores.next.softmax(-1)[:, 0]
                columns += [each.repeat_interleave(targets["number"]) for each in of_pairs]
            else:
                columns += [none, none]
        return _partials(torch.stack([column.double().cpu() for column in columns], 1), batch)

    def finish(
        self, example: TextExample, partials: Sequence[Partial], *, log_probabilities: bool = False
    ) -> MaskedPrediction:
        """Name the subwords of all targets in order."""
        values, names = _joined(partials), self.tokenizer.tokenizer.convert_ids_to_tokens
        best, token, kind = values[:, 1:4].T.astype(np.int64)
        further: dict[str, Any] = {}
        if self.record.config.boundary:
            further["boundary_losses"] = tuple(values[~np.isnan(values[:, 4]), 4].tolist())
        if self._pairs is not None and len(values):
            further |= {"follows": not values[0, 5], "follows_score": float(values[0, 6])}
        return MaskedPrediction(
            example.id,
            tuple(names(best.tolist())),
            gold=tuple(names(token.tolist())),
            losses=tuple(values[:, 0].tolist()),
            read_as=tuple(KINDS[each] for each in kind),
            counts=tuple(self._frequency[token].tolist()),
            **further,
        )


def _partials(values: torch.Tensor, batch: Batch) -> list[Partial]:
    """Return the values of all targets [M, ...] by sequence."""
    ends = batch.targets["number"].cumsum(0).tolist()
    return batch.partials(np.split(values.numpy(), ends[:-1]))


def _joined(partials: Sequence[Partial]) -> Array:
    """Return the values of all windows in order."""
    ordered = sorted(partials, key=lambda partial: partial.part)
    joined_values: Array = np.concatenate([partial.values for partial in ordered])
    return joined_values


def _numbers(array: bytes) -> list[int]:
    """Return an array of int32 as a list."""
    return memoryview(array).cast("i").tolist()


def _head_notes(config: Any) -> list[str]:
    """Return a note for the log if a checkpoint has no head of a masked language model."""
    made = config.architectures
    if not made or any(name.endswith(LANGUAGE_MODELS) for name in made):
        return []
    return [f"{made[0]} has no masked language model: its head is new"]


def _new_tokenizer(config: PretrainConfig) -> SubwordTokenizer:
    """Load the tokenizer of a new encoder."""
    if config.tokenizer is None and config.config == "small":
        raise UserError(
            "--config small: name a tokenizer with --tokenizer, such as a folder that finetune "
            "vocabulary wrote, or a model such as minilm."
        )
    return SubwordTokenizer.saved(config.tokenizer or str(config.config))


def load_blocks(definition: TaskDefinition, config: Any, data: Any = None) -> tuple[Task, Dataset]:
    """Load the tokenizer, read the documents, and pack blocks of lines."""
    if config.config is not None:
        warm_start, tokenizer = None, _new_tokenizer(config)
    else:
        warm_start, tokenizer = load_tokenizer(config, definition, ())
    encoder = starting_config(config, warm_start)
    if config.nsp:
        require_next_sentence(str(config.config or config.model or config.init_from), encoder)
    limit = sequence_limit(config, tokenizer, warm_start)
    longest = limit  # of a block alone
    if config.nsp:
        longest -= tokenizer.pair.num_special - tokenizer.single.num_special
    make = partial(packed_documents, config, data, tokenizer, longest)
    inputs = large_documents(config, data, tokenizer, longest)
    packed, derived, _ = inputs.prepared(config.description.name, make) if inputs else make()
    record = PretrainingRecord(config=config, max_length=limit, **no_labels(config, packed))
    head = [warm_start.note] if warm_start else _head_notes(encoder)
    notes = [*packed.notes, *head, *derived["notes"]]
    packed = limited(replace(packed, notes=notes), config)
    if config.nsp:
        packed = replace(packed, notes=[*packed.notes, *pair_notes(packed, config.seed)])
    frequency = np.array(derived["frequency"], np.int64)
    return PretrainingTask(record, tokenizer, warm_start, _frequency=frequency), packed


def no_labels(config: PretrainConfig, data: Dataset) -> dict[str, Any]:
    """Return fields of the record: there are no labels."""
    return {"labels": LabelSet(()), "pairs": False}


PRETRAIN = TaskDefinition(
    task=MaskFilling,
    record=PretrainingRecord,
    read=read_documents,
    derive=no_labels,
    gold=GOLD,
    load=load_blocks,
)
