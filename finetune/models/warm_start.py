"""Warm start (``--init-from``): begin with the encoder of a trained model, and its head if it fits.

Phang et al. (2018), "Sentence encoders on STILTs". A new model loads the encoder, and copies
the rows of its classifier whose labels have equal names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.config.tasks import TrainConfig
from finetune.data.json_files import read_object
from finetune.models.heads.crf import CrfTagger
from finetune.models.heads.pretrained import (
    ANSWER_ENDS,
    PretrainedHead,
    QuestionAnswerer,
    SequenceClassifier,
    TokenClassifier,
)
from finetune.models.heads.relation_classifier import RelationClassifier
from finetune.models.heads.sentence_encoder import SentenceEncoder, saved_labels
from finetune.models.heads.task_models import (
    PROBLEM_TYPES,
    Problem,
    classifier_of,
    copy_rows,
    with_rows,
)
from finetune.models.loading import (
    INNER_CONFIGS,
    config_content,
    is_hub_id,
    load_config,
    local_model,
    resolve_model,
)
from finetune.types import UserError

ReusableHead = type[PretrainedHead] | type[RelationClassifier] | type[SentenceEncoder]
LANGUAGE_MODELS = ("MaskedLM", "PreTraining", "LMHeadModel")
"""Ends of the names of architectures with a masked language model."""


@dataclass(frozen=True)
class WarmStart:
    """A trained model to begin with."""

    source: str  # folder or hub id of the model
    config: Any  # the Hugging Face configuration of its encoder
    custom_type: str | None  # its model type if in INNER_CONFIGS
    labels: tuple[str, ...]  # of the new task
    rows: tuple[int | None, ...] | None
    """The old class of each label, None for a new one; None if the whole head will be new."""
    head_class: ReusableHead | None
    note: str
    """One line on the reused parts."""

    def copy_head(self, head: Any) -> None:
        """Give a new head the rows of the labels that stay, where the old model has them."""
        if self.head_class in (RelationClassifier, SentenceEncoder):
            if self.rows is not None:
                rows = list(self.rows)
                old: Any
                if self.head_class is SentenceEncoder:
                    old = SentenceEncoder.from_pretrained(self.source, trained=True).classifier
                else:
                    old = RelationClassifier.from_pretrained(self.source).classifier
                    rows = [0, *(None if row is None else row + 1 for row in rows)]  # 0 is none
                for name, weight in head.classifier.named_parameters():
                    weight.data.copy_(with_rows(weight, getattr(old, name), rows))
        elif self.head_class is not None:
            model = getattr(head, "tagger", head).model
            if self.rows is None:  # the checkpoint may have a classifier of this size
                copy_rows(model, classifier_of(model), [None] * len(self.labels))
                return
            before: Any
            if self.custom_type is not None:
                before = CrfTagger.from_pretrained(self.source).tagger
            else:
                before = self.head_class.from_pretrained(self.source, labels=None)
            copy_rows(model, classifier_of(before.model), self.rows)


def find_warm_start(
    config: TrainConfig,
    reusable: ReusableHead | None,
    labels: Sequence[str],
    problem: Problem | None,
) -> WarmStart:
    """Find the model of ``config.init_from`` and the parts to reuse, from configurations alone.

    ``reusable`` is the class of heads that the task can take over.

    Raises:
        UserError: If there is no such model, or ``--model`` has another architecture.
    """
    name = str(config.init_from)
    is_local = Path(name).exists()
    try:
        if not is_local and not is_hub_id(name):
            raise UserError("no such folder: name a run folder, saved model or hub id.")
        source = resolve_model(name) if is_local else name
        folder = local_model(source, weights=False)
        content = config_content(folder)
        if is_local and "model_type" not in content:
            raise UserError(
                "there is no model in it or in its best/: name the folder of a finished run, a "
                "saved model or a hub id."
            )
        custom_type = content.get("model_type")
        custom_type = custom_type if custom_type in INNER_CONFIGS else None
        inner = load_config(source)
    except UserError as error:
        raise UserError(f"--init-from {name}: {error}") from error
    _check_model(config, inner, folder)
    if getattr(inner, "bilstm", False) and not config.bilstm:
        raise UserError(f"--init-from {name} was trained with --bilstm: add --bilstm.")
    is_custom = config.description.custom_head(vars(config))
    head_class = None if reusable is SequenceClassifier and is_custom else reusable
    if head_class is RelationClassifier and custom_type == "relation-classifier":
        old = [content["id2label"][str(index)] for index in range(len(content["id2label"]))]
    elif head_class is SentenceEncoder:
        old = saved_labels(local_model(source)) if labels else []
    else:
        old = _reusable_labels(inner, custom_type, head_class, problem)
    old_rows = {label.lower(): row for row, label in enumerate(old)}
    rows: tuple[int | None, ...] | None = tuple(old_rows.get(label.lower()) for label in labels)
    if len(old_rows) < len(old) or not any(label.lower() in old_rows for label in labels):
        rows = None
    commit = getattr(inner, "_commit_hash", None)
    shown = f"{name} (commit {commit})" if commit else name
    architectures = getattr(inner, "architectures", None) or ()
    has_language_model = any(name.endswith(LANGUAGE_MODELS) for name in architectures)
    if config.trains_language_model and custom_type is None and has_language_model:
        note = f"encoder and masked language model from {shown}"
    elif rows is None:
        has_head = config.description.library == "transformers" or labels
        is_new = has_head or config.trains_language_model
        note = f"encoder from {shown}{'; new head' if is_new else ''}"
    else:
        pairs = list(zip(labels, rows, strict=True))
        kept = ", ".join(label for label, row in pairs if row is not None)
        new = ", ".join(label for label, row in pairs if row is None)
        note = f"encoder and head from {shown}; classes by name: {kept}{new and f'; new: {new}'}"
    return WarmStart(source, inner, custom_type, tuple(labels), rows, head_class, note)


def _check_model(config: TrainConfig, inner: Any, source: Path) -> None:
    state_file = source / "finetune.json"
    content = read_object(state_file) if state_file.is_file() else {}
    origin = content.get("config", {}).get("model")
    if config.model is None or config.model in (origin, config.init_from):
        return
    requested = load_config(config.model)
    for name in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size"):
        value, inner_value = getattr(requested, name, None), getattr(inner, name, None)
        if value != inner_value:
            raise UserError(
                f"--model {config.model} has {name} {value}, but --init-from {config.init_from} "
                f"has {inner_value}: leave --model out."
            )


def _reusable_labels(
    inner: Any, custom_type: str | None, head_class: ReusableHead | None, problem: Problem | None
) -> list[str]:
    if head_class is None or not issubclass(head_class, PretrainedHead):
        return []
    labels = [inner.id2label[index] for index in range(len(inner.id2label))]
    architectures = inner.architectures or ()
    if head_class is TokenClassifier and custom_type == "crf-tagger":
        return labels
    ending = head_class.auto_class.__name__.removeprefix("AutoModel")
    if not any(ending in name for name in architectures):
        return []
    if head_class is QuestionAnswerer:  # whose labels other libraries do not name
        return list(ANSWER_ENDS)
    if head_class is not SequenceClassifier:
        return labels
    default = PROBLEM_TYPES["regression" if len(labels) == 1 else "single"]
    same = (inner.problem_type or default) == PROBLEM_TYPES[problem or "single"]
    return labels if same else []
