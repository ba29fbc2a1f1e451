"""Losses over classes: cross entropy, focal and logit-adjusted, with weights of classes.

Focal: Lin, Goyal, Girshick, He & Dollár 2017, "Focal Loss for Dense Object Detection". Logit
adjustment: Menon et al. 2021, "Long-Tail Learning via Logit Adjustment". Label smoothing: Szegedy,
Vanhoucke, Ioffe, Shlens & Wojna 2016, "Rethinking the Inception Architecture for Computer Vision".

Shapes: N rows, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
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


def class_shift(
    config: LabelConfig,
    labels: Iterable[str],
    counts: Mapping[str, int],
    total: int,
    independent: bool = False,
) -> tuple[float, ...] | None:
    """Compute what logit adjustment adds to the logits [C]; None without it.

    That is tau log pi for the fraction pi of the ``total`` with each label, and tau log(pi / (1 -
    pi)) of ``independent`` labels. The decision on the logits alone then minimizes the mean error
    of the classes (Menon et al., equation 10). Labels without examples get 0, so that the loss does
    not raise them. A label of all examples is taken to be missing in half an example.
    """
    if (tau := config.loss_number("logit-adjusted")) is None:
        return None
    pi = np.array([min(counts.get(name, 0), total - 0.5) / total or 1.0 for name in labels])
    shift: list[float] = (tau * np.log(pi / (1 - pi) if independent else pi)).tolist()
    return tuple(shift)


def loss_targets(
    weights: Sequence[float] | None, shift: Sequence[float] | None = None
) -> dict[str, Tensor]:
    """Make the inputs ``class_weight`` and ``shift`` [C] of the losses, to send to the device with
    gold."""
    inputs = {"class_weight": weights, "shift": shift}
    return {
        name: torch.tensor(values, dtype=torch.float32)
        for name, values in inputs.items()
        if values is not None
    }


def class_losses(
    config: LabelConfig, logits: Tensor, target: Tensor, loss_inputs: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute weighted losses and class weights of rows: logits [N, C], target [N] -> [N], [N].

    Rows whose target is ``IGNORED`` have neither. ``loss_inputs`` are the ``loss_targets``. With
    label smoothing e, gold has the probability 1 - e + e / C and each other class e / C; the weight
    is the weight of gold.
    """
    losses = functional.cross_entropy(
        _shifted(logits, loss_inputs),
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
    losses, target = -_shifted(logits, loss_inputs).log_softmax(-1), target.to(logits.dtype)
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
    logits, target = _shifted(logits, loss_inputs), target.to(logits.dtype)
    if smoothing := config.label_smoothing:
        target = target * (1 - smoothing) + smoothing / 2
    if (weights := loss_inputs.get("class_weight")) is not None:
        weights = weights.to(logits.dtype)
    focal = config.loss_number("focal") is not None
    losses = functional.binary_cross_entropy_with_logits(
        logits, target, pos_weight=None if focal else weights, reduction="none"
    )
    if focal:  # whose factor depends on the loss without the weight
        losses = _focal(config, losses)
        losses = losses if weights is None else losses * torch.where(target > 0, weights, 1.0)
    return losses


def _shifted(logits: Tensor, loss_inputs: Mapping[str, Tensor]) -> Tensor:
    shift = loss_inputs.get("shift")
    return logits if shift is None else logits + shift.to(logits.dtype)


def _focal(config: LabelConfig, losses: Tensor) -> Tensor:
    if (gamma := config.loss_number("focal")) is None:
        return losses
    # the power has no gradient at 0 for gamma < 1
    return (-torch.expm1(-losses)).clamp_min(1e-12) ** gamma * losses
