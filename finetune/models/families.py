"""Model families: what their modeling code supports, and the depth of each of their weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Family:
    """The properties of a model type that the ``Encoder`` needs."""

    packing: Literal["interface", "forward"] | None = "interface"
    """Packed rows go through transformers' attention ``"interface"``, or through the ``"forward"``
    of ``models.deberta``. None: padded rows."""
    positions: Literal["from zero", "after padding"] | None = "from zero"
    """The first position id, 0 or the one after the padding id; None leaves it to the model."""
    segments: bool = True
    """Whether it takes segment ids."""
    half_precision: bool = True
    """Whether its code runs in half precision under autocast on padded rows."""


_BERT = ("bert", "electra", "albert", "ernie", "nomic_bert", "jina_embeddings_v3")
ROBERTA = (
    "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "data2vec-text",
    "roberta-prelayernorm",
)  # fmt: skip
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(_BERT, Family()),
    **dict.fromkeys(ROBERTA, Family(positions="after padding")),
    **dict.fromkeys(("distilbert", "modernbert", "eurobert"), Family(segments=False)),
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
    """Return the family of a model; None if it has no row or is not a class of transformers."""
    # Checkpoints of EuroBERT and Nomic bring code (--trust-remote-code) under the same model type.
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
    """Return the depth of a base model's parameter: 0 embeddings, n the n-th layer, None above."""
    for (kind, prefix), depth in _EXCEPTIONS.items():
        if kind == model_type and parameter_name.startswith(prefix + "."):
            return depth
    if _EMBEDDINGS.match(parameter_name):
        return 0
    layer = _LAYER.match(parameter_name)
    return int(layer["number"]) + 1 if layer else None
