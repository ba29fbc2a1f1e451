"""Fill the masks of texts: what training and prediction of masked language models share, and
prediction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finetune.data import Dataset
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.models.loading import new_config
from finetune.preprocessing.encodings import Array, FlatSequences
from finetune.preprocessing.windows import encode_window, windows
from finetune.pretraining.model import PretrainingModel
from finetune.pretraining.packing import read_running_documents
from finetune.pretraining.settings import PretrainConfig
from finetune.tasks.base import Task, starting_model
from finetune.tasks.state import TaskState
from finetune.types import (
    Batch,
    LabelSet,
    MaskedPrediction,
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
        """Read documents."""
        return read_running_documents(config, source)

    @classmethod
    def derive(cls, config: PretrainConfig, data: Dataset) -> dict[str, Any]:
        """Derive the empty set of labels."""
        return {"labels": LabelSet(()), "pairs": False}

    def __post_init__(self) -> None:
        """Require a mask token."""
        if self.tokenizer.tokenizer.mask_token_id is None:
            raise UserError(f"{self.tokenizer.name}: its tokenizer has no mask token.")

    def _targets(self, sequences: FlatSequences) -> dict[str, torch.Tensor]:
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

    def loss(self, scores: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
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
        ids = [window.input_ids for window in windows]
        positions = [[n for n, id in enumerate(row) if id == mask_id] for row in ids]
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


def begins_of(sequences: FlatSequences) -> torch.Tensor:
    """Compute the row of the first token of each sequence [N], in the packed row."""
    return torch.from_numpy(sequences.ids.offsets[:-1].astype(np.int64))


def by_sequence(values: torch.Tensor, batch: Batch) -> list[Array]:
    """Split the values of all targets [M, ...] by sequence."""
    ends = batch.targets["number"].cumsum(0).tolist()
    return np.split(values.numpy(), ends[:-1])
