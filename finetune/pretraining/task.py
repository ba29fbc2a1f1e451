"""Masked language modeling on running text: pretraining from scratch, and continued pretraining.

Jurafsky & Martin, chapter "Masked Language Models", sections on training bidirectional encoders and
on contiguous spans; Devlin et al. (2019); Liu et al. (2019); Gururangan et al. (2020), "Don't Stop
Pretraining". An example is a block of whole lines that makes one sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from finetune.data import Dataset
from finetune.data.preparation import limited
from finetune.models.warm_start import LANGUAGE_MODELS
from finetune.preprocessing.encodings import Array, EncodedExamples, FlatSequences
from finetune.preprocessing.masking import Masking, special_subwords
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.pretraining.fill_mask import MaskedTask, PretrainingState, begins_of, by_sequence
from finetune.pretraining.model import MOST_TARGETS, require_next_sentence
from finetune.pretraining.packing import large_documents, packed_documents
from finetune.pretraining.sentence_pairs import pair_notes, sentence_pairs
from finetune.tasks.base import ENCODE_CHUNK, Gather, Task, encode_all
from finetune.tasks.definition import load_tokenizer, sequence_limit, starting_config
from finetune.types import (
    Batch,
    MaskedPrediction,
    TextBlock,
    TextExample,
    TokenSequence,
    UserError,
    WindowOutput,
)


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


def load_packed(task: type[Task], config: Any, data: Any = None) -> tuple[Task, Dataset]:
    """Load the tokenizer, read the documents, and pack their lines into sequences."""
    if config.config is not None:
        if config.tokenizer is None and config.config == "small":
            raise UserError(
                "--config small: name a tokenizer with --tokenizer, such as a folder that finetune "
                "vocabulary wrote, or a model such as minilm."
            )
        warm_start = None
        tokenizer = SubwordTokenizer.saved(config.tokenizer or str(config.config))
    else:
        warm_start, tokenizer = load_tokenizer(config, task, ())
    encoder = starting_config(config, warm_start)
    if config.nsp:
        require_next_sentence(str(config.config or config.model or config.init_from), encoder)
    limit = sequence_limit(config, tokenizer, warm_start)
    longest = limit  # of a packed sequence alone
    if config.nsp:
        longest -= tokenizer.pair.num_special - tokenizer.single.num_special
    make = partial(packed_documents, config, data, tokenizer, longest)
    inputs = large_documents(config, data, tokenizer, longest)
    packed, derived, _ = inputs.prepared(make) if inputs else make()
    state = PretrainingState(config=config, max_length=limit, **MaskedTask.derive(config, packed))
    notes, names = packed.notes, encoder.architectures or ()
    if not warm_start and names and not any(name.endswith(LANGUAGE_MODELS) for name in names):
        notes = [*notes, f"{names[0]} has no masked language model: its head is new"]
    notes = [*notes, *derived["notes"]]
    packed = limited(replace(packed, notes=notes), config)
    if config.nsp:
        packed = replace(packed, notes=[*packed.notes, *pair_notes(packed)])
    frequency = np.array(derived["frequency"], np.int64)
    return PretrainingTask(state, tokenizer, warm_start, _frequency=frequency), packed
