"""Models of transformers with a task head: loading, labels, and the rows of their classifiers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from finetune.models.loading import load_config, load_weights
from finetune.types import LabelSet, UserError

Problem = Literal["single", "multi", "regression"]

PROBLEM_TYPES: dict[Problem, str] = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
}
"""The name of each problem in transformers (``config.problem_type``)."""

_DROPOUT_SETTINGS = {
    "albert": "classifier_dropout_prob",
    "distilbert": "seq_classif_dropout",
    "deberta": "cls_dropout",
    "deberta-v2": "cls_dropout",
}
"""The setting of the dropout before the classifier, if it is not ``classifier_dropout``."""


def problem_of(config: Any) -> Problem:
    """The problem that a model of sequences with this configuration solves."""
    if config.problem_type is None:
        return "regression" if config.num_labels == 1 else "single"
    return next(name for name, known in PROBLEM_TYPES.items() if known == config.problem_type)


def require_labels(labels: Sequence[str] | None, options: Mapping[str, Any]) -> None:
    """Raise ``UserError`` for a new head without labels, or with their number alone."""
    if "num_labels" in options:  # as in transformers
        raise UserError('num_labels: name the labels instead, such as labels=["no", "yes"].')
    if labels is not None and not LabelSet(labels):
        raise UserError("a head needs at least one label")


def load_task_model(
    auto_class: Any,
    name: str,
    *,
    labels: Sequence[str] | None,
    problem: Problem | None = None,
    dropout: float | None = None,
    **options: Any,
) -> Any:
    """Load a Hugging Face model with a task head, in float32.

    Args:
        auto_class: A class such as ``AutoModelForSequenceClassification``.
        name: As in ``load_config``.
        labels: The labels of a head to train. A head that the checkpoint lacks, or has for another
            number of labels, is new. None loads a trained head with its labels and problem.
        problem: The problem of a head to train, a key of ``PROBLEM_TYPES``.
        dropout: Dropout before the classifier; None leaves the checkpoint's.
        options: ``revision`` and ``trust_remote_code``, as in ``load_config``.

    Raises:
        UserError: If there is no such model or setting, or the weights do not match.
    """
    require_labels(labels, options)
    if problem == "regression" and labels is not None and len(labels) != 1:
        raise UserError(f"regression has one label, the name of the number, not {len(labels)}")
    config = load_config(name, **options)
    require_class(auto_class, name, config)
    old_labels = dict(config.id2label)
    if labels is not None:
        config.update(label_settings(labels))
        config.problem_type = None if problem is None else PROBLEM_TYPES[problem]
    if dropout is not None:
        setting = _DROPOUT_SETTINGS.get(config.model_type, "classifier_dropout")
        if not hasattr(config, setting) and setting != "cls_dropout":
            raise UserError(f"classifier_dropout: {config.model_type} models have no such dropout")
        setattr(config, setting, dropout)
    model = load_weights(auto_class, name, config, new_head=labels is not None, **options)
    _reorder_classes(model, old_labels)
    return model


def require_class(auto_class: Any, name: str, config: Any) -> None:
    """Raise ``UserError`` unless transformers has a class with this head for a model."""
    if type(config) not in auto_class._model_mapping and not getattr(config, "auto_map", None):
        head = auto_class.__name__.removeprefix("AutoModelFor")
        raise UserError(
            f"model {name!r}: transformers has no class for {head} of type {config.model_type!r}: "
            "use another model, or another task."
        )


def label_settings(labels: Sequence[str]) -> dict[str, Any]:
    """The labels of a head as settings of transformers."""
    names = dict(enumerate(LabelSet(labels)))
    return {"id2label": names, "label2id": {name: index for index, name in names.items()}}


def _reorder_classes(model: Any, old_labels: dict[int, str]) -> None:
    # a model of (contradiction, neutral, entailment) would else predict something else silently
    names = model.config.id2label
    old = [old_labels[index].lower() for index in range(len(old_labels))]
    new = [names[index].lower() for index in range(len(names))]
    if old == new or sorted(old) != sorted(new) or len(set(old)) != len(old):
        return
    copy_rows(model, copy.deepcopy(classifier_of(model)), [old.index(label) for label in new])


def classifier_of(model: Any) -> nn.Linear:
    """The layer with the classes of a model of transformers: the last of its size."""
    num_classes = len(model.config.id2label)
    return next(
        module
        for module in reversed(list(model.modules()))
        if isinstance(module, nn.Linear) and module.out_features == num_classes
    )


def copy_rows(model: Any, old: nn.Linear, rows: Sequence[int | None]) -> None:
    """Give the classifier of a model the old row of each class, and new ones in place of None."""
    classifier = classifier_of(model)
    drawn = nn.Linear(classifier.in_features, len(rows), classifier.bias is not None)
    model._init_weights(drawn)
    for name, weight in classifier.named_parameters():
        weight.data.copy_(with_rows(getattr(drawn, name), getattr(old, name), rows))


def with_rows(new: Tensor, old: Tensor, rows: Sequence[int | None]) -> Tensor:
    """``new`` rows, but the ``old`` row of each class that has one."""
    result = new.detach().clone()
    for index, row in enumerate(rows):
        if row is not None:
            result[index] = old.detach()[row]
    return result
