"""Masked language modeling on running text: pretraining from scratch, and continued pretraining.

Jurafsky & Martin, chapter "Masked Language Models", sections on training bidirectional encoders and
on contiguous spans; Devlin et al. (2019); Liu et al. (2019); Gururangan et al. (2020), "Don't Stop
Pretraining". An example to train on is a block of whole lines that makes one sequence; an example
to predict is a text with masks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from finetune.config.tasks import column_map
from finetune.data import Dataset, read_text
from finetune.data.examples import collected
from finetune.data.sources import PartOf
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.models.loading import new_config
from finetune.preprocessing.encodings import Array, EncodedExamples, FlatSequences
from finetune.preprocessing.masking import Masking, special_subwords
from finetune.preprocessing.windows import encode_window, windows
from finetune.pretraining.documents import read_running_text
from finetune.pretraining.model import MOST_TARGETS, PretrainingModel
from finetune.pretraining.sentence_pairs import sentence_pairs
from finetune.pretraining.settings import PretrainConfig
from finetune.tasks.base import ENCODE_CHUNK, Gather, Task, encode_all, starting_model
from finetune.tasks.state import TaskState
from finetune.types import (
    Batch,
    LabelSet,
    MaskedPrediction,
    TextBlock,
    TextExample,
    TokenSequence,
    UserError,
    WindowOutput,
)

MASKS = re.compile(r"\[MASK\]|<mask>")
"""Spellings of the mask in texts to predict; each stands for the mask of the model."""
NUM_BEST = 5
"""Number of subwords to predict for a mask."""


@dataclass(frozen=True, kw_only=True)
class PretrainingState(TaskState):
    """The saved state of masked language modeling."""

    config: PretrainConfig

    @property
    def prediction_type(self) -> str:
        """The name of the prediction type."""
        return "subwords"


@dataclass(eq=False)
class MaskedTask(Task):
    """Base of filling masks and pretraining: the mask, positions in batches, and the model."""

    state: PretrainingState
    state_class = PretrainingState
    gold = attrgetter("text")

    @classmethod
    def read(cls, config: PretrainConfig, source: Any) -> Dataset:
        """Read the documents of running text. Each text of data in memory is a document.

        All documents are read, because ``--limit`` counts sequences.
        """
        part = source if isinstance(source, PartOf) else PartOf(source)
        spec, without_test = part.spec, part.without_test
        if isinstance(spec, str | Path):
            if not str(spec).strip():
                raise UserError("--data must name running text: a file, a folder, or en=A,de=B.")
            options: dict[str, Any] = {"columns": config.columns, "encoding": config.encoding}
            return read_running_text(str(spec), **options, without_test=without_test)
        columns, pair = column_map(config.columns), False if config.columns else None
        data = read_text(PartOf(spec, without_test), columns=columns, pair=pair)
        splits = {
            split: collected(
                replace(row, text=text, pair=None, label=None)
                for row in rows
                if (text := "\n".join(filter(str.strip, "\n".join(row.texts()).split("\n"))))
            )
            for split, rows in data.splits.items()
        }
        return replace(data.with_splits(splits), notes=[], label_order=())

    @classmethod
    def derive(cls, config: PretrainConfig, data: Dataset) -> dict[str, Any]:
        """Derive the empty set of labels."""
        return {"labels": LabelSet(()), "pairs": False}

    def __post_init__(self) -> None:
        """Require a mask token."""
        if self.tokenizer.tokenizer.mask_token_id is None:
            raise UserError(f"{self.tokenizer.name}: its tokenizer has no mask token.")

    def _targets(self, sequences: FlatSequences) -> dict[str, Tensor]:
        rows = sequences.targets or {}
        number = torch.from_numpy(rows["position"].counts)
        targets = {
            name: torch.from_numpy(rows[name].values.astype(np.int64))
            for name in ("position", "token", "left", "right", "next")
            if name in rows
        }
        targets["position"] += begins_of(sequences).repeat_interleave(number)
        return targets | {"number": number}

    def model(self, folder: str | Path | None = None) -> Any:
        """Make a model to train, or load one from a folder."""
        config = self.state.config
        options = dict[str, Any]()
        model: type[Any] = MaskedLanguageModel
        if config.boundary or config.nsp:
            model = PretrainingModel
            options |= {"boundary": config.boundary, "nsp": config.nsp}
        if folder is not None:
            return model.from_pretrained(str(folder), new_head=False, **options)
        if config.config is not None:
            encoder_config = new_config(config.config, self.tokenizer.tokenizer)
            return model.from_config(encoder_config, **options)
        return model.from_pretrained(**options, **starting_model(self))

    def loss(self, scores: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the summed cross entropy of the chosen positions, and their number."""
        return scores.loss.sum(), torch.ones_like(scores.loss).sum()


