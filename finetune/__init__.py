"""Fine-tune pretrained text encoders, from the command line or from Python.

The folders of the package are rooms, which import only earlier ones (``config``, ``runtime``,
``data``, ``evaluation``, ``models``, ``preprocessing``, ``tasks``, ``inference``, ``training``,
``reporting``, ``cli``), and wings: subjects that the rooms do not import. docs/development.md walks
through them.

The names below are imported on first use, so that ``import finetune`` costs nothing and loads no
torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from finetune.api import (
        DistilledRun,
        FinishedSearch,
        TrainedRun,
        distill,
        search,
        train,
    )
    from finetune.config.tasks import (
        ChoiceConfig,
        ClassifyConfig,
        NerConfig,
        NliConfig,
        QAConfig,
        RelationsConfig,
        TagConfig,
        TrainConfig,
    )
    from finetune.data import Dataset, read_text, read_tokens
    from finetune.embeddings.settings import SentenceConfig
    from finetune.embeddings.vectors import Standardizer
    from finetune.evaluation.custom_metrics import CustomMetric
    from finetune.evaluation.hf_trainer import compute_metrics
    from finetune.inference.embed import Embedder, Embedding
    from finetune.inference.loop import predict
    from finetune.inference.predictor import BatchPredictor, Predictor, load
    from finetune.models.encoder import Encoder
    from finetune.models.heads.crf import CrfTagger
    from finetune.models.heads.masked_lm import MaskedLanguageModel
    from finetune.models.heads.pretrained import (
        ChoiceScorer,
        QuestionAnswerer,
        SequenceClassifier,
        TokenClassifier,
    )
    from finetune.models.heads.relation_classifier import RelationClassifier
    from finetune.models.heads.sentence_encoder import SentenceEncoder
    from finetune.models.heads.span_classifier import SpanClassifier
    from finetune.preprocessing.batching import pack
    from finetune.preprocessing.tokenizer import SubwordTokenizer
    from finetune.pretraining.settings import PretrainConfig
    from finetune.runtime.launch import make_accelerator
    from finetune.tasks import load_task, saved_task
    from finetune.training.callbacks import Callback, EvaluationEvent, SaveEvent, StepEvent
    from finetune.training.lesson import Distillation
    from finetune.training.trainer import FitResult, fit
    from finetune.types import (
        Answer,
        AnswerPrediction,
        Batch,
        ChoicePrediction,
        ChoiceQuestion,
        Encoding,
        LabelSet,
        MaskedPrediction,
        Question,
        Relation,
        RelationPrediction,
        SentencePrediction,
        Span,
        SpanPrediction,
        TextExample,
        TextPrediction,
        TokenExample,
        TokenPrediction,
        UserError,
    )

_HOMES = {
    "api": "DistilledRun FinishedSearch TrainedRun distill search train",
    "config.tasks": "ChoiceConfig ClassifyConfig NerConfig NliConfig QAConfig RelationsConfig "
    "TagConfig "
    "TrainConfig",
    "data": "Dataset read_text read_tokens",
    "evaluation.custom_metrics": "CustomMetric",
    "embeddings.settings": "SentenceConfig",
    "embeddings.vectors": "Standardizer",
    "evaluation.hf_trainer": "compute_metrics",
    "inference.embed": "Embedder Embedding",
    "inference.loop": "predict",
    "inference.predictor": "BatchPredictor Predictor load",
    "models.encoder": "Encoder",
    "models.heads.crf": "CrfTagger",
    "models.heads.masked_lm": "MaskedLanguageModel",
    "models.heads.pretrained": "ChoiceScorer QuestionAnswerer SequenceClassifier TokenClassifier",
    "models.heads.relation_classifier": "RelationClassifier",
    "models.heads.sentence_encoder": "SentenceEncoder",
    "models.heads.span_classifier": "SpanClassifier",
    "preprocessing.batching": "pack",
    "preprocessing.tokenizer": "SubwordTokenizer",
    "pretraining.settings": "PretrainConfig",
    "runtime.launch": "make_accelerator",
    "tasks": "load_task saved_task",
    "training.callbacks": "Callback EvaluationEvent SaveEvent StepEvent",
    "training.lesson": "Distillation",
    "training.trainer": "FitResult fit",
    "types": "Answer AnswerPrediction Batch ChoicePrediction ChoiceQuestion Encoding LabelSet "
    "MaskedPrediction Question Relation "
    "RelationPrediction SentencePrediction Span SpanPrediction TextExample TextPrediction "
    "TokenExample TokenPrediction UserError",
}
"""The public names of each module."""
_MODULES = {name: f"finetune.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Answer",
    "AnswerPrediction",
    "Batch",
    "BatchPredictor",
    "Callback",
    "ChoiceConfig",
    "ChoicePrediction",
    "ChoiceQuestion",
    "ChoiceScorer",
    "ClassifyConfig",
    "CrfTagger",
    "CustomMetric",
    "Dataset",
    "Distillation",
    "DistilledRun",
    "Embedder",
    "Embedding",
    "Encoder",
    "Encoding",
    "EvaluationEvent",
    "FinishedSearch",
    "FitResult",
    "LabelSet",
    "MaskedLanguageModel",
    "MaskedPrediction",
    "NerConfig",
    "NliConfig",
    "Predictor",
    "PretrainConfig",
    "QAConfig",
    "Question",
    "QuestionAnswerer",
    "Relation",
    "RelationClassifier",
    "RelationPrediction",
    "RelationsConfig",
    "SaveEvent",
    "SentenceConfig",
    "SentenceEncoder",
    "SentencePrediction",
    "SequenceClassifier",
    "Span",
    "SpanClassifier",
    "SpanPrediction",
    "Standardizer",
    "StepEvent",
    "SubwordTokenizer",
    "TagConfig",
    "TextExample",
    "TextPrediction",
    "TokenClassifier",
    "TokenExample",
    "TokenPrediction",
    "TrainConfig",
    "TrainedRun",
    "UserError",
    "__version__",
    "compute_metrics",
    "distill",
    "fit",
    "load",
    "load_task",
    "make_accelerator",
    "pack",
    "predict",
    "read_text",
    "read_tokens",
    "saved_task",
    "search",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'finetune' has no attribute {name!r}")
    value: Any = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
