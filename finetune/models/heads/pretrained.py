"""Heads over the task models of transformers: texts, words, choices and answers.

Jurafsky & Martin, chapter "Masked Language Models", sections on fine-tuning for classification and
on sequence labeling. ``PretrainedHead`` runs the layers of a model's own head on batches without
padding. Its four classes say which model of transformers is inside, and what a batch gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from finetune.config.tasks import flag
from finetune.models.bilstm import BILSTM
from finetune.models.encoder import Encoder
from finetune.models.families import family_of
from finetune.models.heads.base import Head
from finetune.models.heads.layers import POOLED, layers_of, pooled_tokens, word_rows
from finetune.models.heads.task_models import Problem, load_task_model, problem_of
from finetune.models.loading import copy_tokenizer, quiet
from finetune.models.padding import pad_rows, padded_index
from finetune.types import Batch, LabelSet, UserError

SCORE = "score"
"""The label of the one number that a ``ChoiceScorer`` computes for a sequence."""
ANSWER_ENDS = ("start", "end")
"""The two logits of a token by a ``QuestionAnswerer``."""


class PretrainedHead(Head):
    """A Hugging Face model with a task head, run on batches without padding.

    It saves folders as ``model`` does: plain transformers loads them.

    Args:
        model: A model as ``auto_class`` loads it. It owns all weights: saved folders load anywhere.

    Attributes:
        known_type: The model type, or empty if the class of the model cannot be packed.
    """

    auto_class: ClassVar[Any]
    per_token: ClassVar[bool] = True
    """Whether the class of transformers has logits for each token, and not for each sequence."""
    fixed_labels: ClassVar[tuple[str, ...]] = ()
    """The labels of every model of the class; empty if they are those of the data."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        base_model: Any = model.base_model
        self.__dict__["encoder"] = Encoder(base_model)
        self.encoder_prefix = f"model.{model.base_model_prefix}."
        family = family_of(base_model)
        self.known_type: str = model.config.model_type if family and family.packing else ""
        if getattr(model.config, BILSTM, False) and not self.known_type:
            raise UserError(
                f"{flag(BILSTM)} does not work with {model.config.model_type} "
                "models, whose head runs together with the encoder: leave it out."
            )
        self._type_of_layers = self.known_type

    @property
    def _layers(self) -> Callable[[Any, Tensor], Tensor] | None:
        return layers_of(self.auto_class, self._type_of_layers)  # kept here, no model is pickled

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, labels: Sequence[str] | None = None, **options: Any
    ) -> Self:
        """Load a trained model; with ``labels`` make one to train, in float32.

        Args:
            name: Hub id, short name or folder of an encoder, or of a trained model.
            labels: The labels of a model to train; for regression the name of the number. A head
                that the checkpoint lacks, or has for another number of labels, is new.
            options: ``dropout`` before the classifier; ``revision``, ``trust_remote_code``
                and ``bilstm``, as in ``load_config``.

        Raises:
            UserError: There is no such model or setting, or without ``labels`` no trained head.
        """
        if labels is not None and cls.fixed_labels not in ((), LabelSet(labels)):
            raise UserError(
                f"labels of a {cls.__name__} must be {[*cls.fixed_labels]}, not {labels!r:.60}."
            )
        return cls(load_task_model(cls.auto_class, str(name), labels=labels, **options))

    @property
    def config(self) -> Any:
        """The configuration of ``model``."""
        return self.model.config

    def save_pretrained(self, folder: str | Path, *, is_main_process: bool = True) -> None:
        """Write config.json and model.safetensors for plain transformers to load.

        A folder without a tokenizer gets the tokenizer of the model that was loaded.

        Args:
            folder: The folder to write.
            is_main_process: Whether this process writes.
        """
        with quiet():
            self.model.save_pretrained(folder, is_main_process=is_main_process)
        if is_main_process:
            copy_tokenizer(Path(str(self.model.name_or_path)), Path(folder))

    def vectors(self, batch: Batch) -> Tensor:
        """Compute the hidden states [N, H] that the head decides on (``Head.vectors``)."""
        if self._pooling == "first":
            return super().vectors(batch)
        return pooled_tokens(self.encoder(batch), batch)

    def forward(self, batch: Batch) -> Any:
        """Compute the logits of a batch, as the class says."""
        if self._layers is not None:
            return super().forward(batch)
        rows, logits = self._rows(batch), self._padded_logits(batch)
        return logits if rows is None or not self.per_token else logits.index_select(0, rows)

    def read(self, hidden: Tensor, batch: Batch) -> Any:
        """Compute the logits of a batch, given its hidden states [T, H] (``Head.read``)."""
        assert self._layers is not None  # else the layers of the head run with the encoder
        rows, pooling = self._rows(batch), self._pooling
        if pooling == "mean":
            hidden = pooled_tokens(hidden, batch).to(hidden.dtype)
        elif pooling != "late" and rows is not None:
            hidden = hidden.index_select(0, rows)
        logits = self._layers(self.model, hidden)
        return pooled_tokens(logits, batch) if pooling == "late" else logits

    def _rows(self, batch: Batch) -> Tensor | None:
        return None if self.per_token else batch.cu_seqlens[:-1]

    @property
    def _pooling(self) -> str:
        pooled = not self.per_token and self.known_type in POOLED
        return self.model.config.classifier_pooling if pooled else "first"

    def _padded_logits(self, batch: Batch) -> Tensor:
        self.encoder.check_batch(batch)
        return self.encoder.in_padded_rows(self._whole_model, batch, per_token=self.per_token)[0]

    def _whole_model(self, **inputs: Tensor) -> list[Tensor]:
        return [self.model(**inputs).logits]


