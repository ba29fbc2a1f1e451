"""A model with some of the layers of another: the usual start of a small student of distillation.

Sanh et al. (2019), "DistilBERT", take every second layer of the teacher.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from finetune.models.bilstm import BILSTM
from finetune.types import UserError


def spread_layers(number: int, total: int) -> list[int]:
    """``number`` evenly spread layers of ``total``, from 1; the last is always one of them.

    Layer k of a shallow model stands for the k-th of these layers of a deep model.

    >>> spread_layers(2, 6)
    [3, 6]
    """
    return [max(1, layer * total // number) for layer in range(1, number + 1)]


def with_layers(head: Any, layers: Sequence[int], load: Callable[[str], Any]) -> Any:
    """Make a model of some of the layers of another, whose embeddings and head it has.

    ``head`` is changed, and cannot be used afterwards. ``load`` loads the new model from a folder.

    Raises:
        UserError: The layers of the model cannot be told apart, or others depend on their number.
    """
    model = head.encoder.model
    config, total = model.config, head.encoder.num_layers
    if not 0 < len(layers) <= total:
        raise UserError(
            f"--layers must be from 1 to the {total} of the teacher, not {len(layers)}."
        )
    lists = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == total
    ]
    bilstm = getattr(config, BILSTM, False)
    if len(lists) != 1 or bilstm or head.encoder.top_depth - 1 != total:
        reason = "--bilstm" if bilstm else f"{config.model_type} models"
        raise UserError(
            f"--layers does not work with a teacher with {reason}: name a small model with --model."
        )
    parent, name, all_layers = lists[0]
    kept = nn.ModuleList(all_layers[number - 1] for number in layers)
    for part, module in all_layers[0].named_children():
        if isinstance(module, nn.Identity):  # ModernBERT normalizes embeddings before its layers
            setattr(kept[0], part, module)
    setattr(parent, name, kept)
    inside = (getattr(head.config, part, None) for part in ("encoder", "tagger"))
    for configuration in (config, head.config, *filter(None, inside)):
        values = configuration if isinstance(configuration, dict) else vars(configuration)
        if len(types := values.get("layer_types") or ()) == total:
            values["layer_types"] = [types[number - 1] for number in layers]
        for key in ("num_hidden_layers", "n_layers"):
            if values.get(key) == total:
                values[key] = len(layers)
    with tempfile.TemporaryDirectory(prefix="finetune-", ignore_cleanup_errors=True) as folder:
        head.save_pretrained(folder)
        return load(folder)
