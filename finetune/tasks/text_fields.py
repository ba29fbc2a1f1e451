"""The fields of the state of a task that labels texts, derived from its training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

from finetune.config.tasks import TextConfig
from finetune.data import Dataset
from finetune.data.labels import voted_names
from finetune.data.text_labels import check_text_settings, label_order, names_of, problem_of
from finetune.evaluation.positive import positive_label
from finetune.tasks.class_losses import class_frequencies, class_weights
from finetune.types import LabelSet


def derive_texts(
    config: TextConfig, data: Dataset, order: Callable[..., list[str]] | None = None
) -> dict[str, Any]:
    """Return the kind of problem, the labels in a fixed order, and the class weights."""
    problem = problem_of(config, data)
    check_text_settings(config, problem, data)
    train = data.splits["train"]
    kinds = {pair is not None for pair in train.column("pair")}
    derived = {"problem": problem, "pairs": kinds.pop() if len(kinds) == 1 else None}
    if problem == "regression":
        return {**derived, "labels": LabelSet(["score"])}
    counts = Counter(chain.from_iterable(map(names_of, train.column("label"))))
    soft = config.votes == "soft" and any(len(votes or ()) > 1 for votes in train.column("votes"))
    names = {*counts} | (voted_names([train]) if soft else set())
    labels = LabelSet((order or label_order)(names, data.label_order))
    weights = class_weights(config.class_weights, list(labels), counts, len(train), problem)
    positive = config.positive
    if problem == "single" and len(labels) == 2:
        positive = positive_label(labels, counts, positive)
    return {
        **derived,
        "labels": labels,
        "class_weights": weights,
        "class_frequencies": class_frequencies(config, labels, counts, len(train)),
        "positive": positive,
        "votes": soft,
    }
