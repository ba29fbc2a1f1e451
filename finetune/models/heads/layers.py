"""The layers of the heads of transformers above the hidden states, by type of head and family.

Each takes a model of transformers and the hidden states that its head reads, and returns logits. A
model type without a row runs as the class of transformers does, whole and on padded rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from finetune.models.families import FAMILIES, ROBERTA
from finetune.types import Batch, UserError

_Layers = Callable[[Any, Tensor], Tensor]
"""From a model and hidden states [R, H] to logits [R, C]."""
POOLED = ("modernbert", "ultrabert", "eurobert")
"""Model types whose configuration says what stands for a sequence (``classifier_pooling``)."""


def layers_of(auto_class: Any, model_type: str) -> _Layers | None:
    """The layers of the heads that an auto class of transformers loads; None without row."""
    return _LAYERS[auto_class.__name__.removeprefix("AutoModelFor")].get(model_type)


def word_rows(batch: Batch) -> Tensor:
    """The row of the first subword of each word [W]; UserError if a batch is of texts."""
    # a sentence without words has two special tokens at most
    if not len(batch.words) and len(batch.input_ids) > 2 * len(batch.lengths):
        raise UserError(
            "the head reads words, and the batch has texts without words: make it of lists of "
            "words, by a tokenizer loaded with words=True."
        )
    return batch.words


def pool(rows: Tensor, lengths: Tensor, pooling: str = "mean") -> Tensor:
    """Pool consecutive rows by their mean, their maximum or the first (``cls``, ``first``).

    ``rows`` [sum of lengths, X] and ``lengths`` [N] give [N, X], in at least float32 if they are
    means. The mean of no rows is 0; a maximum or a first row needs one.
    """
    if pooling in ("cls", "first"):
        return rows.index_select(0, lengths.cumsum(0) - lengths)
    initial = None
    if pooling == "mean":  # a sum of hundreds of rows stops growing in bfloat16
        initial, rows = 0, rows.to(torch.promote_types(rows.dtype, torch.float32))
    # unsafe: checking lengths would wait for a GPU
    return torch.segment_reduce(rows, pooling, lengths=lengths, unsafe=True, initial=initial)


def pooled_tokens(values: Tensor, batch: Batch, pooling: str = "mean") -> Tensor:
    """Pool the tokens of each sequence: [T, X] -> [N, X]."""
    return pool(values, batch.cu_seqlens.diff().long(), pooling)


def _pooled(pooler: _Layers) -> _Layers:
    return lambda model, first: model.classifier(model.dropout(pooler(model, first)))


def _dense(model: Any, states: Tensor) -> Any:
    return model.classifier(model.drop(model.head(states)))


def _eurobert(model: Any, states: Tensor) -> Any:
    return model.classifier(model.activation(model.dense(states)))


def _mask_of_deberta(model: Any, states: Tensor) -> Any:
    if model.legacy:
        return model.cls(states)
    return model.lm_predictions(states, model.deberta.embeddings.word_embeddings)


def _mask_of_distilbert(model: Any, states: Tensor) -> Any:
    states = model.activation(model.vocab_transform(states))
    return model.vocab_projector(model.vocab_layer_norm(states))


def _same(layers: _Layers, *model_types: str) -> dict[str, _Layers]:
    return dict.fromkeys(model_types, layers)


_bert = _pooled(lambda model, first: model.base_model.pooler(first[:, None]))
_own_pooler = _pooled(lambda model, first: model.pooler(first[:, None]))
_first_in_row: _Layers = lambda model, first: model.classifier(first[:, None])  # noqa: E731
_either = {  # for one text and for a choice
    **_same(_bert, "bert", "ernie", "roc_bert"),
    **_same(_own_pooler, "deberta-v2"),
    **_same(_dense, "modernbert"),
    "albert": _pooled(
        lambda model, first: model.base_model.pooler_activation(model.base_model.pooler(first))
    ),
    "distilbert": _pooled(lambda model, first: F.relu(model.pre_classifier(first))),
}
_packed = [model_type for model_type, family in FAMILIES.items() if family.packing]

_LAYERS: Mapping[str, Mapping[str, _Layers]] = {
    "SequenceClassification": {
        **_either,
        **_same(_bert, "gte", "nomic_bert"),
        **_same(_first_in_row, *ROBERTA, "electra", "jina_embeddings_v3", "mpnet"),
        **_same(_dense, "ultrabert"),
        "eurobert": _eurobert,
    },
    "MultipleChoice": {
        **_either,
        **_same(_bert, *ROBERTA, "mpnet"),
        "electra": lambda model, first: model.classifier(model.sequence_summary(first[:, None])),
    },
    "TokenClassification": {
        **_same(lambda model, states: model.classifier(model.dropout(states)), *_packed),
        **_same(_dense, "modernbert", "ultrabert"),
        "eurobert": lambda model, states: model.classifier(states),
    },
    "QuestionAnswering": {
        **_same(lambda model, states: model.qa_outputs(states), *_packed),
        **_same(_dense, "modernbert", "ultrabert"),
        "distilbert": lambda model, states: model.qa_outputs(model.dropout(states)),
    },
    "MaskedLM": {
        **_same(
            lambda model, states: model.cls.predictions(states),
            *("bert", "big_bird", "ernie", "fnet", "layoutlm", "megatron-bert", "mobilebert"),
            *("nomic_bert", "rembert", "roc_bert", "roformer", "squeezebert", "yoso"),
        ),
        **_same(
            lambda model, states: model.lm_head(states),
            *(*ROBERTA, "esm", "esmc", "eurobert", "gte", "ibert", "jina_embeddings_v3"),
            *("longformer", "luke", "mpnet", "xmod"),
        ),
        **_same(
            lambda model, states: model.generator_lm_head(model.generator_predictions(states)),
            *("convbert", "electra"),
        ),
        **_same(_mask_of_deberta, "deberta", "deberta-v2"),
        **_same(lambda model, states: model.pred_layer(states)[0], "flaubert", "xlm"),
        **_same(lambda model, states: model.decoder(model.head(states)), "modernbert", "ultrabert"),
        "albert": lambda model, states: model.predictions(states),
        "neomme": lambda model, states: model.lm_head(states @ model.unembedding_projection.weight),
        "distilbert": _mask_of_distilbert,
    },
}
"""The layers of each model type that tests compare with the class of transformers, by the end of
the name of that class."""
