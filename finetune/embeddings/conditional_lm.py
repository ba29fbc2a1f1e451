"""ConditionalMaskedLM: a sentence encoder that learns from a masked language model.

Yang et al. (2021), "Universal Sentence Representation Learning with Conditional Masked Language
Model": to predict masked subwords of a text, the model also reads the vector of the text before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finetune.models.heads.base import load_module, save_module
from finetune.models.heads.layers import pooled_tokens
from finetune.models.heads.masked_lm import MaskedLanguageModel, MaskedScores
from finetune.models.heads.pair_classifier import separate_texts
from finetune.models.heads.sentence_encoder import Pooling, SentenceOutput, save_modules
from finetune.models.loading import local_model
from finetune.models.padding import take_sequences
from finetune.types import Batch, UserError

NUM_CONDITIONS = 15
"""Number of vectors P that a text is turned into, and of positions they take behind the next."""
PROJECTION_FILE = "projection.safetensors"


class ConditionalMaskedLM(MaskedLanguageModel):
    """Vectors of N texts, and in training the scores of M masked subwords of second texts.

    A perceptron of three layers turns the vector of the first text of a pair into P vectors of the
    width of embeddings. The same encoder reads them in place of the last P tokens of the second
    text.

    The model is a masked language model. It is saved with the files of sentence-transformers, and
    the perceptron in a file beside them. Sequences of a training batch have the two texts of a pair
    as their "words", each with its special tokens, the second one with P more tokens. Its targets
    are ``position`` [M], counted from the begin of the second text, ``token`` [M] and their
    ``number`` in each pair [N].
    """

    lr_factor = 1.0

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        if self._layers is None:
            raise UserError(
                "--objective cmlm needs a masked language model of transformers, not "
                f"{type(model).__name__}: choose another objective."
            )
        self.pooling: Pooling = "mean"
        self.normalize = False
        self.max_length: int | None = None
        width, size = self.encoder.width, model.get_input_embeddings().weight.shape[1]
        self.projection = nn.Sequential(
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, NUM_CONDITIONS * size),
        )

    @classmethod
    def from_pretrained(cls, name: str | Path, *, new_head: bool = True, **options: Any) -> Self:
        """Load a model as ``MaskedLanguageModel`` does, with its perceptron if it has one."""
        model = super().from_pretrained(name, new_head=new_head, **options)
        path = local_model(str(name), options.get("revision")) / PROJECTION_FILE
        load_module(model.projection, path, new=new_head)
        return model

    def forward(self, batch: Batch) -> SentenceOutput | MaskedScores:  # type: ignore[override]
        """Compute the vectors of texts, or the scores of the targets of pairs."""
        if "token" not in batch.targets:
            vectors = self.vectors(batch)
            return SentenceOutput(vectors, vectors.new_empty(0, 3 * self.encoder.width + 1))
        texts = separate_texts(batch)
        first, second = (
            take_sequences(texts, range(number, len(texts.lengths), 2))[0] for number in (0, 1)
        )
        embeddings: Any = self.model.get_input_embeddings()
        vectors = self.vectors(first).to(embeddings.weight.dtype)
        conditions = self.projection(vectors).unflatten(1, (NUM_CONDITIONS, -1))
        read = embeddings(second.input_ids)
        ends = second.cu_seqlens[1:, None].long()
        rows = ends - torch.arange(NUM_CONDITIONS, 0, -1, device=ends.device)
        read = read.index_copy(0, rows.flatten(), conditions.flatten(0, 1))
        states = self.encoder(second, vectors=read)
        position, token, number = (batch.targets[n] for n in ("position", "token", "number"))
        begins = second.cu_seqlens[:-1].long()
        rows = begins.repeat_interleave(number, output_size=len(position)) + position
        return self._scores_of(self._chosen_logits, states.index_select(0, rows), token)

    def vectors(self, batch: Batch) -> Tensor:
        """Compute the vector of each sequence [N, H]."""
        vectors = pooled_tokens(self.encoder(batch), batch, self.pooling)
        return F.normalize(vectors, dim=-1) if self.normalize else vectors

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """Write the files of ``MaskedLanguageModel``, the perceptron, and the pooling."""
        super().save_pretrained(folder, **options)
        save_module(self.projection, Path(folder) / PROJECTION_FILE)
        save_modules(self, Path(folder))
