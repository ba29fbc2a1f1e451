"""Fine-tune pretrained text encoders, from the command line or from Python.

The names below are imported on first use, so that ``import finetune`` costs nothing and loads no
torch.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finetune.config.tasks import ClassifyConfig, NerConfig, NliConfig, TagConfig, TrainConfig
    from finetune.data import Dataset, read_text, read_tokens
    from finetune.evaluation.hf_trainer import compute_metrics
    from finetune.inference.loop import predict
    from finetune.inference.predictor import Predictor, load
    from finetune.models.encoder import Encoder
    from finetune.models.heads.crf_tagger import CrfTagger
    from finetune.models.heads.sequence_classification import SequenceClassifier
    from finetune.models.heads.span_ner import SpanNer
    from finetune.models.heads.token_classification import TokenTagger
    from finetune.preprocessing.batching import pack
    from finetune.preprocessing.tokenizer import SubwordTokenizer
    from finetune.runtime.launch import make_accelerator
    from finetune.tasks import load_task, saved_task
    from finetune.training.trainer import fit
    from finetune.types import (
        Batch,
        Encoding,
        LabelSet,
        Span,
        TextExample,
        TokenExample,
        UserError,
    )

_HOMES = {
    "finetune.preprocessing.batching": ("pack",),
    "finetune.config.tasks": (
        "ClassifyConfig",
        "NerConfig",
        "NliConfig",
        "TagConfig",
        "TrainConfig",
    ),
    "finetune.data": ("Dataset", "read_text", "read_tokens"),
    "finetune.models.encoder": ("Encoder",),
    "finetune.models.heads.crf_tagger": ("CrfTagger",),
    "finetune.models.heads.sequence_classification": ("SequenceClassifier",),
    "finetune.models.heads.span_ner": ("SpanNer",),
    "finetune.models.heads.token_classification": ("TokenTagger",),
    "finetune.runtime.launch": ("make_accelerator",),
    "finetune.inference.loop": ("predict",),
    "finetune.inference.predictor": ("Predictor", "load"),
    "finetune.tasks": ("load_task", "saved_task"),
    "finetune.preprocessing.tokenizer": ("SubwordTokenizer",),
    "finetune.training.trainer": ("fit",),
    "finetune.evaluation.hf_trainer": ("compute_metrics",),
    "finetune.types": (
        "Batch",
        "Encoding",
        "LabelSet",
        "Span",
        "TextExample",
        "TokenExample",
        "UserError",
    ),
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
    "Predictor",
    "SequenceClassifier",
    "Span",
    "SpanNer",
    "SubwordTokenizer",
    "TagConfig",
    "TextExample",
    "TokenExample",
    "TokenTagger",
    "TrainConfig",
    "UserError",
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
    if name == "PieceTokenizer":
        warnings.warn(
            "finetune.PieceTokenizer is deprecated and will be removed in the next release: use "
            "finetune.SubwordTokenizer.",
            DeprecationWarning,
            stacklevel=2,
        )
        return __getattr__("SubwordTokenizer")
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