class SequenceClassifier(PretrainedHead):
    """Logits of C classes for each of N sequences, from the first token of each.

    Each family has its own head, so that checkpoints with a trained head keep it.
    ``PretrainedHead`` explains arguments and attributes.

    Examples:
        >>> from finetune import SequenceClassifier, SubwordTokenizer
        >>> tokenizer = SubwordTokenizer.from_pretrained("roberta-base")  # doctest: +SKIP
        >>> labels, load = ["bad", "good"], SequenceClassifier.from_pretrained
        >>> model = load("roberta-base", labels=labels)  # doctest: +SKIP
        >>> model(tokenizer(["A fine film.", "Dull."])).shape  # doctest: +SKIP
        torch.Size([2, 2])
    """

    auto_class = AutoModelForSequenceClassification
    per_token = False

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, problem: Problem = "single", **options: Any
    ) -> Self:
        """Load a model as ``PretrainedHead`` does.

        ``problem`` is what a model to train predicts: one label (``"single"``), any number of
        labels (``"multi"``) or a number (``"regression"``). A trained model has its own.
        """
        return super().from_pretrained(name, problem=problem, **options)

    @property
    def problem(self) -> Problem:
        """The prediction: one label, any number of labels (``"multi"``), or a number."""
        return problem_of(self.model.config)


class TokenClassifier(PretrainedHead):
    """Logits of C tags for each of W words, or for each of their subwords.

    Rows are selected before dropout and classifier, as a head over W words costs less than one over
    T tokens. ``PretrainedHead`` explains the arguments and the other attributes.

    Attributes:
        all_subwords: Whether all subwords of a word get logits, and not its first one alone.

    Examples:
        >>> from finetune import SubwordTokenizer, TokenClassifier
        >>> load = SubwordTokenizer.from_pretrained
        >>> tokenizer = load("roberta-base", words=True)  # doctest: +SKIP
        >>> tags = ["O", "B-PER", "I-PER"]
        >>> model = TokenClassifier.from_pretrained("roberta-base", labels=tags)  # doctest: +SKIP
        >>> model(tokenizer([["Anna", "slept"]])).shape  # doctest: +SKIP
        torch.Size([2, 3])
    """

    auto_class = AutoModelForTokenClassification

    all_subwords = False

    def _rows(self, batch: Batch) -> Tensor:
        words = word_rows(batch)
        return subword_rows(batch) if self.all_subwords else words