@dataclass(eq=False)
class MaskFilling(MaskedTask):
    """Prediction of the subwords at the mask tokens of a text."""

    def _sequences(self, examples: Sequence[TextExample]) -> tuple[list[list[TokenSequence]], int]:
        room, mask = self.tokenizer.room(self.state.max_length), self.tokenizer.tokenizer.mask_token
        texts = [MASKS.sub(lambda _: mask, sample.text).split("\n") for sample in examples]
        lines = iter(self.tokenizer.subwords_with_words([x for text in texts for x in text]))
        separator = [self.tokenizer.tokenizer.sep_token_id]
        rows, num_cut = [], 0
        for example, lines_of_text in zip(examples, texts, strict=True):
            words: list[list[int]] = []
            for line in lines_of_text:
                ids, starts = next(lines)
                words += [ids[a:b] for a, b in pairwise([*starts, len(ids)])]
                if not line:
                    words.append(separator)
            num_cut += sum(len(word) > room for word in words)
            words = [word[:room] for word in words]
            parts = windows([len(word) for word in words], room, 0)
            rows.append([encode_window(self.tokenizer, example.id, words, part) for part in parts])
        return rows, num_cut

    def _window_targets(
        self, example: TextExample, windows: Sequence[TokenSequence]
    ) -> list[dict[str, list[int]]]:
        mask, mask_id = self.tokenizer.tokenizer.mask_token, self.tokenizer.tokenizer.mask_token_id
        positions = [[n for n, id in enumerate(w.input_ids) if id == mask_id] for w in windows]
        if not any(positions):
            raise UserError(
                f"{example.where}: {example.text!r:.60} has no {mask}: write it in place of the "
                "subwords to predict."
            )
        return [{"position": of_window} for of_window in positions]

    def decode(self, scores: Any, batch: Batch) -> list[Array]:
        """Decode the best subwords of each mask and their probabilities [M, 2, ``NUM_BEST``]."""
        best = scores.cpu().double().softmax(-1).topk(min(NUM_BEST, scores.shape[-1]))
        values = torch.stack([best.indices.double(), best.values], 1)
        return by_sequence(values, batch)

    def postprocess(
        self, example: TextExample, outputs: Sequence[WindowOutput]
    ) -> MaskedPrediction:
        """Name the subwords of all windows in order."""
        values: Array = np.concatenate([output.values for output in outputs])
        decode = self.tokenizer.tokenizer.decode
        subwords = tuple(tuple(decode([int(id)]).strip() for id in ids) for ids, _ in values)
        scores = tuple(tuple(map(float, probabilities)) for _, probabilities in values)
        return MaskedPrediction(example.id, subwords, scores, example.text)


