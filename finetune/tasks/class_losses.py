"""Losses over classes: cross entropy and focal loss, with weights of classes.

Focal: Lin, Goyal, Girshick, He & Dollár 2017, "Focal Loss for Dense Object Detection". Label
smoothing: Szegedy, Vanhoucke, Ioffe, Shlens & Wojna 2016, "Rethinking the Inception Architecture
for Computer Vision".

Shapes: N rows, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from finetune.config.tasks import LabelConfig
from finetune.config.values import numbers_by_label
from finetune.types import IGNORED


def class_weights(
    setting: str, labels: Sequence[str], counts: Mapping[str, int], num_rows: int, problem: str
) -> tuple[float, ...] | None:
    """Compute the class weights: none, inverse frequency (``auto``), or given as `a=1,b=2`.

    ``auto`` is n / (C n_c), so that every class weighs the same in total (King & Zeng, 2001, as
    scikit-learn's ``balanced``); with several labels it is negatives / positives of each label.
    """
    if setting == "none":
        return None
    if setting == "auto" and problem == "multi":
        return tuple(max(num_rows - counts[name], 0.5) / counts[name] for name in labels)
    if setting == "auto":
        per_class = sum(counts.values()) / sum(counts[name] > 0 for name in labels)
        return tuple(per_class / counts[name] if counts[name] else 1.0 for name in labels)
    weights = numbers_by_label("--class-weights", setting, labels)
    return tuple(weights.get(name, 1.0) for name in labels)


def loss_targets(weights: Sequence[float] | None) -> dict[str, Tensor]:
    """Make the input ``class_weight`` [C] of the losses, to send to the device with gold."""
    return {} if weights is None else {"class_weight": torch.tensor(weights, dtype=torch.float32)}


def class_losses(
    config: LabelConfig, logits: Tensor, target: Tensor, loss_inputs: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute weighted losses and class weights of rows: logits [N, C], target [N] -> [N], [N].

    Rows whose target is ``IGNORED`` have neither. ``loss_inputs`` are the ``loss_targets``. With
    label smoothing e, gold has the probability 1 - e + e / C and each other class e / C; the weight
    is the weight of gold.
    """
    losses = functional.cross_entropy(
        logits,
        target,
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=config.label_smoothing,
    )
    losses, known = _focal(config, losses), target != IGNORED
    if (weights := loss_inputs.get("class_weight")) is None:
        return losses, known.to(logits.dtype)
    weights = weights.to(logits.dtype).index_select(0, target.masked_fill(~known, 0)) * known
    return losses * weights, weights


def vote_losses(
    config: LabelConfig, logits: Tensor, target: Tensor, loss_inputs: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute weighted losses and class weights of rows with votes: [N, C], [N, C] -> [N], [N].

    The loss of a row is the mean of the losses of its votes, each as ``class_losses`` has it for a
    label. Without a setting this is cross entropy against the ``target``, the label distributions
    (Peterson, Battleday, Griffiths & Russakovsky 2019, "Human uncertainty makes classification more
    robust").
    """
    losses, target = -logits.log_softmax(-1), target.to(logits.dtype)
    if smoothing := config.label_smoothing:
        losses = losses * (1 - smoothing) + losses.mean(-1, keepdim=True) * smoothing
    if (weights := loss_inputs.get("class_weight")) is not None:
        target = target * weights.to(logits.dtype)
    return (_focal(config, losses) * target).sum(-1), target.sum(-1)


def label_losses(
    config: LabelConfig, logits: Tensor, target: Tensor, loss_inputs: Mapping[str, Tensor]
) -> Tensor:
    """Compute the weighted losses of independent labels: [N, C], targets [N, C] -> [N, C].

    The weight of a class applies to examples with the label. ``loss_inputs`` are ``loss_targets``.
    Targets are 0 and 1, or probabilities. Label smoothing e turns them into e / 2 and 1 - e / 2.
    """
    target = target.to(logits.dtype)
    if smoothing := config.label_smoothing:
        target = target * (1 - smoothing) + smoothing / 2
    if (weights := loss_inputs.get("class_weight")) is not None:
        weights = weights.to(logits.dtype)
    focal = config.focal_gamma is not None
    losses = functional.binary_cross_entropy_with_logits(
        logits, target, pos_weight=None if focal else weights, reduction="none"
    )
    if focal:  # whose factor depends on the loss without the weight
        losses = _focal(config, losses)
        losses = losses if weights is None else losses * torch.where(target > 0, weights, 1.0)
    return losses


def _focal(config: LabelConfig, losses: Tensor) -> Tensor:
    if config.focal_gamma is None:
        return losses
    # the power has no gradient at 0 for gamma < 1
    return (-torch.expm1(-losses)).clamp_min(1e-12) ** config.focal_gamma * losses
