"""Model families: what their modelling code wants, and how far up each of their weights lies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Family:
    """What the Encoder must know about a model type.

    ``packs``: what lets it run on a packed row: its attention goes through transformers'
    ``"interface"``, or we have a ``"forward"`` of our own for it. ``positions``: where position
    ids begin, 0 or behind the padding id (RoBERTa); None lets the model count for itself.
    ``segments``: takes segment ids. ``half``: its code runs in half precision under autocast (ours
    always does).
    """

    packs: Literal["interface", "forward"] | None = "interface"
    positions: Literal["zero", "behind padding"] | None = "zero"
    segments: bool = True
    half: bool = True


_ROBERTA = Family(positions="behind padding")

FAMILIES: dict[str, Family] = {
    "bert": Family(),
    "electra": Family(),
    "albert": Family(),
    "ernie": Family(),
    "distilbert": Family(segments=False),
    "modernbert": Family(segments=False),
    "eurobert": Family(segments=False),
    "nomic_bert": Family(),
    "jina_embeddings_v3": Family(),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "xlm-roberta-xl": _ROBERTA,
    "camembert": _ROBERTA,
    "data2vec-text": _ROBERTA,
    "roberta-prelayernorm": _ROBERTA,
    # DeBERTa (not v2) masks with the least float32, which bfloat16 cannot hold.
    "deberta": Family(packs="forward", half=False),
    "deberta-v2": Family(packs="forward"),
    "mpnet": Family(packs=None, positions="behind padding", segments=False),
}
"""Model types (``config.model_type``) with a parity test. Any other is padded, and counts its
positions itself."""

UNPACKABLE: dict[str, str] = {
    "mobilebert": "mobilebert models read the embeddings left and right of each token, which in a "
    "packed row are those of other sequences",
    "esm": "esm models scale the embeddings of a row by its share of masked tokens",
}
"""Why model types without a row above could not be packed, where that is known."""


def family_of(model: Any) -> Family | None:
    """The row of a model; None without one, and where the code is not transformers' own.

    Checkpoints of EuroBERT and Nomic bring code (--trust-remote-code) under the same model type.
    """
    own = type(model).__module__.startswith("transformers.")
    return FAMILIES.get(model.config.model_type) if own else None


_EMBEDDINGS = re.compile(
    r"(embeddings(_project)?|embed_tokens)\."
    r"|encoder\.(embedding_hidden_mapping_in|rel_embeddings|relative_attention_bias)\."
)
_LAYER = re.compile(r"((encoder|transformer)\.)?(layers?|albert_layer_groups)\.(?P<number>\d+)\.")
_EXCEPTIONS = {
    ("deberta-v2", "encoder.LayerNorm"): 0,  # normalises the relative position embeddings
    ("deberta-v2", "encoder.conv"): 1,  # a convolution beside the first layer (xlarge)
    ("deberta", "encoder.LayerNorm"): 0,
}


def depth_in_family(model_type: str, parameter_name: str) -> int | None:
    """How far up a parameter of a base model lies: 0 embeddings, n the n-th layer, None above.

    ALBERT's groups of shared layers count once each.
    """
    for (kind, prefix), depth in _EXCEPTIONS.items():
        if kind == model_type and parameter_name.startswith(prefix + "."):
            return depth
    if _EMBEDDINGS.match(parameter_name):
        return 0
    layer = _LAYER.match(parameter_name)
    return int(layer["number"]) + 1 if layer else None
