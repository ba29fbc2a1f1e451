"""Settings of every test: no network, one thread."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["FINETUNE_CACHE"] = "off"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# One thread: models here are tiny, and threads that wait for each other on a busy machine made
# the contract tests 10 times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a device that is not there."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def norms_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """EuroBERT's norms, which round to float32, computed in the type of their input."""
    from transformers.models.eurobert.modeling_eurobert import EuroBertRMSNorm

    def forward(self: EuroBertRMSNorm, hidden: torch.Tensor) -> torch.Tensor:
        size = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * hidden * torch.rsqrt(size + self.variance_epsilon)

    monkeypatch.setattr(EuroBertRMSNorm, "forward", forward)
