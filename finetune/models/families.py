"""Model families: what their modeling code supports, and the depth of each of their weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Family:
    """The properties of a model type that the ``Encoder`` needs.

    Attributes:
        packing: How it runs on a packed row: its attention goes through transformers'
            ``"interface"``, or ``models.deberta`` has a ``"forward"`` for it. None: padded rows.
        positions: The first position id, 0 or the one after the padding id (RoBERTa); None leaves
            positions to the model.
        segments: Whether it takes segment ids.
        half_precision: Whether its code runs in half precision under autocast (packed rows do).
    """

    packing: Literal["interface", "forward"] | None = "interface"
    positions: Literal["from zero", "after padding"] | None = "from zero"
    segments: bool = True
    half_precision: bool = True


_ROBERTA = Family(positions="after padding")

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
    "deberta": Family(packing="forward", half_precision=False),
    "deberta-v2": Family(packing="forward"),
    "mpnet": Family(packing=None, positions="after padding", segments=False),
}
"""Model types (``config.model_type``) with a parity test. Others run on padded rows."""

UNPACKABLE: dict[str, str] = {
    "mobilebert": "mobilebert models read the embeddings left and right of each token, which in a "
    "packed row may belong to other sequences",
    "esm": "esm models scale the embeddings of a row by its fraction of masked tokens",
}
"""Model types without a row above that cannot be packed, and why."""


def family_of(model: Any) -> Family | None:
    """Return the family of a model; None if it has no row or is not a class of transformers.

    Checkpoints of EuroBERT and Nomic bring code (--trust-remote-code) under the same model type.
    """
    is_library_class = type(model).__module__.startswith("transformers.")
    return FAMILIES.get(model.config.model_type) if is_library_class else None


def first_position(config: Any, family: Family | None) -> int:
    """Return the position id of a sequence's first token."""
    after_padding = family is not None and family.positions == "after padding"
    return (config.pad_token_id or 0) + 1 if after_padding else 0


def position_limit(config: Any, family: Family | None) -> int | None:
    """Return the longest sequence in tokens that a model has positions for; None for any."""
    limit = getattr(config, "max_position_embeddings", None)
    return None if limit is None else limit - first_position(config, family)


_EMBEDDINGS = re.compile(
    r"(embeddings(_project)?|embed_tokens)\."
    r"|encoder\.(embedding_hidden_mapping_in|rel_embeddings|relative_attention_bias)\."
)
_LAYER = re.compile(r"((encoder|transformer)\.)?(layers?|albert_layer_groups)\.(?P<number>\d+)\.")
_EXCEPTIONS = {
    ("deberta-v2", "encoder.LayerNorm"): 0,  # normalizes the relative position embeddings
    ("deberta-v2", "encoder.conv"): 1,  # a convolution beside the first layer (xlarge)
    ("deberta", "encoder.LayerNorm"): 0,
}


def depth_in_family(model_type: str, parameter_name: str) -> int | None:
    """Return the depth of a base model's parameter: 0 embeddings, n the n-th layer, None above.

    Each group of ALBERT's shared layers counts once.
    """
    for (kind, prefix), depth in _EXCEPTIONS.items():
        if kind == model_type and parameter_name.startswith(prefix + "."):
            return depth
    if _EMBEDDINGS.match(parameter_name):
        return 0
    layer = _LAYER.match(parameter_name)
    return int(layer["number"]) + 1 if layer else None