def subword_rows(batch: Batch) -> Tensor:
    """The token index of every subword of every word, in order: [P]."""
    lengths = batch.word_lengths
    starts = lengths.cumsum(0) - lengths  # [W], among all subwords
    shifts = batch.words - starts
    shifts = torch.repeat_interleave(shifts, lengths, output_size=batch.num_subwords)  # [P]
    return shifts + torch.arange(len(shifts), device=shifts.device)


class ChoiceScorer(PretrainedHead):
    """A score [N, 1] for each of N sequences, of a context with a question and one choice.

    The softmax is over the sequences of a question (Radford et al., 2018, "Improving Language
    Understanding by Generative Pre-Training", section 3.3). ``PretrainedHead`` explains arguments
    and attributes.

    Examples:
        >>> from finetune import ChoiceScorer, SubwordTokenizer
        >>> tokenizer = SubwordTokenizer.from_pretrained("roberta-base")  # doctest: +SKIP
        >>> load = ChoiceScorer.from_pretrained
        >>> model = load("roberta-base", labels=["score"])  # doctest: +SKIP
        >>> model(tokenizer([("Who?", "I."), ("Who?", "You.")])).shape  # doctest: +SKIP
        torch.Size([2, 1])
    """

    auto_class = AutoModelForMultipleChoice
    per_token = False
    fixed_labels = (SCORE,)

    def _whole_model(self, **inputs: Tensor) -> list[Tensor]:
        return super()._whole_model(**{name: rows[:, None] for name, rows in inputs.items()})


class QuestionAnswerer(PretrainedHead):
    """Logits of the start and the end of an answer for each of T tokens.

    A linear layer over each token's vector scores it as the first and as the last token of the
    answer (Devlin et al., 2019, section 4.2; Jurafsky & Martin, "answer span extraction"). Its
    labels are ``ANSWER_ENDS``. ``PretrainedHead`` explains arguments and attributes.

    Examples:
        >>> from finetune import QuestionAnswerer, SubwordTokenizer
        >>> tokenizer = SubwordTokenizer.from_pretrained("roberta-base")  # doctest: +SKIP
        >>> load = QuestionAnswerer.from_pretrained
        >>> model = load("roberta-base", labels=["start", "end"])  # doctest: +SKIP
        >>> model(tokenizer([("Who?", "Anna")])).shape  # doctest: +SKIP
        torch.Size([7, 2])
    """

    auto_class = AutoModelForQuestionAnswering
    fixed_labels = ANSWER_ENDS

    def _whole_model(self, **inputs: Tensor) -> list[Tensor]:
        output = self.model(**inputs)
        return [torch.stack([output.start_logits, output.end_logits], -1)]


def position_losses(logits: Tensor, batch: Batch, start: Tensor, end: Tensor) -> Tensor:
    """Compute the mean of the cross entropies of start and end of each sequence: [T, 2] -> [N].

    Each is over all tokens of the sequence, as in ``AutoModelForQuestionAnswering``. ``start`` and
    ``end`` are positions in each sequence [N].
    """
    scores = rows_of(logits, batch).flatten(0, 1)  # [2 N, L]
    targets = torch.stack([start, end], 1).flatten()
    return F.cross_entropy(scores, targets, reduction="none").view(-1, 2).mean(1)


def rows_of(logits: Tensor, batch: Batch) -> Tensor:
    """The logits of tokens as padded rows, -inf where there is no token: [N, 2, L]."""
    shape = len(batch.lengths), batch.max_seqlen
    return pad_rows(logits, padded_index(batch), shape, -torch.inf).transpose(1, 2)
