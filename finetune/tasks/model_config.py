"""The task of a model without ``finetune.json``, read from its ``config.json``.

A model that ``transformers.Trainer`` or ``save_pretrained`` has saved, or a classifier or masked
language model of the hub, tells its architecture and labels there. Settings of training are the
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig

from finetune.config.tasks import CONFIGS
from finetune.data.json_files import read_object
from finetune.data.labels import NLI_LABELS, canonical_name
from finetune.data.tag_schemes import detect_scheme
from finetune.models.heads.base import labels_of
from finetune.models.heads.crf import CrfTaggerConfig
from finetune.models.heads.task_models import problem_of
from finetune.models.loading import library_errors
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.tasks.definition import sequence_limit
from finetune.types import LabelSet, UserError

if TYPE_CHECKING:
    from finetune.tasks.base import Task

_TASKS: Mapping[str, str] = {
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "qa",
    "ForQuestionAnsweringSimple": "qa",
    "ForMultipleChoice": "choice",
    "ForMaskedLM": "pretrain",
    "BertForPreTraining": "pretrain",
    "AlbertForPreTraining": "pretrain",
    "CrfTagger": "tag",
    "SpanClassifier": "ner",
}
"""The task by the end of the name of an architecture."""


def _derived(task: str, config: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    if task == "classify":
        nli = {canonical_name(label) for label in labels_of(config)} == {*NLI_LABELS}
        fields = {"problem": problem_of(config), "pairs": True if nli else None}
        return "nli" if nli else "classify", {}, fields
    if task == "tag":
        crf = isinstance(config, CrfTaggerConfig)
        scheme = config.scheme if crf else detect_scheme([[tag] for tag in labels_of(config)])
        return "tag", {"crf": crf}, {"scheme": scheme, "source": scheme}
    if task == "ner":
        names = ("max_width", "decoding", "thresholds")
        return "ner", {}, {name: getattr(config, name) for name in names}
    if task == "qa":
        return "qa", {}, {"pairs": True, "unanswerable": True}
    return task, {}, {"pairs": False} if task == "pretrain" else {}


def architecture(folder: Path) -> str:
    """The first architecture in the ``config.json`` of a folder; empty if there is none."""
    path = folder / "config.json"
    if not path.is_file():
        return ""
    names = read_object(path, {"architectures": list[str] | None}).get("architectures")
    return names[0] if names else ""


def has_trained_head(folder: Path) -> bool:
    """Whether a folder has a model with a head that tells its task."""
    return architecture(folder).endswith(tuple(_TASKS))


def task_of_config(folder: Path) -> Task:
    """Make the task of a model with a trained head.

    Raises:
        UserError: The folder has no tokenizer, or its files cannot be read.
    """
    from finetune.tasks import task_class

    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise UserError(
            f"{folder}: a model without a tokenizer: save the tokenizer there too "
            "(tokenizer.save_pretrained; Trainer does with processing_class=tokenizer)."
        )
    path = folder / "config.json"
    with library_errors(str(folder), folder, path.name):
        config = AutoConfig.for_model(**read_object(path))
    name = architecture(folder)
    family = next(task for end, task in _TASKS.items() if name.endswith(end))
    task_name, changes, fields = _derived(family, config)
    task, settings = task_class(task_name), CONFIGS[task_name](model=str(folder), **changes)
    tokenizer = SubwordTokenizer.saved(folder, words=settings.description.words)
    state = task.state_class(
        config=settings,
        labels=labels_of(config) if settings.description.labels else LabelSet(()),
        max_length=sequence_limit(settings, tokenizer, None),
        **fields,
    )
    return task(state, tokenizer)
