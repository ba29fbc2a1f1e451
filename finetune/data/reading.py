"""Data as the settings of a task read them."""

from __future__ import annotations

from itertools import chain
from typing import Any

from finetune.config.tasks import TrainConfig, column_map
from finetune.data.choices import CHOICES
from finetune.data.dataset import Dataset
from finetune.data.questions import QUESTIONS
from finetune.data.sources import resolve
from finetune.data.texts import read_text
from finetune.data.tokens import read_tokens
from finetune.types import ChoiceQuestion, Question

LOOKED_AT = 2**23
"""Most bytes of data that are read once more before torch is imported."""


def read_examples(config: TrainConfig, source: Any, errors: list[str] | None = None) -> Dataset:
    """Read the examples of a task: texts, pairs of texts, words, questions or choices.

    ``errors`` as in ``read_text``.
    """
    about = config.description
    options: Any = {
        "columns": column_map(config.columns),
        "encoding": config.encoding,
        "errors": errors,
    }
    if about.examples is Question:
        return QUESTIONS.read(source, **options)
    if about.examples is ChoiceQuestion:
        return CHOICES.read(source, **options)
    if about.words:
        return read_tokens(source, relations=about.given_spans, **options)
    return read_text(source, pair=about.pairs, **options)


def look_at_data(config: TrainConfig) -> None:
    """Read small data files of a run, so that an error in them is told within a second.

    The task, which reads them again, needs torch, whose import takes several.

    Raises:
        DataError: The data cannot be read; the message names file and line.
    """
    if config.description.own_reader or not (source := resolve(config.data)).files:
        return
    given = chain.from_iterable(source.files.values())
    paths = chain.from_iterable(each.iterdir() if each.is_dir() else [each] for each in given)
    if sum(path.stat().st_size for path in paths) <= LOOKED_AT:
        read_examples(config, config.data)
