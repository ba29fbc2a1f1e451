"""Groups of options that the commands of the wing share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from finetune.config.options import COMMON


@dataclass(frozen=True, kw_only=True)
class LayersOption:
    """The option of the commands that choose layers."""

    layers: Annotated[str, COMMON] = "last"
    """`last`, `last4`, `all`, or numbers separated by commas. 0 is the output of the embeddings, 1
    the first layer, -1 the last."""


@dataclass(frozen=True, kw_only=True)
class VectorOptions(LayersOption):
    """Options of the commands that make one vector of texts or words."""

    combine: Annotated[Literal["mean", "sum", "none"], COMMON] = "mean"
    """Mean or sum of the layers; none keeps each of them."""
    pooling: Annotated[Literal["mean", "first", "max"] | None, COMMON] = None
    """Pooling of a word over its subwords, or of a text over its tokens. `first` is the CLS token
    of a text. Unset is the mean; texts and a run of `sentence` have the vector that was trained."""


@dataclass(frozen=True, kw_only=True)
class WordPoolingOption:
    """The option of the commands that read vectors of words."""

    pooling: Literal["mean", "first", "max"] = "mean"
    """Pooling of a word over its subwords."""
