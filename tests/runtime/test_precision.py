"""The precision of a run, and the scale of its loss in float16."""

from __future__ import annotations

import pytest
import torch

from finetune.config.tasks import ClassifyConfig, NerConfig
from finetune.runtime.precision import autocast, loss_scaler
from finetune.types import UserError

CPU = torch.device("cpu")


def test_settings_are_checked_in_python_too():
    for settings, message in (
        ({"precision": "fp8"}, "--precision must be one of auto, bf16, fp16, fp32, not 'fp8'"),
        ({"batching": "pack"}, "--batching must be one of auto, packed, padded, not 'pack'"),
        ({"precision": "fp16", "sparse_embeddings": "on"}, "fp16, which skips steps"),
    ):
        with pytest.raises(UserError, match=message):
            ClassifyConfig(**settings)
    with pytest.raises(UserError, match="must be one of auto, flat, nested, overlapping"):
        NerConfig(decoding="greedy")
    with pytest.raises(UserError, match="precision 'half': legal are bf16, fp16, fp32"):
        autocast("half", CPU)


@pytest.mark.parametrize(("precision", "kind"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_matrix_products_have_the_type(precision: str, kind: torch.dtype):
    with autocast(precision, CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == kind
    with autocast("fp32", CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_only_float16_scales_the_loss():
    assert loss_scaler("fp16", CPU).scale(torch.ones(())).item() == 1024
    for precision in ("bf16", "fp32"):
        scaler = loss_scaler(precision, CPU)
        assert scaler.scale(torch.ones(())).item() == 1 and scaler.state_dict() == {}
