"""Model families: the features of their modeling code, and the depth of each weight."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Family:
    """The properties of a model type that the ``Encoder`` needs."""

    packing: Literal["interface", "deberta", "mpnet"] | None = None
    """Packed rows go through transformers' attention ``"interface"``, or through the layers as
    ``models.deberta`` or ``models.mpnet`` run them. None: padded rows."""
    positions: Literal["from zero", "after padding", "from two"] | None = "from zero"
    """The first position id: 0, the padding id plus 1, or 2; None leaves it to the model."""
    token_types: bool = True
    """Whether it takes token type ids."""
    half_precision: bool = True
    """Whether its code runs in half precision."""
    reads_padding: str = ""
    """The part of the model that reads padding; its rows have sequences of equal length alone."""
    setting: tuple[str, Any] | None = None
    """A setting of the configuration and the value that it must have."""


_PACKED = Family(packing="interface")
_AFTER_PADDING = Family(positions="after padding")
ROBERTA = (
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "data2vec-text",
    "roberta-prelayernorm",
)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        (
            "bert",
            "electra",
            "albert",
            "ernie",
            "gte",
            "nomic_bert",
            "jina_embeddings_v3",
            "roc_bert",
        ),
        _PACKED,
    ),
    **dict.fromkeys(ROBERTA, replace(_PACKED, positions="after padding")),
    **dict.fromkeys(
        ("distilbert", "modernbert", "eurobert", "neomme", "ultrabert"),
        replace(_PACKED, token_types=False),
    ),
    # DeBERTa (not v2) masks with the least float32, which bfloat16 cannot hold.
    "deberta": Family(half_precision=False),
    "deberta-v2": Family(packing="deberta"),
    **dict.fromkeys(("layoutlm", "megatron-bert", "rembert", "squeezebert"), Family()),
    **dict.fromkeys(("longformer", "luke"), _AFTER_PADDING),
    "big_bird": Family(setting=("attention_type", "original_full")),
    "convbert": Family(reads_padding="convolution"),
    "esm": replace(_AFTER_PADDING, token_types=False),
    **dict.fromkeys(
        ("esmc", "flaubert", "openai_privacy_filter", "xlm"), Family(token_types=False)
    ),
    # torch has no Fourier transform in bfloat16.
    "fnet": Family(reads_padding="Fourier transform", half_precision=False),
    "ibert": replace(_AFTER_PADDING, setting=("quant_mode", False)),
    "mobilebert": Family(reads_padding="embedding, which includes both neighbors of a token"),
    "mpnet": Family(packing="mpnet", positions="from two", token_types=False),
    "roformer": Family(positions=None),
    # The adapters of XMOD write half precision into single precision.
    "xmod": replace(_AFTER_PADDING, half_precision=False),
    "xlnet": Family(positions=None, reads_padding="classifier, which reads the last token"),
    "yoso": Family(
        positions=None, reads_padding="attention mask", setting=("use_expectation", True)
    ),
}
"""Model types (``config.model_type``) with a parity test."""

_PAGES = "reads the positions of words on a page, or its images"
REFUSED: dict[str, str] = {
    **dict.fromkeys(("bros", "layoutlmv2", "layoutlmv3", "lilt", "markuplm"), _PAGES),
    **dict.fromkeys(("modernvbert", "ultravbert"), "reads images"),
    "canine": "reads characters, not subwords",
    "funnel": "pools neighboring tokens, with padding",
    "mra": "computes no attention without a CUDA kernel of its own",
    "nystromformer": "averages over padding, and over segments of a fixed number of tokens",
    "perceiver": "reads bytes, and has no hidden state for each of them",
    "qwen3_asr": "reads speech",
    "reformer": "trains on rows of one fixed length alone",
    "tapas": "reads tables",
}
"""Model types that cannot be fine-tuned here, and why."""


def family_of(model: Any) -> Family | None:
    """The family of a model; None if it has no row or is not a class of transformers."""
    # Checkpoints of EuroBERT and Nomic bring code under the same model type (--trust-remote-code).
    is_library_class = type(model).__module__.startswith("transformers.")
    return FAMILIES.get(model.config.model_type) if is_library_class else None


def first_position(config: Any, family: Family | None) -> int:
    """The position id of a sequence's first token."""
    positions = None if family is None else family.positions
    if positions == "after padding":
        return (config.pad_token_id or 0) + 1
    return 2 if positions == "from two" else 0


def position_limit(config: Any, family: Family | None) -> int | None:
    """The longest sequence in tokens that a model has positions for; None for any."""
    limit = getattr(config, "max_position_embeddings", None)
    return limit - first_position(config, family) if limit and limit > 0 else None


_EMBEDDINGS = re.compile(
    r"(((word|position|lang|mask)_)?emb(eddings?)?(_project)?|embed_tokens|layer_norm_emb)\b"
    r"|encoder\.(embedding_hidden_mapping_in|rel_embeddings|relative_attention_bias)\."
)
_LAYER = re.compile(
    r"((encoder|transformer)\.)?"
    r"(layers?|albert_layer_groups|attentions|ffns|layer_norm[12])\.(?P<number>\d+)\."
)
_EXCEPTIONS = {
    ("deberta-v2", "encoder.LayerNorm"): 0,  # normalizes the relative position embeddings
    ("deberta-v2", "encoder.conv"): 1,  # a convolution beside the first layer (xlarge)
    ("deberta", "encoder.LayerNorm"): 0,
}


def depth_in_family(model_type: str, parameter_name: str) -> int | None:
    """The depth of a base model's parameter: 0 embeddings, n the n-th layer, None above."""
    for (family_type, prefix), depth in _EXCEPTIONS.items():
        if family_type == model_type and parameter_name.startswith(prefix + "."):
            return depth
    if _EMBEDDINGS.match(parameter_name):
        return 0
    layer = _LAYER.match(parameter_name)
    return int(layer["number"]) + 1 if layer else None
