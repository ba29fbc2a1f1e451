"""Encoders of well-known shapes with random weights, and a tokenizer, without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from finetune.models.loading import quiet

_BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
"""Special tokens by role, in the order of their ids."""

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "minilm": (
        "bert",
        {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    ),
    "roberta-base": (
        "roberta",
        {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    ),
    "deberta-v3-small": (
        "deberta-v2",
        {
            "hidden_size": 768,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "relative_attention": True,
            "position_buckets": 256,
            "position_biased_input": False,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "pos_att_type": ["p2c", "c2p"],
            "pooler_hidden_size": 768,
        },
    ),
}
"""Model type, and the settings of the checkpoint of this name that are not the type's defaults."""


def write_shape(shape: str, folder: Path) -> None:
    """Write a model and a tokenizer with the words w5, w6, … into a folder."""
    kind, settings = SHAPES[shape]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **settings)
    model = AutoModel.from_config(config)
    with quiet():
        model.save_pretrained(folder)
    _tokenizer(kind, config.vocab_size).save_pretrained(folder)


def _tokenizer(kind: str, size: int) -> PreTrainedTokenizerFast:
    special = _ROBERTA if kind == "roberta" else _BERT
    names = [*special.values(), *(f"w{number}" for number in range(len(special), size))]
    ids = {name: index for index, name in enumerate(names)}
    backend = Tokenizer(models.WordLevel(ids, unk_token=special["unk"]))
    backend.add_special_tokens(list(special.values()))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    begin, end = special["cls"], special["sep"]
    middle = f"{end} {end} $B {end}" if kind == "roberta" else f"{end} $B:1 {end}:1"
    backend.post_processor = TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {middle}",
        special_tokens=[(begin, ids[begin]), (end, ids[end])],
    )
    segments = ["token_type_ids"] if kind == "bert" else []
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", "attention_mask", *segments],
        model_max_length=512,
        **{f"{role}_token": name for role, name in special.items()},
    )
