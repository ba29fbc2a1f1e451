"""Fine-tune pretrained text encoders, from the command line or from Python.

The names below are imported on first use, so that ``import finetune`` costs nothing and loads no
torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finetune.batching import pack
    from finetune.config import ClassifyConfig, NerConfig, NliConfig, TagConfig, TrainConfig
    from finetune.data import Dataset, read_text, read_tokens
    from finetune.encoder import Encoder
    from finetune.heads.crf_tagging import CrfTagger
    from finetune.heads.sequence import SequenceClassifier
    from finetune.heads.span import SpanNer
    from finetune.heads.tagging import TokenTagger
    from finetune.launch import make_accelerator
    from finetune.prediction import predict
    from finetune.predictor import Predictor, load
    from finetune.tasks import load_task, saved_task
    from finetune.tokenization import PieceTokenizer
    from finetune.train import fit
    from finetune.trainer_metrics import compute_metrics
    from finetune.types import Batch, Encoding, LabelSet, Span, TextExample, TokenExample

_HOMES = {
    "finetune.batching": ("pack",),
    "finetune.config": ("ClassifyConfig", "NerConfig", "NliConfig", "TagConfig", "TrainConfig"),
    "finetune.data": ("Dataset", "read_text", "read_tokens"),
    "finetune.encoder": ("Encoder",),
    "finetune.heads.crf_tagging": ("CrfTagger",),
    "finetune.heads.sequence": ("SequenceClassifier",),
    "finetune.heads.span": ("SpanNer",),
    "finetune.heads.tagging": ("TokenTagger",),
    "finetune.launch": ("make_accelerator",),
    "finetune.prediction": ("predict",),
    "finetune.predictor": ("Predictor", "load"),
    "finetune.tasks": ("load_task", "saved_task"),
    "finetune.tokenization": ("PieceTokenizer",),
    "finetune.train": ("fit",),
    "finetune.trainer_metrics": ("compute_metrics",),
    "finetune.types": ("Batch", "Encoding", "LabelSet", "Span", "TextExample", "TokenExample"),
}
"""The module that each public name lives in."""

__all__ = [
    "Batch",
    "ClassifyConfig",
    "CrfTagger",
    "Dataset",
    "Encoder",
    "Encoding",
    "LabelSet",
    "NerConfig",
    "NliConfig",
    "PieceTokenizer",
    "Predictor",
    "SequenceClassifier",
    "Span",
    "SpanNer",
    "TagConfig",
    "TextExample",
    "TokenExample",
    "TokenTagger",
    "TrainConfig",
    "__version__",
    "compute_metrics",
    "fit",
    "load",
    "load_task",
    "make_accelerator",
    "pack",
    "predict",
    "read_text",
    "read_tokens",
    "saved_task",
]

_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("finetune")
    elif name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module 'finetune' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