@dataclass(eq=False)
class PretrainingTask(MaskedTask):
    """Prediction of subwords that a rule chooses anew in each epoch, and once for all scores.

    Examples are packed sequences that know their subwords (``packing``). The span boundary
    objective (Joshi et al., 2020, SpanBERT) also predicts the subwords of a span from the two
    subwords beside it, and next sentence prediction (Devlin et al., 2019) whether the second text
    of a pair follows the first.
    """

    _frequency: Array = field(kw_only=True)
    """Occurrences of each subword in the training data [V]."""

    @cached_property
    def _masking(self) -> Masking:
        config, single = self.state.config, self.tokenizer.single
        tokenizer = self.tokenizer.tokenizer
        special = special_subwords(tokenizer)
        is_separator = np.zeros(len(special), dtype=bool)  # a separator is also between two texts
        is_separator[[*single.prefix, *single.suffix, tokenizer.sep_token_id]] = True
        return Masking(
            special,
            tokenizer.mask_token_id,
            config.mask,
            config.mask_probability,
            config.explore,
            self._frequency if config.replacement == "unigram" else None,
            is_separator if config.boundary else None,
        )

    @property
    def _masking_of_scores(self) -> Masking:
        return replace(self._masking, frequency=None)

    def _encode_chunk(self, examples: Sequence[Any], for_training: bool) -> EncodedExamples:
        encoded = super()._encode_chunk(examples, for_training)
        if for_training:  # which masks the sequences of each epoch
            return encoded
        return replace(encoded, sequences=self._masking_of_scores.apply(encoded.sequences))

    def encode(
        self, examples: Sequence[Any], gather: Gather = encode_all, *, for_training: bool = False
    ) -> EncodedExamples:
        """Encode packed sequences; without ``for_training`` pair and mask them for scores.

        The second text of a pair may be of any example.
        """
        if for_training or not self.state.config.nsp:
            return super().encode(examples, gather, for_training=for_training)
        masking = self._masking_of_scores
        packed = super().encode(examples, for_training=True)

        def masked(start: int) -> EncodedExamples:
            rows = np.arange(start, min(start + ENCODE_CHUNK, len(examples)))
            masked_pairs = masking.apply(self._pairs(packed.sequences, rows))
            return EncodedExamples(
                masked_pairs, np.arange(len(rows) + 1), 0 if start else packed.num_cut
            )

        encoded = gather(masked, range(0, len(examples), ENCODE_CHUNK))
        return replace(encoded, notes=packed.notes)

    def sequences_of_epoch(
        self, sequences: FlatSequences, seed: int, epoch: int, rows: Array | None = None
    ) -> FlatSequences:
        """Mask the sequences for an epoch, or pairs of them."""
        if self.state.config.nsp:
            rows = np.arange(len(sequences)) if rows is None else rows
            plain = self._pairs(sequences, rows, seed, epoch)
        else:
            plain = super().sequences_of_epoch(sequences, seed, epoch, rows)
        return self._masking.apply(plain, seed, epoch)

    def _pairs(self, packed: FlatSequences, rows: Array, *seed_and_epoch: int) -> FlatSequences:
        template, max_length = self.tokenizer.pair, self.state.max_length
        return sentence_pairs(packed, rows, template, max_length, *seed_and_epoch)

    def added_ids(self) -> Sequence[int]:
        """All ids: any subword can be drawn as a random one."""
        return range(len(self.tokenizer.tokenizer))

    @property
    def loss_counts(self) -> Callable[[Batch], Tensor] | None:
        """The counts of masks and further objectives; None without further ones."""
        config = self.state.config
        names = ["position", *["boundary"] * config.boundary, *["next"] * config.nsp]
        if len(names) == 1:
            return None
        return lambda batch: torch.tensor(
            [float(len(batch.targets.get(name, ()))) for name in names]
        )

    def _sequences(self, examples: Sequence[TextBlock]) -> tuple[list[list[TokenSequence]], int]:
        before, rows = len(self.tokenizer.single.prefix), []
        for example in examples:
            ids, starts, lines = (memoryview(raw).cast("i").tolist() for raw in example.subwords)
            words = [before + start for start in [*starts, len(ids)]]
            sequence = TokenSequence(example.id, *self.tokenizer.build(ids), words)
            if self.state.config.nsp:
                target = {"lines": [*lines, len(starts)], "document": [example.document]}
                sequence = replace(sequence, target=target)
            rows.append([sequence])
        return rows, 0

    def _targets(self, sequences: FlatSequences) -> dict[str, Tensor]:
        targets = super()._targets(sequences)
        if "left" in targets:  # rows of the subwords beside the span of each target, -1 for none
            begins = begins_of(sequences).repeat_interleave(targets["number"])
            offset = targets["position"] - begins - targets["left"] - 1
            chosen = ((targets["left"] >= 0) & (offset < MOST_TARGETS)).nonzero()[:, 0]
            targets |= {side: (targets[side] + begins)[chosen] for side in ("left", "right")}
            targets |= {"boundary": chosen, "offset": offset[chosen]}
        return targets

    def loss(self, scores: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the summed cross entropy of the chosen positions, and their number.

        With further objectives, these are the sum and the number of each.
        """
        config, losses = self.state.config, [scores.loss]
        if config.boundary:
            losses.append(scores.boundary)
        if config.nsp:
            losses.append(cross_entropy(scores.next, batch.targets["next"], reduction="none"))
        if len(losses) == 1:
            return super().loss(scores, batch)
        counts = [loss.new_full((), len(loss)) for loss in losses]
        return torch.stack([loss.sum() for loss in losses]), torch.stack(counts)

    def decode(self, scores: Any, batch: Batch) -> list[Array]:
        """Decode loss, best subword and gold subword of each target [M, 3].

        The boundary objective adds its loss (NaN outside of spans), next sentence prediction 1 if
        the second text is random, and the probability that it follows.
        """
        targets = batch.targets
        columns = [scores.loss, scores.best, targets["token"]]
        if self.state.config.boundary:
            none = torch.full_like(scores.loss, torch.nan)
            columns.append(none.index_copy(0, targets["boundary"], scores.boundary))
        if self.state.config.nsp:
            of_pairs = targets["next"], scores.next.softmax(-1)[:, 0]
            columns += [value.repeat_interleave(targets["number"]) for value in of_pairs]
        return by_sequence(torch.stack([column.double().cpu() for column in columns], 1), batch)

    def postprocess(
        self, example: TextExample, outputs: Sequence[WindowOutput]
    ) -> MaskedPrediction:
        """Name the subwords of all targets in order."""
        values: Array = np.concatenate([output.values for output in outputs])
        names = self.tokenizer.tokenizer.convert_ids_to_tokens
        best, token = values[:, 1:3].T.astype(np.int64)
        further: dict[str, Any] = {}
        if self.state.config.boundary:
            losses = values[:, 3]
            further["boundary_losses"] = tuple(losses[~np.isnan(losses)].tolist())
        if self.state.config.nsp and len(values):
            further |= {"follows": not values[0, -2], "follows_score": float(values[0, -1])}
        return MaskedPrediction(
            example.id,
            tuple(names(best.tolist())),
            gold=tuple(names(token.tolist())),
            losses=tuple(values[:, 0].tolist()),
            **further,
        )


def begins_of(sequences: FlatSequences) -> Tensor:
    """Compute the row of the first token of each sequence [N], in the packed row."""
    return torch.from_numpy(sequences.ids.offsets[:-1].astype(np.int64))


def by_sequence(values: Tensor, batch: Batch) -> list[Array]:
    """Split the values of all targets [M, ...] by sequence."""
    ends = batch.targets["number"].cumsum(0).tolist()
    return np.split(values.numpy(), ends[:-1])
